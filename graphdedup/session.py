"""Capture sessions: bursts of captures that end in one log line and one reading of device memory."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field

import torch

from graphdedup.footprint import Span
from graphdedup.group import Group, Member

__all__ = ["LATEST", "EndedSessions", "SealedSession", "SessionLog", "exec_count"]

_log = logging.getLogger("graphdedup")


@dataclass(frozen=True, slots=True)
class SealedSession:
    """A session that ended: how many graphs it captured, on how many executables they ran, and what the driver took.

    ``exec_device_bytes`` is measured over the whole session (rule M4); None without a GPU.
    """

    name: str
    captured: int
    execs: int
    exec_device_bytes: int | None
    torch_bytes: int | None = None
    """Growth of what torch's allocator reserved; None without a GPU."""
    host_bytes: int | None = None
    """Growth of resident memory."""
    seconds: float | None = None


def exec_count(members: Collection[Member]) -> int:
    """Executables that these members run on: their groups', and one for each that keeps its own backend's."""
    groups: set[Group] = {member.group for member in members if member.group is not None}
    return sum(len(group.executables) for group in groups) + sum(member.group is None for member in members)


LATEST = 256
"""So many ended sessions are kept by name: a process may capture again and again for weeks."""


class EndedSessions:
    """The sessions of a registry that ended: the latest one by one, all of them in sum."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._latest: deque[SealedSession] = deque(maxlen=LATEST)
        self._count = self._exec_device_bytes = 0
        self._stages: tuple[Span, Span] | None = None

    def add(self, session: SealedSession, begun: Span | None = None, ended: Span | None = None) -> None:
        """A session ended; with memory as it was when it began and when it ended."""
        with self._lock:
            if begun is not None and ended is not None:
                self._stages = (begun if self._stages is None else self._stages[0]), ended
            self._latest.append(session)
            self._count += 1
            self._exec_device_bytes += session.exec_device_bytes or 0

    @property
    def latest(self) -> tuple[SealedSession, ...]:
        """The last :data:`LATEST` sessions, the oldest first."""
        with self._lock:
            return tuple(self._latest)

    @property
    def stages(self) -> tuple[Span, Span] | None:
        """Memory when the first session began and when the last one ended; None if none has."""
        with self._lock:
            return self._stages

    @property
    def totals(self) -> tuple[int, int]:
        """How many sessions ended, and the bytes of device memory that the driver took over all of them."""
        with self._lock:
            return self._count, self._exec_device_bytes


@dataclass(slots=True)
class _Open:
    name: str
    span: Span
    began: float
    shown: bool = False
    captured_at: float = 0.0
    captured: int = 0
    plain: int = 0
    members: list[Member] = field(default_factory=list)


class SessionLog:
    """The sessions of one backend. One is open at a time; captures outside a named one open one of their own.

    Args:
        device: where memory is read.
        ended: where ended sessions go; shared by the backends that share a registry.

    Attributes:
        quiet_seconds: a replay ends the open session if nothing was captured for so long: where captures and replays take
            turns, as in a runner that captures on demand, they are one burst.
    """

    def __init__(self, device: torch.device, ended: EndedSessions) -> None:
        self.quiet_seconds = 0.0
        self._ended = ended
        self._device = device
        self._open: _Open | None = None
        self._lock = threading.Lock()

    @property
    def name(self) -> str:
        """The name of the open session; empty if none is open or it has none."""
        session = self._open
        return session.name if session is not None else ""

    def begin(self, name: str, *, shown: bool = False) -> None:
        """Open a session if none is open; ``shown`` puts its name into the log line."""
        with self._lock:
            if self._open is None:
                self._open = _Open(name, Span.begin(self._device), time.monotonic(), shown)

    def over(self) -> bool:
        """Whether a session is open and a replay now ends it; read on every replay, hence without the lock."""
        session = self._open
        if session is None or not self.quiet_seconds:
            return session is not None
        return time.monotonic() - session.captured_at >= self.quiet_seconds

    def captured(self, member: Member | None) -> None:
        """Count a capture; ``member`` is None for a graph that was never offered to the fold."""
        with self._lock:
            if self._open is None:
                return
            self._open.captured += 1
            if self.quiet_seconds:
                self._open.captured_at = time.monotonic()
            if member is None:
                self._open.plain += 1
            else:
                self._open.members.append(member)

    def seal(self) -> SealedSession | None:
        """End the open session with its log line; None if none is open, or if it captured nothing."""
        with self._lock:
            ending, self._open = self._open, None
        if ending is None or not ending.captured:
            return None
        now = Span.begin(self._device)
        grown = ending.span.until(now)
        sealed = SealedSession(
            ending.name,
            ending.captured,
            exec_count(ending.members) + ending.plain,
            grown.exec_device_bytes,
            grown.torch_reserved_bytes,
            grown.host_rss_bytes,
            time.monotonic() - ending.began,
        )
        self._ended.add(sealed, ending.span, now)
        name = f" ({sealed.name})" if ending.shown and sealed.name else ""
        _log.info("captured %d graphs, deduped to %d execs%s", sealed.captured, sealed.execs, name)
        return sealed
