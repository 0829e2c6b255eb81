"""Predictions of another fold as text: a column for each, and what keeps its groups apart."""

from __future__ import annotations

from graphdedup.report.text import format_bytes, table
from graphdedup.report.words import one_line
from graphdedup.whatif import Prediction, WhatIf

__all__ = ["what_if_text"]

_BOLD, _RESET = "\x1b[1m", "\x1b[0m"
_MOST_CHARS = 220


def what_if_text(told: WhatIf, *, color: bool = False) -> str:
    """The table, without a trailing newline; ``color`` adds ANSI colours."""
    lines = [
        _bold(f"graphdedup whatif: {one_line(told.device)}, driver {one_line(told.driver_version)}", color),
        f"{told.captured:,} captured graphs, {told.nodes:,} nodes; recorded in {told.recorded_groups:,} groups with tier "
        f"{one_line(told.recorded_tier)}, placement {one_line(told.recorded_placement)}",
        "",
    ]
    columns = told.predictions
    rows: list[tuple[str, ...]] = [
        ("", "each its own", *(row.tier.value for row in columns)),
        ("groups", "-", *(f"{row.groups:,}" for row in columns)),
        ("graphs in the largest", "-", *(f"{row.largest_group:,}" for row in columns)),
        ("execs", f"{told.captured:,}", *(f"{row.execs:,}" for row in columns)),
        ("  of these passed through", "-", *(f"{row.passed_through:,}" for row in columns)),
        ("exec bytes, device", *_bytes(told.plain_device.bytes, [row.exec_device.bytes for row in columns])),
        ("exec bytes, host", *_bytes(told.plain_host.bytes, [row.exec_host.bytes for row in columns])),
    ]
    if any(row.refused for row in columns):
        rows.append(("updates refused, as on record", "-", *(f"{row.refused:,}" for row in columns)))
    lines += table(rows)
    lines += ["", *_conditions(columns)]
    for row in columns:
        lines += _splits(row, color)
    return "\n".join(lines)


def _bytes(plain: int | None, others: list[int | None]) -> list[str]:
    return [format_bytes(value) for value in (plain, *others)]


def _conditions(columns: tuple[Prediction, ...]) -> list[str]:
    """What holds of all columns: where bytes come from, and by which policy."""
    lines = []
    for first in columns[:1]:
        lines.append(f"bytes {first.exec_device.source.words}: {first.exec_device.how}")
        several = f", {first.execs_per_group} execs for a group that has as many graphs" if first.execs_per_group > 1 else ""
        bound = f", at most {first.max_execs:,} execs" if first.max_execs is not None else ""
        lines.append(f"placement {first.placement.value}{several}{bound}")
    return lines


def _splits(row: Prediction, color: bool) -> list[str]:
    if not row.splits:
        return []
    heading = f"what keeps groups apart with tier {row.tier.value}: the first difference with the nearest group before"
    lines = ["", _bold(heading, color)]
    for split in row.splits:
        example = one_line(split.example)
        shown = example if len(example) <= _MOST_CHARS else f"{example[: _MOST_CHARS - 3]}..."
        lines.append(f"  {split.groups:,} {'group' if split.groups == 1 else 'groups'}: {one_line(split.field)}, e.g. {shown}")
    return lines


def _bold(text: str, color: bool) -> str:
    return f"{_BOLD}{text}{_RESET}" if color else text
