"""The seam's backend on a simulated device."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from seam.backend import HostCopy, Pool, SegmentInfo
from seam.errors import CaptureError

from .capture import Capture
from .device import AUTO_FREE_ON_LAUNCH, SimulatedDevice, release_pool_with
from .errors import SimulatedDeviceError
from .graph import SimulatedGraph
from .ledger import SimulatedLedger
from .params import MemcpyParams
from .program import SimulatedExec
from .recorder import Recorder
from .streams import Stream, current_stream, default_stream
from .streams import stream as stream_scope

__all__ = ["SimulatedBackend", "SimulatedPool", "SimulatedSegment"]

_MODES = ("global", "thread_local", "relaxed")
_thread = threading.local()


class SimulatedPool:
    """A memory pool and its capture stream. Its space returns to the device when this and its tensors are gone."""

    def __init__(self, device: SimulatedDevice, stream: Stream) -> None:
        self.device = device
        self.id = device.new_pool_id()
        self._stream = stream
        self._capture: Capture | None = None
        release_pool_with(self, device, self.id)

    @property
    def stream(self) -> Stream:
        """The capture stream."""
        return self._stream

    def current_stream(self) -> Stream:
        """The calling thread's current stream."""
        return current_stream()

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Make the capture stream current: it first waits for the caller's, and the caller's for it on the way out."""
        caller = current_stream()
        if caller is not self._stream:
            self._stream.wait_stream(caller)
        with stream_scope(self._stream):
            try:
                yield
            finally:
                if caller is not self._stream and not self._stream.is_capturing:
                    caller.wait_stream(self._stream)

    def reserved_bytes(self) -> int:
        """Bytes that the pool holds, in use or not."""
        return self.device.memory.reserved_bytes(self.id)

    def allocated_bytes(self) -> int:
        """Bytes under live tensors of the pool."""
        return self.device.memory.allocated_bytes(self.id)

    def ledger(self) -> SimulatedLedger:
        """What the pool gives out from now on."""
        return SimulatedLedger(self.device.memory, self.id, self._stream.id)

    def check_split(self) -> None:
        """Nothing to check: what was captured lies in memory that is there."""

    def mark(self, earlier: Any = None) -> Any:
        """The current stream: work runs at once."""
        return current_stream()

    def follow(self, mark: Any) -> None:
        """Nothing to do: what was marked has run."""

    def poison_free(self) -> None:
        """Set all bits of what the pool holds and no tensor uses."""
        self.device.memory.poison_free(self.id)


class SimulatedSegment:
    """A captured segment: its graph, the pool it was captured into, and an executable from the first replay on."""

    def __init__(self, graph: SimulatedGraph, pool: SimulatedPool) -> None:
        self.graph = graph
        self.exec: SimulatedExec | None = None
        self._pool: SimulatedPool | None = pool

    def __repr__(self) -> str:
        return f"<SimulatedSegment {self.graph!r}>"

    @property
    def pool(self) -> SimulatedPool | None:
        """The pool, kept alive as long as the segment is; None once it was destroyed."""
        return self._pool


class SimulatedBackend:
    """Captures real torch code on CPU tensors into graphs of a simulated device, and replays them.

    Args:
        device: the device to use; a new one with the default size and driver profile if None.
    """

    def __init__(self, device: SimulatedDevice | None = None) -> None:
        self.device = device if device is not None else SimulatedDevice()

    @property
    def name(self) -> str:
        """``"simulated"``."""
        return "simulated"

    def new_pool(self, stream: Stream | None = None, *, handle: Any = None) -> SimulatedPool:
        """Make a pool with ``stream`` as its capture stream, a new one if None.

        Raises:
            CaptureError: a ``handle`` is given: this device knows no pools that others made.
        """
        if handle is not None:
            raise CaptureError(
                f"the simulated device knows no pool {handle!r}", rule="M1", remedy="leave handle out, or capture on a GPU"
            )
        return SimulatedPool(self.device, stream if stream is not None else Stream(name="capture stream"))

    def begin_capture(
        self,
        pool: Pool,
        *,
        segment: SegmentInfo | None = None,
        capture_error_mode: str = "thread_local",
        generators: Sequence[torch.Generator] = (),
    ) -> None:
        """Begin to record this thread's torch calls on ``pool.stream``, which must be the current stream.

        The three error modes of CUDA are accepted and make no difference here: calls that they tell apart do not exist.

        Raises:
            SimulatedDeviceError: this thread, stream or pool is already in a capture, the stream is not current or is
                the default one, the pool is another device's, or a generator is not torch's default one, which is the
                only one that this device knows. Nothing is left behind.
            ValueError: an unknown ``capture_error_mode``.
        """
        self.device._raise_pending()
        if capture_error_mode not in _MODES:
            raise ValueError(f"capture_error_mode must be one of {', '.join(_MODES)}, not {capture_error_mode!r}")
        if any(generator is not torch.default_generator for generator in generators):
            raise _refused("the simulated device draws from torch's default generator only", "leave generators out")
        if not isinstance(pool, SimulatedPool):
            raise _refused(f"{pool!r} is no simulated pool", "make it with new_pool() of this backend")
        stream = pool.stream
        if getattr(_thread, "open", None) is not None:
            raise _refused("this thread has a capture open", "end that one first")
        if pool.device is not self.device:
            raise _refused("the pool belongs to another device", "make it with new_pool() of this backend")
        if stream is default_stream():
            raise _refused("the default stream cannot be captured", "give the pool a stream of its own")
        if current_stream() is not stream:
            raise _refused(f"{stream.name} is not the current stream", "capture inside `with pool.entered():`")
        with self.device._lock:
            if stream.is_capturing or pool._capture is not None:
                raise _refused(f"{stream.name} or its pool is in another capture", "give each thread its own pool")
            capture = Capture(self.device, pool.id, stream, str(segment) if segment is not None else "")
            pool._capture = capture
        recorder = Recorder(capture)
        _thread.open = (recorder, pool)
        recorder.start()

    def end_capture(self, *, discard: bool = False) -> SimulatedSegment | None:
        """End this thread's capture. Whatever happens, stream and pool are free afterwards.

        Raises:
            SimulatedDeviceError: no capture is open; or, without ``discard``, it was invalidated, a forked stream was
                never joined, or another stream than the one it began on is current.
        """
        recorder, pool = getattr(_thread, "open", None) or (None, None)
        if recorder is None or pool is None or recorder.capture.device is not self.device:
            raise _refused("this thread has no capture open on this device", "call begin_capture first")
        _thread.open = None
        recorder.stop()
        capture = recorder.capture
        strayed = current_stream() is not capture.origin
        with self.device._lock:
            error = capture.close()
            pool._capture = None
        if discard or error is not None or strayed:
            capture.graph.destroy()
        if discard:
            return None
        if error is not None:
            raise error
        if strayed:
            raise _refused(f"the capture began on {capture.origin.name}, which is not current", "end it there")
        return SimulatedSegment(capture.graph, pool)

    def replay_graph(self, handle: SimulatedSegment) -> None:
        """Replay as torch's own replay does, random numbers included; the first one makes the executable."""
        if handle.exec is None:
            handle.exec = self.device.instantiate(handle.graph, AUTO_FREE_ON_LAUNCH)
        self.device.launch(handle.exec, prologue=True)

    def host_copies(self, handle: SimulatedSegment) -> tuple[HostCopy, ...]:
        """Copies of the segment between host and device; torch calls make none here, nodes added by hand may."""
        copies = [node.params for node in handle.graph.nodes if isinstance(node.params, MemcpyParams)]
        return tuple(
            HostCopy(copy.source if copy.direction == "h2d" else copy.target, copy.size_bytes, copy.direction == "h2d")
            for copy in copies
            if copy.direction != "d2d"
        )

    def destroy_graph(self, handle: SimulatedSegment) -> None:
        """Destroy the executable, if there is one, then the graph.

        Raises:
            SimulatedDeviceError: the segment was destroyed before.
        """
        if handle.graph.destroyed:
            raise _refused(f"{handle!r} was destroyed before", "destroy each handle once")
        if handle.exec is not None:
            self.device.destroy(handle.exec)
            handle.exec = None
        handle.graph.destroy()
        handle._pool = None


def _refused(problem: str, remedy: str) -> SimulatedDeviceError:
    return SimulatedDeviceError(problem, rule="S6", remedy=remedy)
