"""The memory that a captured graph reaches, held and compared around a replay: what verifying replays needs of a driver."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Protocol

from graphdedup.errors import DriverError
from graphdedup.topology import FOLDABLE_KINDS

__all__ = ["GraphMemory", "Region", "Saved", "Unverifiable", "check_kind", "merged"]


class Region(NamedTuple):
    """A range of memory."""

    address: int
    size_bytes: int

    @property
    def end(self) -> int:
        """One past the last byte."""
        return self.address + self.size_bytes


Saved = dict[Region, Any]
"""The bytes of regions at one moment; what stands for them is the driver's own. Later moments go over it with ``|``."""


class Unverifiable(DriverError):
    """A graph's replays cannot be compared: its memory cannot be named or held, or running it twice has other effects.

    Nothing has been changed when it is raised.
    """


class GraphMemory(Protocol):
    """Bytes of one device. Every call sees what was queued on the current stream before it, and is done when it returns.

    It waits for the current stream only, never for the device, which fails while any thread captures. Nobody else may write
    the regions meanwhile.
    """

    def regions(self, raw: Any) -> tuple[Region, ...]:
        """Disjoint regions that hold all that the nodes of a captured graph name: what they read and what they write.

        Memory that is reached only through pointers that lie in memory is not seen.

        Raises:
            Unverifiable: not everything that a node names can be told, or a node runs code of the host.
        """

    def save(self, regions: Iterable[Region]) -> Saved:
        """Hold the bytes of regions.

        Raises:
            Unverifiable: there is no room for them.
        """

    def restore(self, saved: Saved) -> None:
        """Write bytes back."""

    def differing(self, saved: Saved) -> dict[Region, int]:
        """The regions that hold other bytes now than then, with the number of bytes that differ."""


def check_kind(index: int, kind: str) -> None:
    """Check that running a node twice does no more than to write its memory twice.

    Raises:
        Unverifiable: it runs code of the host, or is of a kind that no shared executable has.
    """
    if kind == "host" or kind not in FOLDABLE_KINDS:
        raise Unverifiable(
            f"node {index} is of kind {kind}, and may do more than write memory when it runs twice",
            remedy="verify graphs without such nodes; compare this one with its eager forward, see graphdedup.check",
        )


def merged(spans: Mapping[Region, tuple[Any, ...]]) -> dict[Region, tuple[Any, ...]]:
    """Spans, each with what keeps it alive, as disjoint regions: those that share a byte are joined, and their keepers."""
    joined: dict[Region, tuple[Any, ...]] = {}
    last: Region | None = None
    for span in sorted(spans):
        if span.size_bytes <= 0:
            continue
        if last is None or span.address >= last.end:
            last = span
            joined[last] = spans[span]
        else:
            owners = joined.pop(last) + spans[span]
            last = Region(last.address, max(last.end, span.end) - last.address)
            joined[last] = owners
    return joined
