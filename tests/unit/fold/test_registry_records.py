"""What keeps graphs apart, on simulated drivers of several makes; the rule is named in each test."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from graphdedup import DriverError, Tier, Topology
from seam.backend import SegmentInfo
from seam.simulated import DriverProfile
from tests.unit.fold.bench import HIDDEN, WHOLE, Bench, write_cluster


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
            graph.add_kernel("write", write_cluster, (out, 1.0), context=bench.device.context + 1 if other else None)
        elif difference == "direction":
            graph.add_node("memcpy", target=out, source=source, direction="h2d" if other else "d2d")
        else:
            graph.add_node("memset", target=out, size_bytes=4, height=3 if other else 2, pitch_bytes=8)
        bench.registry.fold(graph, SegmentInfo())
    assert bench.execs == 2
    assert bench.registry.counters.refused == 0


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
    assert bench.registry.alone.counts == {reason: 2}
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
    assert bench.registry.alone.counts == {reason: 2}
    assert bench.registry.alone.examples[reason] == f"value 1 segment 0: {with_clusters[0].reason}"
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


@pytest.mark.parametrize(("tier", "execs"), [("structure", 1), ("function", 1), ("exact", 3)])
def test_in_the_exact_tier_another_grid_is_another_executable(tier: str, execs: int) -> None:
    """D4: what is left to an update there are addresses and numbers."""
    bench = Bench(tier=tier)
    members = []
    for value, grid in ((1, (8, 1, 1)), (2, (16, 1, 1)), (3, (8, 2, 1)), (4, (8, 1, 1))):
        out, graph = torch.zeros(2), bench.device.new_graph()
        graph.add_kernel("write", write_cluster, (out, float(value)), grid=grid)
        members.append(bench.registry.fold(graph, SegmentInfo()))
        bench.outs[members[-1].id] = out, value
    assert bench.execs == execs
    assert members[0].group is members[3].group
    bench.check(*members, *reversed(members))
