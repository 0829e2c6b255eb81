"""Executables and graphs come and go: nothing is lost, and nothing is left."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import seam
from graphdedup import DedupBackend, DriverError, GraphDedupError
from graphdedup.driver import Draws
from graphdedup.group import Member
from seam.backend import SegmentInfo
from seam.simulated import DriverProfile, SimulatedBackend, SimulatedDevice
from tests.unit.fold.bench import Bench


@pytest.mark.parametrize("releases", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
def test_unfolded_members_are_released_like_others(releases: tuple[int, ...]) -> None:
    bench = Bench(DriverProfile(refuse_nth_update=4))
    members = [bench.fold(value) for value in (1, 2, 3)]
    bench.check(*members)  # updates 3 (to the first), 4 (refused: the second is un-folded), 5 (the third)
    assert bench.registry.counters.unfolded == 1
    assert bench.execs == 2
    for index in releases:
        bench.registry.release(members[index])
    assert bench.execs == 0
    assert bench.registry.members == {}


def test_a_member_that_cannot_even_be_instantiated_falls_back_to_the_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    """D6: never fatal; the wrapped backend's own replay takes over, with right results."""
    device = SimulatedDevice(8 << 20, profile=DriverProfile(refuse_nth_update=2))
    dedup = DedupBackend(SimulatedBackend(device), enabled=True)
    runs = []
    for size in (4, 2):
        x = torch.zeros(size)
        graph = seam.BreakableGraph(dedup)
        with seam.capture(graph):
            y = x + size
        runs.append((graph, x, y, size))
    assert dedup.registry is not None
    driver = dedup.registry.driver

    def failing(raw: Any) -> Any:
        raise DriverError("out of memory", remedy="none")

    monkeypatch.setattr(driver, "instantiate", failing)
    for value in (1, 2, 3):
        for graph, x, y, size in runs:
            x.fill_(value)
            graph.replay()
            assert y.tolist() == [value + size] * size
    assert (dedup.stats().unfolded, dedup.stats().passed_through) == (1, 1)
    for graph, *_ in runs:
        graph.close()
    assert device.live_exec_count == 0


def test_a_capture_that_cannot_be_instantiated_fails_where_it_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    """S14: the graph goes back through destroy_graph, the scope fails, nothing leaks, the pool captures again."""
    device = SimulatedDevice(8 << 20)
    inner = SimulatedBackend(device)
    dedup = DedupBackend(inner, enabled=True)
    assert dedup.registry is not None
    handed_back: list[Any] = []
    destroy_graph = inner.destroy_graph
    monkeypatch.setattr(inner, "destroy_graph", lambda handle: (handed_back.append(handle), destroy_graph(handle)))

    def failing(raw: Any) -> Any:
        raise DriverError("out of memory", remedy="none")

    graph = seam.BreakableGraph(dedup)
    x = torch.zeros(4)
    monkeypatch.setattr(dedup.registry.driver, "instantiate", failing)
    with pytest.raises(DriverError, match="out of memory"), seam.capture(graph):
        x + 1
    monkeypatch.undo()
    assert len(handed_back) == 1
    assert graph.state is seam.GraphState.FAILED
    assert dedup.registry.members == {}
    assert dedup.registry.groups() == []
    with seam.capture(graph):
        y = x + 1
    graph.replay()
    assert y.tolist() == [1] * 4
    graph.close()
    assert device.live_exec_count == 0


def test_the_executable_goes_before_the_graph_it_was_made_from() -> None:
    """D15: the source graph and its pool outlive every executable that may launch their addresses."""
    calls: list[str] = []
    device = SimulatedDevice(8 << 20)
    inner = SimulatedBackend(device)
    dedup = DedupBackend(inner, enabled=True)
    assert dedup.registry is not None
    destroy, destroy_graph = dedup.registry.driver.destroy, inner.destroy_graph
    dedup.registry.driver.destroy = lambda executable: (calls.append("exec"), destroy(executable))[1]  # type: ignore[method-assign]
    inner.destroy_graph = lambda handle: (calls.append("graph"), destroy_graph(handle))[1]  # type: ignore[method-assign]
    graphs = []
    for size in (4, 2):
        x = torch.zeros(size)
        graph = seam.BreakableGraph(dedup)
        with seam.capture(graph):
            x + 1
        graphs.append(graph)
    for graph in graphs:
        graph.close()
    assert calls == ["graph", "exec", "graph"]


def test_a_release_that_fails_hands_the_graph_back_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """S14: the driver cannot destroy the executable; the wrapped backend's graph goes nevertheless."""
    dedup = DedupBackend(SimulatedBackend(SimulatedDevice(8 << 20)), enabled=True)
    assert dedup.registry is not None
    graph = seam.BreakableGraph(dedup)
    x = torch.zeros(4)
    with seam.capture(graph):
        x + 1
    source = graph.segments[0].inner.graph

    def failing(executable: Any) -> None:
        raise DriverError("the driver is unwell", remedy="none")

    monkeypatch.setattr(dedup.registry.driver, "destroy", failing)
    with pytest.raises(DriverError, match="unwell"):
        graph.close()
    assert source.destroyed


def test_a_member_is_released_once() -> None:
    bench = Bench()
    member = bench.fold(1)
    bench.registry.release(member)
    with pytest.raises(GraphDedupError, match="released already"):
        bench.registry.release(member)
    assert bench.execs == 0


def test_a_group_that_refused_a_graph_is_not_kept_alive_by_it() -> None:
    """D9: the executable goes with the last graph that runs on it."""
    bench = Bench(DriverProfile(refuse_pairs=lambda current, new: True))
    first, second = bench.fold(1), bench.fold(2)
    assert bench.execs == 2
    bench.registry.release(first)
    assert bench.execs == 1
    bench.check(second)
    bench.registry.release(second)
    assert bench.execs == 0


def test_capture_fold_replay_release_leaves_nothing_behind() -> None:
    device = SimulatedDevice(8 << 20)
    dedup = DedupBackend(SimulatedBackend(device), enabled=True)
    assert dedup.registry is not None
    for cycle in range(1_000):
        pool = dedup.new_pool()
        graphs = []
        for size in (8, 4):
            x = torch.full((size,), float(cycle))
            graph = seam.BreakableGraph(dedup)
            with seam.capture(graph, pool=pool):
                y = (x + 1) * 2
            graphs.append((graph, y))
        for graph, y in graphs:
            graph.replay()
            assert y.tolist() == [(cycle + 1) * 2.0] * len(y)
            graph.close()
        del graph, graphs, y, pool
        assert device.live_exec_count == 0
        assert device.memory.live_blocks() == 0
    assert device.peak_exec_count == 1
    assert dedup.registry.members == {}
    assert dedup.registry.groups() == []
    assert dedup.registry._buckets == {}
    assert len(dedup.registry.pools) == 0
    stats = dedup.stats()
    assert (stats.execs, stats.nodes, stats.groups, stats.passed_through, stats.sessions) == (0, 0, 0, 0, ())
    assert (stats.captured, stats.launches, stats.peak_execs) == (2_000, 2_000, 1)


def test_ids_are_never_used_again() -> None:
    """D8: else the third graph would be taken for the second, whose id it would have, and its contents would be launched."""
    bench = Bench()
    first, second = bench.fold(1), bench.fold(2)
    bench.registry.release(first)
    third = bench.fold(3)
    assert len({first.id, second.id, third.id}) == 3
    bench.check(second, third, second)
    assert list(bench.registry.members.values()) == [second, third]


class Detaching:
    """A bench whose graphs may draw, and a log of what becomes of them and of executables."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bench = Bench()
        self.log: list[str] = []
        driver = self.bench.driver
        walk, destroy, instantiate = driver.walk, driver.destroy, driver.instantiate
        self.full = False

        def made(raw: Any) -> Any:
            if self.full:
                raise DriverError("out of memory", remedy="none")
            return instantiate(raw)

        monkeypatch.setattr(driver, "walk", lambda raw, reads: dataclasses.replace(walk(raw, reads), draws=Draws.UNKNOWN))
        monkeypatch.setattr(driver, "discard", lambda raw: self.log.append(f"graph of {len(raw.nodes)}"))
        monkeypatch.setattr(driver, "destroy", lambda executable: (self.log.append("exec"), destroy(executable))[1])
        monkeypatch.setattr(driver, "instantiate", made)

    def fold(self, nodes: int) -> Member:
        graph, _ = self.bench.graph(1, nodes=nodes)
        return self.bench.registry.fold(graph, SegmentInfo(), handle=SimpleNamespace(graph=graph))


def test_a_detached_graph_goes_with_its_member_after_the_executable(monkeypatch: pytest.MonkeyPatch) -> None:
    """D12, D15: nobody else would destroy it."""
    detaching = Detaching(monkeypatch)
    one, two = detaching.fold(2), detaching.fold(2)
    assert one.group is two.group
    detaching.bench.registry.release(one)
    assert detaching.log == ["graph of 2"]
    detaching.bench.registry.release(two)
    assert detaching.log == ["graph of 2", "exec", "graph of 2"]


def test_a_detached_graph_that_cannot_be_instantiated_is_destroyed(monkeypatch: pytest.MonkeyPatch) -> None:
    """D12: its capture fails, and nothing of it is left."""
    detaching = Detaching(monkeypatch)
    detaching.full = True
    with pytest.raises(DriverError, match="out of memory"):
        detaching.fold(3)
    assert detaching.log == ["graph of 3"]
    assert (detaching.bench.registry.members, detaching.bench.registry.groups()) == ({}, [])
