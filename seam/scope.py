"""One open capture scope: its segments, the breaks between them, and what went wrong first."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from seam.backend import HostCopy, Pool, SegmentInfo
from seam.baked import Baked, BakedKind, numbers_in, scalars_in, sources_of
from seam.counters import count
from seam.crossing import CrossingCheck
from seam.errors import BreakError, CaptureError, SeamError
from seam.graph import Break, BreakableGraph, BreakMet
from seam.memory import Bridges
from seam.sites import call_site
from seam.slot import BreakSlot, NoWriteback, copy_output, storages_of
from seam.streams import BreakStreams, SegmentStreams
from seam.torch_modes import TorchModes

__all__ = ["BreakPoint", "CaptureScope"]

_log = logging.getLogger("seam")


@dataclass(frozen=True, slots=True)
class BreakPoint:
    """What a break point runs: ``body`` at every replay, and at capture as well where there is no ``stub``."""

    body: Callable[..., Any]
    name: str
    stub: Callable[..., Any] | None = None
    enable: bool | Callable[[], bool] = True
    slot: BreakSlot | None = None

    @property
    def enabled(self) -> bool:
        """Whether it ends the segment today."""
        return bool(self.enable() if callable(self.enable) else self.enable)


class CaptureScope:
    """One open scope: it knows whether a segment is being recorded, and what went wrong first.

    Args:
        graph: receives segments and breaks.
        pool: is captured into.
        capture_error_mode: as for ``torch.cuda.graph``.
        generators: drawn from besides the device's default one.
        barrier_fn: called before each break.
        check: what is looked for in what crosses a break at replay.
    """

    def __init__(
        self,
        graph: BreakableGraph,
        pool: Pool,
        *,
        capture_error_mode: str,
        generators: Sequence[torch.Generator] = (),
        barrier_fn: Callable[[], object] | None = None,
        check: CrossingCheck | None = None,
    ) -> None:
        self.graph = graph
        self.pool = pool
        self.recording = False
        self.failure: BaseException | None = None
        self._capture_error_mode = capture_error_mode
        self._generators = tuple(generators)
        self._barrier_fn = barrier_fn
        self._check = check
        self._inside = False
        self._slots: list[BreakSlot] = []
        self._bridges = Bridges(None)
        self.streams = SegmentStreams(pool.stream, carries=graph.mode.splits, site=partial(call_site, outside_torch=True))

    def begin_segment(self, after: str = "") -> None:
        """Begin to record; ``after`` names the break before."""
        graph = self.graph
        if len(graph.segments) != len(graph.breaks):
            raise CaptureError(
                f"{graph.label} has {len(graph.segments)} segments and {len(graph.breaks)} breaks before the next segment",
                rule="S1",
                remedy="do not edit .segments or .breaks while a scope is open",
            )
        if graph.mode.splits and not graph.segments:
            self._bridges = Bridges(self.pool)
        info = SegmentInfo(position=len(graph.segments), label=graph.label, after=after)
        more: dict[str, Any] = {"generators": self._generators} if self._generators else {}  # a backend need not know any
        graph.backend.begin_capture(self.pool, segment=info, capture_error_mode=self._capture_error_mode, **more)
        self.recording = True
        self.streams.begin()

    def end_segment(self) -> None:
        """End the recording; it becomes the graph's next segment.

        Raises:
            CaptureError: a stream was forked and not joined (S8); the message names those that were seen.
        """
        self.streams.end()
        self.recording = False  # also when the call raises: the device has ended the capture all the same
        try:
            handle = self.graph.backend.end_capture()
        except SeamError as error:
            if "join" not in error.problem:
                raise
            raise self._unjoined(error) from error
        self.graph.segments.append(handle)
        count("segments")
        self._note_host_copies(handle)

    def _note_host_copies(self, handle: Any) -> None:
        """List what the segment copies from and to the host, and hold the memory; say so where nobody has it any more."""
        tell = getattr(self.graph.backend, "host_copies", None)
        copies: tuple[HostCopy, ...] = tell(handle) if tell is not None else ()
        if not copies:
            return
        where = f"{self.graph.label} segment {len(self.graph.segments) - 1}"
        for copy, source in zip(copies, sources_of(copies), strict=True):
            kind = BakedKind.COPY_FROM_HOST if copy.to_device else BakedKind.COPY_TO_HOST
            baked = Baked(kind, f"{copy.size_bytes} bytes at {copy.address:#x}", where, kept=source is not None)
            self.graph.baked.append(baked)
            if source is None:
                _log.warning("%s: keep the CPU tensor for as long as the graph, or copy in a break", baked)
            else:
                self.graph._hold(source)

    def count_streams(self) -> None:
        """The scope is over: its forks and joins go to the graph and to the process's counts."""
        self.graph.fork_count, self.graph.join_count = self.streams.fork_count, self.streams.join_count
        count("forks", self.streams.fork_count)
        count("joins", self.streams.join_count)

    def _unjoined(self, error: SeamError) -> CaptureError:
        seen = ", ".join(f"{stream} (forked at {site})" for stream, site in self.streams.forks.items())
        return CaptureError(
            f"{self.graph.label}: a stream was forked from the capture and not joined: {error.problem} "
            f"Side streams that the seam saw: {seen or 'none'}",
            rule="S8",
            remedy="let the capture stream wait for it before the capture ends; a library that forks a stream by calls of its "
            "own has to join it before each break",
        )

    def drop_segment(self) -> None:
        """End the capture on the stream after a failure; the first error is on its way and must not be replaced."""
        if self.recording:
            self.recording = False
            try:
                self.graph.backend.end_capture(discard=True)
            except Exception:
                _log.warning("%s: the failed capture could not be ended cleanly", self.graph.label, exc_info=True)

    def meet(self, point: BreakPoint, args: Any, kwargs: Any, site: str) -> Any:
        """The forward has come to a break point: end the segment, or run it as a plain call (S6, S9)."""
        graph = self.graph
        graph.met_count += 1
        count("break_points")
        if not self.recording or self._inside:
            return point.body(*args, **kwargs)
        enabled = point.enabled
        splits = enabled and graph.mode.splits
        graph.break_points.append(BreakMet(point.name, site, enabled, splits))
        if splits:
            return self._run_break(point, args, kwargs, site)
        if not enabled:
            return point.body(*args, **kwargs)
        self._inside = True  # what lies inside is no break point where this one splits
        try:
            return point.body(*args, **kwargs)
        finally:
            self._inside = False

    def _run_break(self, point: BreakPoint, args: Any, kwargs: Any, site: str) -> Any:
        """End the segment, run the body, take over its result, begin the next segment."""
        name, body, slot = point.name, point.body, point.slot or BreakSlot(point.name)
        try:
            if any(slot is taken for taken in self._slots):
                raise BreakError(
                    f"{name}: its slot {slot.name!r} is already the destination of another break of {self.graph.label}",
                    rule="S3",
                    remedy="give each break of a capture a slot of its own (the default)",
                )
            self._slots.append(slot)
            self.pool.check_split()
            self.end_segment()
            if self._barrier_fn is not None:
                self._barrier_fn()
            modes = TorchModes.current()
            marks, current = self.streams.marks, self.pool.current_stream
            result = BreakStreams(current, marks, keep=True).run(point.stub or body, args, kwargs)
            call = _waited_for(body, current, marks)
            written_back = not isinstance(result, NoWriteback)
            lends = written_back and point.slot is None  # a slot that was given outlives this graph with its destination
            empty = self._bridges.empty_strided if lends else torch.empty_strided
            if isinstance(result, NoWriteback):
                given = result.value
            else:
                given = slot.bind(result, kept=storages_of((args, kwargs)), where=name, empty_strided=empty)
            kept = self._bridges.cross(args, kwargs, given, lend_result=lends)
            if written_back:
                slot.destination = kept.destination
                run = _with_writeback(call, name, kept.args, kept.kwargs, modes, kept.destination, self._check)
            else:
                run = _without_writeback(call, name, kept.args, kept.kwargs, modes, self._check)
            held = None if written_back else given
            self._note_scalars(name, args, kwargs, given)
            self.graph.breaks.append(Break(name, run, slot, held, site, kept.cost))
            count("breaks")
            self.begin_segment(f"{name} ({site})")
        except BaseException as error:
            # The rest of the forward would no longer be captured, even if someone above catches this (S7).
            if self.failure is None:
                self.failure = error
            self.drop_segment()
            raise
        return given

    def _note_scalars(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], given: Any) -> None:
        """List the Python numbers that cross a break: no replay sees other ones."""
        found = list(scalars_in(args, f"argument of {name} "))
        for key, value in kwargs.items():
            found += scalars_in(value, f"argument of {name} {key}")
        self.graph.baked += [Baked(BakedKind.ARGUMENT, repr(value), where) for where, value in found]
        self.graph.baked += [Baked(BakedKind.RESULT, repr(value), f"result of {name}") for value in numbers_in(given)]

    def check_expected(self, expected: int | Sequence[str] | None) -> None:
        """Compare the break points met with those expected (S13); those that are not enabled are none.

        Raises:
            CaptureError: they differ; the message lists what was met.
        """
        if expected is None:
            return
        met = [point for point in self.graph.break_points if point.enabled]
        names = [point.name for point in met]
        if len(met) == expected if isinstance(expected, int) else names == list(expected):
            return
        wanted = f"{expected} break points" if isinstance(expected, int) else f"exactly {', '.join(expected) or 'nothing'}"
        raise CaptureError(
            f"{self.graph.label} was expected to meet {wanted}, and met {len(met)}: {_listed(met)}",
            rule="S13",
            remedy="mark the function that was captured by mistake, or mend expect_breaks",
        )


def _listed(met: Sequence[BreakMet]) -> str:
    """``attention (model.py:88) 28 times, sample (model.py:120)``, in the order of the forward."""
    runs: list[tuple[str, int]] = []
    for point in met:
        text = f"{point.name} ({point.site})"
        if runs and runs[-1][0] == text:
            runs[-1] = (text, runs[-1][1] + 1)
        else:
            runs.append((text, 1))
    return ", ".join(text if times == 1 else f"{text} {times} times" for text, times in runs) or "none"


def _waited_for(body: Callable[..., Any], current: Callable[[], Any], marks: dict[int, Any]) -> Callable[..., Any]:
    """The body, and behind it whatever it left on other streams (S8)."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return BreakStreams(current, marks, keep=False).run(body, args, kwargs)

    return call


def _with_writeback(
    body: Callable[..., Any],
    name: str,
    args: Any,
    kwargs: Any,
    modes: TorchModes,
    destination: Any,
    check: CrossingCheck | None,
) -> Callable[[], None]:
    def run() -> None:
        with modes.entered():
            if check is not None:
                check.look((*args, kwargs), f"argument of {name} ")
            copy_output(destination, body(*args, **kwargs), where=name)
            if check is not None:
                check.look(destination, f"result of {name} ")

    return run


def _without_writeback(
    body: Callable[..., Any], name: str, args: Any, kwargs: Any, modes: TorchModes, check: CrossingCheck | None
) -> Callable[[], None]:
    def run() -> None:
        with modes.entered():
            if check is not None:
                check.look((*args, kwargs), f"argument of {name} ")
            if not isinstance(body(*args, **kwargs), NoWriteback):
                raise BreakError(
                    f"{name} returned a value on replay, but NoWriteback at capture",
                    rule="S2",
                    remedy="return seam.NoWriteback in both, or in neither",
                )

    return run
