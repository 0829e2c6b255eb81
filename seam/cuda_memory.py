"""What torch's allocator says of a graph pool: where its blocks are, who has them, and tensors over them that own nothing."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from seam.errors import CaptureError

__all__ = ["CudaLedger", "PoolUsage", "free_blocks", "pool_bytes", "pool_id", "pool_usage", "view_of"]

_INACTIVE = "inactive"
_ALLOCATED = "active_allocated"


def pool_id(handle: Any) -> tuple[int, int]:
    """The id of a pool of torch's: of a ``torch.cuda.MemPool``, or what ``torch.cuda.graph_pool_handle()`` returned.

    Raises:
        CaptureError: it is neither.
    """
    found = getattr(handle, "id", handle)
    if isinstance(found, tuple) and len(found) == 2 and all(type(number) is int for number in found) and any(found):
        return found
    raise CaptureError(
        f"{handle!r} is no handle of a pool",
        rule="M1",
        remedy="give torch.cuda.graph_pool_handle(), a graph's pool(), or a torch.cuda.MemPool",
    )


def pool_bytes(segments: Iterable[Mapping[str, Any]], ids: Collection[tuple[int, int]]) -> int:
    """Bytes in these segments of ``torch.cuda.memory_snapshot()`` that belong to pools of these ids."""
    return sum(int(segment["total_size"]) for segment in segments if tuple(segment["segment_pool_id"]) in ids)


class PoolUsage(NamedTuple):
    """Bytes of a pool. What is neither allocated nor inactive was freed and waits for work on a stream."""

    reserved_bytes: int
    allocated_bytes: int
    inactive_bytes: int


def pool_usage(segments: Iterable[Mapping[str, Any]], ids: Collection[tuple[int, int]]) -> PoolUsage:
    """What these segments of ``torch.cuda.memory_snapshot()`` say of pools of these ids."""
    held = [segment for segment in segments if tuple(segment["segment_pool_id"]) in ids]
    blocks = [block for segment in held for block in segment["blocks"]]
    return PoolUsage(
        pool_bytes(held, ids),
        sum(int(block["size"]) for block in blocks if block["state"] == _ALLOCATED),
        sum(int(block["size"]) for block in blocks if block["state"] == _INACTIVE),
    )


def free_blocks(segments: Iterable[Mapping[str, Any]], ids: Collection[tuple[int, int]]) -> list[tuple[int, int]]:
    """Address and bytes of what pools of these ids hold and nobody uses."""
    return [
        (int(block["address"]), int(block["size"]))
        for segment in segments
        if tuple(segment["segment_pool_id"]) in ids
        for block in segment["blocks"]
        if block["state"] == _INACTIVE
    ]


class _Range(NamedTuple):
    start: int
    end: int
    ours: bool
    """Whether it is a segment of the pool."""


class _Bytes:
    """Device memory for ``torch.as_tensor``, whose result lies there and keeps this object, and with it ``owner``, alive."""

    def __init__(self, address: int, size_bytes: int, owner: object) -> None:
        self.owner = owner
        self.__cuda_array_interface__ = {
            "shape": (size_bytes,),
            "typestr": "|u1",
            "data": (address, False),
            "strides": None,
            "version": 3,
        }


def view_of(address: int, size_bytes: int, device: torch.device, owner: object = None) -> torch.Tensor:
    """``size_bytes`` bytes of device memory, uint8, in a tensor that owns none of them and keeps ``owner`` alive."""
    return torch.as_tensor(_Bytes(address, size_bytes, owner), device=device)


class CudaLedger:
    """See :class:`seam.backend.Ledger`. Told from the allocator's snapshots: one now, and one where an address is not in it.

    A segment of a pinned pool is never given back, so what an earlier snapshot says of the pool's segments stays true. What was
    taken when the ledger was opened counts as not made here for good, also if it was freed and taken again: it is held then.

    Args:
        device: the pool's device.
        ids: the pool's ids, the current one last.
        owner: kept alive by views: the pool, so that one that a break stored stays readable.
        snapshot: tells the segments of the allocator.
    """

    def __init__(
        self,
        device: torch.device,
        ids: Sequence[tuple[int, int]],
        owner: object = None,
        snapshot: Callable[[], Iterable[Mapping[str, Any]]] = torch.cuda.memory_snapshot,
    ) -> None:
        self._device = device
        self._ids = ids
        self._owner = owner
        self._snapshot = snapshot
        self._unknown: set[int] = set()
        self._ranges: list[_Range] = []
        self._before = sorted(
            (int(block["address"]), int(block["address"]) + int(block["size"]))
            for segment in self._read()
            if tuple(segment["segment_pool_id"]) in self._ids
            for block in segment["blocks"]
            if block["state"] != _INACTIVE
        )

    def _read(self) -> list[Mapping[str, Any]]:
        segments: list[Mapping[str, Any]] = [
            segment for segment in self._snapshot() if int(segment.get("device", 0)) == self._device.index
        ]
        self._ranges = sorted(
            _Range(
                int(segment["address"]),
                int(segment["address"]) + int(segment["total_size"]),
                tuple(segment["segment_pool_id"]) in self._ids,
            )
            for segment in segments
        )
        return segments

    def _holds(self, address: int) -> bool | None:
        """Whether the pool has an address; None where nobody is known to."""
        at = bisect_right(self._ranges, address, key=lambda held: held.start) - 1
        if at < 0 or address >= self._ranges[at].end:
            return None
        return self._ranges[at].ours

    def empty_strided(
        self, size: Sequence[int], stride: Sequence[int], *, dtype: torch.dtype, device: torch.device
    ) -> torch.Tensor:
        """A tensor on memory of the pool; on ordinary memory where ``device`` is not the pool's."""
        if device != self._device:
            return torch.empty_strided(size, stride, dtype=dtype, device=device)
        # What torch.cuda.use_mem_pool does for a pool of its own class.
        torch._C._cuda_beginAllocateCurrentThreadToPool(self._device.index, self._ids[-1])
        try:
            return torch.empty_strided(size, stride, dtype=dtype, device=device)
        finally:
            torch._C._cuda_endAllocateToPool(self._device.index, self._ids[-1])
            torch._C._cuda_releasePool(self._device.index, self._ids[-1])

    def made_here(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor's storage is a block of the pool that was free when the ledger was opened."""
        if tensor.device != self._device:
            return False
        storage = tensor.untyped_storage()
        start = storage.data_ptr()
        held = self._holds(start)
        if held is None and start not in self._unknown:
            self._read()
            held = self._holds(start)
            if held is None:
                self._unknown.add(start)
        if not held:
            return False
        end = start + storage.nbytes()
        at = bisect_right(self._before, start, key=lambda block: block[0]) - 1
        if at >= 0 and self._before[at][1] > start:
            return False
        return at + 1 >= len(self._before) or self._before[at + 1][0] >= end

    def view(self, tensor: torch.Tensor) -> torch.Tensor:
        """The same elements, owning no memory."""
        storage = tensor.untyped_storage()
        with torch.inference_mode(tensor.is_inference()):
            raw = view_of(storage.data_ptr(), storage.nbytes(), self._device, self._owner).untyped_storage()
            empty = torch.empty(0, dtype=tensor.dtype, device=self._device)
            return empty.set_(raw, tensor.storage_offset(), tensor.size(), tensor.stride())
