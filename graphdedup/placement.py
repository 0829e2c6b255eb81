"""Which members share an executable, of those that could.

An executable that changes its graph pays an update and an upload. Segments of different layers are often equal: with one
executable for all of them every step pays one update per layer; with one per segment position a steady batch size pays
none. The first is the default: it has the fewest executables, and an update runs on the host while the device is busy with
the segment before.
"""

from __future__ import annotations

import enum

from seam.backend import SegmentInfo

__all__ = ["Placement"]


class Placement(enum.StrEnum):
    """Which members of equal records share one executable."""

    GROUP = "group"
    """All of them: the fewest executables."""
    POSITION = "position"
    """Those at the same position of their graphs: a steady batch size replays without updates."""

    def lane(self, segment: SegmentInfo) -> int:
        """Members fold only within a lane."""
        return segment.position if self is Placement.POSITION else 0
