"""The block of memory: what is re-used, by whom, and what an unwritten or freed byte reads as."""

from __future__ import annotations

import gc

import pytest
import torch

from seam.errors import SeamError
from seam.simulated import OutOfSimulatedMemory
from seam.simulated.memory import DeviceMemory

KIB = 1024


@pytest.fixture
def memory() -> DeviceMemory:
    return DeviceMemory(64 * KIB)


def place(memory: DeviceMemory, count: int, pool: int = 1, stream: int = 1) -> torch.Tensor:
    return memory.place((count,), (1,), torch.uint8, pool=pool, stream=stream)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_fresh_memory_reads_as_nan(memory: DeviceMemory, dtype: torch.dtype) -> None:
    assert memory.place((3, 2), (2, 1), dtype, pool=1, stream=1).isnan().all()


def test_fresh_memory_reads_as_minus_one_in_integers(memory: DeviceMemory) -> None:
    assert memory.place((4,), (1,), torch.int64, pool=1, stream=1).tolist() == [-1] * 4


def test_without_poison_memory_is_left_as_it_is() -> None:
    memory = DeviceMemory(64 * KIB, poison=False)
    first = place(memory, 4).fill_(7)
    address = first.data_ptr()
    del first
    again = place(memory, 4)
    assert (again.data_ptr(), again.tolist()) == (address, [7, 7, 7, 7])


def test_freed_memory_is_poisoned_at_once(memory: DeviceMemory) -> None:
    tensor = place(memory, 4).fill_(7)
    offset = tensor.data_ptr() - memory.base
    del tensor
    whole = torch.empty(0, dtype=torch.uint8).set_(memory.storage)
    assert whole[offset : offset + 4].tolist() == [255] * 4


def test_blocks_are_aligned_and_rounded(memory: DeviceMemory) -> None:
    first, second = place(memory, 1), place(memory, 513)
    assert [t.data_ptr() % 512 for t in (first, second)] == [0, 0]
    assert memory.allocated_bytes(1) == 512 + 1024


def test_same_pool_and_stream_take_a_freed_block_again(memory: DeviceMemory) -> None:
    first = place(memory, 512)
    address = first.data_ptr()
    del first
    assert place(memory, 512).data_ptr() == address


@pytest.mark.parametrize(("pool", "stream"), [(2, 1), (1, 2)])
def test_no_other_pool_or_stream_takes_a_freed_block(memory: DeviceMemory, pool: int, stream: int) -> None:
    first = place(memory, 512)
    address = first.data_ptr()
    del first
    assert place(memory, 512, pool, stream).data_ptr() != address


def test_a_view_keeps_the_block(memory: DeviceMemory) -> None:
    tensor = place(memory, 600)
    view = tensor[10:20]
    del tensor
    assert memory.live_blocks() == 1
    del view
    assert memory.live_blocks() == 0


def test_the_smallest_block_that_fits_is_taken_and_split(memory: DeviceMemory) -> None:
    blocks = [place(memory, size) for size in (2048, 512, 1024, 512)]
    large, small = blocks[0].data_ptr(), blocks[2].data_ptr()
    blocks[0] = blocks[2] = blocks[1]
    assert place(memory, 600).data_ptr() == small
    kept = place(memory, 1500)
    assert kept.data_ptr() == large
    assert place(memory, 512).data_ptr() in (large + 1536, small)
    assert memory.reserved_bytes(1) == 4096


def test_neighbours_that_were_freed_are_one_block_again(memory: DeviceMemory) -> None:
    for order in ([0, 1, 2], [2, 1, 0], [0, 2, 1]):
        blocks = {index: place(memory, 512) for index in range(3)}
        for index in order:
            del blocks[index]
        assert memory.reserved_bytes(1) == 1536
    tensor = place(memory, 1536)
    assert memory.reserved_bytes(1) == 1536
    assert tensor.data_ptr() == memory.base


def test_reserved_is_a_high_water_mark_and_allocated_is_not(memory: DeviceMemory) -> None:
    first, second = place(memory, 1024), place(memory, 1024)
    assert (memory.reserved_bytes(1), memory.allocated_bytes(1)) == (2048, 2048)
    del first, second
    assert (memory.reserved_bytes(1), memory.allocated_bytes(1), memory.live_blocks(1)) == (2048, 0, 0)


def test_a_dropped_pool_returns_its_space_when_its_last_block_dies(memory: DeviceMemory) -> None:
    first, second = place(memory, 32 * KIB), place(memory, 16 * KIB)
    del second
    memory.drop_pool(1)
    assert memory.reserved_bytes(1) == 48 * KIB
    with pytest.raises(OutOfSimulatedMemory):
        place(memory, 64 * KIB, pool=2)
    del first
    gc.collect()
    assert memory.total_reserved_bytes() == 0
    assert place(memory, 64 * KIB, pool=2).numel() == 64 * KIB


def test_a_full_block_says_who_holds_it_and_what_to_do(memory: DeviceMemory) -> None:
    held = place(memory, 60 * KIB)
    with pytest.raises(OutOfSimulatedMemory, match=r"pool 1: 61440.*memory_bytes") as caught:
        place(memory, 8 * KIB, pool=2)
    assert isinstance(caught.value, SeamError)
    assert held.numel() == 60 * KIB


def test_a_tensor_without_elements_takes_no_memory(memory: DeviceMemory) -> None:
    tensor = memory.place((0, 3), (3, 1), torch.float32, pool=1, stream=1)
    assert (tuple(tensor.shape), memory.live_blocks()) == ((0, 3), 0)


def test_strides_are_kept(memory: DeviceMemory) -> None:
    tensor = memory.place((2, 3), (1, 2), torch.float32, pool=1, stream=1)
    assert (tensor.stride(), memory.allocated_bytes(1)) == ((1, 2), 512)


def test_a_size_that_is_not_positive_is_refused() -> None:
    with pytest.raises(ValueError, match="positive"):
        DeviceMemory(0)
