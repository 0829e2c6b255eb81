"""What the executables of a whole ladder will take on the device, told from its first two captures.

For whoever plans a KV cache before the other shapes are captured:

    estimate = backend.estimate(shapes=range(1, 257))
    left = free_bytes - estimate.folded_upper_bytes

Everything here is modelled, from node counts and edges; no device is touched. docs/estimate.md says where the constants come
from, what the upper bounds assume, and against what they were checked.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from math import ceil, log2
from typing import TYPE_CHECKING, NamedTuple

from pydantic import BaseModel, ConfigDict

from graphdedup.capabilities import Capabilities
from graphdedup.errors import GraphDedupError, SettingsError
from graphdedup.footprint import modelled_exec_bytes
from graphdedup.graph_size import GraphSize, size_of_member, size_of_topology
from graphdedup.policy import FoldPolicy
from graphdedup.report.model import Figure, Source
from graphdedup.signature import Tier
from graphdedup.topology import Topology
from seam.plan import MemoryPlan

if TYPE_CHECKING:
    from graphdedup.registry import Registry

__all__ = ["ExecEstimate", "estimate_bytes", "estimate_live"]

# Measured on an H200, driver 580.159, against modelled_exec_bytes, which is of chains of small kernels; docs/estimate.md.
_TYPICAL_RATIO, _MOST_RATIO = 1.10, 1.24
_TYPICAL_BRANCH_BYTES, _MOST_BRANCH_BYTES = 115_000, 120_000
_STEP_BYTES = 2 << 20
"""The driver takes device memory in steps of so much."""
_USUAL_SPAN = 256
"""From its smallest to its largest shape a ladder of which only the number of shapes is known is taken to grow so much."""


class ExecEstimate(BaseModel):
    """Device bytes of the executables of ``shapes`` x ``segments`` graphs, folded and plain: modelled, never measured.

    ``..._bytes`` is what is to be expected, ``..._upper_bytes`` what is not exceeded under :attr:`assumptions`, in whole
    steps of 2 MB. ``folded_execs`` is what the captures showed; where functions are in the key, each further shape adds what
    those after the first one added. ``folded_execs_at_most`` is what the upper bound counts with. ``pool`` is the memory
    plan's own prediction, if one was given: another kind of memory, and part of none of the others.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    shapes: int
    segments: int
    plain_execs: int
    folded_execs: int
    folded_execs_at_most: int
    plain_bytes: int
    plain_upper_bytes: int
    folded_bytes: int
    folded_upper_bytes: int
    pool: Figure | None = None
    source: Source = Source.MODELLED
    how: str
    assumptions: tuple[str, ...]

    def to_json(self) -> str:
        """The estimate as indented JSON."""
        return self.model_dump_json(indent=2)

    def to_text(self) -> str:
        """A few lines, without a trailing newline."""
        rows = [
            ("", "execs", "expected", "at most"),
            ("plain", f"{self.plain_execs:,}", _megabytes(self.plain_bytes), _megabytes(self.plain_upper_bytes)),
            (
                "folded",
                f"{self.folded_execs:,} to {self.folded_execs_at_most:,}",
                _megabytes(self.folded_bytes),
                _megabytes(self.folded_upper_bytes),
            ),
        ]
        widths = [max(len(row[column]) for row in rows) for column in range(4)]
        lines = [f"device bytes of executables, {self.shapes} shapes of {self.segments} segments, {self.source.words}"]
        lines += ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
        if self.pool is not None and self.pool.bytes is not None:
            lines.append(f"pool: {_megabytes(self.pool.bytes)}, {self.pool.how}; not part of the above")
        lines += [f"assumed: {assumption}" for assumption in self.assumptions]
        return "\n".join(lines)


class _Position(NamedTuple):
    """Typical and most bytes of the executable at one segment position, over the shapes of the ladder."""

    typical: float
    most: float


def estimate_bytes(
    captures: Sequence[Topology | Sequence[Topology]],
    *,
    shapes: int | Iterable[int],
    policy: FoldPolicy | None = None,
    capabilities: Capabilities | None = None,
    groups_at_most: int | None = None,
    streams: int = 1,
    plan: MemoryPlan | None = None,
) -> ExecEstimate:
    """Estimate a ladder from the topologies of two of its captures: the smallest and the largest shape, or the first two.

    Args:
        captures: for each captured shape its topology, or the topologies of its segments in order; more than two may be given.
        shapes: how many shapes the ladder has, or the shapes themselves, which bounds the number of groups better.
        policy: how they will fold; by default the default policy.
        capabilities: what an update carries on the device; by default as much as on an H200.
        groups_at_most: how many groups the whole ladder folds to at most, where that is known, such as from a former run; by
            default it is bounded by a rule, see :attr:`ExecEstimate.assumptions`.
        streams: on how many streams graphs of one group are replayed at once, each of which needs an executable (rule D10).
        plan: a plan of :meth:`seam.CapturedForward.plan`, whose pool is to stand beside it.

    Raises:
        SettingsError: ``shapes``, ``groups_at_most`` or ``streams`` is none, or less than the captures show.
        GraphDedupError: there are too few captures, they differ in their number of segments, or one is no graph.
    """
    used = policy or FoldPolicy()
    segments = [
        [
            size_of_topology(one, used, position)
            for position, one in enumerate([graph] if isinstance(graph, Topology) else graph)
        ]
        for graph in captures
    ]
    return _estimate(segments, shapes, used, capabilities, groups_at_most, streams, plan)


def estimate_live(
    registry: Registry,
    *,
    shapes: int | Iterable[int],
    session: str | None = None,
    groups_at_most: int | None = None,
    streams: int = 1,
    plan: MemoryPlan | None = None,
) -> ExecEstimate:
    """The same from the live graphs of a registry and the groups that they really folded to; see :func:`estimate_bytes`.

    Args:
        registry: whose graphs.
        session: the name of a capture session; may be left out where the live graphs are all of one.

    Raises:
        GraphDedupError: besides what is said there, graphs of several sessions are alive and none was named.
    """
    members = sorted(registry.members.values(), key=lambda member: member.id)
    names = sorted({member.session for member in members})
    if session is None and len(names) > 1:
        raise GraphDedupError(
            f"graphs of several sessions are alive: {', '.join(map(repr, names))}", remedy="name one with session=..."
        )
    captures: list[list[GraphSize]] = []
    branches: dict[str, tuple[int, int]] = {}
    for member in members:
        if session is not None and member.session != session:
            continue
        if member.segment.position == 0 or not captures:
            captures.append([])
        captures[-1].append(size_of_member(registry, member, branches))
    return _estimate(captures, shapes, registry.policy, registry.capabilities, groups_at_most, streams, plan)


def _estimate(
    captures: Sequence[Sequence[GraphSize]],
    shapes: int | Iterable[int],
    policy: FoldPolicy,
    capabilities: Capabilities | None,
    groups_at_most: int | None,
    streams: int,
    plan: MemoryPlan | None,
) -> ExecEstimate:
    count, span = _ladder(shapes)
    segments = _segment_count(captures, count)
    if streams < 1:
        raise SettingsError(f"estimate: streams={streams}", remedy="give at least 1")
    positions = [_position([graph[index] for graph in captures]) for index in range(segments)]
    plain_upper = _steps(count * sum(position.most for position in positions))

    sharing = [index for index in range(segments) if all(graph[index].key is not None for graph in captures)]
    alone = [index for index in range(segments) if index not in sharing]
    sizes = _sizes_by_key(captures, sharing, positions)
    apart = _apart(policy, capabilities)
    ranges = count if apart else min(count, 1 + ceil(log2(span)))
    if groups_at_most is not None and groups_at_most < len(sizes):
        raise SettingsError(
            f"estimate: groups_at_most={groups_at_most}, and the captures alone made {len(sizes)} groups",
            remedy="give a bound for the whole ladder",
        )
    groups, most = _bound(captures, sharing, positions, ranges, sizes, groups_at_most)
    groups, most = min(groups, count * len(sharing)) * streams, most * streams
    execs, expected = _expected(captures, sharing, sizes, count if apart else len(captures))
    if policy.max_execs is not None and groups > policy.max_execs:
        groups = policy.max_execs
        execs, expected = min(execs, groups), expected * min(1.0, groups / execs)
        most = min(most, groups * max(positions[index].most for index in sharing))
    folded_upper = _steps(most + count * sum(positions[index].most for index in alone))
    return ExecEstimate(
        shapes=count,
        segments=segments,
        plain_execs=count * segments,
        folded_execs=execs + count * len(alone),
        folded_execs_at_most=groups + count * len(alone),
        plain_bytes=round(count * sum(position.typical for position in positions)),
        plain_upper_bytes=plain_upper,
        folded_bytes=round(expected + count * sum(positions[index].typical for index in alone)),
        folded_upper_bytes=folded_upper if streams > 1 else min(folded_upper, plain_upper),
        pool=None if plan is None else _pool(plan),
        how="bytes per node and branch as measured on an H200, over the node counts of the captures",
        assumptions=_assumptions(ranges, groups_at_most, streams, len(captures)),
    )


def _ladder(shapes: int | Iterable[int]) -> tuple[int, float]:
    """How many shapes, and how many times the smallest the largest is."""
    if isinstance(shapes, int):
        if shapes < 1:
            raise SettingsError(f"estimate: shapes={shapes}", remedy="give at least 1")
        return shapes, max(shapes, _USUAL_SPAN)
    known = set(shapes)
    if not known or min(known) < 1:
        raise SettingsError("estimate: shapes names no shape, or one below 1", remedy="give positive shapes, or their number")
    return len(known), max(known) / min(known)


def _segment_count(captures: Sequence[Sequence[GraphSize]], shapes: int) -> int:
    lengths = [len(graph) for graph in captures]
    if len(captures) > shapes:
        raise SettingsError(
            f"estimate: shapes={shapes}, and {len(captures)} are captured already", remedy="give the shapes of the whole ladder"
        )
    if len(captures) < min(2, shapes) or not all(lengths):
        raise GraphDedupError(
            f"{len(captures)} captures are too few to estimate {shapes} shapes from",
            remedy="capture two shapes first, such as the smallest and the largest, and keep them",
        )
    if len(set(lengths)) > 1:
        raise GraphDedupError(
            f"the captures differ in their segments: {', '.join(map(str, lengths))}",
            remedy="give captures of one forward, in one mode",
        )
    return lengths[0]


def _position(segments: Sequence[GraphSize]) -> _Position:
    """One position over the captures. Another shape may exceed the larger capture by as much as that exceeds the smaller."""
    nodes = [segment.node_count for segment in segments]
    branches = [segment.branch_count for segment in segments]
    typical = sum(_bytes(segment, _TYPICAL_RATIO, _TYPICAL_BRANCH_BYTES) for segment in segments) / len(segments)
    largest = GraphSize(2 * max(nodes) - min(nodes), 2 * max(branches) - min(branches), None)
    return _Position(typical, _bytes(largest, _MOST_RATIO, _MOST_BRANCH_BYTES))


def _bytes(segment: GraphSize, ratio: float, branch_bytes: int) -> float:
    return ratio * modelled_exec_bytes(segment.node_count)[0] + branch_bytes * segment.branch_count


def _steps(count_bytes: float) -> int:
    """In whole steps of the driver's."""
    return ceil(count_bytes / _STEP_BYTES) * _STEP_BYTES


def _sizes_by_key(
    captures: Sequence[Sequence[GraphSize]], sharing: Sequence[int], positions: Sequence[_Position]
) -> dict[Hashable, float]:
    """Typical bytes of the executables that the captures made necessary."""
    sizes: dict[Hashable, float] = {}
    for graph in captures:
        for index in sharing:
            sizes[graph[index].key] = max(sizes.get(graph[index].key, 0.0), positions[index].typical)
    return sizes


def _expected(
    captures: Sequence[Sequence[GraphSize]], sharing: Sequence[int], sizes: Mapping[Hashable, float], shapes: int
) -> tuple[int, float]:
    """Executables and their bytes, where each of ``shapes`` shapes adds what the captures after the first one added."""
    first = {captures[0][index].key for index in sharing}
    added = [size for key, size in sizes.items() if key not in first]
    times = (shapes - len(captures)) / max(1, len(captures) - 1)
    return len(sizes) + round(times * len(added)), sum(sizes.values()) + times * sum(added)


def _apart(policy: FoldPolicy, capabilities: Capabilities | None) -> bool:
    """Whether functions or clusters are in the key: then any shape may be a group of its own."""
    carried = capabilities is None or (capabilities.carries_function and capabilities.carries_cluster)
    return policy.tier is not Tier.STRUCTURE or not carried


def _bound(
    captures: Sequence[Sequence[GraphSize]],
    sharing: Sequence[int],
    positions: Sequence[_Position],
    ranges: int,
    sizes: Mapping[Hashable, float],
    groups_at_most: int | None,
) -> tuple[int, float]:
    """Groups of the whole ladder at most, and bytes of an executable for each."""
    if not sharing:
        return 0, 0.0
    if groups_at_most is not None:
        return groups_at_most, groups_at_most * max(positions[index].most for index in sharing)
    structures, bytes_of_one = 0, 0.0
    for graph in captures:
        largest: dict[Hashable, float] = {}
        for index in sharing:
            largest[graph[index].key] = max(largest.get(graph[index].key, 0.0), positions[index].most)
        structures, bytes_of_one = max(structures, len(largest)), max(bytes_of_one, sum(largest.values()))
    ranges = max(ranges, ceil(len(sizes) / structures))  # the captures may show more than the rule expects
    return ranges * structures, max(ranges * bytes_of_one, sum(sizes.values()))


def _assumptions(ranges: int, groups_at_most: int | None, streams: int, captures: int) -> tuple[str, ...]:
    groups = (
        f"each structure of a capture occurs in at most {ranges} variants over the ladder, and the driver refuses no update"
        if groups_at_most is None
        else f"the ladder folds to at most {groups_at_most} groups, as was given"
    )
    return (
        f"no graph has more nodes or branches than the largest of the {captures} captures by more than these differ",
        groups,
        f"graphs of one group run on at most {streams} {'stream' if streams == 1 else 'streams'} at once",
        "an executable takes no more than 1.24 times the modelled bytes, as on an H200 with driver 580",
    )


def _pool(plan: MemoryPlan) -> Figure:
    return Figure(bytes=plan.row("pool").predicted_bytes, source=Source.MODELLED, how="as the memory plan predicts it")


def _megabytes(count: int) -> str:
    return f"{count / 1e6:,.1f} MB"
