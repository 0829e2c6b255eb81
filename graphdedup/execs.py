"""The executables of a registry: which one a replay may use, when another is made, and which one the budget takes.

An executable never overlaps itself. So a replay on one stream may not take an executable that still runs on another: the
two graphs, which could have run side by side, would run one after the other, and wait for ever if one waits for the other
(rule D10). And a graph never overlaps itself either, as it does not on torch's own single executable.

Locks: ``_making`` serialises instantiations, ``_lock`` guards the tables; they are taken in this order.
"""

from __future__ import annotations

import threading
import time
from typing import Any

import torch

from graphdedup import events
from graphdedup.driver.protocol import GraphDriver
from graphdedup.errors import DriverError
from graphdedup.events import Kind
from graphdedup.footprint import Span, modelled_exec_bytes
from graphdedup.group import Executable, Group, Member, next_exec_id
from graphdedup.policy import Concurrent, FoldPolicy
from graphdedup.tally import Counters, Reasons

__all__ = ["Execs"]


class Execs:
    """Live executables, least recently used first."""

    def __init__(self, driver: GraphDriver, policy: FoldPolicy, counters: Counters, degraded: Reasons) -> None:
        self._driver = driver
        self._policy = policy
        self._counters = counters
        self._degraded = degraded
        self._live: dict[Executable, None] = {}
        self._bytes = self._device_bytes = 0
        self._peak = (0, 0)
        identity = driver.identity
        self._device = torch.device("cuda", identity.ordinal) if identity.kind == "cuda" else torch.device("cpu")
        self._making = threading.RLock()
        self._lock = threading.RLock()

    def __len__(self) -> int:
        return len(self._live)

    @property
    def modelled(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """Modelled (device, host) bytes of the live executables: now, and the most there were."""
        with self._lock:
            return (self._device_bytes, self._bytes - self._device_bytes), self._peak

    # Claims: an executable is neither taken on another stream nor evicted between claim() and leave()

    def claim(self, group: Group, member: Member, *, joining: bool = False) -> Executable:
        """An executable of the group that ``member`` may be launched on, on the current stream, now.

        ``joining``: it is to be updated and not to be launched, so any will do that is not in another's hands.

        Raises:
            DriverError: the group has none, since the budget took it, and it cannot be made again.
        """
        stream = self._driver.stream()
        with self._lock:
            chosen = self._choose(group, member, stream, joining)
            if chosen is not None:
                return self._claimed(chosen, stream)
        with self._making:
            with self._lock:  # another thread may have made one, or let one go
                chosen = self._choose(group, member, stream, joining)
                if chosen is not None:
                    return self._claimed(chosen, stream)
                some = list(group.executables)
            try:
                made = self._make(group, next(iter(group.members.values())) if joining else member, stream)
            except DriverError as error:
                if not some:
                    raise
                self._degraded.note(f"no second executable, so graphs wait: {error.problem}", str(member.segment))
                with self._lock:
                    return self._claimed(some[0], stream)
            if some:
                self._counters.splits += 1
            return made

    def leave(self, executable: Executable) -> None:
        """The end of a claim."""
        with self._lock:
            executable.claims -= 1

    def found(self, group: Group, member: Member) -> None:
        """Make the first executable of a group.

        Raises:
            DriverError: it cannot be instantiated.
        """
        with self._making:
            executable = self._make(group, member, self._driver.stream())
        self.leave(executable)

    def renew(self, executable: Executable, member: Member) -> None:
        """Instantiate a claimed executable anew, from the graph that it reflects; waits for its last launch.

        The old one goes last: if there is no room for a new one it serves on, and is not tried again before an update.
        """
        executable.aged = False
        began = time.perf_counter()
        try:
            with events.span(Kind.INSTANTIATE, member.segment, executable.id, "refresh"):
                fresh = self._driver.instantiate(member.raw)
        except DriverError as error:
            self._degraded.note(f"no new executable for a steady graph: {error.problem}", str(member.segment))
            return
        finally:
            self._counters.instantiate_seconds += time.perf_counter() - began
        old, executable.handle = executable.handle, fresh
        self._driver.finish(old)
        self._driver.destroy(old)
        self._counters.refreshes += 1

    def free(self, group: Group) -> None:
        """Destroy the executables of a group that has no members left."""
        with self._lock:
            going, group.executables = group.executables, []
            for executable in going:
                self._drop(executable)
        for executable in going:
            with executable.lock:
                self._driver.destroy(executable.handle)

    # Choice

    def _choose(self, group: Group, member: Member, stream: Any, joining: bool) -> Executable | None:
        last = member.last
        own = last is not None and last.group is group and last.launched == member.id and last in self._live
        if own and last is not None and self._busy(last, stream):
            return last  # behind its own launch there: one graph never overlaps itself
        free = [one for one in group.executables if not self._busy(one, stream, joining)]
        if len(free) > 1:
            return max(free, key=lambda one: (one.reflects == member.id, one.stream == stream))
        if free:
            return free[0]
        if self._policy.concurrent is Concurrent.SERIALISE or joining:
            return next((one for one in group.executables if one.reflects == member.id), None) or next(
                iter(group.executables), None
            )
        return None

    def _busy(self, executable: Executable, stream: Any, joining: bool = False) -> bool:
        """Whether it is being launched, or still runs, on another stream."""
        if executable.claims and executable.stream != stream:
            return True
        return not joining and self._driver.runs_elsewhere(executable.handle, stream)

    def _claimed(self, executable: Executable, stream: Any) -> Executable:
        if not executable.claims:
            executable.stream = stream
        executable.claims += 1
        if self._policy.max_execs is not None or self._policy.exec_budget_bytes is not None:
            del self._live[executable]  # most recently used stands last
            self._live[executable] = None
        return executable

    # Making and evicting

    def _make(self, group: Group, member: Member, stream: Any) -> Executable:
        """A new executable on the member's own graph, claimed. ``_making`` is held."""
        modelled = modelled_exec_bytes(member.node_count)
        size = sum(modelled)
        self._make_room(size)
        number = next_exec_id()
        began, span = time.perf_counter(), Span.begin(self._device)
        try:
            with events.span(Kind.INSTANTIATE, member.segment, number):
                handle = self._driver.instantiate(member.raw)
        finally:
            self._counters.instantiate_seconds += time.perf_counter() - began
        grown = span.end()
        self._counters.exec_host_bytes += max(0, grown.host_rss_bytes)
        self._counters.exec_device_bytes += grown.exec_device_bytes or 0
        executable = Executable(
            handle, group, member.node_count, size, member.clustered, member.id, stream=stream, claims=1, id=number
        )
        executable.measured_bytes = grown.exec_device_bytes, max(0, grown.host_rss_bytes)
        with self._lock:
            group.executables.append(executable)
            self._live[executable] = None
            self._bytes += size
            self._device_bytes += modelled[0]
            if self._bytes > sum(self._peak):
                self._peak = self._device_bytes, self._bytes - self._device_bytes
        return executable

    def _make_room(self, size: int) -> None:
        most, budget = self._policy.max_execs, self._policy.exec_budget_bytes
        while (most is not None and len(self._live) >= most) or (budget is not None and self._bytes + size > budget):
            with self._lock:
                idle = [one for one in self._live if not one.claims]
                victim = next((one for one in idle if not self._driver.runs_elsewhere(one.handle, None)), None)
                victim = victim or next(iter(idle), None)
                if victim is None:
                    return  # all are being launched: the bound gives way
                victim.group.executables.remove(victim)
                self._drop(victim)
            self._driver.finish(victim.handle)
            self._driver.destroy(victim.handle)
            self._counters.evictions += 1

    def _drop(self, executable: Executable) -> None:
        del self._live[executable]
        self._bytes -= executable.bytes
        self._device_bytes -= modelled_exec_bytes(executable.node_count)[0]
