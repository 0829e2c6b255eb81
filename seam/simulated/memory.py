"""The memory of a simulated device: one block, and pools that really re-use their space.

A tensor placed here owns its piece: when its storage dies the piece goes back to the pool, and a later allocation of
the same pool and stream may take it, also while a graph that was captured earlier still has the address baked in. That
is the hazard of a GPU's private pool, kept on purpose. Nothing here can crash: the block lives as long as the device.
"""

from __future__ import annotations

import ctypes
import mmap
import threading
import weakref
from bisect import insort
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from .errors import OutOfSimulatedMemory

__all__ = ["DeviceMemory", "span_bytes"]

ROUND_BYTES = 512
"""Every allocation starts on, and is rounded up to, a multiple of this; more than any kernel's alignment needs."""
POISON = 0xFF
"""A byte that is NaN in every float dtype and -1 in every signed integer, when repeated."""


def span_bytes(size: Sequence[int], stride: Sequence[int], itemsize: int) -> int:
    """Bytes between the first and one past the last element of a tensor with these sizes and strides."""
    if any(extent == 0 for extent in size):
        return 0
    return (1 + sum((extent - 1) * step for extent, step in zip(size, stride, strict=True))) * itemsize


class _FreeRanges:
    """Ranges of free space, (start, bytes), sorted by start and never touching each other."""

    def __init__(self) -> None:
        self.ranges: list[tuple[int, int]] = []

    def take(self, wanted_bytes: int) -> int | None:
        """Cut ``wanted_bytes`` out of the smallest range that holds them; its start, or None."""
        fits = [(size, start) for start, size in self.ranges if size >= wanted_bytes]
        if not fits:
            return None
        size, start = min(fits)
        self.ranges.remove((start, size))
        if size > wanted_bytes:
            insort(self.ranges, (start + wanted_bytes, size - wanted_bytes))
        return start

    def give(self, start: int, size: int) -> None:
        """Add a range, merged with the neighbours that it touches."""
        insort(self.ranges, (start, size))
        at = self.ranges.index((start, size))
        if at + 1 < len(self.ranges) and start + size == self.ranges[at + 1][0]:
            size += self.ranges.pop(at + 1)[1]
            self.ranges[at] = (start, size)
        if at > 0 and sum(self.ranges[at - 1]) == start:
            before, before_size = self.ranges[at - 1]
            self.ranges[at - 1 : at + 1] = [(before, before_size + size)]


@dataclass
class _PoolState:
    """Book-keeping of one pool. Free space is kept by stream: what one stream freed no other may take."""

    free: dict[int, _FreeRanges] = field(default_factory=dict)
    reserved_bytes: int = 0
    allocated_bytes: int = 0
    live_blocks: int = 0
    dropped: bool = False


class DeviceMemory:
    """One anonymous mapping of ``size_bytes``, committed page by page as it is used.

    With ``poison`` a block is filled with 0xFF when it is taken and again when it is freed, so that what nobody has
    computed reads as NaN (or -1). A block that somebody has a view of is left as it is when it is freed.
    """

    def __init__(self, size_bytes: int, *, poison: bool = True) -> None:
        if size_bytes <= 0:
            raise ValueError(f"size_bytes must be positive, not {size_bytes}")
        self.size_bytes = -(-size_bytes // ROUND_BYTES) * ROUND_BYTES
        self.poison = poison
        self._view = memoryview(mmap.mmap(-1, self.size_bytes))
        with torch.inference_mode(False):
            self._whole = torch.frombuffer(self._view, dtype=torch.uint8)
        self.base = self._whole.data_ptr()
        self._lock = threading.RLock()
        self._arena = _FreeRanges()
        self._arena.give(0, self.size_bytes)
        self._pools: dict[int, _PoolState] = {}
        self._taken: dict[int, tuple[int, int]] = {}
        self._viewed: set[int] = set()
        self.taken_count = 0
        """How many blocks were ever taken: a block's number says when."""
        # Finalizers may run in the middle of anything, also while the lock is held: they only append here.
        self._returned: deque[tuple[int, int, int, int]] = deque()
        self._dropped: deque[int] = deque()

    @property
    def storage(self) -> torch.UntypedStorage:
        """The whole block as one storage; it owns no piece of it."""
        return self._whole.untyped_storage()

    def holds(self, address: int) -> bool:
        """Whether an address lies in the block."""
        return self.base <= address < self.base + self.size_bytes

    def place(self, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype, *, pool: int, stream: int) -> torch.Tensor:
        """A tensor on fresh memory of ``pool``. The memory goes back when the tensor's storage dies.

        Raises:
            OutOfSimulatedMemory: the block is full.
        """
        wanted_bytes = span_bytes(size, stride, dtype.itemsize)
        if wanted_bytes == 0:
            return torch.empty_strided(size, stride, dtype=dtype, device="cpu")
        start, taken_bytes, number = self._take(wanted_bytes, pool, stream)
        piece = self._view[start : start + wanted_bytes]
        if self.poison:
            ctypes.memset(self.base + start, POISON, taken_bytes)
        owner = torch.frombuffer(piece, dtype=torch.uint8)
        weakref.finalize(piece, self._give_back, pool, stream, start, taken_bytes, number).atexit = False
        return torch.empty(0, dtype=dtype, device="cpu").set_(owner.untyped_storage(), 0, size, stride)

    def _take(self, wanted_bytes: int, pool: int, stream: int) -> tuple[int, int, int]:
        taken_bytes = -(-wanted_bytes // ROUND_BYTES) * ROUND_BYTES
        with self._lock:
            self._collect()
            state = self._pools.setdefault(pool, _PoolState())
            start = state.free.setdefault(stream, _FreeRanges()).take(taken_bytes)
            if start is None:
                start = self._arena.take(taken_bytes)
                if start is None:
                    raise self._exhausted(taken_bytes)
                state.reserved_bytes += taken_bytes
            state.allocated_bytes += taken_bytes
            state.live_blocks += 1
            self.taken_count += 1
            self._taken[start] = pool, self.taken_count
            return start, taken_bytes, self.taken_count

    def _exhausted(self, wanted_bytes: int) -> OutOfSimulatedMemory:
        held = ", ".join(f"pool {pool}: {state.reserved_bytes}" for pool, state in sorted(self._pools.items()))
        return OutOfSimulatedMemory(
            f"simulated device memory of {self.size_bytes} bytes has no room for {wanted_bytes} more "
            f"(reserved bytes by pool: {held or 'none'})",
            rule="M1",
            remedy="drop pools, graphs and tensors that are not needed, or make the device larger: "
            "SimulatedDevice(memory_bytes=...)",
        )

    def _give_back(self, pool: int, stream: int, start: int, taken_bytes: int, number: int) -> None:
        if self.poison and number not in self._viewed:
            ctypes.memset(self.base + start, POISON, taken_bytes)
        self._returned.append((pool, stream, start, taken_bytes))

    def _collect(self) -> None:
        """Book what finalizers returned. The lock is held."""
        while self._returned:
            pool, stream, start, taken_bytes = self._returned.popleft()
            state = self._pools[pool]
            state.free[stream].give(start, taken_bytes)
            state.allocated_bytes -= taken_bytes
            state.live_blocks -= 1
            self._viewed.discard(self._taken.pop(start)[1])
            self._release_if_empty(pool, state)
        while self._dropped:
            pool = self._dropped.popleft()
            if pool in self._pools:
                self._pools[pool].dropped = True
                self._release_if_empty(pool, self._pools[pool])

    def _release_if_empty(self, pool: int, state: _PoolState) -> None:
        if state.dropped and state.live_blocks == 0:
            for ranges in state.free.values():
                for start, size in ranges.ranges:
                    self._arena.give(start, size)
            del self._pools[pool]

    def taken(self, address: int) -> tuple[int, int] | None:
        """Pool and number of the block that begins at an address; None if none does. Numbers grow as blocks are taken."""
        with self._lock:
            self._collect()
            return self._taken.get(address - self.base)

    def note_view(self, address: int) -> None:
        """Somebody will go on to use the block that begins at an address, in the order of a program, after it is freed."""
        taken = self.taken(address)
        if taken is not None:
            self._viewed.add(taken[1])

    def poison_free(self, pool: int) -> None:
        """Fill what ``pool`` holds and no tensor uses with 0xFF."""
        with self._lock:
            for ranges in self._state(pool).free.values():
                for start, size in ranges.ranges:
                    ctypes.memset(self.base + start, POISON, size)

    def drop_pool(self, pool: int) -> None:
        """Nobody will capture into ``pool`` again: its space returns to the device once its last block is freed."""
        self._dropped.append(pool)

    def _state(self, pool: int) -> _PoolState:
        self._collect()
        return self._pools.get(pool, _PoolState())

    def reserved_bytes(self, pool: int) -> int:
        """Bytes that ``pool`` holds, in use or not: its high-water mark, 0 once it has been returned."""
        with self._lock:
            return self._state(pool).reserved_bytes

    def allocated_bytes(self, pool: int) -> int:
        """Bytes of ``pool`` under live tensors, rounded as they were allocated."""
        with self._lock:
            return self._state(pool).allocated_bytes

    def live_blocks(self, pool: int | None = None) -> int:
        """Number of live blocks of ``pool``, or of every pool."""
        with self._lock:
            if pool is not None:
                return self._state(pool).live_blocks
            self._collect()
            return sum(state.live_blocks for state in self._pools.values())

    def total_reserved_bytes(self) -> int:
        """Bytes that all pools hold together."""
        with self._lock:
            self._collect()
            return sum(state.reserved_bytes for state in self._pools.values())
