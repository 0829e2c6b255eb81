"""Static storage of a captured forward: one buffer for each input and output, sized for the largest shape and sliced."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from seam.errors import BreakError, CaptureError, ReplayError
from seam.slot import map_leaves, tensors_in

__all__ = ["Input", "OutputBuffers", "StaticInputs", "live_rows"]


@dataclass(frozen=True, slots=True)
class Input:
    """A tensor that a forward reads: ``Input((None, 4096), torch.bfloat16)``.

    ``shape`` has None where the size of the batch stands. Rows beyond a live batch are filled with ``pad``: something that the
    forward may compute with, such as a scratch slot for positions of a cache.
    """

    shape: tuple[int | None, ...]
    dtype: torch.dtype
    pad: float = 0

    def __str__(self) -> str:
        return f"{self.dtype} ({', '.join('batch' if size is None else str(size) for size in self.shape)})"


class StaticInputs:
    """One buffer for each input.

    Args:
        inputs: the inputs by name.
        largest: the largest size that is captured.
        device: where they live.

    Raises:
        CaptureError: no input, or none that has the size of the batch in it.
    """

    def __init__(self, inputs: Mapping[str, Input], largest: int, device: torch.device) -> None:
        if not any(None in given.shape for given in inputs.values()):
            raise CaptureError(
                f"none of the inputs ({', '.join(inputs) or 'none'}) has the size of the batch in its shape",
                rule="M1",
                remedy="give at least one Input whose shape has None in it, such as Input((None,), torch.int64)",
            )
        self.inputs = dict(inputs)
        self._buffers = {
            name: torch.full(
                tuple(largest if size is None else size for size in given.shape), given.pad, dtype=given.dtype, device=device
            )
            for name, given in inputs.items()
        }

    @property
    def bytes(self) -> int:
        """Bytes of all buffers."""
        return sum(buffer.numel() * buffer.element_size() for buffer in self._buffers.values())

    def views(self, size: int) -> dict[str, torch.Tensor]:
        """The first ``size`` rows of each buffer."""
        return {name: self._view(name, slice(size)) for name in self.inputs}

    def _view(self, name: str, rows: slice) -> torch.Tensor:
        return self._buffers[name][tuple(rows if size is None else slice(None) for size in self.inputs[name].shape)]

    def live_size(self, live: Mapping[str, torch.Tensor], where: str) -> int:
        """The size of a live batch.

        Raises:
            ReplayError: a name, dtype, rank or size does not agree with the static buffers; nothing was copied.
        """
        if live.keys() != self.inputs.keys():
            raise ReplayError(
                f"{where} was given {_names(live)}, and has buffers for {_names(self.inputs)}",
                rule="S4",
                remedy="pass every input by its name",
            )
        sizes: dict[str, int] = {}
        for name, tensor in live.items():
            wanted = self.inputs[name]
            if not isinstance(tensor, torch.Tensor):
                raise _refused(where, name, f"a {type(tensor).__name__}", wanted)
            given = f"{tensor.dtype} {tuple(tensor.shape)} on {tensor.device}"
            if tensor.dtype is not wanted.dtype or tensor.dim() != len(wanted.shape):
                raise _refused(where, name, given, wanted)
            for have, want in zip(tensor.shape, wanted.shape, strict=True):
                if want is None:
                    sizes.setdefault(name, have)
                if have != (sizes[name] if want is None else want):
                    raise _refused(where, name, given, wanted)
        if len(set(sizes.values())) != 1:
            listed = ", ".join(f"{name} {size}" for name, size in sizes.items())
            raise ReplayError(
                f"{where}: inputs of different batch sizes: {listed}", rule="S4", remedy="pass inputs of one batch"
            )
        return next(iter(sizes.values()))

    def write(self, live: Mapping[str, torch.Tensor], size: int, shape: int) -> None:
        """Copy a live batch of ``size`` rows in place, and pad it to ``shape`` rows, on the current stream."""
        for name, tensor in live.items():
            target = self._view(name, slice(size))
            if target.data_ptr() != tensor.data_ptr() or target.device != tensor.device:
                target.copy_(tensor)
            if size < shape and None in self.inputs[name].shape:
                for dim, wanted in enumerate(self.inputs[name].shape):
                    if wanted is None:
                        whole = self._view(name, slice(shape))
                        whole.narrow(dim, size, shape - size).fill_(self.inputs[name].pad)


class OutputBuffers:
    """One buffer for each tensor that a forward returns, made from what its largest shape emits.

    Smaller shapes write into the first rows. So outputs of all shapes cost what those of the largest cost, and hold until the
    next replay of any of them.
    """

    def __init__(self) -> None:
        self._buffers: list[torch.Tensor] | None = None
        self._rows: list[dict[int, int]] = []

    @property
    def bytes(self) -> int:
        """Bytes of all buffers."""
        return sum(buffer.numel() * buffer.element_size() for buffer in self._buffers or ())

    def size_for(self, outputs: Any, where: str) -> None:
        """Make the buffers for what the largest shape returns, outside of any capture; once.

        Raises:
            CaptureError: it returns something of a type that the seam does not know.
        """
        if self._buffers is None:
            try:
                map_leaves(outputs, lambda leaf: leaf)
            except BreakError as error:
                raise CaptureError(
                    f"{where} returned a {type(outputs).__name__} with something in it that the seam does not know",
                    rule="S2",
                    remedy="return tensors in lists, tuples, mappings or dataclasses, or teach it by seam.register_output_type",
                ) from error
            found = [tensor for _, tensor in tensors_in(outputs)]
            self._buffers = [torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device) for tensor in found]
            self._rows = [{} for _ in found]

    def keep(self, outputs: Any, shape: int, where: str) -> Any:
        """Copy what a capture emits into the buffers, as its last work; what the captured graph's caller gets to see.

        Raises:
            CaptureError: a shape emits other tensors than the largest one, or more rows than that.
        """
        emitted = list(tensors_in(outputs))
        buffers = self._buffers or []
        if len(emitted) != len(buffers):
            raise CaptureError(
                f"{where} returned {len(emitted)} tensors, and {len(buffers)} at the largest shape",
                rule="S4",
                remedy="return the same structure at every shape",
            )
        views: list[torch.Tensor] = []
        for (name, tensor), buffer, rows in zip(emitted, buffers, self._rows, strict=True):
            fits = tensor.dtype is buffer.dtype and tensor.shape[1:] == buffer.shape[1:] and tensor.dim() == buffer.dim()
            if not fits or (tensor.dim() and len(tensor) > len(buffer)):
                raise CaptureError(
                    f"output{name} of {where} is {tensor.dtype} {tuple(tensor.shape)}; the shared buffer, made for the "
                    f"largest shape, holds {buffer.dtype} {tuple(buffer.shape)}",
                    rule="S4",
                    remedy="return no more rows than at the largest shape, or say share_outputs=False",
                )
            view = buffer[: len(tensor)] if tensor.dim() else buffer
            view.copy_(tensor)
            if tensor.dim():
                rows[shape] = len(tensor)
            views.append(view)
        given = iter(views)
        return map_leaves(outputs, lambda leaf: next(given) if isinstance(leaf, torch.Tensor) else leaf)

    def rows_each(self) -> list[int | None]:
        """For each output how many rows one row of the batch has; None for one that does not grow with the batch."""
        found: list[int | None] = []
        for rows in self._rows:
            each = {count / shape for shape, count in rows.items()}
            found.append(int(next(iter(each))) if len(each) == 1 and next(iter(each)).is_integer() else None)
        return found


def live_rows(outputs: Any, each: list[int | None], size: int) -> Any:
    """The rows of a live batch of ``size`` in what a padded one returned."""
    counts = iter(each)

    def cut(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        count = next(counts)
        return leaf if count is None else leaf[: size * count]

    return map_leaves(outputs, cut)


def _names(given: Mapping[str, Any]) -> str:
    return ", ".join(sorted(given)) or "nothing"


def _refused(where: str, name: str, given: str, wanted: Input) -> ReplayError:
    return ReplayError(
        f"{where}: input {name!r} is {given}, and its static buffer is {wanted}",
        rule="S4",
        remedy="pass what the buffer holds, or capture another forward for it",
    )
