"""Outputs that refuse to be read once another graph of their pool has been replayed.

All graphs of a pool work in the same memory, so an output is valid until another graph of the pool is replayed. Nothing on
the device says so when it is read too late: it holds other numbers. A stamp does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from seam.errors import ReplayError
from seam.turns import turn_of

if TYPE_CHECKING:
    from seam.graph import BreakableGraph

__all__ = ["Stamped"]

_T = TypeVar("_T")


class Stamped(Generic[_T]):
    """A captured graph's output, for tests and debugging: ``out = seam.Stamped(graph, y)``, then read ``out.value``.

    Args:
        graph: the captured graph.
        value: what its forward returned inside the capture.
    """

    def __init__(self, graph: BreakableGraph, value: _T) -> None:
        self._graph = graph
        self._value = value

    @property
    def value(self) -> _T:
        """The output of the graph's latest replay.

        Raises:
            ReplayError: the graph was not replayed yet, or another graph of its pool was replayed after it (rule M1).
        """
        graph = self._graph
        kept = turn_of(graph.pool).last if graph.pool is not None else None
        last = kept() if kept is not None else None
        if last is graph:
            return self._value
        if not graph.replay_count:
            raise ReplayError(
                f"the output of {graph.label} holds nothing: the graph was not replayed", rule="M1", remedy="replay it first"
            )
        after = last.label if last is not None else "another graph"
        raise ReplayError(
            f"the output of {graph.label} is stale: {after} of the same pool was replayed after it",
            rule="M1",
            remedy="read or copy an output before another graph of its pool is replayed, or give each graph a pool of its own",
        )
