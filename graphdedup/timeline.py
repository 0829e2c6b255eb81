"""How many events fell into which span of time: a bounded history, however long it goes on."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

__all__ = ["Timeline"]

_BINS = 120
_FIRST_SECONDS = 0.125


class Timeline:
    """Counts in at most 120 spans of equal length, from the first event on. The length doubles when they are full.

    Args:
        clock: tells the seconds; for tests.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._began: float | None = None
        self._seconds = _FIRST_SECONDS
        self._bins: list[int] = []

    def add(self) -> None:
        """An event, now."""
        now = self._clock()
        with self._lock:
            if self._began is None:
                self._began = now
            while (at := int((now - self._began) / self._seconds)) >= _BINS:
                self._seconds *= 2
                self._bins = [sum(self._bins[first : first + 2]) for first in range(0, len(self._bins), 2)]
            self._bins += [0] * (at + 1 - len(self._bins))
            self._bins[at] += 1

    def read(self) -> tuple[float, tuple[int, ...]]:
        """Length of a span in seconds, and the counts up to the last event."""
        with self._lock:
            return self._seconds, tuple(self._bins)
