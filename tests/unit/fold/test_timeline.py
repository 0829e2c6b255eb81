"""Updates over time: spans of equal length that double, so that a history is bounded and loses no count."""

from __future__ import annotations

import threading

import torch

import seam
from graphdedup import DedupBackend
from graphdedup.timeline import Timeline
from seam.simulated import SimulatedBackend


def told(*seconds: float) -> tuple[float, tuple[int, ...]]:
    at = iter(seconds)
    timeline = Timeline(lambda: next(at))
    for _ in seconds:
        timeline.add()
    return timeline.read()


def test_spans_begin_at_the_first_event_and_are_an_eighth_of_a_second() -> None:
    assert told() == (0.125, ())
    assert told(50.0, 50.1, 50.125, 50.5) == (0.125, (2, 1, 0, 0, 1))


def test_spans_double_when_they_are_full_and_no_count_is_lost() -> None:
    """120 spans end at 15 s; at 20 s they are of 0.25 s, and 20 s is the 81st."""
    seconds, counts = told(0.0, 0.2, 14.99, 20.0)
    assert seconds == 0.25
    assert (len(counts), counts[0], counts[59], counts[80], sum(counts)) == (81, 2, 1, 1, 4)
    seconds, counts = told(0.0, 1.0, 10_000.0)
    assert (seconds, counts[0], sum(counts)) == (128.0, 2, 3)
    assert len(counts) == int(10_000 / 128) + 1


def test_an_early_reading_of_another_thread_is_counted_in_the_first_span() -> None:
    assert told(10.0, 9.9999) == (0.125, (2,))


def test_threads_lose_nothing() -> None:
    timeline = Timeline()
    threads = [threading.Thread(target=lambda: [timeline.add() for _ in range(500)]) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(timeline.read()[1]) == 4000


def test_a_report_has_the_updates_that_replays_needed() -> None:
    """Two sizes in turn: every replay but the first has to re-point the executable, which holds the second one at first."""
    backend = DedupBackend(SimulatedBackend(), enabled=True)
    graphs = []
    for size in (4, 2):
        x = torch.zeros(size)
        graphs.append(seam.BreakableGraph(backend))
        with seam.capture(graphs[-1]):
            x + 1
    assert backend.report().replay_updates_over_time.counts == ()
    for _ in range(3):
        for graph in graphs:
            graph.replay()
    report = backend.report()
    assert report.replay_updates > 0
    assert sum(report.replay_updates_over_time.counts) == report.replay_updates
    assert report.replay_updates_over_time.seconds_each == 0.125
    for graph in graphs:
        graph.close()
