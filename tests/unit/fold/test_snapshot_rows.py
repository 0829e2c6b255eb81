"""The rows of a footprint report: every live graph once, every executable once, and what each figure is."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch

import seam
from graphdedup import DedupBackend, FootprintReport
from graphdedup.driver.protocol import GraphRecord, NodeRecord
from graphdedup.kernel_names import NodeCount, node_counts
from graphdedup.pools import Pools, read_pools
from graphdedup.report import Source
from seam.simulated import DriverProfile, SimulatedBackend, SimulatedDevice

ADD, MUL = "aten::add.Tensor<float32>", "aten::mul.Tensor<float32>"


def backend(**profile: Any) -> DedupBackend:
    device = SimulatedDevice(8 << 20, profile=DriverProfile(**profile) if profile else None)
    return DedupBackend(SimulatedBackend(device), enabled=True)


def capture(dedup: DedupBackend, steps: int, label: str, pool: Any = None) -> seam.BreakableGraph:
    """A graph of ``steps`` additions and a multiplication."""
    x = torch.ones(4)
    graph = seam.BreakableGraph(dedup, label=label)
    with seam.capture(graph, pool=pool):
        for _ in range(steps):
            x = x + 1
        x = x * 2
    return graph


def test_every_live_graph_is_a_member_of_one_group() -> None:
    dedup = backend()
    pool, other = dedup.new_pool(), dedup.new_pool()
    with dedup.session("decode"):
        graphs = [capture(dedup, 1, "bs=8", pool), capture(dedup, 1, "bs=4", pool), capture(dedup, 2, "bs=2", pool)]
    with dedup.session("prefill"):
        graphs.append(capture(dedup, 1, "len=16", other))
    for index in (0, 1, 1, 3, 2):
        graphs[index].replay()
    report = dedup.report()
    assert [[member.name for member in group.members] for group in report.group_rows] == [
        ["bs=8 segment 0", "bs=4 segment 0", "len=16 segment 0"],
        ["bs=2 segment 0"],
    ]
    shared, alone = report.group_rows
    assert [(one.id, one.session, one.pool, one.nodes) for one in report.members] == [
        (1, "decode", 1, 2),
        (2, "decode", 1, 2),
        (3, "decode", 1, 3),
        (4, "prefill", 2, 2),
    ]
    assert [(one.replays, one.updates) for one in report.members] == [(1, 1), (2, 1), (1, 0), (1, 1)]
    # Two updates joined bs=4 and len=16 to the executable of bs=8; three replays had to re-point it.
    assert [(one.nodes, one.updates, one.launches) for one in shared.execs] == [(2, 5, 4)]
    assert [(one.nodes, one.updates, one.launches) for one in alone.execs] == [(3, 0, 1)]
    assert "do not fold" in alone.members[0].why
    assert not any(member.why for member in shared.members)
    assert len(shared.key) == 32
    assert shared.key != alone.key
    assert [(one.name, one.captured, one.execs) for one in report.sessions] == [("decode", 3, 2), ("prefill", 1, 1)]
    assert all(one.seconds is not None and one.seconds >= 0 and one.driver_bytes is None for one in report.sessions)
    for graph in graphs:
        graph.close()


def test_m3_bytes_of_executables_are_modelled_here_now_and_at_their_peak() -> None:
    """M3: 133,000 and 76,000 bytes for an executable of at most ten nodes, by the table of docs/memory-model.md."""
    dedup = backend()
    graphs = [capture(dedup, steps, f"{steps}") for steps in (1, 2, 3)]
    graphs.append(capture(dedup, 1, "again"))
    graphs.pop(1).close()
    report = dedup.report()
    rows = [executable for group in report.group_rows for executable in group.execs]
    assert [(one.device_bytes, one.host_bytes, one.device_source) for one in rows] == [(133_000, 76_000, Source.MODELLED)] * 2
    assert (report.exec_device.bytes, report.exec_device.peak_bytes) == (2 * 133_000, 3 * 133_000)
    assert (report.exec_host.bytes, report.exec_host.peak_bytes) == (2 * 76_000, 3 * 76_000)
    assert report.plain_device is not None
    assert (report.plain_device.bytes, report.plain_device.source) == (3 * 133_000, Source.MODELLED)
    assert report.plain_host is not None
    assert report.plain_host.bytes == 3 * 76_000
    assert (report.process, report.allocator, report.libraries) == (None, None, None), "there is no device to measure"
    for graph in graphs:
        graph.close()


def test_nodes_are_counted_by_kernel_over_live_graphs() -> None:
    dedup = backend()
    graphs = [capture(dedup, steps, f"{steps}") for steps in (1, 3)]
    assert [(row.kind, row.name, row.count) for row in dedup.report().node_rows] == [("kernel", ADD, 4), ("kernel", MUL, 2)]
    graphs.pop(1).close()
    report = dedup.report()
    assert [(row.name, row.count) for row in report.node_rows] == [(ADD, 1), (MUL, 1)]
    assert sum(row.count for row in report.node_rows) == report.nodes
    graphs[0].close()


def test_what_is_rare_is_one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graphdedup.snapshot_rows._MOST_NODE_ROWS", 1)
    dedup = backend()
    graph = capture(dedup, 3, "one")
    rows = dedup.report().node_rows
    assert [(row.kind, row.name, row.count) for row in rows] == [("kernel", ADD, 3), ("others", "1 more", 1)]
    graph.close()


def test_a_child_graph_is_one_node_and_a_function_without_name_has_none() -> None:
    child = GraphRecord((NodeRecord("kernel", function=9),), ())
    nodes = (NodeRecord("kernel", function=7), NodeRecord("kernel", function=8), NodeRecord("child_graph", child=child))
    record = GraphRecord((*nodes, NodeRecord("kernel", function=7)), (), names={7: "seven"})
    assert node_counts(record) == (NodeCount("kernel", "seven", 2), NodeCount("kernel", "", 1), NodeCount("child_graph", "", 1))


def test_pools_are_numbered_as_they_come_and_told_while_they_live() -> None:
    dedup = backend()
    pools = [dedup.new_pool(), dedup.new_pool()]
    graphs = [capture(dedup, 1, "second", pools[1]), capture(dedup, 1, "first", pools[0]), capture(dedup, 1, "x", pools[1])]
    report = dedup.report()
    assert [(row.id, row.graphs, row.reserved_bytes) for row in report.pools] == [
        (1, 2, pools[1].reserved_bytes()),
        (2, 1, pools[0].reserved_bytes()),
    ]
    for row in report.pools:
        assert row.allocated_bytes is not None
        assert row.inactive_bytes == row.reserved_bytes - row.allocated_bytes
        assert row.source is Source.MEASURED_HOST
    assert report.pool.bytes == sum(row.reserved_bytes for row in report.pools)
    graphs.pop(1).close()
    del pools[0]
    gc.collect()
    assert [row.id for row in dedup.report().pools] == [1]
    for graph in graphs:
        graph.close()


def test_the_allocators_pools_are_read_from_one_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many pools: a snapshot walks every block that torch holds."""

    class TorchPool:
        def __init__(self, *ids: tuple[int, int]) -> None:
            self.ids = ids

    class Silent:
        def reserved_bytes(self) -> int:
            return 11

    block = {"size": 60, "state": "active_allocated"}
    asked = []

    def snapshot() -> list[dict[str, Any]]:
        asked.append(1)
        return [{"segment_pool_id": (0, at), "total_size": 100 * at, "blocks": [block]} for at in (1, 2, 3)]

    monkeypatch.setattr(torch.cuda, "memory_snapshot", snapshot)
    monkeypatch.setattr(torch.cuda, "get_allocator_backend", lambda: "native")
    pools, held = Pools(), [TorchPool((0, 1), (0, 3)), TorchPool((0, 2)), Silent()]
    assert [pools.add(pool) for pool in (*held, held[0])] == [1, 2, 3, 1]
    assert read_pools(pools) == {1: (400, 120, 0), 2: (200, 60, 0), 3: (11, None, None)}
    assert len(asked) == 1
    monkeypatch.setattr(torch.cuda, "get_allocator_backend", lambda: "cudaMallocAsync")
    assert read_pools(pools) == {1: (None, None, None), 2: (None, None, None), 3: (11, None, None)}
    assert len(asked) == 1, "that allocator tells of no pools"


def test_stages_are_before_the_captures_after_them_and_now() -> None:
    dedup = backend()
    assert [row.name for row in dedup.report().stages] == ["now"]
    for _ in range(2):
        with dedup.session("decode"):
            graph = capture(dedup, 1, "one")
        graph.close()
    stages = dedup.report().stages
    assert [row.name for row in stages] == ["before the first capture", "after the last capture session", "now"]
    assert all(row.host_resident_bytes > 0 and row.device_used_bytes is None for row in stages)


def test_a_graph_that_is_passed_through_is_a_group_of_its_own() -> None:
    """Its executable is the wrapped backend's: nothing is known of its bytes and launches."""
    dedup = backend()
    assert dedup.registry is not None
    walk = dedup.registry.driver.walk

    def forbidding(raw: Any, reads: Any) -> GraphRecord:
        record = walk(raw, reads)
        return GraphRecord(
            record.nodes, record.edges, pass_through="node 0 is of kind conditional (rule D11)", names=record.names
        )

    dedup.registry.driver.walk = forbidding  # type: ignore[method-assign]
    graph = capture(dedup, 1, "odd")
    graph.replay()
    report = dedup.report()
    (row,) = report.group_rows
    assert (row.kind, row.key, row.members[0].why) == ("passed_through", "", "node 0 is of kind conditional (rule D11)")
    assert (row.members[0].replays, row.execs[0].device_bytes, row.execs[0].launches) == (None, None, None)
    assert report.execs == sum(len(group.execs) for group in report.group_rows) == 1
    graph.close()


def test_the_report_says_what_it_was_made_with(monkeypatch: pytest.MonkeyPatch) -> None:
    """Switches, but no file and no folder: reports are passed on."""
    monkeypatch.setenv("GRAPHDEDUP_VERIFY", "0")
    monkeypatch.setenv("GRAPHDEDUP_CACHE", "/somewhere/private")
    dedup = DedupBackend(SimulatedBackend(SimulatedDevice(8 << 20)), "exact", enabled=True)
    report = dedup.report()
    assert report.environment is not None
    assert report.environment.policy["tier"] == "exact"
    assert report.environment.torch == torch.__version__
    assert report.environment.switches["GRAPHDEDUP_VERIFY"] == "0"
    assert "/somewhere/private" not in report.to_json()
    assert FootprintReport.from_json(report.to_json()) == report
