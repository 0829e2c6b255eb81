"""Reading a captured CUDA graph: the record for the key at every capture, the whole of it on request.

The walk never stops at a node that it cannot read (rule D3): what the driver would not tell is named in the node's
``unreadable``, and decides later whether the graph may share an executable.
"""

from __future__ import annotations

import ctypes
from typing import Any

from graphdedup.driver.cuda_calls import call
from graphdedup.driver.protocol import Draws, EdgeRecord, GraphRecord, NodeRecord
from graphdedup.errors import DriverError
from graphdedup.topology import Edge, Node

__all__ = ["GraphReader"]

_KINDS = {
    0: "kernel",
    1: "memcpy",
    2: "memset",
    3: "host",
    4: "child_graph",
    5: "empty",
    6: "event_wait",
    7: "event_record",
    8: "semaphore_signal",
    9: "semaphore_wait",
    10: "mem_alloc",
    11: "mem_free",
    12: "batch_mem_op",
    13: "conditional",
}
_FOLDABLE = {"kernel", "memcpy", "memset", "host", "child_graph", "empty", "event_wait", "event_record"}

# CUlaunchAttributeID; 4 and 11 are read for the key, the rest for the export.
_COOPERATIVE, _CLUSTER, _PREFERRED_CLUSTER, _DEVICE_UPDATABLE = 2, 4, 11, 13
_EXPORTED = {
    "cooperative": (2, "cooperative"),
    "cluster_scheduling_policy": (5, "clusterSchedulingPolicyPreference"),
    "priority": (8, "priority"),
    "mem_sync_domain": (10, "memSyncDomain"),
    "shared_memory_carveout": (14, "sharedMemCarveout"),
}


class GraphReader:
    """Reads graphs through the driver API. Facts about a kernel function are read once and kept."""

    def __init__(self, driver: Any) -> None:
        self._driver = driver
        self._attribute_ids = {int(member): member for member in driver.CUlaunchAttributeID}
        self._layouts: dict[int, tuple[tuple[int, int], ...] | None] = {}
        self._names: dict[int, str] = {}
        self.philox_pointers: tuple[bytes, ...] | None = ()
        """Addresses that a kernel holds when it draws random numbers; None when they are not known on this torch."""

    # The record

    def record(self, raw: int) -> GraphRecord:
        """What the key is made of; see :class:`~graphdedup.driver.protocol.GraphRecord`.

        Raises:
            DriverError: nodes or edges themselves cannot be listed.
        """
        handles = self.nodes(raw)
        draws = Draws.UNKNOWN if self.philox_pointers is None else Draws.NO
        pass_through = ""
        nodes = []
        for index, handle in enumerate(handles):
            kind = self._kind(handle)
            if kind not in _FOLDABLE:
                pass_through = pass_through or f"node {index} is of kind {kind} (rule D11)"
                node = NodeRecord(kind)
            elif kind == "kernel":
                node, drawn, updatable = self._kernel_record(handle)
                if updatable:
                    pass_through = pass_through or f"node {index} is a device-updatable kernel (rule D11)"
                draws = drawn if draws is Draws.NO else draws
            elif kind == "child_graph":
                node = NodeRecord(kind, child=self.record(self._child(handle)))
                if node.child is not None:
                    pass_through = pass_through or node.child.pass_through
                    draws = node.child.draws if draws is Draws.NO else draws
            else:
                node = self._other_record(kind, handle)
            nodes.append(node)
        return GraphRecord(tuple(nodes), tuple(self.edges(raw, handles)), draws, pass_through)

    def _kernel_record(self, handle: Any) -> tuple[NodeRecord, Draws, bool]:
        driver, unreadable = self._driver, []
        fixed, cluster, updatable = -1, (0, 0, 0), False
        if (value := self._attribute(handle, _COOPERATIVE)) is not None:
            fixed = int(value.cooperative)
        else:
            unreadable.append("cooperative")
        if (value := self._attribute(handle, _CLUSTER)) is not None:
            cluster = (int(value.clusterDim.x), int(value.clusterDim.y), int(value.clusterDim.z))
        else:
            unreadable.append("cluster dimension")
        if (value := self._attribute(handle, _DEVICE_UPDATABLE)) is not None:
            updatable = bool(value.deviceUpdatableKernelNode.deviceUpdatable)
        if any(cluster) and self._attribute(handle, _PREFERRED_CLUSTER) is None:
            unreadable.append("preferred cluster dimension")  # only a kernel with clusters could use it
        result = driver.cuGraphKernelNodeGetParams(handle)
        if result[0] != 0:
            unreadable.append("parameters")
            return NodeRecord("kernel", (fixed,), 0, cluster, tuple(unreadable)), Draws.UNKNOWN, updatable
        params = result[1]
        record = NodeRecord("kernel", (fixed,), _function(params), cluster, tuple(unreadable))
        return record, self._draws(params), updatable

    def _draws(self, params: Any) -> Draws:
        pointers = self.philox_pointers
        if not pointers:
            return Draws.NO  # unknown on this torch: record() has said so already
        blocks = self.parameter_bytes(params)
        if blocks is None:
            return Draws.UNKNOWN
        return Draws.YES if any(pointer in block for block in blocks for pointer in pointers) else Draws.NO

    def _other_record(self, kind: str, handle: Any) -> NodeRecord:
        driver = self._driver
        if kind == "memcpy":
            result = driver.cuGraphMemcpyNodeGetParams(handle)
            if result[0] != 0:
                return NodeRecord(kind, unreadable=("parameters",))
            copy = result[1]
            source = self._side(copy.srcMemoryType, copy.srcDevice, copy.srcHost)
            target = self._side(copy.dstMemoryType, copy.dstDevice, copy.dstHost)
            return NodeRecord(kind, (source, target))
        if kind == "memset":
            result = driver.cuGraphMemsetNodeGetParams(handle)
            if result[0] != 0:
                return NodeRecord(kind, unreadable=("parameters",))
            memset = result[1]
            if int(memset.height) <= 1:
                return NodeRecord(kind, (int(memset.elementSize),))
            # Of a 2-D memset an update changes address and value only.
            return NodeRecord(kind, (int(memset.elementSize), int(memset.width), int(memset.height), int(memset.pitch)))
        return NodeRecord(kind)

    def _side(self, memory_type: Any, device_address: Any, host_address: Any) -> int:
        """The memory type of one side of a copy, with unified addresses resolved (2: device, 1: host, 0: unknown)."""
        kind = int(memory_type)
        if kind != 4:  # CU_MEMORYTYPE_UNIFIED
            return kind
        address = int(device_address) or int(host_address or 0)
        result = self._driver.cuPointerGetAttribute(self._driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address)
        return int(result[1]) if result[0] == 0 else 0

    # The pieces

    def nodes(self, raw: int) -> list[Any]:
        """Node handles in the driver's order."""
        graph = self._driver.CUgraph(raw)
        _, count = call(self._driver.cuGraphGetNodes(graph, 0), "cuGraphGetNodes")
        if not count:
            return []
        handles, _ = call(self._driver.cuGraphGetNodes(graph, count), "cuGraphGetNodes")
        return list(handles)

    def edges(self, raw: int, handles: list[Any]) -> list[EdgeRecord]:
        """Edges in the driver's order, with their data, as indices into ``handles``."""
        graph = self._driver.CUgraph(raw)
        get_edges = getattr(self._driver, "cuGraphGetEdges_v2", self._driver.cuGraphGetEdges)
        count = call(get_edges(graph, 0), "cuGraphGetEdges")[-1]
        if not count:
            return []
        values = call(get_edges(graph, count), "cuGraphGetEdges")
        if len(values) != 4:
            raise DriverError(
                "this cuda-bindings does not return edge data", remedy="install cuda-bindings 12.9 or newer", rule="D3"
            )
        index = {int(handle): position for position, handle in enumerate(handles)}
        sources, targets, data, _ = values
        return [
            EdgeRecord(index[int(a)], index[int(b)], (int(d.from_port), int(d.to_port), int(d.type)))
            for a, b, d in zip(sources, targets, data, strict=True)
        ]

    def parameter_bytes(self, params: Any) -> list[bytes] | None:
        """A kernel node's parameters as bytes; None when the driver does not tell where they are.

        One block for each parameter, or one for all of them where the launch gave them as a buffer (as cuBLAS does).
        """
        if extra := int(params.extra or 0):
            return _packed_parameters(extra)
        layout = self._layout(params)
        pointers = int(params.kernelParams or 0)
        if layout is None or (layout and not pointers):
            return None
        addresses = (ctypes.c_void_p * len(layout)).from_address(pointers) if layout else ()
        return [ctypes.string_at(address, size) for address, (_, size) in zip(addresses, layout, strict=True)]

    def _layout(self, params: Any) -> tuple[tuple[int, int], ...] | None:
        """(offset, size) of each parameter of the node's function."""
        function = _function(params)
        if function not in self._layouts:
            by_function = bool(int(params.func))
            get_info = self._driver.cuFuncGetParamInfo if by_function else self._driver.cuKernelGetParamInfo
            handle = params.func if by_function else params.kern
            layout: list[tuple[int, int]] = []
            while (result := get_info(handle, len(layout)))[0] == 0:
                layout.append((int(result[1]), int(result[2])))
            # INVALID_VALUE is how the driver says that there is no parameter of this index.
            self._layouts[function] = tuple(layout) if int(result[0]) == 1 else None
        return self._layouts[function]

    def function_name(self, params: Any) -> str:
        """The (mangled) name of a kernel node's function; empty when the driver does not tell."""
        function = _function(params)
        if function not in self._names:
            by_function = bool(int(params.func))
            get_name = self._driver.cuFuncGetName if by_function else self._driver.cuKernelGetName
            result = get_name(params.func if by_function else params.kern)
            self._names[function] = result[1].decode(errors="replace") if result[0] == 0 else ""
        return self._names[function]

    def node_name(self, handle: Any) -> str:
        """A node in words, for messages: its kernel's name, or its kind."""
        kind = self._kind(handle)
        if kind == "kernel":
            result = self._driver.cuGraphKernelNodeGetParams(handle)
            if result[0] == 0:
                return self.function_name(result[1]) or kind
        return kind

    def _kind(self, handle: Any) -> str:
        result = self._driver.cuGraphNodeGetType(handle)
        return _KINDS.get(int(result[1]), f"unknown kind {int(result[1])}") if result[0] == 0 else "unknown kind"

    def _child(self, handle: Any) -> int:
        return int(call(self._driver.cuGraphChildGraphNodeGetGraph(handle), "cuGraphChildGraphNodeGetGraph"))

    def _attribute(self, handle: Any, number: int) -> Any:
        member = self._attribute_ids.get(number)
        if member is None:
            return None
        result = self._driver.cuGraphKernelNodeGetAttribute(handle, member)
        return result[1] if result[0] == 0 else None

    # The export

    def export_nodes(self, raw: int) -> tuple[list[Node], list[Edge]]:
        """Nodes and edges with everything that the driver tells."""
        handles = self.nodes(raw)
        nodes = [self._export(index, handle) for index, handle in enumerate(handles)]
        edges = [Edge(source=a, target=b, data=data) for a, b, data in self.edges(raw, handles)]
        return nodes, edges

    def _export(self, index: int, handle: Any) -> Node:
        kind = self._kind(handle)
        if kind == "kernel":
            return self._export_kernel(index, handle)
        if kind == "memcpy":
            result = self._driver.cuGraphMemcpyNodeGetParams(handle)
            if result[0] == 0:
                copy = result[1]
                parameters = {
                    "source": int(copy.srcDevice) or int(copy.srcHost or 0),
                    "destination": int(copy.dstDevice) or int(copy.dstHost or 0),
                    "width_bytes": int(copy.WidthInBytes),
                    "height": int(copy.Height),
                    "depth": int(copy.Depth),
                }
                return Node(index=index, kind=kind, parameters=parameters)
        elif kind == "memset":
            result = self._driver.cuGraphMemsetNodeGetParams(handle)
            if result[0] == 0:
                fields = ("value", "elementSize", "width", "height", "pitch")
                parameters = {name: int(getattr(result[1], name)) for name in fields}
                return Node(index=index, kind=kind, parameters={"destination": int(result[1].dst), **parameters})
        elif kind == "child_graph":
            return Node(index=index, kind=kind, parameters={"nodes": len(self.nodes(self._child(handle)))})
        else:
            return Node(index=index, kind=kind)
        return Node(index=index, kind=kind, unreadable=("parameters",))

    def _export_kernel(self, index: int, handle: Any) -> Node:
        attributes, unreadable = {}, []
        for name, (number, field) in _EXPORTED.items():
            value = self._attribute(handle, number)
            if value is None:
                unreadable.append(name)
            else:
                attributes[name] = int(getattr(value, field))
        cluster = self._attribute(handle, _CLUSTER)
        if cluster is None:
            unreadable.append("cluster")
        if self._attribute(handle, _PREFERRED_CLUSTER) is None:
            unreadable.append("preferred_cluster")
        result = self._driver.cuGraphKernelNodeGetParams(handle)
        if result[0] != 0:
            return Node(index=index, kind="kernel", attributes=attributes, unreadable=(*unreadable, "parameters"))
        params = result[1]
        blocks = self.parameter_bytes(params)
        if blocks is None:
            unreadable.append("kernel_params")
        return Node(
            index=index,
            kind="kernel",
            name=self.function_name(params),
            grid=(params.gridDimX, params.gridDimY, params.gridDimZ),
            block=(params.blockDimX, params.blockDimY, params.blockDimZ),
            shared_bytes=params.sharedMemBytes,
            cluster=None if cluster is None else (cluster.clusterDim.x, cluster.clusterDim.y, cluster.clusterDim.z),
            attributes=attributes,
            unreadable=tuple(unreadable),
            parameters={} if blocks is None else {"kernel_params": [block.hex() for block in blocks]},
        )


def _function(params: Any) -> int:
    return int(params.func) or int(params.kern)


def _packed_parameters(extra: int) -> list[bytes] | None:
    """The buffer of a launch by ``extra``: (1, buffer), (2, address of its size) in any order, then 0."""
    words = ctypes.cast(extra, ctypes.POINTER(ctypes.c_void_p))
    buffer = size = None
    for index in (0, 2):
        tag, value = words[index], words[index + 1]
        if tag == 1:  # CU_LAUNCH_PARAM_BUFFER_POINTER
            buffer = value
        elif tag == 2 and value:  # CU_LAUNCH_PARAM_BUFFER_SIZE
            size = ctypes.c_size_t.from_address(value).value
        else:
            break
    return None if buffer is None or size is None else [ctypes.string_at(buffer, size)]
