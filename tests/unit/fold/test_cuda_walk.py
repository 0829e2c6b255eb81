"""Reading CUDA graphs, against a driver library that is written here: layouts, orders, and what cannot be read."""

from __future__ import annotations

import ctypes
import struct
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from graphdedup import DriverError
from graphdedup.driver import cuda_raw
from graphdedup.driver.attributes import ATTRIBUTES, pack
from graphdedup.driver.cuda_walk import GraphReader
from graphdedup.driver.protocol import Draws, EdgeRecord, NodeRecord, Reads

GRAPH = 9
INVALID = 1


@dataclass
class Kernel:
    """A kernel node, and of its function what it was compiled for."""

    function: int = 500
    attributes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    required: tuple[int, int, int] = (0, 0, 0)
    local_bytes: int | None = 0
    parameters: bytes = b"\x07" * 8
    unreadable: frozenset[str] = frozenset()
    grid: tuple[int, int, int] = (8, 2, 1)


class Library:
    """The calls of ``libcuda`` that a walk makes, over kernels with the handles 100, 101, ..."""

    def __init__(self, kernels: list[Kernel], edges: list[tuple[int, int, tuple[int, int, int]]]) -> None:
        self.kernels = {100 + index: kernel for index, kernel in enumerate(kernels)}
        self.edges = [(100 + source, 100 + target, data) for source, target, data in edges]
        self.blocks: list[Any] = []
        calls = {
            "cuGraphNodeGetType": self.get_type,
            "cuGraphKernelNodeGetParams_v2": self.get_params,
            "cuGraphKernelNodeGetAttribute": self.get_attribute,
            "cuGraphGetNodes": self.get_nodes,
            "cuGraphGetEdges_v2": self.get_edges,
            "cuGraphNodeGetDependencies_v2": self.get_dependencies,
            "cuGraphDestroyNode": self.destroy_node,
        }
        for name, call in calls.items():  # functions, because argument types are set on them
            setattr(self, name, lambda *arguments, call=call: call(*arguments))

    def get_type(self, node: int, place: int) -> int:
        ctypes.c_int.from_address(place).value = 0
        return 0

    def get_params(self, node: int, place: int) -> int:
        kernel = self.kernels[node]
        if "parameters" in kernel.unreadable:
            return INVALID
        block = ctypes.create_string_buffer(kernel.parameters, len(kernel.parameters))
        pointers = (ctypes.c_uint64 * 1)(ctypes.addressof(block))
        self.blocks += [block, pointers]
        packed = struct.pack("<Q7I4xQQQQ", kernel.function, *kernel.grid, 32, 1, 1, 48, ctypes.addressof(pointers), 0, 0, 0)
        ctypes.memmove(place, packed, len(packed))
        return 0

    def get_attribute(self, node: int, number: int, place: int) -> int:
        kernel = self.kernels[node]
        name = next(name for name, attribute in ATTRIBUTES.items() if attribute.number == number)
        if name in kernel.unreadable:
            return INVALID
        fields = struct.unpack(f"={ATTRIBUTES[name].form}", bytes(struct.calcsize(f"={ATTRIBUTES[name].form}")))
        ctypes.memmove(place, pack(name, kernel.attributes.get(name, fields)), 64)
        return 0

    def get_nodes(self, graph: int, handles: int | None, count: int) -> int:
        assert graph == GRAPH
        self._list(list(self.kernels), handles, count)
        return 0

    def get_edges(self, graph: int, sources: int | None, targets: int | None, data: int | None, count: int) -> int:
        told = sorted(self.edges)  # by source, as the driver was seen to list them
        self._list([source for source, _, _ in told], sources, count)
        self._list([target for _, target, _ in told], targets, count)
        self._data([each for _, _, each in told], data)
        return 0

    def get_dependencies(self, node: int, handles: int | None, data: int | None, count: int) -> int:
        told = [(source, each) for source, target, each in self.edges if target == node]
        self._list([source for source, _ in told], handles, count)
        self._data([each for _, each in told], data)
        return 0

    def destroy_node(self, node: int) -> int:
        return 0 if self.kernels.pop(node, None) is not None else INVALID

    def _list(self, values: list[int], place: int | None, count: int) -> None:
        if place is not None:
            (ctypes.c_uint64 * len(values)).from_address(place)[:] = values
        ctypes.c_size_t.from_address(count).value = len(values)

    def _data(self, values: list[tuple[int, int, int]], place: int | None) -> None:
        for index, each in enumerate(values if place is not None else ()):
            ctypes.memmove((place or 0) + 8 * index, bytes(each) + bytes(5), 8)


def read(
    monkeypatch: pytest.MonkeyPatch,
    *kernels: Kernel,
    edges: list[tuple[int, int, tuple[int, int, int]]] | None = None,
    reads: Reads = Reads(),  # noqa: B008 - frozen
    philox_pointers: tuple[bytes, ...] | None = (),
) -> Any:
    """The record of a graph of these kernels."""
    library = Library(list(kernels), edges or [])
    monkeypatch.setattr(cuda_raw, "libcuda", lambda: library)
    by_function = {kernel.function: kernel for kernel in kernels}
    names = ("REQUIRED_CLUSTER_WIDTH", "REQUIRED_CLUSTER_HEIGHT", "REQUIRED_CLUSTER_DEPTH", "LOCAL_SIZE_BYTES")

    def get_attribute(attribute: str, function: int) -> tuple[int, int]:
        kernel = by_function[function]
        value = (*kernel.required, kernel.local_bytes)[names.index(attribute)]
        return (INVALID, 0) if value is None else (0, value)

    def parameter(function: int, index: int) -> tuple[int, ...]:
        return (0, 0, len(by_function[function].parameters)) if index == 0 else (INVALID, 0, 0)

    bindings = SimpleNamespace(
        CUfunction=int,
        CUfunction_attribute=SimpleNamespace(**{f"CU_FUNC_ATTRIBUTE_{name}": name for name in names}),
        cuFuncGetAttribute=get_attribute,
        cuFuncGetParamInfo=parameter,
    )
    return GraphReader(bindings, philox_pointers, reads).record(GRAPH)


def test_a_kernel_is_read_from_the_layouts_of_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """D3: cooperative launch, local memory, function and cluster; grid and parameters are not in it."""
    kernel = Kernel(0x7FFF_0000_1234, {"cooperative": (1,), "cluster": (4, 2, 1)}, local_bytes=64)
    record = read(monkeypatch, kernel)
    assert record.nodes == (NodeRecord("kernel", (1, 64), 0x7FFF_0000_1234, (4, 2, 1)),)
    assert (record.draws, record.pass_through) == (Draws.NO, "")
    assert read(monkeypatch, Kernel(0x7FFF_0000_1234, dict(kernel.attributes), local_bytes=64, grid=(1, 1, 1))) == record


def test_edges_stand_in_the_order_of_a_nodes_dependencies(monkeypatch: pytest.MonkeyPatch) -> None:
    """D3: the list of all edges is by source, and would make two graphs equal that an update tells apart."""
    three = [Kernel(), Kernel(), Kernel()]
    record = read(monkeypatch, *three, edges=[(1, 2, (0, 0, 0)), (0, 2, (1, 0, 1))])
    assert record.edges == (EdgeRecord(1, 2, (0, 0, 0)), EdgeRecord(0, 2, (1, 0, 1)))
    swapped = read(monkeypatch, *three, edges=[(0, 2, (1, 0, 1)), (1, 2, (0, 0, 0))])
    assert swapped.edges == record.edges[::-1]


def test_the_cluster_that_a_function_was_compiled_for_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """D3: its nodes tell none; what a node tells wins."""
    compiled, plain, told = Kernel(1, required=(2, 1, 1)), Kernel(2), Kernel(1, {"cluster": (4, 1, 1)}, required=(2, 1, 1))
    record = read(monkeypatch, compiled, plain, told)
    assert [node.cluster for node in record.nodes] == [(2, 1, 1), (0, 0, 0), (4, 1, 1)]


def test_attributes_that_are_asked_for_are_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """D3: each value tells two kernels apart; of what only clusters use, a kernel without them says nothing."""
    reads = Reads(("mem_sync_domain", "shared_memory_carveout", "cluster_scheduling_policy"))
    plain, domain, carved = (
        Kernel(attributes=values) for values in ({}, {"mem_sync_domain": (1,)}, {"shared_memory_carveout": (1,)})
    )
    clustered = {"cluster": (2, 1, 1)}
    spread, other = Kernel(attributes=clustered | {"cluster_scheduling_policy": (1,)}), Kernel(attributes=clustered)
    useless = Kernel(attributes={"cluster_scheduling_policy": (1,)})
    nodes = read(monkeypatch, plain, domain, carved, spread, other, useless, reads=reads).nodes
    assert len({node.fixed for node in nodes}) == 4
    assert nodes[0] == nodes[5]
    assert nodes[0].fixed == nodes[4].fixed
    assert len(set(read(monkeypatch, plain, domain, carved, useless).nodes)) == 1


def test_sizes_are_held_where_they_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """D4: grid, block and dynamic shared memory are not in the record unless an update does not carry them."""
    (node,) = read(monkeypatch, Kernel(), reads=Reads(geometry=True)).nodes
    assert node.fixed == (0, 0, 8, 2, 1, 32, 1, 1, 48)


@pytest.mark.parametrize(
    ("kernel", "asked", "named"),
    [
        (Kernel(local_bytes=None), (), ("local memory",)),
        (Kernel(unreadable=frozenset({"cooperative"})), (), ("cooperative",)),
        (Kernel(unreadable=frozenset({"cluster"})), (), ("cluster",)),
        (Kernel(unreadable=frozenset({"parameters"})), (), ("parameters",)),
        (Kernel(unreadable=frozenset({"mem_sync_domain"})), ("mem_sync_domain",), ("mem_sync_domain",)),
        (Kernel(unreadable=frozenset({"preferred_cluster"})), ("preferred_cluster",), ()),
        (
            Kernel(attributes={"cluster": (2, 1, 1)}, unreadable=frozenset({"preferred_cluster"})),
            ("preferred_cluster",),
            ("preferred_cluster",),
        ),
        (Kernel(unreadable=frozenset({"shared_memory_carveout"})), ("shared_memory_carveout",), ()),
    ],
    ids=["local memory", "cooperative", "cluster", "parameters", "domain", "no clusters", "clusters", "time only"],
)
def test_what_cannot_be_read_is_named_and_the_walk_goes_on(
    kernel: Kernel, asked: tuple[str, ...], named: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """D3: unless no kernel without clusters could use it, or it changes no byte."""
    record = read(monkeypatch, Kernel(600), kernel, Kernel(700), reads=Reads(asked))
    assert [node.unreadable for node in record.nodes] == [(), named, ()]
    assert [node.function for node in record.nodes if not node.unreadable][-1] == 700


def test_a_device_updatable_kernel_is_passed_through(monkeypatch: pytest.MonkeyPatch) -> None:
    """D11."""
    record = read(monkeypatch, Kernel(), Kernel(attributes={"device_updatable": (1, 0)}))
    assert record.pass_through == "node 1 is a device-updatable kernel (rule D11)"


def test_a_draw_is_seen_by_an_address_in_the_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    """D12."""
    pointer = struct.pack("<Q", 0x7FFF_1234_5678)
    assert read(monkeypatch, Kernel(parameters=pointer), philox_pointers=(pointer,)).draws is Draws.YES
    assert read(monkeypatch, Kernel(), philox_pointers=(pointer,)).draws is Draws.NO
    assert read(monkeypatch, Kernel(), philox_pointers=None).draws is Draws.UNKNOWN


def test_a_graph_is_cleared_of_every_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """D12: what is left would run with the prologue; a node that cannot be destroyed is an error."""
    library = Library([Kernel(), Kernel(), Kernel()], [(0, 1, (0, 0, 0))])
    monkeypatch.setattr(cuda_raw, "libcuda", lambda: library)
    calls = cuda_raw.raw_calls()
    calls.clear(GRAPH)
    assert (library.kernels, calls.nodes(GRAPH)) == ({}, [])
    library.kernels[100] = Kernel()
    monkeypatch.setattr(library, "cuGraphDestroyNode", lambda node: INVALID, raising=False)
    with pytest.raises(DriverError, match="cuGraphDestroyNode failed"):
        cuda_raw.raw_calls().clear(GRAPH)
