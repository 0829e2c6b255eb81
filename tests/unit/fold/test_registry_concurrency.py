"""D10: threads and streams on the executables of one group, with switch points inside kernels and driver calls."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

from graphdedup import DriverError
from graphdedup.group import Member
from seam.backend import SegmentInfo
from seam.simulated import Stream, default_stream
from seam.simulated import stream as on_stream
from tests.unit.fold.bench import Bench

SHORT, LONG = 0.3, 30.0


class Threads:
    """Threads whose failures fail the test."""

    def __init__(self) -> None:
        self._threads: list[threading.Thread] = []
        self._failures: list[BaseException] = []

    def start(self, work: Callable[[], Any], stream: Stream | None = None) -> None:
        def run() -> None:
            try:
                with on_stream(stream):
                    work()
            except BaseException as error:
                self._failures.append(error)

        thread = threading.Thread(target=run)
        self._threads.append(thread)
        thread.start()

    def join(self) -> None:
        for thread in self._threads:
            thread.join(LONG)
        assert not any(thread.is_alive() for thread in self._threads), "a thread hangs"
        assert not self._failures, self._failures


class Waiting:
    """Members of one group. Each has a kernel that says it runs, waits for a signal of its own, and writes its number."""

    def __init__(self, bench: Bench, count: int = 2, patience: float = LONG) -> None:
        self.bench = bench
        self.patience = patience
        self.begun = [threading.Event() for _ in range(count)]
        self.go = [threading.Event() for _ in range(count)]
        self.outs = [torch.zeros(1) for _ in range(count)]
        self.running = self.most_running = 0
        self.seen: list[int] = []
        self.lock = threading.Lock()
        self.members = []
        for number in range(count):
            graph = bench.device.new_graph()
            graph.add_kernel("wait", self.kernel, (self.outs[number], number))
            self.members.append(bench.registry.fold(graph, SegmentInfo(0, f"graph {number}")))

    def kernel(self, info: Any, out: torch.Tensor, number: int) -> None:
        with self.lock:
            self.running += 1
            self.most_running = max(self.running, self.most_running)
        self.begun[number].set()
        served = self.go[number].wait(self.patience)
        with self.lock:
            self.running -= 1
            self.seen.append(number)
        out.fill_(number + 1 if served else -1)

    def replay(self, number: int) -> None:
        assert self.bench.registry.replay(self.members[number])


def test_graphs_of_one_group_that_wait_for_each_other_do_not_deadlock() -> None:
    """The first waits for the second, which runs on another stream: it gets a second executable."""
    bench = Bench()
    waiting = Waiting(bench)
    assert bench.execs == 1
    threads = Threads()
    for turn in range(3):
        for event in (*waiting.begun, *waiting.go):
            event.clear()
        waiting.go[1].set()
        threads.start(lambda: waiting.replay(0), Stream())
        assert waiting.begun[0].wait(LONG)

        def second() -> None:
            waiting.replay(1)
            waiting.go[0].set()

        threads.start(second, Stream())
        threads.join()
        assert [out.item() for out in waiting.outs] == [1, 2]
        assert bench.registry.counters.splits == 1, turn  # the second executable stays for the next time
        assert bench.execs == 2
    for member in waiting.members:
        bench.registry.release(member)
    assert bench.execs == 0


def test_serialised_graphs_run_one_after_the_other_on_one_executable() -> None:
    """So the one that waits for the other waits in vain; nothing but its own patience ends it."""
    bench = Bench(concurrent="serialise")
    waiting = Waiting(bench, patience=SHORT)
    threads = Threads()
    waiting.go[1].set()
    threads.start(lambda: waiting.replay(0), Stream())
    assert waiting.begun[0].wait(LONG)
    threads.start(lambda: waiting.replay(1), Stream())
    threads.join()
    assert [out.item() for out in waiting.outs] == [-1, 2]
    assert waiting.seen == [0, 1]
    assert waiting.most_running == 1
    assert (bench.execs, bench.registry.counters.splits) == (1, 0)


def test_a_graph_never_overlaps_itself() -> None:
    """On torch's single executable it does not either: it works in its own buffers."""
    bench = Bench()
    waiting = Waiting(bench)
    threads = Threads()
    for _ in range(2):
        threads.start(lambda: waiting.replay(0), Stream())
    assert waiting.begun[0].wait(LONG)
    waiting.go[0].set()
    threads.join()
    assert waiting.most_running == 1
    assert waiting.seen == [0, 0]
    assert bench.execs == 1


def test_a_graph_waits_for_its_own_launch_on_an_executable_that_now_serves_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """It moves to another executable, and is told to run behind the first one's last launch; on its own stream it need not."""
    bench = Bench()
    waiting = Waiting(bench, count=3)
    for event in waiting.go:
        event.set()
    first, second, side = Stream(), Stream(), Stream()
    ordered: list[Any] = []
    monkeypatch.setattr(bench.driver, "order_after", ordered.append)
    with on_stream(first):
        waiting.replay(0)
        waiting.replay(1)
    origin = waiting.members[0].last
    assert origin is not None
    monkeypatch.setattr(bench.driver, "runs_elsewhere", lambda handle, stream: handle is origin.handle and stream is not first)
    with on_stream(second):
        waiting.replay(0)
    assert ordered == [origin.handle]
    with on_stream(side):
        waiting.replay(2)  # it never ran on the first executable
    assert len(ordered) == 1
    with on_stream(second):
        waiting.replay(2)
        other = waiting.members[0].last
        assert other is not None
        assert other is waiting.members[2].last is not origin
        monkeypatch.setattr(bench.driver, "runs_elsewhere", lambda handle, stream: handle is other.handle)
        waiting.replay(0)  # back on the first executable: its own stream orders it already
    assert waiting.members[0].last is not other
    assert [handle for handle in ordered if handle is other.handle] == []


def test_two_threads_on_one_stream_need_no_second_executable() -> None:
    bench = Bench()
    waiting = Waiting(bench)
    threads = Threads()
    threads.start(lambda: waiting.replay(0), default_stream())
    assert waiting.begun[0].wait(LONG)
    threads.start(lambda: waiting.replay(1), default_stream())
    assert not waiting.begun[1].wait(SHORT)
    for event in waiting.go:
        event.set()
    threads.join()
    assert waiting.most_running == 1
    assert bench.execs == 1


@pytest.mark.parametrize("stream", [Stream(), default_stream()], ids=["a new one", "where it was made"])
def test_an_executable_that_another_thread_is_about_to_launch_is_not_taken(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not run yet, but will: a replay on another stream neither waits for it nor comes in between."""
    bench = Bench()
    first, second = bench.fold(1), bench.fold(2)
    update, updating, go_on = bench.driver.update, threading.Event(), threading.Event()

    def slow(executable: Any, raw: Any) -> Any:
        updating.set()
        assert go_on.wait(LONG)
        return update(executable, raw)

    monkeypatch.setattr(bench.driver, "update", slow)
    threads = Threads()
    threads.start(lambda: bench.check(first), Stream())
    assert updating.wait(LONG)
    with on_stream(stream):
        bench.check(second)
    assert not go_on.is_set()
    go_on.set()
    threads.join()
    assert (bench.execs, bench.registry.counters.splits) == (2, 1)


def test_two_threads_with_one_graph_come_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the first is about to launch it, and nothing shows yet that it runs."""
    bench = Bench()
    first, _ = bench.fold(1), bench.fold(2)
    update, updating, go_on = bench.driver.update, threading.Event(), threading.Event()

    def slow(executable: Any, raw: Any) -> Any:
        updating.set()
        assert go_on.wait(LONG)
        return update(executable, raw)

    monkeypatch.setattr(bench.driver, "update", slow)
    threads = Threads()
    threads.start(lambda: bench.registry.replay(first), Stream())
    assert updating.wait(LONG)
    launches = bench.device.launch_count
    threads.start(lambda: bench.registry.replay(first), Stream())
    go_on.wait(SHORT)  # its chance to overlap
    assert bench.device.launch_count == launches
    go_on.set()
    threads.join()
    assert bench.device.launch_count == launches + 2
    assert bench.execs == 1


def test_without_room_for_a_second_executable_graphs_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Never fatal: it degrades to one after the other, and the reason is counted."""
    bench = Bench()
    waiting = Waiting(bench)
    threads = Threads()

    def failing(raw: Any) -> Any:
        raise DriverError("out of memory", remedy="none")

    monkeypatch.setattr(bench.driver, "instantiate", failing)
    threads.start(lambda: waiting.replay(0), Stream())
    assert waiting.begun[0].wait(LONG)
    threads.start(lambda: waiting.replay(1), Stream())
    assert not waiting.begun[1].wait(SHORT)
    for event in waiting.go:
        event.set()
    threads.join()
    assert [out.item() for out in waiting.outs] == [1, 2]
    assert bench.execs == 1
    assert bench.registry.alone.counts == {"no second executable, so graphs wait: out of memory": 1}


def test_an_executable_that_still_runs_on_the_device_is_not_taken_on_another_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a launch returns before it has run; on the same stream it is taken."""
    bench = Bench()
    first, second = bench.fold(1), bench.fold(2)
    here, there = Stream(), Stream()
    with on_stream(here):
        bench.check(first)
    assert first.group is not None
    handle = first.group.executables[0].handle
    monkeypatch.setattr(bench.driver, "runs_elsewhere", lambda executable, stream: executable is handle and stream is not here)
    with on_stream(here):
        bench.check(second, first)
    assert bench.execs == 1
    with on_stream(there):
        bench.check(second)
    assert bench.execs == 2
    assert [one.reflects for one in first.group.executables] == [first.id, second.id]


def test_a_capture_on_another_stream_does_not_hide_that_an_executable_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph that joins there updates it, and a replay there gets another one all the same."""
    bench = Bench()
    first = bench.fold(1)
    here, there = Stream(), Stream()
    with on_stream(here):
        bench.check(first)
    handle = first.group.executables[0].handle  # type: ignore[union-attr]
    monkeypatch.setattr(bench.driver, "runs_elsewhere", lambda executable, stream: executable is handle and stream is not here)
    with on_stream(there):
        second = bench.fold(2)
        assert bench.execs == 1
        bench.check(second)
    assert bench.execs == 2


def test_of_several_executables_the_one_that_reflects_the_graph_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """D7: two graphs in turn on two streams pay no update once there are two executables."""
    bench = Bench()
    first, second = bench.fold(1), bench.fold(2)
    here, there = Stream(), Stream()
    with on_stream(here):
        bench.check(first)
    handle = first.group.executables[0].handle  # type: ignore[union-attr]
    monkeypatch.setattr(bench.driver, "runs_elsewhere", lambda executable, stream: executable is handle and stream is not here)
    with on_stream(there):
        bench.check(second)
    monkeypatch.undo()
    before = bench.registry.counters.updates
    for _ in range(3):
        bench.check(first, second)
    assert bench.registry.counters.updates == before


@pytest.mark.parametrize("intruder", ["replay", "fold"])
def test_nothing_comes_between_an_update_and_its_launch(intruder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that replays a sibling, or folds another graph, re-points the executable; it has to wait."""
    bench = Bench()
    first, second = bench.fold(1), bench.fold(2)
    launch, done = bench.driver.launch, threading.Event()
    threads = Threads()
    started: list[int] = []

    def intrude() -> None:
        if intruder == "replay":
            bench.check(second)
        else:
            bench.fold(3)
        done.set()

    def late(executable: Any, prologue: Any) -> None:
        if not started:
            started.append(1)
            threads.start(intrude)
            done.wait(SHORT)  # its chance to get in between
        launch(executable, prologue)

    monkeypatch.setattr(bench.driver, "launch", late)
    bench.check(first)
    threads.join()
    assert done.is_set()
    bench.check(second, first)


@pytest.mark.parametrize("streams", [1, 2])
def test_threads_on_one_group_each_get_their_own_graph(streams: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Update and launch are one step; a switch between them would launch the sibling's graph."""
    bench = Bench()
    members = [bench.fold(value) for value in (1, 2, 3, 4)]
    update, switch = bench.driver.update, threading.Event()

    def slow(executable: Any, raw: Any) -> Any:
        result = update(executable, raw)
        switch.wait(0.001)  # gives the other thread its chance
        return result

    monkeypatch.setattr(bench.driver, "update", slow)
    threads = Threads()

    def work(*some: Member) -> None:
        for _ in range(20):
            bench.check(*some)

    for index in range(2):
        threads.start(lambda index=index: work(*members[index::2]), Stream() if streams == 2 else default_stream())
    threads.join()
    assert bench.execs <= streams


def test_a_graph_that_joins_waits_for_a_launch_and_needs_no_second_executable() -> None:
    """It is updated into the executable and not launched, so nothing of it could run side by side."""
    bench = Bench()
    waiting = Waiting(bench, count=1)
    threads, joined = Threads(), threading.Event()
    threads.start(lambda: waiting.replay(0), Stream())
    assert waiting.begun[0].wait(LONG)
    threads.start(lambda: (bench.fold(5), joined.set()))
    assert not joined.wait(SHORT)
    waiting.go[0].set()
    threads.join()
    assert (bench.execs, bench.registry.counters.splits) == (1, 0)


def test_a_launch_that_fails_leaves_the_executable_to_other_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    first, second = bench.fold(1), bench.fold(2)

    def failing(executable: Any, prologue: Any) -> None:
        raise DriverError("the device is unwell", remedy="none")

    monkeypatch.setattr(bench.driver, "launch", failing)
    with on_stream(Stream()), pytest.raises(DriverError, match="unwell"):
        bench.registry.replay(first)
    monkeypatch.undo()
    with on_stream(Stream()):
        bench.check(second, first)
    assert (bench.execs, bench.registry.counters.splits) == (1, 0)


def test_a_graph_that_still_runs_is_launched_behind_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a launch returns before it has run: on another stream as well it needs no second executable."""
    bench = Bench()
    member, here = bench.fold(1), Stream()
    with on_stream(here):
        bench.check(member)
    monkeypatch.setattr(bench.driver, "runs_elsewhere", lambda executable, stream: stream is not here)
    with on_stream(Stream()):
        bench.check(member)
    assert (bench.execs, bench.registry.counters.splits) == (1, 0)
