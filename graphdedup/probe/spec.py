"""Small graphs as data: what the probe, the conformance suite and the fuzzer build on every device.

Every graph works on one *arena* of device buffers, host buffers and counters (:class:`Arena`). Kernels do integer
arithmetic that has the same bytes everywhere, and each one stamps what it saw of its own launch, so that an executable that
kept an old value shows it in the bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

__all__ = [
    "DEEP_WORDS",
    "FUNCTIONS",
    "PLAIN_EDGE",
    "PROGRAMMATIC_EDGE",
    "STAMP_WORDS",
    "Arena",
    "Child",
    "Empty",
    "EventRecord",
    "EventWait",
    "GraphSpec",
    "Host",
    "Kernel",
    "MemAlloc",
    "Memcpy",
    "Memset",
    "NodeSpec",
    "line",
]

PLAIN_EDGE, PROGRAMMATIC_EDGE = (0, 0, 0), (1, 0, 1)
"""Edge data as (from port, to port, type)."""

FUNCTIONS = (
    "add",
    "multiply",
    "xor",
    "mix",
    "wide",
    "deep",
    "says",
    "elsewhere",
    "late",
    "interval",
    "crowd",
    "paired",
    "heavy",
    "roomy",
)
"""Kernel functions. The first four differ in what they compute; the others compute what ``add`` does. ``wide`` may be given
more than 48 KB of dynamic shared memory, ``deep`` needs local memory, ``says`` contains a
``printf``, ``elsewhere`` is of another module and ``late`` of one that is loaded at its first use. ``paired`` is compiled for
clusters of two blocks, which no attribute of a node tells; ``heavy`` has many registers, ``roomy`` 32 KB of static shared
memory. Apart from these, ``interval`` takes some milliseconds and logs when, and ``crowd`` stamps how many of its blocks one
multiprocessor held at once."""

STAMP_WORDS = 16
DEEP_WORDS = 1024
"""Words of local memory of each thread of ``deep``."""


@dataclass(frozen=True, slots=True)
class Arena:
    """Sizes of what graphs work on; buffers, stamps and counters are named by their index.

    A stamp is 16 words of 32 bits that a kernel node writes: function (an index of :data:`FUNCTIONS`), grid, block, dynamic
    shared memory in bytes, largest cluster seen by a block (x, y, z), whether the launch was cooperative, constant, and for
    ``crowd`` the most blocks at once.
    """

    buffer_count: int = 12
    buffer_bytes: int = 1024
    host_buffer_count: int = 4
    stamp_count: int = 16
    counter_count: int = 4

    def __post_init__(self) -> None:
        if self.buffer_bytes % 16:
            raise ValueError(f"buffer_bytes must be a multiple of 16, not {self.buffer_bytes}")


@dataclass(frozen=True, slots=True)
class Kernel:
    """``buffer[target][i] = f(buffer[source][i], constant)`` for ``words`` words of 32 bits, and a stamp."""

    function: str = "add"
    target: int = 1
    source: int = 0
    constant: int = 1
    stamp: int = 0
    words: int = 64
    grid: tuple[int, int, int] = (8, 1, 1)
    block: tuple[int, int, int] = (32, 1, 1)
    shared_bytes: int = 0
    attributes: Mapping[str, tuple[int, ...]] = field(default_factory=lambda: MappingProxyType({}), hash=False)
    """Launch attributes by the names of :data:`graphdedup.driver.attributes.ATTRIBUTES`."""

    def with_attributes(self, **values: tuple[int, ...]) -> Kernel:
        """The same kernel with more launch attributes."""
        return replace(self, attributes=MappingProxyType(dict(self.attributes) | values))


@dataclass(frozen=True, slots=True)
class Memcpy:
    """Copy ``size_bytes`` between buffers. ``direction``: d2d, h2d (from a host buffer) or d2h (to one)."""

    target: int = 1
    source: int = 0
    size_bytes: int = 256
    direction: str = "d2d"


@dataclass(frozen=True, slots=True)
class Memset:
    """Set ``height`` rows of ``width`` elements of ``element_bytes``, ``pitch_bytes`` apart; 1-D when height is 1."""

    target: int = 1
    value: int = 0
    element_bytes: int = 1
    width: int = 256
    height: int = 1
    pitch_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Host:
    """Call a host function: ``post`` adds one to a counter, ``take`` subtracts one where it is not zero."""

    counter: int = 0
    function: str = "post"


@dataclass(frozen=True, slots=True)
class Child:
    """A child graph."""

    graph: GraphSpec


@dataclass(frozen=True, slots=True)
class Empty:
    """A node that does nothing."""


@dataclass(frozen=True, slots=True)
class EventRecord:
    """Record one of the bench's events."""

    event: int = 0


@dataclass(frozen=True, slots=True)
class EventWait:
    """Wait for one of the bench's events."""

    event: int = 0


@dataclass(frozen=True, slots=True)
class MemAlloc:
    """Allocate device memory that lives as long as the graph."""

    size_bytes: int = 4096


NodeSpec = Kernel | Memcpy | Memset | Host | Child | Empty | EventRecord | EventWait | MemAlloc


@dataclass(frozen=True, slots=True)
class GraphSpec:
    """Nodes in creation order and edges (source, target, data) in creation order."""

    nodes: tuple[NodeSpec, ...]
    edges: tuple[tuple[int, int, tuple[int, int, int]], ...] = ()

    def with_node(self, index: int, node: NodeSpec | None = None, **changes: Any) -> GraphSpec:
        """The same graph with another node, or with some fields of a node changed."""
        new = replace(self.nodes[index], **changes) if node is None else node
        return replace(self, nodes=(*self.nodes[:index], new, *self.nodes[index + 1 :]))


def line(*nodes: NodeSpec) -> GraphSpec:
    """A graph in which each node waits for the one before it."""
    return GraphSpec(nodes, tuple((index, index + 1, PLAIN_EDGE) for index in range(len(nodes) - 1)))
