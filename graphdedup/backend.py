"""The seam backend that folds: it wraps another one and interposes where segments come and go."""

from __future__ import annotations

import threading
import weakref
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import torch

from graphdedup import settings
from graphdedup.capabilities import Capabilities
from graphdedup.driver import GraphDriver, driver_for
from graphdedup.errors import GraphDedupError
from graphdedup.placement import Placement
from graphdedup.registry import Member, Registry
from graphdedup.report.model import Figure, FootprintReport, RefusalRow, SessionRow, Source
from graphdedup.session import SessionLog
from graphdedup.signature import Tier
from graphdedup.stats import Stats
from graphdedup.topology import Topology
from seam.backend import GraphBackend, Handle, Pool, SegmentInfo

__all__ = ["DedupBackend", "DedupHandle"]


class DedupHandle:
    """A captured segment, as :class:`DedupBackend` hands it out: the wrapped backend's handle and its place in the fold."""

    __slots__ = ("inner", "member")

    def __init__(self, inner: Handle, member: Member | None) -> None:
        self.inner = inner
        self.member = member


class _Current(threading.local):
    segment: SegmentInfo = SegmentInfo()


class DedupBackend:
    """Folds the executables of another seam backend: N captured graphs, M execs, the same bytes at every replay.

    It takes each graph at ``end_capture``, launches it in ``replay_graph`` and lets it go in ``destroy_graph``. A graph that
    cannot be folded keeps an executable of its own, or the wrapped backend's; :meth:`report` says why.

    Args:
        inner: the backend to wrap, such as ``seam.default_backend()``.
        enabled: False hands everything to ``inner``, untouched (rule D14); None asks ``GRAPHDEDUP_DISABLE``.
        tier: how much of a graph is in its key: ``"structure"`` or ``"function"``.
        placement: ``"group"``, the fewest executables; or ``"position"``, one per segment position, so that a steady
            batch size replays without updates.
        draws_vouched: True when the caller vouches that no captured graph draws random numbers. It matters on torch 2.12
            and newer, where that cannot be detected and graphs otherwise keep torch's own executable.
        driver: for a backend that is neither CUDA's nor simulated.
        capabilities: what an update carries here; None takes what was measured before, or measures it now in a child process
            (``GRAPHDEDUP_PROBE=0`` forbids that, and functions and clusters then stay in the key).

    Raises:
        DriverError: no driver can be had for ``inner``, such as CUDA without the ``cuda`` extra.
        SettingsError: the environment switch holds something that is no switch, or an argument is unknown.
    """

    def __init__(
        self,
        inner: GraphBackend,
        *,
        enabled: bool | None = None,
        tier: Tier | str = Tier.STRUCTURE,
        placement: Placement | str = Placement.GROUP,
        draws_vouched: bool = False,
        driver: GraphDriver | None = None,
        capabilities: Capabilities | None = None,
    ) -> None:
        self.inner = inner
        self.enabled = settings.enabled(enabled)
        self.registry: Registry | None = None
        if self.enabled:
            self.registry = Registry(
                driver or driver_for(inner),
                tier=settings.choice("tier", tier, Tier),
                placement=settings.choice("placement", placement, Placement),
                draws_vouched=draws_vouched,
                capabilities=capabilities,
            )
        device = getattr(inner, "device", None)
        self._sessions = SessionLog(device if isinstance(device, torch.device) else torch.device("cpu"))
        self._pools: weakref.WeakSet[Any] = weakref.WeakSet()
        self._plain = Counter[str]()
        self._current = _Current()

    @property
    def name(self) -> str:
        """The wrapped backend's name."""
        return self.inner.name

    # The seam's calls

    def new_pool(self, stream: Any = None) -> Pool:
        """A pool of the wrapped backend."""
        return self.inner.new_pool(stream)

    def begin_capture(
        self, pool: Pool, *, segment: SegmentInfo | None = None, capture_error_mode: str = "thread_local"
    ) -> None:
        """Begin a capture; opens a session if none is open."""
        self._sessions.begin("")
        self._pools.add(pool)
        self._current.segment = segment or SegmentInfo()
        self.inner.begin_capture(pool, segment=segment, capture_error_mode=capture_error_mode)

    def end_capture(self, *, discard: bool = False) -> DedupHandle | None:
        """End the capture and fold what it recorded.

        Raises:
            DriverError: the graph cannot be instantiated; it was released.
        """
        inner = self.inner.end_capture(discard=discard)
        if discard or inner is None:
            return None
        if self.registry is None:
            self._plain["captured"] += 1
            self._plain["live"] += 1
            self._sessions.captured(None)
            return DedupHandle(inner, None)
        try:
            member = self.registry.fold(self.registry.driver.raw(inner), self._current.segment)
        except BaseException:
            self.inner.destroy_graph(inner)
            raise
        self._sessions.captured(member)
        return DedupHandle(inner, member)

    def replay_graph(self, handle: DedupHandle) -> None:
        """Queue the segment on the current stream: through the shared executable, or the wrapped backend's own."""
        if self._sessions.open:
            self.seal()
        if handle.member is None or self.registry is None or not self.registry.replay(handle.member):
            self.inner.replay_graph(handle.inner)

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

    def seal(self) -> None:
        """End the open capture session, if any; the first replay after captures does it as well."""
        self._sessions.seal()

    # What one can ask

    def stats(self) -> Stats:
        """The counters now. Cheap: nothing is measured and the device is not touched."""
        if self.registry is None:
            captured, live = self._plain["captured"], self._plain["live"]
            return Stats(captured, live, live, 0, 0, 0, 0, 0, 0, live, 0.0, 0.0, 0.0)
        registry, counters = self.registry, self.registry.counters
        members = list(registry.members.values())
        passed_through = sum(member.group is None for member in members)
        return Stats(
            captured=counters.captured,
            execs=registry.exec_count + passed_through,
            peak_execs=counters.peak_execs,
            nodes=sum(member.node_count for member in members),
            groups=len({group.record for group in registry.groups()}),
            updates=counters.updates,
            launches=counters.launches,
            refused=counters.refused,
            unfolded=counters.unfolded,
            passed_through=passed_through,
            walk_seconds=counters.walk_seconds,
            fold_seconds=counters.fold_seconds,
            instantiate_seconds=counters.instantiate_seconds,
        )

    def report(self) -> FootprintReport:
        """What the captured graphs cost, with the source of each figure (rules M3, M5). Seals an open session.

        Raises:
            GraphDedupError: the fold is switched off, so there is nothing to report.
        """
        registry = self.registry
        if registry is None:
            raise GraphDedupError(
                "the fold is switched off and measures nothing",
                rule="D14",
                remedy=f"construct DedupBackend with enabled=True, or unset {settings.DISABLE}",
            )
        self.seal()
        stats, identity = self.stats(), registry.driver.identity
        modelled = [registry.driver.exec_bytes(group.executable.node_count) for group in registry.groups()]
        if identity.kind == "cuda":
            sessions = self._sessions.sealed
            measured = sum(session.exec_device_bytes or 0 for session in sessions)
            how = f"growth of used device memory over {len(sessions)} capture sessions, less what torch reserved"
            exec_device = Figure(bytes=measured, source=Source.MEASURED_DEVICE, how=f"{how}; steps of 2 MB")
            exec_host = Figure(
                bytes=registry.counters.exec_host_bytes,
                source=Source.MEASURED_HOST,
                how="growth of resident memory over each instantiation",
            )
        else:
            how = "live execs x the bytes per node measured on an H200"
            device_bytes = sum(pair[0] for pair in modelled if pair is not None)
            host_bytes = sum(pair[1] for pair in modelled if pair is not None)
            exec_device = Figure(bytes=device_bytes, source=Source.MODELLED, how=how)
            exec_host = Figure(bytes=host_bytes, source=Source.MODELLED, how=how)
        pool = Figure(
            bytes=sum(pool.reserved_bytes() for pool in self._pools),
            source=Source.MEASURED_DEVICE if identity.kind == "cuda" else Source.MEASURED_HOST,
            how="reserved by the live pools that were captured into",
        )
        return FootprintReport(
            device=identity.name,
            driver_version=identity.driver_version,
            torch_version=torch.__version__,
            sessions=tuple(
                SessionRow(name=session.name, captured=session.captured, execs=session.execs)
                for session in self._sessions.sealed
            ),
            refusals=tuple(
                RefusalRow(reason=reason, count=count, example=registry.refusal_examples[reason])
                for reason, count in registry.refusals.most_common()
            ),
            exec_device=exec_device,
            exec_host=exec_host,
            pool=pool,
            **asdict(stats),
        )

    def topology(self, handle: DedupHandle) -> Topology:
        """Export a captured segment, such as ``graph.segments[0]``.

        Raises:
            GraphDedupError: the fold is switched off, or the segment was destroyed.
        """
        if self.registry is None or handle.member is None or handle.member.raw is None:
            raise GraphDedupError(
                "the segment cannot be exported: it was destroyed, or the fold is switched off",
                rule="S14",
                remedy="export it while its graph is alive, from a DedupBackend with enabled=True",
            )
        return self.registry.driver.topology(handle.member.raw, label=str(handle.member.segment))
