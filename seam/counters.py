"""What the seam did in this process, counted: a change that nobody meant shows here."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass
from types import MappingProxyType

__all__ = ["SeamStats", "count", "stats"]


@dataclass(frozen=True, slots=True)
class SeamStats:
    """Counts of one process since it began."""

    scopes: MappingProxyType[str, int]
    """Capture scopes that were opened, by mode; those that the switch made inert count under ``"disabled"``."""
    failed: int
    """Scopes that ended in an error."""
    break_points: int
    """Break points met inside of scopes, those that ran as plain calls too."""
    breaks: int
    """Those of them that ended a segment."""
    segments: int
    replays: int
    forks: int
    """Side streams that joined a capture."""
    joins: int
    """Joins that the seam made before segments ended (rule S8)."""


_counts: Counter[str] = Counter()
_lock = threading.Lock()


def count(what: str, number: int = 1) -> None:
    """Add to one of the counts; scopes are named ``scope MODE``."""
    with _lock:
        _counts[what] += number


def stats() -> SeamStats:
    """What the seam did in this process so far."""
    with _lock:
        held = Counter(_counts)
    scopes = {mode: held["scope " + mode] for mode in ("full", "breakable", "tc_piecewise", "disabled")}
    names = ("failed", "break_points", "breaks", "segments", "replays", "forks", "joins")
    return SeamStats(MappingProxyType(scopes), *(held[name] for name in names))
