"""A bound on executables, by number or by bytes: the least recently used goes, and every graph stays replayable."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

import seam
from graphdedup import DedupBackend, DriverError, FoldPolicy
from graphdedup.footprint import modelled_exec_bytes
from graphdedup.group import Member
from seam.backend import SegmentInfo
from seam.simulated import DriverProfile, SimulatedBackend, SimulatedDevice, Stream
from seam.simulated import stream as on_stream
from tests.unit.fold.bench import Bench, write_cluster


def fold_distinct(bench: Bench, number: int) -> Member:
    """A graph whose record is that of no other number below 1,024: ten kernels, cooperative where the number has a bit."""
    out, graph = torch.zeros(2), bench.device.new_graph()
    for bit in range(10):
        attributes = {"cooperative": number >> bit & 1}
        graph.add_kernel("write", write_cluster, (out, float(number)), attributes=attributes)
        if bit:
            graph.add_edge(bit - 1, bit)
    member = bench.registry.fold(graph, SegmentInfo(0, f"number {number}"))
    bench.outs[member.id] = out, number
    return member


def live(bench: Bench, *members: Member) -> list[bool]:
    return [bool(member.group and member.group.executables) for member in members]


def test_a_thousand_equal_graphs_are_one_executable_and_a_thousand_others_stay_in_bounds() -> None:
    """Addresses are in no key, so equal graphs at fresh addresses do not pile up; what differs is bounded and counted."""
    bench = Bench(max_execs=8)
    equal = [bench.fold(value) for value in range(1000)]
    assert bench.execs == bench.device.peak_exec_count == 1
    others = [fold_distinct(bench, number) for number in range(1000)]
    assert bench.execs == bench.device.peak_exec_count == 8
    assert bench.registry.counters.evictions == 1001 - 8
    bench.check(*equal[::250], *others[::125], *equal[1::250])
    assert bench.device.peak_exec_count == 8
    for member in (*equal, *others):
        bench.registry.release(member)
    assert bench.execs == 0
    assert bench.registry.groups() == []


def test_the_least_recently_used_goes_and_comes_back() -> None:
    bench = Bench(max_execs=2)
    a, b = fold_distinct(bench, 1), fold_distinct(bench, 2)
    bench.check(a)
    c = fold_distinct(bench, 3)
    assert live(bench, a, b, c) == [True, False, True]
    bench.check(b)
    assert live(bench, a, b, c) == [False, True, True]
    assert bench.registry.counters.evictions == 2
    for _ in range(3):
        bench.check(c, a, b)
    assert bench.execs == bench.device.peak_exec_count == 2


def test_a_budget_in_bytes_counts_what_an_executable_is_modelled_to_take() -> None:
    """Ten nodes are modelled at 133,000 bytes on the device and 76,000 on the host."""
    size = sum(modelled_exec_bytes(10))
    assert size == 209_000
    bench = Bench(exec_budget_bytes=3 * size)
    members = [fold_distinct(bench, number) for number in range(5)]
    assert live(bench, *members) == [False, False, True, True, True]
    bench.check(*members, *reversed(members))
    assert bench.device.peak_exec_count == 3


def test_a_budget_below_one_executable_leaves_one() -> None:
    bench = Bench(exec_budget_bytes=1)
    members = [fold_distinct(bench, number) for number in range(3)]
    bench.check(*members, *members)
    assert bench.execs == bench.device.peak_exec_count == 1


def test_a_graph_may_join_a_group_whose_executable_was_taken() -> None:
    """D1: the driver is asked all the same, on an executable made again from an older member."""
    bench = Bench(max_execs=1)
    first, other = bench.fold(1), fold_distinct(bench, 7)
    assert live(bench, first, other) == [False, True]
    updates = bench.device.update_count
    second = bench.fold(2)
    assert second.group is first.group
    assert bench.device.update_count == updates + 1
    bench.check(first, other, second)


def test_a_graph_that_the_driver_refuses_founds_its_own_within_bounds() -> None:
    bench = Bench(DriverProfile(refuse_pairs=lambda current, new: True), max_execs=2)
    members = [bench.fold(value) for value in range(20)]
    assert bench.execs == 2
    assert bench.registry.counters.refused == sum(min(8, value) for value in range(20))  # eight groups are tried at most
    bench.check(*members, *reversed(members))
    assert bench.device.peak_exec_count == 2


def test_the_bound_gives_way_to_executables_that_are_being_launched() -> None:
    """A graph that runs is not cut off; another one that is replayed meanwhile gets its executable."""
    bench = Bench(max_execs=1)
    begun, go, out = threading.Event(), threading.Event(), torch.zeros(1)

    def wait(info: Any, out: torch.Tensor) -> None:
        begun.set()
        out.fill_(1 if go.wait(30) else -1)

    graph = bench.device.new_graph()
    graph.add_kernel("wait", wait, (out,), attributes={"cooperative": 1})
    slow, quick = bench.registry.fold(graph, SegmentInfo()), bench.fold(5)

    def replay() -> None:
        with on_stream(Stream()):
            bench.registry.replay(slow)

    thread = threading.Thread(target=replay)
    thread.start()
    assert begun.wait(30)
    bench.check(quick)
    assert bench.execs == 2
    go.set()
    thread.join(30)
    assert out.item() == 1
    assert not thread.is_alive()


@pytest.mark.parametrize("bound", [{"max_execs": 1}, {"exec_budget_bytes": 1}])
def test_an_eviction_waits_for_the_device(bound: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """What is destroyed has ended, so that a graph that is made anew cannot overlap itself."""
    bench = Bench(**bound)
    first = bench.fold(1)
    handle = first.group.executables[0].handle  # type: ignore[union-attr]
    calls: list[tuple[str, bool]] = []
    for name in ("finish", "destroy"):
        real = getattr(bench.driver, name)
        monkeypatch.setattr(
            bench.driver, name, lambda one, name=name, real=real: (calls.append((name, one is handle)), real(one))[1]
        )
    fold_distinct(bench, 3)
    assert calls == [("finish", True), ("destroy", True)]


def test_under_a_bound_in_bytes_the_least_recently_used_goes_as_well() -> None:
    """Room for two: the first is launched again before the third comes, so the second goes."""
    bench = Bench(exec_budget_bytes=2 * sum(modelled_exec_bytes(10)))
    a, b = fold_distinct(bench, 1), fold_distinct(bench, 2)
    bench.check(a)
    c = fold_distinct(bench, 3)
    assert live(bench, a, b, c) == [True, False, True]


def test_as_many_go_as_a_large_one_needs() -> None:
    """Two of ten nodes take 418,000 bytes; one of fifty, modelled at 538,000, leaves room for neither."""
    bench = Bench(exec_budget_bytes=600_000)
    small = [fold_distinct(bench, number) for number in (1, 2)]
    assert live(bench, *small) == [True, True]
    large = bench.fold(3, nodes=50)
    assert live(bench, *small, large) == [False, False, True]
    assert bench.registry.counters.evictions == 2
    bench.check(*small, large)


def test_one_that_still_runs_on_the_device_stays_where_another_can_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting for it could take long. Where all of them run, the least recently used one is waited for."""
    bench = Bench(max_execs=2)
    a, b = fold_distinct(bench, 1), fold_distinct(bench, 2)
    running = {a.group.executables[0].handle}  # type: ignore[union-attr]
    monkeypatch.setattr(bench.driver, "runs_elsewhere", lambda handle, stream: stream is None and handle in running)
    c = fold_distinct(bench, 3)
    assert live(bench, a, b, c) == [True, False, True]
    running.add(c.group.executables[0].handle)  # type: ignore[union-attr]
    d = fold_distinct(bench, 4)
    assert live(bench, a, c, d) == [False, True, True]


def test_a_graph_that_joins_is_offered_to_what_an_older_member_runs() -> None:
    """D1: the group's executable was taken; one made of the graph itself would take it without being asked anything."""
    bench = Bench(DriverProfile(refuse_pairs=lambda current, new: current is not new), max_execs=1)
    first, other = bench.fold(1), fold_distinct(bench, 7)
    assert live(bench, first, other) == [False, True]
    second = bench.fold(2)
    assert second.group is not first.group
    assert bench.registry.counters.refused == 1
    bench.check(first, other, second)


def test_a_graph_that_draws_and_cannot_get_its_executable_back_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """D6, D12: the wrapped backend's graph was emptied, so a replay by it would compute nothing."""
    inner = SimulatedBackend(SimulatedDevice(8 << 20))
    dedup = DedupBackend(inner, FoldPolicy(max_execs=1), enabled=True)
    assert dedup.registry is not None
    x = torch.ones(8)
    graphs = []
    for steps in (1, 2):
        graph = seam.BreakableGraph(dedup)
        with seam.capture(graph):
            for _ in range(steps):
                y = torch.rand_like(x)
        graphs.append((graph, y))

    def failing(raw: Any) -> Any:
        raise DriverError("out of memory", remedy="none")

    monkeypatch.setattr(dedup.registry.driver, "instantiate", failing)
    monkeypatch.setattr(inner, "replay_graph", lambda handle: pytest.fail("the emptied graph was replayed"))
    with pytest.raises(DriverError, match="out of memory"):
        graphs[0][0].replay()
    monkeypatch.undo()
    torch.manual_seed(3)
    expected = torch.rand(8)
    torch.manual_seed(3)
    graphs[0][0].replay()
    assert torch.equal(graphs[0][1], expected)
    for graph, _ in graphs:
        graph.close()
