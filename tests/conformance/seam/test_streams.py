"""Side streams: forks that outlive a segment, joins, and work that a break leaves on a stream of its own. Rule S8."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import seam


class Streams:
    """``torch.cuda`` and :mod:`seam.simulated` under the same names."""

    def __init__(self, device: str) -> None:
        from seam import simulated

        self.kind: Any = torch.cuda if device == "cuda" else simulated

    def new(self) -> Any:
        return self.kind.Stream()

    def event(self) -> Any:
        return self.kind.Event()

    def current(self) -> Any:
        return self.kind.current_stream()

    def on(self, stream: Any) -> Any:
        return self.kind.stream(stream)


@pytest.fixture
def streams(device: str) -> Streams:
    return Streams(device)


@pytest.fixture
def side(streams: Streams) -> Any:
    return streams.new()


@pytest.fixture
def x(device: str) -> torch.Tensor:
    return torch.zeros(1 << 12, device=device)


@pytest.fixture
def graph(backend: seam.GraphBackend) -> Iterator[seam.BreakableGraph]:
    made = seam.BreakableGraph(backend, label="forked")
    yield made
    made.close()


@seam.eager_break
def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def check(graph: seam.BreakableGraph, x: torch.Tensor, y: torch.Tensor, values: dict[float, float]) -> None:
    for value, expected in values.items():
        x.fill_(value)
        y.fill_(-1)
        graph.replay()
        assert y.unique().tolist() == [expected]


@pytest.mark.parametrize("how", ["wait_stream", "events"])
def test_a_fork_before_a_break_is_joined_after_it(
    how: str, graph: seam.BreakableGraph, x: torch.Tensor, streams: Streams, side: Any
) -> None:
    """2 (x + 1) + 3 (x + 1): the segment ends between the fork and the join, and the stream works on in the next one."""
    with seam.capture(graph):
        main = streams.current()
        base = x + 1
        if how == "events":
            forked = streams.event()
            forked.record(main)
            side.wait_event(forked)
        else:
            side.wait_stream(main)
        with streams.on(side):
            once = base + 0
        doubled = double(base)
        with streams.on(side):
            tripled = once * 3  # still on the side stream, in another segment
        if how == "events":
            done = streams.event()
            done.record(side)
            main.wait_event(done)
        else:
            main.wait_stream(side)
        y = doubled + tripled
    assert len(graph.segments) == 2
    assert graph.counts.forks == 1
    assert graph.counts.joins == 2, "once for each segment"
    check(graph, x, y, {0: 5, 1: 10, 4: 25})


def test_an_event_of_an_earlier_segment_may_be_waited_for(
    graph: seam.BreakableGraph, x: torch.Tensor, streams: Streams, side: Any
) -> None:
    """The device would refuse it: the capture that recorded it has ended. Where a segment begins, all of it has run."""
    other = streams.new()
    with seam.capture(graph):
        main = streams.current()
        base = x + 1
        side.wait_stream(main)
        with streams.on(side):
            tripled = base * 3
        done = side.record_event()
        doubled = double(base)
        main.wait_event(done)
        other.wait_event(done)  # forks a stream that was not part of the capture yet
        with streams.on(other):
            more = tripled + 1
        y = doubled + tripled
        main.wait_stream(other)
        y = y + more
    assert graph.counts.forks == 2
    check(graph, x, y, {0: 9, 1: 17, 4: 41})


def test_a_stream_that_is_never_joined_is_joined_where_a_segment_ends(
    graph: seam.BreakableGraph, x: torch.Tensor, streams: Streams, side: Any
) -> None:
    target = torch.zeros_like(x)
    with seam.capture(graph):
        base = x + 1
        side.wait_stream(streams.current())
        with streams.on(side):
            target.copy_(base * 3)
        y = double(base)
    check(graph, x, y, {0: 2, 1: 4})
    check(graph, x, target, {0: 3, 1: 6, 2: 9})


def test_in_mode_full_the_seam_joins_nothing_and_names_the_fork(
    graph: seam.BreakableGraph, x: torch.Tensor, streams: Streams, side: Any
) -> None:
    with (
        pytest.raises(seam.CaptureError, match=r"forked: a stream was forked.*not joined.*S8") as caught,
        seam.capture(graph, mode="full"),
    ):
        base = x + 1
        side.wait_stream(streams.current())
        with streams.on(side):
            base * 3
    assert "test_streams.py:" in str(caught.value), "the call site of the fork"
    assert (graph.counts.forks, graph.counts.joins) == (1, 0)
    assert graph.state is seam.GraphState.FAILED
    with seam.capture(graph, mode="full"):
        base = x + 1
        side.wait_stream(streams.current())
        with streams.on(side):
            tripled = base * 3
        streams.current().wait_stream(side)
        y = base + tripled
    assert graph.counts.joins == 0
    check(graph, x, y, {0: 4, 1: 8, 2: 12})


def test_a_wait_for_work_outside_of_the_capture_is_never_dropped(
    graph: seam.BreakableGraph, x: torch.Tensor, streams: Streams, side: Any
) -> None:
    """Nothing at replay would keep it, so it is an error that says so."""
    with streams.on(side):
        x + 1
    outside = side.record_event()
    with pytest.raises(RuntimeError), seam.capture(graph):
        y = double(x + 1)
        streams.current().wait_event(outside)
        y + 1
    assert graph.state is seam.GraphState.FAILED
    with seam.capture(graph):
        y = double(x + 1)
    check(graph, x, y, {0: 2, 1: 4, 2: 6})


def test_what_a_break_leaves_on_a_side_stream_is_waited_for(
    graph: seam.BreakableGraph, x: torch.Tensor, streams: Streams, device: str
) -> None:
    """At capture and at every replay, before its result is copied: another stream each time, and long work on it."""
    pool = [streams.new() for _ in range(4)]
    calls = 0

    @seam.eager_break
    def elsewhere(value: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += 1
        stream = pool[calls % len(pool)]
        stream.wait_stream(streams.current())
        with streams.on(stream):
            out = value * 1
            for _ in range(200 if device == "cuda" else 2):
                out = out + 1
            if device == "cuda":
                torch.cuda._sleep(20_000_000)  # some 10 ms
            result = out * 2
        return result  # not joined

    with seam.capture(graph):
        y = elsewhere(x + 1) + 1
    steps = 200 if device == "cuda" else 2
    check(graph, x, y, {value: (value + 1 + steps) * 2 + 1 for value in (0, 1, 2, 5)})
    assert calls == 5


def test_a_break_may_wait_for_an_event_of_a_segment(
    graph: seam.BreakableGraph, x: torch.Tensor, streams: Streams, side: Any
) -> None:
    """At replay nobody records it anew: it stands for the segments that have run, which the side stream then waits for."""
    ready = streams.event()

    @seam.eager_break
    def elsewhere(value: torch.Tensor) -> torch.Tensor:
        side.wait_event(ready)
        with streams.on(side):
            tripled = value * 3
            ended = side.record_event()
        streams.current().wait_event(ended)
        return tripled

    with seam.capture(graph):
        value = x + 1
        ready.record(streams.current())
        y = elsewhere(value) + 1
    check(graph, x, y, {0: 4, 1: 7, 5: 19, 2: 10})


def test_the_side_stream_of_a_break_and_of_the_next_segment_may_be_the_same(
    graph: seam.BreakableGraph, x: torch.Tensor, streams: Streams, side: Any
) -> None:
    @seam.eager_break
    def elsewhere(value: torch.Tensor) -> torch.Tensor:
        side.wait_stream(streams.current())
        with streams.on(side):
            result = value * 2
            ended = side.record_event()
        elsewhere_ended.append(ended)
        return result

    elsewhere_ended: list[Any] = []
    with seam.capture(graph):
        doubled = elsewhere(x + 1)
        main = streams.current()
        main.wait_event(elsewhere_ended[-1])  # recorded by the break: kept by where this segment begins
        side.wait_stream(main)
        with streams.on(side):
            more = doubled + 1
        main.wait_stream(side)
        y = doubled + more
    check(graph, x, y, {0: 5, 1: 9, 2: 13})


def test_a_replay_inside_a_scope_of_another_thread_or_none_is_not_watched(
    graph: seam.BreakableGraph, x: torch.Tensor, streams: Streams, side: Any
) -> None:
    """Outside of scopes and breaks streams do what they always did."""
    with seam.capture(graph):
        y = double(x + 1)
    event = side.record_event()
    streams.current().wait_event(event)
    side.wait_stream(streams.current())
    check(graph, x, y, {0: 2, 1: 4, 2: 6})
