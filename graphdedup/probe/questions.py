"""The questions that a probe asks: pairs of small graphs, and what an executable of the first does when offered the second.

Each topic is one row of the probe's table and one case of the conformance suite; "way" tells its questions apart. Where a value
can only be told by what a kernel sees, the two graphs differ in nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from graphdedup.capabilities import ANOTHER_FUNCTION, BARE
from graphdedup.probe.bench import AUTO_FREE_ON_LAUNCH, USE_NODE_PRIORITY
from graphdedup.probe.spec import (
    PLAIN_EDGE,
    PROGRAMMATIC_EDGE,
    Arena,
    Child,
    Empty,
    EventRecord,
    EventWait,
    GraphSpec,
    Host,
    Kernel,
    Memcpy,
    Memset,
    NodeSpec,
    line,
)

__all__ = ["ARENA", "ATTRIBUTE_VALUES", "Question", "attribute_questions", "field_questions", "questions"]

ARENA = Arena(buffer_bytes=65536)
"""The arena of a real device. Questions of size go up to one buffer; a simulated device has them in a smaller one."""


@dataclass(frozen=True, slots=True)
class Question:
    """``first`` is instantiated with ``flags``, ``second`` is offered to it."""

    topic: str
    way: str
    first: GraphSpec
    second: GraphSpec
    flags: int = AUTO_FREE_ON_LAUNCH
    crowd: bool = False
    """Only the number of blocks seen at once is compared, not the bytes: it varies a little from run to run."""
    watch: tuple[int, ...] = ()
    """Words of stamp 0 that have to differ between the two graphs for the answer to be "carried"."""
    bare: bool = False
    """Whether the launch after the update is the bare call, without what the fold's driver does before it."""

    def __str__(self) -> str:
        return f"{self.topic}: {self.way}"


ATTRIBUTE_VALUES: dict[str, tuple[Kernel, tuple[int, ...], tuple[int, ...]]] = {
    # An access policy window is (buffer, bytes, hit ratio, property of hits, property of misses).
    "access_policy_window": (Kernel(), (0, 4096, 1, 2, 0), (1, 1024, 1, 1, 0)),
    "cooperative": (Kernel(), (1,), (0,)),
    "cluster": (Kernel(), (2, 1, 1), (4, 1, 1)),
    "cluster_scheduling_policy": (Kernel().with_attributes(cluster=(2, 1, 1)), (1,), (2,)),
    "priority": (Kernel(), (-1,), (-2,)),
    "mem_sync_domain_map": (Kernel(), (0, 0), (1, 1)),
    "mem_sync_domain": (Kernel(), (1,), (0,)),
    "preferred_cluster": (Kernel(grid=(64, 1, 1)).with_attributes(cluster=(2, 1, 1)), (4, 1, 1), (8, 1, 1)),
    "shared_memory_carveout": (
        Kernel("crowd", grid=(4096, 1, 1), block=(32, 1, 1), shared_bytes=16 << 10),
        (0,),
        (100,),
    ),
    "nvlink_util_centric_scheduling": (Kernel(), (1,), (0,)),
    "portable_cluster_size": (Kernel().with_attributes(cluster=(2, 1, 1)), (1,), (2,)),
    "shared_memory_mode": (Kernel(shared_bytes=1024), (1,), (2,)),
}
"""For each attribute a kernel that can have it, and two values."""


def attribute_questions() -> Iterator[Question]:
    """Each attribute from one value to another, from unset to set and back, with the same function and with another."""
    for name, (kernel, one, two) in ATTRIBUTE_VALUES.items():
        crowd = kernel.function == "crowd"
        unset, first, second = (line(kernel.with_attributes(**value)) for value in ({}, {name: one}, {name: two}))
        yield Question(name, "changed", first, second, crowd=crowd)
        yield Question(name, "changed back", second, first, crowd=crowd)
        yield Question(name, "set", unset, first, crowd=crowd)
        yield Question(name, "unset", first, unset, crowd=crowd)
    for name in ("cluster", "preferred_cluster", "cooperative"):  # those that a kernel sees, next to another function
        kernel, one, two = ATTRIBUTE_VALUES[name]
        other = replace(kernel, function="multiply")
        watch = (11,) if name == "cooperative" else (8, 9, 10)
        with_one = line(kernel.with_attributes(**{name: one}))
        for way, first, second in (
            ("changed", with_one, line(other.with_attributes(**{name: two}))),
            ("set", line(kernel), line(other.with_attributes(**{name: one}))),
            ("unset", with_one, line(other)),
        ):
            yield Question(name, way + ANOTHER_FUNCTION, first, second, watch=watch)
            if name == "cluster":
                yield Question(BARE, name + " " + way + ANOTHER_FUNCTION, first, second, watch=watch, bare=True)
    size = [line(Kernel().with_attributes(cluster=(count, 1, 1))) for count in (1, 2, 8)]
    yield Question("cluster", "to one block", size[1], size[0])
    yield Question("cluster", "from one block", size[0], size[2])
    yield Question("cluster", "one block to unset", size[0], line(Kernel()))
    single = line(Kernel("multiply").with_attributes(cluster=(1, 1, 1)))
    yield Question("cluster", "to one block" + ANOTHER_FUNCTION, size[1], single, watch=(8, 9, 10))
    yield from _both("cluster of the function", line(Kernel()), line(Kernel("paired")), "to it", "from it")
    low, high = (line(Kernel().with_attributes(priority=(value,))) for value in (0, -2))
    flags = AUTO_FREE_ON_LAUNCH | USE_NODE_PRIORITY
    yield Question("priority under USE_NODE_PRIORITY", "changed", low, high, flags)
    yield Question("priority under USE_NODE_PRIORITY", "changed back", high, low, flags)


def field_questions(arena: Arena = ARENA) -> Iterator[Question]:
    """Everything that is not a launch attribute."""
    yield from _kernels()
    yield from _functions(arena.buffer_bytes)
    yield from _copies(arena.buffer_bytes)
    yield from _memsets(arena.buffer_bytes)
    yield from _other_nodes()
    yield from _shapes()


def questions(arena: Arena = ARENA) -> Iterator[Question]:
    """All of them, for a bench with this arena."""
    yield from attribute_questions()
    yield from field_questions(arena)


def _both(topic: str, one: NodeSpec | GraphSpec, two: NodeSpec | GraphSpec, way: str, back: str) -> Iterator[Question]:
    first, second = (graph if isinstance(graph, GraphSpec) else line(graph) for graph in (one, two))
    yield Question(topic, way, first, second)
    yield Question(topic, back, second, first)


def _kernels() -> Iterator[Question]:
    plain = Kernel()
    yield Question("parameters", "changed", line(plain), line(Kernel(constant=7, target=3, source=2, words=100)))
    yield from _both("grid", plain, replace(plain, grid=(2, 3, 4)), "larger", "smaller")
    yield from _both("block", plain, replace(plain, block=(16, 4, 2)), "larger", "smaller")
    yield from _both("shared memory", plain, replace(plain, shared_bytes=40 << 10), "more", "less")
    small, large = (Kernel("wide", shared_bytes=size) for size in (1 << 10, 96 << 10))
    yield from _both("shared memory above 48 KB", small, large, "more", "less")


def _functions(large_bytes: int) -> Iterator[Question]:
    plain = Kernel()
    for topic, function in (
        ("function", Kernel("multiply")),
        ("function with local memory", Kernel("deep", grid=(256, 1, 1), block=(128, 1, 1), words=large_bytes // 4)),
        ("function with many registers", Kernel("heavy", block=(256, 1, 1))),
        ("function with static shared memory", Kernel("roomy")),
        ("function above 48 KB", Kernel("wide", shared_bytes=96 << 10)),
        ("function with printf", Kernel("says")),
        ("function of another module", Kernel("elsewhere")),
        ("function of a module loaded later", Kernel("late")),
    ):
        yield from _both(topic, plain, function, "to it", "from it")


def _copies(large_bytes: int) -> Iterator[Question]:
    plain = Memcpy()
    yield Question("memcpy addresses", "changed", line(plain), line(Memcpy(target=3, source=2)))
    yield from _both("memcpy size", plain, Memcpy(size_bytes=large_bytes), "larger", "smaller")
    host = Memcpy(direction="h2d")
    yield Question("memcpy addresses", "host side changed", line(host), line(Memcpy(direction="h2d", source=1)))
    yield from _both("memcpy size", host, Memcpy(direction="h2d", size_bytes=4096), "larger, from host", "smaller, from host")
    yield from _both("memcpy kind", plain, host, "d2d to h2d", "h2d to d2d")
    yield from _both("memcpy kind", plain, Memcpy(direction="d2h"), "d2d to d2h", "d2h to d2d")
    yield from _both("memcpy kind", host, Memcpy(direction="d2h"), "h2d to d2h", "d2h to h2d")


def _memsets(large_bytes: int) -> Iterator[Question]:
    plain = Memset(value=5)
    yield Question("memset address and value", "changed", line(plain), line(Memset(target=3, value=200)))
    for size, count in (("4 KB", 4096), ("a whole buffer", large_bytes)):
        wide = Memset(value=5, width=count)
        yield from _both("memset width", plain, wide, f"256 bytes to {size}", f"{size} to 256 bytes")
    words = Memset(value=0x01020304, element_bytes=4, width=64)
    halves = Memset(value=0x0102, element_bytes=2, width=128)
    yield from _both("memset element size", plain, words, "1 to 4", "4 to 1")
    yield from _both("memset element size", plain, halves, "1 to 2", "2 to 1")
    yield from _both("memset element size", words, halves, "4 to 2", "2 to 4")
    rows = Memset(value=5, width=64, height=4, pitch_bytes=256)
    yield Question("memset in rows, address and value", "changed", line(rows), line(replace(rows, target=3, value=9)))
    yield from _both("memset in rows, width", rows, replace(rows, width=128), "larger", "smaller")
    yield from _both("memset in rows, height", rows, replace(rows, height=8), "larger", "smaller")
    yield from _both("memset in rows, pitch", rows, replace(rows, pitch_bytes=512), "larger", "smaller")
    fours = replace(rows, element_bytes=4, width=16)
    yield from _both("memset in rows, element size", rows, fours, "1 to 4", "4 to 1")
    yield from _both("memset rows", plain, rows, "1-D to 2-D", "2-D to 1-D")


def _other_nodes() -> Iterator[Question]:
    kernel, memset, copy, host, empty = Kernel(), Memset(value=5), Memcpy(), Host(), Empty()
    yield from _both("node kind", kernel, memset, "kernel to memset", "memset to kernel")
    yield from _both("node kind", memset, copy, "memset to memcpy", "memcpy to memset")
    yield from _both("node kind", kernel, empty, "kernel to empty", "empty to kernel")
    yield from _both("node kind", kernel, host, "kernel to host", "host to kernel")
    yield from _both("node kind", kernel, Child(line(kernel)), "kernel to child graph", "child graph to kernel")
    yield Question("host function", "changed", line(host), line(Host(function="take")))
    yield Question("host function", "other data", line(host), line(Host(counter=1)))
    record, wait = EventRecord(0), line(EventRecord(0), EventWait(0))
    yield Question("event", "record another", line(record), line(EventRecord(1)))
    yield Question("event", "wait for another", wait, line(EventRecord(1), EventWait(1)))
    child = Child(line(kernel, Memset(target=2, value=1)))
    yield Question("child graph", "other buffers", line(child), line(Child(line(Kernel(target=3), Memset(target=4, value=2)))))
    yield Question(
        "child graph", "other function and grid", line(child), line(Child(line(Kernel("xor", grid=(3, 1, 1)), memset)))
    )
    more = Child(line(kernel, Memset(target=2, value=1), Memcpy(target=5)))
    yield from _both("child graph count", child, more, "more nodes", "fewer nodes")
    clustered = Child(line(Kernel().with_attributes(cluster=(2, 1, 1))))
    yield from _both("cluster in a child graph", Child(line(kernel)), clustered, "set", "unset")


def _shapes() -> Iterator[Question]:
    nodes = (Kernel(target=1, stamp=0), Kernel("xor", target=2, source=1, stamp=1), Memset(target=3, value=3))
    two = line(*nodes[:2])
    programmatic = replace(two, edges=((0, 1, PROGRAMMATIC_EDGE),))
    yield from _both("edge data", two, programmatic, "plain to programmatic", "programmatic to plain")
    apart = replace(two, edges=(), nodes=(nodes[0], replace(nodes[1], source=0)))
    yield from _both("edges", two, apart, "one less", "one more")
    yield from _both("node count", two, line(*nodes), "more", "fewer")
    other = (replace(nodes[0], constant=21), replace(nodes[1], constant=22))
    swapped = GraphSpec((other[1], other[0]), ((1, 0, PLAIN_EDGE),))
    yield Question("node order", "a line created backwards", two, swapped)
    loose, loose_other = (Kernel("multiply", target=4, stamp=2, constant=constant) for constant in (1, 23))
    yield Question("node order", "two loose nodes swapped", GraphSpec((nodes[0], loose)), GraphSpec((loose_other, other[0])))
    yield Question("branches", "created in swapped order", branches(2, 3), branches(2, 3, swapped=True, constant=30))
    yield Question("branches", "mirrored", branches(3, 2), branches(2, 3))
    yield Question("branches", "joined in swapped order", branches(2, 3), branches(2, 3, join_swapped=True))
    refused = line(Kernel(constant=9), Memset(target=2, value=9))
    yield Question("a refusal at the second node", "first could be updated", two, refused)


def branches(main: int, side: int, *, swapped: bool = False, join_swapped: bool = False, constant: int = 3) -> GraphSpec:
    """A root, two branches of these lengths, and a node that waits for both: first for the main branch.

    ``swapped`` creates the side branch before the main one; ``join_swapped`` has the last node wait for the side first.
    """
    nodes: list[NodeSpec] = [Kernel(target=1, stamp=0)]
    edges: list[tuple[int, int, tuple[int, int, int]]] = []
    ends: dict[str, int] = {}
    plan = [("main", main, "multiply"), ("side", side, "xor")]
    for name, length, function in reversed(plan) if swapped else plan:
        before, buffer = 0, 1
        for step in range(length):
            own = (2 if name == "main" else 6) + step
            nodes.append(Kernel(function, target=own, source=buffer, constant=constant + step, stamp=own))
            edges.append((before, len(nodes) - 1, PLAIN_EDGE))
            before, buffer = len(nodes) - 1, own
        ends[name] = before
    nodes.append(Kernel("mix", target=10, source=2, constant=11, stamp=10))
    order = ("side", "main") if join_swapped else ("main", "side")
    edges += [(ends[name], len(nodes) - 1, PLAIN_EDGE) for name in order]
    return GraphSpec(tuple(nodes), tuple(edges))
