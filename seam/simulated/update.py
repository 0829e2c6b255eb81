"""The rules of an update: which graphs an executable takes, and what it then holds.

Nodes are paired as the driver documents it: from the sinks in order, then through the incoming edges of each node in
their order. Branches captured in swapped order therefore pair, and mirrored ones do not. Nothing is changed here: the
outcome is either a refusal or a whole new program.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from .graph import SimulatedGraph, SimulatedNode, Structure
from .params import AtenParams, HandParams, MemcpyParams, MemsetParams, OtherParams
from .profile import Carries, DriverProfile
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


def plan_update(
    held: Program, graph: SimulatedGraph, flags: int, profile: DriverProfile, *, uploaded: bool
) -> Program | SimulatedUpdateResult:
    """The program that ``held`` becomes when it takes ``graph``, or the refusal. Nothing is changed either way.

    ``uploaded``: the executable was uploaded or launched before, which decides what becomes of cluster dimensions.
    """
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
            nodes.append(_merge(old, new, flags, profile, uploaded))
            if index in held.children and isinstance(new.params, OtherParams):
                inner = plan_update(held.children[index], new.params.graph, flags, profile, uploaded=uploaded)
                if isinstance(inner, SimulatedUpdateResult):
                    raise _Refused(inner.verdict, f"child graph, node {inner.node}: {inner.detail}")
                children[index] = inner
        except _Refused as refused:
            refusals.append(SimulatedUpdateResult(refused.verdict, new_index, refused.detail))
    if refusals:
        return min(refusals, key=lambda refusal: refusal.node if refusal.node is not None else -1)
    return Program(tuple(nodes), held.structure, children, graph.cell, graph.draws)


def _merge(old: SimulatedNode, new: SimulatedNode, flags: int, profile: DriverProfile, uploaded: bool) -> SimulatedNode:
    """The node that the executable holds afterwards."""
    if old.kind != new.kind:
        raise _Refused("NODE_TYPE_CHANGED", f"{new.kind} node, not {old.kind}")
    if old.kind in ("mem_alloc", "mem_free", "conditional"):
        raise _Refused("NOT_SUPPORTED", f"a {old.kind} node cannot be updated")
    if old.context != new.context:
        verdict = "UNSUPPORTED_FUNCTION_CHANGE" if old.kind == "kernel" else "PARAMETERS_CHANGED"
        raise _Refused(verdict, f"context {new.context}, not {old.context}")
    if old.kind == "kernel":
        return _merge_kernel(old, new, flags, profile, uploaded)
    if isinstance(old.params, MemcpyParams) and isinstance(new.params, MemcpyParams):
        if old.params.direction != new.params.direction:
            raise _Refused("PARAMETERS_CHANGED", f"copy {new.params.direction}, not {old.params.direction}")
    elif isinstance(old.params, MemsetParams) and isinstance(new.params, MemsetParams):
        extent, wanted = _extent(old.params), _extent(new.params)
        if extent != wanted and (old.params.height > 1 or new.params.height > 1):
            raise _Refused("PARAMETERS_CHANGED", f"2-D memset of {wanted}, not {extent} (bytes, rows, pitch, element size)")
    return new


def _extent(params: MemsetParams) -> tuple[int, int, int, int]:
    return params.width_bytes, params.height, params.pitch_bytes, params.element_bytes


def _merge_kernel(old: SimulatedNode, new: SimulatedNode, flags: int, profile: DriverProfile, uploaded: bool) -> SimulatedNode:
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
    if old.clusters != new.clusters:
        carries = _cluster_carries(old, new, profile, uploaded)
        if carries == "refused":
            raise _Refused("ATTRIBUTES_CHANGED", f"cluster dimension {new.clusters}, not {old.clusters}")
        if carries == "stale":
            keep |= {"cluster": old.cluster, "required_cluster": old.required_cluster}
    attributes = _merge_attributes(old, new, profile)
    if attributes is not None:
        keep["attributes"] = attributes
    return replace(new, **keep) if keep else new


def _cluster_carries(old: SimulatedNode, new: SimulatedNode, profile: DriverProfile, uploaded: bool) -> Carries:
    if profile.carries_cluster != "carried":
        return profile.carries_cluster
    if uploaded and old.function_id == new.function_id and profile.carries_cluster_alone != "carried":
        return profile.carries_cluster_alone
    return profile.carries_unset_cluster if new.clusters == (0, 0, 0) else "carried"


_JUDGED = {"cooperative", "priority", "device_updatable", "draws"}  # by rules of their own, or no launch attribute

_UNSET_IS_ZERO = {"nvlink_util_centric_scheduling"}  # measured: setting it to zero is no change


def _merge_attributes(old: SimulatedNode, new: SimulatedNode, profile: DriverProfile) -> Mapping[str, Any] | None:
    """The attributes that the executable holds afterwards, or None where they are the offered ones."""
    kept = dict(new.attributes)
    for name in sorted((old.attributes.keys() | new.attributes.keys()) - _JUDGED):
        before, wanted = old.attributes.get(name), new.attributes.get(name)
        if before == wanted or (name in _UNSET_IS_ZERO and not before and not wanted):
            continue
        carries = profile.carries_attributes.get(name, "carried")
        if name == "shared_memory_carveout" and wanted is None and _same_otherwise(old, new):
            carries = profile.carries_unset_carveout if carries == "carried" else carries
        if carries == "refused":
            raise _Refused("ATTRIBUTES_CHANGED", f"{name.replace('_', ' ')} {wanted}, not {before}")
        if carries == "stale":
            kept.pop(name, None)
            if before is not None:
                kept[name] = before
    return MappingProxyType(kept) if kept != dict(new.attributes) else None


def _same_otherwise(old: SimulatedNode, new: SimulatedNode) -> bool:
    """Whether two kernels differ in launch attributes at most."""
    return (
        (old.function_id, old.grid, old.block, old.shared_bytes, old.clusters)
        == (new.function_id, new.grid, new.block, new.shared_bytes, new.clusters)
    ) and old.params.describe() == new.params.describe()


def _old_function(old: SimulatedNode, new: SimulatedNode) -> Any:
    """The old function on the new arguments: what a driver that forgets to carry the function would launch."""
    if isinstance(old.params, HandParams) and isinstance(new.params, HandParams):
        return HandParams(old.params.call, new.params.args)
    if isinstance(old.params, AtenParams) and isinstance(new.params, AtenParams):
        return replace(new.params, operator=old.params.operator, _runner=[])
    return old.params
