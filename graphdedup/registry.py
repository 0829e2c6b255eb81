"""Fold, refuse, un-fold, release: the captured graphs of one device and the executables that they share.

A *member* is one captured graph. A *group* is members with equal records and the executables that they run on. A member
joins a group only after the driver took a real update of the group's live executable (rule D1); what cannot fold runs on an
executable of its own, with the reason kept (rule D5).

Locks: one serialises folding, each member's its replays, each executable's makes update and launch one step (rule D10), one
guards the tables. They are taken in this order and never in another: folding or member, executable, tables; those of
:mod:`graphdedup.execs` come last.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from graphdedup import events
from graphdedup.capabilities import Capabilities
from graphdedup.clusters import ClusterUse, uses
from graphdedup.driver.protocol import Draws, GraphDriver, Prologue, Reads, UpdateResult, Verdict
from graphdedup.errors import DriverError, GraphDedupError
from graphdedup.events import Kind, watching
from graphdedup.execs import Execs
from graphdedup.explain import explain_refusal
from graphdedup.group import Executable, Group, Member
from graphdedup.kernel_names import node_counts
from graphdedup.policy import FoldPolicy
from graphdedup.pools import Pools
from graphdedup.probe.known import capabilities_for
from graphdedup.session import EndedSessions
from graphdedup.signature import forbids_sharing, key, reads, record_bytes, shape_digest
from graphdedup.tally import Counters, Reasons
from graphdedup.timeline import Timeline
from seam.backend import SegmentInfo

if TYPE_CHECKING:
    from graphdedup.verify import Verifier

__all__ = ["Registry"]

_log = logging.getLogger("graphdedup")
_MOST_TRIALS = 8
"""A graph that as many groups of equal record have refused founds its own: n graphs that refuse each other cost n trials."""


_MOST_EXPLAINED = 32
"""Refusals that are explained by their nodes: it reads two graphs whole, and more of a kind tell nothing new."""


class _Unfit(NamedTuple):
    """Why an executable does not serve a member."""

    reason: str
    detail: str
    served: bool = False
    """Whether the replay is done all the same."""


class Registry:
    """Folds the captured graphs of one device, for every backend and session of the process that shares it.

    Args:
        driver: executes for the device.
        policy: what may share an executable, and how many there may be.
        capabilities: what an update carries here; by default what is known of the driver's device, which may measure it.
    """

    def __init__(
        self, driver: GraphDriver, policy: FoldPolicy | None = None, *, capabilities: Capabilities | None = None
    ) -> None:
        self.driver = driver
        self.policy = policy or FoldPolicy()
        self.capabilities = capabilities or capabilities_for(driver)
        self.counters = Counters()
        self.members: dict[int, Member] = {}
        self.refusals = Reasons()
        """Updates that the driver refused, by result."""
        self.alone = Reasons()
        """Why graphs were not offered to a group, or a group could not have an executable more."""
        self.passings = Reasons()
        """Why graphs were passed through."""
        self.unfoldings = Reasons()
        """Why members lost their executable at replay."""
        self.sessions = EndedSessions()
        self.replay_updates_over_time = Timeline()
        self.pools = Pools()
        self._execs = Execs(driver, self.policy, self.counters, self.alone)
        self._buckets: dict[tuple[int, str], list[Group]] = {}
        self._groups: dict[Group, None] = {}
        self._kept: set[int] = set()
        """Ids of the members that keep the executable of their own backend."""
        self._ids = itertools.count(1)
        self._worked_out: tuple[Capabilities, Reads] | None = None
        self._folding = threading.Lock()
        self._tables = threading.RLock()

    # Capture

    def fold(self, raw: Any, segment: SegmentInfo, *, session: str = "", pool: int = 0, handle: Any = None) -> Member:
        """Take in a captured graph: join a group, found one, or stay with the backend's own executable.

        ``handle`` is the wrapped backend's; without it a graph that may draw random numbers stays with the backend's own.
        ``pool`` is the number that :attr:`pools` has given.

        Raises:
            DriverError: the graph cannot be instantiated at all. Nothing of it is kept.
        """
        member = Member(next(self._ids), raw, segment, session, pool)
        draws = Draws.NO
        try:
            with events.span(Kind.WALK, segment):
                record, pass_through, draws = self._walk(member, handle)
        except Exception as error:  # whatever it is, the capture is good: it keeps the backend's executable
            problem = error.problem if isinstance(error, GraphDedupError) else f"{type(error).__name__}: {error}"
            record, pass_through = None, f"the graph cannot be read: {problem}"
        if record is not None and draws is not Draws.NO and (problem := self._detach(member, handle)):
            record, pass_through = None, problem
        try:
            with self._folding, events.span(Kind.FOLD, segment) as event:
                if record is None:
                    self.passings.note(pass_through, str(segment))
                    member.reason = pass_through
                else:
                    self._join_or_found(member, record, pass_through)
                if event is not None:
                    event.exec_id, event.outcome = _folded(member)
        except BaseException:
            if member.detached:
                self.driver.discard(member.raw)
            raise
        with self._tables:
            self.members[member.id] = member
            self.counters.captured += 1
            if member.group is None:
                self._kept.add(member.id)
            self._note_peak()
        return member

    def _walk(self, member: Member, handle: Any) -> tuple[bytes | None, str, Draws]:
        """The member's record bytes and why it may not share, or None and why it must be passed through; does it draw."""
        began = time.perf_counter()
        try:
            identity, flags = self.driver.identity, self.driver.instantiate_flags
            record = self.driver.walk(member.raw, self.reads())
            member.node_count, member.counts = len(record.nodes), node_counts(record)
            member.opaque_nodes = sum(bool(node.unreadable) for node in record.nodes)
            member.shape = shape_digest(record)
            member.host_copies = record.host_copies
            member.uses = uses(record.nodes)
            member.clustered = sum(1 << index for index, node in enumerate(record.nodes) if any(node.cluster))
            if record.pass_through:
                return None, record.pass_through, record.draws
            packed = record_bytes(record, identity, flags, self.capabilities, self.policy.tier)
            draws = record.draws
            if draws is Draws.UNKNOWN and self.policy.draws_vouched:
                draws = Draws.NO
            if draws is Draws.NO and getattr(handle, "generators", None):
                draws = Draws.UNKNOWN  # only the default generator's draws can be told
            if draws is not Draws.NO and handle is None:
                return None, "it may draw random numbers, and its backend is not there to advance them (rule D12)", draws
            return packed, forbids_sharing(record), draws
        finally:
            self.counters.walk_seconds += time.perf_counter() - began

    def reads(self) -> Reads:
        """What walks have to read of each node; worked out once for each capabilities."""
        if self._worked_out is None or self._worked_out[0] is not self.capabilities:
            worked_out = reads(self.capabilities, self.driver.instantiate_flags, self.policy.tier)
            self._worked_out = self.capabilities, worked_out
        return self._worked_out[1]

    def _join_or_found(self, member: Member, record: bytes, forbidden: str) -> None:
        bucket = (self.policy.placement.lane(member.segment), key(record))
        if forbidden:
            self.alone.note(forbidden, str(member.segment))
            member.reason = forbidden
            self._found(member, record, None)
            return
        with self._tables:
            # A hash hit is confirmed by the bytes (D2), and equal bytes by the driver (D1).
            candidates = [group for group in self._buckets.get(bucket, ()) if group.record == record]
        # The largest first: it is the likeliest to take one more.
        candidates.sort(key=lambda group: -len(group.members))
        fitting = (group for group in candidates if not self._clusters_conflict(member, group))
        if not any(self._try_join(member, group) for group in itertools.islice(fitting, _MOST_TRIALS)):
            self._found(member, record, bucket)

    def _try_join(self, member: Member, group: Group) -> bool:
        began = time.perf_counter()
        with self._tables:
            if not group.members:
                return False  # its last member went while this graph was on its way
            group.members[member.id] = member
        executable = None
        try:
            executable, result = self._try_update(member, group)
        except DriverError as error:  # the group had no executable, and none can be made now
            result = UpdateResult(Verdict.ERROR, detail=error.problem)
        self.counters.fold_seconds += time.perf_counter() - began
        if result.accepted:
            group.clusters.add(member.uses)
            member.group, member.uses = group, ()
            return True
        self._refuse(member, executable, result)
        self._leave(member, group)
        return False

    def _try_update(self, member: Member, group: Group) -> tuple[Executable, UpdateResult]:
        executable = self._execs.claim(group, member, joining=True)
        try:
            with executable.lock:
                return executable, self._update(executable, member, "fold")
        finally:
            self._execs.leave(executable)

    def _clusters_conflict(self, member: Member, group: Group) -> bool:
        """Whether a member of the group runs the same function with another cluster dimension, which is not carried (D3)."""
        if self.capabilities.carries_cluster_alone:
            return False
        node = group.clusters.conflict(member.uses)
        if node is None:
            return False
        reason = f"node {node} runs a function that a sibling runs with another cluster dimension (rule D3)"
        self.alone.note(reason, str(member.segment))
        member.refusals.append(reason)
        return True

    def _found(self, member: Member, record: bytes, bucket: tuple[int, str] | None) -> Group:
        """Found a group on the member's own graph; without a bucket nobody else may join it."""
        group = Group(record, bucket, ClusterUse(member.uses), {member.id: member})
        self._execs.found(group, member)
        with self._tables:
            self._groups[group] = None
            if bucket is not None:
                self._buckets.setdefault(bucket, []).append(group)
            self._note_peak()
            member.group, member.uses = group, ()
        return group

    def _detach(self, member: Member, handle: Any) -> str:
        """Have the wrapped backend's own replay do nothing but advance random numbers (D12); or why that cannot be done."""
        try:
            member.raw, member.prologue = self.driver.detach(handle)
        except DriverError as error:
            return f"it may draw random numbers, and they cannot be advanced apart (rule D12): {error.problem}"
        member.detached = True
        return ""

    def _leave(self, member: Member, group: Group) -> None:
        """Take a member out of a group; the last one frees the executables (D9). Holds no executable's lock."""
        with self._tables:
            group.members.pop(member.id, None)
            if group.members or group not in self._groups:
                return
            del self._groups[group]
            if group.bucket is not None:
                self._buckets[group.bucket].remove(group)
                if not self._buckets[group.bucket]:
                    del self._buckets[group.bucket]
        self._execs.free(group)

    # Update and refusal

    def _update(self, executable: Executable, member: Member, purpose: str) -> UpdateResult:
        """Re-point an executable whose lock is held. A driver that fails is a driver that refuses (rule D6)."""
        try:
            with events.span(Kind.UPDATE, member.segment, executable.id, purpose) as event:
                self._inherit_no_cluster(executable, member)
                result = self.driver.update(executable.handle, member.raw)
                if event is not None:
                    event.outcome = result.verdict.value
        except DriverError as error:
            executable.reflects = None  # nothing is known of it now: the next launch updates it first
            executable.clustered |= member.clustered
            return UpdateResult(Verdict.ERROR, detail=error.problem)
        if result.accepted:
            executable.aged |= executable.reflects != member.id
            executable.reflects, executable.streak = member.id, 0
            executable.clustered |= member.clustered
            executable.updates += 1
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
            member.completed |= missing

    def _refuse(self, member: Member, executable: Executable | None, result: UpdateResult) -> None:
        """Count a refusal and keep its reason; the first ones are explained by what the two nodes are."""
        node = "" if result.node is None else f" at node {result.node}"
        told = f"{result.verdict}{node}{f' ({result.detail})' if result.detail else ''}"
        self.counters.refused += 1
        if result.node is not None and executable is not None and self.counters.refused <= _MOST_EXPLAINED:
            held = self.members.get(executable.reflects or 0)
            try:
                sides = [None if one is None else self.driver.topology(one.raw).nodes[result.node] for one in (held, member)]
                told = explain_refusal(result.verdict, result.node, *sides)
            except (DriverError, IndexError):
                _log.debug("%s: the refused node could not be read", member.segment, exc_info=True)
        member.refusals.append(told)
        self.refusals.note(f"the driver refused the update: {result.verdict}", f"{member.segment}: {told}")

    # Replay

    def replay(self, member: Member, verifier: Verifier | None = None) -> bool:
        """Update if needed and launch on the current stream; False if the member has no executable here.

        ``verifier`` compares the member's first replays with an executable of its own.

        Raises:
            DriverError: the launch itself failed, or a graph without executable can get none.
        """
        with member.lock:
            return self._replay(member, verifier)

    def _replay(self, member: Member, verifier: Verifier | None) -> bool:
        while (group := member.group) is not None:
            executable = self._execs.claim(group, member)
            try:
                with executable.lock:
                    if member.group is not group:
                        continue  # another thread un-folded it while this one waited
                    unfit = self._launch(executable, member, verifier)
            finally:
                self._execs.leave(executable)
            if unfit is None:
                return True
            self._unfold(member, group, unfit)
            if unfit.served:
                return True
        return False

    def _launch(self, executable: Executable, member: Member, verifier: Verifier | None) -> _Unfit | None:
        """Launch a member; or why this executable is not fit for it."""
        if executable.reflects != member.id:
            result = self._update(executable, member, "replay")
            if not result.accepted:
                self._refuse(member, executable, result)
                return _Unfit(f"the driver refused the update: {result.verdict}", member.refusals[-1])
            member.updates += 1
            self.counters.replay_updates += 1
            self.replay_updates_over_time.add()
        elif self._steady(executable):
            self._execs.renew(executable, member)
        stream, last = self.driver.stream(), member.last
        if last is not None and last is not executable and member.last_stream != stream:
            self.driver.order_after(last.handle)  # one graph never overlaps itself
        executable.stream, executable.launched = stream, member.id
        member.last, member.last_stream = executable, stream
        member.replays += 1
        executable.launches += 1
        self.counters.launches += 1
        if not watching.observers:
            return self._run(executable, member, verifier)
        with events.span(Kind.LAUNCH, member.segment, executable.id):
            return self._run(executable, member, verifier)

    def _run(self, executable: Executable, member: Member, verifier: Verifier | None) -> _Unfit | None:
        """Launch an executable that reflects the member, verified where that is asked for."""
        if member.checks_left and verifier is not None:
            member.checks_left -= 1
            return self._compare(executable, member, verifier)
        self.driver.launch(executable.handle, member.prologue)
        return None

    def _steady(self, executable: Executable) -> bool:
        """Whether an updated executable has now served one graph for so long that a new one pays."""
        executable.streak += 1
        after = self.policy.refresh_after
        return executable.aged and after is not None and executable.streak >= after

    def _compare(self, executable: Executable, member: Member, verifier: Verifier) -> _Unfit | None:
        """Launch the member on an executable of its own as well. Where they differ the caller gets what that one wrote."""
        try:
            with events.span(Kind.INSTANTIATE, member.segment, purpose="verify"):
                own = self.driver.instantiate(member.raw)
        except DriverError as error:
            _log.warning("%s cannot be verified: %s", member.segment, error.problem)
            self.driver.launch(executable.handle, member.prologue)
            return None
        rest: list[Prologue | None] = []

        def run(handle: Any) -> None:
            self.driver.launch(handle, rest.pop() if rest else None)

        compared = verifier.compared_count
        try:
            if member.prologue is not None:
                rest.append(self.driver.advance(member.prologue))
            mismatch = verifier.compare(member.raw, partial(run, own), partial(run, executable.handle))
        finally:
            self.driver.finish(own)
            self.driver.destroy(own)
        self.counters.verified += verifier.compared_count - compared
        if mismatch is None:
            return None
        self.counters.mismatches += 1
        return _Unfit("it wrote other bytes than on an executable of its own", f"verify: {mismatch}", served=True)

    def _unfold(self, member: Member, group: Group, unfit: _Unfit) -> None:
        """Give a member that its executable does not serve one of its own; never another graph's contents (D6)."""
        self.counters.unfolded += 1
        self.unfoldings.note(unfit.reason, f"{member.segment}: {unfit.detail}")
        member.reason = f"un-folded at replay: {unfit.detail}"
        _log.warning("%s was %s", member.segment, member.reason)
        try:
            self._found(member, group.record, None)
        except DriverError as error:
            if member.detached:
                raise  # the wrapped backend's executable would do nothing
            with self._tables:
                member.group = None
                self._kept.add(member.id)
            member.reason += f"; and no executable of its own: {error.problem}"
        self._leave(member, group)

    def own(self, member: Member) -> Any:
        """Give a member an executable that it shares with nobody, for somebody who asked for it, and return its handle.

        It holds the member's graph until the member is released.

        Raises:
            DriverError: it cannot be made; the member then is as it was.
            GraphDedupError: the member has no executable here, but its own backend's.
        """
        with member.lock:
            group = member.group
            if group is None:
                raise GraphDedupError(
                    f"{member.segment} keeps the executable of its own backend", rule="D11", remedy="ask that one for it"
                )
            if group.bucket is not None:
                shared, group = group, self._found(member, group.record, None)
                member.reason = "its executable was asked for"
                self.unfoldings.note(member.reason, str(member.segment))
                self._leave(member, shared)
            executable = self._execs.claim(group, member)
            try:
                with executable.lock:
                    if executable.reflects != member.id:
                        self._update(executable, member, "own")
                    return executable.handle
            finally:
                self._execs.leave(executable)

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
            self._kept.discard(member.id)
            group, raw = member.group, member.raw
            member.group = member.raw = member.prologue = member.last = None
        try:
            if group is not None:
                self._leave(member, group)
        finally:
            if member.detached:
                self.driver.discard(raw)

    # Figures

    def groups(self) -> list[Group]:
        """The live groups, oldest first."""
        with self._tables:
            return list(self._groups)

    @property
    def exec_count(self) -> int:
        """Live executables of this registry."""
        return len(self._execs)

    @property
    def modelled_bytes(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """Modelled (device, host) bytes of the live executables of this registry: now, and the most there were."""
        return self._execs.modelled

    @property
    def passed_through_count(self) -> int:
        """Live members that keep their own backend's executable."""
        return len(self._kept)

    def _note_peak(self) -> None:
        self.counters.peak_execs = max(self.counters.peak_execs, self.exec_count + self.passed_through_count)


def _folded(member: Member) -> tuple[int | None, str]:
    """The executable that a member was folded to, and how, in words for a trace."""
    group = member.group
    if group is None:
        return None, f"passed through: {member.reason}"
    executables = list(group.executables)  # the budget may take one meanwhile
    return executables[0].id if executables else None, "joined" if len(group.members) > 1 else "founded"
