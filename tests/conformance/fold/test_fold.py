"""Folding on both devices: capture, fold, replay bit for bit, release. The rule is named in each test."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
import torch

import graphdedup
import seam
from graphdedup import DedupBackend, FoldPolicy
from graphdedup.capabilities import Capabilities


@pytest.fixture
def dedup(backend: seam.GraphBackend) -> Iterator[DedupBackend]:
    """A folding backend; what an update carries on its device is measured."""
    made = DedupBackend(backend, enabled=True)
    assert made.registry is not None
    assert made.registry.capabilities.carries_function, made.registry.capabilities.source
    return made


@seam.eager_break
def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


class Captured:
    """A captured (x + addend) * factor, with the arithmetic to check it by."""

    def __init__(
        self, backend: seam.GraphBackend, device: str, size: int, addend: float, pool: seam.Pool | None = None
    ) -> None:
        self.addend, self.size = addend, size
        self.x = torch.zeros(size, device=device)
        self.graph = seam.BreakableGraph(backend, label=f"size {size}")
        with seam.capture(self.graph, pool=pool):
            self.y = (self.x + addend) * 3

    def check(self, value: float) -> None:
        self.x.fill_(value)
        self.y.fill_(-1)
        self.graph.replay()
        assert self.y.tolist() == [(value + self.addend) * 3] * self.size


def test_equal_graphs_of_other_sizes_share_one_executable(dedup: DedupBackend, device: str) -> None:
    """D1, D4: grid and parameters are not in the key; three rounds in changing order, fresh inputs, exact."""
    pool = dedup.new_pool()
    captured = [Captured(dedup, device, size, size / 2, pool) for size in (4096, 256, 8, 1)]
    assert (dedup.stats().captured, dedup.stats().execs, dedup.stats().groups) == (4, 1, 1)
    assert dedup.stats().updates == 3
    for value, order in ((1, (2, 0, 3, 1)), (2, (1, 0, 2, 3)), (3, (3, 2, 1, 0))):
        for index in order:
            captured[index].check(value)
    stats = dedup.stats()
    assert stats.launches == 12
    assert stats.refused == stats.unfolded == stats.passed_through == 0
    for one in captured:
        one.graph.close()
    assert dedup.stats().execs == 0


def test_the_same_graph_again_issues_no_update(dedup: DedupBackend, device: str) -> None:
    """D7."""
    first, second = Captured(dedup, device, 8, 1), Captured(dedup, device, 4, 2)
    before = dedup.stats().updates
    for _ in range(5):
        second.check(3)
    assert dedup.stats().updates == before
    first.check(3)
    assert dedup.stats().updates == before + 1
    for _ in range(5):
        first.check(4)
    assert dedup.stats().updates == before + 1
    first.graph.close()
    second.graph.close()


def test_another_structure_gets_an_executable_of_its_own(dedup: DedupBackend, device: str) -> None:
    first = Captured(dedup, device, 8, 1)
    x = torch.zeros(8, device=device)
    longer = seam.BreakableGraph(dedup)
    with seam.capture(longer):
        y = ((x + 1) * 3 - 2) * 5
    assert dedup.stats().execs == 2
    for value in (0, 4, 9):
        x.fill_(value)
        longer.replay()
        assert y.tolist() == [((value + 1) * 3 - 2) * 5] * 8
        first.check(value)
    longer.close()
    first.graph.close()


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
def test_siblings_stay_replayable_until_the_last_one_goes(order: tuple[int, ...], dedup: DedupBackend, device: str) -> None:
    """D9: and the last one frees the executable."""
    captured = [Captured(dedup, device, size, size) for size in (8, 4, 2)]
    alive = set(order)
    for gone in order:
        assert dedup.stats().execs == 1
        captured[gone].graph.close()
        alive.discard(gone)
        for left in alive:
            captured[left].check(5)
    assert dedup.stats().execs == 0
    assert dedup.stats().nodes == 0


def test_a_new_graph_on_freed_addresses_inherits_nothing(dedup: DedupBackend, device: str) -> None:
    """D8: the executable still reflects a graph that is gone; whoever comes next must be updated in."""
    pool = dedup.new_pool()
    keep = Captured(dedup, device, 8, 100, pool)
    for addend in range(20):
        fresh = Captured(dedup, device, 8, addend, pool)
        fresh.check(1)
        keep.check(2)
        fresh.check(3)
        fresh.graph.close()
        del fresh
    assert dedup.stats().execs == 1
    keep.check(7)
    keep.graph.close()


def test_a_thousand_equal_graphs_need_one_executable(dedup: DedupBackend, device: str) -> None:
    """At fresh addresses each time; nothing grows."""
    pool = dedup.new_pool()
    captured = [Captured(dedup, device, 4, addend, pool) for addend in range(200)]
    stats = dedup.stats()
    assert (stats.captured, stats.execs, stats.peak_execs) == (200, 1, 1)
    for index in (0, 199, 57):
        captured[index].check(index)
    for one in captured:
        one.graph.close()
    assert dedup.stats().execs == 0


@pytest.mark.parametrize(("placement", "execs"), [("position", 3), ("group", 2)])
def test_placement_says_how_many_executables_equal_segments_get(
    placement: str, execs: int, backend: seam.GraphBackend, device: str
) -> None:
    """Segments x+1 | x+1 | (x+1)*3 of two sizes: 6 graphs; by position 3 executables, by group 2."""
    dedup = DedupBackend(backend, FoldPolicy.parse(placement=placement), enabled=True)
    runs = []
    for size in (8, 4):
        x = torch.zeros(size, device=device)
        graph = seam.BreakableGraph(dedup)
        with seam.capture(graph):
            y = (double(double(x + 1) + 1) + 1) * 3
        runs.append((graph, x, y, size))
    assert (dedup.stats().captured, dedup.stats().execs, dedup.stats().groups) == (6, execs, 2)
    for value in (0, 1, 5):
        for graph, x, y, size in runs:
            x.fill_(value)
            graph.replay()
            assert y.tolist() == [(4 * value + 7) * 3] * size
    before = dedup.stats().updates
    runs[1][0].replay()
    assert dedup.stats().updates - before == (0 if placement == "position" else 2)
    for graph, *_ in runs:
        graph.close()
    assert dedup.stats().execs == 0


def test_the_log_line_comes_once_per_session(dedup: DedupBackend, device: str, caplog: pytest.LogCaptureFixture) -> None:
    def lines() -> list[str]:
        return [record.getMessage() for record in caplog.records if record.name == "graphdedup"]

    with caplog.at_level(logging.INFO, logger="graphdedup"):
        with dedup.session("decode"):
            captured = [Captured(dedup, device, size, 1) for size in (8, 4, 2)]
        assert lines() == ["captured 3 graphs, deduped to 1 execs"]
        captured[0].check(1)
        captured.append(Captured(dedup, device, 16, 1))
        assert len(lines()) == 1
        captured[0].check(2)  # the first replay after captures ends their session
        assert lines()[1:] == ["captured 1 graphs, deduped to 1 execs"]
        captured.append(Captured(dedup, device, 32, 1))
        dedup.seal()
        dedup.seal()
        assert len(lines()) == 3
    assert [row.name for row in dedup.report().sessions] == ["decode", "", ""]
    for one in captured:
        one.graph.close()


def test_switched_off_it_is_the_wrapped_backend(
    backend: seam.GraphBackend, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D14: every graph is replayed by the wrapped backend, on an executable of its own."""
    monkeypatch.setenv("GRAPHDEDUP_DISABLE", "1")
    dedup = DedupBackend(backend)
    replayed: list[object] = []
    replay_graph = backend.replay_graph
    monkeypatch.setattr(backend, "replay_graph", lambda handle: (replayed.append(handle), replay_graph(handle)))
    captured = [Captured(dedup, device, size, 1) for size in (8, 4)]
    for value in (0, 3, 5):
        for one in captured:
            one.check(value)
    assert len(replayed) == 6
    assert (dedup.stats().captured, dedup.stats().execs, dedup.stats().passed_through) == (2, 2, 2)
    with pytest.raises(graphdedup.GraphDedupError, match=r"D14.*GRAPHDEDUP_DISABLE"):
        dedup.report()
    for one in captured:
        one.graph.close()
    assert dedup.stats().execs == 0


def test_dropout_that_does_not_drop_folds(dedup: DedupBackend, device: str) -> None:
    graphs = []
    for size in (64, 8):
        x = torch.ones(size, device=device)
        graph = seam.BreakableGraph(dedup)
        with seam.capture(graph):
            torch.nn.functional.dropout(x + 1, 0.5, training=False) * 2
        graphs.append(graph)
    assert dedup.stats().passed_through == 0
    assert dedup.stats().execs == 1
    for graph in graphs:
        graph.close()


def test_a_discarded_capture_is_not_counted(dedup: DedupBackend, device: str) -> None:
    graph = seam.BreakableGraph(dedup)
    x = torch.zeros(4, device=device)
    with pytest.raises(KeyError), seam.capture(graph):
        x + 1
        raise KeyError
    assert dedup.stats().captured == dedup.stats().execs == 0
    with seam.capture(graph):
        y = x + 1
    x.fill_(2)
    graph.replay()
    assert y.tolist() == [3] * 4
    graph.close()


def test_what_is_not_known_of_a_device_is_not_trusted(dedup: DedupBackend, device: str) -> None:
    """D3, D4: without trust functions and clusters stay in the key; fewer graphs fold, all are exact."""
    assert dedup.registry is not None
    counts = {}
    measured = dedup.registry.capabilities
    for capabilities in (measured, Capabilities.unknown(dedup.registry.driver.identity, "for a test")):
        dedup.registry.capabilities = capabilities
        graphs = []
        for function in (torch.sin, torch.cos, torch.exp):
            x = torch.zeros(64, device=device)
            graph = seam.BreakableGraph(dedup)
            with seam.capture(graph):
                y = function(x)
            graphs.append((graph, x, y, function))
        counts[capabilities.carries_function] = dedup.stats().execs
        for value in (0.0, 0.5, 3.0):
            for graph, x, y, function in graphs:
                x.fill_(value)
                graph.replay()
                assert torch.equal(y, function(x))
        for graph, *_ in graphs:
            graph.close()
    assert counts == {True: 1, False: 3}


def test_the_report_says_what_each_figure_is(dedup: DedupBackend, device: str) -> None:
    """M3: measured on the GPU, modelled on the simulated device; D5: reasons are kept."""
    with dedup.session("decode"):
        captured = [Captured(dedup, device, size, 1) for size in (8, 4)]
    report = dedup.report()
    assert (report.captured, report.execs, report.nodes) == (2, 1, 4)
    assert report.exec_device.source == ("measured_device" if device == "cuda" else "modelled")
    assert [(row.name, row.captured, row.execs) for row in report.sessions] == [("decode", 2, 1)]
    assert graphdedup.FootprintReport.from_json(report.to_json()) == report
    for one in captured:
        one.graph.close()


def test_export_agrees_with_the_driver(dedup: DedupBackend, device: str) -> None:
    """Topology to JSON and back, and to networkx: a DAG, with the driver's own counts."""
    import networkx

    captured = Captured(dedup, device, 8, 1)
    topology = dedup.topology(captured.graph.segments[0])
    assert [node.kind for node in topology.nodes] == ["kernel", "kernel"]
    assert [(edge.source, edge.target) for edge in topology.edges] == [(0, 1)]
    assert all(node.name and node.grid and node.block for node in topology.nodes)
    assert graphdedup.Topology.from_json(topology.to_json()) == topology
    graph = topology.to_networkx()
    assert networkx.is_directed_acyclic_graph(graph)
    assert graph.nodes[0]["name"] == topology.nodes[0].name
    assert graph.edges[0, 1]["data"] == topology.edges[0].data
    assert dedup.registry is not None
    record = dedup.registry.driver.walk(dedup.registry.driver.raw(captured.graph.segments[0].inner))
    assert (len(record.nodes), len(record.edges)) == (graph.number_of_nodes(), graph.number_of_edges())
    handle = captured.graph.segments[0]
    captured.graph.close()
    with pytest.raises(graphdedup.GraphDedupError, match="destroyed"):
        dedup.topology(handle)
