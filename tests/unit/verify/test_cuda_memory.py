"""Which memory CUDA graphs reach, from nodes, a snapshot of torch's allocator and driver calls that are written here."""

from __future__ import annotations

import ctypes
import struct
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from graphdedup.driver import cuda_memory
from graphdedup.driver.cuda_memory import CudaGraphMemory, named_by, regions_of
from graphdedup.driver.memory import Region, Unverifiable
from graphdedup.topology import Node, Subgraph

WEIGHTS, PRIVATE, EXPANDABLE, OTHER = 0x7F00_0000_0000, 0x7F10_0000_0000, 0x7F20_0000_0000, 0x7F30_0000_0000


def segment(address: int, *blocks: tuple[int, str], pool: tuple[int, int] = (0, 0)) -> dict[str, Any]:
    """A segment as the snapshot tells it, of blocks of (size, state)."""
    told, start = [], address
    for size, state in blocks:
        told.append({"address": start, "size": size, "state": state})
        start += size
    return {"address": address, "total_size": start - address, "blocks": told, "segment_pool_id": pool}


SEGMENTS = [
    segment(PRIVATE, (512, "active_allocated"), (1536, "inactive"), pool=(0, 1)),
    segment(
        WEIGHTS,
        (512, "active_allocated"),
        (1024, "active_allocated"),
        (512, "inactive"),
        (2048, "active_awaiting_free"),
        (512, "active_allocated"),
    ),
    segment(WEIGHTS + 4608, (512, "active_allocated")),
]


def no_allocation(address: int) -> None:
    assert not WEIGHTS <= address < WEIGHTS + 5120, "torch's own memory is not asked about"


def kernel(*blocks: bytes, **told: Any) -> Node:
    return Node(index=0, kind="kernel", parameters={"kernel_params": [block.hex() for block in blocks]}, **told)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([WEIGHTS + 8], [(WEIGHTS, 512)]),
        ([WEIGHTS + 511, WEIGHTS], [(WEIGHTS, 512)]),
        ([WEIGHTS + 512, WEIGHTS], [(WEIGHTS, 1536)]),
        ([WEIGHTS, WEIGHTS + 4096], [(WEIGHTS, 512), (WEIGHTS + 4096, 512)]),
        ([WEIGHTS + 2048, WEIGHTS + 4096], [(WEIGHTS + 2048, 2560)]),
        ([WEIGHTS + 4096, WEIGHTS + 4608], [(WEIGHTS + 4096, 512), (WEIGHTS + 4608, 512)]),
        ([WEIGHTS + 1536], []),
        ([PRIVATE + 1024], [(PRIVATE, 2048)]),
        ([PRIVATE + 2048, PRIVATE - 1, 0, 3, 65535, 1 << 57, (1 << 64) - 1], []),
    ],
    ids=["inside", "one block once", "neighbours", "apart", "three", "two segments", "free", "private", "no address"],
)
def test_words_are_looked_up_in_torchs_blocks(words: list[int], expected: list[tuple[int, int]]) -> None:
    """Live blocks, merged with named neighbours of their segment; the whole of a private segment, live or not; nothing free."""
    assert regions_of(words, SEGMENTS, no_allocation) == [Region(*region) for region in expected]


def test_what_torch_did_not_allocate_is_asked_of_the_driver() -> None:
    asked: list[int] = []

    def range_of(address: int) -> Region | None:
        asked.append(address)
        return Region(OTHER, 100) if OTHER <= address < OTHER + 100 else None

    words = [OTHER + 40, OTHER + 99, OTHER + 100, WEIGHTS, 17, 1 << 60]
    assert regions_of(words, SEGMENTS, range_of) == [Region(WEIGHTS, 512), Region(OTHER, 100)]
    assert asked == [OTHER + 40, OTHER + 99, OTHER + 100]


def test_aligned_words_of_every_parameter_are_named_child_graphs_too() -> None:
    inner = Subgraph(nodes=(kernel(struct.pack("<iiQ", 1, 2, 30)),), edges=())
    nodes = [
        kernel(struct.pack("<Q", 10), struct.pack("<I", 99), struct.pack("<QQI", 11, 12, 13)),
        Node(index=1, kind="child_graph", child=inner),
        Node(index=2, kind="memset", parameters={"destination": 40, "value": 0}),
        Node(index=3, kind="empty"),
    ]
    named = named_by(nodes)
    assert named.words == {10, 11, 12, 1 | 2 << 32, 30, 40}
    assert named.host == set()


def copy(source: str, destination: str, height: int = 1) -> Node:
    parameters = {"source": 1000, "destination": 2000, "width_bytes": 24, "height": height, "depth": 1}
    return Node(index=5, kind="memcpy", memory=(source, destination), parameters=parameters)


def test_both_ends_of_a_copy_are_named_but_for_host_memory_that_is_only_read() -> None:
    """The host's own code may have taken that for something else since the capture: nothing is ever put back there."""
    assert named_by([copy("device", "device")]) == ({1000, 2000}, set())
    assert named_by([copy("host", "device")]) == ({2000}, set())
    assert named_by([copy("device", "host")]) == ({1000}, {Region(2000, 24)})
    assert named_by([copy("device", "device", height=4)]) == ({1000, 2000}, set())


@pytest.mark.parametrize(
    ("node", "message"),
    [
        (copy("device", "host", height=2), r"node 5 \(memcpy\).*host memory"),
        (copy("device", "array"), r"node 5 \(memcpy\).*array memory"),
        (copy("unknown", "device"), r"node 5 \(memcpy\).*unknown memory"),
        (Node(index=6, kind="memset", unreadable=("parameters",)), r"node 6 \(memset\).*its parameters"),
        (Node(index=7, kind="kernel", name="gemm", unreadable=("kernel_params",)), r"node 7 \(gemm\).*its kernel_params"),
        (Node(index=8, kind="host"), "node 8 is of kind host"),
        (Node(index=9, kind="mem_alloc"), "node 9 is of kind mem_alloc"),
    ],
    ids=["rows on the host", "array", "unknown", "memset", "kernel", "host", "allocation"],
)
def test_what_cannot_be_told_is_not_verified(node: Node, message: str) -> None:
    """Its memory could not be put back between the two runs."""
    with pytest.raises(Unverifiable, match=message):
        named_by([node])


def test_an_attribute_that_the_driver_does_not_tell_is_no_hindrance() -> None:
    assert named_by([kernel(struct.pack("<Q", 10), unreadable=("cluster", "local memory"))]).words == {10}


class Driver:
    """Driver calls over the memory of this process, and a graph of one kernel that names some of it."""

    CUpointer_attribute = SimpleNamespace(CU_POINTER_ATTRIBUTE_MEMORY_TYPE=2)
    CUstream = int

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor
        self.nodes = [kernel(struct.pack("<QQ", tensor.data_ptr() + 8, 1 << 40))]
        self.log: list[str] = []

    def cuPointerGetAttribute(self, attribute: int, address: int) -> tuple[int, int]:
        start = self.tensor.data_ptr()
        return (0, 2) if attribute == 2 and start <= address < start + self.tensor.nbytes else (1, 0)

    def cuMemGetAddressRange(self, address: int) -> tuple[int, int, int]:
        return 0, self.tensor.data_ptr(), self.tensor.nbytes

    def cuMemcpyAsync(self, target: int, source: int, size_bytes: int, stream: int) -> tuple[int]:
        assert stream == 77
        ctypes.memmove(target, source, size_bytes)
        self.log.append("copy")
        return (0,)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    """The driver; its device has no room, so bytes are held on the host, which is all that there is here."""
    made = Driver(torch.arange(100, dtype=torch.uint8))
    reader = SimpleNamespace(export_nodes=lambda raw: (made.nodes, []))
    stream = SimpleNamespace(cuda_stream=77, synchronize=lambda: made.log.append("synchronize"))
    monkeypatch.setattr(cuda_memory, "GraphExporter", lambda bindings: reader)
    monkeypatch.setattr(cuda_memory, "PIECE_BYTES", 64)
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
    monkeypatch.setattr(torch.cuda, "memory_snapshot", lambda: SEGMENTS)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1535, 1 << 30))
    return made


def test_bytes_are_held_compared_and_put_back_piece_by_piece(driver: Driver) -> None:
    memory, tensor = CudaGraphMemory(driver, torch.device("cuda", 0)), driver.tensor
    first, second = Region(tensor.data_ptr(), 64), Region(tensor.data_ptr() + 64, 36)
    assert memory.regions(9) == (first, second)
    saved = memory.save((first, second))
    assert driver.log == ["copy", "copy", "synchronize"]
    assert memory.differing(saved) == {}
    tensor[99] = tensor[64] = 0
    assert memory.differing(saved) == {second: 2}
    tensor[:64] = 5  # which it was in one place
    assert memory.differing(saved) == {first: 63, second: 2}
    memory.restore({first: saved[first]})
    assert tensor.tolist()[:65] == [*range(64), 0]
    memory.restore(saved)
    assert tensor.tolist() == list(range(100))
    assert driver.log[-2:] == ["copy", "synchronize"]
    assert memory.save(()) == {}


def test_without_room_anywhere_it_says_so(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """1024 bytes, twice in 2048: the device is asked for them; with one byte less free, the host is."""
    asked: list[str] = []

    def empty(size: int, *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        asked.append(f"{size} on {device}")
        raise RuntimeError("out of memory")

    monkeypatch.setattr(torch, "empty", empty)
    memory = CudaGraphMemory(driver, torch.device("cuda", 0))
    for free_bytes in (2047, 2048):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device, free=free_bytes: (free, 1 << 30))
        with pytest.raises(Unverifiable, match="no room for 1024 bytes in c"):
            memory.save([Region(driver.tensor.data_ptr(), 64), Region(driver.tensor.data_ptr() + 64, 36)])
    assert asked == ["1024 on cpu", "1024 on cuda:0"]


def test_another_allocator_than_torchs_own_is_not_verified(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    def snapshot() -> None:
        raise RuntimeError("cudaMallocAsync does not yet support snapshot\nmore")

    monkeypatch.setattr(torch.cuda, "memory_snapshot", snapshot)
    with pytest.raises(Unverifiable, match=r"does not tell its blocks: cudaMallocAsync does not yet support snapshot .*native"):
        CudaGraphMemory(driver, torch.device("cuda", 0)).regions(9)


def test_bytes_are_never_held_in_memory_of_the_graph_itself(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """As they would be inside use_mem_pool() of the graph's own pool."""
    lent = torch.zeros(512, dtype=torch.uint8)
    monkeypatch.setattr(torch, "empty", lambda *_, **__: lent)
    with pytest.raises(Unverifiable, match="memory of the graph itself"):
        CudaGraphMemory(driver, torch.device("cuda", 0)).save([Region(lent.data_ptr() + 500, 64)])
    assert driver.log == []
