"""The rows of a footprint report: sessions, stages, groups with their members and executables, pools, nodes."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from graphdedup.report.base import Count, Frozen, Seconds, Source

__all__ = [
    "AloneRow",
    "BreakRow",
    "Environment",
    "ExecRow",
    "GroupRow",
    "MemberRow",
    "NodeRow",
    "PoolRow",
    "RefusalRow",
    "SessionRow",
    "StageRow",
]


class RefusalRow(Frozen):
    """Graphs that got an executable of their own for one reason, with the first one met as the example."""

    reason: str
    count: Count
    example: str


class AloneRow(Frozen):
    """A live graph that shares its executable with nobody, and why: a reason on record, or how the nearest graph differs."""

    graph: str
    why: str


class SessionRow(Frozen):
    """One capture session: how many graphs it captured, how many executables those made necessary, and what grew meanwhile.

    ``driver_bytes`` is growth of used device memory less the growth of what torch's allocator reserved, ``torch_bytes`` the
    latter, both measured on the device and None without a GPU; ``host_bytes`` is growth of resident memory. ``seconds`` is
    from the first capture to the session's end, with whatever the program did in between.
    """

    name: str
    captured: Count
    execs: Count
    seconds: Seconds | None = None
    driver_bytes: int | None = None
    torch_bytes: int | None = None
    host_bytes: int | None = None


class StageRow(Frozen):
    """Memory at one moment: used on the device by whoever uses it, reserved there by torch, resident on the host.

    The first two are measured on the device and None without a GPU.
    """

    name: str
    device_used_bytes: int | None
    torch_reserved_bytes: int | None
    host_resident_bytes: int


class BreakRow(Frozen):
    """A break that live graphs were split at: its name, where the forward met it, and how many segments follow it."""

    name: str
    segments: Count


class MemberRow(Frozen):
    """A live captured graph.

    ``own_device_bytes`` and ``own_host_bytes`` are modelled from the number of nodes: what an executable of its own would take
    on an H200. ``updates`` counts those of its ``replays`` that had to re-point the executable; both are None where another
    backend's executable is replayed. ``why`` says why it shares with nobody, and is empty where it shares.
    """

    id: Count
    label: str
    """The runner's name for the graph, such as ``"decode bs=8"``."""
    segment: Count = 0
    session: str = ""
    pool: Count = 0
    """Number of the pool it was captured into; 0 where that is not known."""
    nodes: Count
    own_device_bytes: Count
    own_host_bytes: Count
    replays: Count | None = 0
    updates: Count | None = 0
    why: str = ""

    @property
    def name(self) -> str:
        """Label and segment, such as ``"decode bs=8 segment 3"``."""
        return f"{self.label or 'graph'} segment {self.segment}"


class ExecRow(Frozen):
    """A live executable. Measured device bytes are growth over its instantiation, which moves in steps of 2 MB: often 0.

    Bytes, ``updates`` and ``launches`` are None for an executable of another backend, which is not watched.
    """

    nodes: Count
    device_bytes: int | None = None
    device_source: Source
    host_bytes: int | None = None
    host_source: Source
    updates: Count | None = None
    launches: Count | None = None


class GroupRow(Frozen):
    """Graphs that share executables; or one that was passed through and keeps the wrapped backend's."""

    id: Count
    kind: Literal["folded", "passed_through"] = "folded"
    key: str = ""
    """Hash of the record that its graphs have in common; groups of equal key refused each other. Empty where passed through."""
    execs: tuple[ExecRow, ...] = ()
    members: tuple[MemberRow, ...] = ()


class NodeRow(Frozen):
    """Nodes of live graphs of one kind, and of kernels of one function: its demangled name."""

    kind: str
    name: str = ""
    count: Count


class PoolRow(Frozen):
    """A memory pool that was captured into. ``reserved`` is what it holds, ``allocated`` what live tensors use of that,
    ``inactive`` what is free in it. None where the pool does not tell."""

    id: Count
    graphs: Count
    source: Source
    reserved_bytes: Count | None
    allocated_bytes: Count | None = None
    inactive_bytes: Count | None = None


class TimelineRow(Frozen):
    """Counts over time, in spans of ``seconds_each`` from the first event to the last one; none if nothing has happened."""

    seconds_each: Seconds = 0.0
    counts: tuple[Count, ...] = ()


class Environment(Frozen):
    """What the report was made with. ``switches`` are the switches of graphdedup that were set in the environment."""

    graphdedup: str
    python: str
    platform: str
    torch: str
    cuda: str = ""
    """The CUDA version that torch was built for; empty for a build without."""
    policy: dict[str, str] = Field(default_factory=dict)
    switches: dict[str, str] = Field(default_factory=dict)
