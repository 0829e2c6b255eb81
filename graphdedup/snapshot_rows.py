"""The rows of a footprint report, from a registry: groups with their members and executables, pools, nodes, surroundings."""

from __future__ import annotations

import os
import platform
import sys
from collections import Counter
from collections.abc import Iterable, Mapping

import torch

from graphdedup import settings
from graphdedup.export import reasons_alone
from graphdedup.footprint import Span, modelled_exec_bytes
from graphdedup.group import Executable, Member
from graphdedup.kernel_names import demangle
from graphdedup.pools import read_pools
from graphdedup.registry import Registry
from graphdedup.report.model import (
    Environment,
    ExecRow,
    GroupRow,
    MemberRow,
    NodeRow,
    PoolRow,
    RefusalRow,
    SessionRow,
    Source,
    StageRow,
    TimelineRow,
)
from graphdedup.signature import key
from graphdedup.tally import Reasons
from graphdedup.timeline import Timeline

__all__ = ["environment", "group_rows", "node_rows", "pool_rows", "reason_rows", "session_rows", "stage_rows", "timeline_row"]

_MOST_NODE_ROWS = 200
_LONGEST_NAME = 400
_SWITCHES = (settings.DISABLE, settings.VERIFY, settings.SYNC, settings.PROBE, settings.INTERPOSE, settings.POLICY)
"""Those that change what is measured. Folders and files are left out: reports are passed on."""


def environment(registry: Registry) -> Environment:
    """What this process runs with."""
    from graphdedup import __version__  # the package reads this module

    policy = {name: str(value) for name, value in registry.policy.model_dump(mode="json").items() if value is not None}
    return Environment(
        graphdedup=__version__,
        python=sys.version.split()[0],
        platform=f"{platform.system()} {platform.machine()}",
        torch=torch.__version__,
        cuda=torch.version.cuda or "",
        policy=policy,
        switches={name: os.environ[name] for name in _SWITCHES if name in os.environ},
    )


def session_rows(registry: Registry) -> tuple[SessionRow, ...]:
    """The latest sessions, the oldest first."""
    return tuple(
        SessionRow(
            name=one.name,
            captured=one.captured,
            execs=one.execs,
            seconds=one.seconds,
            driver_bytes=one.exec_device_bytes,
            torch_bytes=one.torch_bytes,
            host_bytes=one.host_bytes,
        )
        for one in registry.sessions.latest
    )


def stage_rows(registry: Registry, now: Span) -> tuple[StageRow, ...]:
    """Memory before the first capture, after the last session, and now."""
    stages = registry.sessions.stages
    named = [("now", now)]
    if stages is not None:
        named = [("before the first capture", stages[0]), ("after the last capture session", stages[1]), *named]
    return tuple(
        StageRow(
            name=name,
            device_used_bytes=span.used_bytes,
            torch_reserved_bytes=span.reserved_bytes,
            host_resident_bytes=span.rss_bytes,
        )
        for name, span in named
    )


def group_rows(registry: Registry) -> tuple[GroupRow, ...]:
    """Groups in the order in which they were founded, numbered as ``DedupBackend.export()`` does; then what was passed through.

    Graphs that come and go meanwhile may be missing.
    """
    reasons = reasons_alone(registry)
    on_gpu = registry.driver.identity.kind == "cuda"
    rows = [
        GroupRow(
            id=number,
            key=key(group.record),
            execs=tuple(_exec_row(one, on_gpu) for one in list(group.executables)),
            members=_member_rows(list(group.members.values()), reasons),
        )
        for number, group in enumerate(registry.groups())
    ]
    kept = [member for member in list(registry.members.values()) if member.group is None and member.raw is not None]
    for member in kept:
        untold = ExecRow(nodes=member.node_count, device_source=Source.MODELLED, host_source=Source.MODELLED)
        if on_gpu:
            untold = ExecRow(nodes=member.node_count, device_source=Source.MEASURED_DEVICE, host_source=Source.MEASURED_HOST)
        (row,) = _member_rows([member], reasons)
        row = row.model_copy(update={"replays": None, "updates": None, "why": row.why or member.reason})
        rows.append(GroupRow(id=len(rows), kind="passed_through", execs=(untold,), members=(row,)))
    return tuple(rows)


def _member_rows(members: Iterable[Member], reasons: Mapping[int, str]) -> tuple[MemberRow, ...]:
    rows = []
    for member in members:
        device_bytes, host_bytes = modelled_exec_bytes(member.node_count)
        rows.append(
            MemberRow(
                id=member.id,
                label=member.segment.label,
                segment=member.segment.position,
                session=member.session,
                pool=member.pool,
                nodes=member.node_count,
                own_device_bytes=device_bytes,
                own_host_bytes=host_bytes,
                replays=member.replays,
                updates=member.updates,
                why=reasons.get(member.id, ""),
            )
        )
    return tuple(rows)


def _exec_row(executable: Executable, on_gpu: bool) -> ExecRow:
    device_bytes, host_bytes = executable.measured_bytes if on_gpu else modelled_exec_bytes(executable.node_count)
    return ExecRow(
        nodes=executable.node_count,
        device_bytes=device_bytes,
        device_source=Source.MEASURED_DEVICE if on_gpu else Source.MODELLED,
        host_bytes=host_bytes,
        host_source=Source.MEASURED_HOST if on_gpu else Source.MODELLED,
        updates=executable.updates,
        launches=executable.launches,
    )


def node_rows(registry: Registry) -> tuple[NodeRow, ...]:
    """Nodes of the live graphs by kind and kernel, the most frequent first; what is rare stands in one last row."""
    counted = Counter[tuple[str, str]]()
    for member in list(registry.members.values()):
        for kind, name, count in member.counts:
            counted[kind, name] += count
    shown = Counter[tuple[str, str]]()
    for (kind, name), count in counted.items():
        told = demangle(name)
        shown[kind, told if len(told) <= _LONGEST_NAME else f"{told[: _LONGEST_NAME - 3]}..."] += count
    ranked = shown.most_common()
    rows = [NodeRow(kind=kind, name=name, count=count) for (kind, name), count in ranked[:_MOST_NODE_ROWS]]
    if rest := ranked[_MOST_NODE_ROWS:]:
        rows.append(NodeRow(kind="others", name=f"{len(rest):,} more", count=sum(count for _, count in rest)))
    return tuple(rows)


def pool_rows(registry: Registry) -> tuple[PoolRow, ...]:
    """The pools that are alive."""
    graphs = Counter(member.pool for member in list(registry.members.values()))
    source = Source.MEASURED_DEVICE if registry.driver.identity.kind == "cuda" else Source.MEASURED_HOST
    return tuple(
        PoolRow(
            id=number,
            graphs=graphs[number],
            source=source,
            reserved_bytes=reserved_bytes,
            allocated_bytes=allocated_bytes,
            inactive_bytes=inactive_bytes,
        )
        for number, (reserved_bytes, allocated_bytes, inactive_bytes) in read_pools(registry.pools).items()
    )


def timeline_row(timeline: Timeline) -> TimelineRow:
    """A history as it is now."""
    seconds, counts = timeline.read()
    return TimelineRow(seconds_each=seconds, counts=counts)


def reason_rows(*several: Reasons) -> tuple[RefusalRow, ...]:
    """Reasons with their counts and examples, the most frequent first."""
    rows = [
        RefusalRow(reason=reason, count=count, example=reasons.examples[reason])
        for reasons in several
        for reason, count in reasons.counts.items()
    ]
    return tuple(sorted(rows, key=lambda row: -row.count))
