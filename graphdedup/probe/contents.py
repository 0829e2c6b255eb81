"""What an arena holds before a launch: the same bytes on every device, from a seed."""

from __future__ import annotations

from functools import lru_cache

import torch

from graphdedup.probe.spec import STAMP_WORDS, Arena

__all__ = ["counters", "device_bytes", "host_bytes"]


@lru_cache(maxsize=64)
def device_bytes(arena: Arena, seed: int) -> bytes:
    """Buffers of random bytes, then stamps of zeros."""
    return _random(arena.buffer_count * arena.buffer_bytes, 2 * seed) + bytes(4 * STAMP_WORDS * arena.stamp_count)


@lru_cache(maxsize=64)
def host_bytes(arena: Arena, seed: int) -> bytes:
    """Host buffers of random bytes."""
    return _random(arena.host_buffer_count * arena.buffer_bytes, 2 * seed + 1)


def counters(arena: Arena, seed: int) -> list[int]:
    """Small numbers, so that a counter can be taken from."""
    return [(seed + index) % 3 + 1 for index in range(arena.counter_count)]


def _random(count: int, seed: int) -> bytes:
    # Kept off the default generator: a probe must not move anybody's random numbers.
    made = torch.randint(0, 256, (count,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))
    return bytes(made.tolist())
