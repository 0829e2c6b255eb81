"""Captured graphs with what the fold knows of them, and why a graph shares with nobody: in words, on request only."""

from __future__ import annotations

from collections.abc import Iterable

from graphdedup.driver.protocol import GraphDriver
from graphdedup.graphs_file import Answer, ExportedGraph, GraphsFile
from graphdedup.group import Group, Member
from graphdedup.registry import Registry
from graphdedup.topology import Topology
from seam.collector import collector_paused

__all__ = ["answer", "captured_topology", "graphs_file", "reasons_alone"]

_NEAR_GROUPS = 4
_MOST_COMPARED = 20
"""Graphs on their own that a report compares with their nearest group; reading a large graph takes tens of milliseconds."""


def captured_topology(driver: GraphDriver, member: Member) -> Topology:
    """A member's graph as it was captured: a cluster dimension that the fold had it say is left out again."""
    told = driver.topology(member.raw, label=str(member.segment))
    if not member.completed:
        return told
    nodes = (
        node.model_copy(update={"cluster": (0, 0, 0)}) if member.completed >> node.index & 1 else node for node in told.nodes
    )
    return told.model_copy(update={"nodes": tuple(nodes)})


def graphs_file(registry: Registry, members: Iterable[Member] | None = None) -> GraphsFile:
    """Members, all live ones if None, as a file's content. ``index`` is the order of capture, from 1."""
    with collector_paused():  # a million small objects, none of them garbage
        return _graphs_file(registry, list(registry.members.values()) if members is None else list(members))


def _graphs_file(registry: Registry, chosen: list[Member]) -> GraphsFile:
    driver = registry.driver
    groups = {group: number for number, group in enumerate(registry.groups())}
    return GraphsFile(
        device=driver.identity.name,
        driver_version=driver.identity.driver_version,
        tier=registry.policy.tier.value,
        placement=registry.policy.placement.value,
        capabilities=registry.capabilities,
        graphs=tuple(
            ExportedGraph(
                index=member.id,
                label=str(member.segment),
                position=member.segment.position,
                session=member.session,
                group=None if member.group is None else groups.get(member.group),
                reason=member.reason,
                refusals=tuple(member.refusals),
                topology=captured_topology(driver, member),
            )
            for member in chosen
        ),
    )


def answer(registry: Registry, member: Member, other: Member | None = None) -> Answer:
    """Why a member folds with another one or does not; without another one, with the group that is nearest to it."""
    others = [other] if other is not None else _near(registry, member)
    told = graphs_file(registry, dict.fromkeys((member, *others)))
    return told.answer(str(member.id), None if other is None else str(other.id))


def reasons_alone(registry: Registry) -> dict[int, str]:
    """Why, by id of the member, for each live graph that shares its executables with nobody."""
    members = list(registry.members.values())
    if len(members) < 2:
        return {}
    reasons, compared = {}, 0
    for member in members:
        group = member.group
        if group is not None and len(group.members) > 1:
            continue
        why = member.reason or "; ".join(member.refusals)
        if not why and compared < _MOST_COMPARED:
            compared += 1
            why = "; ".join(line.strip() for line in answer(registry, member).text.splitlines())
        reasons[member.id] = why or "not compared: too many graphs are alone"
    return reasons


def _near(registry: Registry, member: Member) -> list[Member]:
    """One member of each group that is nearest in its number of nodes."""
    groups: list[Group] = [group for group in registry.groups() if group is not member.group]
    first = [next(iter(group.members.values())) for group in groups if group.members]
    return sorted(first, key=lambda one: abs(one.node_count - member.node_count))[:_NEAR_GROUPS]
