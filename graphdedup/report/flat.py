"""A report as flat rows, whatever its kind: what ran where, counters, seconds, figures, and reasons, each by name.

Rows are found by what a field is and by the unit in its name, so that a field which a later schema adds is a row as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pydantic import BaseModel

from graphdedup.report.model import Figure

__all__ = ["FlatFigure", "FlatReport", "flatten"]

_LEFT_OUT = frozenset(
    {"schema_version", "kind", "plan_digest", "rank", "bytes_source", "bytes_how", "replay_updates_over_time"}
)
_SETTINGS = frozenset({"seed", "rounds", "sizes", "model", "environment"})
"""Numbers of what was run, not of what came out."""
_SESSION, _AFTER = "session ", "segments after "
_FIRST = ("device", "driver_version", "torch_version", "tier")


@dataclass(frozen=True, slots=True)
class FlatFigure:
    """Bytes, and what they are (rule M3). ``source`` is in words, such as ``"measured on the device"``."""

    bytes: int | None
    source: str
    how: str


@dataclass(slots=True)
class FlatReport:
    """The rows of one report, by name. Names of a part have its name ahead, such as ``"full: execs"``."""

    kind: str
    rank: int | None = None
    plan_digest: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    counters: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    figures: dict[str, FlatFigure] = field(default_factory=dict)
    reasons: dict[str, int] = field(default_factory=dict)
    """Counts by where they stand and the reason, such as ``"refusals: TOPOLOGY_CHANGED"``."""


def flatten(report: BaseModel) -> FlatReport:
    """The rows of a report of any kind."""
    flat = FlatReport(kind=str(getattr(report, "kind", "")))
    rank = getattr(report, "rank", getattr(getattr(report, "environment", None), "rank", None))
    flat.rank = rank if isinstance(rank, int) and not isinstance(rank, bool) else None
    flat.plan_digest = str(getattr(report, "plan_digest", "") or "")
    _part(report, "", flat, settings=False)
    flat.environment = {name: flat.environment[name] for name in sorted(flat.environment, key=_place)}
    flat.counters = {name: flat.counters[name] for name in sorted(flat.counters, key=_of_a_row)}
    return flat


def _place(name: str) -> int:
    return _FIRST.index(name) if name in _FIRST else len(_FIRST)


def _of_a_row(name: str) -> bool:
    """Whether a counter is of one session or break: those come after the sums."""
    return name.startswith((_SESSION, _AFTER))


def _part(part: BaseModel, ahead: str, flat: FlatReport, *, settings: bool) -> None:
    for name in type(part).model_fields:
        if name in _LEFT_OUT:
            continue
        value = getattr(part, name)
        label = f"{ahead}{name}"
        settled = settings or name in _SETTINGS
        if isinstance(value, Figure):
            flat.figures[label] = FlatFigure(value.bytes, value.source.words, value.how)
        elif isinstance(value, BaseModel):
            _part(value, f"{label}: ", flat, settings=settled)
        elif isinstance(value, Mapping):
            for key, inner in value.items():
                if isinstance(inner, BaseModel):
                    _part(inner, f"{ahead}{key}: ", flat, settings=settled)
        elif isinstance(value, tuple):
            _rows(value, name, label, ahead, flat)
        elif name.endswith("_bytes") and not settled:
            if value is not None or "bytes_source" in type(part).model_fields:
                flat.figures[label] = FlatFigure(value, *_source(part, name))
        elif isinstance(value, str) or settled:
            flat.environment[label] = str(value)
        elif isinstance(value, int):
            flat.counters[label] = int(value)
        elif isinstance(value, float):
            flat.seconds[label] = value


def _source(part: BaseModel, name: str) -> tuple[str, str]:
    """Of a plain number of bytes; a part has one source for all that it says of executables."""
    if name == "pool_bytes":
        return "measured", "by the allocator of the pool"
    return str(getattr(part, "bytes_source", "source not told")), str(getattr(part, "bytes_how", ""))


def _rows(rows: tuple[object, ...], name: str, label: str, ahead: str, flat: FlatReport) -> None:
    """Rows of a table: reasons with their counts, sessions and breaks with theirs, graphs with the reason why."""
    if not any(isinstance(row, BaseModel) for row in rows):
        if rows:
            flat.environment[label] = ", ".join(map(str, rows))
        return
    for row in rows:
        if hasattr(row, "reason") and hasattr(row, "count"):
            key = f"{label}: {row.reason}"
            flat.reasons[key] = flat.reasons.get(key, 0) + row.count
        elif hasattr(row, "graph") and hasattr(row, "why"):
            flat.reasons[f"{label}: {row.graph}: {row.why}"] = 1
        elif hasattr(row, "name") and hasattr(row, "captured") and hasattr(row, "execs"):
            for what in ("captured", "execs"):
                key = f"{ahead}{_SESSION}{row.name or '(unnamed)'}: {what}"
                flat.counters[key] = flat.counters.get(key, 0) + getattr(row, what)
        elif hasattr(row, "name") and hasattr(row, "segments"):
            flat.counters[f"{ahead}{_AFTER}{row.name}"] = row.segments
