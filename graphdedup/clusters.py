"""Which kernel function runs with which cluster dimension at each node of a group (rule D3).

On an H200 an update carries a cluster dimension only together with another function: where the function stays, an executable
that was uploaded keeps the dimension that it had, and the driver says "success". So within a group one function has one
cluster dimension at one node. cuBLAS keeps to that by itself (its functions are compiled for their clusters); others need not.
"""

from __future__ import annotations

from collections.abc import Sequence

from graphdedup.driver.protocol import NodeRecord

__all__ = ["ClusterUse", "Use", "uses"]

Use = tuple[int, tuple[int, int, int]]
"""(function, cluster dimension); a kernel that sets none counts as (1, 1, 1), which is what it says once it is mended."""
_ONE = (1, 1, 1)


def uses(nodes: Sequence[NodeRecord]) -> tuple[Use, ...]:
    """The use of each node; nodes that are no kernels have function 0."""
    return tuple((node.function, node.cluster if any(node.cluster) else _ONE) for node in nodes)


class ClusterUse:
    """What the members of one group use. It grows with the functions that they run, not with their number."""

    __slots__ = ("_first", "_more")

    def __init__(self, first: tuple[Use, ...]) -> None:
        self._first = first
        self._more: dict[tuple[int, int], tuple[int, int, int]] = {}

    def conflict(self, other: tuple[Use, ...]) -> int | None:
        """The first node at which ``other`` runs a member's function with another cluster dimension, or None."""
        if other == self._first:
            return None
        for node, (held, (function, cluster)) in enumerate(zip(self._first, other, strict=True)):
            known = held[1] if held[0] == function else self._more.get((node, function), cluster)
            if known != cluster:
                return node
        return None

    def add(self, other: tuple[Use, ...]) -> None:
        """Take a member in."""
        for node, (held, (function, cluster)) in enumerate(zip(self._first, other, strict=True)):
            if held[0] != function:
                self._more[node, function] = cluster
