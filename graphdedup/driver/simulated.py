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
    Reads,
    UpdateResult,
    Verdict,
)
from graphdedup.errors import DriverError
from graphdedup.footprint import modelled_exec_bytes
from graphdedup.topology import Edge, Node, Subgraph, Topology
from seam.simulated import SimulatedDevice, SimulatedDeviceError, SimulatedExec, SimulatedGraph, SimulatedNode

__all__ = ["SimulatedDriver"]

_FOLDABLE = {"kernel", "memcpy", "memset", "host", "child_graph", "empty", "event_wait", "event_record"}
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
            if node.kind not in _FOLDABLE:
                pass_through = f"node {index} is of kind {node.kind} (rule D11)"
            elif node.attributes.get("device_updatable"):
                pass_through = f"node {index} is a device-updatable kernel (rule D11)"
            elif (child := nodes[index].child) is not None:
                pass_through = child.pass_through
            if pass_through:
                break
        incoming = enumerate(raw.structure().incoming)
        edges = tuple(EdgeRecord(source, target, data) for target, sources in incoming for source, data in sources)
        return GraphRecord(nodes, edges, Draws.YES if raw.draws else Draws.NO, pass_through)

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
        nodes = []
        for index, node in enumerate(raw.nodes):
            kernel = node.kind == "kernel"
            attributes = self._device.read_attributes(node)
            child = _child(node)
            nested = None if child is None else self._export(child)
            nodes.append(
                Node(
                    index=index,
                    kind=node.kind,
                    name=node.function,
                    grid=node.grid if kernel else None,
                    block=node.block if kernel else None,
                    shared_bytes=node.shared_bytes if kernel else None,
                    cluster=node.cluster if kernel else None,
                    attributes={name: int(value) for name, value in attributes.items() if isinstance(value, int)},
                    unreadable=self._device.unreadable_attributes(node),
                    parameters={} if child is not None else node.describe()["params"],
                    child=None if nested is None else Subgraph(nodes=nested[0], edges=nested[1]),
                )
            )
        return tuple(nodes), tuple(Edge(source=source, target=target, data=data) for source, target, data in raw.edges)

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

    def launch(self, executable: SimulatedExec) -> None:
        """Launch on the current simulated stream; done when it returns. After an update a kernel runs before it."""
        try:
            if executable in self._updated:
                self._device.run_kernel()
                self._updated.discard(executable)
            self._device.launch(executable)
        except SimulatedDeviceError as error:
            raise _failed("launch", error) from error

    def destroy(self, executable: SimulatedExec) -> None:
        """Destroy an executable."""
        try:
            self._device.destroy(executable)
        except SimulatedDeviceError as error:
            raise _failed("destroy", error) from error

    def exec_bytes(self, node_count: int) -> tuple[int, int] | None:
        """(device, host) bytes that an executable of this size takes on an H200, modelled."""
        return modelled_exec_bytes(node_count)


_DIRECTIONS = {"d2d": 0, "h2d": 1, "d2h": 2}


def _child(node: SimulatedNode) -> SimulatedGraph | None:
    child = getattr(node.params, "graph", None)
    return child if node.kind == "child_graph" and isinstance(child, SimulatedGraph) else None


def _failed(what: str, error: SimulatedDeviceError) -> DriverError:
    return DriverError(f"simulated {what} failed: {error.problem}", remedy=error.remedy, rule=error.rule)
