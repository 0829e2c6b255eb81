"""D12: a folded replay draws what torch's own replay draws from the same seed, and leaves the generators where it does."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import seam
from graphdedup import DedupBackend, DriverError, FoldPolicy
from graphdedup.driver import Draws, Verdict
from graphdedup.driver.protocol import UpdateResult

Forward = Callable[[torch.Tensor], torch.Tensor]


def sample(x: torch.Tensor) -> torch.Tensor:
    """Tokens by the exponential race, as engines draw them inside a graph."""
    probabilities = torch.softmax(x.view(4, -1), dim=-1)
    return (probabilities / torch.empty_like(probabilities).exponential_()).argmax(dim=-1)


FORWARDS: dict[str, Forward] = {
    "rand": lambda x: torch.rand_like(x) + x,
    "dropout": lambda x: F.dropout(x, 0.5) * 2,
    "uniform": lambda x: (x + 1).uniform_(0, 3) + x,
    "normal twice": lambda x: torch.randn_like(x) + torch.randn_like(x) * x,
    "sampling": sample,
    "dropout and sampling": lambda x: sample(F.dropout(x, 0.25)),
}


class Run:
    """The forward captured for two sizes, which share an executable where they fold."""

    def __init__(self, backend: Any, device: str, forward: Forward, generators: tuple[torch.Generator, ...] = ()) -> None:
        self.device = device
        self.generators = generators
        self.runs = []
        pool = backend.new_pool()
        for size in (512, 128):
            x = torch.linspace(0, 3, size, device=device)
            with pool.entered():
                forward(x)  # warm
            graph = seam.BreakableGraph(backend, label=f"size {size}")
            with seam.capture(graph, pool=pool, generators=generators):
                y = forward(x)
            self.runs.append((graph, x, y))

    def sequence(self) -> list[torch.Tensor]:
        """Three shuffled rounds with fresh inputs, eager draws in between, another seed before the last round."""
        torch.manual_seed(11)
        for number, generator in enumerate(self.generators):
            generator.manual_seed(number)
        seen = []
        for number, order in enumerate(((0, 1), (1, 0, 0), (1, 1, 0))):
            if number == 2:
                torch.manual_seed(12)
            for index in order:
                graph, x, y = self.runs[index]
                x.copy_(torch.linspace(number, number + 2, len(x)))
                y.zero_()
                graph.replay()
                seen.append(y.clone().cpu())
                seen.append(torch.rand(3, device=self.device).cpu())
        seen += [torch.rand(5, device=self.device, generator=generator).cpu() for generator in self.generators]
        return seen

    def close(self) -> None:
        for graph, *_ in self.runs:
            graph.close()


@pytest.mark.parametrize("name", FORWARDS)
def test_folded_replays_draw_what_torchs_own_replays_draw(name: str, backend: seam.GraphBackend, device: str) -> None:
    dedup = DedupBackend(backend, enabled=True)
    plain = Run(backend, device, FORWARDS[name])
    expected = plain.sequence()
    plain.close()
    folded = Run(dedup, device, FORWARDS[name])
    stats = dedup.stats()
    assert (stats.captured, stats.execs, stats.passed_through) == (2, 1, 0)
    got = folded.sequence()
    assert all(torch.equal(ours, torchs) for ours, torchs in zip(got, expected, strict=True))
    assert not torch.equal(got[0], got[6])
    assert dedup.stats().updates_per_replay == 5 / 8  # one update as the second graph joined
    folded.close()
    assert dedup.stats().execs == 0


def test_an_eager_draw_goes_on_where_the_replays_have_left_the_generator(backend: seam.GraphBackend, device: str) -> None:
    """As many numbers are drawn by a graph as by the same calls in eager mode."""
    dedup = DedupBackend(backend, enabled=True)
    run = Run(dedup, device, FORWARDS["rand"])
    torch.manual_seed(5)
    for _ in range(3):
        run.runs[0][0].replay()
    after = torch.rand(8, device=device)
    torch.manual_seed(5)
    for _ in range(3):
        torch.rand(512, device=device)
    assert torch.equal(after, torch.rand(8, device=device))
    run.close()


def test_a_graph_that_draws_and_one_that_does_not_share_an_executable(backend: seam.GraphBackend, device: str) -> None:
    """The one that draws nothing leaves the generator where it is, whatever its executable ran before."""
    dedup = DedupBackend(backend, enabled=True)
    x, zeros = torch.ones(64, device=device), torch.zeros(64, device=device)
    graphs, outs = [], []
    for draws in (True, False):
        graph = seam.BreakableGraph(dedup)
        with seam.capture(graph):
            y = torch.empty_like(x).uniform_() if draws else torch.abs(x)
        graphs.append(graph)
        outs.append(y)
    assert dedup.stats().execs == 1
    torch.manual_seed(3)
    first = torch.empty_like(zeros).uniform_()
    second = torch.empty_like(zeros).uniform_()
    for _ in range(3):
        torch.manual_seed(3)
        graphs[0].replay()
        assert torch.equal(outs[0], first)
        graphs[1].replay()
        assert torch.equal(outs[1], x)
        graphs[0].replay()
        assert torch.equal(outs[0], second)
    for graph in graphs:
        graph.close()


@pytest.mark.parametrize("vouched", [False, True])
def test_where_draws_cannot_be_told_a_graph_folds_and_is_exact(
    vouched: bool, backend: seam.GraphBackend, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with torch 2.12 and newer: every graph is taken for one that may draw, unless the caller knows better."""
    dedup = DedupBackend(backend, FoldPolicy(draws_vouched=vouched), enabled=True)
    assert dedup.registry is not None
    driver = dedup.registry.driver
    walk = driver.walk
    monkeypatch.setattr(
        driver, "walk", lambda raw, reads: dataclasses.replace(walk(raw, reads), draws=Draws.UNKNOWN), raising=False
    )
    forward = (lambda x: x * 2) if vouched else FORWARDS["dropout"]
    plain = Run(backend, device, forward)
    expected = plain.sequence()
    plain.close()
    folded = Run(dedup, device, forward)
    assert (dedup.stats().execs, dedup.stats().passed_through) == (1, 0)
    assert [member.prologue is None for member in dedup.registry.members.values()] == [vouched] * 2
    assert all(torch.equal(ours, torchs) for ours, torchs in zip(folded.sequence(), expected, strict=True))
    folded.close()


def test_breaks_may_draw_between_segments_that_draw(backend: seam.GraphBackend, device: str) -> None:
    @seam.eager_break
    def noise(x: torch.Tensor) -> torch.Tensor:
        return x + torch.rand(len(x), device=device)

    def forward(x: torch.Tensor) -> torch.Tensor:
        return F.dropout(noise(F.dropout(x, 0.5)), 0.5)

    dedup = DedupBackend(backend, enabled=True)
    sequences = []
    for which in (backend, dedup):
        run = Run(which, device, forward)
        sequences.append(run.sequence())
        run.close()
    assert all(torch.equal(ours, torchs) for ours, torchs in zip(*sequences, strict=True))


@pytest.mark.gpu
def test_several_generators_advance_as_in_torchs_own_replay() -> None:
    """Each that the capture was told of, and the default one; a draw from another one is torch's own error."""
    inner = seam.default_backend("cuda")
    dedup = DedupBackend(inner, enabled=True)
    one, two = (torch.Generator(device="cuda").manual_seed(seed) for seed in (1, 2))

    def forward(x: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(x).normal_(generator=one) + torch.rand_like(x) + torch.empty_like(x).uniform_(generator=two)

    sequences = []
    for backend in (inner, dedup):
        run = Run(backend, "cuda", forward, (one, two))
        sequences.append(run.sequence())
        if backend is dedup:
            assert (dedup.stats().execs, dedup.stats().passed_through) == (1, 0)
        run.close()
    assert all(torch.equal(ours, torchs) for ours, torchs in zip(*sequences, strict=True))


@pytest.mark.parametrize("folding", [False, True])
def test_the_simulated_device_refuses_generators_that_it_does_not_know(folding: bool) -> None:
    """Scope and folding backend hand them on; the default one is known."""
    backend: seam.GraphBackend = seam.default_backend("cpu")
    graph = seam.BreakableGraph(DedupBackend(backend, enabled=True) if folding else backend)
    with seam.capture(graph, generators=(torch.default_generator,)):
        torch.ones(2) + 1
    graph.reset()
    with (
        pytest.raises(RuntimeError, match="default generator only"),
        seam.capture(graph, generators=(torch.Generator(),)),
    ):
        pass


def test_a_graph_that_draws_and_can_get_no_executable_says_so(
    backend: seam.GraphBackend, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D6: the wrapped backend's own replay would advance the numbers and compute nothing."""
    dedup = DedupBackend(backend, enabled=True)
    run = Run(dedup, device, FORWARDS["rand"])
    assert dedup.registry is not None
    driver = dedup.registry.driver

    def failing(raw: Any) -> Any:
        raise DriverError("out of memory", remedy="none")

    monkeypatch.setattr(driver, "update", lambda executable, raw: UpdateResult(Verdict.PARAMETERS_CHANGED))
    monkeypatch.setattr(driver, "instantiate", failing)
    with pytest.raises(DriverError, match="out of memory"):
        run.runs[0][0].replay()
    monkeypatch.undo()
    expected = torch.Generator(device=device).manual_seed(7)
    torch.manual_seed(7)
    graph, x, y = run.runs[1]  # its executable is as it was
    graph.replay()
    assert torch.equal(y, torch.rand(len(x), device=device, generator=expected) + x)
    run.close()
