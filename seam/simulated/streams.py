"""Streams and events of a simulated device, with the meaning that torch.cuda's have.

Work runs at once, so outside a capture every wait is already over. During a capture they shape the graph: a stream that
waits for captured work joins the capture, and has to be joined back before it ends.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

from seam import streams

from .errors import SimulatedDeviceError

if TYPE_CHECKING:
    from types import TracebackType

    from .capture import Capture

__all__ = ["Event", "Stream", "current_stream", "default_stream", "stream"]

_ids = itertools.count()


class Stream:
    """A queue of work. ``priority`` ends up as an attribute of the kernels captured on it."""

    def __init__(self, priority: int = 0, *, name: str = "") -> None:
        self.id = next(_ids)
        self.priority = priority
        self.name = name or f"stream {self.id}"
        self._capture: Capture | None = None
        self._entered: list[AbstractContextManager[None]] = []

    def __repr__(self) -> str:
        return f"<seam.simulated.Stream {self.name!r}>"

    def __enter__(self) -> Stream:
        scope = stream(self)
        scope.__enter__()
        self._entered.append(scope)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._entered.pop().__exit__(kind, error, trace)

    @property
    def is_capturing(self) -> bool:
        """Whether the stream is part of a capture that is still open."""
        return self._capture is not None

    def record_event(self, event: Event | None = None) -> Event:
        """Record ``event`` (a new one if None) behind the work queued so far, and return it."""
        event = event if event is not None else Event()
        event.record(self)
        return event

    def wait_event(self, event: Event) -> None:
        """Make work queued from now on wait for ``event``. A wait for captured work joins this stream to its capture.

        Raises:
            SimulatedDeviceError: the wait would tie a capture to work outside it, or to another capture.
        """
        if streams.waits(self, event):
            return
        source, here = event._capture, self._capture
        if source is not None and not source.open:
            error = _isolation(self, "an event that was recorded in a capture which has ended")
        elif source is not None and here is None:
            source.join(self, event._deps)
            return
        elif source is not None and here is source:
            source.merge(self, event._deps)
            return
        elif source is not None:
            error = _isolation(self, "work of another capture")
            source.invalidate(error)
        elif here is None or not event._recorded:
            return
        else:
            error = _isolation(self, "work that was queued outside the capture")
        if here is not None:
            here.invalidate(error)
        raise error

    def wait_stream(self, other: Stream) -> None:
        """Make work queued from now on wait for everything queued on ``other`` so far."""
        self.wait_event(other.record_event())

    def synchronize(self) -> None:
        """Wait on the host; illegal while the stream is captured."""
        if self._capture is not None:
            raise self._capture.invalidate(_host_wait(f"{self.name} was synchronized"))

    def query(self) -> bool:
        """Whether everything queued has run; illegal while the stream is captured."""
        if self._capture is not None:
            raise self._capture.invalidate(_host_wait(f"{self.name} was queried"))
        return True


class Event:
    """A mark in a stream's work."""

    def __init__(self) -> None:
        self._recorded = False
        self._capture: Capture | None = None
        self._deps: tuple[int, ...] = ()

    def record(self, stream: Stream | None = None) -> None:
        """Mark the work queued on ``stream`` (the current one if None) so far."""
        stream = stream if stream is not None else current_stream()
        self._recorded = True
        self._capture = stream._capture
        self._deps = stream._capture.tails[stream] if stream._capture is not None else ()
        streams.recorded(self, stream)

    def wait(self, stream: Stream | None = None) -> None:
        """Make ``stream`` (the current one if None) wait for this event."""
        (stream if stream is not None else current_stream()).wait_event(self)

    def synchronize(self) -> None:
        """Wait on the host; illegal for an event recorded in a capture."""
        if self._capture is not None:
            raise self._capture.invalidate(_host_wait("a captured event was synchronized"))

    def query(self) -> bool:
        """Whether the work marked has run; illegal for an event recorded in a capture."""
        if self._capture is not None:
            raise self._capture.invalidate(_host_wait("a captured event was queried"))
        return True


def _isolation(stream: Stream, what: str) -> SimulatedDeviceError:
    return SimulatedDeviceError(
        f"{stream.name} was told to wait for {what}",
        rule="S8",
        remedy="fork side streams from the capture stream inside the capture, and record the event there",
    )


def _host_wait(what: str) -> SimulatedDeviceError:
    return SimulatedDeviceError(
        f"{what} during a capture",
        rule="S7",
        remedy="wait outside the capture, or in a function marked with @seam.eager_break",
    )


_default = Stream(name="default stream")
_thread = threading.local()


def default_stream() -> Stream:
    """The stream that is current where no other was made so. It cannot be captured."""
    return _default


def current_stream() -> Stream:
    """The current thread's current stream."""
    current: Stream = getattr(_thread, "stream", _default)
    return current


@contextmanager
def stream(stream: Stream | None) -> Iterator[None]:
    """Make ``stream`` the current thread's current stream for a while; None changes nothing."""
    before = current_stream()
    if stream is not None:
        streams.made_current(stream)
        _thread.stream = stream
    try:
        yield
    finally:
        _thread.stream = before
