"""Reading a captured CUDA graph: the record for the key at every capture, the whole of it on request.

The walk never stops at a node that it cannot read (rule D3): what the driver would not tell is named in the node's
``unreadable``, and decides later whether the graph may share an executable.
"""

from __future__ import annotations

import ctypes
from typing import Any

from graphdedup.driver.cuda_calls import call
from graphdedup.driver.cuda_raw import KernelParams, RawCalls, raw_calls
from graphdedup.driver.protocol import Draws, EdgeRecord, GraphRecord, NodeRecord
from graphdedup.topology import Edge, Node, Subgraph

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
    "cooperative": 2,
    "cluster_scheduling_policy": 5,
    "priority": 8,
    "mem_sync_domain": 10,
    "shared_memory_carveout": 14,
}


class GraphReader:
    """Reads graphs through the driver API. Facts about a kernel function are read once and kept."""

    def __init__(self, driver: Any) -> None:
        self._driver = driver
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
        calls = raw_calls()
        handles = calls.nodes(raw)
        draws = Draws.UNKNOWN if self.philox_pointers is None else Draws.NO
        pass_through = ""
        nodes = []
        for index, handle in enumerate(handles):
            kind = _kind(calls.kind(handle))
            if kind not in _FOLDABLE:
                pass_through = pass_through or f"node {index} is of kind {kind} (rule D11)"
                node = NodeRecord(kind)
            elif kind == "kernel":
                node, drawn, updatable = self._kernel_record(calls, handle)
                if updatable:
                    pass_through = pass_through or f"node {index} is a device-updatable kernel (rule D11)"
                draws = drawn if draws is Draws.NO else draws
            elif kind == "child_graph":
                child = self.record(self._child(handle))
                node = NodeRecord(kind, child=child)
                pass_through = pass_through or child.pass_through
                draws = child.draws if draws is Draws.NO else draws
            else:
                node = self._other_record(kind, handle)
            nodes.append(node)
        places = {handle: place for place, handle in enumerate(handles)}
        edges = tuple(EdgeRecord(places[source], places[target], data) for source, target, data in calls.edges(raw))
        return GraphRecord(tuple(nodes), edges, draws, pass_through)

    def _kernel_record(self, calls: RawCalls, handle: int) -> tuple[NodeRecord, Draws, bool]:
        unreadable: tuple[str, ...] = ()
        cooperative = calls.attribute(handle, _COOPERATIVE)
        cluster = calls.attribute(handle, _CLUSTER)
        updatable = calls.attribute(handle, _DEVICE_UPDATABLE)
        params = calls.params(handle)
        if cooperative is None:
            unreadable += ("cooperative",)
        if cluster is None:
            unreadable += ("cluster dimension",)
        elif any(cluster) and calls.attribute(handle, _PREFERRED_CLUSTER) is None:
            unreadable += ("preferred cluster dimension",)  # only a kernel with clusters could use it
        if params is None:
            unreadable += ("parameters",)
        fixed = -1 if cooperative is None else cooperative[0]
        function = 0 if params is None else params.function
        record = NodeRecord("kernel", (fixed,), function, cluster or (0, 0, 0), unreadable)
        return record, self._draws(params), updatable is not None and updatable[0] != 0

    def _draws(self, params: KernelParams | None) -> Draws:
        pointers = self.philox_pointers
        if not pointers:
            return Draws.NO  # unknown on this torch: record() has said so already
        blocks = None if params is None else self.parameter_bytes(params)
        if blocks is None:
            return Draws.UNKNOWN
        return Draws.YES if any(pointer in block for block in blocks for pointer in pointers) else Draws.NO

    def _other_record(self, kind: str, handle: int) -> NodeRecord:
        driver, node = self._driver, self._driver.CUgraphNode(handle)
        if kind == "memcpy":
            result = driver.cuGraphMemcpyNodeGetParams(node)
            if result[0] != 0:
                return NodeRecord(kind, unreadable=("parameters",))
            copy = result[1]
            source = self._side(copy.srcMemoryType, copy.srcDevice, copy.srcHost)
            target = self._side(copy.dstMemoryType, copy.dstDevice, copy.dstHost)
            return NodeRecord(kind, (source, target))
        if kind == "memset":
            result = driver.cuGraphMemsetNodeGetParams(node)
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
        attribute = self._driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE
        result = self._driver.cuPointerGetAttribute(attribute, address)
        return int(result[1]) if result[0] == 0 else 0

    # The pieces

    def parameter_bytes(self, params: KernelParams) -> list[bytes] | None:
        """A kernel node's parameters as bytes; None when the driver does not tell where they are.

        One block for each parameter, or one for all of them where the launch gave them as a buffer (as cuBLAS does).
        """
        if params.extra:
            return _packed_parameters(params.extra)
        layout = self._layout(params)
        if layout is None or (layout and not params.kernel_params):
            return None
        if not layout:
            return []
        addresses = (ctypes.c_uint64 * len(layout)).from_address(params.kernel_params)
        return [ctypes.string_at(address, size) for address, (_, size) in zip(addresses, layout, strict=True)]

    def _layout(self, params: KernelParams) -> tuple[tuple[int, int], ...] | None:
        """(offset, size) of each parameter of the node's function."""
        if params.function not in self._layouts:
            driver = self._driver
            get_info = driver.cuFuncGetParamInfo if params.func else driver.cuKernelGetParamInfo
            handle = driver.CUfunction(params.func) if params.func else driver.CUkernel(params.kern)
            layout: list[tuple[int, int]] = []
            while (result := get_info(handle, len(layout)))[0] == 0:
                layout.append((int(result[1]), int(result[2])))
            # INVALID_VALUE is how the driver says that there is no parameter of this index.
            self._layouts[params.function] = tuple(layout) if int(result[0]) == 1 else None
        return self._layouts[params.function]

    def function_name(self, params: KernelParams) -> str:
        """The (mangled) name of a kernel node's function; empty when the driver does not tell."""
        if params.function not in self._names:
            driver = self._driver
            if params.func:
                result = driver.cuFuncGetName(driver.CUfunction(params.func))
            else:
                result = driver.cuKernelGetName(driver.CUkernel(params.kern))
            self._names[params.function] = result[1].decode(errors="replace") if result[0] == 0 else ""
        return self._names[params.function]

    def node_name(self, handle: int) -> str:
        """A node in words, for messages: its kernel's name, or its kind."""
        calls = raw_calls()
        kind = _kind(calls.kind(handle))
        params = calls.params(handle) if kind == "kernel" else None
        return (self.function_name(params) if params is not None else "") or kind

    def _child(self, handle: int) -> int:
        node = self._driver.CUgraphNode(handle)
        return int(call(self._driver.cuGraphChildGraphNodeGetGraph(node), "cuGraphChildGraphNodeGetGraph"))

    # The export

    def export_nodes(self, raw: int) -> tuple[list[Node], list[Edge]]:
        """Nodes and edges with everything that the driver tells."""
        calls = raw_calls()
        handles = calls.nodes(raw)
        nodes = [self._export(calls, index, handle) for index, handle in enumerate(handles)]
        places = {handle: place for place, handle in enumerate(handles)}
        return nodes, [Edge(source=places[a], target=places[b], data=data) for a, b, data in calls.edges(raw)]

    def _export(self, calls: RawCalls, index: int, handle: int) -> Node:
        kind, node = _kind(calls.kind(handle)), self._driver.CUgraphNode(handle)
        if kind == "kernel":
            return self._export_kernel(calls, index, handle)
        if kind == "memcpy":
            result = self._driver.cuGraphMemcpyNodeGetParams(node)
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
            result = self._driver.cuGraphMemsetNodeGetParams(node)
            if result[0] == 0:
                fields = ("value", "elementSize", "width", "height", "pitch")
                parameters = {name: int(getattr(result[1], name)) for name in fields}
                return Node(index=index, kind=kind, parameters={"destination": int(result[1].dst), **parameters})
        elif kind == "child_graph":
            nodes, edges = self.export_nodes(self._child(handle))
            return Node(index=index, kind=kind, child=Subgraph(nodes=tuple(nodes), edges=tuple(edges)))
        else:
            return Node(index=index, kind=kind)
        return Node(index=index, kind=kind, unreadable=("parameters",))

    def _export_kernel(self, calls: RawCalls, index: int, handle: int) -> Node:
        attributes: dict[str, int] = {}
        unreadable = []
        for name, number in _EXPORTED.items():
            value = calls.attribute(handle, number)
            if value is None:
                unreadable.append(name)
            else:
                attributes[name] = value[0]
        cluster = calls.attribute(handle, _CLUSTER)
        if cluster is None:
            unreadable.append("cluster")
        if calls.attribute(handle, _PREFERRED_CLUSTER) is None:
            unreadable.append("preferred_cluster")
        params = calls.params(handle)
        if params is None:
            return Node(index=index, kind="kernel", attributes=attributes, unreadable=(*unreadable, "parameters"))
        blocks = self.parameter_bytes(params)
        if blocks is None:
            unreadable.append("kernel_params")
        return Node(
            index=index,
            kind="kernel",
            name=self.function_name(params),
            grid=params.grid,
            block=params.block,
            shared_bytes=params.shared_bytes,
            cluster=cluster,
            attributes=attributes,
            unreadable=tuple(unreadable),
            parameters={} if blocks is None else {"kernel_params": [block.hex() for block in blocks]},
        )


def _kind(number: int | None) -> str:
    return _KINDS.get(number, f"unknown kind {number}") if number is not None else "unknown kind"


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
