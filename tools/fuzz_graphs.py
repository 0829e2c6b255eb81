"""Families of small graphs for the fuzzer of the update: hypothesis strategies, no device code.

What a launch of a drawn graph computes never depends on the order in which unordered nodes run, so the bytes can be compared.
Every node writes places that no other node writes: a buffer, a stamp, a host buffer or a counter. It reads buffer 0 and host
buffer 0, which nobody writes, or a buffer that one of its ancestors writes. The nodes of a child graph stand where the child
node stands. :func:`settled` brings every graph back to that, and to launches that the hardware takes, after each mutation.

In a family with clusters every grid is a multiple of the largest one: an executable may run a graph with the cluster dimension
of the graph before, and a grid that is no multiple of it could not be launched at all.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from types import MappingProxyType
from typing import Any, TypeVar

from hypothesis import strategies as st

from graphdedup.probe.spec import (
    PLAIN_EDGE,
    PROGRAMMATIC_EDGE,
    Arena,
    Child,
    Empty,
    EventRecord,
    GraphSpec,
    Host,
    Kernel,
    Memcpy,
    Memset,
    NodeSpec,
)

__all__ = ["ARENA", "PAIR_SEED", "Family", "Style", "families", "settled"]

T = TypeVar("T")
Edge = tuple[int, int, tuple[int, int, int]]
Attributes = Mapping[str, tuple[int, ...]]

ARENA = Arena(buffer_count=12, buffer_bytes=1024, host_buffer_count=4, counter_count=4, stamp_count=16)
"""The arena that every family fits into."""
PAIR_SEED = 1
"""A seed that no schedule has, for the launch after an update of a pair."""
_LAPS, _SCHEDULE_SEEDS = 3, 5
_MOST_NODES, _MOST_CHILD_NODES = 8, 3


@dataclass(frozen=True, slots=True)
class Family:
    """Graphs that may or may not share an executable, and launches (member, seed) to do in this order."""

    specs: tuple[GraphSpec, ...]
    schedule: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Style:
    """What the graphs of a family may have."""

    clusters: bool = False
    preferred_clusters: bool = False
    """Also preferred cluster dimensions, where there are clusters."""
    nested: bool = False
    """Inside a child graph, which has no child graphs."""


# What is chosen from. The first of each is the simplest one, to which hypothesis shrinks.

_FUNCTIONS = (
    "add",
    "multiply",
    "xor",
    "mix",
    "wide",
    "deep",
    "says",
    "elsewhere",
    "late",
    "heavy",
    "roomy",
    "paired",  # last, because it becomes "add" in a family without clusters
)
_SHARED_LIMIT = {"wide": 96 << 10, "roomy": 8 << 10}
_OTHER_SHARED_LIMIT = 16 << 10
_LARGEST_BLOCK, _LARGEST_COOPERATIVE_GRID, _LARGEST_CLUSTER = 256, 16, 8
_GRIDS = ((8, 1, 1), (1, 1, 1), (2, 1, 1), (3, 1, 1), (16, 1, 1), (2, 3, 4), (1, 4, 2), (5, 2, 1))
_CLUSTER_GRIDS = ((8, 1, 1), (16, 1, 1), (8, 2, 1), (8, 1, 2), (24, 1, 1))
_BLOCKS = ((32, 1, 1), (1, 1, 1), (64, 1, 1), (256, 1, 1), (33, 1, 1), (16, 4, 2), (8, 8, 4))
_SHARED = (0, 0, 1 << 10, 4 << 10, 16 << 10, 96 << 10)
_CONSTANTS = (1, 0, 2, 7, 11, 0x10001, 0xFFFFFFFF)  # not 0xFFFFFFFE, of which "says" speaks
_WORDS = (64, 1, 17, 100, 128)
_SIZES = (256, 1, 4, 100, 1000, 1024)
_DIRECTIONS = ("d2d", "d2d", "h2d", "d2h")
_EXTENTS = (  # (element bytes, width, height, pitch bytes)
    (1, 256, 1, 0),
    (1, 1, 1, 0),
    (1, 100, 1, 0),
    (1, 1024, 1, 0),
    (2, 50, 1, 0),
    (2, 512, 1, 0),
    (4, 25, 1, 0),
    (4, 64, 1, 0),
    (4, 256, 1, 0),
    (1, 16, 4, 64),
    (1, 16, 4, 128),
    (1, 100, 3, 256),
    (1, 64, 16, 64),
    (2, 8, 4, 64),
    (2, 8, 2, 64),
    (2, 33, 2, 128),
    (4, 4, 4, 64),
    (4, 4, 8, 16),
    (4, 64, 3, 256),
)
_VALUES = (5, 0, 200, 0x0102, 0x01020304, 0xFFFFFFFF)
_ATTRIBUTES: dict[str, tuple[tuple[int, ...], ...]] = {
    "priority": ((-1,), (-2,), (0,)),
    "mem_sync_domain": ((1,), (0,)),
    "mem_sync_domain_map": ((0, 0), (0, 1), (1, 1), (1, 0)),
    "shared_memory_carveout": ((0,), (50,), (100,)),
    "access_policy_window": ((0, 1024, 1, 2, 0), (1, 512, 1, 1, 0), (0, 1024, 1, 0, 1), (2, 256, 1, 2, 1)),
    "nvlink_util_centric_scheduling": ((1,), (0,)),
    "cooperative": ((1,), (0,)),
}
_CLUSTER_ATTRIBUTES: dict[str, tuple[tuple[int, ...], ...]] = {
    "cluster": ((2, 1, 1), (1, 1, 1), (4, 1, 1), (8, 1, 1)),
    "cluster_scheduling_policy": ((1,), (2,)),
}
_PREFERRED: dict[str, tuple[tuple[int, ...], ...]] = {"preferred_cluster": ((4, 1, 1), (8, 1, 1))}
_ALL_BUFFERS = range(ARENA.buffer_count)
_CLUSTER_NAMES = (*_CLUSTER_ATTRIBUTES, *_PREFERRED)
_KINDS = (Kernel,) * 14 + (Memset,) * 3 + (Memcpy,) * 3 + (Host, Empty, EventRecord)
_KINDS_WITH_CHILD = (*_KINDS, Child, Child)
_KERNEL_FIELDS = (
    "constant",
    "grid",
    "function",
    "attribute",
    "block",
    "shared",
    "words",
    "source",
    "target",
    "function",
    "attribute",
)
_WAITS = (  # (how many nodes a node waits for, whether by programmatic edges)
    (1, False),
    (1, False),
    (1, False),
    (0, False),
    (2, False),
    (1, True),
    (3, False),
    (2, False),
    (2, True),
)


_BLOCK_BYTES, _BLOCKS_OF_A_FAMILY = 16, 24


class _Choices:
    """Choices of one family, out of its bytes; 0 is the simplest, and where there are no bytes left all are 0.

    Hypothesis draws the bytes in one piece: that is fast, and it cannot make most of its examples by repeating parts of
    others. Nodes and mutations begin with a block of their own, so that a smaller one does not change those after it.
    """

    __slots__ = ("_bytes", "_place")

    def __init__(self, drawn: bytes) -> None:
        self._bytes, self._place = drawn, 0

    def begin(self) -> None:
        """Begin a block."""
        self._place += -self._place % _BLOCK_BYTES

    def below(self, count: int) -> int:
        """A number from 0 to ``count - 1``, for at most 256."""
        place = self._place
        if count == 1 or place >= len(self._bytes):
            return 0
        self._place = place + 1
        return self._bytes[place] * count >> 8

    def of(self, options: Sequence[T]) -> T:
        """One of these."""
        return options[self.below(len(options))]

    def other(self, options: Sequence[T], held: Any) -> T:
        """One that is not held now."""
        return self.of([option for option in dict.fromkeys(options) if option != held])


def families(*, preferred_clusters: bool = False) -> st.SearchStrategy[Family]:
    """Families of 2 to 4 graphs: the first is random, each other one has 0 to 3 mutations more than one before it."""
    size = _BLOCK_BYTES * _BLOCKS_OF_A_FAMILY
    return st.binary(min_size=size, max_size=size).map(lambda drawn: _family(_Choices(drawn), preferred_clusters))


def _family(choose: _Choices, preferred_clusters: bool) -> Family:
    style = Style(bool(choose.below(2)), preferred_clusters)
    node_count, more, order = 1 + choose.below(_MOST_NODES), 1 + choose.of((0, 1, 1, 2)), choose.below(256)
    plan = [(choose.below(1 + index), choose.of((1, 0, 1, 1, 2, 2, 3))) for index in range(more)]
    specs = [settled(_drawn_graph(choose, node_count, style), style)]
    for start, mutation_count in plan:
        spec = specs[start]
        for _ in range(mutation_count):
            choose.begin()
            spec = settled(choose.of(_MUTATIONS)(choose, spec, style), style)
        specs.append(spec)
    launches = [(member, 2 + (member + lap) % _SCHEDULE_SEEDS) for lap in range(_LAPS) for member in range(len(specs))]
    if order:
        random.Random(order).shuffle(launches)
    return Family(tuple(specs), tuple(launches))


# Drawing. Nodes name places as they like; settled() sees to it that they may.


def _drawn_graph(choose: _Choices, count: int, style: Style) -> GraphSpec:
    """Streams that fork and join: a node waits for up to three earlier ones, most often for the one before it."""
    nodes: list[NodeSpec] = []
    edges: list[Edge] = []
    for index in range(count):
        nodes.append(_drawn_node(choose, style))
        if index:
            edges += [(source, index, data) for source, data in _drawn_waits(choose, index)]
    return GraphSpec(tuple(nodes), tuple(edges))


def _drawn_waits(choose: _Choices, count: int) -> list[tuple[int, tuple[int, int, int]]]:
    """Some of ``count`` nodes, and the data of the edges from them."""
    wanted, programmatic = choose.of(_WAITS)
    wanted = min(wanted, count)
    last = choose.below(count) if wanted else 0
    data = PROGRAMMATIC_EDGE if programmatic else PLAIN_EDGE
    return [((count - 1 - last - step) % count, data) for step in range(wanted)]


def _drawn_node(choose: _Choices, style: Style) -> NodeSpec:
    choose.begin()
    kind = choose.of(_KINDS if style.nested else _KINDS_WITH_CHILD)
    if kind is Kernel:
        function = choose.of(_FUNCTIONS if style.clusters else _FUNCTIONS[:-1])
        grid, block = choose.of(_CLUSTER_GRIDS if style.clusters else _GRIDS), choose.of(_BLOCKS)
        constant, words, source, shared = (choose.of(some) for some in (_CONSTANTS, _WORDS, _ALL_BUFFERS, _SHARED))
        attributes = choose.of(_attribute_sets(style))
        return Kernel(function, 0, source, constant, -1, words, grid, block, shared, attributes)
    if kind is Memset:
        return _memset(0, choose.of(_EXTENTS), choose.of(_VALUES))
    if kind is Memcpy:
        return Memcpy(0, choose.of(_ALL_BUFFERS), choose.of(_SIZES), choose.of(_DIRECTIONS))
    if kind is Host:
        return Host(-1, choose.of(("post", "take")))
    if kind is Child:
        inside = replace(style, nested=True)
        return Child(_drawn_graph(choose, 1 + choose.below(_MOST_CHILD_NODES), inside))
    return EventRecord(choose.below(2)) if kind is EventRecord else Empty()


def _memset(target: int, extent: tuple[int, int, int, int], value: int) -> Memset:
    element, width, height, pitch = extent
    return Memset(target, value % 256**element, element, width, height, pitch)


@lru_cache(maxsize=8)
def _attribute_values(style: Style) -> dict[str, tuple[tuple[int, ...], ...]]:
    values = dict(_ATTRIBUTES)
    if style.clusters:
        values |= _CLUSTER_ATTRIBUTES | (_PREFERRED if style.preferred_clusters else {})
    return values


@lru_cache(maxsize=8)
def _attribute_sets(style: Style) -> list[Attributes]:
    """Half of them empty; one attribute, or two."""
    values = _attribute_values(style)
    single: list[dict[str, tuple[int, ...]]] = [{name: value} for name, several in values.items() for value in several]
    mixed: list[dict[str, tuple[int, ...]]] = [
        {"priority": (-1,), "mem_sync_domain": (1,)},
        {"shared_memory_carveout": (50,), "access_policy_window": (0, 1024, 1, 2, 0)},
        {"cooperative": (1,), "priority": (-2,)},
        {"mem_sync_domain": (1,), "mem_sync_domain_map": (1, 0)},
    ]
    if style.clusters:
        clusters = values["cluster"]
        single += [{"cluster": value} for value in clusters] * 6
        mixed += [{"cluster": value, "cluster_scheduling_policy": (1 + at % 2,)} for at, value in enumerate(clusters)] * 2
        mixed.append({"cluster": (2, 1, 1), "priority": (-1,), "shared_memory_carveout": (100,)})
    if "preferred_cluster" in values:
        mixed += [{"cluster": (2, 1, 1), "preferred_cluster": value} for value in values["preferred_cluster"]] * 4
    some = single + mixed
    none: dict[str, tuple[int, ...]] = {}
    return [MappingProxyType(held) for held in [none] * len(some) + some]


# Mutations. Each gives another graph, which settled() makes valid; the same graph where there is nothing to change.


def _change(choose: _Choices, spec: GraphSpec, style: Style) -> GraphSpec:
    """Change one field of a node, or something inside a child graph."""
    index = choose.below(len(spec.nodes))
    return spec.with_node(index, _CHANGES[type(spec.nodes[index])](choose, spec.nodes[index], style))


def _change_kernel(choose: _Choices, node: Any, style: Style) -> Kernel:
    kernel: Kernel = node
    functions, grids = (_FUNCTIONS, _CLUSTER_GRIDS) if style.clusters else (_FUNCTIONS[:-1], _GRIDS)
    match choose.of(_KERNEL_FIELDS):
        case "constant":
            return replace(kernel, constant=choose.other(_CONSTANTS, kernel.constant))
        case "grid":
            return replace(kernel, grid=choose.other(grids, kernel.grid))
        case "function":
            return replace(kernel, function=choose.other(functions, kernel.function))
        case "attribute":
            return _change_attribute(choose, kernel, style)
        case "block":
            return replace(kernel, block=choose.other(_BLOCKS, kernel.block))
        case "shared":
            return replace(kernel, shared_bytes=choose.other(_SHARED, kernel.shared_bytes))
        case "words":
            return replace(kernel, words=choose.other(_WORDS, kernel.words))
        case "source":
            return replace(kernel, source=choose.other(_ALL_BUFFERS, kernel.source))
    return replace(kernel, target=choose.other(_ALL_BUFFERS, kernel.target))


def _change_attribute(choose: _Choices, kernel: Kernel, style: Style) -> Kernel:
    """Set, change or unset one launch attribute."""
    values = _attribute_values(style)
    name = choose.of(["cluster", *values, "cluster"] if style.clusters else list(values))
    value = choose.other((*values[name], None), kernel.attributes.get(name))
    attributes = {held: numbers for held, numbers in kernel.attributes.items() if held != name}
    if value is not None:
        attributes[name] = value
    return replace(kernel, attributes=MappingProxyType(attributes))


def _change_memset(choose: _Choices, node: Any, style: Style) -> Memset:
    memset: Memset = node
    extent = (memset.element_bytes, memset.width, memset.height, memset.pitch_bytes)
    match choose.of(("value", "extent", "target")):
        case "value":
            return _memset(memset.target, extent, choose.other(_VALUES, memset.value))
        case "extent":
            return _memset(memset.target, choose.other(_EXTENTS, extent), memset.value)
    return replace(memset, target=choose.other(_ALL_BUFFERS, memset.target))


def _change_memcpy(choose: _Choices, node: Any, style: Style) -> Memcpy:
    memcpy: Memcpy = node
    match choose.of(("size", "direction", "source", "target")):
        case "size":
            return replace(memcpy, size_bytes=choose.other(_SIZES, memcpy.size_bytes))
        case "direction":
            return replace(memcpy, direction=choose.other(_DIRECTIONS, memcpy.direction))
        case "source":
            return replace(memcpy, source=choose.other(_ALL_BUFFERS, memcpy.source))
    return replace(memcpy, target=choose.other(_ALL_BUFFERS, memcpy.target))


def _change_host(choose: _Choices, node: Any, style: Style) -> Host:
    host: Host = node
    if choose.below(2):
        return replace(host, counter=choose.other(range(ARENA.counter_count), host.counter))
    return replace(host, function="take" if host.function == "post" else "post")


def _change_child(choose: _Choices, node: Any, style: Style) -> Child:
    return Child(choose.of(_MUTATIONS)(choose, node.graph, replace(style, nested=True)))


_CHANGES: dict[type, Callable[[_Choices, Any, Style], NodeSpec]] = {
    Kernel: _change_kernel,
    Memset: _change_memset,
    Memcpy: _change_memcpy,
    Host: _change_host,
    Child: _change_child,
    Empty: lambda choose, node, style: _drawn_node(choose, style),
    EventRecord: lambda choose, node, style: EventRecord(1 - node.event),
}


def _swap(choose: _Choices, spec: GraphSpec, style: Style) -> GraphSpec:
    """Create two nodes in each other's place."""
    count = len(spec.nodes)
    one = choose.below(count)
    other = (one + 1 + choose.below(count - 1)) % count if count > 1 else one
    order = list(range(count))
    order[one], order[other] = order[other], order[one]
    return _reordered(spec, order)


def _backwards(choose: _Choices, spec: GraphSpec, style: Style) -> GraphSpec:
    """Create all nodes in reverse order."""
    return _reordered(spec, list(reversed(range(len(spec.nodes)))))


def _reordered(spec: GraphSpec, order: Sequence[int]) -> GraphSpec:
    """The same graph with its nodes created in this order."""
    places = {old: new for new, old in enumerate(order)}
    edges = tuple((places[source], places[target], data) for source, target, data in spec.edges)
    return GraphSpec(tuple(spec.nodes[old] for old in order), edges)


def _mirror(choose: _Choices, spec: GraphSpec, style: Style) -> GraphSpec:
    """Have two branches of a fork or a join do each other's work."""
    count, waits = len(spec.nodes), {(source, target) for source, target, _ in spec.edges}
    siblings = [
        (one, other)
        for other in range(count)
        for one in range(other)
        if any({(one, at), (other, at)} <= waits or {(at, one), (at, other)} <= waits for at in range(count))
    ]
    if not siblings:
        return _swap(choose, spec, style)
    one, other = choose.of(siblings)
    nodes = list(spec.nodes)
    nodes[one], nodes[other] = nodes[other], nodes[one]
    return replace(spec, nodes=tuple(nodes))


def _reverse_join(choose: _Choices, spec: GraphSpec, style: Style) -> GraphSpec:
    """Have a node wait for the same nodes in reverse order."""
    waits: dict[int, list[int]] = {}
    for place, (_, target, _) in enumerate(spec.edges):
        waits.setdefault(target, []).append(place)
    joins = [places for places in waits.values() if len(places) > 1]
    if not joins:
        return _move_edge(choose, spec, style)
    places, edges = choose.of(joins), list(spec.edges)
    for place, other in zip(places, reversed(places), strict=True):
        edges[place] = spec.edges[other]
    return replace(spec, edges=tuple(edges))


def _move_edge(choose: _Choices, spec: GraphSpec, style: Style) -> GraphSpec:
    """Create an edge earlier or later."""
    if len(spec.edges) < 2:
        return _change(choose, spec, style)
    edges = list(spec.edges)
    edge = edges.pop(choose.below(len(edges)))
    edges.insert(choose.below(len(edges) + 1), edge)
    return replace(spec, edges=tuple(edges))


def _add_node(choose: _Choices, spec: GraphSpec, style: Style) -> GraphSpec:
    """Add a node at the end, or in the middle of an edge."""
    count = len(spec.nodes)
    if count >= (_MOST_CHILD_NODES if style.nested else _MOST_NODES):
        return _drop_node(choose, spec, style)
    nodes, edges = (*spec.nodes, _drawn_node(choose, style)), list(spec.edges)
    place = choose.below(len(edges) + 1)
    if place < len(edges):
        source, target, data = edges[place]
        edges[place : place + 1] = [(source, count, data), (count, target, PLAIN_EDGE)]
    else:
        edges += [(source, count, data) for source, data in _drawn_waits(choose, count)]
    return GraphSpec(nodes, tuple(edges))


def _drop_node(choose: _Choices, spec: GraphSpec, style: Style) -> GraphSpec:
    """Drop a node; what waited for it waits for what it waited for, or no longer."""
    if len(spec.nodes) == 1:
        return _change(choose, spec, style)
    gone, bridged = choose.below(len(spec.nodes)), not choose.below(2)
    edges: list[Edge] = []
    for source, target, data in spec.edges:
        if source == gone:
            edges += [(before, target, PLAIN_EDGE) for before, at, _ in spec.edges if at == gone and bridged]
        elif target != gone:
            edges.append((source, target, data))
    nodes = spec.nodes[:gone] + spec.nodes[gone + 1 :]
    return GraphSpec(nodes, tuple((source - (source > gone), target - (target > gone), data) for source, target, data in edges))


def _toggle_edge(choose: _Choices, spec: GraphSpec, style: Style) -> GraphSpec:
    """Add an edge between two nodes in the direction that closes no cycle, or drop the one that is there."""
    count = len(spec.nodes)
    if count == 1:
        return _change(choose, spec, style)
    one = choose.below(count)
    other = (one + 1 + choose.below(count - 1)) % count
    rest = tuple(edge for edge in spec.edges if {edge[0], edge[1]} != {one, other})
    if len(rest) < len(spec.edges):
        return replace(spec, edges=rest)
    source, target = (other, one) if other in _ancestors(count, spec.edges)[one] else (one, other)
    return replace(spec, edges=(*spec.edges, (source, target, PLAIN_EDGE)))


def _drop_edge(choose: _Choices, spec: GraphSpec, style: Style) -> GraphSpec:
    if not spec.edges:
        return _toggle_edge(choose, spec, style)
    gone = choose.below(len(spec.edges))
    return replace(spec, edges=spec.edges[:gone] + spec.edges[gone + 1 :])


def _edge_kind(choose: _Choices, spec: GraphSpec, style: Style) -> GraphSpec:
    """A plain edge becomes programmatic, or the other way round."""
    able = [place for place, edge in enumerate(spec.edges) if _may_be_programmatic(spec.nodes, edge)]
    if not able:
        return _change(choose, spec, style)
    place = choose.of(able)
    source, target, data = spec.edges[place]
    new = (source, target, PLAIN_EDGE if data == PROGRAMMATIC_EDGE else PROGRAMMATIC_EDGE)
    return replace(spec, edges=(*spec.edges[:place], new, *spec.edges[place + 1 :]))


def _other_kind(choose: _Choices, spec: GraphSpec, style: Style) -> GraphSpec:
    """Put a node of any kind in the place of another; it writes the same buffer if it can."""
    index = choose.below(len(spec.nodes))
    old, new = spec.nodes[index], _drawn_node(choose, style)
    if isinstance(new, Kernel | Memcpy | Memset) and isinstance(old, Kernel | Memcpy | Memset):
        new = replace(new, target=old.target)
    return spec.with_node(index, new)


_MUTATIONS: tuple[Callable[[_Choices, GraphSpec, Style], GraphSpec], ...] = (
    *(_change,) * 40,
    _swap,
    _swap,
    _backwards,
    _mirror,
    _mirror,
    _reverse_join,
    _reverse_join,
    _move_edge,
    _add_node,
    _drop_node,
    _toggle_edge,
    _drop_edge,
    _edge_kind,
    _other_kind,
)


# Making a graph valid


_POOLS = {
    "buffer": range(1, ARENA.buffer_count),
    "stamp": range(ARENA.stamp_count),
    "host": range(1, ARENA.host_buffer_count),
    "counter": range(ARENA.counter_count),
}


def settled(spec: GraphSpec, style: Style) -> GraphSpec:
    """The same graph where it breaks no rule, otherwise one near to it that does not; see the module."""
    spec = _legal(spec, style)
    places = _Places()
    for node in _leaves(spec.nodes):  # what may stay stays, so that a mutation changes no more than it means to
        places.claim(node)
    spec = replace(spec, nodes=tuple(_owning(node, places) for node in spec.nodes))
    return _reading(spec, frozenset((0,)))


def _leaves(nodes: Iterable[NodeSpec]) -> list[NodeSpec]:
    """Nodes in creation order, those of a child graph in its place."""
    return [leaf for node in nodes for leaf in (node.graph.nodes if isinstance(node, Child) else (node,))]


def _legal(spec: GraphSpec, style: Style) -> GraphSpec:
    """What the hardware takes: attributes that go together, sizes, and programmatic edges between kernels only."""
    nodes = tuple(
        _legal_kernel(node, style)
        if isinstance(node, Kernel)
        else Child(_legal(node.graph, style))
        if isinstance(node, Child)
        else node
        for node in spec.nodes
    )
    edges: dict[tuple[int, int], Edge] = {}
    for source, target, data in spec.edges:
        edge = (source, target, data)
        plain = data == PLAIN_EDGE or not _may_be_programmatic(nodes, edge)
        edges.setdefault((source, target), (source, target, PLAIN_EDGE) if plain else edge)
    return GraphSpec(nodes, tuple(edges.values()))


def _cooperative(node: Kernel) -> bool:
    return node.attributes.get("cooperative", (0,)) != (0,)


def _may_be_programmatic(nodes: Sequence[NodeSpec], edge: Edge) -> bool:
    ends = nodes[edge[0]], nodes[edge[1]]
    return all(isinstance(end, Kernel) and not _cooperative(end) for end in ends)


def _legal_kernel(node: Kernel, style: Style) -> Kernel:
    function = "add" if node.function == "paired" and not style.clusters else node.function
    attributes = {name: value for name, value in node.attributes.items() if style.clusters or name not in _CLUSTER_NAMES}
    if function == "paired":
        attributes.pop("cooperative", None)
        attributes.pop("preferred_cluster", None)
        if attributes.get("cluster") != (2, 1, 1):
            attributes.pop("cluster", None)
    if attributes.get("cooperative", (0,)) != (0,):
        attributes.pop("cluster", None)
    cluster, preferred = attributes.get("cluster"), attributes.get("preferred_cluster")
    if cluster is None:
        attributes.pop("cluster_scheduling_policy", None)
    if preferred is not None and (cluster is None or preferred[0] % cluster[0]):
        del attributes["preferred_cluster"]
    grid = node.grid
    if style.clusters and grid[0] % _LARGEST_CLUSTER:
        grid = (-(-grid[0] // _LARGEST_CLUSTER) * _LARGEST_CLUSTER, *grid[1:])
    if "cooperative" in attributes and prod(grid) > _LARGEST_COOPERATIVE_GRID:
        grid = (_LARGEST_COOPERATIVE_GRID, 1, 1)
    limit = _SHARED_LIMIT.get(function, _OTHER_SHARED_LIMIT)
    return replace(
        node,
        function=function,
        grid=grid,
        shared_bytes=min(node.shared_bytes, limit),
        attributes=node.attributes if attributes == node.attributes else MappingProxyType(attributes),
    )


def _writes(node: NodeSpec) -> list[tuple[str, str, int]]:
    """What a node writes as (pool, field, place)."""
    match node:
        case Kernel():
            return [("buffer", "target", node.target), ("stamp", "stamp", node.stamp)]
        case Memcpy():
            return [("host" if node.direction == "d2h" else "buffer", "target", node.target)]
        case Memset():
            return [("buffer", "target", node.target)]
        case Host():
            return [("counter", "counter", node.counter)]
    return []


class _Places:
    """Who writes which place: the first node that names it."""

    def __init__(self) -> None:
        self._owners: dict[tuple[str, int], NodeSpec] = {}
        self._settled: set[tuple[str, int]] = set()

    def claim(self, node: NodeSpec) -> None:
        for pool, _, place in _writes(node):
            if place in _POOLS[pool]:
                self._owners.setdefault((pool, place), node)

    def settle(self, node: NodeSpec) -> NodeSpec:
        """The node with places of its own; a node that does nothing where there are none left."""
        changes: dict[str, int] = {}
        for pool, field, wanted in _writes(node):
            if self._owners.get((pool, wanted)) is node and (pool, wanted) not in self._settled:
                place = wanted
            else:
                free = (place for place in _POOLS[pool] if (pool, place) not in self._owners)
                place = next(free, -1)
                if place < 0:
                    return Empty()
                changes[field] = place
                self._owners[pool, place] = node
            self._settled.add((pool, place))
        return replace(node, **changes) if changes else node  # type: ignore[arg-type]


def _owning(node: NodeSpec, places: _Places) -> NodeSpec:
    if isinstance(node, Child):
        return Child(replace(node.graph, nodes=tuple(places.settle(inner) for inner in node.graph.nodes)))
    return places.settle(node)


def _reading(spec: GraphSpec, readable: frozenset[int]) -> GraphSpec:
    """Have nodes read only what is ``readable`` at all, or written by an ancestor."""
    above = _ancestors(len(spec.nodes), spec.edges)
    written = [
        frozenset(place for leaf in _leaves((node,)) for pool, _, place in _writes(leaf) if pool == "buffer")
        for node in spec.nodes
    ]
    nodes: list[NodeSpec] = []
    for index, node in enumerate(spec.nodes):
        may = readable.union(*(written[source] for source in above[index]))
        if isinstance(node, Child):
            nodes.append(Child(_reading(node.graph, may)))
        elif isinstance(node, Memcpy) and node.direction == "h2d":
            nodes.append(replace(node, source=0))
        elif isinstance(node, Kernel | Memcpy) and node.source not in may:
            nodes.append(replace(node, source=sorted(may)[node.source % len(may)]))
        else:
            nodes.append(node)
    return replace(spec, nodes=tuple(nodes))


def _ancestors(count: int, edges: Iterable[Edge]) -> list[set[int]]:
    """For each node the nodes that have run when it runs."""
    before: list[list[int]] = [[] for _ in range(count)]
    for source, target, _ in edges:
        before[target].append(source)
    found: list[set[int]] = []
    for node in range(count):
        seen: set[int] = set()
        todo = list(before[node])
        while todo:
            if (at := todo.pop()) not in seen:
                seen.add(at)
                todo += before[at]
        found.append(seen)
    return found
