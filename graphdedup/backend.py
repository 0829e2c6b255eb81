"""The seam backend that folds: it wraps another one and interposes where segments come and go."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch

from graphdedup import events, settings, snapshot
from graphdedup.capabilities import Capabilities
from graphdedup.driver import GraphDriver, driver_for
from graphdedup.errors import GraphDedupError
from graphdedup.estimate import ExecEstimate, estimate_live
from graphdedup.events import Kind, Span
from graphdedup.export import answer, captured_topology, graphs_file
from graphdedup.footprint import modelled_exec_bytes
from graphdedup.graphs_file import GraphsFile
from graphdedup.group import Member
from graphdedup.observing import observe_if_asked
from graphdedup.plan import plan_digest
from graphdedup.policy import FoldPolicy, Verify
from graphdedup.registries import registry_of
from graphdedup.registry import Registry
from graphdedup.report.model import FootprintReport
from graphdedup.session import EndedSessions, SessionLog
from graphdedup.stats import Stats
from graphdedup.topology import Node, Topology
from seam.backend import GraphBackend, Handle, HostCopy, Pool, SegmentInfo
from seam.plan import MemoryPlan

if TYPE_CHECKING:
    from graphdedup.verify import Verifier

__all__ = ["DedupBackend", "DedupHandle"]


class DedupHandle:
    """A captured segment, as :class:`DedupBackend` hands it out: the wrapped backend's handle and its place in the fold."""

    __slots__ = ("inner", "member")

    def __init__(self, inner: Handle, member: Member | None) -> None:
        self.inner = inner
        self.member = member


class _Current(threading.local):
    segment: SegmentInfo = SegmentInfo()
    event: Span | None = None
    pool: int = 0


class DedupBackend:
    """Folds the executables of another seam backend: N captured graphs, M execs, the same bytes at every replay.

    It takes each graph at ``end_capture``, launches it in ``replay_graph`` and lets it go in ``destroy_graph``. A graph that
    cannot be folded keeps an executable of its own, or the wrapped backend's; :meth:`report` says why. Backends of one
    device with equal policies share a registry: their graphs fold onto the same executables, and their counters are one.

    Args:
        inner: the backend to wrap, such as ``seam.default_backend()``.
        policy: what may share an executable and how many there may be; a tier's name stands for a policy of that tier.
        enabled: False hands everything to ``inner``, untouched (rule D14); None asks ``GRAPHDEDUP_DISABLE``.
        verify: compare each graph's first replays with an executable of its own; True for :class:`Verify`'s defaults; None
            asks ``GRAPHDEDUP_VERIFY``.
        sync: wait for the current stream after each launch, to see which one fails; None asks ``GRAPHDEDUP_SYNC``.
        log: a level from which on graphdedup logs to stderr; None asks ``GRAPHDEDUP_LOG``.
        driver: for a backend that is neither CUDA's nor simulated; its registry is this backend's alone.
        capabilities: what an update carries here; None takes what was measured before, or measures it now in a child process
            (``GRAPHDEDUP_PROBE=0`` forbids that, and functions and clusters then stay in the key).

    Raises:
        DriverError: no driver can be had for ``inner``, such as CUDA without the ``cuda`` extra.
        SettingsError: an environment switch holds something that is no switch, or an argument is unknown.
    """

    def __init__(
        self,
        inner: GraphBackend,
        policy: FoldPolicy | str | None = None,
        *,
        enabled: bool | None = None,
        verify: Verify | bool | None = None,
        sync: bool | None = None,
        log: str | None = None,
        driver: GraphDriver | None = None,
        capabilities: Capabilities | None = None,
    ) -> None:
        self.inner = inner
        self.policy = FoldPolicy.of(policy)
        self.enabled = not settings.switch(settings.DISABLE, None if enabled is None else not enabled, False)
        self._sync = settings.switch(settings.SYNC, sync, False)
        level = settings.log_level(log)
        if level is not None:
            settings.log_to_stderr(level)
        observe_if_asked()
        checks = verify if isinstance(verify, Verify) else None
        if checks is None and settings.switch(settings.VERIFY, verify if not isinstance(verify, Verify) else None, False):
            checks = Verify()
        self.registry: Registry | None = None
        self._verifier: Verifier | None = None
        if self.enabled:
            if driver is not None:
                self.registry = Registry(driver, self.policy, capabilities=capabilities)
            else:
                self.registry = registry_of(driver_for(inner), self.policy, capabilities)
            if checks is not None:
                from graphdedup.verify import Verifier

                self._verifier = Verifier(
                    self.registry.driver.memory(), replays=checks.replays, fresh_inputs=checks.fresh_inputs
                )
        device = getattr(inner, "device", None)
        self._sessions = SessionLog(
            device if isinstance(device, torch.device) else torch.device("cpu"),
            EndedSessions() if self.registry is None else self.registry.sessions,
        )
        self._plain = Counter[str]()
        self._current = _Current()

    @property
    def name(self) -> str:
        """The wrapped backend's name."""
        return self.inner.name

    # The seam's calls

    def new_pool(self, stream: Any = None, *, handle: Any = None) -> Pool:
        """A pool of the wrapped backend."""
        return self.inner.new_pool(stream) if handle is None else self.inner.new_pool(stream, handle=handle)

    def begin_capture(
        self,
        pool: Pool,
        *,
        segment: SegmentInfo | None = None,
        capture_error_mode: str = "thread_local",
        generators: Sequence[torch.Generator] = (),
    ) -> None:
        """Begin a capture; opens a session if none is open."""
        self._sessions.begin("")
        if self.registry is not None:
            self._current.pool = self.registry.pools.add(pool)
        self._current.segment = segment or SegmentInfo()
        event = events.begin(Kind.CAPTURE, self._current.segment) if self.registry is not None else None
        others = {"generators": generators} if generators else {}
        try:
            self.inner.begin_capture(pool, segment=segment, capture_error_mode=capture_error_mode, **others)
        except BaseException as error:
            if event is not None:
                event.close(error)
            raise
        self._current.event = event

    def end_capture(self, *, discard: bool = False) -> DedupHandle | None:
        """End the capture and fold what it recorded.

        Raises:
            DriverError: the graph cannot be instantiated; it was released.
        """
        event, self._current.event = self._current.event, None
        with event or nullcontext():
            if event is not None and discard:
                event.event.outcome = "discarded"
            inner = self.inner.end_capture(discard=discard)
        if discard or inner is None:
            return None
        return self._take(inner, self._current.segment, self._current.pool)

    def adopt(self, captured: Handle, segment: SegmentInfo, *, detachable: bool = True, runner: str = "") -> DedupHandle:
        """Fold a graph that somebody else captured, as :func:`graphdedup.interpose` does. ``inner`` knows its handles.

        Args:
            captured: the wrapped backend's handle, whose ``pool`` a report counts.
            segment: what reports call it.
            detachable: whether random numbers may be advanced through the graph itself, which then is emptied (rule D12); else
                a graph that may draw keeps the wrapped backend's executable.
            runner: whose graph it is, for the log line.

        Raises:
            DriverError: the graph cannot be instantiated. ``captured`` stays the caller's.
        """
        self._sessions.begin(runner, shown=True)
        pool = 0
        if self.registry is not None:
            pool = self.registry.pools.add(captured.pool)
        return self._take(captured, segment, pool, detachable=detachable, owned=False)

    def _take(
        self, inner: Handle, segment: SegmentInfo, pool: int, *, detachable: bool = True, owned: bool = True
    ) -> DedupHandle:
        if self.registry is None:
            self._plain["captured"] += 1
            self._plain["live"] += 1
            self._plain["peak"] = max(self._plain["peak"], self._plain["live"])
            self._sessions.captured(None)
            return DedupHandle(inner, None)
        try:
            raw = self.registry.driver.raw(inner)
            handle = inner if detachable else None
            member = self.registry.fold(raw, segment, session=self._sessions.name, pool=pool, handle=handle)
        except BaseException:
            if owned:
                self.inner.destroy_graph(inner)
            raise
        if self._verifier is not None:
            member.checks_left = self._verifier.replays
        self._sessions.captured(member)
        return DedupHandle(inner, member)

    def replay_graph(self, handle: DedupHandle) -> None:
        """Queue the segment on the current stream: through a shared executable, or the wrapped backend's own."""
        if self._sessions.over():
            self.seal()
        if handle.member is None or self.registry is None:
            self.inner.replay_graph(handle.inner)
            return
        segment = handle.member.segment
        if self._sync and segment.after:
            self._wait(f"the break {segment.after} before {segment}")
        if not self.registry.replay(handle.member, self._verifier):
            with events.span(Kind.LAUNCH, segment):
                self.inner.replay_graph(handle.inner)
        if self._sync:
            self._wait(str(segment))

    def _wait(self, what: str) -> None:
        """Wait for the current stream; an error that shows here was made by ``what``."""
        try:
            if self.registry is not None:
                self.registry.driver.synchronize()
        except Exception as error:
            error.add_note(f"The device reported this when it had come to the end of {what}.")
            raise

    def destroy_graph(self, handle: DedupHandle) -> None:
        """The one way a segment goes: the group forgets it, the last member frees the executable, then the graph goes."""
        try:
            if self.registry is None or handle.member is None:
                self._plain["live"] -= 1
            else:
                self.registry.release(handle.member)
        finally:
            self.inner.destroy_graph(handle.inner)

    # Sessions

    @contextmanager
    def session(self, name: str) -> Iterator[None]:
        """Captures inside belong to one session of this name: one log line, one row in the report."""
        self.seal()
        self._sessions.begin(name)
        try:
            yield
        finally:
            self.seal()

    def end_sessions_after(self, quiet_seconds: float) -> None:
        """Have a replay end a session only when nothing was captured for so long; at once by default."""
        self._sessions.quiet_seconds = quiet_seconds

    def seal(self) -> None:
        """End the open capture session, if any; the first replay after captures does it as well."""
        self._sessions.seal()

    # What one can ask

    def stats(self) -> Stats:
        """The counters now. Cheap: nothing is measured and the device is not touched."""
        if self.registry is None:
            captured, live, peak = (self._plain[name] for name in ("captured", "live", "peak"))
            return Stats(captured=captured, execs=live, peak_execs=peak, passed_through=live)
        return snapshot.stats(self.registry)

    def report(self) -> FootprintReport:
        """What the captured graphs cost, with the source of each figure (rules M3, M5). Seals an open session.

        Raises:
            GraphDedupError: the fold is switched off, so there is nothing to report.
        """
        registry = self._registry("nothing is measured")
        self.seal()
        return snapshot.footprint(registry)

    def modelled_exec_bytes(self) -> int | None:
        """Device bytes of the live executables by the table in docs/memory-model.md; None where the fold is switched off.

        For plans: what is measured moves in steps of 2 MB, in which the executables of a few graphs do not show.
        """
        if self.registry is None:
            return None
        return sum(modelled_exec_bytes(one.node_count)[0] for group in self.registry.groups() for one in group.executables)

    def estimate(
        self,
        shapes: int | Iterable[int],
        *,
        session: str | None = None,
        groups_at_most: int | None = None,
        streams: int = 1,
        plan: MemoryPlan | None = None,
    ) -> ExecEstimate:
        """Device bytes that the executables of a whole ladder will take, folded and not, from the graphs that are captured
        now: two shapes at least. Modelled, with upper bounds; see :func:`graphdedup.estimate_bytes` and docs/estimate.md.

        Args:
            shapes: the shapes of the ladder, or how many there are.
            session: whose graphs to look at; may be left out where all live ones are of one session.
            groups_at_most: how many groups the ladder folds to at most, where that is known.
            streams: on how many streams graphs of one group are replayed at once.
            plan: a plan of :meth:`seam.CapturedForward.plan`, whose pool is to stand beside it.

        Raises:
            GraphDedupError: the fold is switched off, or the live graphs are too few, of several sessions, or not alike.
            SettingsError: a number is none, or less than what is captured.
        """
        registry = self._registry("nothing was read")
        return estimate_live(
            registry, shapes=shapes, session=session, groups_at_most=groups_at_most, streams=streams, plan=plan
        )

    def plan_digest(self) -> str:
        """32 hexadecimal digits, equal in every process that captured and folded the same graphs alike.

        Raises:
            GraphDedupError: the fold is switched off.
        """
        return plan_digest(self._registry("there is no plan").members.values())

    def topology(self, handle: DedupHandle) -> Topology:
        """Export a captured segment, such as ``graph.segments[0]``.

        Raises:
            GraphDedupError: the fold is switched off, or the segment was destroyed.
        """
        registry = self._registry("the segment cannot be exported")
        return captured_topology(registry.driver, self._member(handle))

    def host_copies(self, handle: DedupHandle) -> tuple[HostCopy, ...]:
        """Copies of a captured segment between host and device, for the seam; none are told where the fold is switched off."""
        member = handle.member
        if self.registry is None or member is None or member.raw is None or not member.host_copies:
            return ()
        return tuple(_host_copies(self.registry.driver.topology(member.raw).nodes))

    def explain(self, handle: DedupHandle, other: DedupHandle | None = None) -> str:
        """Why two captured segments fold or do not, in one or a few lines; alone, against the group nearest to it.

        Raises:
            GraphDedupError: the fold is switched off, a segment was destroyed, or both are the same.
        """
        registry = self._registry("nothing was compared")
        members = [self._member(one) for one in (handle, other) if one is not None]
        return answer(registry, *members).text

    def export(self) -> GraphsFile:
        """Every live captured graph with what the fold knows of it, to be kept as a file for ``graphdedup explain``.

        Raises:
            GraphDedupError: the fold is switched off.
        """
        return graphs_file(self._registry("no graph was read"))

    def _member(self, handle: DedupHandle) -> Member:
        if handle.member is None or handle.member.raw is None:
            raise GraphDedupError(
                "the segment cannot be exported: it was destroyed",
                rule="S14",
                remedy="export it while its graph is alive",
            )
        return handle.member

    def _registry(self, consequence: str) -> Registry:
        if self.registry is None:
            raise GraphDedupError(
                f"the fold is switched off: {consequence}",
                rule="D14",
                remedy=f"construct DedupBackend with enabled=True, or unset {settings.DISABLE}",
            )
        return self.registry


def _host_copies(nodes: Iterable[Node]) -> Iterator[HostCopy]:
    """Ends of copies that lie on the host, or where the driver does not tell: then it is no device's."""
    for node in nodes:
        if node.child is not None:
            yield from _host_copies(node.child.nodes)
        elif node.memory is not None and node.parameters["height"] <= 1 and node.parameters["depth"] <= 1:
            for side, end in zip(node.memory, ("source", "destination"), strict=True):
                if side in ("host", "unknown"):
                    yield HostCopy(node.parameters[end], node.parameters["width_bytes"], end == "source")
