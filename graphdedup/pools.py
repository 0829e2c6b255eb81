"""The memory pools that were captured into: a number for each, and what it holds."""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import torch

from seam.cuda_memory import pool_usage

__all__ = ["Pools", "read_pools"]


class Pools:
    """Pools, numbered from 1 in the order in which they were first captured into. It keeps none alive."""

    def __init__(self) -> None:
        self._numbers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._next = itertools.count(1)
        self._lock = threading.Lock()

    def add(self, pool: Any) -> int:
        """The pool's number, a new one where it has none yet."""
        with self._lock:
            found = self._numbers.get(pool)
            if found is None:
                found = self._numbers[pool] = next(self._next)
            return found

    def __len__(self) -> int:
        return len(self._numbers)

    def __iter__(self) -> Iterator[tuple[int, Any]]:
        """Number and pool of those that are alive."""
        with self._lock:
            found = [(number, pool) for pool, number in self._numbers.items()]
        return iter(sorted(found, key=lambda one: one[0]))


def read_pools(pools: Pools) -> dict[int, tuple[int | None, int | None, int | None]]:
    """Reserved, allocated and inactive bytes by the pool's number; None for what a pool does not tell.

    The pools of torch's allocator are read from one snapshot of it, which takes longer the more blocks there are.
    """
    segments: list[Any] | None = None
    told: dict[int, tuple[int | None, int | None, int | None]] = {}
    for number, pool in pools:
        ids, allocated = getattr(pool, "ids", None), getattr(pool, "allocated_bytes", None)
        if ids is not None and torch.cuda.get_allocator_backend() != "native":
            told[number] = None, None, None
        elif ids is not None:
            if segments is None:
                segments = list(torch.cuda.memory_snapshot())
            told[number] = pool_usage(segments, ids)
        elif allocated is not None:
            reserved_bytes, allocated_bytes = pool.reserved_bytes(), allocated()
            told[number] = reserved_bytes, allocated_bytes, reserved_bytes - allocated_bytes
        else:
            told[number] = pool.reserved_bytes(), None, None
    return told
