"""The capture scope and the break points inside it."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, ParamSpec, TypeVar, overload

import torch

from seam import active
from seam.backend import Pool, SegmentInfo
from seam.collector import collector_paused
from seam.errors import BreakError, CaptureError, CaptureFailed
from seam.graph import Break, BreakableGraph, GraphState
from seam.mode import Mode
from seam.slot import BreakSlot, NoWriteback, copy_output, storages_of
from seam.torch_modes import TorchModes

__all__ = ["capture", "eager_break", "graph_break"]

_log = logging.getLogger("seam")
_P = ParamSpec("_P")
_R = TypeVar("_R")
_ERROR_MODES = ("global", "thread_local", "relaxed")


class _CaptureScope:
    """One open scope: it knows whether a segment is being recorded, and what went wrong first."""

    def __init__(
        self, graph: BreakableGraph, pool: Pool, capture_error_mode: str, generators: Sequence[torch.Generator]
    ) -> None:
        self.graph = graph
        self.pool = pool
        self.capture_error_mode = capture_error_mode
        self.generators = tuple(generators)
        self.recording = False
        self.failure: BaseException | None = None
        self._slots: list[BreakSlot] = []

    @property
    def splits(self) -> bool:
        """Whether a break point met now ends the segment. Inside a break body it is a plain call (S6)."""
        return self.recording and self.graph.mode is Mode.BREAKABLE

    def begin_segment(self) -> None:
        graph = self.graph
        if len(graph.segments) != len(graph.breaks):
            raise CaptureError(
                f"{graph.label} has {len(graph.segments)} segments and {len(graph.breaks)} breaks before the next segment",
                rule="S1",
                remedy="do not edit .segments or .breaks while a scope is open",
            )
        info = SegmentInfo(position=len(graph.segments), label=graph.label)
        more: dict[str, Any] = {"generators": self.generators} if self.generators else {}  # a backend need not know any
        graph.backend.begin_capture(self.pool, segment=info, capture_error_mode=self.capture_error_mode, **more)
        self.recording = True

    def end_segment(self) -> None:
        self.recording = False  # also when the call raises: the device has ended the capture all the same
        self.graph.segments.append(self.graph.backend.end_capture())

    def drop_segment(self) -> None:
        """End the capture on the stream after a failure; the first error is on its way and must not be replaced."""
        if self.recording:
            self.recording = False
            try:
                self.graph.backend.end_capture(discard=True)
            except Exception:
                _log.warning("%s: the failed capture could not be ended cleanly", self.graph.label, exc_info=True)

    def run_break(self, body: Callable[..., Any], name: str, slot: BreakSlot, args: Any, kwargs: Any) -> Any:
        """End the segment, run the body, take over its result, begin the next segment."""
        try:
            if any(slot is taken for taken in self._slots):
                raise BreakError(
                    f"{name}: its slot {slot.name!r} is already the destination of another break of {self.graph.label}",
                    rule="S3",
                    remedy="give each break of a capture a slot of its own (the default)",
                )
            self._slots.append(slot)
            self.end_segment()
            modes = TorchModes.current()
            result = body(*args, **kwargs)
            if isinstance(result, NoWriteback):
                given = result.value
                run = _without_writeback(body, name, args, kwargs, modes)
            else:
                given = slot.bind(result, kept=storages_of((args, kwargs)), where=name)
                run = _with_writeback(body, name, args, kwargs, modes, given)
            self.graph.breaks.append(Break(name, run, slot, given))
            self.begin_segment()
        except BaseException as error:
            # The rest of the forward would no longer be captured, even if someone above catches this (S7).
            if self.failure is None:
                self.failure = error
            self.drop_segment()
            raise
        return given


def _with_writeback(
    body: Callable[..., Any], name: str, args: Any, kwargs: Any, modes: TorchModes, destination: Any
) -> Callable[[], None]:
    def run() -> None:
        with modes.entered():
            copy_output(destination, body(*args, **kwargs), where=name)

    return run


def _without_writeback(body: Callable[..., Any], name: str, args: Any, kwargs: Any, modes: TorchModes) -> Callable[[], None]:
    def run() -> None:
        with modes.entered():
            if not isinstance(body(*args, **kwargs), NoWriteback):
                raise BreakError(
                    f"{name} returned a value on replay, but NoWriteback at capture",
                    rule="S2",
                    remedy="return seam.NoWriteback in both, or in neither",
                )

    return run


@contextmanager
def capture(
    graph: BreakableGraph,
    pool: Pool | None = None,
    stream: Any = None,
    capture_error_mode: str = "thread_local",
    *,
    mode: Mode | str = Mode.BREAKABLE,
    generators: Sequence[torch.Generator] = (),
) -> Iterator[BreakableGraph]:
    """Capture the work of the body into ``graph``; the counterpart of ``torch.cuda.graph``, with the same arguments.

    Functions marked with :func:`eager_break`, and :func:`graph_break`, split the capture into segments. As with
    ``torch.cuda.graph`` captured work does not run: tensors made inside hold no result before the first replay, and a
    break body runs on such tensors once, at capture, for the structure of its result.

    Args:
        graph: receives the segments; empty, reset, inert or failed before.
        pool: the pool to capture into, such as ``other.pool``; a new one if None. All graphs of a pool share its memory,
            so the output of one is valid until another of them is replayed.
        stream: the capture stream, if a new pool is made.
        capture_error_mode: ``"thread_local"``, ``"global"`` or ``"relaxed"``, as in ``torch.cuda.graph``. The default
            differs from torch's: another thread's call then cannot invalidate this capture (rule S12).
        mode: ``"breakable"``, ``"full"`` (break points are plain calls) or ``"disabled"`` (nothing is captured).
        generators: those that the captured work draws random numbers from, besides the device's default one; as with
            ``torch.cuda.CUDAGraph.register_generator_state``.

    Raises:
        CaptureError: scopes nest, the graph holds a capture already, or an argument is off; no backend call was made.
        CaptureFailed: an error inside was caught inside, so that the rest of the forward was lost (rule S7).

    Any other exception of the body passes through after the capture was ended and dropped; the first one wins. Stream,
    pool and graph can capture again at once.
    """
    mode = Mode.parse(mode)
    _check(graph, pool, stream, capture_error_mode)
    if mode is Mode.DISABLED:
        graph._begin(mode, None)
        yield graph
        return
    if pool is None:
        pool = graph.backend.new_pool(stream)
    graph._begin(mode, pool)
    scope = _CaptureScope(graph, pool, capture_error_mode, generators)
    try:
        with ExitStack() as contexts:
            contexts.enter_context(collector_paused())
            contexts.enter_context(pool.entered())
            active.set_current(scope)
            contexts.callback(active.set_current, None)
            try:
                scope.begin_segment()
                yield graph
                if scope.failure is None:
                    scope.end_segment()
            except BaseException:
                scope.drop_segment()
                raise
        if scope.failure is not None:
            raise CaptureFailed(
                f"{graph.label}: an error was caught inside the scope, and nothing was captured after it: {scope.failure}",
                rule="S7",
                remedy="let errors of a break leave the seam.capture scope, or mend the cause",
            ) from scope.failure
        graph._succeed()
    except BaseException as error:
        first = scope.failure or error
        scope.failure = None  # the exception's frames hold the scope: a cycle would keep the pool's memory alive
        try:
            graph._fail(first)
            if first is error or isinstance(error, CaptureFailed) or not isinstance(error, Exception):
                raise
            raise first from first.__cause__
        finally:
            del first


def _check(graph: BreakableGraph, pool: Pool | None, stream: Any, capture_error_mode: str) -> None:
    """Refuse what cannot work before any backend call (S6)."""
    if active.current() is not None:
        raise CaptureError(
            f"{graph.label}: this thread is inside another seam.capture scope",
            rule="S6",
            remedy="capture one graph after the other; captures do not nest",
        )
    if graph.state in (GraphState.CAPTURED, GraphState.CAPTURING, GraphState.CLOSED):
        raise CaptureError(
            f"{graph.label} is {graph.state.value}",
            rule="S6",
            remedy="make a new BreakableGraph" if graph.state is GraphState.CLOSED else "call .reset() first, or use a new one",
        )
    if capture_error_mode not in _ERROR_MODES:
        raise CaptureError(
            f"{graph.label}: capture_error_mode {capture_error_mode!r} is unknown",
            rule="S12",
            remedy=f"use one of {', '.join(map(repr, _ERROR_MODES))}",
        )
    if pool is not None and stream is not None and stream != pool.stream:
        raise CaptureError(
            f"{graph.label}: the stream given is not the capture stream of the pool given",
            rule="M1",
            remedy="leave stream out: every segment of a pool is captured on the pool's own stream",
        )


@overload
def eager_break(function: Callable[_P, _R], /) -> Callable[_P, _R]: ...
@overload
def eager_break(
    *, name: str | None = None, slot: BreakSlot | None = None
) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]: ...
def eager_break(function: Any = None, /, *, name: str | None = None, slot: BreakSlot | None = None) -> Any:
    """Mark a function that runs between segments, at capture and again at every replay.

    What it returns is written back at each replay into the storage that the next segment reads (rules S2 to S4): a tensor,
    a sequence, mapping, dataclass or object with tensor fields, None, or a scalar that never changes. It may also write
    into its arguments and return None. A result that no segment reads may be returned as ``NoWriteback(value)``. The
    arguments of the capture are kept and passed again: tensors among them hold what the segment before wrote.

    Outside a capture scope, in a scope of mode ``full`` or ``disabled``, and inside another break it is a plain call (S9).

    Args:
        name: for messages; the function's qualified name if None.
        slot: an explicit destination, to be shared between captures; by default each break has one of its own.

    Raises:
        BreakError: at capture, for a result that cannot be written back or a slot used twice in one capture.
    """
    if function is None:
        return functools.partial(eager_break, name=name, slot=slot)
    shown = str(name or getattr(function, "__qualname__", repr(function)))

    @functools.wraps(function)
    def marked(*args: Any, **kwargs: Any) -> Any:
        scope = active.current()
        if not isinstance(scope, _CaptureScope) or not scope.splits:
            return function(*args, **kwargs)
        return scope.run_break(function, shown, slot or BreakSlot(shown), args, kwargs)

    return marked


def graph_break(name: str = "graph_break") -> None:
    """End the segment here and begin the next one, with nothing in between. Outside a capture it does nothing (S9)."""
    scope = active.current()
    if isinstance(scope, _CaptureScope) and scope.splits:
        scope.run_break(_nothing, name, BreakSlot(name), (), {})


def _nothing() -> None:
    pass
