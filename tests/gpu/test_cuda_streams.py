"""D10 on a real GPU: kernels that wait for each other, for a bounded time, on two streams."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import seam
from graphdedup import DedupBackend, FoldPolicy
from tests.gpu.waiting import WaitFor, wait_for

__all__ = ["wait_for"]

pytestmark = pytest.mark.gpu

LONG = 4_000_000_000  # about two seconds: nothing but a deadlock takes so long
SHORT = 100_000_000


class Pair:
    """Two graphs of one kernel. Each raises the flag that the other one waits for."""

    def __init__(self, dedup: DedupBackend, wait_for: WaitFor, patience: int) -> None:
        self.flags, self.active, self.most, self.outs = (torch.zeros(2, dtype=torch.int32, device="cuda") for _ in range(4))
        self.graphs = []
        for me, other in ((0, 1), (1, 0)):
            graph = seam.BreakableGraph(dedup, label=f"graph {me}")
            with seam.capture(graph):
                wait_for(
                    self.flags[other:],
                    self.flags[me:],
                    self.active[me:],
                    self.most[me:],
                    self.outs[me:],
                    me + 1,
                    patience,
                )
            self.graphs.append(graph)
        torch.cuda.synchronize()

    def replay(self, *orders: tuple[int, torch.cuda.Stream]) -> list[int]:
        self.flags.zero_()
        self.outs.zero_()
        torch.cuda.synchronize()
        for number, stream in orders:
            with torch.cuda.stream(stream):
                self.graphs[number].replay()
        torch.cuda.synchronize()
        return [int(value) for value in self.outs.tolist()]

    def close(self) -> None:
        for graph in self.graphs:
            graph.close()


def test_graphs_that_wait_for_each_other_run_side_by_side(wait_for: WaitFor) -> None:
    dedup = DedupBackend(seam.default_backend("cuda"), enabled=True)
    pair = Pair(dedup, wait_for, LONG)
    one, two = torch.cuda.Stream(), torch.cuda.Stream()
    assert dedup.stats().execs == 1
    for orders in (((0, one), (1, two)), ((1, one), (0, two)), ((0, two), (1, one)), ((1, two), (0, one))):
        assert pair.replay(*orders) == [1, 2]
    assert (dedup.stats().splits, dedup.stats().execs) == (1, 2)
    pair.close()
    assert dedup.stats().execs == 0


def test_serialised_graphs_run_one_after_the_other(wait_for: WaitFor) -> None:
    """The first waits in vain, and gives up; the second finds the flag up."""
    dedup = DedupBackend(seam.default_backend("cuda"), FoldPolicy.parse(concurrent="serialise"), enabled=True)
    pair = Pair(dedup, wait_for, SHORT)
    one, two = torch.cuda.Stream(), torch.cuda.Stream()
    assert pair.replay((0, one), (1, two)) == [-1, 2]
    assert pair.replay((1, one), (0, two)) == [1, -2]
    assert (dedup.stats().splits, dedup.stats().execs) == (0, 1)
    pair.close()


def test_a_graph_never_overlaps_itself_on_two_streams(wait_for: WaitFor) -> None:
    """Neither on its executable, nor when that has gone on to serve a sibling on the first stream."""
    dedup = DedupBackend(seam.default_backend("cuda"), enabled=True)
    pair = Pair(dedup, wait_for, SHORT)
    one, two = torch.cuda.Stream(), torch.cuda.Stream()
    for orders in (((0, one), (0, two)), ((0, one), (1, one), (0, two)), ((1, two), (0, two), (1, one), (0, one))):
        pair.most.zero_()
        pair.replay(*orders)
        assert pair.most.max().item() == 1, orders
    pair.close()


def test_a_stream_of_its_own_does_not_wait_for_a_long_launch_elsewhere(wait_for: WaitFor) -> None:
    dedup = DedupBackend(seam.default_backend("cuda"), enabled=True)
    pair = Pair(dedup, wait_for, LONG)
    slow, quick = torch.cuda.Stream(), torch.cuda.Stream()
    pair.replay((0, slow), (1, quick))  # makes the second executable
    pair.flags.zero_()
    torch.cuda.synchronize()
    with torch.cuda.stream(slow):
        pair.graphs[0].replay()
        ended = torch.cuda.Event()
        ended.record()
    assert not ended.query()
    with torch.cuda.stream(quick):
        pair.graphs[1].replay()
    torch.cuda.synchronize()
    assert pair.outs.tolist() == [1, 2]
    pair.close()


def test_siblings_in_turn_on_two_streams_stay_exact() -> None:
    """Updates, launches and the kernel behind an update are ordered by streams that know nothing of each other."""
    dedup = DedupBackend(seam.default_backend("cuda"), enabled=True)
    weight = torch.randn(1024, 1024, device="cuda", dtype=torch.bfloat16)
    runs: list[tuple[Any, ...]] = []
    with torch.no_grad():
        for size in (256, 64, 8, 1):
            x = torch.zeros(size, 1024, device="cuda", dtype=torch.bfloat16)
            graph = seam.BreakableGraph(dedup)
            torch.relu(x @ weight)
            with seam.capture(graph):
                y = torch.relu(x @ weight)
            plain = seam.BreakableGraph(dedup.inner)
            with seam.capture(plain):
                z = torch.relu(x @ weight)
            runs.append((graph, x, y, plain, z))
        streams = [torch.cuda.Stream() for _ in range(2)]
        for turn in range(12):
            torch.cuda.synchronize()
            for number, (graph, x, y, *_) in enumerate(runs):
                with torch.cuda.stream(streams[(number + turn) % 2]):
                    x.normal_()
                    y.fill_(float("nan"))
                    graph.replay()
            torch.cuda.synchronize()
            for _, _, y, plain, z in runs:
                plain.replay()
                torch.cuda.synchronize()
                assert torch.equal(y, z)
    assert dedup.stats().execs < len(runs) + 1
    for graph, _, _, plain, _ in runs:
        graph.close()
        plain.close()
