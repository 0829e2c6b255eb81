"""One captured graph for other tools: GraphML through networkx, and DOT. Names of others are escaped, whatever they hold."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator

import networkx

from graphdedup.kernel_names import in_words
from graphdedup.topology import Edge, Node, Subgraph, Topology

__all__ = ["FORMATS", "to_dot", "to_graphml"]

_SCALARS = ("kind", "name", "shared_bytes", "local_bytes", "function", "context")
_LISTS = ("grid", "block", "cluster", "required_cluster", "memory", "attributes", "unreadable", "parameters")


def to_graphml(topology: Topology) -> str:
    """GraphML that ``networkx.read_graphml`` and viewers read.

    Node ids are indices; those in a child graph stand behind the id of the node that runs it, as in ``"3.0"``, whose ``parent``
    that node is. Fields of several values are JSON text; what the driver did not tell is left out. Edges have ``from_port``,
    ``to_port`` and ``type``. A character that XML cannot hold is written as its escape, such as ``\\x00``.
    """
    graph = networkx.DiGraph(
        label=_xml(topology.label),
        device=_xml(topology.device),
        driver_version=_xml(topology.driver_version),
        instantiate_flags=topology.instantiate_flags,
    )
    for parent, inner in _graphs(topology):
        for node in inner.nodes:
            graph.add_node(f"{parent}{node.index}", **_fields(node, parent.removesuffix(".")))
        for edge in inner.edges:
            from_port, to_port, kind = edge.data
            graph.add_edge(f"{parent}{edge.source}", f"{parent}{edge.target}", from_port=from_port, to_port=to_port, type=kind)
    written = io.BytesIO()
    networkx.write_graphml_xml(graph, written, encoding="utf-8", prettyprint=True)
    return written.getvalue().decode()


def to_dot(topology: Topology) -> str:
    """DOT for Graphviz: a box for each node with its kind or kernel and its launch, child graphs as clusters.

    Edges with ports or of a type have ``from port, to port, type`` as their label.
    """
    lines = [
        "digraph graphdedup {",
        f"  label={_quoted(topology.label or 'graph')};",
        "  node [shape=box];",
        *_dot_graph(topology, "n", 1),
        "}",
    ]
    return "\n".join(lines) + "\n"


def _to_json(topology: Topology) -> str:
    return topology.to_json(indent=2) + "\n"


FORMATS: dict[str, Callable[[Topology], str]] = {"json": _to_json, "graphml": to_graphml, "dot": to_dot}
"""Names of the formats, and what writes them."""


# GraphML


def _graphs(topology: Topology) -> Iterator[tuple[str, Subgraph]]:
    """The graph and its child graphs, with what stands before the ids of their nodes."""
    todo: list[tuple[str, Subgraph]] = [("", topology)]
    while todo:
        prefix, graph = todo.pop()
        yield prefix, graph
        todo += [(f"{prefix}{node.index}.", node.child) for node in graph.nodes if node.child is not None]


def _fields(node: Node, parent: str) -> dict[str, str | int]:
    told: dict[str, str | int] = {"label": _xml(_words(node))}
    for name in _SCALARS:
        value = getattr(node, name)
        if value is not None and value != "":
            told[name] = _xml(value) if isinstance(value, str) else value
    for name in _LISTS:
        value = getattr(node, name)
        if value:
            told[name] = _xml(json.dumps(value))
    if parent:
        told["parent"] = parent
    return told


def _xml(text: str) -> str:
    return "".join(c if _in_xml(ord(c)) else c.encode("unicode_escape").decode("ascii") for c in text)


def _in_xml(code: int) -> bool:
    """Whether XML 1.0 has the character, and gives it back as it was: it turns carriage returns into line ends."""
    return code in (0x9, 0xA) or 0x20 <= code <= 0xD7FF or 0xE000 <= code <= 0xFFFD or code >= 0x10000


# DOT


def _dot_graph(graph: Subgraph, prefix: str, depth: int) -> Iterator[str]:
    margin = "  " * depth
    for node in graph.nodes:
        name = f"{prefix}{node.index}"
        yield f"{margin}{name} [label={_quoted(_label(node))}];"
        if node.child is not None:
            yield f"{margin}subgraph cluster_{name} {{"
            yield f"{margin}  label={_quoted(f'child graph of node {node.index}')};"
            yield from _dot_graph(node.child, f"{name}_", depth + 1)
            yield f"{margin}}}"
    for edge in graph.edges:
        yield f"{margin}{prefix}{edge.source} -> {prefix}{edge.target}{_edge_label(edge)};"


def _label(node: Node) -> str:
    lines = [f"{node.index}: {_words(node)}"]
    if node.kind == "kernel" and node.grid is not None and node.block is not None:
        lines.append(f"grid {node.grid} block {node.block}")
    if node.memory is not None:
        lines.append(" to ".join(node.memory))
    return "\n".join(lines)


def _edge_label(edge: Edge) -> str:
    return f" [label={_quoted(', '.join(map(str, edge.data)))}]" if any(edge.data) else ""


def _quoted(text: str) -> str:
    """A label as Graphviz shows it unchanged: it reads escapes and character entities in quoted text."""
    shown = "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode("ascii") for c in text)
    shown = shown.replace("\\", "\\\\").replace('"', '\\"').replace("&", "&amp;").replace("\n", "\\n")
    return f'"{shown}"'


def _words(node: Node) -> str:
    return in_words(node.name) if node.name else node.kind
