"""What comes before a capture and between its segments: warm-up, synchronisation, barrier (sglang#34286)."""

from __future__ import annotations

import pytest
import torch

import seam


@seam.eager_break
def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


class Recording:
    """A backend that notes the order of calls, the host's waits for the capture stream among them."""

    def __init__(self, inner: seam.GraphBackend, calls: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls = calls
        self.pool = inner.new_pool()
        for name in ("begin_capture", "end_capture"):
            monkeypatch.setattr(inner, name, self._noting(name, getattr(inner, name)))
        kind = type(self.pool.stream)
        synchronize = kind.synchronize

        def noted(stream: object) -> object:
            if stream == self.pool.stream:
                calls.append("synchronize")
            return synchronize(stream)

        monkeypatch.setattr(kind, "synchronize", noted)

    def _noting(self, name: str, call: object) -> object:
        def noted(*args: object, **kwargs: object) -> object:
            self.calls.append(name)
            return call(*args, **kwargs)  # type: ignore[operator]

        return noted


def test_warm_up_then_synchronize_then_barrier_then_capture(
    backend: seam.GraphBackend, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a barrier before each break, with the segment before it ended; none at replay."""
    calls: list[str] = []
    recording = Recording(backend, calls, monkeypatch)
    x = torch.zeros(4, device=device)

    @seam.eager_break
    def noting(value: torch.Tensor) -> torch.Tensor:
        calls.append("body")
        return value + 1

    def warmup() -> None:
        if device == "cuda":
            assert torch.cuda.current_stream() == recording.pool.stream
        calls.append("warm-up")
        noting(x + 1)

    graph = seam.BreakableGraph(backend)
    with seam.capture(graph, pool=recording.pool, warmup=warmup, barrier_fn=lambda: calls.append("barrier")):
        y = noting(noting(x + 1)) * 2
    assert calls == [
        *("warm-up", "body", "synchronize", "barrier"),
        *("begin_capture", "end_capture", "barrier", "body"),
        *("begin_capture", "end_capture", "barrier", "body"),
        *("begin_capture", "end_capture"),
    ]
    assert len(graph.segments) == 3, "the warm-up is no part of the capture"
    calls.clear()
    for value, expected in ((0, 6), (1, 8), (2, 10)):
        x.fill_(value)
        graph.replay()
        assert y.tolist() == [expected] * 4
    assert calls == ["body"] * 6
    graph.close()


def test_the_stream_is_synchronised_without_a_warm_up_too(
    backend: seam.GraphBackend, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    recording = Recording(backend, calls, monkeypatch)
    graph = seam.BreakableGraph(backend)
    with seam.capture(graph, pool=recording.pool):
        torch.zeros(4, device=device) + 1
    assert calls == ["synchronize", "begin_capture", "end_capture"]
    graph.close()


@pytest.mark.parametrize("place", ["warmup", "barrier_fn", "barrier_fn before a break"])
def test_an_error_before_the_capture_or_a_break_fails_it_and_nothing_else(
    place: str, backend: seam.GraphBackend, device: str
) -> None:
    countdown = 2 if place.endswith("break") else 1

    def failing() -> None:
        nonlocal countdown
        countdown -= 1
        if not countdown:
            raise LookupError("on purpose")

    x = torch.zeros(4, device=device)
    pool = backend.new_pool()
    graph = seam.BreakableGraph(backend)
    how = {place.split(" ")[0]: failing}
    with pytest.raises(LookupError, match="on purpose"), seam.capture(graph, pool=pool, **how):  # type: ignore[arg-type]
        double(x + 1)
    assert graph.state is seam.GraphState.FAILED
    with seam.capture(graph, pool=pool):
        y = double(x + 1)
    for value in (0, 1, 2):
        x.fill_(value)
        graph.replay()
        assert y.tolist() == [2 * value + 2] * 4
    graph.close()


def test_an_inert_scope_neither_warms_up_nor_waits_for_ranks(backend: seam.GraphBackend) -> None:
    def never() -> None:
        pytest.fail("called in an inert scope")

    with seam.capture(seam.BreakableGraph(backend), mode="disabled", warmup=never, barrier_fn=never, expect_breaks=5):
        pass
