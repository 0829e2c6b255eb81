"""The trace: JSON that trace viewers open, one launch for each replay, an update exactly where the counters say so."""

from __future__ import annotations

import json
import logging
import os
import random
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

import seam
from graphdedup import DedupBackend, GraphDedupError, SettingsError, interpose, settings, trace
from graphdedup.events import watching
from seam.simulated import SimulatedBackend, SimulatedDevice
from tests.unit.fold.bench import Bench
from tests.unit.interpose.stand_in import backend_maker, torch_class


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Arguments(_Strict):
    graph: str
    exec: int | None
    purpose: Literal["fold", "replay", "own", "refresh", "verify"] | None = None
    outcome: str | None = None
    error: str | None = None


class Complete(_Strict):
    """A complete event of the trace event format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU"""

    name: Literal["capture", "walk", "fold", "instantiate", "update", "update refused", "launch"]
    cat: Literal["graphdedup"]
    ph: Literal["X"]
    ts: float = Field(ge=0)
    dur: float = Field(ge=0)
    pid: int
    tid: int
    args: Arguments


class Name(_Strict):
    name: str


class Metadata(_Strict):
    name: Literal["process_name", "thread_name"]
    ph: Literal["M"]
    pid: int
    tid: int
    args: Name


class OtherData(_Strict):
    recorded_by: Literal["graphdedup"]
    began_unix_ns: int
    max_events: int
    dropped_events: int


class Trace(_Strict):
    traceEvents: list[Complete | Metadata]
    displayTimeUnit: Literal["ms", "ns"]
    otherData: OtherData

    @property
    def spans(self) -> list[Complete]:
        return [event for event in self.traceEvents if isinstance(event, Complete)]

    def named(self, name: str, purpose: str | None = None) -> list[Complete]:
        return [one for one in self.spans if one.name == name and (purpose is None or one.args.purpose == purpose)]


def read(text: str) -> Trace:
    return TypeAdapter(Trace).validate_json(text)


def ladder(backend: DedupBackend) -> list[tuple[seam.BreakableGraph, torch.Tensor, torch.Tensor]]:
    """Graphs of two lengths: two groups."""
    made = []
    pool = backend.new_pool()
    for size in (8, 4, 2, 1):
        x = torch.zeros(size)
        graph = seam.BreakableGraph(backend, label=f"bs={size}")
        with seam.capture(graph, pool=pool):
            y = x + 1 if size > 2 else (x + 1) * 2
        made.append((graph, x, y))
    return made


def backend() -> DedupBackend:
    return DedupBackend(SimulatedBackend(SimulatedDevice(8 << 20)), enabled=True)


def test_each_replay_is_a_launch_and_an_update_exactly_when_the_counter_grows() -> None:
    folding = backend()
    graphs = ladder(folding)
    order = random.Random(1)
    with trace.record() as recorder:
        for _ in range(40):
            before = folding.stats()
            seen = read(recorder.to_json())
            graph, x, y = order.choice(graphs)
            x.fill_(3)
            graph.replay()
            assert y.tolist() == [4 if len(y) > 2 else 8] * len(y)
            after, now = folding.stats(), read(recorder.to_json())
            assert len(now.named("launch")) - len(seen.named("launch")) == 1 == after.launches - before.launches
            grown = after.replay_updates - before.replay_updates
            assert len(now.named("update", "replay")) - len(seen.named("update", "replay")) == grown
    assert 0 < len(now.named("update")) < 40, "some replays needed one and some did not"
    assert len({launch.args.exec for launch in now.named("launch")}) == 2, "two groups, two executables"
    for graph, *_ in graphs:
        graph.close()


def test_the_file_follows_the_format_and_names_every_graph(tmp_path: Path) -> None:
    file = tmp_path / "fold.json"
    with trace.record(file) as recorder:
        folding = backend()
        graphs = ladder(folding)
        for graph, *_ in graphs:
            graph.replay()
    assert watching.observers == ()
    told = read(file.read_text())
    assert recorder.event_count == len(told.spans)
    assert {span.args.graph for span in told.spans} == {f"bs={size} segment 0" for size in (8, 4, 2, 1)}
    counts = {name: len(told.named(name)) for name in ("capture", "walk", "fold", "instantiate", "launch")}
    assert counts == {"capture": 4, "walk": 4, "fold": 4, "instantiate": 2, "launch": 4}
    assert {span.pid for span in told.spans} == {os.getpid()}
    assert {span.tid for span in told.spans} == {threading.get_native_id()}
    names = [event for event in told.traceEvents if isinstance(event, Metadata)]
    assert [(event.name, event.args.name) for event in names] == [
        ("process_name", "graphdedup"),
        ("thread_name", threading.current_thread().name),
    ]
    for graph, *_ in graphs:
        graph.close()


def test_spans_of_one_thread_nest_or_follow_each_other() -> None:
    """A viewer draws spans of one thread in each other: two that overlap otherwise are drawn wrong."""
    with trace.record() as recorder:
        for graph, *_ in ladder(backend()):
            graph.replay()
            graph.close()
    spans = sorted(read(recorder.to_json()).spans, key=lambda span: (span.ts, -span.dur))
    open_until: list[float] = []
    for span in spans:
        while open_until and open_until[-1] <= span.ts:
            open_until.pop()
        end = span.ts + span.dur
        assert not open_until or end <= open_until[-1] + 0.001, f"{span.name} of {span.args.graph} overlaps"
        open_until.append(end)


def test_times_are_microseconds_of_one_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([1_000_000, 1_002_500, 1_012_500])
    monkeypatch.setattr("time.perf_counter_ns", lambda: next(clock))
    recorder = trace.Recorder()
    from graphdedup import events
    from seam.backend import SegmentInfo

    events.add(recorder)
    with events.span(events.Kind.WALK, SegmentInfo()):
        pass
    events.remove(recorder)
    (span,) = read(recorder.to_json()).spans
    assert (span.ts, span.dur) == (2.5, 10.0)


def test_the_first_events_are_kept_and_the_rest_is_counted(tmp_path: Path) -> None:
    bench = Bench()
    member = bench.fold(1)
    with trace.record(tmp_path / "t.json", max_events=5) as recorder:
        bench.fold(2)  # walk, update, fold
        for _ in range(10):
            bench.registry.replay(member)  # one update, ten launches
    told = read((tmp_path / "t.json").read_text())
    assert [span.name for span in told.spans] == ["walk", "update", "fold", "update", "launch"]
    assert (told.otherData.max_events, told.otherData.dropped_events, recorder.dropped_count) == (5, 9, 9)


@pytest.mark.parametrize("most", [0, -1])
def test_a_bound_that_keeps_nothing_is_refused(most: int) -> None:
    with pytest.raises(SettingsError, match=f"max_events={most} keeps nothing"), trace.record(max_events=most):
        raise AssertionError("not reached")


def test_threads_record_side_by_side_and_nothing_is_lost() -> None:
    """Each thread replays a graph of its own device; every launch is there, under the thread that made it."""
    benches = [Bench() for _ in range(4)]
    members = [bench.fold(1) for bench in benches]
    ready = threading.Barrier(len(benches))
    ids: list[int] = []

    def work(bench: Bench, member: Any) -> None:
        ready.wait()
        ids.append(threading.get_native_id())
        for _ in range(200):
            bench.registry.replay(member)

    with trace.record(max_events=700) as recorder:
        threads = [
            threading.Thread(target=work, args=pair, name=f"replays {number}")
            for number, pair in enumerate(zip(benches, members, strict=True))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    told = read(recorder.to_json())
    assert (recorder.event_count, recorder.dropped_count) == (700, 100)
    assert {span.tid for span in told.spans} <= set(ids)
    names = {event.args.name for event in told.traceEvents if isinstance(event, Metadata) and event.name == "thread_name"}
    assert names <= {f"replays {number}" for number in range(4)}
    assert names


def test_an_update_that_the_driver_refuses_has_another_name() -> None:
    from seam.simulated import DriverProfile

    bench = Bench(DriverProfile(refuse_pairs=lambda current, new: True))
    with trace.record() as recorder:
        bench.fold(1)
        bench.fold(2)
    told = read(recorder.to_json())
    assert told.named("update") == []
    assert [span.args.outcome for span in told.named("update refused")] == ["PARAMETERS_CHANGED"]


def test_recordings_nest_and_each_has_what_was_done_inside_of_it() -> None:
    bench = Bench()
    member = bench.fold(1)
    with trace.record() as outer:
        bench.registry.replay(member)
        with trace.record() as inner:
            bench.registry.replay(member)
    assert (outer.event_count, inner.event_count) == (2, 1)


def test_labels_come_back_as_they_were(tmp_path: Path) -> None:
    """Whatever a runner calls its graphs, the file is JSON in plain UTF-8."""
    hostile = 'bs=8 "</script>\n\\ ünïcode \ud800'
    folding = backend()
    graph = seam.BreakableGraph(folding, label=hostile)
    x = torch.zeros(2)
    with trace.record(tmp_path / "t.json"), seam.capture(graph):
        x + 1
    loaded = json.loads((tmp_path / "t.json").read_text(encoding="utf-8"))
    assert {event["args"]["graph"] for event in loaded["traceEvents"] if event["ph"] == "X"} == {f"{hostile} segment 0"}
    graph.close()


def test_an_error_inside_is_raised_and_the_file_is_there_all_the_same(tmp_path: Path) -> None:
    file = tmp_path / "t.json"
    bench = Bench()
    with pytest.raises(KeyError, match="mine"), trace.record(file):
        bench.fold(1)
        raise KeyError("mine")
    assert len(read(file.read_text()).spans) == 3
    assert watching.observers == ()


def test_a_folder_that_is_not_there_is_said_before_the_work(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="there is no folder"), trace.record(tmp_path / "none" / "t.json"):
        raise AssertionError("not reached")


def test_a_file_that_cannot_be_written_is_one_clear_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(GraphDedupError, match=r"trace .*Remedy: name a file"), trace.record(tmp_path):
        pass
    with caplog.at_level(logging.WARNING, "graphdedup"), pytest.raises(KeyError, match="mine"), trace.record(tmp_path):
        raise KeyError("mine")
    assert "no trace was written to" in caplog.text
    assert watching.observers == ()


def test_graphs_under_interposition_are_traced_too(monkeypatch: pytest.MonkeyPatch) -> None:
    device = SimulatedDevice()
    plain = torch_class(SimulatedBackend(device), "2.11")
    for module in (torch.cuda, torch.cuda.graphs):
        monkeypatch.setattr(module, "CUDAGraph", plain)
    with trace.record() as recorder, interpose(make_backend=backend_maker(device)):
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin()
        torch.zeros(2) + 1
        graph.capture_end()
        graph.replay()
    told = read(recorder.to_json())
    assert [span.name for span in told.spans] == ["capture", "walk", "instantiate", "fold", "launch"]
    assert all(span.args.graph.startswith("graph 1 (") for span in told.spans)
    graph.reset()


PROGRAM = """
import sys, torch, seam, graphdedup
from seam.simulated import SimulatedBackend
backends = [graphdedup.DedupBackend(SimulatedBackend()) for _ in range(2)]
graph = seam.BreakableGraph(backends[0], label="main")
x = torch.zeros(2)
with seam.capture(graph):
    y = x + 1
graph.replay()
graph.close()
if sys.argv[1:]:
    raise SystemExit(int(sys.argv[1]))
"""


def run(name: str, *arguments: str, code: str = PROGRAM) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, settings.TRACE: name}
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=120, env=environment, check=False
    )


@pytest.mark.parametrize("code", ["0", "3"])
def test_the_switch_writes_at_exit_whatever_the_exit_code_is(tmp_path: Path, code: str) -> None:
    file = tmp_path / "t.json"
    done = run(str(file), code)
    assert (done.returncode, done.stderr) == (int(code), "")
    assert [span.name for span in read(file.read_text()).spans] == ["capture", "walk", "instantiate", "fold", "launch"]
    assert list(tmp_path.iterdir()) == [file]


def test_processes_can_have_a_file_each(tmp_path: Path) -> None:
    """``%p`` is the process id; a worker of multiprocessing has it in the name without being told."""
    done = run(str(tmp_path / "t-%p.json"))
    assert done.returncode == 0, done.stderr
    (file,) = tmp_path.glob("t-*.json")
    assert {span.pid for span in read(file.read_text()).spans} == {int(file.stem.removeprefix("t-"))}

    program = tmp_path / "program.py"
    program.write_text(
        "import multiprocessing\n"
        "def work():\n" + "".join(f"    {line}\n" for line in PROGRAM.splitlines()) + "if __name__ == '__main__':\n"
        "    worker = multiprocessing.get_context('spawn').Process(target=work)\n"
        "    worker.start(); worker.join(); work()\n"
    )
    done = subprocess.run(
        [sys.executable, str(program)],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, settings.TRACE: str(tmp_path / "w.json"), "PYTHONPATH": os.pathsep.join(sys.path)},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    marked = list(tmp_path.glob("w.*.json"))
    assert len(marked) == 1
    for file in (tmp_path / "w.json", *marked):
        assert len(read(file.read_text()).spans) == 5


@pytest.mark.parametrize(("text", "said"), [("", "names no file"), ("/nowhere/at/all/t.json", "there is no folder")])
def test_a_switch_that_names_no_file_is_refused(text: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(settings.TRACE, text)
    with pytest.raises(SettingsError, match=f"GRAPHDEDUP_TRACE.*{said}"):
        backend()
