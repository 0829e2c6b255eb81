"""Two reports of one kind, side by side: what ran where, what became more or less, which reasons came and went."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict

from graphdedup.errors import ReportError
from graphdedup.report.flat import FlatFigure, flatten
from graphdedup.report.model import DemoResult, FootprintReport
from graphdedup.report.text import format_bytes, table
from graphdedup.report.words import field_words, one_line, signed

__all__ = ["CountRow", "Difference", "EnvironmentRow", "FigureRow", "SecondsRow", "difference", "one_kind"]

Report = FootprintReport | DemoResult
_BOLD, _RESET = "\x1b[1m", "\x1b[0m"
_MISSING = "-"
_LINE = 90


class _Row(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str


class EnvironmentRow(_Row):
    """Something of what ran where that differs; None: the report does not have it."""

    left: str | None
    right: str | None


class CountRow(_Row):
    """A counter, or how often a reason stands in each report; None: the report does not have it."""

    left: int | None
    right: int | None


class SecondsRow(_Row):
    """Seconds of each; None: the report does not have them."""

    left: float | None
    right: float | None


class FigureRow(_Row):
    """Bytes of each, with what they are. They are comparable only where both are known and of one source (rule M3)."""

    left: int | None
    right: int | None
    left_source: str | None
    right_source: str | None
    comparable: bool


class Difference(BaseModel):
    """Two reports of one kind. ``environment`` has what differs; the others have a row for everything that either tells."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: Literal[1] = 1
    kind: Literal["graphdedup.difference"] = "graphdedup.difference"
    compared: str
    """The kind of both reports."""
    left_name: str
    right_name: str
    environment: tuple[EnvironmentRow, ...]
    counters: tuple[CountRow, ...]
    seconds: tuple[SecondsRow, ...]
    figures: tuple[FigureRow, ...]
    reasons: tuple[CountRow, ...]
    same_plan: bool | None
    """Whether both fold plans have one digest; None where a report has none."""

    def to_json(self, *, indent: int | None = 2) -> str:
        """All of it as JSON."""
        return self.model_dump_json(indent=indent)

    def to_text(self, color: bool = False) -> str:
        """What differs, the environment first; ``color`` adds ANSI colours."""
        return _text(self, color)


def one_kind(reports: list[Report], names: list[str]) -> str:
    """The kind of all of these reports.

    Raises:
        ReportError: they are of several; the message names two files.
    """
    for report, name in zip(reports, names, strict=True):
        if report.kind != reports[0].kind:
            raise ReportError(
                f"{names[0]} is of kind {reports[0].kind}, {name} of kind {report.kind}: they cannot be compared.",
                remedy="give files of one kind.",
            )
    return reports[0].kind


def difference(left: Report, right: Report, *, left_name: str = "left", right_name: str = "right") -> Difference:
    """Compare two reports of one kind.

    Raises:
        ReportError: they are of two kinds.
    """
    kind = one_kind([left, right], [left_name, right_name])
    one, other = flatten(left), flatten(right)
    return Difference(
        compared=kind,
        left_name=left_name,
        right_name=right_name,
        environment=tuple(
            EnvironmentRow(name=name, left=one.environment.get(name), right=other.environment.get(name))
            for name in dict.fromkeys((*one.environment, *other.environment))
            if one.environment.get(name) != other.environment.get(name)
        ),
        counters=_counts(one.counters, other.counters),
        seconds=tuple(
            SecondsRow(name=name, left=one.seconds.get(name), right=other.seconds.get(name))
            for name in dict.fromkeys((*one.seconds, *other.seconds))
        ),
        figures=tuple(
            _figure(name, one.figures.get(name), other.figures.get(name))
            for name in dict.fromkeys((*one.figures, *other.figures))
        ),
        reasons=_counts(one.reasons, other.reasons),
        same_plan=one.plan_digest == other.plan_digest if one.plan_digest and other.plan_digest else None,
    )


def _counts(left: dict[str, int], right: dict[str, int]) -> tuple[CountRow, ...]:
    return tuple(CountRow(name=name, left=left.get(name), right=right.get(name)) for name in dict.fromkeys((*left, *right)))


def _figure(name: str, left: FlatFigure | None, right: FlatFigure | None) -> FigureRow:
    one, other = left or FlatFigure(None, "", ""), right or FlatFigure(None, "", "")
    return FigureRow(
        name=name,
        left=one.bytes,
        right=other.bytes,
        left_source=one.source if left is not None else None,
        right_source=other.source if right is not None else None,
        comparable=one.bytes is not None and other.bytes is not None and one.source == other.source,
    )


# Text


def _text(told: Difference, color: bool) -> str:
    lines = [_bold(f"graphdedup report: {one_line(told.left_name)} against {one_line(told.right_name)}", color)]
    if told.environment:
        lines += ["", _bold("environment", color)]
        for row in told.environment:
            left, right = _shown(row.left), _shown(row.right)
            between = " -> " if len(left) + len(right) <= _LINE else "\n    -> "
            lines.append(f"{field_words(row.name)}: {left}{between}{right}")
    else:
        lines.append("same environment")
    rows = [
        (field_words(row.name), _number(row.left), _number(row.right), _change(row.left, row.right))
        for row in told.counters
        if row.left != row.right
    ]
    equal = len(told.counters) - len(rows)
    lines += _section("counters", rows, color, f"{equal:,} other counters are equal" if rows else "all counters are equal")
    lines += ["", _bold("bytes", color)]
    figures = [_figure_row(row) for row in told.figures if row.left is not None or row.right is not None]
    aligned = table([cells for cells, _ in figures])
    lines += [f"{line}  {source}" for line, (_, source) in zip(aligned, figures, strict=True)]
    seconds = [
        (field_words(row.name), _seconds(row.left), _seconds(row.right), _seconds_change(row.left, row.right))
        for row in told.seconds
        if row.left != row.right
    ]
    lines += _section("seconds", seconds, color)
    for title, rows_of in (
        ("appeared", [row for row in told.reasons if not row.left]),
        ("went", [row for row in told.reasons if not row.right]),
        ("other counts", [row for row in told.reasons if row.left and row.right and row.left != row.right]),
    ):
        counted = [(_number(row.left), _number(row.right), one_line(row.name)) for row in rows_of]
        if counted:
            lines += ["", _bold(f"reasons: {title}", color), *(f"  {a} -> {b}  {name}" for a, b, name in counted)]
    if told.same_plan is not None:
        lines += ["", "the fold plans are equal" if told.same_plan else "the fold plans differ"]
    return "\n".join(lines)


def _section(title: str, rows: Sequence[tuple[str, ...]], color: bool, last: str = "") -> list[str]:
    if not rows and not last:
        return []
    return ["", _bold(title, color), *table(rows), *([last] if last else [])]


def _figure_row(row: FigureRow) -> tuple[tuple[str, ...], str]:
    """Its cells, and what the figures are."""
    sources = [source or "not in the report" for source in (row.left_source, row.right_source)]
    if row.comparable:
        change = f"{'+' if (row.right or 0) > (row.left or 0) else ''}{format_bytes((row.right or 0) - (row.left or 0))}"
        return (field_words(row.name), format_bytes(row.left), format_bytes(row.right), change), sources[0]
    told = sources[0] if sources[0] == sources[1] else f"{sources[0]} against {sources[1]}"
    return (field_words(row.name), format_bytes(row.left), format_bytes(row.right), "not comparable"), told


def _shown(value: str | None) -> str:
    return _MISSING if value is None else one_line(value) or '""'


def _number(value: int | None) -> str:
    return _MISSING if value is None else f"{value:,}"


def _change(left: int | None, right: int | None) -> str:
    return "" if left is None or right is None else signed(right - left)


def _seconds(value: float | None) -> str:
    return _MISSING if value is None else f"{value:.3f}"


def _seconds_change(left: float | None, right: float | None) -> str:
    return "" if left is None or right is None else f"{right - left:+.3f}"


def _bold(text: str, color: bool) -> str:
    return f"{_BOLD}{text}{_RESET}" if color else text
