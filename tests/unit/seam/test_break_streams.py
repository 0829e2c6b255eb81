"""Which streams a break is waited for on: seen by the calls, since the simulated device runs everything at once (rule S8)."""

from __future__ import annotations

import pytest
import torch

import seam
from seam.simulated import Event, SimulatedBackend, Stream, current_stream
from seam.simulated import stream as on_stream


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Stream, Stream]]:
    """Who was made to wait for whom, by ``wait_stream``."""
    seen: list[tuple[Stream, Stream]] = []
    wait_stream = Stream.wait_stream

    def noted(self: Stream, other: Stream) -> None:
        seen.append((self, other))
        wait_stream(self, other)

    monkeypatch.setattr(Stream, "wait_stream", noted)
    return seen


def test_the_caller_waits_for_every_stream_that_the_body_used(waits: list[tuple[Stream, Stream]]) -> None:
    made, waiting, recorded, idle = (Stream(name=name) for name in ("made", "waiting", "recorded", "idle"))
    event = Event()

    @seam.eager_break
    def body(x: torch.Tensor) -> torch.Tensor:
        waits.append((idle, idle))  # what comes after is the seam's
        with on_stream(made):
            y = x * 2
        waiting.wait_event(event)
        event.record(recorded)
        return y

    x = torch.zeros(4)
    graph = seam.BreakableGraph(SimulatedBackend())
    with seam.capture(graph):
        origin = current_stream()
        y = body(x + 1) + 1
    assert waits[waits.index((idle, idle)) + 1 :][:3] == [(origin, stream) for stream in (made, waiting, recorded)]
    caller = Stream(name="caller")
    for value in (1, 2, 3):
        waits.clear()
        x.fill_(value)
        with on_stream(caller):
            graph.replay()
        assert waits == [(idle, idle), *((caller, stream) for stream in (made, waiting, recorded))]
        assert y.tolist() == [2 * value + 3] * 4
    graph.close()


def test_a_stream_that_waits_for_a_segments_event_waits_for_the_caller(waits: list[tuple[Stream, Stream]]) -> None:
    ready, side = Event(), Stream(name="side")

    @seam.eager_break
    def body(x: torch.Tensor) -> torch.Tensor:
        side.wait_event(ready)
        current_stream().wait_event(ready)
        return x * 2

    x = torch.zeros(4)
    graph = seam.BreakableGraph(SimulatedBackend())
    with seam.capture(graph):
        value = x + 1
        ready.record()
        body(value)
    caller = Stream(name="caller")
    for _ in range(3):
        waits.clear()
        with on_stream(caller):
            graph.replay()
        assert waits == [(side, caller), (caller, side)]
    graph.close()


def test_events_that_a_break_records_at_replay_are_not_kept() -> None:
    import gc
    import weakref

    recorded: list[weakref.ref[Event]] = []

    @seam.eager_break
    def body(x: torch.Tensor) -> torch.Tensor:
        recorded.append(weakref.ref(current_stream().record_event()))
        return x * 2

    graph = seam.BreakableGraph(SimulatedBackend())
    with seam.capture(graph):
        body(torch.zeros(4))
    recorded.clear()
    for _ in range(5):
        graph.replay()
    gc.collect()
    assert [event() for event in recorded] == [None] * 5
    graph.close()


def test_a_body_that_raises_is_not_waited_for(waits: list[tuple[Stream, Stream]]) -> None:
    @seam.eager_break
    def body(x: torch.Tensor, fail: list[bool]) -> torch.Tensor:
        with on_stream(Stream()):
            if fail:
                raise LookupError("on purpose")
        return x

    fail: list[bool] = []
    graph = seam.BreakableGraph(SimulatedBackend())
    with seam.capture(graph):
        body(torch.zeros(4), fail)
    fail.append(True)
    waits.clear()
    with pytest.raises(LookupError):
        graph.replay()
    assert waits == []
    fail.clear()
    graph.replay()
    graph.close()
