"""A graph of the simulated device: nodes in creation order, edges in creation order."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch

from .errors import SimulatedDeviceError
from .kernels import function_id, launch_figures
from .node_params import node_params
from .params import AtenParams, HandParams, OtherParams, Params
from .tensors import TensorParam, map_tensors, tensors_in

if TYPE_CHECKING:
    from .device import SimulatedDevice

__all__ = ["Edge", "PhiloxCell", "SimulatedGraph", "SimulatedNode", "Structure"]

Edge = tuple[int, int, tuple[int, int, int]]
"""(source node, target node, (from port, to port, type))."""
Dim3 = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class SimulatedNode:
    """One node, as it was captured or added. ``function``, launch figures and attributes belong to kernels only.

    ``attributes`` of a kernel hold at least "cooperative" and "priority".
    """

    kind: str
    params: Params
    context: int
    function: str = ""
    function_id: int = 0
    grid: Dim3 = (0, 0, 0)
    block: Dim3 = (0, 0, 0)
    shared_bytes: int = 0
    cluster: Dim3 = (0, 0, 0)
    attributes: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    required_cluster: Dim3 = (0, 0, 0)
    """The cluster dimension that the function was compiled for. A launch has it though the node tells none."""

    local_bytes: int = 0
    """Local memory that a thread of the function needs."""

    @property
    def clusters(self) -> Dim3:
        """The cluster dimension of a launch; zeros: none."""
        return self.cluster if any(self.cluster) else self.required_cluster

    @property
    def draws(self) -> bool:
        """Whether a launch of this node draws random numbers."""
        if isinstance(self.params, OtherParams) and self.params.graph is not None:
            return bool(self.params.graph.draws)
        return bool(self.attributes.get("draws", False))

    def describe(self) -> dict[str, Any]:
        """JSON-able: everything there is to know about the node."""
        told: dict[str, Any] = {"kind": self.kind, "context": self.context, "params": self.params.describe()}
        if self.kind == "kernel":
            told |= {
                "function": self.function,
                "function_id": self.function_id,
                "grid": list(self.grid),
                "block": list(self.block),
                "shared_bytes": self.shared_bytes,
                "cluster": list(self.cluster),
                "required_cluster": list(self.required_cluster),
                "local_bytes": self.local_bytes,
                "attributes": {
                    name: list(value) if isinstance(value, tuple) else value for name, value in self.attributes.items()
                },
            }
        return told


class PhiloxCell:
    """Where the captured kernels of a graph read the state of the random generator from.

    Only torch's own replay sets it; before the first one it holds numbers of no meaning (a fixed seed).
    """

    def __init__(self) -> None:
        self._state: torch.Tensor | None = None

    @property
    def state(self) -> torch.Tensor:
        """A state for ``torch.set_rng_state``."""
        if self._state is None:
            self._state = torch.Generator().manual_seed(0).get_state()
        return self._state

    @state.setter
    def state(self, state: torch.Tensor) -> None:
        self._state = state


@dataclass(frozen=True, slots=True)
class Structure:
    """What pairing and running need: incoming edges of every node in edge order, the sinks, and an order to run in."""

    incoming: tuple[tuple[tuple[int, Dim3], ...], ...]
    sinks: tuple[int, ...]
    order: tuple[int, ...]


class SimulatedGraph:
    """A graph under construction or captured. Made by ``SimulatedDevice.new_graph`` or by a capture."""

    def __init__(self, device: SimulatedDevice, *, label: str = "") -> None:
        self.device = device
        self.label = label
        self.cell = PhiloxCell()
        self.live_execs = 0
        self._nodes: list[SimulatedNode] = []
        self._edges: list[Edge] = []
        self._joined: set[tuple[int, int]] = set()
        self._structure: Structure | None = None
        self._destroyed = False

    def __repr__(self) -> str:
        return f"<SimulatedGraph {self.label!r}: {len(self._nodes)} nodes, {len(self._edges)} edges>"

    @property
    def nodes(self) -> tuple[SimulatedNode, ...]:
        """Nodes in creation order; a captured graph's are in an order in which they may run."""
        return tuple(self._alive()._nodes)

    @property
    def edges(self) -> tuple[Edge, ...]:
        """Edges in creation order, never sorted: the order decides how an update pairs nodes."""
        return tuple(self._alive()._edges)

    @property
    def draws(self) -> bool:
        """Whether a replay draws random numbers."""
        return any(node.draws for node in self._alive()._nodes)

    @property
    def destroyed(self) -> bool:
        """Whether the graph was destroyed; nothing else can be read from it then."""
        return self._destroyed

    @property
    def has_memory_nodes(self) -> bool:
        """Whether any node, here or in a child graph, allocates or frees memory: one executable at most, then."""
        return any(
            node.kind in ("mem_alloc", "mem_free")
            or (isinstance(node.params, OtherParams) and node.params.graph and node.params.graph.has_memory_nodes)
            for node in self._alive()._nodes
        )

    def describe(self) -> dict[str, Any]:
        """JSON-able: nodes with all parameters, edges, and whether random numbers are drawn."""
        return {
            "label": self.label,
            "nodes": [node.describe() for node in self.nodes],
            "edges": [{"source": source, "target": target, "data": list(data)} for source, target, data in self.edges],
            "draws": self.draws,
        }

    def set_cluster(self, node: int, cluster: Dim3) -> None:
        """Set the cluster dimension of a kernel node. Executables made before stay as they are.

        Raises:
            SimulatedDeviceError: the node is no kernel, or the graph was destroyed.
        """
        held = self._alive()._nodes[node]
        if held.kind != "kernel":
            raise SimulatedDeviceError(
                f"node {node} is a {held.kind} node", rule="D3", remedy="set the cluster dimension of kernel nodes only"
            )
        self._nodes[node] = replace(held, cluster=cluster)

    def add_edge(self, source: int, target: int, data: Dim3 = (0, 0, 0)) -> None:
        """Make node ``target`` wait for node ``source``; ``data`` is (from port, to port, type)."""
        count = len(self._alive()._nodes)
        if not (0 <= source < count and 0 <= target < count) or source == target:
            raise ValueError(f"no edge from {source} to {target} in a graph of {count} nodes")
        if (source, target) in self._joined:
            raise ValueError(f"node {target} already waits for node {source}")
        self._joined.add((source, target))
        self._edges.append((source, target, data))
        self._structure = None

    def add_kernel(
        self,
        name: str,
        call: Callable[..., None],
        args: tuple[Any, ...] = (),
        *,
        after: tuple[int, ...] = (),
        grid: Dim3 = (1, 1, 1),
        block: Dim3 = (1, 1, 1),
        shared_bytes: int = 0,
        cluster: Dim3 = (0, 0, 0),
        required_cluster: Dim3 = (0, 0, 0),
        local_bytes: int = 0,
        attributes: Mapping[str, Any] | None = None,
        context: int | None = None,
    ) -> int:
        """Add a kernel written in Python, and return its index.

        On launch ``call(launch_info, *args)`` runs, with tensors over the addresses that ``args`` had here. The name
        stands for the function: give two different functions two names. ``required_cluster`` is the cluster dimension that
        the function was compiled for; nodes do not tell it. ``local_bytes`` is the local memory that one of its threads
        needs: the first launch does nothing where an update brought it in and there is no room for it.
        """
        memory = self.device.memory
        params = HandParams(call, tuple(map_tensors(args, torch.Tensor, lambda tensor: TensorParam(tensor, memory))))
        figures = {
            "function": name,
            "grid": grid,
            "block": block,
            "shared_bytes": shared_bytes,
            "cluster": cluster,
            "required_cluster": required_cluster,
            "local_bytes": local_bytes,
        }
        return self._add("kernel", params, after, figures, attributes, context)

    def add_call(
        self,
        operator: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        outputs: tuple[torch.Tensor | None, ...] = (),
        *,
        after: tuple[int, ...] = (),
        seeded: bool = False,
        draws: bool = False,
        priority: int = 0,
        written: tuple[torch.Tensor, ...] = (),
    ) -> int:
        """Add a call of a torch operator whose results go to ``outputs``; ``written`` are arguments that it writes."""
        memory = self.device.memory

        def keep(value: Any) -> Any:
            return map_tensors(value, torch.Tensor, lambda tensor: TensorParam(tensor, memory))

        params = AtenParams(operator, keep(args), keep(kwargs), keep(outputs), seeded, torch.is_grad_enabled())
        places = [*tensors_in(params.outputs, TensorParam), *keep(written)]
        attributes: dict[str, Any] = {"priority": priority}
        if draws:
            attributes["draws"] = True
        return self._add("kernel", params, after, launch_figures(operator, places), attributes, None)

    def add_node(
        self,
        kind: str,
        *,
        after: tuple[int, ...] = (),
        context: int | None = None,
        target: torch.Tensor | None = None,
        source: torch.Tensor | None = None,
        size_bytes: int | None = None,
        direction: str = "d2d",
        value: int = 0,
        height: int = 1,
        pitch_bytes: int = 0,
        element_bytes: int = 1,
        callback: Callable[[], None] | None = None,
        graph: SimulatedGraph | None = None,
        condition: Callable[[], bool] | None = None,
        event: Any = None,
    ) -> int:
        """Add a node that is not a kernel, after the nodes in ``after``, and return its index.

        What each kind takes, and what an update does with it:

        - "memcpy": ``target``, ``source``, ``size_bytes`` (all of the target if None), ``direction``. Addresses and
          size are carried; another direction is PARAMETERS_CHANGED.
        - "memset": ``target``, ``value``, ``size_bytes``, ``element_bytes`` (1, 2 or 4); 2-D with ``height`` rows of
          ``size_bytes``, ``pitch_bytes`` apart. 1-D: everything is carried; 2-D: address and value, the extent is
          PARAMETERS_CHANGED.
        - "host": ``callback``. Carried.
        - "child_graph": ``graph``. Follows the rules of its own nodes.
        - "empty", "event_record", "event_wait" (``event``). Carried.
        - "mem_alloc" (``size_bytes``), "mem_free" (``target``): NOT_SUPPORTED. The graph holds the memory.
        - "conditional": ``graph`` runs when ``condition()`` is true. NOT_SUPPORTED.
        """
        params = node_params(
            self.device,
            kind,
            target=target,
            source=source,
            size_bytes=size_bytes,
            direction=direction,
            value=value,
            height=height,
            pitch_bytes=pitch_bytes,
            element_bytes=element_bytes,
            callback=callback,
            graph=graph,
            condition=condition,
            event=event,
        )
        return self._add(kind, params, after, {}, None, context)

    def _add(
        self,
        kind: str,
        params: Params,
        after: tuple[int, ...],
        figures: dict[str, Any],
        attributes: Mapping[str, Any] | None,
        context: int | None,
    ) -> int:
        nodes = self._alive()._nodes
        if kind == "kernel":
            figures["function_id"] = function_id(figures["function"])
            figures["attributes"] = MappingProxyType({"cooperative": 0, "priority": 0} | dict(attributes or {}))
        nodes.append(SimulatedNode(kind, params, self.device.context if context is None else context, **figures))
        self._structure = None
        for source in after:
            self.add_edge(source, len(nodes) - 1)
        return len(nodes) - 1

    def structure(self) -> Structure:
        """Edges by target, sinks and a running order (creation order wherever the edges allow it).

        Raises:
            SimulatedDeviceError: the edges form a cycle.
        """
        if self._structure is None:
            self._structure = _structure(len(self.nodes), self._edges, self)
        return self._structure

    def destroy(self) -> None:
        """Free the nodes and what they keep alive. Executables made from this graph stay as they are.

        Raises:
            SimulatedDeviceError: it was destroyed before.
        """
        self._alive()
        self._destroyed = True
        self._nodes, self._edges, self._structure = [], [], None
        self._joined.clear()

    def _alive(self) -> SimulatedGraph:
        if self._destroyed:
            raise SimulatedDeviceError(
                f"graph {self.label!r} was destroyed", rule="S14", remedy="use and destroy a graph before that, once"
            )
        return self


def _structure(count: int, edges: list[Edge], graph: SimulatedGraph) -> Structure:
    incoming: list[list[tuple[int, Dim3]]] = [[] for _ in range(count)]
    outgoing: list[list[int]] = [[] for _ in range(count)]
    for source, target, data in edges:
        incoming[target].append((source, data))
        outgoing[source].append(target)
    missing = [len(sources) for sources in incoming]
    ready = [node for node in range(count) if not missing[node]]
    order: list[int] = []
    while ready:
        node = heapq.heappop(ready)
        order.append(node)
        for target in outgoing[node]:
            missing[target] -= 1
            if not missing[target]:
                heapq.heappush(ready, target)
    if len(order) != count:
        raise SimulatedDeviceError(f"{graph!r} has a cycle", rule="D3", remedy="remove the edge that closes it")
    sinks = tuple(node for node in range(count) if not outgoing[node])
    return Structure(tuple(tuple(sources) for sources in incoming), sinks, tuple(order))
