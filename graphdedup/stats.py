"""Counts of one registry, cheap to read at any time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["SessionStats", "Stats"]


@dataclass(frozen=True, slots=True)
class SessionStats:
    """Live graphs of all sessions of one name (empty: captures outside a named one), and the executables they run on.

    Sessions may share executables, so the sum over sessions can exceed :attr:`Stats.execs`.
    """

    name: str
    graphs: int
    execs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """A snapshot of the counters of the registry behind a :class:`~graphdedup.DedupBackend`; times in seconds.

    Counts are since the registry was made, over every backend of the device with an equal policy. ``execs`` counts live
    executables: the fold's, and one for each live graph that keeps the wrapped backend's (``passed_through``);
    ``peak_execs`` is the most there were. ``groups`` counts distinct records among the fold's. ``updates`` are those
    that the driver took, ``replay_updates`` the part of them that a replay needed. ``nodes`` is the sum over live
    captured graphs, ``opaque_nodes`` how many of them the driver does not tell everything of. ``refused`` counts updates that
    the driver refused, ``unfolded`` members that lost their executable at replay, ``splits`` executables made because the
    group's others were running on another stream, ``evictions`` executables that the budget took, ``refreshes`` executables
    made anew for a graph that is replayed in a row. ``verified`` replays were compared with an executable of the graph's own,
    of which ``mismatches`` differed.
    """

    captured: int
    execs: int
    peak_execs: int
    nodes: int = 0
    opaque_nodes: int = 0
    groups: int = 0
    updates: int = 0
    replay_updates: int = 0
    launches: int = 0
    refused: int = 0
    unfolded: int = 0
    passed_through: int = 0
    splits: int = 0
    evictions: int = 0
    refreshes: int = 0
    verified: int = 0
    mismatches: int = 0
    walk_seconds: float = 0.0
    fold_seconds: float = 0.0
    instantiate_seconds: float = 0.0
    refused_by_reason: Mapping[str, int] = field(default_factory=dict)
    unfolded_by_reason: Mapping[str, int] = field(default_factory=dict)
    passed_through_by_reason: Mapping[str, int] = field(default_factory=dict)
    sessions: tuple[SessionStats, ...] = ()

    @property
    def updates_per_replay(self) -> float:
        """How often a replay had to re-point its executable ("thrash"): 0 never, 1 always."""
        return self.replay_updates / self.launches if self.launches else 0.0
