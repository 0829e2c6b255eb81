"""Plain-text renderings. One path for every terminal: the tables are built here, so no optional package is needed.

Each function is pure: the same report gives the same text (rule M5). Every byte figure says whether it was measured
or modelled, and how (rule M3).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from graphdedup.kernel_names import in_words
from graphdedup.report.model import DemoResult, Figure, FootprintReport, ModeResult

__all__ = ["demo_text", "footprint_text", "format_bytes", "named_figures", "table"]

_BOLD, _RED, _GREEN, _RESET = "\x1b[1m", "\x1b[31m", "\x1b[32m", "\x1b[0m"
_NOTHING = "-"
_MOST_ALONE = 20
_MOST_GROUPS = 10
_MOST_KERNELS = 10
_MOST_POOLS = 10


def format_bytes(value: int | None) -> str:
    """Bytes in decimal units: ``"512 B"``, ``"1.4 KB"``, ``"361.9 MB"``; ``"unknown"`` for None."""
    if value is None:
        return "unknown"
    amount, unit = float(value), "B"
    for larger in ("KB", "MB", "GB", "TB"):
        if abs(amount) < 999.95:  # what would print as 1000.0 belongs to the next unit
            break
        amount, unit = amount / 1000, larger
    return f"{value} B" if unit == "B" else f"{amount:.1f} {unit}"


def table(rows: Sequence[Sequence[str]], *, left: int = 1) -> list[str]:
    """Align ``rows`` of equal length in columns; the first ``left`` columns to the left, the others to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))] if rows else []
    lines = []
    for row in rows:
        cells = (
            cell.ljust(width) if column < left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        lines.append("  ".join(cells).rstrip())
    return lines


def footprint_text(report: FootprintReport, *, color: bool = False) -> str:
    """The table of one backend's snapshot, without a trailing newline."""
    title = f"graphdedup footprint: {report.device}, driver {report.driver_version}, torch {report.torch_version}"
    lines = [_bold(title, color), ""]
    lines += table(
        [
            ("captured graphs", _count(report.captured)),
            ("execs", _count(report.execs)),
            ("execs at peak", _count(report.peak_execs)),
            ("groups", _count(report.groups)),
            ("nodes", _count(report.nodes)),
            ("updates", _count(report.updates)),
            ("launches", _count(report.launches)),
            ("refused", _count(report.refused)),
            ("un-folded at replay", _count(report.unfolded)),
            ("passed through", _count(report.passed_through)),
            ("updates per replay", "-" if report.updates_per_replay is None else f"{report.updates_per_replay:.2f}"),
            ("second execs for streams", _count(report.splits)),
            ("evictions", _count(report.evictions)),
            ("made anew for a steady size", _count(report.refreshes)),
            ("verified, of these wrong", f"{_count(report.verified)}, {_count(report.mismatches)}"),
            ("opaque nodes", _count(report.opaque_nodes)),
            ("walk seconds", f"{report.walk_seconds:.3f}"),
            ("fold seconds", f"{report.fold_seconds:.3f}"),
            ("instantiate seconds", f"{report.instantiate_seconds:.3f}"),
            ("tier", report.tier or "-"),
            ("fold plan", report.plan_digest or "-"),
        ]
    )
    lines += ["", _bold("bytes", color)]
    lines += table([(name, format_bytes(f.bytes), f.source.words, _how(f)) for name, f in named_figures(report)], left=4)
    lines += _pools_and_stages(report, color)
    if report.sessions:
        lines += ["", _bold("sessions", color)]
        rows = [("name", "captured", "execs")]
        rows += [(s.name or "(unnamed)", _count(s.captured), _count(s.execs)) for s in report.sessions]
        lines += table(rows)
    if report.group_rows:
        lines += _groups(report, color)
    if report.node_rows:
        lines += ["", _bold("nodes by kernel", color)]
        shown = report.node_rows[:_MOST_KERNELS]
        lines += table([(_count(row.count), row.kind, in_words(row.name)) for row in shown], left=3)
        if (more := len(report.node_rows) - len(shown)) > 0:
            lines.append(f"and {more:,} more, in the JSON")
    if report.breaks:
        lines += ["", _bold("breaks", color)]
        lines += table([(_count(row.segments), row.name) for row in report.breaks], left=2)
    if report.refusals:
        lines += ["", _bold("refusals", color)]
        lines += table([(_count(r.count), r.reason, f"e.g. {r.example}") for r in report.refusals], left=3)
    if report.unfoldings:
        lines += ["", _bold("un-folded at replay", color)]
        lines += table([(_count(r.count), r.reason, f"e.g. {r.example}") for r in report.unfoldings], left=3)
    if report.alone:
        lines += ["", _bold("graphs on their own", color)]
        lines += table([(row.graph, row.why) for row in report.alone[:_MOST_ALONE]], left=2)
        if (more := len(report.alone) - _MOST_ALONE) > 0:
            lines.append(f"and {more:,} more, in the JSON")
    return "\n".join(lines)


def named_figures(report: FootprintReport) -> list[tuple[str, Figure]]:
    """The figures that a report has, each with its name for a reader, in the order in which they are shown."""
    named = [
        ("execs, device", report.exec_device),
        ("execs, host", report.exec_host),
        ("execs without folding, device", report.plain_device),
        ("execs without folding, host", report.plain_host),
        ("driver and libraries", report.libraries),
        ("pool", report.pool),
        ("torch's allocator", report.allocator),
        ("device memory in use", report.process),
        ("host memory of the process", report.host),
    ]
    return [(name, figure) for name, figure in named if figure is not None]


def _how(figure: Figure) -> str:
    return figure.how if figure.peak_bytes is None else f"{figure.how}; peak {format_bytes(figure.peak_bytes)}"


def _pools_and_stages(report: FootprintReport, color: bool) -> list[str]:
    lines: list[str] = []
    if report.pools:
        lines += ["", _bold("pools", color)]
        rows: list[tuple[str, ...]] = [("pool", "graphs", "reserved", "allocated", "inactive")]
        for pool in report.pools[:_MOST_POOLS]:
            told = (pool.reserved_bytes, pool.allocated_bytes, pool.inactive_bytes)
            rows.append((str(pool.id), _count(pool.graphs), *map(format_bytes, told)))
        lines += table(rows)
        if (more := len(report.pools) - _MOST_POOLS) > 0:
            lines.append(f"and {more:,} more, in the JSON")
    if report.stages:
        lines += ["", _bold("memory by stage", color)]
        stages: list[tuple[str, ...]] = [("", "used on the device", "of that by torch", "resident on the host")]
        for stage in report.stages:
            device = [stage.device_used_bytes, stage.torch_reserved_bytes]
            told_device = (_NOTHING if value is None else format_bytes(value) for value in device)
            stages.append((stage.name, *told_device, format_bytes(stage.host_resident_bytes)))
        lines += table(stages)
    return lines


def _groups(report: FootprintReport, color: bool) -> list[str]:
    """The largest groups."""
    ranked = sorted(report.group_rows, key=lambda group: -len(group.members))
    rows: list[tuple[str, ...]] = [("group", "such as", "graphs", "execs", "replays", "updates")]
    for group in ranked[:_MOST_GROUPS]:
        replays = sum(member.replays or 0 for member in group.members)
        updates = sum(member.updates or 0 for member in group.members)
        example = group.members[0].name if group.members else _NOTHING
        rows.append((str(group.id), example, *map(_count, (len(group.members), len(group.execs), replays, updates))))
    lines = ["", _bold("groups", color), *table(rows, left=2)]
    if (more := len(ranked) - _MOST_GROUPS) > 0:
        lines.append(f"and {more:,} more, in the JSON")
    return lines


def demo_text(result: DemoResult, *, color: bool = False) -> str:
    """The table of one demo run with its verdict as the last line, without a trailing newline."""
    model = result.model
    modes = list(result.modes.items())
    lines = [
        _bold(f"graphdedup demo: {result.device}, driver {result.driver_version}, torch {result.torch_version}", color),
        f"model {model.name}: {model.layers} layers, hidden {model.hidden}, {model.heads}/{model.kv_heads} heads of "
        f"{model.head_dim}, {model.dtype}, {model.parameters:,} random parameters (seed {result.seed}); tier {result.tier}",
    ]
    shown = {mode.sizes: mode.rounds for _, mode in modes}
    lines += [f"{_sizes(sizes)}, each replayed {rounds} times in shuffled order" for sizes, rounds in shown.items()]
    lines.append("")
    compared_arms = any(mode.unfolded_captured is not None for _, mode in modes)
    rows: list[tuple[str, ...]] = [("", *(name for name, _ in modes))]
    for label, cell, needs_unfolded in _DEMO_ROWS:
        if compared_arms or not needs_unfolded:
            rows.append((label, *(cell(mode) for _, mode in modes)))
    lines += table(rows)
    lines.append("")
    hows = {name: f"bytes of execs {mode.bytes_source}: {mode.bytes_how}" for name, mode in modes}
    alike = set(hows.values())
    lines += alike if len(alike) == 1 else [f"{name}: {how}" for name, how in hows.items()]
    for name, mode in modes:
        lines += [f"{name}: refused {_count(r.count)}: {r.reason} (e.g. {r.example})" for r in mode.refusals]
    lines.append(_verdict(result, color))
    return "\n".join(lines)


def _bytes_with_source(value: int | None, mode: ModeResult) -> str:
    return f"{format_bytes(value)} {mode.bytes_source}"


def _optional(value: int | None) -> str:
    return _NOTHING if value is None else _count(value)


def _optional_seconds(value: float | None) -> str:
    return _NOTHING if value is None else f"{value:.3f}"


def _unfolded_bytes(value: int | None, mode: ModeResult) -> str:
    return _NOTHING if mode.unfolded_captured is None else _bytes_with_source(value, mode)


_DEMO_ROWS: tuple[tuple[str, Callable[[ModeResult], str], bool], ...] = (
    ("captured graphs", lambda m: _count(m.captured), False),
    ("execs", lambda m: _count(m.execs), False),
    ("segments per graph", lambda m: _count(m.segments_per_graph), False),
    ("nodes", lambda m: _count(m.nodes), False),
    ("replays compared", lambda m: _count(m.compared), False),
    ("mismatches", lambda m: _count(m.mismatches), False),
    ("updates", lambda m: _count(m.updates), False),
    ("launches", lambda m: _count(m.launches), False),
    ("refused", lambda m: _count(m.refused), False),
    ("un-folded at replay", lambda m: _count(m.unfolded), False),
    ("exec bytes, device", lambda m: _bytes_with_source(m.exec_device_bytes, m), False),
    ("  without folding", lambda m: _unfolded_bytes(m.unfolded_exec_device_bytes, m), True),
    ("exec bytes, host", lambda m: _bytes_with_source(m.exec_host_bytes, m), False),
    ("  without folding", lambda m: _unfolded_bytes(m.unfolded_exec_host_bytes, m), True),
    ("pool bytes", lambda m: "unknown" if m.pool_bytes is None else f"{format_bytes(m.pool_bytes)} measured", False),
    ("capture seconds", lambda m: f"{m.capture_seconds:.3f}", False),
    ("fold seconds", lambda m: f"{m.fold_seconds:.3f}", False),
    ("seconds without folding", lambda m: _optional_seconds(m.unfolded_seconds), True),
    ("replays compared without folding", lambda m: _optional(m.unfolded_compared), True),
    ("mismatches without folding", lambda m: _optional(m.unfolded_mismatches), True),
)
"""Label, cell and whether the row needs a second, unfolded capture."""


def _verdict(result: DemoResult, color: bool) -> str:
    compared = sum(mode.compared + (mode.unfolded_compared or 0) for mode in result.modes.values())
    if result.mismatches or not compared:
        text = f"FAILED: {_count(result.mismatches)} of {_count(compared)} replays differ from eager"
        return f"{_RED}{text}{_RESET}" if color else text
    captured = sum(mode.captured for mode in result.modes.values())
    execs = sum(mode.execs for mode in result.modes.values())
    text = (
        f"OK: {_count(compared)} replays equal eager bit for bit; "
        f"{_count(captured)} captured graphs ran on {_count(execs)} execs"
    )
    return f"{_GREEN}{text}{_RESET}" if color else text


def _sizes(sizes: tuple[int, ...]) -> str:
    if len(sizes) == 1:
        return f"1 batch size ({sizes[0]})"
    if len(sizes) <= 8:
        return f"{len(sizes)} batch sizes ({', '.join(map(str, sizes))})"
    return f"{len(sizes)} batch sizes from {sizes[0]} to {sizes[-1]}"


def _count(value: int) -> str:
    return f"{value:,}"


def _bold(text: str, color: bool) -> str:
    return f"{_BOLD}{text}{_RESET}" if color else text
