"""A captured forward: segments and the breaks between them."""

from __future__ import annotations

import enum
import itertools
import logging
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from seam import active
from seam.backend import GraphBackend, Handle, Pool
from seam.baked import Baked
from seam.counters import count
from seam.errors import CaptureError, ReplayError
from seam.memory import CrossingBytes
from seam.mode import Mode
from seam.turns import Turn, turn_of

__all__ = ["Break", "BreakMet", "BreakableGraph", "GraphCounts", "GraphState"]

_log = logging.getLogger("seam")
_numbers = itertools.count(1)


class GraphState(enum.StrEnum):
    """Where a :class:`BreakableGraph` stands."""

    EMPTY = "empty"
    """Nothing captured yet, or reset."""
    CAPTURING = "capturing"
    CAPTURED = "captured"
    INERT = "inert"
    """Its scope was inert (mode ``disabled``): nothing was captured, and nothing is wrong."""
    FAILED = "failed"
    """Its capture failed and was dropped; ``error`` holds the first error. It can be captured again."""
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class Break:
    """One break of a graph. ``run`` is the seam's closure: it calls the body and writes its result back (S2).

    ``held`` is what the captured program got in place of a result that is never written back: segments bake its addresses, so
    it lives as long as the graph (S5).
    """

    name: str
    run: Callable[[], None]
    slot: Any = None
    held: Any = None
    site: str = ""
    """Where the forward met it: ``file:line``."""
    cost: CrossingBytes = field(default_factory=CrossingBytes)


@dataclass(frozen=True, slots=True)
class BreakMet:
    """A break point that a capture met, in the order of the forward; those inside of breaks are left out."""

    name: str
    site: str
    """``file:line`` of the caller."""
    enabled: bool = True
    splits: bool = True
    """Whether it ended the segment; not so in mode ``full``, and where it was not enabled."""


@dataclass(frozen=True, slots=True)
class GraphCounts:
    """What a graph's capture met and made, and how often it was replayed."""

    break_points: int
    """Break points met, those that ran as plain calls too."""
    breaks: int
    segments: int
    replays: int
    forks: int = 0
    """Side streams that joined the capture."""
    joins: int = 0
    """Joins that the seam made before segments ended (rule S8); a stream that was joined already counts as well."""


class BreakableGraph:
    """A forward as segments (captured graphs) with breaks (eager code) between them.

    Capture into it with :func:`seam.capture`, then :meth:`replay` any number of times; inputs are read from the storage
    that they had at capture. :meth:`close` releases every segment through ``backend.destroy_graph`` (rule S14); a graph
    that is dropped or alive at interpreter exit is closed as well.

    Args:
        backend: where to capture; :func:`seam.default_backend` picks one.
        label: a name for messages and reports, such as ``"decode bs=8"``.

    Attributes:
        segments: handles of the captured segments, in order.
        breaks: the breaks; always one fewer than the segments (rule S1).
        pool: the pool that was captured into, to be shared with other graphs: ``seam.capture(other, pool=graph.pool)``.
        break_points: what the capture met, also if it failed.
        baked: what the capture holds from the host as it was: see :class:`seam.Baked`.
        error: the first error of a capture that failed, as text (an exception would keep the failed frames alive).
        poisons: whether each replay first poisons what its pool holds for nobody, for debugging.
    """

    def __init__(self, backend: GraphBackend, *, label: str = "") -> None:
        self.backend = backend
        self.label = label or f"graph {next(_numbers)}"
        self.state = GraphState.EMPTY
        self.segments: list[Handle] = []
        self.breaks: list[Break] = []
        self.break_points: list[BreakMet] = []
        self.baked: list[Baked] = []
        self._host_memory: list[Any] = []
        self.met_count = self.fork_count = self.join_count = 0
        self.pool: Pool | None = None
        self.mode = Mode.BREAKABLE
        self.error = ""
        self.replay_count = 0
        self.poisons = False
        self._ref = weakref.ref(self)
        self._turn = Turn()
        # The finalizer must not hold the graph, so it holds the list that the graph appends to.
        self._finalizer = weakref.finalize(self, _release_quietly, backend, self.segments)

    def __repr__(self) -> str:
        return f"<BreakableGraph {self.label!r} {self.state.value}: {len(self.segments)} segments, {len(self.breaks)} breaks>"

    def replay(self) -> None:
        """Run segment 0, break 0, segment 1, ... on the current stream (rule S1).

        Raises:
            ReplayError: the graph is not captured (the message says in which state it is and why), this thread is capturing,
            it is inside a break of a graph of the same pool, or another thread works in its pool.
            BreakError: a break's result does not agree with what was captured; later segments did not run.
        """
        pool = self.pool
        if self.state is not GraphState.CAPTURED or pool is None:
            raise ReplayError(
                f"{self.label} is {self.state.value} and cannot be replayed{f' ({self.error})' if self.error else ''}",
                rule="S7",
                remedy=_REMEDIES[self.state],
            )
        if active.recording():
            raise ReplayError(
                f"{self.label} cannot be replayed while this thread captures another graph",
                rule="S6",
                remedy="replay it outside the capture, or inside a function marked with @seam.eager_break",
            )
        self.check_shape()
        turn = self._turn
        replay_graph = self.backend.replay_graph
        turn.take("replayed", self.label, ReplayError)
        try:
            turn.follow(pool)
            turn.last = self._ref
            if self.poisons:
                pool.poison_free()
            for handle, at in zip(self.segments, self.breaks, strict=False):
                replay_graph(handle)
                at.run()
            replay_graph(self.segments[-1])
        finally:
            turn.give_back(pool)
        self.replay_count += 1
        count("replays")

    @property
    def crossing(self) -> CrossingBytes:
        """What crosses the breaks, summed over them (rule M2); a tensor that crosses several of them counts at each."""
        return CrossingBytes(sum(at.cost.shared_bytes for at in self.breaks), sum(at.cost.held_bytes for at in self.breaks))

    @property
    def counts(self) -> GraphCounts:
        """Counts of this capture and its replays."""
        return GraphCounts(
            break_points=self.met_count,
            breaks=len(self.breaks),
            segments=len(self.segments),
            replays=self.replay_count,
            forks=self.fork_count,
            joins=self.join_count,
        )

    def check_shape(self) -> None:
        """Check rule S1, segments = breaks + 1.

        Raises:
            CaptureError: they do not agree.
        """
        if len(self.segments) != len(self.breaks) + 1:
            raise CaptureError(
                f"{self.label} has {len(self.segments)} segments and {len(self.breaks)} breaks",
                rule="S1",
                remedy="capture it again; do not edit .segments or .breaks",
            )

    def reset(self) -> None:
        """Release what was captured; the same object can be captured again. Waits for no replay's result.

        Raises:
            CaptureError: it is being captured right now.
        """
        if self.state is GraphState.CAPTURING:
            raise CaptureError(
                f"{self.label} is being captured", rule="S6", remedy="leave its seam.capture scope before you reset it"
            )
        self._forget(GraphState.CLOSED if self.state is GraphState.CLOSED else GraphState.EMPTY)

    def close(self) -> None:
        """Release what was captured, for good. Calling it again does nothing (rule S14).

        Raises:
            CaptureError: it is being captured right now.
        """
        try:
            self.reset()
        finally:
            if self.state is not GraphState.CAPTURING:
                self.state = GraphState.CLOSED
                self._finalizer.detach()

    # What a capture scope does to its graph; not for users.

    def _begin(self, mode: Mode, pool: Pool | None) -> None:
        self.error = ""
        self.poisons = False
        self.mode = mode
        self.pool = pool
        if pool is not None:
            self._turn = turn_of(pool)
        self._unmeet()
        self.state = GraphState.CAPTURING if pool is not None else GraphState.INERT

    def _unmeet(self) -> None:
        self.break_points.clear()
        self.met_count = self.fork_count = self.join_count = 0

    def _hold(self, source: Any) -> None:
        """Keep host memory that a segment names for as long as the segment."""
        self._host_memory.append(source)

    def _succeed(self) -> None:
        self.check_shape()
        self.state = GraphState.CAPTURED

    def _fail(self, error: BaseException) -> None:
        """Drop what was captured (S7). The handles go back through the same hook as every other (S14)."""
        self.error = f"{type(error).__name__}: {error}"
        try:
            self._forget(GraphState.FAILED)
        except Exception:  # the first error is on its way to the caller and must not be replaced
            _log.warning("%s: a segment of the failed capture could not be released", self.label, exc_info=True)

    def _forget(self, state: GraphState) -> None:
        try:
            _release(self.backend, self.segments)
        finally:
            self.breaks.clear()
            self.baked.clear()
            self._host_memory.clear()
            self.pool = None
            self.replay_count = 0
            if state is not GraphState.FAILED:
                self.error = ""
                self._unmeet()
            self.state = state


_REMEDIES = {
    GraphState.EMPTY: "capture it first: with seam.capture(graph): ...",
    GraphState.CAPTURING: "leave its seam.capture scope first",
    GraphState.INERT: "its scope was inert: call the forward itself",
    GraphState.FAILED: "its capture failed; mend the cause, then capture it again",
    GraphState.CLOSED: "it was closed; make and capture a new one",
}


def _release(backend: GraphBackend, segments: list[Handle]) -> None:
    """Hand each handle back exactly once, the first captured last, even when one of them raises (S14)."""
    first_error: Exception | None = None
    while segments:
        handle = segments.pop()
        try:
            backend.destroy_graph(handle)
        except Exception as error:
            first_error = first_error or error
    if first_error is not None:
        raise first_error


def _release_quietly(backend: GraphBackend, segments: list[Handle]) -> None:
    """The finalizer's way: it may run inside any other code, where an exception could only be printed."""
    try:
        _release(backend, segments)
    except Exception:
        _log.warning("a graph that was dropped without close() could not be released", exc_info=True)
