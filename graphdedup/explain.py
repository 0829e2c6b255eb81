"""Why two captured graphs fold or do not: the first difference, in words.

What must be equal is what the key holds (:class:`Held`). A difference elsewhere is carried by an update and only counted.
All of this is said of exported graphs, so it costs a fold nothing; that the driver takes an update, only the driver can say.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from pydantic import BaseModel, ConfigDict

from graphdedup.driver.protocol import NOTHING_MORE
from graphdedup.errors import GraphDedupError
from graphdedup.kernel_names import demangle, in_words, side_by_side
from graphdedup.node_fields import (
    FieldDifference,
    Held,
    costs_time_only,
    differences,
    first_difference,
    forbids_sharing,
    rank,
)
from graphdedup.shape import first_unequal, match
from graphdedup.topology import Node, Subgraph, Topology

__all__ = [
    "Explanation",
    "FieldDifference",
    "Held",
    "demangle",
    "explain",
    "explain_refusal",
    "first_difference",
    "nearest",
]

_MOST_FIELDS = 6
_MOST_SOURCES = 6
_EVERYTHING_BUT_SIZES = Held(functions=True, clusters=True, clusters_of_a_function=True, reads=NOTHING_MORE)


class Explanation(BaseModel):
    """Whether two graphs fold by the key, and why not. The driver has the last word (rule D1)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    folds: bool
    reason: str = ""
    """The first difference, as a sentence; empty when they fold."""
    where: str = ""
    """``"device"``, ``"node count"``, ``"structure"``, ``"node 17"`` or ``"edge 3 -> 4"``; ahead of it the way into child
    graphs."""
    node: int | None = None
    """The node's index, in the innermost graph that ``where`` leads to."""
    kernel: str = ""
    """What the node is: its kernel's name, or its kind."""
    field: str = ""
    left: str = ""
    right: str = ""
    same_graph_other_order: bool = False
    by_refinement: bool = False
    """``same_graph_other_order`` was not proven, but no refinement of the nodes tells the graphs apart."""
    carried: dict[str, int] = {}
    """If they fold: in how many nodes each field differs."""

    def to_text(self) -> str:
        """One line."""
        if not self.folds:
            return f"do not fold: {self.reason}"
        return f"fold: {self.carried_text()}"

    def carried_text(self) -> str:
        """What an update has to carry, in words."""
        if not self.carried:
            return "no node differs"
        parts = [f"{count} in {field}" for field, count in list(self.carried.items())[:_MOST_FIELDS]]
        first = next(iter(self.carried.values()))
        parts[0] = parts[0].replace(" in ", " node differs in " if first == 1 else " nodes differ in ", 1)
        if (more := len(self.carried) - _MOST_FIELDS) > 0:
            parts.append(f"and in {more} more field{'s' if more > 1 else ''}")
        time = ", or which change nothing but time" if any(map(costs_time_only, self.carried)) else ""
        return f"{', '.join(parts)}, which an update carries{time}"


def explain(left: Topology, right: Topology, held: Held) -> Explanation:
    """Compare two graphs as a fold does: device, structure, then node by node what is held, child graphs included."""
    if (elsewhere := _device(left, right)) is not None:
        return elsewhere
    carried: Counter[str] = Counter()
    forbidden: Explanation | None = None
    for way, first, second in _graphs(left, right):
        inside = "".join(f"node {index}, child graph, " for index in way)
        if (found := _structure(first, second, inside)) is not None:
            return found
        here = replace(held, clusters=True) if way else held  # nobody says (1, 1, 1) inside a child graph
        for one, other in zip(first.nodes, second.nodes, strict=True):
            if (difference := first_difference(one, other, here)) is not None:
                return _field(inside, one, other, difference)
            forbidden = forbidden or _forbidden(inside, one, other, here)
            carried.update(difference.field for difference in differences(one, other))
    if forbidden is not None:
        return forbidden
    return Explanation(folds=True, carried=dict(sorted(carried.items(), key=lambda item: rank(item[0]))))


def explain_refusal(verdict: str, node: int | None, left: Node | None, right: Node | None) -> str:
    """A refused update in one line: the result by name, the node, what it runs on both sides, and the first difference.

    ``left`` is the node that the executable held, ``right`` the one that was offered; None where it is not known.
    """
    told = verdict if node is None else f"{verdict} at node {node}"
    if left is None or right is None:
        known = left or right
        return told if known is None else f"{told} ({_words(known)})"
    difference = first_difference(left, right)
    if difference is None:
        return f"{told} ({_pair(left, right)}): no field that the driver tells differs"
    return f"{told} ({_pair(left, right)}): {_against(difference)}"


def nearest(one: Topology, others: Sequence[Topology], held: Held | None = None) -> int:
    """Index of the graph that is most like ``one``.

    First those with as many nodes and edges, of these the one that differs latest, then the nearest number of nodes. What
    counts as a difference is what ``held`` holds, or without it everything but sizes and parameters.

    Raises:
        GraphDedupError: ``others`` is empty.
    """
    if not others:
        raise GraphDedupError("there is no graph to compare with.", remedy="give at least one.")

    def likeness(index: int) -> tuple[bool, int, int, int]:
        other = others[index]
        alike = (len(one.nodes), len(one.edges)) == (len(other.nodes), len(other.edges))
        until = _agree_until(one, other, held or _EVERYTHING_BUT_SIZES)
        return alike, until, -abs(len(one.nodes) - len(other.nodes)), -index

    return max(range(len(others)), key=likeness)


def _device(left: Topology, right: Topology) -> Explanation | None:
    for field, one, other in (
        ("device", left.device, right.device),
        ("driver version", left.driver_version, right.driver_version),
        ("instantiate flags", str(left.instantiate_flags), str(right.instantiate_flags)),
    ):
        if one != other:
            reason = f"{field} {one} against {other}"
            return Explanation(folds=False, reason=reason, where="device", field=field, left=one, right=other)
    return None


# Structure


def _graphs(left: Subgraph, right: Subgraph) -> Iterator[tuple[tuple[int, ...], Subgraph, Subgraph]]:
    """The two graphs, then the child graphs of nodes in the same place; and the way to each, as indices of nodes."""
    todo: list[tuple[tuple[int, ...], Subgraph, Subgraph]] = [((), left, right)]
    while todo:
        way, first, second = todo.pop(0)
        yield way, first, second
        pairs = zip(first.nodes, second.nodes, strict=True)
        todo += [
            ((*way, one.index), one.child, other.child)
            for one, other in pairs
            if one.child is not None and other.child is not None
        ]


def _structure(left: Subgraph, right: Subgraph, inside: str) -> Explanation | None:
    unequal = first_unequal(left, right)
    if unequal is None:
        return None
    found = match(left, right, unequal)
    if found.same:
        proof = "as far as refinement tells" if found.by_refinement else "up to isomorphism"
        return Explanation(
            folds=False,
            reason=f"{_prefix(inside)}the same graph {proof}, recorded in another order from node {unequal} on: "
            "the driver pairs nodes by order (rule D3)",
            where=f"{inside}structure",
            node=unequal,
            kernel=_words(left.nodes[unequal]),
            field="order",
            same_graph_other_order=True,
            by_refinement=found.by_refinement,
        )
    if found.node is None:
        reason = f"{_prefix(inside)}not the same graph, though every node of the one is like a node of the other"
        return Explanation(folds=False, reason=reason, where=f"{inside}structure", field="dependencies")
    if len(left.nodes) == len(right.nodes):
        told = _same_index(left, right, found.node, inside)
        if told is not None:
            return told
    return _no_counterpart(left, right, found.node, found.in_second, inside)


def _same_index(left: Subgraph, right: Subgraph, index: int, inside: str) -> Explanation | None:
    """The difference between the nodes of one index, where it is no more than a kind or the data of an edge."""
    one, other = left.nodes[index], right.nodes[index]
    before, after = left.dependencies()[index], right.dependencies()[index]
    if before == after and one.kind != other.kind:
        return _field(inside, one, other, FieldDifference("kind", one.kind, other.kind))
    if before != after and [source for source, _ in before] == [source for source, _ in after]:
        source, data, wanted = next((a[0], a[1], b[1]) for a, b in zip(before, after, strict=True) if a != b)
        where = f"{inside}edge {source} -> {index}"
        return Explanation(
            folds=False,
            reason=f"{where}: from port, to port and type {data} against {wanted}",
            where=where,
            node=index,
            kernel=_pair(one, other),
            field="edge data",
            left=str(data),
            right=str(wanted),
        )
    return None


def _no_counterpart(left: Subgraph, right: Subgraph, index: int, in_second: bool, inside: str) -> Explanation:
    node = (right if in_second else left).nodes[index]
    where, field = f"{inside}structure", "node"
    one, other = ("no counterpart", node.kind) if in_second else (node.kind, "no counterpart")
    reason = f"node {index} ({_words(node)}) of the {'second' if in_second else 'first'} graph has no counterpart"
    if len(left.nodes) != len(right.nodes):
        where, field = f"{inside}node count", "node count"
        one, other = str(len(left.nodes)), str(len(right.nodes))
        reason = f"{one} nodes against {other}; {reason}"
    else:
        before, after = left.dependencies()[index], right.dependencies()[index]
        if before != after:
            field, one, other = "dependencies", _waits(before), _waits(after)
            reason = f"{reason}: in the first it {one}, in the second {other.removeprefix('waits ')}"
    return Explanation(
        folds=False,
        reason=_prefix(inside) + reason,
        where=where,
        node=index,
        kernel=_words(node),
        field=field,
        left=one,
        right=other,
    )


def _waits(sources: Sequence[tuple[int, tuple[int, int, int]]]) -> str:
    indices = [str(source) for source, _ in sources[:_MOST_SOURCES]]
    if len(sources) > _MOST_SOURCES:
        indices.append(f"{len(sources) - _MOST_SOURCES} more")
    if len(indices) < 2:
        return f"waits for node {indices[0]}" if indices else "waits for none"
    return f"waits for nodes {', '.join(indices[:-1])} and {indices[-1]}"


# Fields


def _field(inside: str, left: Node, right: Node, difference: FieldDifference) -> Explanation:
    where = f"{inside}node {left.index}"
    return Explanation(
        folds=False,
        reason=f"{where} ({_pair(left, right)}): {_against(difference)}",
        where=where,
        node=left.index,
        kernel=_pair(left, right),
        field=difference.field,
        left=difference.left,
        right=difference.right,
    )


def _forbidden(inside: str, left: Node, right: Node, held: Held) -> Explanation | None:
    """Two nodes alike that keep their graphs from sharing with anyone."""
    told = forbids_sharing(left, held), forbids_sharing(right, held)
    if not any(told):
        return None
    where = f"{inside}node {left.index}"
    return Explanation(
        folds=False,
        reason=f"{where} ({_pair(left, right)}): {told[0] or told[1]}",
        where=where,
        node=left.index,
        kernel=_pair(left, right),
        field="sharing",
        left=told[0] or "may share",
        right=told[1] or "may share",
    )


def _agree_until(left: Subgraph, right: Subgraph, held: Held) -> int:
    """The first index at which two graphs differ; the number of nodes where they do not."""
    unequal = first_unequal(left, right)
    for index, (one, other) in enumerate(zip(left.nodes[:unequal], right.nodes[:unequal], strict=False)):
        if first_difference(one, other, held) is not None:
            return index
        if one.child is not None and other.child is not None and one.child != other.child:
            inner = replace(held, clusters=True)
            if len(one.child.nodes) != len(other.child.nodes) or _agree_until(one.child, other.child, inner) < len(
                one.child.nodes
            ):
                return index
    return len(left.nodes) if unequal is None else unequal


# Words


def _prefix(inside: str) -> str:
    return f"{inside.removesuffix(', ')}: " if inside else ""


def _words(node: Node) -> str:
    return in_words(node.name) if node.name else node.kind


def _pair(left: Node, right: Node) -> str:
    """Both nodes in words, once where they are called alike."""
    if left.name and right.name:
        one, other = side_by_side(left.name, right.name)
    else:
        one, other = _words(left), _words(right)
    return one if one == other else f"{one} against {other}"


def _against(difference: FieldDifference) -> str:
    return f"{difference.field} {difference.left} against {difference.right}"
