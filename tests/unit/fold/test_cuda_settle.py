"""The kernel between an update and the next launch, against a driver library that is written here."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from graphdedup import DriverError
from graphdedup.driver import cuda_settle
from graphdedup.driver.cuda_settle import Settler

EXEC, OTHER, STREAM, SIDE = 1000, 2000, 7, 8


class Recorder:
    """Notes what is called, in order."""

    def __init__(self, result: int = 0) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.events = iter(range(51, 60))
        self.bindings = SimpleNamespace(
            CUresult=lambda code: SimpleNamespace(name=f"ERROR_{code}"),
            CUevent=int,
            cuModuleLoadData=lambda image: (0, 31),
            cuModuleGetFunction=lambda module, name: (0, 41),
            cuFuncLoad=lambda function: (0,),
            cuEventCreate=lambda flags: (0, next(self.events)),
            cuEventDestroy=lambda event: self.calls.append(("destroy event", event)),
        )
        self.cuLaunchKernel = lambda function, *sizes: self._note("kernel", function.value, sizes[7], result=result)
        self.cuEventRecord = lambda event, stream: self._note("record", event, stream)
        self.cuStreamWaitEvent = lambda stream, event, flags: self._note("wait", stream, event)
        self.cuEventSynchronize = lambda event: self._note("synchronize", event)
        self.query_result = 0
        self.cuEventQuery = lambda event: self._note("query", event, result=self.query_result)

    def _note(self, *call: Any, result: int = 0) -> int:
        self.calls.append(call)
        return result


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    made = Recorder()
    monkeypatch.setattr(cuda_settle, "libcuda", lambda: made)
    return made


def launch(settler: Settler, executable: int, stream: int) -> None:
    settler.before_launch(executable, stream)
    settler.note_launch(executable, stream)


def test_the_kernel_runs_behind_the_last_launch_and_once_for_each_update(library: Recorder) -> None:
    """D1: on whatever stream the next launch is, after the one before has ended."""
    settler = Settler(library.bindings)
    launch(settler, EXEC, STREAM)
    settler.note_update(EXEC)
    settler.note_update(EXEC)
    launch(settler, EXEC, SIDE)
    launch(settler, EXEC, SIDE)
    assert library.calls == [
        ("record", 51, STREAM),
        ("wait", SIDE, 51),
        ("kernel", 41, SIDE),
        ("record", 51, SIDE),
        ("record", 51, SIDE),
    ]


def test_an_executable_that_was_never_launched_needs_no_kernel(library: Recorder) -> None:
    settler = Settler(library.bindings)
    settler.note_update(EXEC)
    launch(settler, EXEC, STREAM)
    assert library.calls == [("record", 51, STREAM)]


def test_executables_know_nothing_of_each_other(library: Recorder) -> None:
    """D8: and one that takes the handle of a destroyed one inherits nothing."""
    settler = Settler(library.bindings)
    launch(settler, EXEC, STREAM)
    launch(settler, OTHER, STREAM)
    settler.note_update(EXEC)
    launch(settler, OTHER, STREAM)
    settler.forget(EXEC)
    settler.forget(EXEC)
    settler.note_update(EXEC)
    launch(settler, EXEC, STREAM)
    assert library.calls[2:] == [("record", 52, STREAM), ("destroy event", 51), ("record", 53, STREAM)]


def test_a_kernel_that_cannot_be_launched_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """D1: the launch does not happen without it."""
    library = Recorder(result=2)
    monkeypatch.setattr(cuda_settle, "libcuda", lambda: library)
    settler = Settler(library.bindings)
    settler.note_launch(EXEC, STREAM)
    settler.note_update(EXEC)
    for _ in range(2):
        with pytest.raises(DriverError, match="cuLaunchKernel failed: ERROR_2"):
            settler.before_launch(EXEC, STREAM)
    assert [call[0] for call in library.calls] == ["record", "wait", "kernel", "wait", "kernel"]


def test_a_launch_runs_elsewhere_until_its_event_has_come(library: Recorder) -> None:
    """D10: on the stream itself, and before any launch, nothing runs elsewhere, and nothing is asked."""
    settler = Settler(library.bindings)
    assert not settler.launched_elsewhere(EXEC, STREAM)
    assert not settler.launched_elsewhere(EXEC, None)
    assert not settler.running(EXEC)
    launch(settler, EXEC, STREAM)
    assert not settler.launched_elsewhere(EXEC, STREAM)
    assert settler.launched_elsewhere(EXEC, SIDE)
    assert settler.launched_elsewhere(EXEC, None)
    library.query_result = 600
    assert settler.running(EXEC)
    library.query_result = 0
    assert not settler.running(EXEC)
    library.query_result = 700
    with pytest.raises(DriverError, match="cuEventQuery failed: ERROR_700"):
        settler.running(EXEC)
    assert [call[0] for call in library.calls] == ["record", "query", "query", "query"]


def test_others_wait_for_the_last_launch_on_the_device_or_on_the_host(library: Recorder) -> None:
    settler = Settler(library.bindings)
    settler.order_after(EXEC, SIDE)
    settler.finish(EXEC)
    assert library.calls == []
    launch(settler, EXEC, STREAM)
    settler.order_after(EXEC, SIDE)
    settler.finish(EXEC)
    assert library.calls[1:] == [("wait", SIDE, 51), ("synchronize", 51)]
    settler.forget(EXEC)
    assert not settler.launched_elsewhere(EXEC, SIDE)
