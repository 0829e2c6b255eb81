"""Counts of one backend, cheap to read at any time."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Stats"]


@dataclass(frozen=True, slots=True)
class Stats:
    """A snapshot of the counters of a :class:`~graphdedup.DedupBackend`; times in seconds, all since it was made.

    ``execs`` counts live executables: the fold's, and one for each live graph that keeps the wrapped backend's
    (``passed_through``). ``groups`` counts distinct records among the fold's. ``nodes`` is the sum over live captured
    graphs. ``refused`` counts updates that the driver refused, ``unfolded`` members that lost their executable at replay.
    """

    captured: int
    execs: int
    peak_execs: int
    nodes: int
    groups: int
    updates: int
    launches: int
    refused: int
    unfolded: int
    passed_through: int
    walk_seconds: float
    fold_seconds: float
    instantiate_seconds: float
