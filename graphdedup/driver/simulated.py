"""The driver on the simulated device."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

from graphdedup.driver.attributes import ATTRIBUTES, Effect
from graphdedup.driver.protocol import (
    NOTHING_MORE,
    DeviceIdentity,
    Draws,
    EdgeRecord,
    GraphRecord,
    NodeRecord,
    Prologue,
    Reads,
    UpdateResult,
    Verdict,
)
from graphdedup.driver.simulated_memory import SimulatedGraphMemory
from graphdedup.errors import DriverError
from graphdedup.footprint import modelled_exec_bytes
from graphdedup.topology import FOLDABLE_KINDS, Edge, Node, Subgraph, Topology
from seam.simulated import (
    SimulatedDevice,
    SimulatedDeviceError,
    SimulatedExec,
    SimulatedGraph,
    SimulatedNode,
    Stream,
    current_stream,
)

__all__ = ["SimulatedDriver"]

_AUTO_FREE_ON_LAUNCH = 1


class SimulatedDriver:
    """Executables of one simulated device; see :class:`~graphdedup.driver.protocol.GraphDriver`."""

    def __init__(self, device: SimulatedDevice) -> None:
        self._device = device
        self._updated: weakref.WeakSet[SimulatedExec] = weakref.WeakSet()
        self.profile = profile = device.profile
        self._identity = DeviceIdentity(
            kind="simulated",
            name=profile.name,
            ordinal=0,
            context=device.context,
            compute_capability=profile.compute_capability,
            driver_version=profile.driver_version,
            driver_branch=profile.driver_branch,
        )

    @property
    def identity(self) -> DeviceIdentity:
        """The device that the profile stands for."""
        return self._identity

    @property
    def instantiate_flags(self) -> int:
        """Auto free on launch, as torch's own executables."""
        return _AUTO_FREE_ON_LAUNCH

    def raw(self, handle: Any) -> SimulatedGraph:
        """The graph of a :class:`seam.simulated.SimulatedSegment`."""
        graph: SimulatedGraph = handle.graph
        return graph

    def walk(self, raw: SimulatedGraph, reads: Reads = NOTHING_MORE) -> GraphRecord:
        """Read what the key is made of."""
        nodes = tuple(self._record(node, reads) for node in raw.nodes)
        pass_through = ""
        for index, node in enumerate(raw.nodes):
            if node.kind not in FOLDABLE_KINDS:
                pass_through = f"node {index} is of kind {node.kind} (rule D11)"
            elif node.attributes.get("device_updatable"):
                pass_through = f"node {index} is a device-updatable kernel (rule D11)"
            elif (child := nodes[index].child) is not None:
                pass_through = child.pass_through
            if pass_through:
                break
        incoming = enumerate(raw.structure().incoming)
        edges = tuple(EdgeRecord(source, target, data) for target, sources in incoming for source, data in sources)
        host_copies = any(
            record.child.host_copies if record.child is not None else record.kind == "memcpy" and record.fixed[0] != 0
            for record in nodes
        )
        names = {node.function_id: node.function for node in raw.nodes if node.kind == "kernel"}
        return GraphRecord(nodes, edges, Draws.YES if raw.draws else Draws.NO, pass_through, host_copies, names)

    def _record(self, node: SimulatedNode, reads: Reads) -> NodeRecord:
        params: dict[str, Any] = node.describe()["params"] if node.kind in ("memcpy", "memset") else {}
        if node.kind == "kernel":
            return self._kernel_record(node, reads)
        if node.kind == "memcpy":
            extent: tuple[int, ...] = (params["size_bytes"],) if reads.memcpy_extent else ()
            return NodeRecord("memcpy", (_DIRECTIONS[params["direction"]], node.context, *extent))
        if node.kind == "memset":
            if params["height"] > 1:
                extent = (params["width_bytes"], params["height"], params["pitch_bytes"], params["element_bytes"])
            else:
                extent = (params["width_bytes"], params["element_bytes"]) if reads.memset_extent else ()
            return NodeRecord("memset", (node.context, *extent))
        if (child := _child(node)) is not None:
            return NodeRecord("child_graph", (node.context,), child=self.walk(child, reads))
        return NodeRecord(node.kind, (node.context,))

    def _kernel_record(self, node: SimulatedNode, reads: Reads) -> NodeRecord:
        fixed: list[int] = [int(node.attributes["cooperative"]), node.context, node.local_bytes]
        unreadable: list[str] = []
        for name in reads.attributes:
            attribute = ATTRIBUTES[name]
            usable = any(node.clusters) or not attribute.needs_clusters
            if name not in self.profile.unreadable:
                value = node.attributes.get(name, 0) if usable else 0
                fixed += [attribute.number, *(value if isinstance(value, tuple) else (value,))]
            elif usable and attribute.effect is Effect.BYTES:
                unreadable.append(name)
        if reads.geometry:
            fixed += [*node.grid, *node.block, node.shared_bytes]
        return NodeRecord("kernel", tuple(fixed), node.function_id, node.clusters, tuple(unreadable))

    def topology(self, raw: SimulatedGraph, *, label: str = "") -> Topology:
        """Read everything that the device tells."""
        nodes, edges = self._export(raw)
        return Topology(
            label=label,
            device=self._identity.name,
            driver_version=self._identity.driver_version,
            instantiate_flags=_AUTO_FREE_ON_LAUNCH,
            nodes=nodes,
            edges=edges,
        )

    def _export(self, raw: SimulatedGraph) -> tuple[tuple[Node, ...], tuple[Edge, ...]]:
        nodes = tuple(self._export_node(index, node) for index, node in enumerate(raw.nodes))
        incoming = enumerate(raw.structure().incoming)
        edges = (Edge(source=source, target=target, data=data) for target, sources in incoming for source, data in sources)
        return nodes, tuple(edges)

    def _export_node(self, index: int, node: SimulatedNode) -> Node:
        told: dict[str, Any] = {"index": index, "kind": node.kind, "unreadable": self._device.unreadable_attributes(node)}
        if node.context != self._device.context:
            told["context"] = node.context
        if (child := _child(node)) is not None:
            nodes, edges = self._export(child)
            return Node(**told, child=Subgraph(nodes=nodes, edges=edges))
        params = node.describe()["params"]
        if node.kind == "memcpy":
            told["memory"] = _MEMORY[params["direction"]]
            params = {
                "source": params["source"],
                "destination": params["target"],
                "width_bytes": params["size_bytes"],
                "height": 1,
                "depth": 1,
            }
        elif node.kind == "memset":
            params = {"destination": params.pop("address"), **params}
        elif node.kind == "kernel":
            attributes = self._device.read_attributes(node)
            told |= {
                "name": node.function,
                "grid": node.grid,
                "block": node.block,
                "shared_bytes": node.shared_bytes,
                "cluster": node.cluster,
                "required_cluster": node.required_cluster,
                "local_bytes": node.local_bytes,
                "function": node.function_id,
                "attributes": {name: value for name, value in attributes.items() if isinstance(value, int | tuple)},
            }
        return Node(**told, parameters=params)

    def instantiate(self, raw: SimulatedGraph) -> SimulatedExec:
        """Instantiate with torch's flags, and upload."""
        try:
            executable = self._device.instantiate(raw, _AUTO_FREE_ON_LAUNCH)
        except SimulatedDeviceError as error:
            raise _failed("instantiate", error) from error
        try:
            self.upload(executable)
        except DriverError:
            self._device.destroy(executable)
            raise
        return executable

    def update(self, executable: SimulatedExec, raw: SimulatedGraph) -> UpdateResult:
        """Re-point an executable; the error that a refusal leaves behind is consumed (rule D13)."""
        try:
            result = self._device.update(executable, raw)
        except SimulatedDeviceError as error:
            raise _failed("update", error) from error
        if result.verdict == "SUCCESS":
            self._updated.add(executable)
        else:
            self._device.get_last_error()
        name = raw.nodes[result.node].function if result.node is not None else ""
        detail = f"{name}: {result.detail}" if name and result.detail else name or result.detail
        return UpdateResult(Verdict(result.verdict), result.node, detail)

    def set_unit_clusters(self, raw: SimulatedGraph, nodes: Sequence[int]) -> None:
        """Set the cluster dimension (1, 1, 1) at these kernel nodes."""
        try:
            for node in nodes:
                raw.set_cluster(node, (1, 1, 1))
        except SimulatedDeviceError as error:
            raise _failed("set cluster", error) from error

    def upload(self, executable: SimulatedExec) -> None:
        """Bind the executable's addresses."""
        try:
            self._device.upload(executable)
        except SimulatedDeviceError as error:
            raise _failed("upload", error) from error

    def launch(self, executable: SimulatedExec, prologue: Prologue | None = None) -> None:
        """Launch on the current simulated stream; done when it returns. After an update a kernel runs before it.

        With a prologue it does what a replay of the simulated backend does with random numbers.
        """
        try:
            if executable in self._updated:
                self._device.run_kernel()
                self._updated.discard(executable)
            self._device.launch(executable, prologue=prologue is not None)
        except SimulatedDeviceError as error:
            raise _failed("launch", error) from error

    def detach(self, handle: Any) -> tuple[SimulatedGraph, Prologue]:
        """The graph as it is: here a launch itself does what a replay does with random numbers."""
        return self.raw(handle), _in_launch

    def advance(self, prologue: Prologue) -> Prologue:
        """Nothing yet: all of it goes to the first launch."""
        return prologue

    def discard(self, raw: SimulatedGraph) -> None:
        """Nothing: the wrapped backend destroys the graph."""

    def stream(self) -> Stream:
        """The current simulated stream."""
        return current_stream()

    def runs_elsewhere(self, executable: SimulatedExec, stream: Stream | None) -> bool:
        """Whether a launch on another stream, in another thread, is under way."""
        return executable.running_on not in (None, stream)

    def order_after(self, executable: SimulatedExec) -> None:
        """Wait for a launch that is under way in another thread: work runs at once here."""
        with executable.running:
            pass

    def finish(self, executable: SimulatedExec) -> None:
        """Wait for a launch that is under way in another thread."""
        self.order_after(executable)

    def synchronize(self) -> None:
        """Nothing: a launch is done when it returns."""

    def destroy(self, executable: SimulatedExec) -> None:
        """Destroy an executable."""
        try:
            self._device.destroy(executable)
        except SimulatedDeviceError as error:
            raise _failed("destroy", error) from error

    def memory(self) -> SimulatedGraphMemory:
        """The simulated device's memory, and what its graphs reach outside of it."""
        return SimulatedGraphMemory(self._device)

    def exec_bytes(self, node_count: int) -> tuple[int, int] | None:
        """(device, host) bytes that an executable of this size takes on an H200, modelled."""
        return modelled_exec_bytes(node_count)


_DIRECTIONS = {"d2d": 0, "h2d": 1, "d2h": 2}
_MEMORY = {"d2d": ("device", "device"), "h2d": ("host", "device"), "d2h": ("device", "host")}


def _in_launch() -> None:
    """The prologue of the simulated device is part of its launch."""


def _child(node: SimulatedNode) -> SimulatedGraph | None:
    child = getattr(node.params, "graph", None)
    return child if node.kind == "child_graph" and isinstance(child, SimulatedGraph) else None


def _failed(what: str, error: SimulatedDeviceError) -> DriverError:
    return DriverError(f"simulated {what} failed: {error.problem}", remedy=error.remedy, rule=error.rule)
