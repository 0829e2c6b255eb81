"""The last launch of each executable, and a kernel of nothing, run between an update and the launch that follows it.

Measured on an H200 with driver 580.159 (``graphdedup probe``, reports/): when an executable was launched, is updated, and is
launched again with no kernel outside of graphs in between, the second launch still has the cluster dimensions of the first,
though the update was reported as a success. One kernel that runs after the first launch has *ended* makes the update whole.
"""

from __future__ import annotations

import ctypes
from typing import Any

from graphdedup.driver.cuda_calls import call, libcuda

__all__ = ["Settler"]

# For the oldest target that current drivers compile; the driver itself turns it into code, no toolkit is needed.
_PTX = b""".version 7.0
.target sm_52
.address_size 64
.visible .entry graphdedup_settle() { ret; }
\0"""
_WITHOUT_TIMING = 2
_NOT_READY = 600


class Settler:
    """Knows the last launch of each executable, and runs the kernel behind it.

    Raises:
        DriverError: the driver does not load the kernel.
    """

    def __init__(self, driver: Any) -> None:
        self._driver = driver
        module = call(driver.cuModuleLoadData(_PTX), "cuModuleLoadData")
        function = call(driver.cuModuleGetFunction(module, b"graphdedup_settle"), "cuModuleGetFunction")
        call(driver.cuFuncLoad(function), "cuFuncLoad")  # never at a first launch, which could fall into a capture
        self._function = ctypes.c_void_p(int(function))
        lib = libcuda()
        self._run = lib.cuLaunchKernel
        self._run.argtypes = (ctypes.c_void_p, *(ctypes.c_uint,) * 7, *(ctypes.c_void_p,) * 3)
        self._record = lib.cuEventRecord
        self._wait = lib.cuStreamWaitEvent
        self._record.argtypes = (ctypes.c_void_p, ctypes.c_void_p)
        self._wait.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint)
        self._query = lib.cuEventQuery
        self._synchronize = lib.cuEventSynchronize
        self._query.argtypes = self._synchronize.argtypes = (ctypes.c_void_p,)
        self._events: dict[int, int] = {}
        self._streams: dict[int, int] = {}
        self._updated: set[int] = set()

    def note_update(self, executable: int) -> None:
        """The next launch of an executable needs the kernel before it."""
        if executable in self._events:  # one that was never launched has nothing to keep
            self._updated.add(executable)

    def before_launch(self, executable: int, stream: int) -> None:
        """Run the kernel on ``stream``, behind the executable's last launch, if it was updated since."""
        if executable not in self._updated:
            return
        self._check(self._wait(stream, self._events[executable], 0), "cuStreamWaitEvent")
        self._check(self._run(self._function, 1, 1, 1, 1, 1, 1, 0, stream, None, None), "cuLaunchKernel")
        self._updated.discard(executable)

    def note_launch(self, executable: int, stream: int) -> None:
        """Remember where the executable's last launch ends."""
        event = self._events.get(executable)
        if event is None:
            event = self._events[executable] = int(call(self._driver.cuEventCreate(_WITHOUT_TIMING), "cuEventCreate"))
        self._check(self._record(event, stream), "cuEventRecord")
        self._streams[executable] = stream

    def launched_elsewhere(self, executable: int, stream: int | None) -> bool:
        """Whether the last launch, if there was one, was on another stream than this; None is none."""
        return self._streams.get(executable, stream) != stream

    def running(self, executable: int) -> bool:
        """Whether the last launch has not ended."""
        event = self._events.get(executable)
        if event is None:
            return False
        result = self._query(event)
        if result != _NOT_READY:
            self._check(result, "cuEventQuery")
        return bool(result == _NOT_READY)

    def order_after(self, executable: int, stream: int) -> None:
        """Have a stream wait for the last launch."""
        event = self._events.get(executable)
        if event is not None:
            self._check(self._wait(stream, event, 0), "cuStreamWaitEvent")

    def finish(self, executable: int) -> None:
        """Wait on the host for the last launch."""
        event = self._events.get(executable)
        if event is not None:
            self._check(self._synchronize(event), "cuEventSynchronize")

    def forget(self, executable: int) -> None:
        """The executable is gone."""
        self._updated.discard(executable)
        self._streams.pop(executable, None)
        event = self._events.pop(executable, None)
        if event is not None:
            self._driver.cuEventDestroy(self._driver.CUevent(event))

    def _check(self, result: int, what: str) -> None:
        if result:
            call((self._driver.CUresult(result),), what)
