"""Tensor arguments as a node holds them, and walks through nested arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from .memory import DeviceMemory, span_bytes

__all__ = ["TensorParam", "leaves", "map_tensors", "tensors_in"]


class TensorParam:
    """One tensor argument: where it is and how it lies there."""

    __slots__ = ("_bound", "_memory", "conj", "dtype", "neg", "offset", "owner", "size", "storage_address",
                 "storage_bytes", "stride")  # fmt: skip

    def __init__(self, tensor: torch.Tensor, memory: DeviceMemory) -> None:
        storage = tensor.untyped_storage()
        self.storage_address = storage.data_ptr()
        self.storage_bytes = storage.nbytes()
        self.offset = tensor.storage_offset()
        self.dtype = tensor.dtype
        self.size = tuple(tensor.shape)
        self.stride = tensor.stride()
        self.conj = tensor.is_conj()
        self.neg = tensor.is_neg()
        self.owner = None if memory.holds(self.storage_address) else storage
        self._memory = memory
        self._bound: torch.Tensor | None = None

    @property
    def address(self) -> int:
        """Address of the first element."""
        return int(self.storage_address + self.offset * self.dtype.itemsize)

    @property
    def contiguous(self) -> bool:
        """Whether the elements lie in row-major order without gaps, none conjugated or negated on the way."""
        expected = 1
        for extent, step in zip(reversed(self.size), reversed(self.stride), strict=True):
            if extent != 1 and step != expected:
                return False
            expected *= extent
        return not (self.conj or self.neg)

    @property
    def span_bytes(self) -> int:
        """Bytes from the first to the last element."""
        return span_bytes(self.size, self.stride, self.dtype.itemsize)

    def bind(self) -> torch.Tensor:
        """The view, made once. Inference mode must be on."""
        if self._bound is None:
            self._bound = self.view()
        return self._bound

    def view(self) -> torch.Tensor:
        """A tensor over the address, owning no device memory."""
        if self.owner is not None:
            storage, offset = self.owner, self.offset
        else:
            storage = self._memory.storage
            offset = (self.storage_address - self._memory.base) // self.dtype.itemsize + self.offset
        bound = torch.empty(0, dtype=self.dtype, device="cpu").set_(storage, offset, self.size, self.stride)
        bound = torch._conj(bound) if self.conj else bound
        return torch._neg_view(bound) if self.neg else bound

    def describe(self) -> dict[str, Any]:
        """JSON-able."""
        return {
            "address": self.address,
            "dtype": str(self.dtype).removeprefix("torch."),
            "size": list(self.size),
            "stride": list(self.stride),
            "storage_bytes": self.storage_bytes,
        }


# Asking whether a number is a tensor is slow (torch's metaclass answers), and most arguments are numbers.
_PLAIN = frozenset({int, float, bool, str, type(None), torch.dtype, torch.device})


def map_tensors(value: Any, kind: type | tuple[type, ...], change: Callable[[Any], Any]) -> Any:
    """``value`` with every ``kind`` in it replaced; lists and tuples are copied, everything else is kept."""
    if type(value) in _PLAIN:
        return value
    if isinstance(value, kind):
        return change(value)
    if isinstance(value, (list, tuple)):
        items = [map_tensors(item, kind, change) for item in value]
        return items if isinstance(value, list) else tuple(items)
    if isinstance(value, dict):
        return {name: map_tensors(item, kind, change) for name, item in value.items()}
    return value


def tensors_in(value: Any, kind: type = torch.Tensor) -> Iterator[Any]:
    """Every ``kind`` in nested lists, tuples and dicts, in order."""
    if type(value) in _PLAIN:
        return
    if isinstance(value, kind):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item, kind)
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_in(item, kind)


def leaves(value: Any) -> Iterator[Any]:
    """Everything in nested lists and tuples, in order."""
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from leaves(item)
    else:
        yield value
