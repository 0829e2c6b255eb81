"""The fold tells observers what it does, and an observer cannot harm it."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch

import seam
from graphdedup import DedupBackend, Verify, events
from graphdedup.events import Event, Kind, Span, watching
from seam.backend import SegmentInfo
from seam.simulated import DriverProfile, SimulatedBackend, SimulatedDevice
from tests.unit.fold.bench import Bench


class Seen:
    """Keeps what it is told, in order."""

    def __init__(self) -> None:
        self.begun: list[tuple[Kind, str]] = []
        self.ended: list[Event] = []
        self.tokens: list[Any] = []

    def begin(self, event: Event) -> Any:
        self.begun.append((event.kind, event.label))
        return len(self.begun)

    def end(self, event: Event, token: Any) -> None:
        self.ended.append(event)
        self.tokens.append(token)

    @property
    def kinds(self) -> list[str]:
        return [event.kind.value for event in self.ended]


@pytest.fixture
def seen() -> Any:
    made = Seen()
    events.add(made)
    yield made
    events.remove(made)


def capture(backend: DedupBackend, size: int, label: str) -> tuple[seam.BreakableGraph, torch.Tensor, torch.Tensor]:
    x = torch.zeros(size)
    graph = seam.BreakableGraph(backend, label=label)
    with seam.capture(graph):
        y = x + 1
    return graph, x, y


def test_a_capture_and_a_replay_tell_each_step_once_with_the_graphs_name(seen: Seen) -> None:
    backend = DedupBackend(SimulatedBackend(SimulatedDevice(8 << 20)), enabled=True)
    big, *_ = capture(backend, 8, "bs=8")
    assert seen.kinds == ["capture", "walk", "instantiate", "fold"], "the fold of the first graph holds its instantiation"
    small, *_ = capture(backend, 4, "bs=4")
    assert seen.kinds[4:] == ["capture", "walk", "update", "fold"]
    assert {event.label for event in seen.ended[4:]} == {"bs=4 segment 0"}
    big.replay()
    small.replay()
    small.replay()
    assert seen.kinds[8:] == ["update", "launch", "update", "launch", "launch"], "the last replay finds its graph on the exec"
    assert [event.purpose for event in seen.ended if event.kind is Kind.UPDATE] == ["fold", "replay", "replay"]
    assert {event.outcome for event in seen.ended if event.kind is Kind.UPDATE} == {"SUCCESS"}
    assert [event.outcome for event in seen.ended if event.kind is Kind.FOLD] == ["founded", "joined"]
    execs = {event.exec_id for event in seen.ended if event.kind not in (Kind.CAPTURE, Kind.WALK)}
    assert len(execs) == 1, "one executable, by one number"
    assert None not in execs
    for event in seen.ended:
        assert 0 < event.began_ns <= event.ended_ns
    for graph in (big, small):
        graph.close()


def test_an_observer_gets_its_own_token_back(seen: Seen) -> None:
    bench = Bench()
    bench.fold(1)
    # walk; fold holds instantiate, which ends first
    assert [kind for kind, _ in seen.begun] == [Kind.WALK, Kind.FOLD, Kind.INSTANTIATE]
    assert list(zip(seen.kinds, seen.tokens, strict=True)) == [("walk", 1), ("instantiate", 3), ("fold", 2)]


def test_events_that_fail_say_so_and_the_first_error_is_raised(seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    member = bench.fold(1)

    def launch(*_: Any) -> None:
        raise ValueError("no launch today")

    monkeypatch.setattr(bench.driver, "launch", launch)
    with pytest.raises(ValueError, match="no launch today"):
        bench.registry.replay(member)
    assert (seen.ended[-1].kind, seen.ended[-1].error) == (Kind.LAUNCH, "ValueError")


def test_a_capture_that_fails_ends_its_event(seen: Seen) -> None:
    backend = DedupBackend(SimulatedBackend(SimulatedDevice(8 << 20)), enabled=True)
    with pytest.raises(ZeroDivisionError), seam.capture(seam.BreakableGraph(backend, label="bad")):
        torch.zeros(2) + 1 / 0
    assert [(event.kind, event.outcome) for event in seen.ended] == [(Kind.CAPTURE, "discarded")]


def test_a_capture_that_cannot_begin_ends_its_event(seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = DedupBackend(SimulatedBackend(SimulatedDevice(8 << 20)), enabled=True)

    def begin(*_: Any, **__: Any) -> None:
        raise OSError("the device is gone")

    monkeypatch.setattr(backend.inner, "begin_capture", begin)
    with pytest.raises(OSError, match="gone"):
        backend.begin_capture(backend.new_pool())
    assert [(event.kind, event.error) for event in seen.ended] == [(Kind.CAPTURE, "OSError")]


def test_a_refused_update_tells_its_verdict(seen: Seen) -> None:
    bench = Bench(DriverProfile(refuse_pairs=lambda current, new: True))
    bench.fold(1)
    bench.fold(2)
    assert [event.outcome for event in seen.ended if event.kind is Kind.UPDATE] == ["PARAMETERS_CHANGED"]
    assert [event.outcome for event in seen.ended if event.kind is Kind.FOLD] == ["founded", "founded"]


def test_a_graph_that_is_passed_through_tells_why_and_its_launches_have_no_exec(
    seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = DedupBackend(SimulatedBackend(SimulatedDevice(8 << 20)), enabled=True)
    assert backend.registry is not None

    def walk(*_: Any) -> None:
        raise ValueError("unreadable")

    monkeypatch.setattr(backend.registry.driver, "walk", walk)
    graph, x, y = capture(backend, 4, "odd")
    x.fill_(2)
    graph.replay()
    assert y.tolist() == [3] * 4
    walked, folded, launched = seen.ended[1:]
    assert (walked.kind, walked.error) == (Kind.WALK, "ValueError")
    assert (folded.exec_id, folded.outcome) == (None, "passed through: the graph cannot be read: ValueError: unreadable")
    assert (launched.kind, launched.exec_id, launched.label) == (Kind.LAUNCH, None, "odd segment 0")
    graph.close()


def test_a_verified_replay_is_one_launch_and_an_instantiation_of_its_own(seen: Seen) -> None:
    backend = DedupBackend(SimulatedBackend(SimulatedDevice(8 << 20)), enabled=True, verify=Verify(replays=1))
    graph, *_ = capture(backend, 4, "checked")
    del seen.ended[:]
    graph.replay()
    graph.replay()
    assert [(event.kind.value, event.purpose) for event in seen.ended] == [
        ("instantiate", "verify"),
        ("launch", ""),
        ("launch", ""),
    ]
    assert backend.stats().launches == 2
    graph.close()


def test_with_the_fold_switched_off_nothing_is_told(seen: Seen) -> None:
    """D14: the path is the wrapped backend's own."""
    backend = DedupBackend(SimulatedBackend(SimulatedDevice(8 << 20)), enabled=False)
    graph, *_ = capture(backend, 4, "plain")
    graph.replay()
    graph.close()
    assert seen.begun == []


class _Unreadable(SegmentInfo):
    """A segment whose name must not be asked for."""

    def __str__(self) -> str:
        raise AssertionError("a string was built")


def test_a_replay_that_nobody_watches_builds_no_string_and_no_event(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    first, second = bench.fold(1), bench.fold(2)
    for member in (first, second):
        member.segment = _Unreadable(0, "x")

    def made(*_: Any, **__: Any) -> None:
        raise AssertionError("an event was built")

    monkeypatch.setattr(events, "Event", made)
    monkeypatch.setattr(events, "Span", made)
    bench.check(first, second, second, first)


@pytest.mark.parametrize("moment", ["begin", "end"])
def test_an_observer_that_fails_is_left_out_with_one_warning(moment: str, caplog: pytest.LogCaptureFixture) -> None:
    class Bad(Seen):
        pass

    def fail(self: Any, *_: Any) -> None:
        raise KeyError("mine")

    setattr(Bad, moment, fail)
    bad, good = Bad(), Seen()
    events.add(bad)
    events.add(good)
    try:
        with caplog.at_level(logging.WARNING, "graphdedup"):
            bench = Bench()
            members = [bench.fold(1), bench.fold(2)]
            bench.check(*members, *members)
    finally:
        events.remove(good)
    assert watching.observers == ()
    assert [record.getMessage() for record in caplog.records] == ["an observer failed and is told of nothing more: Bad"]
    assert good.kinds.count("launch") == 4, "the others are told on"


def test_adding_twice_tells_once_and_removing_twice_is_nothing() -> None:
    one = Seen()
    events.add(one)
    events.add(one)
    Bench().fold(1)
    events.remove(one)
    events.remove(one)
    assert len(one.ended) == 3
    Bench().fold(1)
    assert len(one.ended) == 3


def test_an_observer_that_goes_meanwhile_is_told_of_the_end() -> None:
    one = Seen()
    events.add(one)
    span = events.begin(Kind.CAPTURE, SegmentInfo())
    assert isinstance(span, Span)
    events.remove(one)
    span.close()
    span.close()
    assert one.kinds == ["capture"]
    assert events.begin(Kind.CAPTURE, SegmentInfo()) is None
