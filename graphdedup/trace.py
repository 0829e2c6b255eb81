"""A trace of what the fold does, as JSON that Perfetto (ui.perfetto.dev) and chrome://tracing open.

    with graphdedup.trace.record("fold.json") as recorder:
        capture_and_replay()
    print(recorder.event_count, recorder.dropped_count)

Or ``GRAPHDEDUP_TRACE=fold.json``, which writes at exit. Times are of the host: a launch is over when it is queued.
"""

from __future__ import annotations

import atexit
import json
import logging
import multiprocessing
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from graphdedup import events
from graphdedup.errors import GraphDedupError, SettingsError
from graphdedup.events import Event, Kind
from seam.backend import SegmentInfo

__all__ = ["MAX_EVENTS", "Recorder", "record", "write_at_exit"]

_log = logging.getLogger("graphdedup")

MAX_EVENTS = 100_000
"""So many events are kept by default, the first ones: some 30 MB of JSON."""


class _Row(NamedTuple):
    kind: Kind
    segment: SegmentInfo
    exec_id: int | None
    purpose: str
    outcome: str
    error: str
    began_ns: int
    ended_ns: int
    thread: int


class Recorder:
    """Keeps the first ``max_events`` events and counts the rest; an observer (:mod:`graphdedup.events`), from any thread.

    Raises:
        SettingsError: ``max_events`` is less than 1.
    """

    def __init__(self, max_events: int = MAX_EVENTS) -> None:
        if max_events < 1:
            raise SettingsError(f"trace: max_events={max_events} keeps nothing", remedy="give at least 1")
        self.max_events = max_events
        self.dropped_count = 0
        self._rows: list[_Row] = []
        self._threads: dict[int, str] = {}
        self._lock = threading.Lock()
        self._began_ns = time.perf_counter_ns()
        self._began_unix_ns = time.time_ns()

    @property
    def event_count(self) -> int:
        """Events that are kept."""
        return len(self._rows)

    # As an observer

    def begin(self, event: Event) -> None:
        """Nothing: an event is kept when it has ended."""

    def end(self, event: Event, token: Any) -> None:
        """Keep an event, or count it as dropped."""
        thread = threading.get_native_id()
        with self._lock:
            if len(self._rows) >= self.max_events:
                self.dropped_count += 1
                return
            if thread not in self._threads:
                self._threads[thread] = _thread_name(thread)
            self._rows.append(
                _Row(
                    event.kind,
                    event.segment,
                    event.exec_id,
                    event.purpose,
                    event.outcome,
                    event.error,
                    event.began_ns,
                    event.ended_ns,
                    thread,
                )
            )

    # Writing

    def to_dict(self) -> dict[str, Any]:
        """The trace as plain data: ``traceEvents`` in the order in which they ended, ``ts`` and ``dur`` in microseconds, ``ts``
        since the recording began; and ``otherData``, with the number of dropped events.
        """
        with self._lock:
            rows, threads, dropped = list(self._rows), dict(self._threads), self.dropped_count
        process = os.getpid()
        told: list[dict[str, Any]] = [_named("process_name", process, process, "graphdedup")]
        told += [_named("thread_name", process, thread, name) for thread, name in threads.items()]
        told += [self._told(row, process) for row in rows]
        return {
            "traceEvents": told,
            "displayTimeUnit": "ms",
            "otherData": {
                "recorded_by": "graphdedup",
                "began_unix_ns": self._began_unix_ns,
                "max_events": self.max_events,
                "dropped_events": dropped,
            },
        }

    def to_json(self) -> str:
        """The trace as one line of JSON."""
        return json.dumps(self.to_dict(), separators=(",", ":"))

    def write(self, file: str | Path) -> None:
        """Write the trace.

        Raises:
            GraphDedupError: the file cannot be written.
        """
        try:
            Path(file).write_text(self.to_json() + "\n", encoding="utf-8")
        except OSError as error:
            raise GraphDedupError(
                f"trace {file}: {error.strerror or 'it cannot be written'}",
                remedy="name a file in a folder that can be written",
            ) from error

    def _told(self, row: _Row, process: int) -> dict[str, Any]:
        arguments: dict[str, Any] = {"graph": str(row.segment), "exec": row.exec_id}
        for name in ("purpose", "outcome", "error"):
            value = getattr(row, name)
            if value:
                arguments[name] = value
        return {
            "name": _name(row),
            "cat": "graphdedup",
            "ph": "X",
            "ts": (row.began_ns - self._began_ns) / 1000,
            "dur": (row.ended_ns - row.began_ns) / 1000,
            "pid": process,
            "tid": row.thread,
            "args": arguments,
        }


def _name(row: _Row) -> str:
    """An update that the driver did not take has a name of its own: those that are called "update" are the counted ones."""
    return "update refused" if row.kind is Kind.UPDATE and row.outcome != "SUCCESS" else row.kind.value


def _named(what: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": process, "tid": thread, "args": {"name": name}}


def _thread_name(native_id: int) -> str:
    """Python's name of a thread; asking ``current_thread`` would leave an entry behind for threads that are not Python's."""
    return next((one.name for one in threading.enumerate() if one.native_id == native_id), f"thread {native_id}")


@contextmanager
def record(file: str | Path | None = None, *, max_events: int = MAX_EVENTS) -> Iterator[Recorder]:
    """Record what the fold does inside, on every thread and device; recordings may nest.

    Args:
        file: written at the end, also where an error ends it; None writes nothing, see :meth:`Recorder.write`.
        max_events: the first ones are kept, the others counted.

    Raises:
        SettingsError: there is no folder for ``file``, or ``max_events`` is less than 1.
        GraphDedupError: the file cannot be written at the end. Where an error ended it, that one is raised instead.
    """
    recorder = Recorder(max_events)
    if file is not None:
        _check_folder(file, "trace")
    events.add(recorder)
    try:
        yield recorder
    except BaseException:
        events.remove(recorder)
        if file is not None:
            _write_or_log(recorder, file)
        raise
    events.remove(recorder)
    if file is not None:
        recorder.write(file)


_at_exit: dict[str, Recorder] = {}
_lock = threading.Lock()


def write_at_exit(file: str, *, name: str = "trace") -> None:
    """What ``GRAPHDEDUP_TRACE=FILE`` does: record from now on, and write at exit; once for a file, however often it is asked.

    ``%p`` in ``file`` stands for the process id. In a process of :mod:`multiprocessing`, such as an engine's worker, it is put
    before the suffix if ``file`` has no ``%p``.

    Raises:
        SettingsError: ``file`` is empty, or there is no folder for it; ``name`` is what the error calls it.
    """
    if not file.strip():
        raise SettingsError(f"{name}={file!r} names no file", remedy="name a file such as trace.json, or unset it")
    _check_folder(file, name)
    with _lock:
        if file in _at_exit:
            return
        recorder = _at_exit[file] = Recorder()
    events.add(recorder)
    atexit.register(_finish, recorder, file, os.getpid())


def _finish(recorder: Recorder, file: str, process: int) -> None:
    events.remove(recorder)
    if os.getpid() == process:  # a forked child has the parent's events, which the parent writes
        _write_or_log(recorder, _marked(file, process))


def _marked(file: str, process: int) -> Path:
    if "%p" in file:
        return Path(file.replace("%p", str(process)))
    target = Path(file)
    if multiprocessing.parent_process() is None:
        return target
    return target.with_name(f"{target.stem}.{process}{target.suffix}")


def _check_folder(file: str | Path, name: str) -> None:
    folder = Path(file).parent
    if not folder.is_dir():
        raise SettingsError(f"{name} {file}: there is no folder {folder}", remedy="make it, or name a file in another folder")


def _write_or_log(recorder: Recorder, file: str | Path) -> None:
    try:
        recorder.write(file)
    except Exception as error:
        _log.warning("no trace was written to %s: %s", file, str(error))  # a record must not hold frames
