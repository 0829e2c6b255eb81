"""Groups, members and executables: fold, refuse, un-fold, release.

A *member* is one captured graph. A *group* is one executable and the members that run on it, all with equal records. A
member joins a group only after the driver took a real update of the group's live executable (rule D1); what cannot fold
runs on an executable of its own, with the reason kept (rule D5).

Locks: one serialises folding, each executable's makes update and launch one step (rule D10), one guards the tables. They
are taken in this order and never in another: folding, executable, tables.
"""

from __future__ import annotations

import itertools
import logging
import re
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from graphdedup.capabilities import Capabilities
from graphdedup.clusters import ClusterUse, Use, uses
from graphdedup.driver.protocol import Draws, GraphDriver, Reads, UpdateResult, Verdict
from graphdedup.errors import DriverError, GraphDedupError
from graphdedup.footprint import host_rss_bytes
from graphdedup.placement import Placement
from graphdedup.probe.known import capabilities_for
from graphdedup.signature import Tier, forbids_sharing, key, record_bytes
from seam.backend import SegmentInfo

__all__ = ["Counters", "Executable", "Group", "Member", "Registry"]

_log = logging.getLogger("graphdedup")


@dataclass(slots=True, eq=False)
class Executable:
    """A live executable. ``reflects`` is the id of the member whose graph it would launch now, or None if unknown.

    ``clustered`` has a bit for each node that ever held a cluster dimension: there, a graph that sets none would inherit it.
    """

    handle: Any
    node_count: int
    clustered: int = 0
    reflects: int | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)


@dataclass(slots=True, eq=False)
class Group:
    """An executable and the ids of the members that the driver let onto it."""

    record: bytes
    bucket: tuple[int, str] | None
    """(lane, key) under which other members find it; None when nobody may join."""
    executable: Executable
    clusters: ClusterUse
    members: set[int] = field(default_factory=set)


@dataclass(slots=True, eq=False)
class Member:
    """One captured graph. Its id is the registry's own and never used again: no address identifies anything (D8)."""

    id: int
    raw: Any
    segment: SegmentInfo
    node_count: int = 0
    clustered: int = 0
    """A bit for each node that sets a cluster dimension."""
    uses: tuple[Use, ...] = ()
    """Function and cluster dimension of each node, until the member has found its group."""
    group: Group | None = None
    """None when the graph keeps the executable of its own backend; ``reason`` then says why."""
    left: Group | None = None
    """The group that it was un-folded from."""
    reason: str = ""
    refusals: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Counters:
    """Counts since the registry was made; times in seconds, bytes measured on the host."""

    captured: int = 0
    peak_execs: int = 0
    updates: int = 0
    launches: int = 0
    refused: int = 0
    unfolded: int = 0
    walk_seconds: float = 0.0
    fold_seconds: float = 0.0
    instantiate_seconds: float = 0.0
    exec_host_bytes: int = 0


class Registry:
    """Folds the captured graphs of one device.

    Args:
        driver: executes for the device.
        tier: how much of a graph its key holds.
        placement: which of the members that could share an executable do.
        capabilities: what an update carries here; by default what is known of the driver's device, which may measure it.
        draws_vouched: the caller vouches that no captured graph draws random numbers, where that cannot be detected.
    """

    def __init__(
        self,
        driver: GraphDriver,
        *,
        tier: Tier = Tier.STRUCTURE,
        placement: Placement = Placement.GROUP,
        capabilities: Capabilities | None = None,
        draws_vouched: bool = False,
    ) -> None:
        self.driver = driver
        self.tier = tier
        self.placement = placement
        self.capabilities = capabilities or capabilities_for(driver)
        self.draws_vouched = draws_vouched
        self.counters = Counters()
        self.members: dict[int, Member] = {}
        self.refusals: Counter[str] = Counter()
        self.refusal_examples: dict[str, str] = {}
        self._buckets: dict[tuple[int, str], list[Group]] = {}
        self._groups: set[Group] = set()
        self._ids = itertools.count(1)
        self._worked_out: tuple[Capabilities, Reads] | None = None
        self._folding = threading.Lock()
        self._tables = threading.RLock()

    # Capture

    def fold(self, raw: Any, segment: SegmentInfo) -> Member:
        """Take in a captured graph: join a group, found one, or stay with the backend's own executable.

        Raises:
            DriverError: the graph cannot be instantiated at all. Nothing of it is kept.
        """
        member = Member(next(self._ids), raw, segment)
        try:
            record, pass_through = self._walk(member)
        except Exception as error:  # whatever it is, the capture is good: it keeps the backend's executable
            problem = error.problem if isinstance(error, GraphDedupError) else f"{type(error).__name__}: {error}"
            record, pass_through = None, f"the graph cannot be read: {problem}"
        with self._folding:
            if record is None:
                self._note_refusal(pass_through, str(segment))
                member.reason = pass_through
            else:
                self._join_or_found(member, record, pass_through)
        with self._tables:
            self.members[member.id] = member
            self.counters.captured += 1
        return member

    def _walk(self, member: Member) -> tuple[bytes | None, str]:
        """The member's record bytes and why it may not share, or None and why it must be passed through."""
        began = time.perf_counter()
        try:
            identity, flags = self.driver.identity, self.driver.instantiate_flags
            record = self.driver.walk(member.raw, self._reads(flags))
            member.node_count = len(record.nodes)
            member.uses = uses(record.nodes)
            member.clustered = sum(1 << index for index, node in enumerate(record.nodes) if any(node.cluster))
            if record.pass_through:
                return None, record.pass_through
            if record.draws is Draws.YES:
                return None, "it draws random numbers, which only torch's own replay advances (rule D12)"
            if record.draws is Draws.UNKNOWN and not self.draws_vouched:
                return None, "this torch does not tell whether the graph draws random numbers (rule D12)"
            packed = record_bytes(record, identity, flags, self.capabilities, self.tier)
            return packed, forbids_sharing(record)
        finally:
            self.counters.walk_seconds += time.perf_counter() - began

    def _reads(self, flags: int) -> Reads:
        """What walks have to read; worked out once for each capabilities."""
        if self._worked_out is None or self._worked_out[0] is not self.capabilities:
            self._worked_out = self.capabilities, self.capabilities.reads(flags)
        return self._worked_out[1]

    def _join_or_found(self, member: Member, record: bytes, forbidden: str) -> None:
        bucket = (self.placement.lane(member.segment), key(record))
        if forbidden:
            self._note_refusal(forbidden, str(member.segment))
            member.reason = forbidden
            self._found(member, record, None)
            return
        with self._tables:
            candidates = list(self._buckets.get(bucket, ()))
        # A hash hit is confirmed by the bytes (D2), and equal bytes by the driver (D1).
        if not any(group.record == record and self._try_join(member, group) for group in candidates):
            self._found(member, record, bucket)

    def _try_join(self, member: Member, group: Group) -> bool:
        began = time.perf_counter()
        if self._clusters_conflict(member, group):
            return False
        with group.executable.lock:
            with self._tables:
                if not group.members:
                    return False  # its last member went while this graph was on its way
                group.members.add(member.id)
            result = self._update(group.executable, member)
        self.counters.fold_seconds += time.perf_counter() - began
        if result.accepted:
            group.clusters.add(member.uses)
            member.group, member.uses = group, ()
            return True
        self._refuse(member, result)
        self._leave(member, group)
        return False

    def _clusters_conflict(self, member: Member, group: Group) -> bool:
        """Whether a member of the group runs the same function with another cluster dimension, which is not carried (D3)."""
        if self.capabilities.carries_cluster_alone:
            return False
        node = group.clusters.conflict(member.uses)
        if node is None:
            return False
        reason = f"node {node} runs a function that a sibling runs with another cluster dimension (rule D3)"
        self._note_refusal(reason, str(member.segment))
        return True

    def _found(self, member: Member, record: bytes, bucket: tuple[int, str] | None) -> None:
        """Found a group on the member's own graph; without a bucket nobody else may join it."""
        group = Group(record, bucket, self._instantiate(member), ClusterUse(member.uses), {member.id})
        with self._tables:
            self._groups.add(group)
            if bucket is not None:
                self._buckets.setdefault(bucket, []).append(group)
            self.counters.peak_execs = max(self.counters.peak_execs, len(self._groups))
        member.group, member.uses = group, ()

    def _leave(self, member: Member, group: Group) -> None:
        """Take a member out of a group; the last one frees the executable (D9). Holds no executable's lock."""
        with self._tables:
            group.members.discard(member.id)
            if group.members or group not in self._groups:
                return
            self._groups.remove(group)
            if group.bucket is not None:
                self._buckets[group.bucket].remove(group)
                if not self._buckets[group.bucket]:
                    del self._buckets[group.bucket]
        with group.executable.lock:
            self.driver.destroy(group.executable.handle)

    def _instantiate(self, member: Member) -> Executable:
        began, rss = time.perf_counter(), host_rss_bytes()
        try:
            handle = self.driver.instantiate(member.raw)
        finally:
            self.counters.instantiate_seconds += time.perf_counter() - began
        self.counters.exec_host_bytes += max(0, host_rss_bytes() - rss)
        return Executable(handle, member.node_count, member.clustered, member.id)

    # Update and refusal

    def _update(self, executable: Executable, member: Member) -> UpdateResult:
        """Re-point an executable whose lock is held. A driver that fails is a driver that refuses (rule D6)."""
        try:
            self._inherit_no_cluster(executable, member)
            result = self.driver.update(executable.handle, member.raw)
        except DriverError as error:
            executable.reflects = None  # nothing is known of it now: the next launch updates it first
            executable.clustered |= member.clustered
            return UpdateResult(Verdict.ERROR, detail=error.problem)
        if result.accepted:
            executable.reflects = member.id
            executable.clustered |= member.clustered
            self.counters.updates += 1
        return result

    def _inherit_no_cluster(self, executable: Executable, member: Member) -> None:
        """Have a member say (1, 1, 1) where the executable may hold a cluster dimension and the member sets none (D3).

        Which nodes these are is known only as members join, so the older ones are completed at their next update.
        """
        missing = executable.clustered & ~member.clustered
        if missing and self.capabilities.mends_unset_cluster:
            nodes = [index for index in range(missing.bit_length()) if missing >> index & 1]
            self.driver.set_unit_clusters(member.raw, nodes)
            member.clustered |= missing

    def _refuse(self, member: Member, result: UpdateResult) -> None:
        node = "" if result.node is None else f" at node {result.node}"
        detail = f" ({result.detail})" if result.detail else ""
        member.refusals.append(f"{result.verdict}{node}{detail}")
        self.counters.refused += 1
        self._note_refusal(f"the driver refused the update: {result.verdict}", f"{member.segment}{node}{detail}")

    def _note_refusal(self, reason: str, example: str) -> None:
        """Count by reason; which node of which graph it was stands in the example."""
        general = re.sub(r"node \d+", "a node", reason)
        self.refusals[general] += 1
        self.refusal_examples.setdefault(general, example if general == reason else f"{example}: {reason}")

    # Replay

    def replay(self, member: Member) -> bool:
        """Update if needed and launch on the current stream; False if the member has no executable here.

        Raises:
            DriverError: the launch itself failed.
        """
        while (group := member.group) is not None:
            executable = group.executable
            with executable.lock:
                if member.group is not group:
                    continue  # another thread un-folded it while this one waited
                if executable.reflects != member.id:
                    result = self._update(executable, member)
                    if not result.accepted:
                        self._unfold(member, group, result)
                        continue
                self.driver.launch(executable.handle)
                self.counters.launches += 1
                return True
        return False

    def _unfold(self, member: Member, group: Group, result: UpdateResult) -> None:
        """Give a member that its executable no longer takes one of its own; never another graph's contents (D6).

        It stays a member of the group's table until it is released, so that the group cannot lose its executable while
        this thread holds that executable's lock.
        """
        self._refuse(member, result)
        self.counters.unfolded += 1
        member.reason = f"un-folded at replay: {member.refusals[-1]}"
        member.left = group
        try:
            self._found(member, group.record, None)
        except DriverError as error:
            member.group = None
            member.reason += f"; and no executable of its own: {error.problem}"
        _log.warning("%s was un-folded: %s", member.segment, member.reason)

    # Release

    def release(self, member: Member) -> None:
        """Forget a member; the last one of a group frees its executable (rule D9).

        Raises:
            GraphDedupError: it was released before.
        """
        with self._tables:
            if self.members.pop(member.id, None) is None:
                raise GraphDedupError(
                    f"{member.segment} was released already",
                    rule="D9",
                    remedy="destroy each handle once, and replay none after",
                )
        groups = [group for group in (member.group, member.left) if group is not None]
        member.group = member.left = member.raw = None
        for group in groups:
            self._leave(member, group)

    # Figures

    def groups(self) -> list[Group]:
        """The live groups, one executable each."""
        with self._tables:
            return list(self._groups)

    @property
    def exec_count(self) -> int:
        """Live executables of this registry."""
        return len(self._groups)
