"""What a pool holds, told from torch's snapshot of all pools."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

import seam
from seam.cuda_memory import CudaLedger, PoolUsage, free_blocks, pool_bytes, pool_id, pool_usage

DEVICE = torch.device("cuda", 0)
OURS, OTHERS = (0, 7), (0, 0)


def test_the_segments_of_a_pool_are_summed_under_all_its_ids() -> None:
    segments = [
        {"total_size": 1, "segment_pool_id": (0, 0)},
        {"total_size": 20, "segment_pool_id": (0, 301)},
        {"total_size": 300, "segment_pool_id": [0, 302]},
        {"total_size": 4000, "segment_pool_id": (301, 0)},
        {"total_size": 50000, "segment_pool_id": (0, 301)},
    ]
    assert pool_bytes(segments, [(0, 301), (0, 302)]) == 50320
    assert pool_bytes(segments, [(0, 303)]) == 0


def test_a_pools_id_is_its_own_or_that_of_what_has_one() -> None:
    assert pool_id((0, 7)) == pool_id(SimpleNamespace(id=(0, 7))) == (0, 7)
    for wrong in (0, (0, 0), (1,), (1, 2, 3), "ab", (1.0, 2), (True, 2), None, SimpleNamespace(id=3)):
        with pytest.raises(seam.CaptureError, match=r"is no handle of a pool \[rule M1\].*MemPool"):
            pool_id(wrong)


def segment(address: int, pool: Any, *blocks: tuple[int, str], device: int = 0) -> dict[str, Any]:
    """A segment of these blocks, one after the other: bytes and state."""
    told, at = [], address
    for size, state in blocks:
        told.append({"address": at, "size": size, "state": state})
        at += size
    return {"address": address, "total_size": at - address, "segment_pool_id": pool, "device": device, "blocks": told}


def test_a_pool_tells_what_is_used_and_what_is_free() -> None:
    """What waits for a stream is neither."""
    segments = [
        segment(0, OURS, (100, "active_allocated"), (20, "inactive"), (3, "active_pending_free")),
        segment(1000, OTHERS, (7000, "active_allocated")),
        segment(2000, (0, 8), (400, "active_allocated")),
    ]
    assert pool_usage(segments, [OURS, (0, 8)]) == PoolUsage(reserved_bytes=523, allocated_bytes=500, inactive_bytes=20)


def tensor(address: int, size_bytes: int = 512, device: torch.device = DEVICE) -> Any:
    storage = SimpleNamespace(data_ptr=lambda: address, nbytes=lambda: size_bytes)
    return SimpleNamespace(device=device, untyped_storage=lambda: storage)


class Allocator:
    """Tells what segments there are, and counts how often it was asked."""

    def __init__(self, *segments: dict[str, Any]) -> None:
        self.segments = list(segments)
        self.asked = 0

    def __call__(self) -> list[dict[str, Any]]:
        self.asked += 1
        return self.segments


@pytest.fixture
def allocator() -> Allocator:
    return Allocator(
        segment(0x30000, OTHERS, (0x1000, "active_allocated"), (0x1000, "inactive")),
        segment(
            0x10000,
            OURS,
            (0x1000, "inactive"),
            (0x800, "active_allocated"),
            (0x800, "active_pending_free"),
            (0x1000, "inactive"),
        ),
        segment(0x10000, OURS, (0x4000, "active_allocated"), device=1),
    )


def test_free_blocks_are_those_that_nobody_uses(allocator: Allocator) -> None:
    assert free_blocks(allocator.segments[:2], [OURS]) == [(0x10000, 0x1000), (0x12000, 0x1000)]
    assert free_blocks(allocator.segments, [(0, 8)]) == []


@pytest.mark.parametrize(
    ("address", "size_bytes", "made_here"),
    [
        (0x10000, 0x1000, True),  # was free
        (0x10E00, 0x200, True),  # the end of it
        (0x10E00, 0x400, False),  # reaches into what was taken
        (0x11000, 0x200, False),
        (0x11600, 0x200, False),
        (0x11800, 0x200, False),  # freed, with its stream not done yet
        (0x12000, 0x200, True),
        (0x31000, 0x200, False),  # was free, in another pool
        (0x30000, 0x200, False),
        (0x13000, 0x200, False),  # behind the segment
        (0x8000, 0x200, False),
    ],
)
def test_what_was_free_when_the_ledger_was_opened_is_made_here(
    address: int, size_bytes: int, made_here: bool, allocator: Allocator
) -> None:
    ledger = CudaLedger(DEVICE, [(0, 3), OURS], snapshot=allocator)
    assert ledger.made_here(tensor(address, size_bytes)) is made_here
    assert not ledger.made_here(tensor(address, size_bytes, torch.device("cuda", 1)))
    assert not ledger.made_here(tensor(address, size_bytes, torch.device("cpu")))


def test_a_segment_that_came_later_is_found_and_an_unknown_address_is_asked_for_once(allocator: Allocator) -> None:
    ledger = CudaLedger(DEVICE, [OURS], snapshot=allocator)
    assert allocator.asked == 1
    assert ledger.made_here(tensor(0x10000))
    assert not ledger.made_here(tensor(0x30000))
    assert allocator.asked == 1, "both are in segments that are known"
    allocator.segments.append(segment(0x50000, OURS, (0x1000, "active_allocated")))
    assert ledger.made_here(tensor(0x50200))
    assert allocator.asked == 2
    for _ in range(3):
        assert not ledger.made_here(tensor(0x90000))
    assert allocator.asked == 3


def test_memory_of_another_device_is_ordinary_memory(allocator: Allocator) -> None:
    made = CudaLedger(DEVICE, [OURS], snapshot=allocator).empty_strided(
        (2, 3), (1, 2), dtype=torch.int32, device=torch.device("cpu")
    )
    assert (made.device.type, made.dtype, made.stride()) == ("cpu", torch.int32, (1, 2))
