"""The whole of a captured CUDA graph as data, on request: nodes, edges, and everything that the driver tells of them."""

from __future__ import annotations

import struct
from typing import Any

from graphdedup.driver.attributes import ATTRIBUTES
from graphdedup.driver.cuda_raw import CLUSTER
from graphdedup.driver.cuda_walk import GraphReader, kind_name
from graphdedup.topology import Edge, Node, Subgraph

__all__ = ["GraphExporter"]

_MEMORY = {1: "host", 2: "device", 3: "array"}  # CUmemorytype; what is unified was resolved
_MEMSET = {"value": "value", "element_bytes": "elementSize", "height": "height", "pitch_bytes": "pitch"}


class GraphExporter(GraphReader):
    """Reads one graph whole, child graphs included. Like any reader, made for each graph."""

    def export_nodes(self, raw: int) -> tuple[list[Node], list[Edge]]:
        """Nodes in the driver's order; edges by the node that waits, in the order of its dependencies.

        Raises:
            DriverError: nodes or edges themselves cannot be listed.
        """
        handles = self._calls.nodes(raw)
        nodes = [self._export(index, handle) for index, handle in enumerate(handles)]
        return nodes, [Edge(source=edge.source, target=edge.target, data=edge.data) for edge in self._edges(raw, handles)]

    def _export(self, index: int, handle: int) -> Node:
        kind = kind_name(self._calls.kind(handle))
        if kind == "kernel":
            return self._export_kernel(index, handle)
        if kind == "memcpy":
            return self._export_memcpy(index, handle)
        if kind == "memset":
            return self._export_memset(index, handle)
        if kind == "child_graph":
            nodes, edges = self.export_nodes(self._child(handle))
            return Node(index=index, kind=kind, child=Subgraph(nodes=tuple(nodes), edges=tuple(edges)))
        return Node(index=index, kind=kind)

    def _export_memcpy(self, index: int, handle: int) -> Node:
        driver = self._driver
        result = driver.cuGraphMemcpyNodeGetParams(driver.CUgraphNode(handle))
        if result[0] != 0:
            return Node(index=index, kind="memcpy", unreadable=("parameters",))
        copy = result[1]
        source = self._side(copy.srcMemoryType, copy.srcDevice, copy.srcHost)
        target = self._side(copy.dstMemoryType, copy.dstDevice, copy.dstHost)
        parameters = {
            "source": int(copy.srcDevice) or int(copy.srcHost or 0),
            "destination": int(copy.dstDevice) or int(copy.dstHost or 0),
            "width_bytes": int(copy.WidthInBytes),
            "height": int(copy.Height),
            "depth": int(copy.Depth),
        }
        memory = (_MEMORY.get(source, "unknown"), _MEMORY.get(target, "unknown"))
        return Node(index=index, kind="memcpy", memory=memory, parameters=parameters)

    def _export_memset(self, index: int, handle: int) -> Node:
        driver = self._driver
        result = driver.cuGraphMemsetNodeGetParams(driver.CUgraphNode(handle))
        if result[0] != 0:
            return Node(index=index, kind="memset", unreadable=("parameters",))
        memset = result[1]
        parameters = {name: int(getattr(memset, field)) for name, field in _MEMSET.items()}
        width_bytes = int(memset.width) * int(memset.elementSize)
        return Node(
            index=index,
            kind="memset",
            parameters={"destination": int(memset.dst), "width_bytes": width_bytes, **parameters},
        )

    def _export_kernel(self, index: int, handle: int) -> Node:
        told: dict[str, Any] = {"index": index, "kind": "kernel"}
        cluster = self._calls.attribute(handle, CLUSTER)
        params = self._calls.params(handle)
        unreadable = [] if cluster is not None else ["cluster"]
        clustered = cluster is None or any(cluster)
        if params is not None:
            compiled = self._compiled_facts(params)
            blocks = self.parameter_bytes(params)
            unreadable += compiled.unreadable
            clustered = clustered or any(compiled.cluster)
            told |= {
                "name": self.function_name(params),
                "function": params.function,
                "grid": params.grid,
                "block": params.block,
                "shared_bytes": params.shared_bytes,
                "required_cluster": compiled.cluster,
                "local_bytes": None if compiled.unreadable else compiled.local_bytes,
            }
            if blocks is not None:
                told["parameters"] = {"kernel_params": [block.hex() for block in blocks]}
            else:
                unreadable.append("kernel_params")
        else:
            unreadable.append("parameters")
        attributes, untold = self._export_attributes(handle, clustered)
        return Node(**told, cluster=cluster, attributes=attributes, unreadable=(*unreadable, *untold))

    def _export_attributes(self, handle: int, clustered: bool) -> tuple[dict[str, int | tuple[int | float, ...]], list[str]]:
        """Values of the launch attributes, and the names of those that the driver does not tell and the kernel could use."""
        values: dict[str, int | tuple[int | float, ...]] = {}
        untold = []
        for name, attribute in ATTRIBUTES.items():
            if attribute.number == CLUSTER:
                continue
            value = self._calls.value(handle, attribute.number)
            if value is not None:
                fields = struct.unpack_from(f"={attribute.form}", value)
                if len(fields) == 1:
                    values[name] = fields[0]
                elif any(fields):
                    values[name] = fields
            elif clustered or not attribute.needs_clusters:
                untold.append(name)
        return values, untold
