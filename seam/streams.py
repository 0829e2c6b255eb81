"""Side streams during a capture (rule S8): forks that outlive a segment, and work that a break leaves on a stream of its own.

A capture is one segment after the other, and the device forgets who was forked when a segment ends. So the seam joins every
stream that was forked before a segment ends, and forks it again when the next one begins: code that forks before a break and
joins after it works as it does without the break. What a break queues on other streams is waited for before its result is
written back.

Streams tell through :func:`recorded`, :func:`waits` and :func:`made_current`, which do nothing outside of scopes and breaks.
Streams that a library forks with calls of its own are not seen; the device refuses a capture that they do not join.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

__all__ = ["BreakStreams", "SegmentStreams", "made_current", "recorded", "waits", "watching"]


class _Watch(Protocol):
    def recorded(self, event: Any, stream: Any) -> None: ...

    def waits(self, stream: Any, event: Any) -> bool: ...

    def made_current(self, stream: Any) -> None: ...


class _Here(threading.local):
    watch: _Watch | None = None


_here = _Here()


def watching() -> bool:
    """Whether anybody in this thread wants to know."""
    return _here.watch is not None


def recorded(event: Any, stream: Any) -> None:
    """An event was recorded on a stream."""
    if _here.watch is not None:
        _here.watch.recorded(event, stream)


def waits(stream: Any, event: Any) -> bool:
    """A stream is about to wait for an event. True: it was made to wait already, and must not be told again."""
    return _here.watch is not None and _here.watch.waits(stream, event)


def made_current(stream: Any) -> None:
    """A stream is about to be made the current one."""
    if _here.watch is not None:
        _here.watch.made_current(stream)


@contextmanager
def _watched_by(watch: _Watch | None) -> Iterator[None]:
    before, _here.watch = _here.watch, watch
    try:
        yield
    finally:
        _here.watch = before


class _Mark(NamedTuple):
    """Where an event was recorded last. The event is held, so that no other one takes its place."""

    event: Any
    segment: int
    """Number of the segment; -1 in a break."""


class SegmentStreams:
    """The streams of one scope.

    Args:
        origin: the capture stream.
        carries: whether forks are joined at the end of a segment and made again in the next.
        site: tells where the call that is being watched was made.

    Attributes:
        forks: streams that joined the capture, and where.
        fork_count: how many forks the forward made.
        join_count: how many joins the seam made.
    """

    def __init__(self, origin: Any, *, carries: bool, site: Callable[[], str]) -> None:
        self.forks: dict[Any, str] = {}
        self.fork_count = self.join_count = 0
        self.marks: dict[int, _Mark] = {}
        self._origin = origin
        self._carries = carries
        self._site = site
        self._segment = -1

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Inside, what streams do is seen."""
        with _watched_by(self):
            yield

    def begin(self) -> None:
        """A segment began: streams that were forked before are forked again."""
        self._segment += 1
        with _watched_by(None):
            for stream in self.forks:
                stream.wait_stream(self._origin)

    def end(self) -> None:
        """A segment is about to end: join every stream of it."""
        if self._carries:
            with _watched_by(None):
                for stream in self.forks:
                    self._origin.wait_stream(stream)
                    self.join_count += 1

    def recorded(self, event: Any, stream: Any) -> None:
        """Part of the capture if its stream is."""
        if stream == self._origin or stream in self.forks:
            self.marks[id(event)] = _Mark(event, self._segment)
        else:
            self.marks.pop(id(event), None)

    def waits(self, stream: Any, event: Any) -> bool:
        """A wait for captured work forks a stream; one for an earlier segment or a break is kept by where this one begins."""
        mark = self.marks.get(id(event))
        if mark is None:
            return False  # recorded outside of this scope: the device refuses it, and says so
        inside = stream == self._origin or stream in self.forks
        if not inside:
            self.forks[stream] = self._site()
            self.fork_count += 1
        if mark.segment == self._segment:
            return False
        if not inside:
            with _watched_by(None):
                stream.wait_stream(self._origin)
        return True

    def made_current(self, stream: Any) -> None:
        """Only what it waits for makes a stream part of a capture."""


class BreakStreams:
    """The streams that one run of a break uses besides the one that it was called on. Made at every replay: it costs little.

    Args:
        current: tells the current stream of this thread; asked when the first other stream is used.
        marks: events of the capture. Those that a segment recorded nobody records anew at a replay.
        keep: whether events that the break records are added to them, as at capture.
    """

    __slots__ = ("_caller", "_current", "_fresh", "_keep", "_marks", "_used")

    def __init__(self, current: Callable[[], Any], marks: dict[int, _Mark], *, keep: bool) -> None:
        self._current = current
        self._caller: Any = None
        self._marks = marks
        self._keep = keep
        self._used: dict[Any, None] = {}
        self._fresh: set[int] = set()

    def run(self, body: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Run the break's body. In the end the calling stream waits for what it left elsewhere."""
        before, _here.watch = _here.watch, self
        try:
            result = body(*args, **kwargs)
        finally:
            _here.watch = before
        if self._used:
            with _watched_by(None):
                for stream in self._used:
                    self._caller.wait_stream(stream)
        return result

    def made_current(self, stream: Any) -> None:
        """Work may be queued there from now on."""
        if self._caller is None:
            self._caller = self._current()  # the first of these calls comes before the stream is another one
        if stream != self._caller:
            self._used[stream] = None

    def recorded(self, event: Any, stream: Any) -> None:
        """The event now stands for work of this break."""
        self.made_current(stream)
        self._fresh.add(id(event))
        if self._keep:
            self._marks.setdefault(id(event), _Mark(event, -1))

    def waits(self, stream: Any, event: Any) -> bool:
        """An event of a segment stands for the segments before this break, which the calling stream has run."""
        self.made_current(stream)
        mark = self._marks.get(id(event))
        if mark is None or mark.segment < 0 or id(event) in self._fresh:
            return False
        if stream != self._caller:
            with _watched_by(None):
                stream.wait_stream(self._caller)
        return True
