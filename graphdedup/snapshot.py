"""What a registry can tell: its counters now, and the footprint report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch

from graphdedup import snapshot_rows as rows
from graphdedup.footprint import Span, host_peak_bytes
from graphdedup.group import Member
from graphdedup.nvml import process_bytes
from graphdedup.plan import plan_digest
from graphdedup.registry import Registry
from graphdedup.report.model import BreakRow, Figure, FootprintReport, GroupRow, Source
from graphdedup.session import exec_count
from graphdedup.stats import SessionStats, Stats

__all__ = ["footprint", "stats"]

_LIVE = "live execs x the bytes per node measured on an H200"
_PLAIN = "an exec for each live graph x the bytes per node measured on an H200"


def stats(registry: Registry) -> Stats:
    """The counters now. Cheap: nothing is measured and the device is not touched."""
    counters = registry.counters
    members = list(registry.members.values())
    by_name: dict[str, list[Member]] = {}
    for member in members:
        by_name.setdefault(member.session, []).append(member)
    return Stats(
        captured=counters.captured,
        execs=registry.exec_count + registry.passed_through_count,
        peak_execs=counters.peak_execs,
        nodes=sum(member.node_count for member in members),
        opaque_nodes=sum(member.opaque_nodes for member in members),
        groups=len({group.record for group in registry.groups()}),
        updates=counters.updates,
        replay_updates=counters.replay_updates,
        launches=counters.launches,
        refused=counters.refused,
        unfolded=counters.unfolded,
        passed_through=registry.passed_through_count,
        splits=counters.splits,
        evictions=counters.evictions,
        refreshes=counters.refreshes,
        verified=counters.verified,
        mismatches=counters.mismatches,
        walk_seconds=counters.walk_seconds,
        fold_seconds=counters.fold_seconds,
        instantiate_seconds=counters.instantiate_seconds,
        refused_by_reason=dict(registry.refusals.counts),
        unfolded_by_reason=dict(registry.unfoldings.counts),
        passed_through_by_reason=dict(registry.passings.counts),
        sessions=tuple(SessionStats(name, len(some), exec_count(some)) for name, some in by_name.items()),
    )


def footprint(registry: Registry) -> FootprintReport:
    """What the captured graphs cost, with the source of each figure (rules M3, M5). It reads memory and some graphs whole."""
    now, identity = stats(registry), registry.driver.identity
    memory = Span.begin(torch.device("cuda", identity.ordinal) if identity.kind == "cuda" else torch.device("cpu"))
    breaks = Counter(member.segment.after for member in list(registry.members.values()))
    counts: dict[str, Any] = {name: getattr(now, name) for name in FootprintReport.model_fields if hasattr(now, name)}
    del counts["sessions"]
    pools, groups = rows.pool_rows(registry), rows.group_rows(registry)
    held = [pool.reserved_bytes for pool in pools]
    figures: dict[str, Any] = _exec_figures(registry) | _plain_figures(groups)
    if identity.kind == "cuda":
        figures |= _device_figures(registry, memory.device)
    return FootprintReport(
        device=identity.name,
        driver_version=identity.driver_version,
        torch_version=torch.__version__,
        environment=rows.environment(registry),
        tier=registry.policy.tier.value,
        plan_digest=plan_digest(registry.members.values()),
        sessions=rows.session_rows(registry),
        stages=rows.stage_rows(registry, memory),
        replay_updates_over_time=rows.timeline_row(registry.replay_updates_over_time),
        breaks=tuple(BreakRow(name=name, segments=count) for name, count in sorted(breaks.items()) if name),
        refusals=rows.reason_rows(registry.refusals, registry.alone, registry.passings),
        unfoldings=rows.reason_rows(registry.unfoldings),
        pools=pools,
        group_rows=groups,
        node_rows=rows.node_rows(registry),
        pool=Figure(
            bytes=None if None in held else sum(size for size in held if size is not None),
            source=Source.MEASURED_DEVICE if identity.kind == "cuda" else Source.MEASURED_HOST,
            how="the allocator does not tell what a pool holds"
            if None in held
            else "reserved by the live pools that were captured into",
        ),
        host=Figure(
            bytes=memory.rss_bytes,
            source=Source.MEASURED_HOST,
            how="resident memory of this process",
            peak_bytes=host_peak_bytes(),
        ),
        **figures,
        **counts,
    )


def _exec_figures(registry: Registry) -> dict[str, Figure]:
    """Device and host bytes of the executables."""
    counters = registry.counters
    if registry.driver.identity.kind == "cuda":
        return {
            "exec_device": Figure(
                bytes=counters.exec_device_bytes,
                source=Source.MEASURED_DEVICE,
                how="growth of used device memory over each instantiation, less what torch reserved; steps of 2 MB",
            ),
            "exec_host": Figure(
                bytes=counters.exec_host_bytes,
                source=Source.MEASURED_HOST,
                how="growth of resident memory over each instantiation",
            ),
        }
    live = [executable.node_count for group in registry.groups() for executable in group.executables]
    modelled = [registry.driver.exec_bytes(count) or (0, 0) for count in live]
    peak_device_bytes, peak_host_bytes = registry.modelled_bytes[1]
    return {
        "exec_device": _modelled(sum(device for device, _ in modelled), _LIVE, peak_device_bytes),
        "exec_host": _modelled(sum(host for _, host in modelled), _LIVE, peak_host_bytes),
    }


def _plain_figures(groups: Sequence[GroupRow]) -> dict[str, Figure]:
    """The same without folding, from the numbers of nodes."""
    members = [member for group in groups for member in group.members]
    return {
        "plain_device": _modelled(sum(member.own_device_bytes for member in members), _PLAIN),
        "plain_host": _modelled(sum(member.own_host_bytes for member in members), _PLAIN),
    }


def _device_figures(registry: Registry, device: torch.device) -> dict[str, Figure]:
    """What else there is on a GPU: the rest that grew during captures, torch's allocator, and the process as a whole."""
    count, grown = registry.sessions.totals
    around = f"growth of used device memory over {count} capture sessions, less what torch reserved"
    process = process_bytes(device)
    return {
        "libraries": Figure(
            bytes=max(0, grown - registry.counters.exec_device_bytes),
            source=Source.MEASURED_DEVICE,
            how=f"{around} and what executables took; modules loaded meanwhile count here",
        ),
        "allocator": Figure(
            bytes=torch.cuda.memory_reserved(device),
            source=Source.MEASURED_DEVICE,
            how="reserved by torch's allocator, pools included",
            peak_bytes=torch.cuda.max_memory_reserved(device),
        ),
        "process": Figure(bytes=process.bytes, source=Source.MEASURED_DEVICE, how=process.how),
    }


def _modelled(size_bytes: int, how: str, peak_bytes: int | None = None) -> Figure:
    return Figure(bytes=size_bytes, source=Source.MODELLED, how=how, peak_bytes=peak_bytes)
