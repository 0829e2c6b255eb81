"""Keys, growth and accounting: bounds on executables, and figures that are measured and not extrapolated."""

from __future__ import annotations

import pytest
import torch

import seam
from graphdedup import DedupBackend, FoldPolicy
from graphdedup.footprint import Span, modelled_exec_bytes


class Steps:
    """x + 1 + 1 ...: another record for each number of steps."""

    def __init__(self, backend: DedupBackend, device: str, steps: int, pool: seam.Pool | None = None, size: int = 4) -> None:
        self.steps = steps
        self.x = torch.zeros(size, device=device)
        self.graph = seam.BreakableGraph(backend, label=f"{steps} steps")
        with seam.capture(self.graph, pool=pool):
            y = self.x
            for _ in range(steps):
                y = y + 1
        self.y = y

    def check(self, value: float) -> None:
        self.x.fill_(value)
        self.y.fill_(-1)
        self.graph.replay()
        assert self.y.tolist() == [value + self.steps] * len(self.x)


@pytest.mark.parametrize(
    "policy", [FoldPolicy(max_execs=3), FoldPolicy(exec_budget_bytes=3 * sum(modelled_exec_bytes(10)))], ids=["number", "bytes"]
)
def test_a_bounded_registry_keeps_every_graph_replayable(policy: FoldPolicy, backend: seam.GraphBackend, device: str) -> None:
    """Eight records on three executables: the least recently used goes, and comes back when it is replayed."""
    dedup = DedupBackend(backend, policy, enabled=True)
    graphs = [Steps(dedup, device, steps) for steps in range(1, 9)]
    assert dedup.stats().execs == 3
    for value, order in ((1, graphs), (2, graphs[::-1]), (3, graphs[::3] + graphs[1::3] + graphs[2::3])):
        for one in order:
            one.check(value)
    stats = dedup.stats()
    assert (stats.execs, stats.peak_execs, stats.passed_through) == (3, 3, 0)
    # Five at the captures. Then eight graphs in order evict eight, in reverse five (three are still there), and eight again.
    assert stats.evictions >= 5 + 8
    for one in graphs:
        one.graph.close()
    assert dedup.stats().execs == 0


def test_the_pool_is_measured_and_not_one_graph_times_their_number(backend: seam.GraphBackend, device: str) -> None:
    """M4: graphs of one pool re-use its blocks, so what the first one took says nothing of a hundred."""
    dedup = DedupBackend(backend, enabled=True)
    pool = dedup.new_pool()
    size, count = 1 << 20, 24
    empty = pool.reserved_bytes()
    graphs = [Steps(dedup, device, 4, pool, size)]
    first = pool.reserved_bytes() - empty
    assert first > 0
    for _ in range(count - 1):
        one = Steps(dedup, device, 4, pool, size)
        one.y = one.y[:1]
        graphs.append(one)
    reported = dedup.report().pool.bytes
    assert reported == pool.reserved_bytes()
    outputs = count * size * 4  # each graph's output is alive
    assert reported < first * count
    assert reported >= outputs
    for one in graphs:
        one.graph.close()


@pytest.mark.gpu
def test_what_others_allocate_while_graphs_are_captured_is_a_row_of_its_own() -> None:
    """Communication libraries take device memory that torch never sees; it is not charged to executables."""
    from cuda.bindings import driver

    dedup = DedupBackend(seam.default_backend("cuda"), enabled=True)
    Steps(dedup, "cuda", 2).check(1)
    before = dedup.report()
    with dedup.session("decode"):
        graph = Steps(dedup, "cuda", 3)
        taken = driver.cuMemAlloc(256 << 20)[1]
    graph.check(2)
    report = dedup.report()
    assert report.libraries is not None
    assert before.libraries is not None
    assert (report.libraries.bytes or 0) - (before.libraries.bytes or 0) >= 256 << 20
    assert (report.exec_device.bytes or 0) - (before.exec_device.bytes or 0) < 16 << 20
    driver.cuMemFree(taken)


@pytest.mark.gpu
def test_a_span_reads_what_executables_took_over_all_of_them() -> None:
    """M4: one executable often shows nothing, since the driver takes memory in steps; many show what they cost."""
    dedup = DedupBackend(seam.default_backend("cuda"), "exact", enabled=True)
    pool = dedup.new_pool()
    span = Span.begin(torch.device("cuda", 0))
    graphs = [Steps(dedup, "cuda", 200, pool, size) for size in range(1, 60_000, 1_000)]
    grown = span.end().exec_device_bytes
    assert dedup.stats().execs > 30
    assert grown is not None
    assert grown > 0
    for one in graphs:
        one.graph.close()
