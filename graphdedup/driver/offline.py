"""The driver of exported graphs: the fold without a device. What an update would be refused for, it is told.

A registry that folds exported topologies runs the code that it runs beside a GPU: the record, its key, the clusters of a group,
placement and bounds. Only what a device would do is left out: an executable is a note of the graph that it holds.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NoReturn

import xxhash

from graphdedup.driver.attributes import ATTRIBUTES, Effect
from graphdedup.driver.protocol import (
    NOTHING_MORE,
    DeviceIdentity,
    EdgeRecord,
    GraphRecord,
    NodeRecord,
    Prologue,
    Reads,
    UpdateResult,
    Verdict,
)
from graphdedup.errors import DriverError
from graphdedup.footprint import modelled_exec_bytes
from graphdedup.topology import FOLDABLE_KINDS, Node, Subgraph, Topology

__all__ = ["OfflineDriver", "OfflineExec", "OfflineGraph", "record_of"]

_NO_CLUSTER = (0, 0, 0)
_ALWAYS_READ = ("cooperative", "cluster", "parameters", "local memory")
_SIDES = ("unknown", "host", "device", "array")


@dataclass(frozen=True, slots=True, eq=False)
class OfflineGraph:
    """An exported graph. ``pass_through`` says why its fold passed it through, where that is on record."""

    topology: Topology
    pass_through: str = ""


@dataclass(slots=True, eq=False)
class OfflineExec:
    """An executable that nothing launches: the graph that it holds, and the stream that it is said to run on."""

    holds: OfflineGraph
    running_on: int | None = None


Refuses = Callable[[OfflineGraph, OfflineGraph], str]
"""Why an executable that holds the first graph does not take the second one; empty where it does."""


class OfflineDriver:
    """Executables of a device that is not here; see :class:`~graphdedup.driver.protocol.GraphDriver`.

    Args:
        device: its name, as the graphs say it.
        driver_version: its driver.
        instantiate_flags: the flags with which executables were made there.
        refuses: what is known of updates that the driver refused there.

    Attributes:
        current_stream: the stream that launches are said to be on. A launch goes on until its executable is finished.
    """

    def __init__(self, device: str, driver_version: str, instantiate_flags: int, refuses: Refuses | None = None) -> None:
        self.current_stream = 0
        self._flags = instantiate_flags
        self._refuses = refuses
        self._identity = DeviceIdentity(
            kind="offline",
            name=device,
            ordinal=0,
            context=0,
            compute_capability=(0, 0),
            driver_version=driver_version,
            driver_branch=0,
        )

    @property
    def identity(self) -> DeviceIdentity:
        """The device that the graphs were captured on."""
        return self._identity

    @property
    def instantiate_flags(self) -> int:
        """The flags that the graphs were exported with."""
        return self._flags

    def raw(self, handle: OfflineGraph) -> OfflineGraph:
        """The graph itself."""
        return handle

    def walk(self, raw: OfflineGraph, reads: Reads = NOTHING_MORE) -> GraphRecord:
        """The record of an exported graph."""
        return record_of(raw.topology, reads, pass_through=raw.pass_through)

    def topology(self, raw: OfflineGraph, *, label: str = "") -> Topology:
        """The graph as it was exported."""
        return raw.topology

    def instantiate(self, raw: OfflineGraph) -> OfflineExec:
        """Note an executable."""
        return OfflineExec(raw)

    def update(self, executable: OfflineExec, raw: OfflineGraph) -> UpdateResult:
        """Take the graph, unless it is known that the driver does not."""
        refusal = self._refuses(executable.holds, raw) if self._refuses is not None else ""
        if refusal:
            return UpdateResult(Verdict.ERROR, detail=refusal)
        executable.holds = raw
        return UpdateResult(Verdict.SUCCESS)

    def set_unit_clusters(self, raw: OfflineGraph, nodes: Sequence[int]) -> None:
        """Nothing: the graph stays as it was captured."""

    def upload(self, executable: OfflineExec) -> None:
        """Nothing."""

    def launch(self, executable: OfflineExec, prologue: Prologue | None = None) -> None:
        """Say that it runs on the current stream from now on."""
        executable.running_on = self.current_stream

    def destroy(self, executable: OfflineExec) -> None:
        """Nothing."""

    def detach(self, handle: OfflineGraph) -> tuple[OfflineGraph, Prologue]:
        """Nothing is launched, so nothing draws."""
        self._no_device("random numbers cannot be advanced")

    def advance(self, prologue: Prologue) -> Prologue | None:
        """The prologue, whole."""
        return prologue

    def discard(self, raw: OfflineGraph) -> None:
        """Nothing."""

    def stream(self) -> int:
        """The current stream."""
        return self.current_stream

    def runs_elsewhere(self, executable: OfflineExec, stream: int | None) -> bool:
        """Whether it was launched on another stream and not finished."""
        return executable.running_on not in (None, stream)

    def order_after(self, executable: OfflineExec) -> None:
        """Nothing."""

    def finish(self, executable: OfflineExec) -> None:
        """It runs no more."""
        executable.running_on = None

    def synchronize(self) -> None:
        """Nothing."""

    def memory(self) -> NoReturn:
        """There is none."""
        self._no_device("no replay can be verified")

    def exec_bytes(self, node_count: int) -> tuple[int, int] | None:
        """(device, host) bytes that an executable of this size takes on an H200, modelled."""
        return modelled_exec_bytes(node_count)

    def _no_device(self, consequence: str) -> NoReturn:
        raise DriverError(
            f"graphs of {self._identity.name} are exported, and no device is here: {consequence}",
            remedy="capture them on the device",
        )


def record_of(graph: Subgraph, reads: Reads, *, pass_through: str = "") -> GraphRecord:
    """What a driver's walk reads of a captured graph, from what its export holds.

    Two exports have equal records where walks of the two graphs have them; the bytes are not those of a walk.

    Raises:
        DriverError: a node lacks a number that its kind needs.
    """
    nodes = tuple(_record(node, reads) for node in graph.nodes)
    for node, record in zip(graph.nodes, nodes, strict=True):
        if pass_through:
            break
        if node.kind not in FOLDABLE_KINDS:
            pass_through = f"node {node.index} is of kind {node.kind} (rule D11)"
        elif any(_values(node, "device_updatable")[:2]):
            pass_through = f"node {node.index} is a device-updatable kernel (rule D11)"
        elif record.child is not None:
            pass_through = record.child.pass_through
    edges = tuple(
        EdgeRecord(source, target, data) for target, sources in enumerate(graph.dependencies()) for source, data in sources
    )
    return GraphRecord(nodes, edges, pass_through=pass_through)


def _record(node: Node, reads: Reads) -> NodeRecord:
    context = node.context or 0
    if node.kind == "kernel":
        return _kernel(node, reads)
    if node.child is not None:
        return NodeRecord(node.kind, (context,), child=record_of(node.child, reads))
    if "parameters" in node.unreadable:
        return NodeRecord(node.kind, (context,), unreadable=("parameters",))
    if node.kind == "memcpy":
        sides = [_SIDES.index(side) if side in _SIDES else 0 for side in node.memory or ()]
        extent: tuple[str, ...] = ("width_bytes", "height", "depth") if reads.memcpy_extent else ()
        return NodeRecord("memcpy", (context, *sides, *(_number(node, name) for name in extent)))
    if node.kind == "memset":
        extent = ("width_bytes", "element_bytes") if reads.memset_extent else ()
        if _number(node, "height") > 1:
            extent = ("width_bytes", "element_bytes", "height", "pitch_bytes")
        return NodeRecord("memset", (context, *(_number(node, name) for name in extent)))
    return NodeRecord(node.kind, (context,))


def _kernel(node: Node, reads: Reads) -> NodeRecord:
    cluster = node.cluster if node.cluster is not None and any(node.cluster) else node.required_cluster or _NO_CLUSTER
    clustered = any(cluster) or "cluster" in node.unreadable
    local_bytes = -1 if node.local_bytes is None else node.local_bytes
    fixed = [node.context or 0, local_bytes, *_values(node, "cooperative")]
    unreadable = [name for name in _ALWAYS_READ if name in node.unreadable]
    for name in reads.attributes:
        attribute = ATTRIBUTES[name]
        if not clustered and attribute.needs_clusters:
            continue  # a kernel without clusters has the same record whatever it says of what only clusters use
        if name not in node.unreadable:
            fixed += [attribute.number, *_values(node, name)]
        elif attribute.effect is Effect.BYTES:
            unreadable.append(name)
    if reads.geometry:
        shared_bytes = -1 if node.shared_bytes is None else node.shared_bytes
        fixed += [*(node.grid or ()), *(node.block or ()), shared_bytes]
    function = node.function
    if function is None:
        function = xxhash.xxh3_64_intdigest(node.name.encode(errors="backslashreplace"))
    return NodeRecord("kernel", tuple(fixed), function, cluster, tuple(unreadable))


def _values(node: Node, attribute: str) -> list[int]:
    """A launch attribute as whole numbers; one that is not set is zero."""
    value = node.attributes.get(attribute, 0)
    words: list[int] = []
    for number in value if isinstance(value, tuple) else (value,):
        if isinstance(number, float):
            number = int.from_bytes(struct.pack("<d", number), "little")
        words += (number >> 63, number & (2**63 - 1))  # addresses are unsigned
    return words


def _number(node: Node, name: str) -> int:
    value = node.parameters.get(name)
    if isinstance(value, bool) or not isinstance(value, int):
        raise DriverError(
            f"node {node.index} ({node.kind}): {name} is {value!r:.40}, not a whole number", remedy="export the graph again"
        )
    return value
