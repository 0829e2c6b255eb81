"""The dispatch mode that turns torch calls into nodes. Nothing is computed while it records."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _get_current_dispatch_mode_stack,
    _pop_mode,
    _push_mode,
)

from .capture import Capture
from .errors import HostReadError, SimulatedDeviceError
from .infer import Spec, Traits, argument, draws, infer, traits_of
from .memory import span_bytes
from .streams import Stream, current_stream
from .tensors import leaves, map_tensors, tensors_in

__all__ = ["Recorder"]

_BREAK_REMEDY = "move the call into a function marked with @seam.eager_break, which runs between two segments"
_COPIES = frozenset({"copy_", "clone", "_to_copy"})
_ZEROS = frozenset({"zero_", "zeros", "zeros_like", "new_zeros"})


class Recorder(TorchDispatchMode):
    """Records what the thread that entered it sends to the streams of one capture.

    A call on a stream outside the capture runs at once, as it would on a GPU.
    ``Tensor.tolist`` and ``Tensor.numpy`` reach CPU memory without a dispatch: they read poison instead of failing.
    """

    def __init__(self, capture: Capture) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.capture = capture
        self._under_autocast_kernel = False

    def start(self) -> None:
        """Put the recorder on this thread's mode stack."""
        super().__enter__()  # type: ignore[no-untyped-call]

    def stop(self) -> None:
        """Take it off, also from under modes that were entered later and are still open."""
        above: list[Any] = []
        while _get_current_dispatch_mode_stack()[-1] is not self:
            above.append(_pop_mode())
        super().__exit__(None, None, None)  # type: ignore[no-untyped-call]
        for mode in reversed(above):
            _push_mode(mode)

    def __torch_dispatch__(
        self, operator: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Record one call, or refuse it."""
        kwargs = kwargs or {}
        for kind in types:
            if kind.__torch_dispatch__ is not torch._C._disabled_torch_dispatch_impl:
                return NotImplemented  # a wrapper: it unwraps itself, and what it calls comes here again
        stream = current_stream()
        if stream._capture is not self.capture:
            return operator(*args, **kwargs)
        self.capture.check()
        traits = traits_of(operator)
        if traits.composite:
            return self._decompose(operator, traits, args, kwargs)
        if not self._concerns_us(traits, args, kwargs):
            return operator(*args, **kwargs)
        self._refuse_what_a_gpu_cannot(traits, args, kwargs)
        if traits.name == "resize_":
            return self._resize_(stream, operator, args, kwargs)
        if traits.view or not (traits.returns_tensor or traits.written or traits.returns_nothing):
            return operator(*args, **kwargs)
        return self._record(stream, operator, traits, args, kwargs)

    def _decompose(self, operator: Any, traits: Traits, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        # Under inference mode composite calls arrive whole. The C++ kernel is named, because a Python decomposition of
        # the same name may compute something else.
        composite = torch._C.DispatchKey.CompositeImplicitAutograd
        if traits.autocast or self._under_autocast_kernel or not _autocast_on_entry():
            # Eager, too, runs what is inside a call with an autocast kernel without autocast.
            before = self._under_autocast_kernel
            self._under_autocast_kernel = before or traits.autocast
            try:
                with self:
                    return operator._op_dk(composite, *args, **kwargs)
            finally:
                self._under_autocast_kernel = before
        excluded = torch._C._dispatch_tls_local_exclude_set()
        autocast = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)
        included = torch._C._dispatch_tls_local_include_set()
        with torch._C._ForceDispatchKeyGuard(included, excluded - autocast), self:
            return operator._op_dk(composite, *args, **kwargs)

    def _concerns_us(self, traits: Traits, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether a call works on this device: not one on meta tensors or one that makes them."""
        for tensor in tensors_in((args, kwargs)):
            if tensor.device.type != "cpu":
                return False
            if tensor.layout is not torch.strided:
                raise self._illegal(f"{traits.name} works on a {tensor.layout} tensor", "use dense tensors")
        device = argument(traits, "device", args, kwargs) if traits.has_device else None
        if device is None or torch.device(device).type == "cpu":
            return True
        if torch.device(device).type != "meta":
            raise self._illegal(f"{traits.name} moves data to {device}", _BREAK_REMEDY)
        return False

    def _illegal(self, problem: str, remedy: str, kind: type[SimulatedDeviceError] = SimulatedDeviceError) -> Exception:
        return self.capture.invalidate(kind(f"{problem} during a capture", rule="S7", remedy=remedy))

    def _refuse_what_a_gpu_cannot(self, traits: Traits, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        reads = traits.reads_on_host
        if traits.name in ("index", "index_put_", "index_put", "_index_put_impl_"):
            masks = any(index.dtype in (torch.bool, torch.uint8) for index in tensors_in(args[1]))
            # One value under a mask is a fill, which needs no positions.
            fill = traits.name != "index" and args[2].numel() == 1 and not argument(traits, "accumulate", args, kwargs)
            reads = masks and not fill
        elif traits.name == "repeat_interleave":
            reads = argument(traits, "output_size", args, kwargs) is None
        elif traits.dynamic_shape:
            reads = True
        if reads:
            raise self._illegal(f"{traits.name} needs the data of a tensor on the host", _BREAK_REMEDY, HostReadError)
        if any(True for _ in tensors_in((args, kwargs), torch.Generator)):
            raise self._illegal(
                f"{traits.name} was given a generator of its own", "draw from the default generator, or outside"
            )

    def _record(self, stream: Stream, operator: Any, traits: Traits, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        try:
            inferred = infer(operator, traits, args, kwargs)
        except NotImplementedError as error:
            raise self._illegal(
                f"{operator} has no meta kernel, so that its result cannot be placed",
                f"register one (torch.library.register_fake), or {_BREAK_REMEDY}",
            ) from error
        written: list[torch.Tensor] = []
        for name, _ in traits.written:
            written += tensors_in(argument(traits, name, args, kwargs))
        for tensor, spec in zip(written, inferred.written, strict=False):
            if tuple(tensor.shape) != spec.size:
                self._grow(stream, tensor, spec)
        single = len(traits.returns_written) == 1
        results: list[Any] = []
        outputs: list[torch.Tensor | None] = []
        for at, which in enumerate(traits.returns_written):
            if which is None:
                shape = inferred.result if single else inferred.result[at]
                results.append(map_tensors(shape, Spec, lambda spec: self.capture.place(spec, stream)))
                outputs += [item if isinstance(item, torch.Tensor) else None for item in leaves(results[-1])]
            else:
                results.append(argument(traits, traits.written[which][0], args, kwargs))
                outputs += [None for _ in leaves(results[-1])]
        touched = [tensor for tensor in outputs if tensor is not None] + written
        if not traits.allocates_only and (not touched or any(tensor.numel() for tensor in touched)):
            self._add(stream, operator, traits, args, kwargs, outputs, written)
        if traits.returns_nothing:
            return None
        return results[0] if single else tuple(results)

    def _add(
        self,
        stream: Stream,
        operator: Any,
        traits: Traits,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        outputs: list[torch.Tensor | None],
        written: list[torch.Tensor],
    ) -> None:
        target = next((tensor for tensor in [*outputs, *written] if tensor is not None), None)
        if target is not None and _plain(target):
            if traits.name in _COPIES:
                source = args[1] if traits.name == "copy_" else args[0]
                if source.dtype == target.dtype and source.shape == target.shape and _plain(source):
                    self.capture.add_node(stream, "memcpy", target=target, source=source)
                    return
            if traits.name in _ZEROS or (traits.name == "fill_" and _zero(args[1])):
                self.capture.add_node(stream, "memset", target=target, value=0)
                return
        self.capture.add_call(
            stream,
            operator,
            args,
            kwargs,
            tuple(outputs),
            seeded=traits.seeded,
            draws=draws(traits, args, kwargs),
            written=tuple(written),
        )

    def _resize_(self, stream: Stream, operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        tensor, size = args[0], tuple(args[1])
        stride = torch.empty(size, device="meta", memory_format=kwargs.get("memory_format")).stride()
        if tuple(tensor.shape) != size:
            self._grow(stream, tensor, Spec(size, stride, tensor.dtype))
        return tensor

    def _grow(self, stream: Stream, tensor: torch.Tensor, spec: Spec) -> None:
        """Give a tensor another shape, and memory of the pool if its own does not hold it."""
        storage, offset = tensor.untyped_storage(), tensor.storage_offset()
        itemsize = tensor.dtype.itemsize
        if storage.nbytes() < span_bytes(spec.size, spec.stride, itemsize) + offset * itemsize:
            if tensor.numel():
                raise self._illegal("a tensor with contents would be moved by a resize", "allocate it large enough")
            storage, offset = self.capture.place(spec, stream).untyped_storage(), 0
        tensor.set_(storage, offset, spec.size, spec.stride)


def _autocast_on_entry() -> bool:
    """Whether the caller has autocast on; the dispatcher has turned it off for what runs in a mode."""
    with torch._C._RestorePythonTLSSnapshot():  # type: ignore[attr-defined]
        return torch.is_autocast_enabled("cpu")


def _plain(tensor: torch.Tensor) -> bool:
    return tensor.is_contiguous() and not (tensor.is_conj() or tensor.is_neg())


def _zero(value: Any) -> bool:
    """Whether filling with ``value`` is setting bytes to zero; -0.0 is not."""
    if isinstance(value, (bool, int)):
        return value == 0
    return isinstance(value, float) and value == 0 and math.copysign(1.0, value) > 0
