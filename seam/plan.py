"""How much memory a ladder will take, told from captures of a few of its smaller shapes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, overload

_EXECS = "execs"
_STEP_BYTES = 2 << 20
"""Drivers take device memory in steps of this: a few small executables cost one step, or none if there is room."""

__all__ = ["MemoryPlan", "PhaseSamples", "PlanRow", "Sample", "predict", "sample_shapes"]


class Sample(NamedTuple):
    """What one shape took, captured into a pool of its own."""

    shape: int
    pool_bytes: int
    """Reserved by the pool: activations, what crosses breaks, and outputs that are not shared."""
    output_bytes: int
    held_bytes: int
    """Held for breaks alone, see :class:`seam.CrossingBytes`; what of it lies in the pool is in ``pool_bytes`` too."""
    exec_bytes: int | None
    """Device bytes of the executables since before the samples, modelled; None where the backend does not tell."""


@dataclass(frozen=True, slots=True)
class PhaseSamples:
    """The samples of one phase, the smaller one first, and the ladder that they stand for."""

    ladder: tuple[int, ...]
    samples: tuple[Sample, Sample]
    shares_outputs: bool

    def at(self, what: str, shape: int) -> int:
        """A figure at a shape: on the line through both samples, and never less than nothing."""
        low, high = self.samples
        first: int = getattr(low, what)
        second: int = getattr(high, what)
        if low.shape == high.shape:
            return first
        return max(0, round(first + (second - first) * (shape - low.shape) / (high.shape - low.shape)))

    def pool_bytes(self) -> int:
        """What the pool takes for the whole ladder: the largest shape; outputs that are not shared come on top of it."""
        rest = 0 if self.shares_outputs else sum(self.at("output_bytes", shape) for shape in self.ladder[:-1])
        return self.at("pool_bytes", self.ladder[-1]) + rest


@dataclass(frozen=True, slots=True)
class PlanRow:
    """One kind of memory. Rows are never added together: they are measured in different ways (rule M3)."""

    name: str
    predicted_bytes: int
    measured_bytes: int | None = None
    """After the capture of all shapes; None before it."""


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """What a ladder will take, and, after its capture, what it took."""

    label: str
    samples: Mapping[str, tuple[int, ...]]
    """The shapes that were captured for the prediction, by phase."""
    rows: tuple[PlanRow, ...]

    def measured(self, measured: Mapping[str, int | None]) -> MemoryPlan:
        """The same with what was measured, by the names of the rows."""
        told = {**measured, _EXECS: _whole_steps(measured.get(_EXECS))}
        rows = tuple(PlanRow(row.name, row.predicted_bytes, told.get(row.name)) for row in self.rows)
        return MemoryPlan(self.label, self.samples, rows)

    def row(self, name: str) -> PlanRow:
        """The row of a name, such as ``"pool"``."""
        return next(row for row in self.rows if row.name == name)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return asdict(self)

    def to_text(self) -> str:
        """A table, without a trailing newline."""
        cells = [("bytes", "predicted", "measured")]
        for row in self.rows:
            told = "" if row.measured_bytes is None else f"{row.measured_bytes:,}"
            cells.append((row.name, f"{row.predicted_bytes:,}", told))
        widths = [max(len(line[column]) for line in cells) for column in range(3)]
        samples = "; ".join(f"{phase} {', '.join(map(str, shapes))}" for phase, shapes in self.samples.items())
        lines = [f"memory of {self.label}, predicted from {samples}"]
        lines += [f"{name:<{widths[0]}}  {told:>{widths[1]}}  {seen:>{widths[2]}}".rstrip() for name, told, seen in cells]
        return "\n".join(lines)


def sample_shapes(ladder: Sequence[int]) -> tuple[int, int]:
    """Two shapes to predict a ladder from, nearest to an eighth and a quarter of the largest one, left out of three."""
    candidates = ladder[:-1] if len(ladder) > 2 else ladder
    high = min(candidates, key=lambda shape: (abs(shape - ladder[-1] / 4), shape))
    low = min((shape for shape in candidates if shape != high), key=lambda shape: abs(shape - ladder[-1] / 8), default=high)
    return min(low, high), max(low, high)


def predict(label: str, input_bytes: int, phases: Mapping[str, PhaseSamples]) -> MemoryPlan:
    """Predict from the samples of each phase; all phases share a pool.

    Rows: ``inputs``; ``outputs``, those that shapes share; ``pool``; ``held for breaks``; ``execs``, modelled and in whole
    steps of 2 MB, if the backend tells.
    """
    known = list(phases.values())
    rows = [
        PlanRow("inputs", input_bytes),
        PlanRow("outputs", sum(phase.at("output_bytes", phase.ladder[-1]) for phase in known if phase.shares_outputs)),
        PlanRow("pool", max((phase.pool_bytes() for phase in known), default=0)),
        PlanRow("held for breaks", sum(phase.at("held_bytes", shape) for phase in known for shape in phase.ladder)),
    ]
    if known and all(sample.exec_bytes is not None for phase in known for sample in phase.samples):
        modelled = sum(_exec_bytes(phase.samples, len(phase.ladder)) for phase in known)
        rows.append(PlanRow(_EXECS, _whole_steps(modelled)))
    shapes = {name: tuple(sorted({sample.shape for sample in phase.samples})) for name, phase in phases.items()}
    return MemoryPlan(label, shapes, tuple(rows))


@overload
def _whole_steps(size_bytes: int) -> int: ...
@overload
def _whole_steps(size_bytes: None) -> None: ...
def _whole_steps(size_bytes: int | None) -> int | None:
    return None if size_bytes is None else -(-size_bytes // _STEP_BYTES) * _STEP_BYTES


def _exec_bytes(samples: Sequence[Sample], shapes: int) -> int:
    """Executables that the second sample added are added by every further shape; folded, that is none."""
    first, second = (sample.exec_bytes or 0 for sample in samples)
    return first + (second - first) * (shapes - 1)
