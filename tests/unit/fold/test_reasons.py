"""Why graphs did not fold, as a person reads it: at a refusal, on request, and in the report."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import pytest
import torch

import seam
from graphdedup import DedupBackend, DriverError, GraphDedupError, GraphsFile, snapshot
from seam.backend import SegmentInfo
from seam.simulated import DriverProfile, SimulatedBackend, SimulatedDevice
from tests.unit.fold.bench import Bench, write_cluster


def capture(backend: DedupBackend, forward: Any, label: str, size: int = 4) -> seam.BreakableGraph:
    x = torch.ones(size)
    graph = seam.BreakableGraph(backend, label=label)
    with seam.capture(graph):
        forward(x)
    return graph


@pytest.fixture
def dedup() -> DedupBackend:
    return DedupBackend(SimulatedBackend(SimulatedDevice(8 << 20)), enabled=True)


def test_a_refusal_names_result_node_kernels_and_the_first_field_that_differs() -> None:
    """D5: the driver refuses an attribute that it does not tell of in the key."""
    bench = Bench()
    members = []
    for value, name in ((0, "first_kernel"), (1, "second_kernel")):
        out, graph = torch.zeros(2), bench.device.new_graph()
        graph.add_kernel("write", write_cluster, (out, 1.0))
        attributes = {"nvlink_util_centric_scheduling": value} if value else {}
        graph.add_kernel(name, write_cluster, (out, 2.0), attributes=attributes, after=(0,))
        members.append(bench.registry.fold(graph, SegmentInfo(0, name)))
    assert bench.execs == 2
    (told,) = members[1].refusals
    assert told.startswith("ATTRIBUTES_CHANGED at node 1 (first_kernel against second_kernel): ")
    assert "first_kernel against second_kernel" in told
    assert bench.registry.refusals.counts == {"the driver refused the update: ATTRIBUTES_CHANGED": 1}


def test_reading_nodes_stops_after_the_first_refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand refusals of a kind do not read two thousand graphs; each is counted, and keeps verdict and node."""
    bench = Bench()
    reads: list[Any] = []
    topology = bench.driver.topology
    monkeypatch.setattr(bench.driver, "topology", lambda raw, label="": (reads.append(raw), topology(raw, label=label))[1])
    for value in range(200):
        out, graph = torch.zeros(2), bench.device.new_graph()
        attributes = {"nvlink_util_centric_scheduling": value} if value else {}
        graph.add_kernel("write", write_cluster, (out, 1.0), attributes=attributes)
        member = bench.registry.fold(graph, SegmentInfo())
    assert len(reads) == 2 * 32
    assert member.refusals[-1].startswith("ATTRIBUTES_CHANGED at node 0 (write")
    assert bench.registry.counters.refused == bench.registry.refusals.counts.total() > 1000


def test_an_update_that_fails_after_thousands_of_good_ones_unfolds_that_graph_alone(caplog: pytest.LogCaptureFixture) -> None:
    """D6: it is counted and said once, the pair is not tried again, and everything goes on exactly."""
    offered: list[int] = []
    bench = Bench(DriverProfile(refuse_nth_update=3001))
    update = bench.driver.update
    bench.driver.update = lambda executable, raw: (offered.append(1), update(executable, raw))[1]  # type: ignore[method-assign]
    first, second, third = bench.fold(1), bench.fold(2), bench.fold(3)
    with caplog.at_level(logging.WARNING, logger="graphdedup"):
        for _ in range(1500):
            bench.check(first, second)
        # Two at the captures, then one a replay until the 2,999th replay is refused; the second graph is then in place.
        assert len(offered) == 3001
        counters = bench.registry.counters
        assert (counters.unfolded, counters.refused, bench.execs) == (1, 1, 2)
        (lost,) = [member for member in (first, second) if member.reason]
        (kept,) = {first, second} - {lost}
        for _ in range(100):
            bench.check(lost, kept, third)
    assert (counters.unfolded, counters.refused, bench.execs) == (1, 1, 2)
    assert len(caplog.records) == 1
    assert bench.registry.unfoldings.counts == {"the driver refused the update: PARAMETERS_CHANGED": 1}


def test_two_graphs_are_explained_on_request(dedup: DedupBackend) -> None:
    one, two, longer = (
        capture(dedup, lambda x: x + 1, "one"),
        capture(dedup, lambda x: x * 2, "two", 8),
        capture(dedup, lambda x: (x + 1) * 2, "longer"),
    )
    same = dedup.explain(one.segments[0], two.segments[0])
    assert same.startswith("graph 1 (one segment 0) and graph 2 (two segment 0) fold on the same exec, that of group 0")
    other = dedup.explain(longer.segments[0], one.segments[0])
    assert "do not fold: 2 nodes against 1; node " in other
    assert dedup.explain(longer.segments[0]) == other
    with pytest.raises(GraphDedupError, match="named twice"):
        dedup.explain(one.segments[0], one.segments[0])
    handle = one.segments[0]
    for graph in (one, two, longer):
        graph.close()
    with pytest.raises(GraphDedupError, match="destroyed"):
        dedup.explain(handle)


def test_the_captured_graphs_can_be_kept_as_a_file(dedup: DedupBackend) -> None:
    with dedup.session("decode"):
        graphs = [capture(dedup, lambda x: x + 1, f"bs={size}", size) for size in (2, 4)]
    file = GraphsFile.from_json(dedup.export().to_json())
    assert [(graph.index, graph.label, graph.session, graph.group) for graph in file.graphs] == [
        (1, "bs=2 segment 0", "decode", 0),
        (2, "bs=4 segment 0", "decode", 0),
    ]
    assert file.tier == "structure"
    assert file.explain("bs=2", "2") == dedup.explain(*(graph.segments[0] for graph in graphs))
    for graph in graphs:
        graph.close()


def test_the_report_has_a_line_for_each_graph_on_its_own(dedup: DedupBackend) -> None:
    graphs = [
        capture(dedup, lambda x: x + 1, "a"),
        capture(dedup, lambda x: x * 3, "b", 8),
        capture(dedup, lambda x: (x + 1) * 2, "c"),
    ]
    report = dedup.report()
    (row,) = report.alone
    assert row.graph == "c segment 0 (graph 3)"
    assert "do not fold: 2 nodes against 1" in row.why
    text = report.to_text()
    assert "graphs on their own" in text
    assert row.why in text
    for graph in graphs:
        graph.close()
    assert dedup.report().alone == ()


def test_graphs_on_their_own_are_compared_up_to_a_number(dedup: DedupBackend) -> None:
    """A report reads twenty of them at most; the others are named, and said not to be compared."""

    def forward(x: torch.Tensor, steps: int) -> torch.Tensor:
        for _ in range(steps):
            x = x + 1
        return x

    graphs = [capture(dedup, lambda x, n=n: forward(x, n), f"{n} steps") for n in range(1, 31)]
    rows = dedup.report().alone
    assert len(rows) == 30
    assert sum("do not fold" in row.why for row in rows) == 20
    assert "do not fold: 1 nodes against 2;" in rows[0].why, "the nearest of 29 others"
    assert sum(row.why == "not compared: too many graphs are alone" for row in rows) == 10
    assert "and 10 more, in the JSON" in dedup.report().to_text()
    for graph in graphs:
        graph.close()


def test_the_sync_switch_waits_after_every_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a driver that is suspected of re-ordering launches; off, nothing waits."""
    for on in (False, True):
        dedup = DedupBackend(SimulatedBackend(SimulatedDevice(8 << 20)), enabled=True, sync=on)
        assert dedup.registry is not None
        driver = dedup.registry.driver
        calls: list[str] = []
        launch = driver.launch
        monkeypatch.setattr(
            driver,
            "launch",
            lambda handle, prologue=None, launch=launch, calls=calls: (calls.append("launch"), launch(handle, prologue)),
        )
        monkeypatch.setattr(driver, "synchronize", lambda calls=calls: calls.append("wait"))
        graph = capture(dedup, lambda x: x + 1, "one")
        for _ in range(3):
            graph.replay()
        assert calls == (["launch", "wait"] * 3 if on else ["launch"] * 3)
        graph.close()


def test_the_sync_switch_tells_a_break_from_the_segment_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the device reports late belongs to whatever was queued last: it waits after each break as well."""
    dedup = DedupBackend(SimulatedBackend(SimulatedDevice(8 << 20)), enabled=True, sync=True)
    assert dedup.registry is not None
    ran: list[str] = []
    attend = seam.eager_break(name="attend")(lambda x: (ran.append("break"), x + 1)[1])
    graph = capture(dedup, lambda x: attend(x * 2) + 1, "decode bs=4")
    waits = 0

    def synchronize(failing: int) -> None:
        nonlocal waits
        waits += 1
        if waits == failing:
            raise RuntimeError("illegal address")

    site = f"attend ({graph.breaks[0].site})"
    for failing, culprit in ((1, "decode bs=4 segment 0"), (2, f"the break {site} before"), (3, "decode bs=4 segment 1")):
        waits = 0
        monkeypatch.setattr(dedup.registry.driver, "synchronize", lambda failing=failing: synchronize(failing))
        with pytest.raises(RuntimeError, match="illegal address") as caught:
            graph.replay()
        assert waits == failing
        assert culprit in "".join(caught.value.__notes__)
    monkeypatch.setattr(dedup.registry.driver, "synchronize", lambda: None)
    assert [(row.name, row.segments) for row in dedup.report().breaks] == [(site, 1)]
    graph.close()
    assert dedup.report().breaks == ()


def test_a_refused_node_that_cannot_be_read_is_told_as_the_driver_told_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """D5: a refusal is a normal result, whatever can be said of it."""
    bench = Bench()

    def failing(raw: Any, label: str = "") -> Any:
        raise DriverError("nodes cannot be listed", remedy="none")

    monkeypatch.setattr(bench.driver, "topology", failing)
    members = []
    for value in (0, 1):
        out, graph = torch.zeros(2), bench.device.new_graph()
        attributes = {"nvlink_util_centric_scheduling": value} if value else {}
        graph.add_kernel("write", write_cluster, (out, 1.0), attributes=attributes)
        members.append(bench.registry.fold(graph, SegmentInfo()))
        bench.outs[members[-1].id] = out, 1
    assert members[1].refusals == ["ATTRIBUTES_CHANGED at node 0 (write: nvlink util centric scheduling 1, not None)"]
    bench.check(*members)


def test_the_report_counts_every_reason_for_which_graphs_do_not_share() -> None:
    """D3, D5, D11: refused by the driver, not offered to it, and passed through; the most frequent one first."""
    profile = DriverProfile(uses_preferred_cluster=True, carries_attributes={"preferred_cluster": "stale"})
    bench = Bench(replace(profile, refuse_pairs=lambda current, new: True))
    for value in (1, 2):
        bench.fold(value)
    for value in (3, 4, 5):
        bench.fold(value, cluster=2)
    for _ in range(2):
        graph, _ = bench.graph(1)
        graph.add_node("mem_alloc", size_bytes=64)
        bench.registry.fold(graph, SegmentInfo(2, "allocating"))
    refused, hidden = (
        "the driver refused the update: PARAMETERS_CHANGED",
        "preferred_cluster cannot be read and could be in use",
    )
    passed = "a node is of kind mem_alloc (rule D11)"
    report = snapshot.footprint(bench.registry)
    assert [(row.count, row.reason) for row in report.refusals] == [
        (3, f"a node (kernel): {hidden}"),
        (2, passed),
        (1, refused),
    ]
    assert report.refusals[1].example == "allocating segment 2: node 1 is of kind mem_alloc (rule D11)"
    assert snapshot.stats(bench.registry).passed_through_by_reason == {passed: 2}
    assert snapshot.stats(bench.registry).execs == report.execs == 5 + 2
    assert report.peak_execs == 5 + 2
    assert [row.why for row in report.alone[1:]] == [
        "PARAMETERS_CHANGED (the profile refuses this pair of graphs)",
        *[f"node 0 (kernel): {hidden}"] * 3,
        *["node 1 is of kind mem_alloc (rule D11)"] * 2,
    ]
    assert report.alone[0].graph == "value 1 segment 0 (graph 1)"
    assert "by their fields: nothing that an update does not carry" in report.alone[0].why
