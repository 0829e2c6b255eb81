"""How large a captured graph is as an executable: its nodes, its branches, and what it could share an executable with."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from graphdedup.errors import GraphDedupError
from graphdedup.policy import FoldPolicy
from graphdedup.signature import Tier
from graphdedup.topology import FOLDABLE_KINDS, Node, Subgraph, Topology
from seam.backend import SegmentInfo

if TYPE_CHECKING:
    from graphdedup.group import Member
    from graphdedup.registry import Registry

__all__ = ["GraphSize", "branch_count", "size_of_member", "size_of_topology"]


class GraphSize(NamedTuple):
    """One captured graph, as far as its executable's size goes."""

    node_count: int
    branch_count: int
    key: Hashable
    """Graphs of equal keys share an executable; None: this one shares with nobody, nor would that of another shape."""


def branch_count(graph: Subgraph) -> int:
    """In how many places the graph is not a line: branches besides the first one, and joins; child graphs included.

    Edges that follow from others are left out: a stream that waits for what it is behind of anyway adds nothing.
    """
    count = sum(branch_count(node.child) for node in graph.nodes if node.child is not None)
    sources = _needed_sources(graph)
    targets = [0] * len(graph.nodes)
    for waits_for in sources:
        for source in waits_for:
            targets[source] += 1
    roots = sum(not waits_for for waits_for in sources)
    return count + max(0, roots - 1) + sum(max(0, out - 1) for out in targets) + sum(len(some) > 1 for some in sources)


def _needed_sources(graph: Subgraph) -> list[list[int]]:
    """For each node what it waits for, without what another of them waits for already."""
    sources = [sorted({source for source, _ in some}) for some in graph.dependencies()]
    targets: list[list[int]] = [[] for _ in sources]
    for node, some in enumerate(sources):
        for source in some:
            targets[source].append(node)
    waiting, unread = [len(some) for some in sources], [len(some) for some in targets]
    ready = [node for node, count in enumerate(waiting) if not count]
    before: dict[int, int] = {}
    """The ancestors of a node as bits, until all that wait for it are through."""
    needed: list[list[int]] = [[] for _ in sources]
    done = 0
    while ready:
        node, done = ready.pop(), done + 1
        some = sources[node]
        needed[node] = [one for one in some if not any(before[other] >> one & 1 for other in some if other != one)]
        bits = 0
        for source in some:
            bits |= before[source] | 1 << source
            unread[source] -= 1
            if not unread[source]:
                del before[source]
        before[node] = bits
        for target in targets[node]:
            waiting[target] -= 1
            if not waiting[target]:
                ready.append(target)
    if done < len(sources):
        raise GraphDedupError("a topology has nodes that wait for each other", remedy="give what a capture recorded")
    return needed


def size_of_topology(graph: Topology, policy: FoldPolicy, position: int) -> GraphSize:
    """The size of a captured graph; its key is as much as a topology tells of what folds.

    Raises:
        GraphDedupError: nodes wait for each other.
    """
    kinds = {node.kind for node in _nodes(graph)}
    key = None if kinds - FOLDABLE_KINDS else (policy.placement.lane(SegmentInfo(position)), _key(graph, policy.tier))
    return GraphSize(sum(1 for _ in _nodes(graph)), branch_count(graph), key)


def size_of_member(registry: Registry, member: Member, known: dict[str, tuple[int, int]]) -> GraphSize:
    """The size of a live graph, whose key is its group. ``known`` keeps node and branch counts by the shapes of graphs.

    Raises:
        DriverError: the graph cannot be read.
    """
    counts = known.get(member.shape) if member.shape else None
    if counts is None:
        graph = registry.driver.topology(member.raw)
        counts = known[member.shape] = sum(1 for _ in _nodes(graph)), branch_count(graph)
    shared = member.group is not None and member.group.bucket is not None
    return GraphSize(*counts, id(member.group) if shared else None)


def _nodes(graph: Subgraph) -> Iterator[Node]:
    for node in graph.nodes:
        yield node
        if node.child is not None:
            yield from _nodes(node.child)


def _key(graph: Subgraph, tier: Tier) -> Hashable:
    """What graphs of one group have in common, as far as a topology tells."""
    nodes: list[Hashable] = []
    for node in graph.nodes:
        parts: list[Hashable] = [node.kind, node.local_bytes, node.memory, node.context]
        parts.append(None if node.child is None else _key(node.child, tier))
        if tier is not Tier.STRUCTURE:
            parts += [node.name, node.function, node.cluster]
        if tier is Tier.EXACT:
            parts += [node.grid, node.block, node.shared_bytes]
        nodes.append(tuple(parts))
    return tuple(nodes), tuple(graph.dependencies())
