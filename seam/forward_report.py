"""What a captured forward tells of itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from seam.plan import MemoryPlan

__all__ = ["ForwardReport", "ShapeRow"]


@dataclass(frozen=True, slots=True)
class ShapeRow:
    """One captured shape. ``padded_rows`` were computed for nobody."""

    phase: str
    shape: int
    mode: str
    segments: int
    breaks: int
    calls: int
    live_rows: int
    padded_rows: int


@dataclass(frozen=True, slots=True)
class ForwardReport:
    """A snapshot. Bytes are of the static buffers, and what the allocator reserved for the pool."""

    label: str
    config: str
    rows: tuple[ShapeRow, ...]
    uncaptured_calls: Mapping[str, int]
    """Calls of the forward itself, by phase: not captured, or larger than every shape."""
    refused_calls: Mapping[str, int]
    input_bytes: int
    output_bytes: int
    pool_bytes: int | None
    """None where the allocator does not tell."""
    held_bytes: int = 0
    """Held for breaks alone, of the pool and outside of it: see :class:`seam.CrossingBytes`."""
    plan: MemoryPlan | None = None
    """What :meth:`seam.CapturedForward.plan` predicted, if it was asked, and what was measured since."""

    @property
    def padding(self) -> float:
        """The part of all replayed rows that was padding; 0 if nothing was replayed."""
        live, padded = (sum(getattr(row, name) for row in self.rows) for name in ("live_rows", "padded_rows"))
        return padded / (live + padded) if live + padded else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return asdict(self)

    def to_text(self) -> str:
        """A table, without a trailing newline."""
        names = ("phase", "shape", "mode", "segments", "breaks", "calls", "live rows", "padded rows")
        cells = [names, *((str(getattr(row, name.replace(" ", "_"))) for name in names) for row in self.rows)]
        table = [tuple(row) for row in cells]
        widths = [max(len(row[column]) for row in table) for column in range(len(names))]
        lines = [f"{self.label} ({self.config})"]
        for row in table:
            lines.append("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)))
        lines.append(f"padding {self.padding:.1%} of all rows")
        for what, calls in (("not captured", self.uncaptured_calls), ("refused", self.refused_calls)):
            if any(calls.values()):
                lines.append(f"calls {what}: {', '.join(f'{phase} {count}' for phase, count in calls.items() if count)}")
        held = f", held for breaks {self.held_bytes:,}" if self.held_bytes else ""
        pool = "unknown" if self.pool_bytes is None else f"{self.pool_bytes:,}"
        lines.append(f"bytes: inputs {self.input_bytes:,}, outputs {self.output_bytes:,}, pool {pool}{held}")
        if self.plan is not None:
            lines.append(self.plan.to_text())
        return "\n".join(lines)
