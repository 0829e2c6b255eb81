"""The capture scope."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from seam import active, settings
from seam.backend import Pool
from seam.break_at import BreakAt
from seam.collector import collector_paused
from seam.counters import count
from seam.crossing import CrossingCheck
from seam.errors import CaptureError, CaptureFailed
from seam.graph import BreakableGraph, GraphState
from seam.mode import Mode
from seam.scope import CaptureScope
from seam.turns import turn_of

__all__ = ["capture"]

_ERROR_MODES = ("global", "thread_local", "relaxed")


@contextmanager
def capture(
    graph: BreakableGraph,
    pool: Pool | None = None,
    stream: Any = None,
    capture_error_mode: str = "thread_local",
    *,
    mode: Mode | str = Mode.BREAKABLE,
    generators: Sequence[torch.Generator] = (),
    expect_breaks: int | Sequence[str] | None = None,
    break_at: Sequence[Any] = (),
    warmup: Callable[[], object] | None = None,
    barrier_fn: Callable[[], object] | None = None,
    check_crossing: CrossingCheck | str | None = None,
) -> Iterator[BreakableGraph]:
    """Capture the work of the body into ``graph``; the counterpart of ``torch.cuda.graph``, with the same arguments.

    Functions marked with :func:`seam.eager_break`, and :func:`seam.graph_break`, split the capture into segments. As with
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
        expect_breaks: how many break points the forward has to meet, or their names in order; another number or another
            name fails the capture with the list of what it met (rule S13). Break points inside of breaks are left out.
        break_at: functions to break at that are not marked: what :func:`seam.break_at` takes, or what it returns.
        warmup: called on the capture stream before the capture, such as the forward itself: first launches load modules and
            choose algorithms, which no capture can hold. The stream is synchronised after it.
        barrier_fn: called before the capture, after that, and before each break of it: for ranks that have to enter
            collectives together. Replays do not call it.
        check_crossing: ``"nan"`` or ``"poison"``: at each replay look for it in what crosses a break, for debugging.

    Raises:
        CaptureError: scopes nest, the graph holds a capture already, somebody works in its pool, or an argument is off; nothing
            was captured. Or, at the end, other break points were met than expected.
        CaptureFailed: an error inside was caught inside, so that the rest of the forward was lost (rule S7).

    Any other exception of the body passes through after the capture was ended and dropped; the first one wins. Stream,
    pool and graph can capture again at once.
    """
    mode = Mode.parse(mode)
    check = CrossingCheck.parse(check_crossing)
    _check(graph, pool, stream, capture_error_mode)
    points = [at if isinstance(at, BreakAt) else BreakAt(at) for at in break_at]
    if mode is Mode.DISABLED or settings.disabled():
        count("scope disabled")
        graph._begin(mode, None)
        if mode is not Mode.DISABLED:
            graph.error = f"{settings.DISABLE} is set"
        yield graph
        return
    if pool is None:
        pool = graph.backend.new_pool(stream)
    count(f"scope {mode}")
    graph._begin(mode, pool)
    scope = CaptureScope(
        graph, pool, capture_error_mode=capture_error_mode, generators=generators, barrier_fn=barrier_fn, check=check
    )
    try:
        with ExitStack() as contexts:
            turn = turn_of(pool)
            turn.take("captured", graph.label, CaptureError)
            contexts.callback(turn.give_back, pool)
            contexts.enter_context(pool.entered())
            turn.follow(pool)
            for point in points:
                contexts.enter_context(point)
            if warmup is not None:
                warmup()
            pool.stream.synchronize()  # work that is left over must not reach into the capture
            if barrier_fn is not None:
                barrier_fn()
            contexts.enter_context(collector_paused())
            active.set_current(scope)
            contexts.callback(active.set_current, None)
            contexts.callback(scope.count_streams)
            contexts.enter_context(scope.streams.watched())
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
        scope.check_expected(expect_breaks)
        _check_met(graph, points)
        graph._succeed()
        graph.poisons = check is CrossingCheck.POISON
    except BaseException as error:
        count("failed")
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


def _check_met(graph: BreakableGraph, points: Sequence[BreakAt]) -> None:
    """A function to break at that was never met was captured under another name, if at all (S13)."""
    missed = [point.name for point in points if point.required and not point.met_count]
    if missed:
        raise CaptureError(
            f"{graph.label} never came to {', '.join(missed)}",
            rule="S13",
            remedy="name the function where the forward looks it up, or say required=False",
        )
