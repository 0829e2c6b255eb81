"""How exported graphs would fold by another policy: predicted by the fold itself, on a machine without a GPU.

The graphs go through a :class:`~graphdedup.registry.Registry` over :class:`~graphdedup.driver.offline.OfflineDriver`, in their
order of capture. What a file cannot tell is how the driver would answer an update that nobody has tried: it is taken to accept
what the key allows, but for graphs that it refused when they were captured.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict

from graphdedup.driver.offline import OfflineDriver, OfflineGraph, Refuses
from graphdedup.driver.protocol import Verdict
from graphdedup.errors import GraphDedupError, ReportError
from graphdedup.explain import Held, explain, nearest
from graphdedup.footprint import modelled_exec_bytes
from graphdedup.graphs_file import ExportedGraph, GraphsFile
from graphdedup.group import Group, Member
from graphdedup.placement import Placement
from graphdedup.policy import Concurrent, FoldPolicy
from graphdedup.registry import Registry
from graphdedup.report.model import Figure, Source
from graphdedup.signature import Tier, forbids_sharing, reads, record_bytes
from seam.backend import SegmentInfo
from seam.collector import collector_paused

__all__ = ["MAX_EXECS_PER_GROUP", "Prediction", "SplitRow", "WhatIf", "what_if"]

MAX_EXECS_PER_GROUP = 1024
_HOW = "execs x the bytes per node measured on an H200"
_NEAR_GROUPS = 4
_MOST_COMPARED = 256
"""Groups that are compared with the one nearest to them; a comparison reads the nodes of five graphs."""
_NOT_COMPARED = "too many groups to compare"


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class SplitRow(_Model):
    """What keeps graphs apart: a field that differs, or another reason, with how many groups it founded and the first of them.

    Of graphs that are passed through each counts as a group.
    """

    field: str
    groups: int
    example: str


class Prediction(_Model):
    """What one policy would make of the graphs.

    ``execs`` are what :attr:`graphdedup.Stats.execs` would count: those of the groups, and one for each graph that is passed
    through. ``groups`` are sets of graphs that share executables, ``largest_group`` the graphs of the largest one.
    """

    tier: Tier
    placement: Placement
    execs_per_group: int
    max_execs: int | None = None
    captured: int
    groups: int
    largest_group: int
    execs: int
    passed_through: int
    refused: int
    """Updates that the driver refused at capture, and is taken to refuse again."""
    exec_device: Figure
    exec_host: Figure
    splits: tuple[SplitRow, ...] = ()


class WhatIf(_Model):
    """Predictions for one file of captured graphs, and what each graph with an executable of its own would cost."""

    schema_version: Literal[1] = 1
    kind: Literal["graphdedup.whatif"] = "graphdedup.whatif"
    device: str
    driver_version: str
    recorded_tier: str
    recorded_placement: str
    recorded_groups: int
    """Groups in the file, of graphs that were alive when it was written."""
    captured: int
    nodes: int
    plain_device: Figure
    plain_host: Figure
    predictions: tuple[Prediction, ...]

    def to_json(self, *, indent: int | None = 2) -> str:
        """All of it as JSON."""
        return self.model_dump_json(indent=indent)

    def to_text(self, color: bool = False) -> str:
        """A table with a column for each prediction, and below it what keeps groups apart."""
        from graphdedup.whatif_text import what_if_text  # the renderer reads this module

        return what_if_text(self, color=color)


def what_if(
    file: GraphsFile,
    *,
    tiers: Sequence[Tier | str] = tuple(Tier),
    placement: Placement | str = Placement.GROUP,
    execs_per_group: int = 1,
    max_execs: int | None = None,
) -> WhatIf:
    """Predict how the graphs of a file fold: groups, executables and modelled bytes, for each tier.

    Args:
        file: captured graphs, with what an update carries on their device.
        tiers: one prediction for each.
        placement: which of the graphs that could share an executable do.
        execs_per_group: on how many streams graphs of one group run at once; each needs an executable, and a group has no more
            of them than graphs.
        max_execs: the bound of :class:`graphdedup.FoldPolicy`.

    Raises:
        SettingsError: a tier, a placement or a bound is none.
        GraphDedupError: ``execs_per_group`` is out of range.
        ReportError: the file holds no graphs, graphs of several devices, or not what the placement needs.
    """
    policies = [FoldPolicy.parse(tier=tier, placement=placement, max_execs=max_execs) for tier in tiers]
    if not 1 <= execs_per_group <= MAX_EXECS_PER_GROUP:
        raise GraphDedupError(f"execs_per_group={execs_per_group} is out of range.", remedy=f"give 1 to {MAX_EXECS_PER_GROUP}.")
    _check(file, Placement(placement))
    counts = [len(graph.topology.nodes) for graph in file.graphs]
    with collector_paused():  # many small objects, none of them garbage
        return WhatIf(
            device=file.device,
            driver_version=file.driver_version,
            recorded_tier=file.tier,
            recorded_placement=file.placement,
            recorded_groups=len({graph.group for graph in file.graphs if graph.group is not None}),
            captured=len(file.graphs),
            nodes=sum(counts),
            plain_device=_figure(counts, 0, "one exec for each graph: "),
            plain_host=_figure(counts, 1, "one exec for each graph: "),
            predictions=tuple(_Fold(file, policy, execs_per_group).prediction() for policy in policies),
        )


def _check(file: GraphsFile, placement: Placement) -> None:
    if not file.graphs:
        raise ReportError("the file holds no graphs.", remedy="export while the captured graphs are alive.")
    flags = file.graphs[0].topology.instantiate_flags
    for graph in file.graphs:
        held = graph.topology
        if (held.device, held.driver_version, held.instantiate_flags) != (file.device, file.driver_version, flags):
            raise ReportError(
                f"{graph} is of {held.device}, driver {held.driver_version}, flags {held.instantiate_flags}; the file is of "
                f"{file.device}, driver {file.driver_version}, flags {flags}.",
                remedy="give the graphs of one device, as one backend exports them.",
            )
        if placement is Placement.POSITION and graph.position is None:
            raise ReportError(
                f"{graph} does not say its position, by which placement=position places it.",
                remedy="export the graphs again with this release.",
            )


def _figure(node_counts: Sequence[int], side: Literal[0, 1], what: str = "") -> Figure:
    total = sum(modelled_exec_bytes(count)[side] for count in node_counts)
    return Figure(bytes=total, source=Source.MODELLED, how=what + _HOW)


class _Fold:
    """One fold of the graphs of a file."""

    def __init__(self, file: GraphsFile, policy: FoldPolicy, execs_per_group: int) -> None:
        self.file = file
        self.policy = policy.model_copy(update={"concurrent": Concurrent.SPLIT})
        self.execs_per_group = execs_per_group
        self.flags = file.graphs[0].topology.instantiate_flags
        self.raws = {graph.index: OfflineGraph(graph.topology, _pass_through(graph)) for graph in file.graphs}
        self.driver = OfflineDriver(file.device, file.driver_version, self.flags, self._refuses())
        self.registry = Registry(self.driver, self.policy, capabilities=file.capabilities)
        self.graphs: dict[int, ExportedGraph] = {}
        """The graph of each member's id."""
        self._fold()

    def _fold(self) -> None:
        for graph in sorted(self.file.graphs, key=lambda graph: graph.index):
            position = graph.position or 0
            segment = SegmentInfo(position, graph.label.removesuffix(f" segment {position}"))
            member = self.registry.fold(self.raws[graph.index], segment, session=graph.session)
            self.graphs[member.id] = graph
            if self._lost(graph) and member.group is not None and member.group.bucket is not None:
                self.registry.own(member)
                member.reason = graph.reason
        if self.execs_per_group > 1:
            for group in self.registry.groups():
                for stream, member in enumerate(list(group.members.values())[: self.execs_per_group]):
                    self.driver.current_stream = stream
                    self.registry.replay(member)

    def prediction(self) -> Prediction:
        groups, members = self.registry.groups(), self.registry.members.values()
        live = [executable.node_count for group in groups for executable in group.executables]
        live += [len(self._graph(member).topology.nodes) for member in members if member.group is None]
        return Prediction(
            tier=self.policy.tier,
            placement=self.policy.placement,
            execs_per_group=self.execs_per_group,
            max_execs=self.policy.max_execs,
            captured=len(members),
            groups=len(groups),
            largest_group=max((len(group.members) for group in groups), default=0),
            execs=self.registry.exec_count + self.registry.passed_through_count,
            passed_through=self.registry.passed_through_count,
            refused=self.registry.counters.refused,
            exec_device=_figure(live, 0),
            exec_host=_figure(live, 1),
            splits=self._splits(groups),
        )

    # What is on record

    def _lost(self, graph: ExportedGraph) -> bool:
        """Whether a graph lost its group at replay, or gave it up for somebody who asked for its executable."""
        if graph.group is None or not graph.reason:
            return False
        tier = FoldPolicy.parse(tier=self.file.tier).tier
        return not forbids_sharing(self.driver.walk(self.raws[graph.index], reads(self.file.capabilities, self.flags, tier)))

    def _refuses(self) -> Refuses | None:
        """What the driver refused at capture: graphs of one key and lane that came to be in several groups."""
        grouped = [graph for graph in self.file.graphs if graph.group is not None and not graph.reason]
        if not any(map(_by_driver, grouped)):
            return None
        tier = FoldPolicy.parse(tier=self.file.tier, placement=self.file.placement)
        group_of: dict[OfflineGraph, tuple[object, int | None]] = {}
        refused: dict[object, str] = {}
        wanted = reads(self.file.capabilities, self.flags, tier.tier)
        driver = OfflineDriver(self.file.device, self.file.driver_version, self.flags)
        for graph in grouped:
            raw = self.raws[graph.index]
            record = driver.walk(raw, wanted)
            packed = record_bytes(record, driver.identity, self.flags, self.file.capabilities, tier.tier)
            place = packed, tier.placement.lane(SegmentInfo(graph.position or 0))
            group_of[raw] = place, graph.group
            if (refusal := _by_driver(graph)) is not None:
                refused.setdefault(place, refusal)

        def refuses(held: OfflineGraph, offered: OfflineGraph) -> str:
            one, other = group_of.get(held), group_of.get(offered)
            if one is None or other is None or one[0] != other[0] or one[1] == other[1]:
                return ""
            return refused.get(one[0], "")

        return refuses

    # What keeps groups apart

    def _splits(self, groups: Sequence[Group]) -> tuple[SplitRow, ...]:
        held = Held.of(self.policy.tier.value, self.file.capabilities, self.flags)
        founders = [next(iter(group.members.values())) for group in groups]
        told: dict[str, list[str]] = {}
        for number, member in enumerate(founders):
            if member.reason:
                told.setdefault("on its own", []).append(f"{self._graph(member)}: {member.reason}")
            elif number and number <= _MOST_COMPARED:
                field, example = self._difference(member, founders[:number], held)
                told.setdefault(field, []).append(example)
            elif number:
                told.setdefault(_NOT_COMPARED, []).append(str(self._graph(member)))
        for member in self.registry.members.values():
            if member.group is None:
                told.setdefault("passed through", []).append(f"{self._graph(member)}: {member.reason}")
        rows = [SplitRow(field=field, groups=len(examples), example=examples[0]) for field, examples in told.items()]
        return tuple(sorted(rows, key=lambda row: (row.field == _NOT_COMPARED, -row.groups)))

    def _difference(self, member: Member, before: Sequence[Member], held: Held) -> tuple[str, str]:
        """The first difference with the nearest of the groups that were there."""
        near = sorted(before, key=lambda other: (abs(other.node_count - member.node_count), member.id - other.id))
        near = near[:_NEAR_GROUPS]
        graph = self._graph(member)
        other = near[nearest(graph.topology, [self._graph(one).topology for one in near], held)]
        told = explain(graph.topology, self._graph(other).topology, held)
        names = f"{graph} and {self._graph(other)}"
        if not told.folds:
            return told.field, f"{names}: {told.reason}"
        if member.refusals:
            return "refused", f"{names}: {member.refusals[0]}"
        return "segment position", f"{names}: {told.carried_text()}"

    def _graph(self, member: Member) -> ExportedGraph:
        return self.graphs[member.id]


def _by_driver(graph: ExportedGraph) -> str | None:
    """The first refusal of the driver's own: it begins with the result. Others are worked out anew."""
    return next((refusal for refusal in graph.refusals if refusal.startswith(tuple(Verdict))), None)


def _pass_through(graph: ExportedGraph) -> str:
    """Why a graph kept the executable of its own backend; that is so in every tier."""
    return "" if graph.group is not None else graph.reason or "its fold passed it through, and no reason is on record"
