"""What the fold keeps track of: members (captured graphs), groups of them, and the executables that they run on."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from graphdedup.clusters import ClusterUse, Use
from graphdedup.kernel_names import NodeCount
from seam.backend import SegmentInfo

__all__ = ["Executable", "Group", "Member", "next_exec_id"]

_exec_ids = itertools.count(1)


def next_exec_id() -> int:
    """A number for an executable, never used again in this process (rule D8)."""
    return next(_exec_ids)


@dataclass(slots=True, eq=False)
class Executable:
    """A live executable. ``reflects`` is the id of the member whose graph it would launch now, or None if unknown.

    ``clustered`` has a bit for each node that ever held a cluster dimension: there, a graph that sets none would inherit it.
    """

    handle: Any
    group: Group
    node_count: int
    bytes: int
    """Modelled, device and host together: what the budget counts."""
    clustered: int = 0
    reflects: int | None = None
    aged: bool = False
    """Whether it was updated with another graph than it was made of, which it runs slower than a new one would."""
    streak: int = 0
    """Launches in a row that needed no update."""
    launched: int | None = None
    """Id of the member that was launched last."""
    stream: Any = None
    """Stream of the last launch, as the driver names it."""
    claims: int = 0
    """Replays, on ``stream``, that have chosen it and are not through."""
    id: int = field(default_factory=next_exec_id)
    """What a trace calls it."""
    updates: int = 0
    launches: int = 0
    measured_bytes: tuple[int | None, int] = (None, 0)
    """What grew on the device (None without a GPU) and in resident memory when it was made."""
    lock: threading.Lock = field(default_factory=threading.Lock)


@dataclass(slots=True, eq=False)
class Group:
    """Members with equal records that the driver let onto one executable, and the executables that they share.

    It has more than one executable where graphs were replayed on several streams at once (rule D10), and none while the
    budget has taken them.
    """

    record: bytes
    bucket: tuple[int, str] | None
    """(lane, key) under which other members find it; None when nobody may join."""
    clusters: ClusterUse
    members: dict[int, Member] = field(default_factory=dict)
    executables: list[Executable] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Member:
    """One captured graph. Its id is the registry's own and never used again: no address identifies anything (D8)."""

    id: int
    raw: Any
    segment: SegmentInfo
    session: str = ""
    pool: int = 0
    """Number of the pool it was captured into, see :class:`graphdedup.pools.Pools`; 0 where that is not known."""
    node_count: int = 0
    counts: tuple[NodeCount, ...] = ()
    """Its nodes by kind and kernel."""
    opaque_nodes: int = 0
    """Nodes of which the driver would not tell everything."""
    host_copies: bool = False
    """Whether copies in it read or write host memory."""
    shape: str = ""
    """Digest of node kinds and edges; equal in every process."""
    clustered: int = 0
    """A bit for each node that sets a cluster dimension."""
    completed: int = 0
    """A bit for each node that the fold made say (1, 1, 1), where the capture set none."""
    uses: tuple[Use, ...] = ()
    """Function and cluster dimension of each node, until the member has found its group."""
    group: Group | None = None
    """None when the graph keeps the executable of its own backend; ``reason`` then says why."""
    prologue: Callable[[], None] | None = None
    """Advances random numbers as torch's own replay does; set for a graph that may draw, which then is detached (D12)."""
    detached: bool = False
    """Whether ``raw`` was moved out of the wrapped backend's graph, and is the registry's to destroy."""
    last: Executable | None = None
    """Where it was launched last."""
    last_stream: Any = None
    replays: int = 0
    updates: int = 0
    """Replays that had to re-point the executable."""
    checks_left: int = 0
    """Replays that are still to be compared with an executable of its own (the verify switch)."""
    reason: str = ""
    refusals: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)
    """Held while it is replayed: two threads with one graph come one after the other, as on torch's executable."""
