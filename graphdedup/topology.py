"""A captured graph as data: nodes, edges, attributes; JSON and networkx on request."""

from __future__ import annotations

from typing import Any, Literal, Self

import networkx
from pydantic import BaseModel, ConfigDict, model_validator

from graphdedup.validation import from_json

__all__ = ["FOLDABLE_KINDS", "Edge", "Node", "Subgraph", "Topology"]


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


FOLDABLE_KINDS = frozenset({"kernel", "memcpy", "memset", "host", "child_graph", "empty", "event_wait", "event_record"})
"""Kinds of node that a graph may have and share an executable; one of another kind is passed through (rule D11)."""


class Node(_Model):
    """One node. What the driver would not tell is None or named in ``unreadable``, never invented.

    ``grid``, ``block`` and ``cluster`` are (x, y, z); ``cluster`` is (0, 0, 0) for a kernel without clusters.
    ``attributes`` are launch attributes by the names of :data:`graphdedup.driver.attributes.ATTRIBUTES`; one of several
    fields is a tuple, and left out where all of them are zero. ``parameters`` holds what the driver tells of the node, such
    as addresses and byte counts, or a kernel's parameter bytes in hexadecimal.
    """

    index: int
    kind: str
    name: str = ""
    grid: tuple[int, int, int] | None = None
    block: tuple[int, int, int] | None = None
    shared_bytes: int | None = None
    cluster: tuple[int, int, int] | None = None
    required_cluster: tuple[int, int, int] | None = None
    """The cluster dimension that the kernel's function was compiled for; a launch has it where the node sets none."""
    local_bytes: int | None = None
    """Local memory that a thread of the kernel's function was compiled for."""
    function: int | None = None
    """A number that tells kernel functions of one name apart. It is a handle: it means nothing in another process."""
    context: int | None = None
    """The node's context where it is not the device's own."""
    memory: tuple[str, str] | None = None
    """Of a copy: where it reads and where it writes, ``"host"``, ``"device"``, ``"array"`` or ``"unknown"``."""
    attributes: dict[str, int | tuple[int | float, ...]] = {}
    unreadable: tuple[str, ...] = ()
    parameters: dict[str, Any] = {}
    child: Subgraph | None = None
    """What a child-graph node runs."""


class Edge(_Model):
    """A dependency: ``target`` waits for ``source``. ``data`` is (from port, to port, type); zeros are a plain edge."""

    source: int
    target: int
    data: tuple[int, int, int] = (0, 0, 0)


class Subgraph(_Model):
    """Nodes and edges in the driver's order, which an update pairs them by."""

    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]

    def dependencies(self) -> list[tuple[tuple[int, tuple[int, int, int]], ...]]:
        """For each node what it waits for, as (source, edge data), in the order that an update pairs nodes by."""
        incoming: list[list[tuple[int, tuple[int, int, int]]]] = [[] for _ in self.nodes]
        for edge in self.edges:
            incoming[edge.target].append((edge.source, edge.data))
        return [tuple(sources) for sources in incoming]

    @model_validator(mode="after")
    def _indices(self) -> Self:
        if [node.index for node in self.nodes] != list(range(len(self.nodes))):
            raise ValueError("node indices must count from 0 in order")
        for edge in self.edges:
            if not (0 <= edge.source < len(self.nodes) and 0 <= edge.target < len(self.nodes)):
                raise ValueError(f"edge {edge.source} -> {edge.target} names a node that does not exist")
        return self


class Topology(Subgraph):
    """What one capture recorded, and where."""

    schema_version: Literal[1] = 1
    kind: Literal["graphdedup.topology"] = "graphdedup.topology"
    label: str = ""
    device: str
    driver_version: str
    instantiate_flags: int

    def to_json(self, *, indent: int | None = None) -> str:
        """JSON text that :meth:`from_json` reads back to an equal topology."""
        return self.model_dump_json(indent=indent)

    @classmethod
    def from_json(cls, text: str | bytes) -> Topology:
        """Read :meth:`to_json`.

        Raises:
            ReportError: the text is not the JSON of a topology; the message says where.
        """
        return from_json(cls, text, called="a topology", remedy="give the JSON that Topology.to_json() wrote")

    def to_networkx(self) -> networkx.DiGraph:
        """A ``networkx.DiGraph``: node ids are indices, node attributes the fields of :class:`Node`, edge attribute
        ``data``. The graph itself carries ``label``, ``device`` and ``driver_version``.
        """
        graph = networkx.DiGraph(label=self.label, device=self.device, driver_version=self.driver_version)
        for node in self.nodes:
            graph.add_node(node.index, **{name: getattr(node, name) for name in Node.model_fields if name != "index"})
        for edge in self.edges:
            graph.add_edge(edge.source, edge.target, data=edge.data)
        return graph
