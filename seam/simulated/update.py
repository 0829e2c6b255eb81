"""The rules of an update: which graphs an executable takes, and what it then holds.

Nodes are paired as the driver documents it: from the sinks in order, then through the incoming edges of each node in
their order. Branches captured in swapped order therefore pair, and mirrored ones do not. Nothing is changed here: the
outcome is either a refusal or a whole new program.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from .graph import SimulatedGraph, SimulatedNode, Structure
from .params import AtenParams, HandParams, MemcpyParams, MemsetParams, OtherParams
from .profile import DriverProfile
from .program import Program

__all__ = ["USE_NODE_PRIORITY", "SimulatedUpdateResult", "pair_nodes", "plan_update"]

USE_NODE_PRIORITY = 8
"""The instantiate flag under which a kernel's priority counts."""


@dataclass(frozen=True, slots=True)
class SimulatedUpdateResult:
    """What an update answered. ``verdict`` is a name of ``CUgraphExecUpdateResult``, "SUCCESS" when it was taken.

    ``node`` is the index, in the graph offered, of the node that was refused; None where no node is to blame.
    """

    verdict: str
    node: int | None = None
    detail: str = ""

    @property
    def accepted(self) -> bool:
        """Whether the executable now holds the graph offered."""
        return self.verdict == "SUCCESS"


class _Refused(Exception):
    def __init__(self, verdict: str, detail: str, node: int | None = None) -> None:
        super().__init__(detail)
        self.verdict, self.detail, self.node = verdict, detail, node


def pair_nodes(held: Structure, offered: Structure) -> list[int] | SimulatedUpdateResult:
    """For every node held the one offered in its place, or the refusal.

    Two structures pair when walking both from their sinks through incoming edges meets the same shape.
    """
    if len(held.order) != len(offered.order):
        return SimulatedUpdateResult("TOPOLOGY_CHANGED", None, f"{len(held.order)} nodes against {len(offered.order)}")
    if len(held.sinks) != len(offered.sinks):
        return SimulatedUpdateResult("TOPOLOGY_CHANGED", None, f"{len(held.sinks)} sink nodes against {len(offered.sinks)}")
    pairs = [-1] * len(held.order)
    taken = [-1] * len(held.order)
    todo = list(zip(held.sinks, offered.sinks, strict=True))
    todo.reverse()
    while todo:
        old, new = todo.pop()
        if pairs[old] == new:
            continue
        if pairs[old] != -1 or taken[new] != -1:
            return SimulatedUpdateResult("TOPOLOGY_CHANGED", new, f"node {new} stands for two nodes of the executable")
        pairs[old], taken[new] = new, old
        before, now = held.incoming[old], offered.incoming[new]
        if len(before) != len(now):
            return SimulatedUpdateResult(
                "TOPOLOGY_CHANGED", new, f"node {new} has {len(now)} incoming edges, not {len(before)}"
            )
        for (old_source, old_data), (new_source, new_data) in zip(reversed(before), reversed(now), strict=True):
            if old_data != new_data:
                return SimulatedUpdateResult(
                    "TOPOLOGY_CHANGED", new, f"edge {new_source} -> {new} has data {new_data}, not {old_data}"
                )
            todo.append((old_source, new_source))
    return pairs


def plan_update(held: Program, graph: SimulatedGraph, flags: int, profile: DriverProfile) -> Program | SimulatedUpdateResult:
    """The program that ``held`` becomes when it takes ``graph``, or the refusal. Nothing is changed either way."""
    offered = graph.nodes
    pairs = pair_nodes(held.structure, graph.structure())
    if isinstance(pairs, SimulatedUpdateResult):
        return pairs
    nodes: list[SimulatedNode] = []
    children: dict[int, Program] = {}
    refusals: list[SimulatedUpdateResult] = []
    for index, (old, new_index) in enumerate(zip(held.nodes, pairs, strict=True)):
        new = offered[new_index]
        try:
            nodes.append(_merge(old, new, flags, profile))
            if index in held.children and isinstance(new.params, OtherParams):
                inner = plan_update(held.children[index], new.params.graph, flags, profile)
                if isinstance(inner, SimulatedUpdateResult):
                    raise _Refused(inner.verdict, f"child graph, node {inner.node}: {inner.detail}")
                children[index] = inner
        except _Refused as refused:
            refusals.append(SimulatedUpdateResult(refused.verdict, new_index, refused.detail))
    if refusals:
        return min(refusals, key=lambda refusal: refusal.node if refusal.node is not None else -1)
    return Program(tuple(nodes), held.structure, children, graph.cell, graph.draws)


def _merge(old: SimulatedNode, new: SimulatedNode, flags: int, profile: DriverProfile) -> SimulatedNode:
    """The node that the executable holds afterwards."""
    if old.kind != new.kind:
        raise _Refused("NODE_TYPE_CHANGED", f"{new.kind} node, not {old.kind}")
    if old.kind in ("mem_alloc", "mem_free", "conditional"):
        raise _Refused("NOT_SUPPORTED", f"a {old.kind} node cannot be updated")
    if old.context != new.context:
        verdict = "UNSUPPORTED_FUNCTION_CHANGE" if old.kind == "kernel" else "PARAMETERS_CHANGED"
        raise _Refused(verdict, f"context {new.context}, not {old.context}")
    if old.kind == "kernel":
        return _merge_kernel(old, new, flags, profile)
    if isinstance(old.params, MemcpyParams) and isinstance(new.params, MemcpyParams):
        if old.params.direction != new.params.direction:
            raise _Refused("PARAMETERS_CHANGED", f"copy {new.params.direction}, not {old.params.direction}")
    elif isinstance(old.params, MemsetParams) and isinstance(new.params, MemsetParams):
        extent, wanted = _extent(old.params), _extent(new.params)
        if extent != wanted and (old.params.height > 1 or new.params.height > 1):
            raise _Refused("PARAMETERS_CHANGED", f"2-D memset of {wanted}, not {extent} (bytes, rows, pitch)")
    return new


def _extent(params: MemsetParams) -> tuple[int, int, int]:
    return params.width_bytes, params.height, params.pitch_bytes


def _merge_kernel(old: SimulatedNode, new: SimulatedNode, flags: int, profile: DriverProfile) -> SimulatedNode:
    if old.attributes.get("device_updatable") or new.attributes.get("device_updatable"):
        raise _Refused("NOT_SUPPORTED", "a device-updatable kernel cannot be updated from the host")
    if bool(old.attributes["cooperative"]) != bool(new.attributes["cooperative"]):
        raise _Refused("ATTRIBUTES_CHANGED", "cooperative launch cannot be switched on or off")
    if flags & USE_NODE_PRIORITY and old.attributes["priority"] != new.attributes["priority"]:
        raise _Refused("ATTRIBUTES_CHANGED", f"priority {new.attributes['priority']}, not {old.attributes['priority']}")
    keep: dict[str, Any] = {}
    if old.function_id != new.function_id:
        if profile.carries_function == "refused":
            raise _Refused("FUNCTION_CHANGED", f"{new.function}, not {old.function}")
        if profile.carries_function == "stale":
            keep |= {"function": old.function, "function_id": old.function_id, "params": _old_function(old, new)}
    if old.cluster != new.cluster:
        unset = new.cluster == (0, 0, 0) and profile.carries_cluster == "carried"
        carries = profile.carries_unset_cluster if unset else profile.carries_cluster
        if carries == "refused":
            raise _Refused("ATTRIBUTES_CHANGED", f"cluster dimension {new.cluster}, not {old.cluster}")
        if carries == "stale":
            keep["cluster"] = old.cluster
    preferred, wanted = old.attributes.get("preferred_cluster"), new.attributes.get("preferred_cluster")
    if preferred != wanted:
        if profile.carries_preferred_cluster == "refused":
            raise _Refused("ATTRIBUTES_CHANGED", f"preferred cluster dimension {wanted}, not {preferred}")
        if profile.carries_preferred_cluster == "stale":
            keep["attributes"] = MappingProxyType(dict(new.attributes) | {"preferred_cluster": preferred})
    return replace(new, **keep) if keep else new


def _old_function(old: SimulatedNode, new: SimulatedNode) -> Any:
    """The old function on the new arguments: what a driver that forgets to carry the function would launch."""
    if isinstance(old.params, HandParams) and isinstance(new.params, HandParams):
        return HandParams(old.params.call, new.params.args)
    if isinstance(old.params, AtenParams) and isinstance(new.params, AtenParams):
        return replace(new.params, operator=old.params.operator, _runner=[])
    return old.params
