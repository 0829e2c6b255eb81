"""The registry against simulated drivers of several makes, with graphs made by hand; the rule is named in each test."""

from __future__ import annotations

import dataclasses
import logging
import threading
from typing import Any

import pytest
import torch

import seam
from graphdedup import DedupBackend, DriverError, GraphDedupError, Tier, Topology
from graphdedup.driver import Draws
from graphdedup.driver.simulated import SimulatedDriver
from graphdedup.registry import Member, Registry
from seam.backend import SegmentInfo
from seam.simulated import DriverProfile, LaunchInfo, SimulatedBackend, SimulatedDevice, SimulatedGraph

HIDDEN = DriverProfile(uses_preferred_cluster=True, carries_attributes={"preferred_cluster": "stale"})
"""A driver that uses preferred cluster dimensions, does not carry them, and does not tell them."""
WHOLE = DriverProfile(carries_cluster_alone="carried", carries_unset_cluster="carried", freezes_clusters=False)
"""A driver whose updates carry every cluster dimension."""


def write_cluster(info: LaunchInfo, out: torch.Tensor, value: float) -> None:
    out.fill_(value + 100 * info.cluster[0])


class Bench:
    """A simulated device, a registry on it, and graphs of one kernel that writes a number, and its cluster size."""

    def __init__(self, profile: DriverProfile | None = None, **registry: Any) -> None:
        self.device = SimulatedDevice(8 << 20, profile=profile)
        self.driver = SimulatedDriver(self.device)
        self.registry = Registry(self.driver, **registry)
        self.outs: dict[int, tuple[torch.Tensor, float]] = {}

    def graph(
        self, value: float, *, name: str = "write", cluster: int = 0, nodes: int = 1, edge: tuple[int, int, int] = (0, 0, 0)
    ) -> tuple[SimulatedGraph, torch.Tensor]:
        out = torch.zeros(2)
        graph = self.device.new_graph()
        for index in range(nodes):
            graph.add_kernel(name, write_cluster, (out, value), cluster=(cluster, 1, 1) if cluster else (0, 0, 0))
            if index:
                graph.add_edge(index - 1, index, data=edge)
        return graph, out

    def fold(self, value: float, *, cluster: int = 0, position: int = 0, **how: Any) -> Member:
        graph, out = self.graph(value, cluster=cluster, **how)
        member = self.registry.fold(graph, SegmentInfo(position, f"value {value}"))
        self.outs[member.id] = out, value + 100 * cluster
        return member

    def check(self, *members: Member) -> None:
        for member in members:
            out, expected = self.outs[member.id]
            out.zero_()
            assert self.registry.replay(member)
            assert out.tolist() == [expected] * 2

    @property
    def execs(self) -> int:
        assert self.registry.exec_count == self.device.live_exec_count
        return self.device.live_exec_count


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
    assert bench.registry.refusals == {"the driver refused the update: PARAMETERS_CHANGED": 1}
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


def test_clusters_that_a_failed_update_left_behind_are_not_inherited(monkeypatch: pytest.MonkeyPatch) -> None:
    """D3, D6: the update of a graph with clusters changed the executable and then failed; its first graph sets none."""
    bench = Bench()
    plain = bench.fold(1)
    update = bench.driver.update

    def failing(executable: Any, raw: Any) -> Any:
        update(executable, raw)
        raise DriverError("the driver is unwell", remedy="none")

    monkeypatch.setattr(bench.driver, "update", failing)
    clustered = bench.fold(2, name="other", cluster=2)
    monkeypatch.undo()
    assert clustered.group is not plain.group
    bench.outs[plain.id] = bench.outs[plain.id][0], 101  # clusters of one block
    bench.check(plain, clustered, plain)


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


def test_child_graphs_are_part_of_the_record() -> None:
    """The third child has another node count: its parent is in a group of its own. Launches are exact."""
    bench = Bench()
    members = []
    for value, nodes in ((1.0, 1), (2.0, 1), (3.0, 2)):
        child, out = bench.graph(value, nodes=nodes)
        parent = bench.device.new_graph()
        parent.add_node("child_graph", graph=child)
        member = bench.registry.fold(parent, SegmentInfo())
        bench.outs[member.id] = out, value
        members.append(member)
    assert bench.execs == 2
    assert members[0].group is members[1].group is not members[2].group
    bench.check(*members, *reversed(members), *members)
    exported = bench.driver.topology(members[2].raw)
    assert exported.nodes[0].child is not None
    assert [node.kind for node in exported.nodes[0].child.nodes] == ["kernel", "kernel"]
    assert Topology.from_json(exported.to_json()) == exported


def test_clusters_inside_child_graphs_are_not_shared() -> None:
    """D3: nobody says (1, 1, 1) there, so a kernel without clusters would run with those of a sibling's child."""
    bench = Bench()
    members = []
    for value, cluster in ((1.0, 2), (2.0, 0), (3.0, 2)):
        child, out = bench.graph(value, cluster=cluster)
        parent = bench.device.new_graph()
        parent.add_node("child_graph", graph=child)
        member = bench.registry.fold(parent, SegmentInfo())
        bench.outs[member.id] = out, value + 100 * cluster
        members.append(member)
    assert bench.execs == 2
    assert bench.registry.counters.refused == 0
    bench.check(*members, *reversed(members), *members)


def test_what_cannot_be_read_inside_a_child_graph_forbids_sharing() -> None:
    """D3: each of two equal parents gets an executable of its own, and the reason names the node and the child's node."""
    bench = Bench(HIDDEN)
    for value in (1.0, 2.0):
        child, _ = bench.graph(value, cluster=2)
        parent = bench.device.new_graph()
        parent.add_node("child_graph", graph=child)
        member = bench.registry.fold(parent, SegmentInfo())
        assert member.reason.startswith("node 0 (child graph): node 0 (kernel): preferred_cluster cannot be read")
    assert bench.execs == 2
    assert bench.registry.counters.updates == bench.registry.counters.refused == 0


@pytest.mark.parametrize("difference", ["cooperative", "context", "direction", "rows"])
def test_what_no_update_changes_is_not_even_offered(difference: str) -> None:
    """D3: two graphs that differ in it have other records, so that the driver has nothing to refuse."""
    bench = Bench()
    out, source = torch.zeros(64), torch.zeros(64)
    for other in (False, True):
        graph = bench.device.new_graph()
        if difference == "cooperative":
            graph.add_kernel("write", write_cluster, (out, 1.0), attributes={"cooperative": int(other)})
        elif difference == "context":
            graph.add_kernel("write", write_cluster, (out, 1.0), context=99 if other else None)
        elif difference == "direction":
            graph.add_node("memcpy", target=out, source=source, direction="h2d" if other else "d2d")
        else:
            graph.add_node("memset", target=out, size_bytes=4, height=3 if other else 2, pitch_bytes=8)
        bench.registry.fold(graph, SegmentInfo())
    assert bench.execs == 2
    assert bench.registry.counters.refused == 0


@pytest.mark.parametrize(("vouched", "execs"), [(False, 0), (True, 1)])
def test_a_graph_that_may_draw_folds_on_the_callers_word_only(
    vouched: bool, execs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D12: where it cannot be told whether a graph draws, it keeps torch's own executable."""
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


def test_edge_data_is_in_the_record() -> None:
    """D3: a programmatic edge against a plain one is not even offered."""
    bench = Bench()
    bench.fold(1, nodes=2)
    bench.fold(2, nodes=2, edge=(1, 0, 1))
    assert bench.execs == 2
    assert bench.registry.counters.refused == 0


@pytest.mark.parametrize(
    ("profile", "execs"),
    [
        (WHOLE, 1),
        (DriverProfile(), 2),
        (DriverProfile(carries_cluster="refused"), 2),
        (DriverProfile(carries_cluster="stale"), 2),
    ],
    ids=["carried whole", "carried with another function", "refused", "stale"],
)
def test_clusters_of_one_function_fold_only_where_an_update_carries_them(profile: DriverProfile, execs: int) -> None:
    """D3, D4: elsewhere they are kept apart, and replays are right even if the driver's updates lie."""
    bench = Bench(profile)
    members = [bench.fold(value, cluster=size) for value, size in ((1, 1), (2, 2), (3, 1), (4, 2))]
    assert bench.execs == execs
    assert bench.registry.counters.refused == 0
    for _ in range(3):
        bench.check(*members, *reversed(members))


def test_clusters_fold_with_functions_and_the_reason_is_kept_where_they_do_not() -> None:
    """D3, D5: one function has one cluster dimension at a node of a group; the other one founds a group that others join."""
    bench = Bench()
    a2, b4, a4, c1, late = (
        bench.fold(value, name=name, cluster=cluster)
        for value, (name, cluster) in enumerate((("a", 2), ("b", 4), ("a", 4), ("c", 1), ("a", 4)), 1)
    )
    assert bench.execs == 2
    assert a2.group is b4.group is c1.group
    assert a4.group is late.group is not a2.group
    reason = "a node runs a function that a sibling runs with another cluster dimension (rule D3)"
    assert bench.registry.refusals == {reason: 2}
    assert bench.registry.counters.refused == 0
    for order in ((a2, b4, a4, c1, late), (late, c1, a4, b4, a2), (b4, a2, late, a4, c1)):
        bench.check(*order)


@pytest.mark.parametrize("unset", ["stale", "carried", "refused"])
def test_a_kernel_without_clusters_does_not_inherit_those_of_a_sibling(unset: Any) -> None:
    """D3: the measured driver reports success and keeps the old cluster dimension; (1, 1, 1), said aloud, is carried.

    The first member learns only later that a sibling with clusters has joined.
    """
    bench = Bench(DriverProfile(carries_unset_cluster=unset))
    plain, two, four, late = (
        bench.fold(value, name=name, cluster=cluster)
        for value, (name, cluster) in enumerate((("a", 0), ("b", 2), ("c", 4), ("a", 0)), 1)
    )
    bench.outs[plain.id] = bench.outs[plain.id][0], 101  # the kernel now sees clusters of one block, as before
    bench.outs[late.id] = bench.outs[late.id][0], 104
    assert bench.execs == 1
    assert bench.registry.counters.refused == 0
    for order in ((two, plain, four, late), (late, four, plain, two), (four, plain, two, late)):
        bench.check(*order)


def test_a_driver_that_carries_no_cluster_as_well_is_told_nothing() -> None:
    """D3: graphs are changed only where the driver needs it."""
    bench = Bench(WHOLE)
    plain, two = bench.fold(1), bench.fold(2, cluster=2)
    assert bench.execs == 1
    for _ in range(3):
        bench.check(plain, two)
    assert plain.raw.nodes[0].cluster == (0, 0, 0)


def test_functions_of_other_local_memory_never_share() -> None:
    """D3: an update makes no room for it, and the first launch would be wrong."""
    bench = Bench()
    members = [bench.fold(1)]
    for value, local_bytes in ((2, 4096), (3, 1024), (4, 4096)):
        out, graph = torch.zeros(2), bench.device.new_graph()
        graph.add_kernel(f"deep {value}", write_cluster, (out, float(value)), local_bytes=local_bytes)
        members.append(bench.registry.fold(graph, SegmentInfo()))
        bench.outs[members[-1].id] = out, value
    assert bench.execs == 3
    assert members[1].group is members[3].group
    assert bench.registry.counters.refused == 0
    bench.check(*reversed(members), *members, *members)


def test_what_cannot_be_read_forbids_sharing_where_a_kernel_could_use_it() -> None:
    """D3: a hidden attribute of kernels with clusters; kernels without clusters cannot use it and fold."""
    bench = Bench(HIDDEN)
    with_clusters = [bench.fold(value, cluster=2) for value in (1, 2)]
    without = [bench.fold(value) for value in (3, 4)]
    assert bench.execs == 3
    assert all("preferred_cluster cannot be read" in member.reason for member in with_clusters)
    reason = "a node (kernel): preferred_cluster cannot be read and could be in use"
    assert bench.registry.refusals == {reason: 2}
    assert bench.registry.refusal_examples[reason] == f"value 1 segment 0: {with_clusters[0].reason}"
    assert bench.registry.counters.refused == 0
    bench.check(*with_clusters, *without)


def test_the_function_is_in_the_key_of_the_function_tier_only() -> None:
    """D4."""
    for tier, execs in ((Tier.STRUCTURE, 1), (Tier.FUNCTION, 2)):
        bench = Bench(tier=tier)
        members = [bench.fold(1, name="a"), bench.fold(2, name="b"), bench.fold(3, name="a")]
        assert bench.execs == execs
        bench.check(*members, *reversed(members))


def test_graphs_of_two_contexts_never_share() -> None:
    bench, other = Bench(), Bench()
    first = bench.fold(1)
    second = other.fold(1)
    assert first.group is not None
    assert second.group is not None
    assert first.group.record != second.group.record


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


@pytest.mark.parametrize("intruder", ["replay", "fold"])
def test_nothing_comes_between_an_update_and_its_launch(intruder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """D10: a thread that replays a sibling, or folds another graph, re-points the executable; it has to wait."""
    bench = Bench()
    first, second = bench.fold(1), bench.fold(2)
    launch, done = bench.driver.launch, threading.Event()

    def intrude() -> None:
        if intruder == "replay":
            bench.check(second)
        else:
            bench.fold(3)
        done.set()

    thread = threading.Thread(target=intrude)

    def late(executable: Any) -> None:
        if thread.ident is None:
            thread.start()
            done.wait(0.2)  # its chance to get in between
        launch(executable)

    monkeypatch.setattr(bench.driver, "launch", late)
    bench.check(first)
    thread.join(30)
    assert done.is_set()
    bench.check(second, first)


def test_two_threads_on_one_executable_each_get_their_own_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """D10: update and launch are one step; a switch between them would launch the sibling's graph."""
    bench = Bench()
    members = [bench.fold(value) for value in (1, 2)]
    update, switch = bench.driver.update, threading.Event()

    def slow(executable: Any, raw: Any) -> Any:
        result = update(executable, raw)
        switch.wait(0.001)  # gives the other thread its chance
        return result

    monkeypatch.setattr(bench.driver, "update", slow)
    failures: list[BaseException] = []

    def work(member: Member) -> None:
        try:
            for _ in range(40):
                bench.check(member)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(member,)) for member in members]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not failures
    assert not any(thread.is_alive() for thread in threads)


def test_capture_fold_replay_release_leaves_nothing_behind() -> None:
    device = SimulatedDevice(8 << 20)
    dedup = DedupBackend(SimulatedBackend(device), enabled=True)
    assert dedup.registry is not None
    for cycle in range(200):
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
