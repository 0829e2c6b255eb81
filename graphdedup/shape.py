"""Whether two graphs are the same up to the order of their nodes, and where they are not.

Nodes get colours that do not depend on their order: first by kind, then by what is around them, at last by everything before
and after them, and these are refined until nothing changes. Graphs whose colours differ are not the same, and a node of a
colour that the other graph has fewer of has no counterpart. Graphs of equal colours are the same where what is symmetric in
them comes apart in pieces that are not; else that holds "as far as refinement tells". Every step is bounded: VF2++, which
networkx has for this, is not, and does not look at the data of edges.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import networkx

from graphdedup.topology import Node, Subgraph

__all__ = ["Match", "first_unequal", "match"]

_WORK = 4_000_000
"""Edges that refinement looks at, at most."""
_ROUNDS = 50
_NESTED = 30
"""How deep symmetric parts may lie in others."""

Neighbours = list[list[tuple[tuple[int, int, int], int]]]


@dataclass(frozen=True, slots=True)
class Match:
    """The outcome for two graphs that are not recorded alike."""

    same: bool
    """They are the same graph in another order."""
    by_refinement: bool = False
    """``same`` holds as far as refinement tells."""
    node: int | None = None
    """If not the same: a node without a counterpart; None where refinement finds none."""
    in_second: bool = False
    """Whether ``node`` is one of the second graph."""


def first_unequal(left: Subgraph, right: Subgraph) -> int | None:
    """The first index at which kinds or dependencies differ, or nodes are missing; None if the graphs are recorded alike."""
    before, after = left.dependencies(), right.dependencies()
    for index, (one, other) in enumerate(zip(left.nodes, right.nodes, strict=False)):
        if one.kind != other.kind or before[index] != after[index]:
            return index
    return None if len(left.nodes) == len(right.nodes) else min(len(left.nodes), len(right.nodes))


def match(left: Subgraph, right: Subgraph, likely: int) -> Match:
    """Match two graphs whatever the order of their nodes. ``likely`` is named where it is one without a counterpart."""
    colours = _Colours()
    sides = _Side(left, colours), _Side(right, colours)
    for one, other in zip(sides[0].stages(), sides[1].stages(), strict=False):
        if Counter(one) != Counter(other):
            return _without_counterpart(one, other, likely)
    pieces = [side.pieces() for side in sides]
    return Match(same=pieces[0] == pieces[1], by_refinement=pieces[0] is None and pieces[1] is None)


def _without_counterpart(one: Sequence[int], other: Sequence[int], likely: int) -> Match:
    """The likely node if it is in surplus on either side; else the first that is left when colours are paired in order."""
    surplus = Counter(one) - Counter(other), Counter(other) - Counter(one)
    sides = ((False, one, surplus[0], Counter(other)), (True, other, surplus[1], Counter(one)))
    for in_second, colours, more, _ in sides:
        if likely < len(colours) and colours[likely] in more:
            return Match(same=False, node=likely, in_second=in_second)
    for in_second, colours, more, there in sides:
        for node, colour in enumerate(colours):
            if colour in more:
                if not there[colour]:
                    return Match(same=False, node=node, in_second=in_second)
                there[colour] -= 1
    return Match(same=False)


class _Colours:
    """Numbers for whatever is equal, the same on both sides."""

    def __init__(self) -> None:
        self._known: dict[Hashable, int] = {}

    def of(self, value: Hashable) -> int:
        return self._known.setdefault(value, len(self._known))


class _Side:
    """One graph, coloured step by step."""

    def __init__(self, graph: Subgraph, colours: _Colours) -> None:
        self.nodes = range(len(graph.nodes))
        self._of = colours.of
        self._incoming: Neighbours = [[] for _ in self.nodes]
        self._outgoing: Neighbours = [[] for _ in self.nodes]
        self._made = networkx.DiGraph()
        self._made.add_nodes_from(self.nodes)
        for edge in graph.edges:
            self._incoming[edge.target].append((edge.data, edge.source))
            self._outgoing[edge.source].append((edge.data, edge.target))
            self._made.add_edge(edge.source, edge.target)
        self._has_children = any(node.child is not None for node in graph.nodes)
        self._colour = [self._of(("kind", *self._label(node, colours))) for node in graph.nodes]
        self._stable = False
        work = max(1, len(graph.edges) + len(graph.nodes))
        self._rounds = max(1, min(_ROUNDS, _WORK // work))

    def _label(self, node: Node, colours: _Colours) -> tuple[Hashable, ...]:
        if node.child is None:
            return (node.kind,)
        child = _Side(node.child, colours)
        *_, last = child.stages()
        return node.kind, tuple(sorted(last))

    def stages(self) -> Iterator[list[int]]:
        """Colours of the nodes, from coarse to fine: kind, surroundings of one and two steps, all before and after, stable."""
        yield self._colour
        for _ in range(2):
            yield self._refine()
        if networkx.is_directed_acyclic_graph(self._made):
            order = list(networkx.topological_sort(self._made))
            before = self._along(order, self._incoming)
            after = self._along(order[::-1], self._outgoing)
            self._colour = [self._of(("cone", before[node], after[node])) for node in self.nodes]
            yield self._colour
        for _ in range(self._rounds):
            count = len(set(self._colour))
            self._refine()
            self._stable = len(set(self._colour)) == count
            yield self._colour
            if self._stable:
                return

    def _refine(self) -> list[int]:
        colour = self._colour
        self._colour = [
            self._of(
                ("near", colour[node], self._around(self._incoming[node], colour), self._around(self._outgoing[node], colour))
            )
            for node in self.nodes
        ]
        return self._colour

    def _along(self, order: Iterable[int], neighbours: Neighbours) -> dict[int, int]:
        """Each node's colour and those of everything that leads to it, in one pass."""
        found: dict[int, int] = {}
        for node in order:
            found[node] = self._of(("along", self._colour[node], self._around(neighbours[node], found)))
        return found

    def _around(
        self, neighbours: list[tuple[tuple[int, int, int], int]], colour: Sequence[int] | Mapping[int, int]
    ) -> Hashable:
        return tuple(sorted((data, colour[other]) for data, other in neighbours))

    def pieces(self) -> int | None:
        """The graph taken apart, equal for equal graphs; None where that does not work.

        Stable colours say how many neighbours of each colour a node has. So a node that alone has its colour within a
        connected piece is joined to the rest of it as its colour says, and can be taken out; what falls apart is compared
        piece by piece. Whether it works depends on the graph alone, so where it does for one of two, they are not the same.
        """
        return self._piece(set(self.nodes), 0) if self._stable and not self._has_children else None

    def _piece(self, nodes: set[int], depth: int) -> int | None:
        counts = Counter(self._colour[node] for node in nodes)
        alone = {node for node in nodes if counts[self._colour[node]] == 1}
        rest = nodes - alone
        if depth > _NESTED or (depth and rest and not alone):
            return None
        parts = []
        for part in networkx.weakly_connected_components(self._made.subgraph(rest)) if rest else ():
            told = self._piece(set(part), depth + 1)
            if told is None:
                return None
            parts.append(told)
        return self._of(("piece", tuple(sorted(self._colour[node] for node in alone)), tuple(sorted(parts))))
