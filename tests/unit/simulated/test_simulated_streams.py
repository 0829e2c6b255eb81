"""Forks and joins of streams shape the graph as they do on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from seam.simulated import (
    Event,
    SimulatedBackend,
    SimulatedDeviceError,
    SimulatedSegment,
    Stream,
    current_stream,
    default_stream,
    stream,
)

PLAIN = (0, 0, 0)


def record(backend: SimulatedBackend, function: Callable[[Stream], Any]) -> tuple[SimulatedSegment, Any]:
    pool = backend.new_pool()
    with pool.entered():
        backend.begin_capture(pool)
        try:
            result = function(pool.stream)
        except BaseException:
            backend.end_capture(discard=True)
            raise
        segment = backend.end_capture()
    assert segment is not None
    return segment, result


def test_a_fork_and_its_join_are_edges() -> None:
    side = Stream(name="side")
    x = torch.arange(3.0)

    def fork(main: Stream) -> torch.Tensor:
        start = x + 1  # node 0
        side.wait_stream(main)
        with stream(side):
            left = start * 2  # node 1
        right = start * 3  # node 2
        main.wait_stream(side)
        return left + right  # node 3

    backend = SimulatedBackend()
    segment, y = record(backend, fork)
    assert segment.graph.edges == ((0, 1, PLAIN), (0, 2, PLAIN), (2, 3, PLAIN), (1, 3, PLAIN))
    backend.replay_graph(segment)
    assert y.tolist() == [5.0, 10.0, 15.0]
    assert not side.is_capturing


def test_events_join_as_streams_do() -> None:
    side, done = Stream(), Event()
    x = torch.arange(3.0)

    def fork(main: Stream) -> torch.Tensor:
        begin = main.record_event()
        side.wait_event(begin)
        with side:
            assert current_stream() is side
            left = x + 1
            done.record()
            x.mul(2)  # not waited for through `done`, but through the stream below
        done.wait(main)
        y = left * 2
        main.wait_stream(side)
        return y

    segment, _ = record(SimulatedBackend(), fork)
    assert segment.graph.edges == ((0, 1, PLAIN), (0, 2, PLAIN))


def test_a_stream_that_was_never_joined_is_an_error_by_name_and_the_capture_ends() -> None:
    backend, side = SimulatedBackend(), Stream(name="comms")
    pool = backend.new_pool()
    x = torch.ones(2)
    with pool.entered():
        backend.begin_capture(pool)
        side.wait_stream(pool.stream)
        with stream(side):
            x + 1
        with pytest.raises(SimulatedDeviceError, match=r"comms was forked .*never joined.*rule S8"):
            backend.end_capture()
        backend.begin_capture(pool)
        y = x + 1
        segment = backend.end_capture()
    assert segment is not None
    backend.replay_graph(segment)
    assert (y.tolist(), side.is_capturing) == ([2.0, 2.0], False)


def test_a_fork_without_work_needs_no_join() -> None:
    side = Stream()

    def fork(main: Stream) -> None:
        torch.ones(2)
        side.wait_stream(main)

    assert len(record(SimulatedBackend(), fork)[0].graph.nodes) == 1


def test_work_on_a_stream_outside_the_capture_runs_at_once() -> None:
    outside, x = Stream(), torch.ones(2)

    def both(_: Stream) -> tuple[torch.Tensor, torch.Tensor]:
        with stream(outside):
            now = x + 1
            assert now.sum().item() == 4.0
        return now, x + 2

    segment, (now, later) = record(SimulatedBackend(), both)
    assert len(segment.graph.nodes) == 1
    assert now.tolist() == [2.0, 2.0]
    assert later.isnan().all()


def test_memory_freed_on_one_stream_is_not_taken_by_another() -> None:
    side = Stream()
    addresses = []

    def fork(main: Stream) -> None:
        side.wait_stream(main)
        for where in (main, side, main):
            with stream(where):
                addresses.append(torch.ones(2).data_ptr())
        main.wait_stream(side)

    record(SimulatedBackend(), fork)
    assert addresses[0] == addresses[2] != addresses[1]


@pytest.mark.parametrize(
    "wait",
    [
        lambda main, event: main.synchronize(),
        lambda main, event: main.query(),
        lambda main, event: event.synchronize(),
        lambda main, event: event.query(),
        lambda main, event: main.wait_stream(Stream()),
    ],
    ids=["stream.synchronize", "stream.query", "event.synchronize", "event.query", "wait for work outside"],
)
def test_waits_that_a_capture_cannot_hold_invalidate_it(wait: Callable[[Stream, Event], Any]) -> None:
    backend = SimulatedBackend()
    pool = backend.new_pool()
    with pool.entered():
        backend.begin_capture(pool)
        event = pool.stream.record_event()
        with pytest.raises(SimulatedDeviceError):
            wait(pool.stream, event)
        with pytest.raises(SimulatedDeviceError):
            backend.end_capture()


def test_an_event_of_a_capture_that_ended_cannot_be_waited_for() -> None:
    event = record(SimulatedBackend(), lambda main: main.record_event())[1]
    with pytest.raises(SimulatedDeviceError, match="has ended"):
        Stream().wait_event(event)


def test_outside_a_capture_every_wait_is_over() -> None:
    first, second = Stream(), Stream()
    first.wait_stream(second)
    first.wait_event(Event())
    event = second.record_event()
    event.wait(first)
    event.synchronize()
    first.synchronize()
    assert event.query()
    assert first.query()


def test_the_current_stream_is_restored_also_after_an_error() -> None:
    side = Stream()
    with pytest.raises(KeyError), stream(side), stream(None):
        assert current_stream() is side
        raise KeyError
    assert current_stream() is default_stream()


def test_priority_of_a_stream_is_an_attribute_of_its_kernels() -> None:
    backend = SimulatedBackend()
    pool = backend.new_pool(Stream(priority=-3))
    with pool.entered():
        backend.begin_capture(pool)
        torch.ones(2) + 1
        segment = backend.end_capture()
    assert segment is not None
    assert [node.attributes["priority"] for node in segment.graph.nodes] == [-3, -3]
