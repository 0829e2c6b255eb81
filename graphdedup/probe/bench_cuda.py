"""The bench on a CUDA device: small graphs by the driver API, kernels compiled at run time."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch

from graphdedup.driver.cuda import CudaDriver
from graphdedup.driver.cuda_calls import bindings, call, libcuda
from graphdedup.driver.cuda_raw import raw_calls
from graphdedup.driver.protocol import UpdateResult
from graphdedup.probe import cuda_attributes
from graphdedup.probe.bench import AUTO_FREE_ON_LAUNCH, Interval, NotHere
from graphdedup.probe.contents import counters, device_bytes, host_bytes
from graphdedup.probe.cuda_source import LOG_ENTRIES, Functions
from graphdedup.probe.spec import (
    STAMP_WORDS,
    Arena,
    Child,
    Empty,
    EventRecord,
    EventWait,
    GraphSpec,
    Host,
    Kernel,
    MemAlloc,
    Memcpy,
    Memset,
    NodeSpec,
)
from seam.cuda_streams import LaunchStreams

__all__ = ["CudaBench"]

_TASK = struct.Struct("<QQIIQQ")
_SEMAPHORE_BYTES = 32
_STAMP_BYTES = 4 * STAMP_WORDS
_LOG_BYTES = 8 * (1 + 3 * LOG_ENTRIES) + 4 * 1024
_DEVICE, _HOST = "CU_MEMORYTYPE_DEVICE", "CU_MEMORYTYPE_HOST"


class CudaBench:
    """See :class:`~graphdedup.probe.bench.Bench`. Work runs on streams of its own, never on the caller's.

    Raises:
        NotHere: no NVRTC, or it does not compile for this device.
        DriverError: ``cuda.bindings`` is missing or too old.
    """

    def __init__(self, device: torch.device | None = None, arena: Arena | None = None) -> None:
        self.arena = arena or Arena()
        self._device = torch.device("cuda", torch.cuda.current_device()) if device is None else device
        self.driver = CudaDriver(self._device, LaunchStreams(self._device))
        self._cuda, self._lib, self._raw = bindings(), libcuda(), raw_calls()
        self._functions = Functions(self._cuda, self.driver.identity.compute_capability)
        self._streams = [torch.cuda.Stream(self._device) for _ in range(2)]
        self._stream = self._cuda.CUstream(self._streams[0].cuda_stream)
        sizes = self.arena
        self._state_bytes = sizes.buffer_count * sizes.buffer_bytes + sizes.stamp_count * _STAMP_BYTES
        self._memory = torch.zeros(self._state_bytes + _LOG_BYTES, dtype=torch.uint8, device=self._device)
        self._host = torch.zeros(sizes.host_buffer_count * sizes.buffer_bytes, dtype=torch.uint8).pin_memory()
        self._semaphores = ctypes.create_string_buffer(_SEMAPHORE_BYTES * sizes.counter_count)
        self._libc = ctypes.CDLL(None)
        self._events: dict[int, Any] = {}
        self._graphs: dict[int, list[int]] = {}
        self._executables: set[int] = set()
        torch.cuda.current_stream(self._device).synchronize()

    # Building

    def build(self, spec: GraphSpec) -> int:
        """A graph made node by node; see :meth:`Bench.build`."""
        graph = int(call(self._cuda.cuGraphCreate(0), "cuGraphCreate"))
        try:
            nodes = [self._add(graph, node) for node in spec.nodes]
            for source, target, data in spec.edges:
                self._join(graph, nodes[source], nodes[target], data)
        except BaseException:
            self._cuda.cuGraphDestroy(self._cuda.CUgraph(graph))
            raise
        self._graphs[graph] = nodes
        return graph

    def _join(self, graph: int, source: int, target: int, data: tuple[int, int, int]) -> None:
        one, other = ctypes.c_void_p(source), ctypes.c_void_p(target)
        held = ctypes.create_string_buffer(bytes(data), 8)
        result = self._lib.cuGraphAddDependencies_v2(
            ctypes.c_void_p(graph), ctypes.byref(one), ctypes.byref(other), held, ctypes.c_size_t(1)
        )
        if result != 0:
            raise NotHere(f"an edge with data {data} is refused ({result})")

    def _add(self, graph: int, node: NodeSpec) -> int:
        cuda, owner = self._cuda, self._cuda.CUgraph(graph)
        match node:
            case Kernel():
                return self._add_kernel(graph, node)
            case Memcpy():
                result = cuda.cuGraphAddMemcpyNode(owner, None, 0, self._copy(node), self._context)
            case Memset():
                params = cuda.CUDA_MEMSET_NODE_PARAMS()
                params.dst, params.value = self._buffer(node.target), node.value
                params.elementSize, params.width = node.element_bytes, node.width
                params.height, params.pitch = node.height, node.pitch_bytes
                result = cuda.cuGraphAddMemsetNode(owner, None, 0, params, self._context)
            case Host():
                host = cuda.CUDA_HOST_NODE_PARAMS()
                function = self._libc.sem_post if node.function == "post" else self._libc.sem_trywait
                address = ctypes.cast(function, ctypes.c_void_p).value
                host.fn = cuda.CUhostFn(init_value=address) if address else None
                host.userData = ctypes.addressof(self._semaphores) + node.counter * _SEMAPHORE_BYTES
                result = cuda.cuGraphAddHostNode(owner, None, 0, host)
            case Child():
                inner = self.build(node.graph)
                result = cuda.cuGraphAddChildGraphNode(owner, None, 0, cuda.CUgraph(inner))
                self._graphs.pop(inner)
                cuda.cuGraphDestroy(cuda.CUgraph(inner))
            case Empty():
                result = cuda.cuGraphAddEmptyNode(owner, None, 0)
            case EventRecord():
                result = cuda.cuGraphAddEventRecordNode(owner, None, 0, self._event(node.event))
            case EventWait():
                result = cuda.cuGraphAddEventWaitNode(owner, None, 0, self._event(node.event))
            case MemAlloc():
                alloc = cuda.CUDA_MEM_ALLOC_NODE_PARAMS()
                alloc.poolProps.allocType = cuda.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
                alloc.poolProps.location.type = cuda.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
                alloc.poolProps.location.id = self._device.index
                alloc.bytesize = node.size_bytes
                result = cuda.cuGraphAddMemAllocNode(owner, None, 0, alloc)
        if result[0] != 0:
            raise NotHere(f"{node} is refused ({getattr(result[0], 'name', result[0])})")
        return int(result[1])

    def _add_kernel(self, graph: int, node: Kernel) -> int:
        function = self._functions.get(node.function)
        log = self._memory.data_ptr() + self._state_bytes
        task = ctypes.create_string_buffer(
            _TASK.pack(
                self._buffer(node.target),
                self._buffer(node.source),
                node.words,
                node.constant & 0xFFFFFFFF,
                self._stamp(node.stamp),
                log,
            )
        )
        pointers = (ctypes.c_void_p * 1)(ctypes.addressof(task))
        params = self._cuda.CUDA_KERNEL_NODE_PARAMS()
        params.func = function
        params.gridDimX, params.gridDimY, params.gridDimZ = node.grid
        params.blockDimX, params.blockDimY, params.blockDimZ = node.block
        params.sharedMemBytes = node.shared_bytes
        params.kernelParams = ctypes.addressof(pointers)
        made = self._cuda.cuGraphAddKernelNode(self._cuda.CUgraph(graph), None, 0, params)
        if made[0] != 0:
            raise NotHere(f"{node} is refused ({getattr(made[0], 'name', made[0])})")
        handle = int(made[1])
        values = {name: self._numbers(name, numbers) for name, numbers in node.attributes.items()}
        if all(cuda_attributes.write(self._lib, handle, name, numbers) == 0 for name, numbers in values.items()):
            return handle
        call(self._cuda.cuGraphDestroyNode(self._cuda.CUgraphNode(handle)), "cuGraphDestroyNode")
        before = set(self._raw.nodes(graph))
        cuda_attributes.launch_into_graph(
            self._lib,
            graph,
            int(self._stream),
            int(function),
            node.grid,
            node.block,
            node.shared_bytes,
            ctypes.addressof(pointers),
            values,
        )
        (handle,) = set(self._raw.nodes(graph)) - before
        return handle

    def _numbers(self, name: str, numbers: tuple[int, ...]) -> tuple[int, ...]:
        """An access policy window is given by its buffer's index."""
        return (self._buffer(numbers[0]), *numbers[1:]) if name == "access_policy_window" else numbers

    def _copy(self, node: Memcpy) -> Any:
        cuda = self._cuda
        copy = cuda.CUDA_MEMCPY3D()
        copy.WidthInBytes, copy.Height, copy.Depth = node.size_bytes, 1, 1
        if node.direction == "h2d":
            copy.srcMemoryType, copy.srcHost = getattr(cuda.CUmemorytype, _HOST), self._host_buffer(node.source)
        else:
            copy.srcMemoryType, copy.srcDevice = getattr(cuda.CUmemorytype, _DEVICE), self._buffer(node.source)
        if node.direction == "d2h":
            copy.dstMemoryType, copy.dstHost = getattr(cuda.CUmemorytype, _HOST), self._host_buffer(node.target)
        else:
            copy.dstMemoryType, copy.dstDevice = getattr(cuda.CUmemorytype, _DEVICE), self._buffer(node.target)
        return copy

    @property
    def _context(self) -> Any:
        return self._cuda.CUcontext(self.driver.identity.context)

    def _buffer(self, index: int) -> int:
        return int(self._memory.data_ptr()) + index * self.arena.buffer_bytes

    def _host_buffer(self, index: int) -> int:
        return int(self._host.data_ptr()) + index * self.arena.buffer_bytes

    def _stamp(self, index: int) -> int:
        return int(self._memory.data_ptr()) + self.arena.buffer_count * self.arena.buffer_bytes + index * _STAMP_BYTES

    def _event(self, index: int) -> Any:
        if index not in self._events:
            self._events[index] = call(self._cuda.cuEventCreate(2), "cuEventCreate")  # without timing
        return self._events[index]

    # Running

    def instantiate(self, raw: int, flags: int = AUTO_FREE_ON_LAUNCH) -> int:
        """An executable; see :meth:`Bench.instantiate`."""
        made = self._cuda.cuGraphInstantiate(self._cuda.CUgraph(raw), flags)
        if made[0] != 0:
            raise NotHere(f"the driver does not instantiate the graph ({getattr(made[0], 'name', made[0])})")
        self._executables.add(int(made[1]))
        return int(made[1])

    def update(self, executable: int, raw: int) -> UpdateResult:
        """The driver's answer, with the refused node."""
        return self.driver.update(executable, raw)

    def run(self, executable: int, seed: int = 0, *, bare: bool = False) -> bytes:
        """Fill, launch, wait, read; see :meth:`Bench.run`."""
        return self.run_by(lambda: self._launch_bare(executable) if bare else self.driver.launch(executable), seed)

    def _launch_bare(self, executable: int) -> None:
        call(self._cuda.cuGraphLaunch(self._cuda.CUgraphExec(executable), self._stream), "cuGraphLaunch")

    def run_by(self, launch: Callable[[], object], seed: int = 0) -> bytes:
        """Fill, launch, wait, read; see :meth:`Bench.run_by`."""
        self._fill(seed)
        with torch.cuda.stream(self._streams[0]):
            launch()
        call(self._cuda.cuStreamSynchronize(self._stream), "cuStreamSynchronize")
        values = bytes(self._counter(index) for index in range(self.arena.counter_count))
        return self._read(0, self._state_bytes) + ctypes.string_at(self._host.data_ptr(), self._host.numel()) + values

    def _fill(self, seed: int) -> None:
        start = device_bytes(self.arena, seed)
        content = start + bytes(self._memory.numel() - len(start))
        # The bench's streams do not wait for the default one, and a plain copy of pageable memory may still run there.
        call(self._cuda.cuMemcpyHtoDAsync(self._memory.data_ptr(), content, len(content), self._stream), "cuMemcpyHtoDAsync")
        call(self._cuda.cuStreamSynchronize(self._stream), "cuStreamSynchronize")
        ctypes.memmove(self._host.data_ptr(), host_bytes(self.arena, seed), self._host.numel())
        for index, value in enumerate(counters(self.arena, seed)):
            self._libc.sem_init(ctypes.byref(self._semaphores, index * _SEMAPHORE_BYTES), 0, value)

    def _read(self, offset: int, size: int) -> bytes:
        held = ctypes.create_string_buffer(size)
        address = ctypes.addressof(held)
        call(self._cuda.cuMemcpyDtoH(address, self._memory.data_ptr() + offset, size), "cuMemcpyDtoH")
        return held.raw

    def _counter(self, index: int) -> int:
        value = ctypes.c_int()
        self._libc.sem_getvalue(ctypes.byref(self._semaphores, index * _SEMAPHORE_BYTES), ctypes.byref(value))
        return value.value

    def stamp(self, index: int) -> list[int]:
        """A stamp's words."""
        held = self._read(self._stamp(index) - self._memory.data_ptr(), _STAMP_BYTES)
        return list(struct.unpack(f"<{STAMP_WORDS}I", held))

    def launch_beside(self, executables: Sequence[int], update: tuple[int, int] | None = None) -> tuple[list[Interval], bool]:
        """Launch on streams of their own; see :meth:`Bench.launch_beside`."""
        self._fill(0)
        for executable, stream in zip(executables, self._streams, strict=False):
            with torch.cuda.stream(stream):
                self.driver.launch(executable)
        if update is not None and not (result := self.update(*update)).accepted:
            raise NotHere(f"the update was refused: {result.verdict}")
        running = not all(stream.query() for stream in self._streams)
        for stream in self._streams:
            stream.synchronize()
        words = struct.unpack(f"<{1 + 3 * LOG_ENTRIES}Q", self._read(self._state_bytes, 8 * (1 + 3 * LOG_ENTRIES)))
        return [Interval(*words[1 + 3 * at : 4 + 3 * at]) for at in range(min(words[0], LOG_ENTRIES))], running

    # Asking

    def attribute(self, raw: int, node: int, name: str) -> tuple[int, ...] | None:
        """What the driver tells of a node's attribute."""
        return cuda_attributes.read(self._lib, self._graphs[raw][node], name)

    def node_order(self, raw: int) -> list[int]:
        """Creation places in the driver's order."""
        return [self._graphs[raw].index(handle) for handle in self._raw.nodes(raw)]

    def set_enabled(self, executable: int, raw: int, node: int, enabled: bool) -> None:
        """Enable or disable a node of an executable."""
        handle = self._cuda.CUgraphNode(self._graphs[raw][node])
        result = self._cuda.cuGraphNodeSetEnabled(self._cuda.CUgraphExec(executable), handle, int(enabled))
        if result[0] != 0:
            raise NotHere(f"cuGraphNodeSetEnabled answers {getattr(result[0], 'name', result[0])}")

    def torch_flags(self) -> int:
        """As read from an executable that torch made."""
        return self.driver.instantiate_flags

    def last_error(self) -> int | None:
        """``cudaGetLastError`` of the runtime that torch uses."""
        runtime = _runtime()
        return None if runtime is None else int(runtime.cudaGetLastError())

    # Leaving

    def destroy(self, executable: int) -> None:
        """Destroy an executable."""
        self._executables.discard(executable)
        self.driver.destroy(executable)

    def discard(self, raw: int) -> None:
        """Destroy a graph."""
        self._graphs.pop(raw)
        call(self._cuda.cuGraphDestroy(self._cuda.CUgraph(raw)), "cuGraphDestroy")

    def close(self) -> None:
        """Free everything that was made."""
        for executable in tuple(self._executables):
            self.destroy(executable)
        for raw in tuple(self._graphs):
            self.discard(raw)
        for event in self._events.values():
            self._cuda.cuEventDestroy(event)
        self._events.clear()
        self._functions.close()


@cache
def _runtime() -> Any:
    """The CUDA runtime that torch has loaded, or None where it is linked in."""
    for major in (torch.version.cuda or "").split(".")[:1]:
        try:
            return ctypes.CDLL(f"libcudart.so.{major}", mode=os.RTLD_NOLOAD | os.RTLD_NOW)
        except OSError:
            return None
    return None
