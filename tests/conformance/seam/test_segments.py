"""Segments and breaks: rules S1, S2 and S9 by arithmetic that can be done by hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import seam

Chain = Callable[[torch.Tensor], torch.Tensor]


@seam.eager_break
def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@seam.eager_break
def same(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


@seam.eager_break
def add_one_in_place(x: torch.Tensor) -> None:
    x.add_(1)


@seam.eager_break
def nested(x: torch.Tensor) -> torch.Tensor:
    return double(x) + 1


def marker(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    seam.graph_break()
    return y * 2


CHAINS: dict[str, tuple[Chain, int, dict[float, float]]] = {
    "no break": (lambda x: x + 1, 0, {5: 6, 0: 1, -3: -2}),
    "one break": (lambda x: double(x + 1) + 3, 1, {10: 25, 0: 5, 1: 7}),
    "marker": (marker, 1, {2: 6, 5: 12, 0: 2}),
    "back to back": (lambda x: double(double(x)) + 1, 2, {1: 5, 3: 13, 0: 1}),
    "break first": (lambda x: double(x) + 1, 1, {4: 9, 0: 1, 2: 5}),
    "break last": (lambda x: double(x + 1), 1, {4: 10, 0: 2, 2: 6}),
    "only breaks": (lambda x: double(same(x)), 2, {4: 8, 0: 0, 2: 4}),
    "nested runs inline": (lambda x: nested(x) * 3, 1, {2: 15, 0: 3, 1: 9}),
}


def capture_chain(backend: seam.GraphBackend, device: str, chain: Chain, **how: object) -> tuple[seam.BreakableGraph, ...]:
    x = torch.zeros(4, device=device)
    graph = seam.BreakableGraph(backend)
    with seam.capture(graph, **how):  # type: ignore[arg-type]
        y = chain(x)
    return graph, x, y  # type: ignore[return-value]


@pytest.mark.parametrize("name", CHAINS)
def test_a_replay_computes_the_chain_for_each_fresh_input(name: str, backend: seam.GraphBackend, device: str) -> None:
    chain, breaks, values = CHAINS[name]
    graph, x, y = capture_chain(backend, device, chain)
    assert len(graph.breaks) == breaks
    assert len(graph.segments) == breaks + 1  # S1
    for value, expected in values.items():
        x.fill_(value)
        graph.replay()
        assert y.tolist() == [expected] * 4
    assert graph.replay_count == 3
    graph.close()


def test_four_steps_show_that_replay_interleaves(backend: seam.GraphBackend, device: str) -> None:
    """S1: at 5 the steps give 6, 7, 8 and 16; all segments first and then all breaks would give something else."""
    seen: list[float] = []

    @seam.eager_break
    def note(x: torch.Tensor) -> torch.Tensor:
        seen.append(x[0].item())
        return x + 1

    def chain(x: torch.Tensor) -> torch.Tensor:
        a = x + 1
        b = note(a)
        c = b + 1
        note(c)
        return c * 2

    graph, x, y = capture_chain(backend, device, chain)
    seen.clear()
    x.fill_(5)
    graph.replay()
    assert seen == [6, 8]
    assert y.tolist() == [16] * 4
    x.fill_(0)
    graph.replay()
    assert seen == [6, 8, 1, 3]
    assert y.tolist() == [6] * 4
    graph.close()


def test_an_in_place_break_needs_no_result(backend: seam.GraphBackend, device: str) -> None:
    def chain(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        add_one_in_place(y)
        return y * 3

    graph, x, y = capture_chain(backend, device, chain)
    for value, expected in ((0, 3), (10, 63), (1, 9)):
        x.fill_(value)
        graph.replay()
        assert y.tolist() == [expected] * 4
    graph.close()


@pytest.mark.parametrize("mode", ["full", "disabled"])
def test_a_break_point_is_a_plain_call_outside_of_segments(
    mode: str, backend: seam.GraphBackend, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S9: no backend call for the break, no destination, and the body's own result object comes back."""
    made: list[object] = []
    monkeypatch.setattr(seam.BreakSlot, "__init__", lambda self, name="": made.append(self))
    marked_result = object()

    @seam.eager_break
    def body() -> object:
        return marked_result

    x = torch.zeros(4, device=device)
    assert body() is marked_result
    graph = seam.BreakableGraph(backend)
    with seam.capture(graph, mode=mode):
        assert body() is marked_result
        y = x + 1
        seam.graph_break()
    assert not made
    assert graph.breaks == []
    if mode == "full":
        assert len(graph.segments) == 1
        x.fill_(5)
        graph.replay()
        assert y.tolist() == [6] * 4
    else:
        assert graph.segments == []
        assert y.tolist() == [1] * 4  # inert: it simply ran
        with pytest.raises(seam.ReplayError, match="inert"):
            graph.replay()
    graph.close()


def test_the_count_of_segments_is_checked_at_replay(backend: seam.GraphBackend, device: str) -> None:
    graph, _, _ = capture_chain(backend, device, lambda x: double(x) + 1)
    taken = graph.breaks.pop()
    with pytest.raises(seam.CaptureError, match="S1"):
        graph.replay()
    graph.breaks.append(taken)
    graph.close()


def test_the_count_of_segments_is_checked_when_a_segment_opens(
    backend: seam.GraphBackend, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S1: the backend is not even asked for the second segment."""
    begun: list[object] = []
    begin_capture = backend.begin_capture
    monkeypatch.setattr(backend, "begin_capture", lambda pool, **how: (begun.append(pool), begin_capture(pool, **how)))
    graph = seam.BreakableGraph(backend)
    x = torch.zeros(4, device=device)

    @seam.eager_break
    def meddle(value: torch.Tensor) -> torch.Tensor:
        graph.breaks.append(seam.Break("stray", lambda: None))
        return value + 1

    with pytest.raises(seam.CaptureError, match="S1"), seam.capture(graph):
        meddle(x + 1)
    assert len(begun) == 1
    assert graph.state is seam.GraphState.FAILED
    graph.close()


def test_the_stored_break_writes_back_and_is_not_the_callers_function(backend: seam.GraphBackend, device: str) -> None:
    """S2: calling the stored closure writes into what the next segment reads; the function alone would not."""
    x = torch.full((4,), 3.0, device=device)
    graph = seam.BreakableGraph(backend)
    with seam.capture(graph):
        crossed = double(x)
        _ = crossed + 1
    assert graph.breaks[0].run is not double
    crossed.fill_(-1)
    graph.breaks[0].run()
    assert crossed.tolist() == [6] * 4
    graph.close()
