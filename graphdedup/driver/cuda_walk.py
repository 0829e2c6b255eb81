"""Reading a captured CUDA graph: the record for the key at every capture.

The walk never stops at a node that it cannot read (rule D3): what the driver would not tell is named in the node's
``unreadable``, and decides later whether the graph may share an executable.
"""

from __future__ import annotations

import ctypes
import struct
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from graphdedup.driver.attributes import ATTRIBUTES, VALUE_BYTES, Effect
from graphdedup.driver.cuda_calls import call
from graphdedup.driver.cuda_raw import (
    CLUSTER,
    COOPERATIVE,
    DEVICE_UPDATABLE,
    KernelNode,
    KernelParams,
    raw_calls,
)
from graphdedup.driver.protocol import NOTHING_MORE, Draws, EdgeRecord, GraphRecord, NodeRecord, Reads
from graphdedup.topology import FOLDABLE_KINDS

if TYPE_CHECKING:
    pass

__all__ = ["GraphReader", "kind_name"]

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
_KERNEL = 0

_COMPILED = ("REQUIRED_CLUSTER_WIDTH", "REQUIRED_CLUSTER_HEIGHT", "REQUIRED_CLUSTER_DEPTH", "LOCAL_SIZE_BYTES")


class _Layout(NamedTuple):
    """Sizes of a function's parameters, the distance from the first to the last, and the type of an array of pointers."""

    sizes: tuple[int, ...]
    last_offset: int
    pointers: Any


class _Compiled(NamedTuple):
    """What a function was compiled for, which its nodes do not tell."""

    cluster: tuple[int, int, int]
    local_bytes: int
    unreadable: tuple[str, ...]


class GraphReader:
    """Reads one graph through the driver API, child graphs included. Facts about its kernel functions are kept.

    Make one for each walk: a function's handle may stand for another function once its module is unloaded.

    Args:
        driver: ``cuda.bindings.driver``.
        philox_pointers: addresses that a kernel holds when it draws random numbers, as the eight bytes that stand in its
            parameters; None when they are not known on this torch.
        reads: what a record needs besides what every record has.
    """

    def __init__(self, driver: Any, philox_pointers: tuple[bytes, ...] | None = (), reads: Reads = NOTHING_MORE) -> None:
        self._driver = driver
        self._philox_pointers = philox_pointers
        self._reads = reads
        asked = [name for name in reads.attributes if not ATTRIBUTES[name].needs_clusters]
        self._rare = [name for name in reads.attributes if ATTRIBUTES[name].needs_clusters]
        self._no_rare = bytes(VALUE_BYTES * len(self._rare))
        self._calls = raw_calls(tuple(ATTRIBUTES[name].number for name in asked))
        self._layouts: dict[int, _Layout | None] = {}
        self._interned: dict[tuple[Any, ...], NodeRecord] = {}
        self._names: dict[int, str] = {}
        self._compiled: dict[int, _Compiled] = {}

    # The record

    def record(self, raw: int) -> GraphRecord:
        """What the key is made of; see :class:`~graphdedup.driver.protocol.GraphRecord`.

        Raises:
            DriverError: nodes or edges themselves cannot be listed.
        """
        calls = self._calls
        handles = calls.nodes(raw)
        draws = Draws.UNKNOWN if self._philox_pointers is None else Draws.NO
        pass_through = ""
        host_copies = False
        nodes: list[NodeRecord] = []
        blocks: list[bytes] = []
        for index, handle in enumerate(handles):
            number = calls.kind(handle)
            if number == _KERNEL:
                node, updatable, block = self._kernel_record(handle)
                if updatable:
                    pass_through = pass_through or f"node {index} is a device-updatable kernel (rule D11)"
                if block is None:
                    draws = Draws.UNKNOWN
                else:
                    blocks.append(block)
            elif (kind := kind_name(number)) not in FOLDABLE_KINDS:
                pass_through = pass_through or f"node {index} is of kind {kind} (rule D11)"
                node = NodeRecord(kind)
            elif kind == "child_graph":
                child = self.record(self._child(handle))
                node = NodeRecord(kind, child=child)
                pass_through = pass_through or child.pass_through
                draws = child.draws if draws is Draws.NO else draws
                host_copies = host_copies or child.host_copies
            else:
                node = self._other_record(kind, handle)
                host_copies = host_copies or (kind == "memcpy" and any(side in (0, 1) for side in node.fixed[:2]))
            nodes.append(node)
        if self._drawn(blocks):
            draws = Draws.YES
        return GraphRecord(tuple(nodes), self._edges(raw, handles), draws, pass_through, host_copies, self._names)

    def _edges(self, raw: int, handles: list[int]) -> tuple[EdgeRecord, ...]:
        """Edges by the node that waits, in the order of its dependencies.

        The driver lists a graph's edges by source, so where a node waits for several it is asked for their order.
        """
        places = {handle: place for place, handle in enumerate(handles)}
        incoming: dict[int, list[tuple[int, tuple[int, int, int]]]] = {handle: [] for handle in handles}
        for source, target, data in self._calls.edges(raw):
            incoming[target].append((source, data))
        edges: list[EdgeRecord] = []
        for target, sources in incoming.items():
            if len(sources) > 1:
                sources = self._calls.dependencies(target)
            place = places[target]
            edges += [EdgeRecord(places[source], place, data) for source, data in sources]
        return tuple(edges)

    def _kernel_record(self, handle: int) -> tuple[NodeRecord, bool, bytes | None]:
        """The node, whether it is device-updatable, and its parameters (None: the driver does not tell them)."""
        kernel = self._calls.kernel(handle)
        if kernel is None:
            return self._partly_readable(handle)
        sizes = kernel.sizes if self._reads.geometry else ()
        compiled = self._compiled_facts(kernel)
        cluster = kernel.cluster if any(kernel.cluster) else compiled.cluster
        # A kernel without clusters has the same record whatever it says of what only clusters use.
        rare, unreadable = self._read_rare(handle) if self._rare and any(cluster) else (self._no_rare, ())
        key = (kernel.cooperative, kernel.func or kernel.kern, cluster, sizes, kernel.more, rare, unreadable)
        record = self._interned.get(key)
        if record is None:
            self._note_name(kernel)
            fixed = (kernel.cooperative, compiled.local_bytes, *sizes, *_words(kernel.more), *_words(rare))
            told = (*unreadable, *compiled.unreadable)
            record = self._interned[key] = NodeRecord("kernel", fixed, key[1], cluster, told)
        return record, kernel.device_updatable != 0, self._parameter_block(kernel)

    def _compiled_facts(self, params: KernelNode | KernelParams) -> _Compiled:
        """The function's own cluster dimension (zeros: none), and its local memory a thread."""
        function = params.function
        if function not in self._compiled:
            driver = self._driver
            prefix = "CU_FUNC_ATTRIBUTE_"
            wanted = [getattr(driver.CUfunction_attribute, prefix + name) for name in _COMPILED]
            if params.func:
                told = [driver.cuFuncGetAttribute(attribute, driver.CUfunction(params.func)) for attribute in wanted]
            else:
                kernel, device = driver.CUkernel(params.kern), call(driver.cuCtxGetDevice(), "cuCtxGetDevice")
                told = [driver.cuKernelGetAttribute(attribute, kernel, device) for attribute in wanted]
            # A driver that does not know the first three has no clusters; the last one is as old as the call itself.
            x, y, z, local_bytes = (int(result[1]) if result[0] == 0 else 0 for result in told)
            unreadable = () if told[3][0] == 0 else ("local memory",)
            self._compiled[function] = _Compiled((x, y, z), local_bytes, unreadable)
        return self._compiled[function]

    def _read_rare(self, handle: int) -> tuple[bytes, tuple[str, ...]]:
        """Values of the attributes that only a kernel with clusters can use, and which of them the driver does not tell."""
        values, unreadable = [], []
        for name in self._rare:
            value = self._calls.value(handle, ATTRIBUTES[name].number)
            if value is not None:
                values.append(value)
            elif ATTRIBUTES[name].effect is Effect.BYTES:
                unreadable.append(name)
        return b"".join(values), tuple(unreadable)

    def _partly_readable(self, handle: int) -> tuple[NodeRecord, bool, bytes | None]:
        """The same for a kernel of which the driver does not tell everything: what is missing is named (rule D3)."""
        cooperative, cluster, updatable = (
            self._calls.attribute(handle, number) for number in (COOPERATIVE, CLUSTER, DEVICE_UPDATABLE)
        )
        params = self._calls.params(handle)
        told = {"cooperative": cooperative, "cluster": cluster, "parameters": params}
        unreadable = [name for name, value in told.items() if value is None]
        if params is not None:
            compiled = self._compiled_facts(params)
            cluster = compiled.cluster if cluster is not None and not any(cluster) else cluster
            unreadable += compiled.unreadable
        fixed = [-1 if cooperative is None else cooperative[0], -1 if params is None else compiled.local_bytes]
        for name in self._reads.attributes:
            attribute = ATTRIBUTES[name]
            usable = cluster is None or any(cluster) or not attribute.needs_clusters
            value = self._calls.value(handle, attribute.number) if usable else None
            if value is not None:
                fixed += [attribute.number, *_words(value)]
            elif usable and attribute.effect is Effect.BYTES:
                unreadable.append(name)
        if self._reads.geometry and params is not None:
            fixed += [*params.grid, *params.block, params.shared_bytes]
        function = 0 if params is None else params.function
        if params is not None:
            self._note_name(params)
        record = NodeRecord("kernel", tuple(fixed), function, cluster or (0, 0, 0), tuple(unreadable))
        block = None if params is None else self._parameter_block(params)
        return record, updatable is not None and updatable[0] != 0, block

    def _drawn(self, blocks: list[bytes]) -> bool:
        """Whether one of these kernels holds an address that random kernels read."""
        pointers = self._philox_pointers or ()
        everything = b"".join(blocks)
        # A hit may lie across two blocks, so it is looked for again in each of them.
        return any(p in everything for p in pointers) and any(p in block for block in blocks for p in pointers)

    def _other_record(self, kind: str, handle: int) -> NodeRecord:
        driver, node = self._driver, self._driver.CUgraphNode(handle)
        if kind == "memcpy":
            result = driver.cuGraphMemcpyNodeGetParams(node)
            if result[0] != 0:
                return NodeRecord(kind, unreadable=("parameters",))
            copy = result[1]
            source = self._side(copy.srcMemoryType, copy.srcDevice, copy.srcHost)
            target = self._side(copy.dstMemoryType, copy.dstDevice, copy.dstHost)
            sizes = (int(copy.WidthInBytes), int(copy.Height), int(copy.Depth)) if self._reads.memcpy_extent else ()
            return NodeRecord(kind, (source, target, *sizes))
        if kind == "memset":
            result = driver.cuGraphMemsetNodeGetParams(node)
            if result[0] != 0:
                return NodeRecord(kind, unreadable=("parameters",))
            memset = result[1]
            if int(memset.height) <= 1:
                extent = (int(memset.elementSize), int(memset.width)) if self._reads.memset_extent else ()
                return NodeRecord(kind, extent)
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
            packed = _packed_parameters(params.extra)
            return None if packed is None else [packed]
        layout = self._layout(params)
        if layout is None or (layout.sizes and not params.kernel_params):
            return None
        if not layout.sizes:
            return []
        addresses = layout.pointers.from_address(params.kernel_params)
        return [ctypes.string_at(address, size) for address, size in zip(addresses, layout.sizes, strict=True)]

    def _parameter_block(self, params: KernelParams | KernelNode) -> bytes | None:
        """The same in one piece, read at once where the parameters lie together as they do on the device."""
        if params.extra:
            return _packed_parameters(params.extra)
        layout = self._layout(params)
        if layout is None or (layout.sizes and not params.kernel_params):
            return None
        if not layout.sizes:
            return b""
        addresses = layout.pointers.from_address(params.kernel_params)
        if addresses[len(layout.sizes) - 1] - addresses[0] == layout.last_offset:
            return ctypes.string_at(addresses[0], layout.last_offset + layout.sizes[-1])
        return b"".join([ctypes.string_at(address, size) for address, size in zip(addresses, layout.sizes, strict=True)])

    def _layout(self, params: KernelParams | KernelNode) -> _Layout | None:
        """How the parameters of the node's function lie; None when the driver does not tell."""
        function = params.function
        if function not in self._layouts:
            driver = self._driver
            get_info = driver.cuFuncGetParamInfo if params.func else driver.cuKernelGetParamInfo
            handle = driver.CUfunction(params.func) if params.func else driver.CUkernel(params.kern)
            offsets: list[int] = []
            sizes: list[int] = []
            while (result := get_info(handle, len(sizes)))[0] == 0:
                offsets.append(int(result[1]))
                sizes.append(int(result[2]))
            # INVALID_VALUE is how the driver says that there is no parameter of this index.
            known = int(result[0]) == 1
            last = offsets[-1] - offsets[0] if offsets else 0
            self._layouts[function] = _Layout(tuple(sizes), last, ctypes.c_uint64 * len(sizes)) if known else None
        return self._layouts[function]

    def function_name(self, params: KernelParams | KernelNode) -> str:
        """The (mangled) name of a kernel node's function; empty when the driver does not tell."""
        if params.function not in self._names:
            driver = self._driver
            if params.func:
                result = driver.cuFuncGetName(driver.CUfunction(params.func))
            else:
                result = driver.cuKernelGetName(driver.CUkernel(params.kern))
            # Graphs run the same functions: their names are held once.
            self._names[params.function] = sys.intern(result[1].decode(errors="replace")) if result[0] == 0 else ""
        return self._names[params.function]

    def _note_name(self, params: KernelParams | KernelNode) -> None:
        """Keep the name of a node's function for the record. No fold is lost for a name that cannot be had."""
        try:
            self.function_name(params)
        except (AttributeError, RuntimeError):  # bindings, or a driver, that do not have the call
            self._names[params.function] = ""

    def node_name(self, handle: int) -> str:
        """A node in words, for messages: its kernel's name, or its kind."""
        calls = self._calls
        kind = kind_name(calls.kind(handle))
        params = calls.params(handle) if kind == "kernel" else None
        return (self.function_name(params) if params is not None else "") or kind

    def _child(self, handle: int) -> int:
        node = self._driver.CUgraphNode(handle)
        return int(call(self._driver.cuGraphChildGraphNodeGetGraph(node), "cuGraphChildGraphNodeGetGraph"))


def kind_name(number: int | None) -> str:
    """A node type in words."""
    return _KINDS.get(number, f"unknown kind {number}") if number is not None else "unknown kind"


def _words(values: bytes) -> tuple[int, ...]:
    """Attribute values as numbers."""
    return struct.unpack(f"<{len(values) // 8}q", values)


def _packed_parameters(extra: int) -> bytes | None:
    """The buffer of a launch by ``extra``: (1, buffer), (2, address of its size) in any order, then 0."""
    first, one, second, two = _FOUR_WORDS.from_address(extra)
    if (first, second) == (2, 1):
        one, two = two, one
    elif (first, second) != (1, 2):  # CU_LAUNCH_PARAM_BUFFER_POINTER, CU_LAUNCH_PARAM_BUFFER_SIZE
        return None
    return ctypes.string_at(one, ctypes.c_size_t.from_address(two).value)


_FOUR_WORDS = ctypes.c_uint64 * 4
