"""Exporting CUDA graphs, against a driver library that is written here; and the simulated driver's export beside it."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from graphdedup.driver import cuda_raw
from graphdedup.driver.cuda_export import GraphExporter
from graphdedup.driver.simulated import SimulatedDriver
from graphdedup.topology import Edge, Node, Subgraph
from seam.simulated import SimulatedDevice
from tests.unit.fold.test_cuda_walk import GRAPH, INVALID, Kernel, Library

CHILD = 10
NUMBERS = {"kernel": 0, "memcpy": 1, "memset": 2, "host": 3, "child_graph": 4, "mem_alloc": 10}
ADDRESSES = {0x1000: 2, 0x2000: 1}
"""Unified addresses, and the type of memory that is there."""


class Mixed(Library):
    """A library over nodes of every kind; a node that is no kernel is its kind and what the driver tells of it."""

    def __init__(self, nodes: list[Kernel | tuple[str, Any]], edges: list[tuple[int, int, tuple[int, int, int]]]) -> None:
        super().__init__([node for node in nodes if isinstance(node, Kernel)], edges)
        self.every: dict[int, Any] = {100 + index: node for index, node in enumerate(nodes)}
        self.kernels = {handle: node for handle, node in self.every.items() if isinstance(node, Kernel)}
        self.inside = Kernel(900)

    def get_type(self, node: int, place: int) -> int:
        found = self.inside if node == 500 else self.every[node]
        ctypes.c_int.from_address(place).value = NUMBERS["kernel" if isinstance(found, Kernel) else found[0]]
        return 0

    def get_nodes(self, graph: int, handles: int | None, count: int) -> int:
        assert graph in (GRAPH, CHILD)
        self._list(list(self.every) if graph == GRAPH else [500], handles, count)
        return 0

    def get_edges(self, graph: int, *places: Any) -> int:
        if graph == GRAPH:
            return super().get_edges(graph, *places)
        ctypes.c_size_t.from_address(places[3]).value = 0
        return 0


def export(monkeypatch: pytest.MonkeyPatch, *nodes: Any, edges: Any = ()) -> tuple[list[Node], list[Edge]]:
    library = Mixed(list(nodes), list(edges))
    library.kernels[500] = library.inside
    monkeypatch.setattr(cuda_raw, "libcuda", lambda: library)
    functions = {kernel.function: kernel for kernel in library.kernels.values()}
    names = ("REQUIRED_CLUSTER_WIDTH", "REQUIRED_CLUSTER_HEIGHT", "REQUIRED_CLUSTER_DEPTH", "LOCAL_SIZE_BYTES")

    def attribute(name: str, function: int) -> tuple[int, int]:
        value = (*functions[function].required, functions[function].local_bytes)[names.index(name)]
        return (INVALID, 0) if value is None else (0, value)

    def parameter(function: int, index: int) -> tuple[int, ...]:
        return (0, 0, len(functions[function].parameters)) if index == 0 else (INVALID, 0, 0)

    def told(node: int) -> tuple[int, Any]:
        value = library.every[node][1]
        return (INVALID, None) if value is None else (0, value)

    bindings = SimpleNamespace(
        CUfunction=int,
        CUgraphNode=int,
        CUfunction_attribute=SimpleNamespace(**{f"CU_FUNC_ATTRIBUTE_{name}": name for name in names}),
        CUpointer_attribute=SimpleNamespace(CU_POINTER_ATTRIBUTE_MEMORY_TYPE="memory type"),
        cuFuncGetAttribute=attribute,
        cuFuncGetParamInfo=parameter,
        cuFuncGetName=lambda function: (0, f"function_{function}".encode()),
        cuGraphMemcpyNodeGetParams=told,
        cuGraphMemsetNodeGetParams=told,
        cuGraphChildGraphNodeGetGraph=lambda node: (0, CHILD),
        cuPointerGetAttribute=lambda name, address: (0, ADDRESSES[address]) if address in ADDRESSES else (INVALID, 0),
    )
    nodes_made, edges_made = GraphExporter(bindings).export_nodes(GRAPH)
    assert GraphExporter(bindings).export_nodes(GRAPH) == (nodes_made, edges_made)
    return nodes_made, edges_made


def test_a_kernel_is_told_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """D3: what its function was compiled for is there too; zeros of several fields are left out."""
    window = cast("tuple[int, ...]", (8, 64, 0.5, 2, 0))  # the third field is a float
    told = {"cooperative": (1,), "shared_memory_carveout": (-1,), "mem_sync_domain_map": (0, 1), "access_policy_window": window}
    kernel = Kernel(0x7FFF_0000_1234, told, required=(2, 1, 1), local_bytes=64)
    (node,), edges = export(monkeypatch, kernel)
    assert edges == []
    assert node == Node(
        index=0,
        kind="kernel",
        name=f"function_{0x7FFF_0000_1234}",
        grid=(8, 2, 1),
        block=(32, 1, 1),
        shared_bytes=48,
        cluster=(0, 0, 0),
        required_cluster=(2, 1, 1),
        local_bytes=64,
        function=0x7FFF_0000_1234,
        attributes={
            "access_policy_window": (8, 64, 0.5, 2, 0),
            "cooperative": 1,
            "cluster_scheduling_policy": 0,
            "priority": 0,
            "mem_sync_domain_map": (0, 1),
            "mem_sync_domain": 0,
            "shared_memory_carveout": -1,
            "nvlink_util_centric_scheduling": 0,
            "portable_cluster_size": 0,
            "shared_memory_mode": 0,
        },
        parameters={"kernel_params": ["07" * 8]},
    )


def test_what_the_driver_does_not_tell_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """D3: but not what only a kernel with clusters could use."""
    hidden = frozenset({"preferred_cluster", "cooperative"})
    kernels = [
        Kernel(1, unreadable=hidden, local_bytes=None),
        Kernel(2, {"cluster": (2, 1, 1)}, unreadable=hidden),
        Kernel(3, unreadable=frozenset({"cluster", "parameters"})),
    ]
    nodes, _ = export(monkeypatch, *kernels)
    assert [node.unreadable for node in nodes] == [
        ("local memory", "cooperative"),
        ("cooperative", "preferred_cluster"),
        ("cluster", "parameters"),
    ]
    assert nodes[0].local_bytes is None
    assert nodes[1].cluster == (2, 1, 1)
    assert (nodes[2].name, nodes[2].grid, nodes[2].cluster) == ("", None, None)


def copy(source: int, target: int, kinds: tuple[int, int] = (4, 4)) -> SimpleNamespace:
    return SimpleNamespace(
        srcMemoryType=kinds[0], srcDevice=source, srcHost=None, dstMemoryType=kinds[1], dstDevice=target, dstHost=None,
        WidthInBytes=64, Height=1, Depth=1,
    )  # fmt: skip


def test_nodes_of_every_kind_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unified addresses are resolved; the width of a memset is in bytes; a child graph is read as well."""
    memset = SimpleNamespace(dst=0x1000, value=5, elementSize=4, width=16, height=2, pitch=128)
    nodes, edges = export(
        monkeypatch,
        ("memcpy", copy(0x2000, 0x1000)),
        ("memcpy", copy(0x3000, 0x1000, (4, 3))),
        ("memcpy", None),
        ("memset", memset),
        ("memset", None),
        ("child_graph", None),
        ("host", None),
        ("mem_alloc", None),
        edges=[(1, 3, (0, 0, 0)), (0, 3, (1, 0, 1)), (3, 4, (0, 0, 0))],
    )
    sizes = {"width_bytes": 64, "height": 1, "depth": 1}
    assert nodes[:5] == [
        Node(index=0, kind="memcpy", memory=("host", "device"), parameters={"source": 0x2000, "destination": 0x1000} | sizes),
        Node(index=1, kind="memcpy", memory=("unknown", "array"), parameters={"source": 0x3000, "destination": 0x1000} | sizes),
        Node(index=2, kind="memcpy", unreadable=("parameters",)),
        Node(
            index=3,
            kind="memset",
            parameters={
                "destination": 0x1000, "width_bytes": 64, "value": 5, "element_bytes": 4, "height": 2, "pitch_bytes": 128,
            },
        ),
        Node(index=4, kind="memset", unreadable=("parameters",)),
    ]  # fmt: skip
    assert nodes[5].child is not None
    assert [inner.name for inner in nodes[5].child.nodes] == ["function_900"]
    assert [(node.kind, node.child) for node in nodes[6:]] == [("host", None), ("mem_alloc", None)]
    assert [(edge.source, edge.target, edge.data) for edge in edges] == [
        (1, 3, (0, 0, 0)), (0, 3, (1, 0, 1)), (3, 4, (0, 0, 0)),
    ]  # fmt: skip


def test_the_simulated_driver_tells_the_same_of_its_nodes() -> None:
    """Same names of fields and parameters; edges by the node that waits, in the order of its dependencies."""
    device = SimulatedDevice(1 << 20)
    buffer = torch.zeros(256, dtype=torch.uint8)
    inner = device.new_graph()
    inner.add_node("empty")
    graph = device.new_graph()
    graph.add_kernel(
        "gemm", lambda *_: None, grid=(8, 1, 1), required_cluster=(2, 1, 1), local_bytes=64,
        attributes={"mem_sync_domain_map": (1, 0)}, context=device.context,
    )  # fmt: skip
    graph.add_node("memcpy", target=buffer, source=buffer, size_bytes=64, direction="h2d")
    graph.add_node("memset", target=buffer, size_bytes=64, value=5, element_bytes=4, height=2, pitch_bytes=128)
    graph.add_node("child_graph", graph=inner)
    graph.add_edge(1, 3)
    graph.add_edge(0, 1)
    graph.add_edge(0, 3, (1, 0, 1))
    driver = SimulatedDriver(device)
    kernel, memcpy, memset, child = driver.topology(graph).nodes
    assert (kernel.required_cluster, kernel.local_bytes, kernel.context) == ((2, 1, 1), 64, None)
    assert kernel.function == driver.walk(graph).nodes[0].function
    assert kernel.attributes == {"cooperative": 0, "priority": 0, "mem_sync_domain_map": (1, 0)}
    at = buffer.data_ptr()
    assert memcpy == Node(
        index=1,
        kind="memcpy",
        memory=("host", "device"),
        parameters={"source": at, "destination": at, "width_bytes": 64, "height": 1, "depth": 1},
    )
    assert memset.parameters == {
        "destination": at, "width_bytes": 64, "value": 5, "element_bytes": 4, "height": 2, "pitch_bytes": 128,
    }  # fmt: skip
    assert child.child == Subgraph(nodes=(Node(index=0, kind="empty"),), edges=())
    exported = [(edge.source, edge.target, edge.data) for edge in driver.topology(graph).edges]
    assert exported == [(0, 1, (0, 0, 0)), (1, 3, (0, 0, 0)), (0, 3, (1, 0, 1))]
    assert exported == [tuple(edge) for edge in driver.walk(graph).edges]


def test_json_of_an_earlier_release_is_read(make: Any) -> None:
    """What it did not tell is not known."""
    old = '{"device":"H200","driver_version":"580","instantiate_flags":1,"nodes":[{"index":0,"kind":"kernel","name":"gemm",'
    old += '"cluster":[0,0,0],"attributes":{"cooperative":0}}],"edges":[]}'
    (node,) = type(make.chain([])).from_json(old).nodes
    assert (node.local_bytes, node.required_cluster, node.function, node.memory) == (None, None, None, None)
