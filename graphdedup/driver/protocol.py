"""What the fold asks of a driver: read a captured graph, and instantiate, update, launch and destroy executables.

Two drivers implement it: ``driver.cuda`` on the CUDA driver API and ``driver.simulated`` on the CPU. Both hand graphs
out as a :class:`GraphRecord`: plain tuples, cheap enough to read at every capture. The full
:class:`~graphdedup.topology.Topology` is built on request only.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from graphdedup.driver.memory import GraphMemory
    from graphdedup.topology import Topology

__all__ = [
    "NOTHING_MORE",
    "DeviceIdentity",
    "Draws",
    "EdgeRecord",
    "GraphDriver",
    "GraphRecord",
    "NodeRecord",
    "Prologue",
    "Reads",
    "UpdateResult",
    "Verdict",
]


class Verdict(enum.StrEnum):
    """Result of an update, by the names of ``CUgraphExecUpdateResult``."""

    SUCCESS = "SUCCESS"
    ERROR = "ERROR"
    TOPOLOGY_CHANGED = "TOPOLOGY_CHANGED"
    NODE_TYPE_CHANGED = "NODE_TYPE_CHANGED"
    FUNCTION_CHANGED = "FUNCTION_CHANGED"
    PARAMETERS_CHANGED = "PARAMETERS_CHANGED"
    NOT_SUPPORTED = "NOT_SUPPORTED"
    UNSUPPORTED_FUNCTION_CHANGE = "UNSUPPORTED_FUNCTION_CHANGE"
    ATTRIBUTES_CHANGED = "ATTRIBUTES_CHANGED"


class Draws(enum.StrEnum):
    """Whether a captured graph draws random numbers (rule D12)."""

    NO = "no"
    YES = "yes"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class UpdateResult:
    """What an update of an executable answered. ``node`` is an index into the nodes of the graph offered, or None."""

    verdict: Verdict
    node: int | None = None
    detail: str = ""

    @property
    def accepted(self) -> bool:
        return self.verdict is Verdict.SUCCESS


@dataclass(frozen=True, slots=True)
class Reads:
    """What a walk reads of each node besides what every record has, because an update may not carry it here (rule D3)."""

    attributes: tuple[str, ...] = ()
    """Launch attributes, by the names of :data:`graphdedup.driver.attributes.ATTRIBUTES`."""
    geometry: bool = False
    """Grid, block and dynamic shared memory of kernels."""
    memset_extent: bool = False
    """Width and element size of 1-D memsets; those of 2-D ones are always read."""
    memcpy_extent: bool = False


NOTHING_MORE = Reads()

Prologue = Callable[[], None]
"""What goes before the launch of a graph that draws random numbers; see :meth:`GraphDriver.detach`."""


class EdgeRecord(NamedTuple):
    """One dependency, as node indices in the driver's node order; ``data`` is (from port, to port, type)."""

    source: int
    target: int
    data: tuple[int, int, int] = (0, 0, 0)


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """The part of one node that may matter to an update.

    ``fixed`` holds what an update does not change here: cooperative launch, the local memory that a function was compiled
    for, copy kind, memset dimensions, and what :class:`Reads` asked for. ``function`` is a number that is equal for equal
    kernel functions, ``cluster`` the cluster dimension (zeros: none). ``unreadable`` names what was asked for and the driver
    would not tell (rule D3). ``child`` is set for a child graph.
    """

    kind: str
    fixed: tuple[int, ...] = ()
    function: int = 0
    cluster: tuple[int, int, int] = (0, 0, 0)
    unreadable: tuple[str, ...] = ()
    child: GraphRecord | None = None


@dataclass(frozen=True, slots=True)
class GraphRecord:
    """A captured graph as the fold reads it. Nodes are in the driver's own order, never sorted (rule D3).

    Edges stand by the node that waits, and there in the order of its dependencies: an update pairs nodes by that order,
    and a list of all edges of the graph does not show it.
    """

    nodes: tuple[NodeRecord, ...]
    edges: tuple[EdgeRecord, ...]
    draws: Draws = Draws.NO
    pass_through: str = ""
    """Why this graph must keep the executable of its own backend (rule D11); empty when it may be folded."""
    host_copies: bool = False
    """Whether a copy in it reads or writes host memory, or memory of which the driver does not tell."""
    names: Mapping[int, str] = field(default_factory=dict, compare=False)
    """Names of kernel functions by their number, where the driver tells; for reports, never for the key."""


@dataclass(frozen=True, slots=True)
class DeviceIdentity:
    """The device that a driver speaks for. Graphs of two identities never share an executable (rule D3)."""

    kind: str
    """``"cuda"``, ``"simulated"``, or ``"offline"`` for exported graphs."""
    name: str
    ordinal: int
    context: int
    compute_capability: tuple[int, int]
    driver_version: str
    driver_branch: int
    """Major number of the driver branch, such as 580; 0 when it cannot be read."""
    extra: dict[str, str] = field(default_factory=dict, compare=False)


class GraphDriver(Protocol):
    """Executables of one device. ``raw`` is what the wrapped backend's handle stands for: the captured graph.

    Every call raises :class:`~graphdedup.errors.DriverError` when the driver fails; a refused update is no failure.
    """

    @property
    def identity(self) -> DeviceIdentity: ...

    @property
    def instantiate_flags(self) -> int:
        """The flags with which torch itself instantiates here; part of every key."""

    def raw(self, handle: Any) -> Any:
        """The captured graph behind a handle of the wrapped backend."""

    def walk(self, raw: Any, reads: Reads = NOTHING_MORE) -> GraphRecord:
        """Read what the key is made of: what every record has, and what ``reads`` asks for."""

    def topology(self, raw: Any, *, label: str = "") -> Topology: ...

    def instantiate(self, raw: Any) -> Any:
        """Make an executable. It is uploaded, so that its device memory is in place when this returns."""

    def update(self, executable: Any, raw: Any) -> UpdateResult:
        """Re-point ``executable`` at ``raw``. A refusal leaves it as it was and leaves no error behind (D5, D13)."""

    def set_unit_clusters(self, raw: Any, nodes: Sequence[int]) -> None:
        """Say at these kernel nodes of a captured graph what holds without being said: clusters of one block.

        An update does not carry "no cluster dimension": the executable keeps the one it had. It does carry (1, 1, 1).
        """

    def upload(self, executable: Any) -> None:
        """Upload on the current stream, ahead of a launch."""

    def launch(self, executable: Any, prologue: Prologue | None = None) -> None:
        """Launch on the current stream. After an update it does what the driver needs for the update to be whole.

        ``prologue`` is the one of the graph that the executable reflects, see :meth:`detach`; it runs first. Without it
        random numbers are those of the launch before.
        """

    def destroy(self, executable: Any) -> None: ...

    # Random numbers

    def detach(self, handle: Any) -> tuple[Any, Prologue]:
        """Move the captured graph out of the wrapped backend's handle (rule D12), before any executable is made of it.

        Afterwards a replay by the wrapped backend launches nothing and does the rest of what it always does: it hands seed
        and offset to the kernels that draw, and advances the generators. That is the prologue.

        Returns:
            The graph, now the caller's to :meth:`discard`, and the prologue.

        Raises:
            DriverError: it cannot be moved, and is as it was.
        """

    def advance(self, prologue: Prologue) -> Prologue | None:
        """Run a prologue now, for several launches on the same numbers; what is left of it goes to the first of them."""

    def discard(self, raw: Any) -> None:
        """Destroy a graph that :meth:`detach` returned."""

    # Streams

    def stream(self) -> Any:
        """The current stream, as something that is equal for equal streams."""

    def runs_elsewhere(self, executable: Any, stream: Any) -> bool:
        """Whether the last launch was on another stream than this one and has not ended; ``stream`` None: on any."""

    def order_after(self, executable: Any) -> None:
        """Have the current stream wait for the end of the executable's last launch."""

    def finish(self, executable: Any) -> None:
        """Wait on the host for the end of the executable's last launch."""

    def synchronize(self) -> None:
        """Wait on the host for everything on the current stream."""

    def memory(self) -> GraphMemory:
        """The bytes that graphs reach, for replays that are verified."""

    def exec_bytes(self, node_count: int) -> tuple[int, int] | None:
        """Modelled (device, host) bytes of one executable, or None on a device where they are measured."""
