"""In which order the CUDA driver does what it does to graphs and executables, against bindings that are written here."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from graphdedup import DriverError, GraphDedupError
from graphdedup.driver import cuda
from graphdedup.driver.cuda import CudaDriver

TORCHS, CLONE, EXEC, STREAM = 5, 6, 7, 8


class Bench:
    """A driver without its constructor, and a log of what it calls."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, clone: int = 0, clear: str = "") -> None:
        self.log: list[tuple[Any, ...]] = []

        def clear_nodes(graph: int) -> None:
            self.log.append(("clear", graph))
            if clear:
                raise DriverError(clear, remedy="none")

        self.driver: CudaDriver = object.__new__(CudaDriver)
        self.driver._driver = SimpleNamespace(
            CUgraph=int,
            CUgraphExec=int,
            CUstreamCaptureMode=SimpleNamespace(CU_STREAM_CAPTURE_MODE_RELAXED=2),
            cuThreadExchangeStreamCaptureMode=lambda mode: (self.log.append(("mode", mode)), (0, 1))[1],
            cuGraphClone=lambda graph: (self.log.append(("clone", graph)), (clone, CLONE))[1],
            cuGraphDestroy=lambda graph: (self.log.append(("destroy graph", graph)), (0,))[1],
            cuGraphExecDestroy=lambda executable: (self.log.append(("destroy exec", executable)), (0,))[1],
        )
        self.driver._launches = SimpleNamespace(  # type: ignore[assignment]
            wait=lambda: self.log.append(("wait",)), current=lambda: STREAM, note_current=lambda: STREAM
        )
        self.running = True
        self.driver._settler = SimpleNamespace(  # type: ignore[assignment]
            finish=lambda executable: self.log.append(("finish", executable)),
            forget=lambda executable: self.log.append(("forget", executable)),
            order_after=lambda executable, stream: self.log.append(("order after", executable, stream)),
            launched_elsewhere=lambda executable, stream: stream != STREAM,
            running=lambda executable: (self.log.append(("query", executable)), self.running)[1],
            before_launch=lambda executable, stream: self.log.append(("settle", executable, stream)),
            note_launch=lambda executable, stream: self.log.append(("note", executable, stream)),
        )
        self.driver._launch = lambda executable, stream: (self.log.append(("launch", executable, stream)), 0)[1]
        self.driver._device = torch.device("cuda", 0)
        monkeypatch.setattr(cuda, "raw_calls", lambda: SimpleNamespace(clear=clear_nodes))
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
        self.handle = SimpleNamespace(graph=SimpleNamespace(raw_cuda_graph=lambda: TORCHS, replay=self.replay))

    def replay(self) -> None:
        self.log.append(("torch's replay",))


def test_a_graph_is_cloned_before_torchs_own_is_emptied(monkeypatch: pytest.MonkeyPatch) -> None:
    """D12: torch's replay then does nothing but advance random numbers."""
    bench = Bench(monkeypatch)
    raw, prologue = bench.driver.detach(bench.handle)
    assert raw == CLONE
    assert bench.log == [("clone", TORCHS), ("clear", TORCHS)]
    bench.driver.launch(EXEC, prologue)
    assert bench.log[2:] == [("torch's replay",), ("settle", EXEC, STREAM), ("launch", EXEC, STREAM), ("note", EXEC, STREAM)]
    bench.log.clear()
    bench.driver.advance(prologue)
    assert bench.log == [("torch's replay",)]


def test_a_graph_that_cannot_be_cloned_is_left_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch, clone=2)
    with pytest.raises(DriverError, match="cuGraphClone failed"):
        bench.driver.detach(bench.handle)
    assert bench.log == [("clone", TORCHS)]


def test_a_graph_that_is_half_emptied_is_lost_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is no refusal that the fold could go on after: torch's graph can no longer be launched."""
    bench = Bench(monkeypatch, clear="cuGraphDestroyNode failed: UNKNOWN")
    with pytest.raises(GraphDedupError, match=r"cuGraphDestroyNode failed.*D12") as caught:
        bench.driver.detach(bench.handle)
    assert not isinstance(caught.value, DriverError)
    assert ("destroy graph", CLONE) in bench.log


def test_nothing_is_destroyed_under_a_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    """D15: and while anything is captured, by calls that no capture minds."""
    bench = Bench(monkeypatch)
    bench.driver.destroy(EXEC)
    assert bench.log == [("mode", 2), ("finish", EXEC), ("destroy exec", EXEC), ("forget", EXEC), ("mode", 1)]
    bench.log.clear()
    bench.driver.discard(CLONE)
    assert bench.log == [("wait",), ("mode", 2), ("destroy graph", CLONE), ("mode", 1)]


def test_what_runs_on_the_current_stream_runs_nowhere_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """D10: the device is asked only where the last launch was on another stream, and without harm to a capture."""
    bench = Bench(monkeypatch)
    assert bench.driver.stream() == STREAM
    assert not bench.driver.runs_elsewhere(EXEC, STREAM)
    assert bench.log == []
    assert bench.driver.runs_elsewhere(EXEC, 99)
    assert bench.log == [("mode", 2), ("query", EXEC), ("mode", 1)]
    bench.running = False
    assert not bench.driver.runs_elsewhere(EXEC, None)
    bench.log.clear()
    bench.driver.order_after(EXEC)
    assert bench.log == [("order after", EXEC, STREAM)]


def test_a_launch_is_noted_where_releases_wait_and_one_that_fails_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """D13, D15: what failed has not been launched, so nothing waits for it."""
    bench = Bench(monkeypatch)
    bench.driver._launches.note_current = lambda: (bench.log.append(("note stream",)), STREAM)[1]  # type: ignore[method-assign]
    bench.driver._driver.CUresult = lambda code: SimpleNamespace(name=f"ERROR_{code}")
    bench.driver.launch(EXEC)
    assert bench.log == [("note stream",), ("settle", EXEC, STREAM), ("launch", EXEC, STREAM), ("note", EXEC, STREAM)]
    bench.log.clear()
    bench.driver._launch = lambda executable, stream: 700
    with pytest.raises(DriverError, match="cuGraphLaunch failed: ERROR_700"):
        bench.driver.launch(EXEC)
    assert bench.log == [("note stream",), ("settle", EXEC, STREAM)]
