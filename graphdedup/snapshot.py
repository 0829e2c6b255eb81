"""What a registry can tell: its counters now, and the footprint report."""

from __future__ import annotations

from collections import Counter

import torch

from graphdedup.export import alone_rows
from graphdedup.plan import plan_digest
from graphdedup.registry import Registry
from graphdedup.report.model import BreakRow, Figure, FootprintReport, RefusalRow, SessionRow, Source
from graphdedup.session import exec_count
from graphdedup.stats import SessionStats, Stats
from graphdedup.tally import Reasons

__all__ = ["footprint", "stats"]


def stats(registry: Registry) -> Stats:
    """The counters now. Cheap: nothing is measured and the device is not touched."""
    counters = registry.counters
    members = list(registry.members.values())
    names = dict.fromkeys(member.session for member in members)
    by_name = {name: [member for member in members if member.session == name] for name in names}
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
    """What the captured graphs cost, with the source of each figure (rules M3, M5)."""
    now, identity = stats(registry), registry.driver.identity
    exec_device, exec_host, libraries = _figures(registry)
    breaks = Counter(member.segment.after for member in registry.members.values())
    counts = {name: getattr(now, name) for name in FootprintReport.model_fields if hasattr(now, name)}
    del counts["sessions"]
    held = [pool.reserved_bytes() for pool in registry.pools]
    return FootprintReport(
        device=identity.name,
        driver_version=identity.driver_version,
        torch_version=torch.__version__,
        tier=registry.policy.tier.value,
        plan_digest=plan_digest(registry.members.values()),
        sessions=tuple(
            SessionRow(name=session.name, captured=session.captured, execs=session.execs)
            for session in registry.sessions.latest
        ),
        breaks=tuple(BreakRow(name=name, segments=count) for name, count in sorted(breaks.items()) if name),
        refusals=_rows(registry.refusals, registry.alone, registry.passings),
        unfoldings=_rows(registry.unfoldings),
        alone=alone_rows(registry),
        exec_device=exec_device,
        exec_host=exec_host,
        libraries=libraries,
        pool=Figure(
            bytes=None if None in held else sum(size for size in held if size is not None),
            source=Source.MEASURED_DEVICE if identity.kind == "cuda" else Source.MEASURED_HOST,
            how="the allocator does not tell what a pool holds"
            if None in held
            else "reserved by the live pools that were captured into",
        ),
        **counts,
    )


def _figures(registry: Registry) -> tuple[Figure, Figure, Figure | None]:
    """Device and host bytes of the executables, and what else grew on the device."""
    counters = registry.counters
    if registry.driver.identity.kind == "cuda":
        count, grown = registry.sessions.totals
        around = f"growth of used device memory over {count} capture sessions, less what torch reserved"
        return (
            Figure(
                bytes=counters.exec_device_bytes,
                source=Source.MEASURED_DEVICE,
                how="growth of used device memory over each instantiation, less what torch reserved; steps of 2 MB",
            ),
            Figure(
                bytes=counters.exec_host_bytes,
                source=Source.MEASURED_HOST,
                how="growth of resident memory over each instantiation",
            ),
            Figure(
                bytes=max(0, grown - counters.exec_device_bytes),
                source=Source.MEASURED_DEVICE,
                how=f"{around} and what executables took; modules loaded meanwhile count here",
            ),
        )
    live = [executable.node_count for group in registry.groups() for executable in group.executables]
    modelled = [registry.driver.exec_bytes(count) or (0, 0) for count in live]
    how = "live execs x the bytes per node measured on an H200"
    return (
        Figure(bytes=sum(device for device, _ in modelled), source=Source.MODELLED, how=how),
        Figure(bytes=sum(host for _, host in modelled), source=Source.MODELLED, how=how),
        None,
    )


def _rows(*several: Reasons) -> tuple[RefusalRow, ...]:
    rows = [
        RefusalRow(reason=reason, count=count, example=reasons.examples[reason])
        for reasons in several
        for reason, count in reasons.counts.items()
    ]
    return tuple(sorted(rows, key=lambda row: -row.count))
