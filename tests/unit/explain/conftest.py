"""Graphs as they would be exported, made by hand."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from graphdedup.capabilities import Capabilities
from graphdedup.probe.known import probe_profile
from graphdedup.topology import Edge, Node, Subgraph, Topology
from seam.simulated import DriverProfile


class Make:
    """Topologies of one device; a node is its kind, or a dictionary of its fields."""

    def subgraph(self, nodes: Sequence[str | dict[str, Any]], edges: Iterable[Sequence[Any]] = ()) -> Subgraph:
        made = [{"kind": node} if isinstance(node, str) else node for node in nodes]
        return Subgraph(
            nodes=tuple(Node(index=index, **node) for index, node in enumerate(made)),
            edges=tuple(Edge(source=edge[0], target=edge[1], data=edge[2] if len(edge) > 2 else (0, 0, 0)) for edge in edges),
        )

    def topology(self, nodes: Sequence[str | dict[str, Any]], edges: Iterable[Sequence[Any]] = (), **fields: Any) -> Topology:
        graph = self.subgraph(nodes, edges)
        told: dict[str, Any] = {"device": "H200", "driver_version": "580.159", "instantiate_flags": 1} | fields
        return Topology(nodes=graph.nodes, edges=graph.edges, **told)

    def chain(self, nodes: Sequence[str | dict[str, Any]], **fields: Any) -> Topology:
        """Each node waits for the one before it."""
        return self.topology(nodes, [(index, index + 1) for index in range(len(nodes) - 1)], **fields)


@pytest.fixture
def make() -> Make:
    return Make()


@pytest.fixture(scope="session")
def h200() -> Capabilities:
    """What the update of an H200 carries."""
    return probe_profile(DriverProfile())
