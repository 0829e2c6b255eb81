"""What the fold counts, and why graphs did not fold: by reason, with an example of each."""

from __future__ import annotations

import re
import threading
from collections import Counter
from dataclasses import dataclass, field

__all__ = ["Counters", "Reasons"]


@dataclass(slots=True)
class Counters:
    """Counts since the registry was made; times in seconds, bytes as they grew over instantiations."""

    captured: int = 0
    peak_execs: int = 0
    updates: int = 0
    replay_updates: int = 0
    """Those of them that a replay needed."""
    launches: int = 0
    refused: int = 0
    unfolded: int = 0
    splits: int = 0
    """Executables made because a group's others were running on another stream (rule D10)."""
    evictions: int = 0
    """Executables that the budget took."""
    refreshes: int = 0
    """Executables made anew for a graph that was replayed in a row (``refresh_after``)."""
    verified: int = 0
    """Replays that were compared with an executable of the graph's own."""
    mismatches: int = 0
    walk_seconds: float = 0.0
    fold_seconds: float = 0.0
    instantiate_seconds: float = 0.0
    exec_host_bytes: int = 0
    exec_device_bytes: int = 0


@dataclass(slots=True)
class Reasons:
    """Counts by reason. A reason is general; which node of which graph it was stands in its example."""

    counts: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, reason: str, example: str) -> None:
        """Count one; the first example of a reason is kept."""
        general = re.sub(r"node \d+", "a node", reason)
        with self._lock:
            self.counts[general] += 1
            self.examples.setdefault(general, example if general == reason else f"{example}: {reason}")
