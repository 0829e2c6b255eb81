"""The registry against simulated drivers: fold, refuse, un-fold; the rule is named in each test."""

from __future__ import annotations

import dataclasses
import logging
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from graphdedup import DriverError
from graphdedup.driver import Draws
from seam.backend import SegmentInfo
from seam.simulated import DriverProfile
from tests.unit.fold.bench import Bench, write_cluster


def test_equal_bytes_are_compared_after_a_hash_hit(monkeypatch: pytest.MonkeyPatch) -> None:
    """D2: with every key colliding, unequal records are not even offered to the driver."""
    monkeypatch.setattr("graphdedup.registry.key", lambda record: "0" * 32)
    bench = Bench()
    members = [bench.fold(1), bench.fold(2, nodes=2), bench.fold(3), bench.fold(4, nodes=2)]
    assert bench.execs == 2
    assert bench.registry.counters.refused == 0
    bench.check(*members, *reversed(members))


def test_no_executable_is_made_only_to_try() -> None:
    """Unique graphs, each between two that fold: at every step as many instantiations and live executables as groups."""
    bench = Bench()
    for groups in range(1, 9):
        for value in (1, 2):
            bench.fold(value, nodes=groups)
            assert bench.execs == bench.device.peak_exec_count == bench.device.instantiation_count == groups


def test_equal_records_fold_only_when_the_driver_takes_the_update() -> None:
    """D1, D5: a refused graph gets its own executable, the reason is kept, the pair is not tried again."""
    offered: list[tuple[Any, Any]] = []

    def refuse(current: Any, new: Any) -> bool:
        offered.append((current, new))
        return True

    bench = Bench(DriverProfile(refuse_pairs=refuse))
    first, second = bench.fold(1), bench.fold(2)
    assert first.group is not None
    assert second.group is not None
    assert first.group.record == second.group.record
    assert bench.execs == 2
    assert len(offered) == 1
    assert second.refusals == ["PARAMETERS_CHANGED (the profile refuses this pair of graphs)"]
    assert bench.registry.refusals.counts == {"the driver refused the update: PARAMETERS_CHANGED": 1}
    for _ in range(3):
        bench.check(first, second)
    assert len(offered) == 1


def test_after_a_refusal_the_executable_still_runs_what_it_ran_before() -> None:
    """D5."""
    bench = Bench(DriverProfile(refuse_nth_update=2))
    first, second, third = bench.fold(1), bench.fold(2), bench.fold(3)
    assert bench.execs == 2
    assert third.group is not first.group
    before = bench.registry.counters.updates
    bench.check(second)
    assert bench.registry.counters.updates == before  # it reflects the second, as before the refusal
    bench.check(first, third, second)


def test_a_refused_graph_may_join_another_group() -> None:
    """A takes no B; B founds a group of its own; C, refused by A as well, runs on B's executable."""
    graphs: list[Any] = []
    bench = Bench(DriverProfile(refuse_pairs=lambda current, new: graphs and current is graphs[0]))
    first = bench.fold(1)
    graphs.append(first.raw)
    second, third = bench.fold(2), bench.fold(3)
    assert second.group is third.group is not first.group
    assert bench.execs == 2
    bench.check(first, second, third, second, first)


def test_one_way_acceptance_unfolds_on_the_way_back(caplog: pytest.LogCaptureFixture) -> None:
    """D6: A -> B is taken at registration, B -> A is refused at replay. A gets its own executable; nothing stale runs."""
    graphs: list[Any] = []
    bench = Bench(
        DriverProfile(refuse_pairs=lambda current, new: len(graphs) == 2 and (current, new) == (graphs[1], graphs[0]))
    )
    first, second = bench.fold(1), bench.fold(2)
    graphs += [first.raw, second.raw]
    assert bench.execs == 1
    with caplog.at_level(logging.WARNING, logger="graphdedup"):
        bench.check(first, second, first, second, first)
    assert bench.execs == 2
    counters = bench.registry.counters
    assert (counters.unfolded, counters.refused) == (1, 1)
    assert first.reason.startswith("un-folded at replay: PARAMETERS_CHANGED")
    assert len([record for record in caplog.records if "un-folded" in record.getMessage()]) == 1
    for member in (first, second):
        bench.registry.release(member)
    assert bench.execs == 0


def test_a_driver_that_fails_at_replay_is_a_driver_that_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    """D6: whatever the executable holds after an error, it is updated before it runs again."""
    bench = Bench()
    first, second, third = bench.fold(1), bench.fold(2), bench.fold(3)
    update = bench.driver.update

    def failing(executable: Any, raw: Any) -> Any:
        update(executable, raw)  # the worst case: it changed the executable, and then failed
        raise DriverError("the driver is unwell", remedy="none")

    monkeypatch.setattr(bench.driver, "update", failing)
    bench.check(first)
    monkeypatch.undo()
    assert first.group is not second.group
    assert "the driver is unwell" in first.reason
    bench.check(third, second, first, third)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (DriverError("nodes cannot be listed", remedy="none"), "nodes cannot be listed"),
        (KeyError("what nobody foresaw"), "KeyError: 'what nobody foresaw'"),
    ],
)
def test_a_graph_that_cannot_be_read_is_passed_through(error: Exception, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()

    def failing(raw: Any, reads: Any) -> Any:
        raise error

    monkeypatch.setattr(bench.driver, "walk", failing)
    member = bench.fold(1)
    assert member.group is None
    assert member.reason == f"the graph cannot be read: {said}"
    assert not bench.registry.replay(member)
    bench.registry.release(member)


@pytest.mark.parametrize("kind", ["mem_alloc", "conditional", "device-updatable kernel", "child with mem_alloc"])
def test_what_an_update_cannot_touch_is_passed_through(kind: str) -> None:
    """D11: never probed, never instantiated a second time."""
    bench = Bench()
    for _ in range(2):
        graph, out = bench.graph(1)
        if kind == "mem_alloc":
            graph.add_node("mem_alloc", size_bytes=64)
        elif kind == "conditional":
            graph.add_node("conditional", graph=bench.graph(1)[0], condition=lambda: True)
        elif kind == "device-updatable kernel":
            graph.add_kernel("updatable", write_cluster, (out, 1.0), attributes={"device_updatable": 1})
        else:
            child, _ = bench.graph(1)
            child.add_node("mem_alloc", size_bytes=64)
            graph.add_node("child_graph", graph=child)
        member = bench.registry.fold(graph, SegmentInfo())
        assert member.group is None
        assert "D11" in member.reason
    assert bench.device.instantiation_count == 0
    assert bench.registry.counters.refused == 0


@pytest.mark.parametrize(("vouched", "execs"), [(False, 0), (True, 1)])
def test_a_graph_that_may_draw_folds_on_the_callers_word_only(
    vouched: bool, execs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D12: where it cannot be told whether a graph draws, and nobody is there to advance the numbers, it is passed through."""
    bench = Bench(draws_vouched=vouched)
    walk = bench.driver.walk
    monkeypatch.setattr(bench.driver, "walk", lambda raw, reads: dataclasses.replace(walk(raw, reads), draws=Draws.UNKNOWN))
    members = [bench.fold(1), bench.fold(2)]
    assert bench.execs == execs
    assert ["D12" in member.reason for member in members] == [not vouched] * 2
    if vouched:
        bench.check(*members)


def test_the_error_that_a_refusal_leaves_behind_is_consumed() -> None:
    """D13: on a driver with a sticky last error the next innocent call passes."""
    bench = Bench(DriverProfile(sticky_last_error=True, refuse_pairs=lambda current, new: True))
    first, second = bench.fold(1), bench.fold(2)
    assert bench.registry.counters.refused == 1
    assert bench.device.get_last_error() is None
    bench.check(first, second)


def test_the_largest_group_is_tried_before_the_trials_are_used_up() -> None:
    """D5: seven graphs that take nobody, two that take each other, two more of the first kind; the last one still folds."""
    bench = Bench(
        DriverProfile(refuse_pairs=lambda current, new: {node.function for node in current.nodes + new.nodes} != {"b"})
    )
    for value in range(7):
        bench.fold(value, name="a")
    first, second = (bench.fold(value, name="b") for value in (7, 8))
    assert first.group is second.group
    for value in (9, 10):
        bench.fold(value, name="a")
    before = bench.registry.counters.refused
    last = bench.fold(11, name="b")
    assert last.group is first.group
    assert bench.registry.counters.refused == before
    assert bench.execs == 10
    bench.check(last, first, second)


def test_nobody_joins_the_executable_of_an_unfolded_graph() -> None:
    """D6: it is the graph's own; equal graphs that come later go where its siblings are."""
    graphs: list[Any] = []
    bench = Bench(DriverProfile(refuse_pairs=lambda current, new: bool(graphs) and new is graphs[0]))
    first, second = bench.fold(1), bench.fold(2)
    graphs.append(first.raw)
    bench.check(second, first)
    assert bench.registry.counters.unfolded == 1
    bench.registry.release(second)  # the group that the first one left is gone
    late = bench.fold(3)
    assert late.group is not first.group
    assert bench.execs == 2
    bench.check(first, late, first)


def test_a_graph_with_generators_of_its_own_is_taken_for_one_that_may_draw() -> None:
    """D12: only the default generator's draws can be told from a kernel."""
    bench = Bench(draws_vouched=True)
    prologues = []
    for generators in ((), (torch.Generator(),)):
        graph, _ = bench.graph(1)
        handle = SimpleNamespace(graph=graph, generators=generators)
        member = bench.registry.fold(graph, SegmentInfo(), handle=handle)
        assert member.group is not None
        prologues.append(member.prologue)
    assert [prologue is None for prologue in prologues] == [True, False]


def test_a_graph_whose_numbers_cannot_be_advanced_apart_is_passed_through(monkeypatch: pytest.MonkeyPatch) -> None:
    """D12: it keeps the wrapped backend's executable, which is as it was, and says why."""
    bench = Bench()
    walk = bench.driver.walk
    monkeypatch.setattr(bench.driver, "walk", lambda raw, reads: dataclasses.replace(walk(raw, reads), draws=Draws.YES))

    def failing(handle: Any) -> Any:
        raise DriverError("cuGraphClone failed", remedy="none")

    monkeypatch.setattr(bench.driver, "detach", failing)
    graph, _ = bench.graph(1)
    member = bench.registry.fold(graph, SegmentInfo(), handle=SimpleNamespace(graph=graph))
    assert (member.group, member.prologue, member.detached) == (None, None, False)
    assert member.reason == "it may draw random numbers, and they cannot be advanced apart (rule D12): cuGraphClone failed"
    assert not bench.registry.replay(member)
    assert bench.registry.passed_through_count == 1
    bench.registry.release(member)
    assert (bench.execs, bench.registry.passed_through_count) == (0, 0)
