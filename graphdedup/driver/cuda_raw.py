"""The calls that a walk makes for every node, straight into ``libcuda``.

``cuda.bindings`` makes objects of everything it returns, several for every node. These are the same calls on buffers of our
own. Structures and versions are those of ``cuda.h`` 12.3 and newer.
"""

from __future__ import annotations

import ctypes
import struct
from typing import Any, NamedTuple

from graphdedup.driver.attributes import ATTRIBUTES, VALUE_BYTES
from graphdedup.driver.cuda_calls import call, libcuda
from graphdedup.errors import DriverError

__all__ = ["KernelNode", "KernelParams", "RawCalls", "raw_calls"]

_PARAMS = struct.Struct("<Q7I4xQQQQ")  # CUDA_KERNEL_NODE_PARAMS_v2: func, 7 sizes, kernelParams, extra, kern, ctx
# One kernel node in a buffer: attributes cooperative, cluster dimension and device-updatable, 64 bytes each, then its params.
_KERNEL = struct.Struct("<i60x3I52xi60x" + "Q7I4xQQQQ")
_THREE = struct.Struct("<3I")
_EDGE = struct.Struct("<3B5x")  # CUgraphEdgeData

COOPERATIVE, CLUSTER, PREFERRED_CLUSTER, DEVICE_UPDATABLE = (
    ATTRIBUTES[name].number for name in ("cooperative", "cluster", "preferred_cluster", "device_updatable")
)


class KernelNode(NamedTuple):
    """A kernel node as the record needs it."""

    cooperative: int
    cluster: tuple[int, int, int]
    device_updatable: int
    func: int
    kern: int
    kernel_params: int
    extra: int
    sizes: tuple[int, ...]
    """Grid, block and dynamic shared memory."""
    more: bytes
    """Values of the attributes that were asked for besides, 64 bytes each."""

    @property
    def function(self) -> int:
        """A number that is equal for equal functions."""
        return self.func or self.kern


class KernelParams:
    """What ``cuGraphKernelNodeGetParams`` tells of a node; handles and addresses are integers."""

    __slots__ = ("block", "extra", "func", "grid", "kern", "kernel_params", "shared_bytes")

    def __init__(self, buffer: Any) -> None:
        self.func, gx, gy, gz, bx, by, bz, self.shared_bytes, self.kernel_params, self.extra, self.kern, _ = (
            _PARAMS.unpack_from(buffer)
        )
        self.grid: tuple[int, int, int] = (gx, gy, gz)
        self.block: tuple[int, int, int] = (bx, by, bz)

    @property
    def function(self) -> int:
        """A number that is equal for equal functions."""
        return int(self.func or self.kern)


class RawCalls:
    """The calls, with one set of buffers. Not for two threads at once: make one for each walk.

    ``more``: numbers of the attributes that :meth:`kernel` reads besides.
    """

    def __init__(self, lib: Any, more: tuple[int, ...] = ()) -> None:
        self._get_type = _typed(lib.cuGraphNodeGetType, 2)
        self._get_params = _typed(lib.cuGraphKernelNodeGetParams_v2, 2)
        self._get_attribute = lib.cuGraphKernelNodeGetAttribute
        self._get_attribute.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)
        self._get_nodes = _typed(lib.cuGraphGetNodes, 3)
        self._get_edges = _typed(lib.cuGraphGetEdges_v2, 5)
        self._get_dependencies = _typed(lib.cuGraphNodeGetDependencies_v2, 4)
        self._destroy_node = _typed(lib.cuGraphDestroyNode, 1)
        self._word = ctypes.c_int()
        self._word_at = ctypes.addressof(self._word)
        self._buffer = ctypes.create_string_buffer(_KERNEL.size + len(more) * VALUE_BYTES)
        self._buffer_at = ctypes.addressof(self._buffer)
        self._kernel_at = tuple(self._buffer_at + offset for offset in (0, 64, 128, 192))
        self._more = tuple((number, self._buffer_at + _KERNEL.size + at * VALUE_BYTES) for at, number in enumerate(more))
        self._more_view = memoryview(self._buffer)[_KERNEL.size :]

    def nodes(self, graph: int) -> list[int]:
        """Node handles in the driver's order."""
        count = ctypes.c_size_t()
        call((self._get_nodes(graph, None, ctypes.addressof(count)),), "cuGraphGetNodes")
        handles = (ctypes.c_uint64 * count.value)()
        if count.value:
            call((self._get_nodes(graph, ctypes.addressof(handles), ctypes.addressof(count)),), "cuGraphGetNodes")
        return list(handles)

    def edges(self, graph: int) -> list[tuple[int, int, tuple[int, int, int]]]:
        """(source handle, target handle, (from port, to port, type)) in the driver's order."""
        count = ctypes.c_size_t()
        call((self._get_edges(graph, None, None, None, ctypes.addressof(count)),), "cuGraphGetEdges")
        if not count.value:
            return []
        sources, targets = (ctypes.c_uint64 * count.value)(), (ctypes.c_uint64 * count.value)()
        data = ctypes.create_string_buffer(8 * count.value)
        places = [ctypes.addressof(array) for array in (sources, targets, data, count)]
        call((self._get_edges(graph, *places),), "cuGraphGetEdges")
        return list(zip(sources, targets, _EDGE.iter_unpack(data.raw[: 8 * count.value]), strict=True))

    def dependencies(self, node: int) -> list[tuple[int, tuple[int, int, int]]]:
        """(handle, (from port, to port, type)) of what a node waits for, in the order that updates pair nodes by."""
        count = ctypes.c_size_t()
        call((self._get_dependencies(node, None, None, ctypes.addressof(count)),), "cuGraphNodeGetDependencies")
        handles = (ctypes.c_uint64 * count.value)()
        data = ctypes.create_string_buffer(8 * count.value)
        places = [ctypes.addressof(array) for array in (handles, data, count)]
        call((self._get_dependencies(node, *places),), "cuGraphNodeGetDependencies")
        return list(zip(handles, _EDGE.iter_unpack(data.raw[: 8 * count.value]), strict=True))

    def clear(self, graph: int) -> None:
        """Take every node out of a graph."""
        for node in self.nodes(graph):
            call((self._destroy_node(node),), "cuGraphDestroyNode")

    def kind(self, node: int) -> int | None:
        """The node's type, or None when the driver does not tell."""
        return self._word.value if self._get_type(node, self._word_at) == 0 else None

    def params(self, node: int) -> KernelParams | None:
        """A kernel node's parameters, or None when the driver does not tell."""
        if self._get_params(node, self._buffer_at) != 0:
            return None
        return KernelParams(self._buffer)

    def kernel(self, node: int) -> KernelNode | None:
        """What the record needs of a kernel node, all at once; None when the driver does not tell some of it."""
        cooperative, cluster, updatable, params = self._kernel_at
        if (
            self._get_attribute(node, COOPERATIVE, cooperative)
            or self._get_attribute(node, CLUSTER, cluster)
            or self._get_attribute(node, DEVICE_UPDATABLE, updatable)
            or self._get_params(node, params)
        ):
            return None
        for number, place in self._more:
            if self._get_attribute(node, number, place):
                return None
        held = _KERNEL.unpack_from(self._buffer)
        more = bytes(self._more_view) if self._more else b""
        return KernelNode(held[0], held[1:4], held[4], held[5], held[15], held[13], held[14], held[6:13], more)

    def attribute(self, node: int, number: int) -> tuple[int, int, int] | None:
        """The first three words of a launch attribute (a scalar is the first), or None when the driver does not tell."""
        if self._get_attribute(node, number, self._buffer_at) != 0:
            return None
        first, second, third = _THREE.unpack_from(self._buffer)
        return first, second, third

    def value(self, node: int, number: int) -> bytes | None:
        """The whole of a launch attribute's value, or None when the driver does not tell."""
        ctypes.memset(self._buffer_at, 0, VALUE_BYTES)
        if self._get_attribute(node, number, self._buffer_at) != 0:
            return None
        return bytes(memoryview(self._buffer)[:VALUE_BYTES])


def _typed(function: Any, arguments: int) -> Any:
    function.argtypes = (ctypes.c_void_p,) * arguments
    function.restype = ctypes.c_int
    return function


def raw_calls(more: tuple[int, ...] = ()) -> RawCalls:
    """Calls with buffers of their own; ``more`` as in :class:`RawCalls`.

    Raises:
        DriverError: the driver library is missing, or too old to have them.
    """
    try:
        return RawCalls(libcuda(), more)
    except (OSError, AttributeError) as error:
        raise DriverError(
            f"libcuda cannot be used to read graphs ({error})", remedy="install an NVIDIA driver for CUDA 12.3 or newer"
        ) from error
