"""Graphs of one capture stream go together where torch needs it: against graphs that are written here."""

from __future__ import annotations

import gc
import weakref
from types import SimpleNamespace
from typing import Any

import pytest

from seam.cuda_family import Family, family_of


class Graph:
    def __init__(self) -> None:
        self.resets = 0

    def reset(self) -> None:
        self.resets += 1


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
def test_graphs_are_reset_with_the_last_of_their_family(order: tuple[int, ...]) -> None:
    """Their cuBLAS workspaces are given back by the first reset, and the others still write there."""
    family = Family(together=True)
    graphs: list[Any] = [Graph() for _ in range(3)]
    for _ in graphs:
        family.joined()
    for index in order[:2]:
        family.leave(graphs[index])
        assert [graph.resets for graph in graphs] == [0, 0, 0]
    family.leave(graphs[order[2]])
    assert [graph.resets for graph in graphs] == [1, 1, 1]
    late: Any = Graph()
    family.joined()
    family.leave(late)
    assert (late.resets, graphs[0].resets) == (1, 1)


def test_where_a_reset_takes_nothing_from_others_each_graph_goes_at_once() -> None:
    family = Family(together=False)
    graphs: list[Any] = [Graph(), Graph()]
    for _ in graphs:
        family.joined()
    family.leave(graphs[0])
    assert [graph.resets for graph in graphs] == [1, 0]
    family.leave(graphs[1])
    assert [graph.resets for graph in graphs] == [1, 1]


def test_a_stream_has_one_family_as_long_as_somebody_holds_it() -> None:
    stream: Any = SimpleNamespace(device_index=0, cuda_stream=77)
    elsewhere: Any = SimpleNamespace(device_index=1, cuda_stream=77)
    first = family_of(stream)
    assert family_of(stream) is first
    assert family_of(elsewhere) is not first
    gone = weakref.ref(first)
    del first
    gc.collect()
    assert gone() is None
