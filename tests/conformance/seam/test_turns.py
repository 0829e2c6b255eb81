"""M1: one graph of a pool at a time, whoever asks."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

import seam

KIB = 1024


def captured(
    backend: seam.GraphBackend, device: str, pool: seam.Pool, label: str, during: Any = None
) -> tuple[seam.BreakableGraph, torch.Tensor, torch.Tensor]:
    """(x + 1) * 2 + 3 with a break in it, which calls ``during`` at replay."""

    @seam.eager_break(name="body")
    def body(value: torch.Tensor) -> torch.Tensor:
        if during is not None and graph.state is seam.GraphState.CAPTURED:
            during()
        return value * 2

    x = torch.zeros(64, device=device)
    graph = seam.BreakableGraph(backend, label=label)
    with seam.capture(graph, pool=pool):
        y = body(x + 1) + 3
    return graph, x, y


def test_another_threads_replay_in_the_same_pool_is_refused(backend: seam.GraphBackend, device: str) -> None:
    """Also a capture. Afterwards both go on, and from a pool of its own nobody is refused."""
    pool = backend.new_pool()
    other, x2, y2 = captured(backend, device, pool, "other")
    own, x3, y3 = captured(backend, device, backend.new_pool(), "own")
    failures: list[BaseException] = []
    late = seam.BreakableGraph(backend, label="late")

    def elsewhere() -> None:
        own.replay()
        for attempt in (other.replay, lambda: seam.capture(late, pool=pool).__enter__()):
            try:
                attempt()
            except seam.SeamError as error:
                failures.append(error)

    def during() -> None:
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join(10)

    graph, x, y = captured(backend, device, pool, "first", during)
    for value in (10, 0, 1):
        failures.clear()
        x.fill_(value)
        x3.fill_(value + 1)
        graph.replay()
        assert y.tolist() == [(value + 1) * 2 + 3] * 64
        assert y3.tolist() == [(value + 2) * 2 + 3] * 64
        assert [type(error) for error in failures] == [seam.ReplayError, seam.CaptureError]
        assert "other cannot be replayed while another thread works in its pool: first is replayed [rule M1]" in str(
            failures[0]
        )
        assert "late cannot be captured while another thread works in its pool: first is replayed" in str(failures[1])
        x2.fill_(value)
        other.replay()
        assert y2.tolist() == [(value + 1) * 2 + 3] * 64
    assert late.state is seam.GraphState.FAILED
    for one in (graph, other, own):
        one.close()


def test_a_capture_inside_a_break_of_the_same_pool_is_refused(backend: seam.GraphBackend, device: str) -> None:
    """Its breaks would write into memory that the rest of the replay reads."""
    pool = backend.new_pool()
    late = seam.BreakableGraph(backend, label="late")
    graph, x, y = captured(
        backend, device, pool, "first", lambda: captured(backend, device, pool, "late") if attempts else None
    )
    for attempts in ([1], [], []):
        x.fill_(4)
        if attempts:
            with pytest.raises(seam.CaptureError, match=r"late cannot be captured inside a break while first is replayed.*S5"):
                graph.replay()
        else:
            graph.replay()
            assert y.tolist() == [13] * 64
    graph.close()
    late.close()


def test_a_replay_inside_a_break_of_a_capture_of_the_same_pool_is_refused(backend: seam.GraphBackend, device: str) -> None:
    pool = backend.new_pool()
    old, x, y = captured(backend, device, pool, "old")

    @seam.eager_break
    def body() -> None:
        old.replay()

    graph = seam.BreakableGraph(backend, label="new")
    with (
        pytest.raises(seam.ReplayError, match=r"old cannot be replayed inside a break while new is captured.*S5"),
        seam.capture(graph, pool=pool),
    ):
        body()
    with seam.capture(graph):
        body()
    for value in (1, 2, 3):
        x.fill_(value)
        graph.replay()
        assert y.tolist() == [(value + 1) * 2 + 3] * 64
    old.close()
    graph.close()


def test_a_replay_on_another_stream_follows_the_one_before(
    backend: seam.GraphBackend, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The current stream waits where the pool was used on another one, at a replay and at a capture, and nowhere else."""
    pool = backend.new_pool()
    graph, *_ = captured(backend, device, pool, "graph")
    waited: list[Any] = []
    follow = type(pool).follow

    def noted(self: Any, mark: Any) -> None:
        waited.append(self.current_stream())
        follow(self, mark)

    monkeypatch.setattr(type(pool), "follow", noted)
    make: Any = torch.cuda.Stream if device == "cuda" else seam.simulated.Stream
    enter: Any = torch.cuda.stream if device == "cuda" else seam.simulated.stream
    one, two = make(), make()
    for stream in (one, one, two, two, one):
        with enter(stream):
            graph.replay()
    assert waited == [one, two, one]
    late, *_ = captured(backend, device, pool, "late")
    late.replay()
    assert waited == [one, two, one, pool.stream], "the capture waits for stream one; its own caller replays next"
    graph.close()
    late.close()
