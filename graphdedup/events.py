"""What the fold is doing, told while it does it: capture, walk, fold, instantiate, update, launch.

Observers (:mod:`graphdedup.trace`, :mod:`graphdedup.nvtx`, or one's own) are told of every graph of the process. Without one
nothing is built: a replay then reads one attribute, ``watching.observers``.
"""

from __future__ import annotations

import enum
import logging
import threading
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol

from seam.backend import SegmentInfo

__all__ = ["Event", "Kind", "Observer", "Span", "add", "begin", "remove", "span", "watching"]

_log = logging.getLogger("graphdedup")


class Kind(enum.StrEnum):
    """What takes time. A fold holds the instantiation or the updates that it needs; the others follow each other."""

    CAPTURE = "capture"
    """From the begin of a capture to its end: the caller's forward runs inside."""
    WALK = "walk"
    """Reading a captured graph."""
    FOLD = "fold"
    """Finding an executable for it, or making one."""
    INSTANTIATE = "instantiate"
    UPDATE = "update"
    """Re-pointing an executable; :attr:`Event.purpose` says for what, :attr:`Event.outcome` what the driver answered."""
    LAUNCH = "launch"
    """Queueing a graph on the current stream: time of the host, not of the device."""


@dataclass(slots=True)
class Event:
    """One span of host time. ``began_ns`` and ``ended_ns`` are of :func:`time.perf_counter_ns`.

    ``exec_id`` is the registry's own number of the executable, never used again in the process; None where there is none, or
    where the graph keeps the executable of its own backend. ``outcome`` and ``error`` (the name of an exception) are known
    at the end only.
    """

    kind: Kind
    segment: SegmentInfo
    exec_id: int | None = None
    purpose: str = ""
    outcome: str = ""
    error: str = ""
    began_ns: int = 0
    ended_ns: int = 0

    @property
    def label(self) -> str:
        """The graph's name, such as ``"decode bs=8 segment 3"``."""
        return str(self.segment)


class Observer(Protocol):
    """Told of every event, on the thread that does the work and often with a lock held: be quick, and call nothing of the fold.

    What it raises is logged once, and it is told of nothing more.
    """

    def begin(self, event: Event) -> Any:
        """It begins. What is returned comes back at :meth:`end`."""

    def end(self, event: Event, token: Any) -> None:
        """It has ended, well or not."""


class _Watching:
    __slots__ = ("observers",)

    def __init__(self) -> None:
        self.observers: tuple[Observer, ...] = ()


watching = _Watching()
"""Who is told: ``observers`` is empty while nobody watches."""
_lock = threading.Lock()


def add(observer: Observer) -> None:
    """Tell an observer from now on; once, however often it is added."""
    with _lock:
        if not any(one is observer for one in watching.observers):
            watching.observers = (*watching.observers, observer)


def remove(observer: Observer) -> None:
    """Tell an observer no more of what begins from now on; nothing if it is not told."""
    with _lock:
        watching.observers = tuple(one for one in watching.observers if one is not observer)


class Span:
    """An event under way. As a context it yields the event, whose last fields may be set inside."""

    __slots__ = ("_told", "event")

    def __init__(self, event: Event, observers: tuple[Observer, ...]) -> None:
        self.event = event
        self._told: list[tuple[Observer, Any]] = []
        for observer in observers:
            try:
                self._told.append((observer, observer.begin(event)))
            except Exception:
                _drop(observer)
        event.began_ns = time.perf_counter_ns()

    def close(self, error: BaseException | None = None) -> None:
        """The end of it; ``error`` is what ended it, if it failed."""
        self.event.ended_ns = time.perf_counter_ns()
        if error is not None:
            self.event.error = type(error).__name__
        told, self._told = self._told, []
        for observer, token in reversed(told):
            try:
                observer.end(self.event, token)
            except Exception:
                _drop(observer)

    def __enter__(self) -> Event:
        return self.event

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close(error)


class _Unseen:
    """Nobody watches."""

    __slots__ = ()

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        return None


_UNSEEN = _Unseen()


def begin(kind: Kind, segment: SegmentInfo, exec_id: int | None = None, purpose: str = "") -> Span | None:
    """An event that ends with :meth:`Span.close`; None while nobody watches."""
    observers = watching.observers
    return Span(Event(kind, segment, exec_id, purpose), observers) if observers else None


def span(kind: Kind, segment: SegmentInfo, exec_id: int | None = None, purpose: str = "") -> Span | _Unseen:
    """An event that lasts as long as the context; it yields the :class:`Event`, or None while nobody watches."""
    return begin(kind, segment, exec_id, purpose) or _UNSEEN


def _drop(observer: Observer) -> None:
    """An observer that fails must not fail a capture or a replay."""
    remove(observer)
    _log.warning("an observer failed and is told of nothing more: %s", type(observer).__name__, exc_info=True)
