"""Graphs of one capture stream go together: against a torch graph and a driver library that are written here."""

from __future__ import annotations

import ctypes
import gc
import weakref
from types import SimpleNamespace
from typing import Any

import pytest

from seam import SeamError, cuda_family
from seam.cuda_family import Family, family_of


class Library:
    """Graphs by handle, each with its node handles."""

    def __init__(self) -> None:
        self.nodes: dict[int, list[int]] = {}
        self.result = 0

    def cuGraphGetNodes(self, graph: Any, nodes: Any, count: Any) -> int:
        held = self.nodes[graph.value]
        if nodes is not None:
            nodes[: len(held)] = held
        ctypes.cast(count, ctypes.POINTER(ctypes.c_size_t))[0] = len(held)
        return 0

    def cuGraphDestroyNode(self, node: Any) -> int:
        for held in self.nodes.values():
            if node.value in held:
                held.remove(node.value)
        return self.result


class Graph:
    def __init__(self, library: Library, handle: int, instantiated: bool) -> None:
        self.library, self.handle, self.instantiated = library, handle, instantiated
        self.calls: list[str] = []
        library.nodes[handle] = [handle * 10, handle * 10 + 1]

    def raw_cuda_graph(self) -> int:
        return self.handle

    def raw_cuda_graph_exec(self) -> int:
        if not self.instantiated:
            raise RuntimeError("not instantiated")
        return 1

    def instantiate(self) -> None:
        self.calls.append(f"instantiate {len(self.library.nodes[self.handle])} nodes")

    def reset(self) -> None:
        self.calls.append("reset")


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    made = Library()
    monkeypatch.setattr(cuda_family, "_libcuda", lambda: made)
    return made


def test_graphs_are_reset_with_the_last_of_their_family_and_emptied_before(library: Library) -> None:
    """What a graph costs is freed at once: its nodes, and its executable if it has one."""
    family = Family()
    graphs: list[Any] = [Graph(library, 1, True), Graph(library, 2, False), Graph(library, 3, True)]
    for _ in graphs:
        family.joined()
    family.leave(graphs[0])
    family.leave(graphs[1])
    assert [graph.calls for graph in graphs] == [["instantiate 0 nodes"], [], []]
    assert library.nodes == {1: [], 2: [], 3: [30, 31]}
    family.leave(graphs[2])
    assert [graph.calls[-1] for graph in graphs] == ["reset"] * 3
    assert graphs[2].calls == ["reset"]


def test_a_graph_captured_after_the_others_are_gone_starts_anew(library: Library) -> None:
    family = Family()
    for handle in (1, 2):
        graph: Any = Graph(library, handle, False)
        family.joined()
        family.leave(graph)
        assert graph.calls == ["reset"]


def test_a_node_that_cannot_be_destroyed_is_an_error(library: Library) -> None:
    family = Family()
    graphs: list[Any] = [Graph(library, 1, True), Graph(library, 2, True)]
    for _ in graphs:
        family.joined()
    library.result = 1
    with pytest.raises(SeamError, match="cuGraphDestroyNode failed: CUDA error 1"):
        family.leave(graphs[0])


def test_a_stream_has_one_family_as_long_as_somebody_holds_it() -> None:
    stream: Any = SimpleNamespace(device_index=0, cuda_stream=77)
    first = family_of(stream)
    assert family_of(stream) is first
    assert family_of(SimpleNamespace(device_index=1, cuda_stream=77)) is not first  # type: ignore[arg-type]
    gone = weakref.ref(first)
    del first
    gc.collect()
    assert gone() is None
