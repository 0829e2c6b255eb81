"""A bound on executables, by number or by bytes: the least recently used goes, and every graph stays replayable."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

from graphdedup.footprint import modelled_exec_bytes
from graphdedup.group import Member
from seam.backend import SegmentInfo
from seam.simulated import DriverProfile, Stream
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
