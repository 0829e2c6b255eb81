"""The driver on the CUDA driver API."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from graphdedup.driver.cuda_anchor import anchor_of
from graphdedup.driver.cuda_calls import bindings, call, driver_branch, libcuda, update_exec
from graphdedup.driver.cuda_export import GraphExporter
from graphdedup.driver.cuda_memory import CudaGraphMemory
from graphdedup.driver.cuda_raw import raw_calls
from graphdedup.driver.cuda_settle import Settler
from graphdedup.driver.cuda_walk import GraphReader
from graphdedup.driver.protocol import NOTHING_MORE, DeviceIdentity, GraphRecord, Prologue, Reads, UpdateResult
from graphdedup.errors import DriverError, GraphDedupError
from graphdedup.topology import Topology
from seam.cuda_streams import LaunchStreams

__all__ = ["CudaDriver"]


class CudaDriver:
    """Executables of one CUDA device; see :class:`~graphdedup.driver.protocol.GraphDriver`.

    Captured graphs and executables are the integers behind ``cudaGraph_t`` and ``cudaGraphExec_t``.

    Args:
        device: the device.
        launches: where launches are noted; the backend that releases the graphs waits for them.

    Raises:
        DriverError: ``cuda.bindings`` is missing or too old.
    """

    def __init__(self, device: torch.device, launches: LaunchStreams) -> None:
        self._driver = bindings()
        self._device = device
        torch.empty(1, device=device)  # makes the primary context, which the identity names
        self._launches = launches
        self._launch = libcuda().cuGraphLaunch  # the one call of a steady replay: no objects are made for it
        self._launch.argtypes = (ctypes.c_void_p, ctypes.c_void_p)
        version, branch = driver_branch()
        with torch.cuda.device(device):
            context = int(call(self._driver.cuCtxGetCurrent(), "cuCtxGetCurrent"))
            self._settler = Settler(self._driver)
        self._identity = DeviceIdentity(
            kind="cuda",
            name=torch.cuda.get_device_name(device),
            ordinal=device.index,
            context=context,
            compute_capability=torch.cuda.get_device_capability(device),
            driver_version=version,
            driver_branch=branch,
        )
        anchor = anchor_of(device, self._driver)
        self._flags = anchor.flags
        self.philox_pointers = anchor.philox_pointers
        """What tells that a kernel draws random numbers; see :class:`~graphdedup.driver.cuda_anchor.Anchor`."""

    @property
    def identity(self) -> DeviceIdentity:
        """The device; ``driver_version`` is NVML's."""
        return self._identity

    @property
    def instantiate_flags(self) -> int:
        """The flags that torch's own executables have here, read from one of them."""
        return self._flags

    def raw(self, handle: Any) -> int:
        """The ``cudaGraph_t`` of a :class:`seam.cuda.CudaSegment`."""
        return int(handle.graph.raw_cuda_graph())

    def walk(self, raw: int, reads: Reads = NOTHING_MORE) -> GraphRecord:
        """Read what the key is made of."""
        return self._reader(reads).record(raw)

    def topology(self, raw: int, *, label: str = "") -> Topology:
        """Read everything that the driver tells."""
        nodes, edges = GraphExporter(self._driver).export_nodes(raw)
        return Topology(
            label=label,
            device=self._identity.name,
            driver_version=self._identity.driver_version,
            instantiate_flags=self._flags,
            nodes=tuple(nodes),
            edges=tuple(edges),
        )

    def instantiate(self, raw: int) -> int:
        """Instantiate with torch's flags, and upload on the current stream."""
        graph = self._driver.CUgraph(raw)
        with self._device_current():
            executable = int(call(self._driver.cuGraphInstantiate(graph, self._flags), "cuGraphInstantiate"))
            try:
                self.upload(executable)
            except BaseException:
                self.destroy(executable)
                raise
        return executable

    def update(self, executable: int, raw: int) -> UpdateResult:
        """Re-point an executable; a refusal names the node and the kernels on both sides."""
        with self._device_current():
            result, node, from_node = update_exec(executable, raw)
        if result.accepted:
            self._settler.note_update(executable)
            return result
        handles = raw_calls().nodes(raw)
        index = handles.index(node) if node in handles else None
        detail = ""
        if index is not None:
            reader = self._reader()
            detail = reader.node_name(node)
            if from_node:
                detail += f" in place of {reader.node_name(from_node)}"
        return UpdateResult(result.verdict, index, detail)

    def set_unit_clusters(self, raw: int, nodes: Sequence[int]) -> None:
        """Set the cluster dimension (1, 1, 1) at these kernel nodes."""
        driver = self._driver
        value = driver.CUkernelNodeAttrValue()
        value.clusterDim.x = value.clusterDim.y = value.clusterDim.z = 1
        attribute = driver.CUkernelNodeAttrID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        handles = raw_calls().nodes(raw)
        for node in nodes:
            result = driver.cuGraphKernelNodeSetAttribute(driver.CUgraphNode(handles[node]), attribute, value)
            call(result, "cuGraphKernelNodeSetAttribute")

    def upload(self, executable: int) -> None:
        """Upload on the current stream."""
        call(self._driver.cuGraphUpload(self._driver.CUgraphExec(executable), self._stream()), "cuGraphUpload")

    def launch(self, executable: int, prologue: Prologue | None = None) -> None:
        """Launch on the current stream; after an update behind a kernel of nothing, see :mod:`.cuda_settle`."""
        if torch.cuda.current_device() != self._device.index:
            with torch.cuda.device(self._device):
                self.launch(executable, prologue)
            return
        if prologue is not None:
            prologue()
        stream = self._launches.note_current()
        self._settler.before_launch(executable, stream)
        result = self._launch(executable, stream)
        if result:
            call((self._driver.CUresult(result),), "cuGraphLaunch")
        self._settler.note_launch(executable, stream)

    def destroy(self, executable: int) -> None:
        """Destroy an executable, once its last launch has ended."""
        with self._relaxed():
            self._settler.finish(executable)
            call(self._driver.cuGraphExecDestroy(self._driver.CUgraphExec(executable)), "cuGraphExecDestroy")
            self._settler.forget(executable)

    # Random numbers

    def detach(self, handle: Any) -> tuple[int, Prologue]:
        """Clone the graph and take every node out of torch's own: its ``replay()`` then is the prologue, by torch itself.

        The replay fills seed and offset where the clone's kernels read them and advances each registered generator, in
        every version of torch alike. An executable without nodes takes no device memory to speak of, and 3 us a launch.

        Nodes are taken out before any executable is made of them: when they went from a graph whose executable was updated
        later, the heap was found corrupted (driver 580.159).
        """
        graph = handle.graph
        clone = int(call(self._driver.cuGraphClone(self._driver.CUgraph(self.raw(handle))), "cuGraphClone"))
        try:
            raw_calls().clear(self.raw(handle))
        except DriverError as error:  # half of it may be gone: the capture cannot be used any more
            self.discard(clone)
            raise GraphDedupError(error.problem, rule="D12", remedy="capture again with GRAPHDEDUP_DISABLE=1") from error
        return clone, graph.replay

    def advance(self, prologue: Prologue) -> None:
        """All of it, on the current stream."""
        with self._device_current():
            prologue()

    def discard(self, raw: int) -> None:
        """Destroy a graph that :meth:`detach` returned, once everything launched has ended: one launch may still read it."""
        self._launches.wait()
        with self._relaxed():
            call(self._driver.cuGraphDestroy(self._driver.CUgraph(raw)), "cuGraphDestroy")

    # Streams

    def stream(self) -> int:
        """The handle of the current stream."""
        return self._launches.current()

    def runs_elsewhere(self, executable: int, stream: int | None) -> bool:
        """Whether the last launch was on another stream and has not ended."""
        if not self._settler.launched_elsewhere(executable, stream):
            return False
        with self._relaxed():
            return self._settler.running(executable)

    def order_after(self, executable: int) -> None:
        """Have the current stream wait for the executable's last launch."""
        self._settler.order_after(executable, self.stream())

    def finish(self, executable: int) -> None:
        """Wait on the host for the executable's last launch."""
        with self._relaxed():
            self._settler.finish(executable)

    def synchronize(self) -> None:
        """Wait on the host for the current stream."""
        torch.cuda.current_stream(self._device).synchronize()

    def memory(self) -> CudaGraphMemory:
        """The device's memory."""
        return CudaGraphMemory(self._driver, self._device)

    def exec_bytes(self, node_count: int) -> tuple[int, int] | None:
        """None: on a GPU bytes are measured."""
        return None

    def _reader(self, reads: Reads = NOTHING_MORE) -> GraphReader:
        return GraphReader(self._driver, self.philox_pointers, reads)

    def _stream(self) -> Any:
        return self._driver.CUstream(self._launches.note_current())

    @contextmanager
    def _relaxed(self) -> Iterator[None]:
        """Calls that are unsafe while something is captured, and that no capture of this process minds."""
        driver = self._driver
        mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        before = call(driver.cuThreadExchangeStreamCaptureMode(mode), "cuThreadExchangeStreamCaptureMode")
        try:
            yield
        finally:
            driver.cuThreadExchangeStreamCaptureMode(before)

    @contextmanager
    def _device_current(self) -> Iterator[None]:
        if torch.cuda.current_device() == self._device.index:
            yield
        else:
            with torch.cuda.device(self._device):
                yield
