"""Interposition on a real GPU: whatever captures with torch finds the class, folds, and computes the same bits."""

from __future__ import annotations

import gc
import pickle
import random
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

from graphdedup import interpose
from graphdedup.interpose import Interposition

pytestmark = pytest.mark.gpu

SIZES = (64, 32, 8, 1)


class Ladder:
    """One graph for each size over ``torch.cuda.graph``, in one pool, as an engine captures."""

    def __init__(self, forward: Callable[[torch.Tensor], torch.Tensor], sizes: tuple[int, ...] = SIZES, **how: Any) -> None:
        self.forward = forward
        self.runs: dict[int, tuple[Any, torch.Tensor, torch.Tensor]] = {}
        pool = torch.cuda.graph_pool_handle()
        stream = torch.cuda.Stream()
        for size in sizes:
            x = torch.zeros(size, 256, device="cuda")
            with torch.cuda.stream(stream):
                forward(x)
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph(**how)
            with torch.cuda.graph(graph, pool=pool, stream=stream):
                y = forward(x)
            self.runs[size] = graph, x, y

    def check(self, rounds: int = 3) -> None:
        for turn in range(rounds):
            for size in random.Random(turn).sample(list(self.runs), len(self.runs)):
                graph, x, y = self.runs[size]
                x.normal_()
                graph.replay()
                assert torch.equal(y, self.forward(x)), size

    def reset(self) -> None:
        torch.cuda.synchronize()
        for graph, *_ in self.runs.values():
            graph.reset()


@pytest.fixture
def layers() -> Callable[[torch.Tensor], torch.Tensor]:
    weights = [torch.randn(256, 256, device="cuda") / 16 for _ in range(4)]

    @torch.no_grad()
    def forward(x: torch.Tensor) -> torch.Tensor:
        for weight in weights:
            x = torch.relu(x @ weight) + 1
        return x

    return forward


def test_a_ladder_folds_and_stays_folded(layers: Callable[[torch.Tensor], torch.Tensor]) -> None:
    plain = torch.cuda.CUDAGraph
    with interpose() as found:
        assert issubclass(torch.cuda.CUDAGraph, plain)
        ladder = Ladder(layers)
        ladder.check()
    assert torch.cuda.CUDAGraph is plain
    ladder.check()
    stats = found.stats()
    assert (stats.captured, stats.mismatches, stats.passed_through) == (len(SIZES), 0, 0)
    assert stats.execs < len(SIZES)
    ladder.reset()
    assert found.stats().execs == 0


def test_the_class_is_torchs_in_everything_else(layers: Callable[[torch.Tensor], torch.Tensor]) -> None:
    before = Ladder(layers, (4,))
    with interpose() as found:
        assert isinstance(before.runs[4][0], torch.cuda.CUDAGraph)
        ladder = Ladder(layers, (8, 4))
        graph = ladder.runs[8][0]
        with pytest.raises(RuntimeError, match="keep_graph"):
            graph.raw_cuda_graph()
        with pytest.raises(RuntimeError, match="keep_graph"):
            graph.instantiate()
        with pytest.raises(TypeError):
            pickle.dumps(graph)
        assert tuple(graph.pool()) == tuple(ladder.runs[4][0].pool())
        assert graph.raw_cuda_graph_exec() != 0
        ladder.check()
        kept = Ladder(layers, (8, 4), keep_graph=True)
        assert kept.runs[8][0].raw_cuda_graph() != 0
        kept.runs[8][0].instantiate()
        kept.check()
        assert found.stats().captured == 4
    before.check()
    for one in (before, ladder, kept):
        one.reset()


def test_dropped_graphs_leave_the_fold(layers: Callable[[torch.Tensor], torch.Tensor]) -> None:
    with interpose() as found:
        ladder = Ladder(layers)
        ladder.check(1)
        for size in SIZES:
            torch.cuda.synchronize()
            ladder.runs.pop(size)
            gc.collect()
            ladder.check(1)
        assert found.stats().execs == 0


@pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream does not match")  # make_graphed_callables' own
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_graphed_callables_train_to_the_same_bits(dropout: float) -> None:
    """Forward and backward graphs of equal layers fold; gradients over ten steps are those of the same, unfolded (D12)."""

    def trained(folded: bool) -> tuple[list[torch.Tensor], Interposition | None]:
        torch.manual_seed(0)
        layers = torch.nn.ModuleList(
            torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Dropout(dropout)) for _ in range(4)
        ).cuda()
        sample = tuple((torch.randn(8, 64, device="cuda", requires_grad=True),) for _ in layers)
        if folded:
            with interpose() as found:
                graphed = torch.cuda.make_graphed_callables(tuple(layers), sample)
        else:
            found = None
            graphed = torch.cuda.make_graphed_callables(tuple(layers), sample)
        torch.manual_seed(7)
        seen: list[torch.Tensor] = []
        for step in range(10):
            x = torch.randn(8, 64, device="cuda")
            for layer in graphed:
                x = layer(x)
            (x.sum() * (step + 1)).backward()  # accumulated over all steps
            seen += [x.detach().clone(), *(one.grad.clone() for one in layers.parameters() if one.grad is not None)]
        return seen, found

    own, _ = trained(False)
    folded, found = trained(True)
    assert len(own) == len(folded) > 10
    assert all(torch.equal(a, b) for a, b in zip(own, folded, strict=True))
    assert found is not None
    stats = found.stats()
    assert stats.captured == 8
    assert stats.execs < stats.captured


_FRESH = """
import torch, graphdedup
with graphdedup.interpose() as found:
    from tests.gpu.test_interpose import Ladder
    weight = torch.randn(256, 256, device="cuda") / 16
    ladder = Ladder(torch.no_grad()(lambda x: torch.relu(x @ weight) + 1))
    ladder.check()
    stats = found.stats()
    print(stats.captured, stats.passed_through, stats.execs < stats.captured, stats.mismatches)
"""


def test_the_first_thing_that_a_process_does_may_be_interposed() -> None:
    """The fold makes itself ready at the first capture, and captures a graph of its own then."""
    ran = subprocess.run([sys.executable, "-c", _FRESH], capture_output=True, text=True, timeout=240)
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert "not folded" not in ran.stderr
    assert ran.stdout.split() == [str(len(SIZES)), "0", "True", "0"]


@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty")  # the trees' own, to begin their pool
def test_inductors_graph_trees_find_the_class() -> None:
    weight = torch.randn(64, 64, device="cuda")

    def forward(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x @ weight) * 2

    with interpose() as found, torch.no_grad():
        compiled = torch.compile(forward, mode="reduce-overhead", dynamic=False)
        for size in (8, 16, 32):
            x = torch.randn(size, 64, device="cuda")
            first = compiled(x).clone()
            for _ in range(4):
                assert torch.equal(compiled(x), first)
        assert found.stats().captured >= 3
    torch._dynamo.reset()
