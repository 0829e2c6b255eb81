"""What a report holds: frozen, versioned models. JSON is the source, every other form is rendered from it (rule M5).

Two kinds of file: a :class:`FootprintReport` (``graphdedup.footprint``) is one backend's snapshot, a
:class:`DemoResult` (``graphdedup.demo``) is what one run of the demo measured.
"""

from __future__ import annotations

import enum
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

__all__ = [
    "AloneRow",
    "BreakRow",
    "DemoModel",
    "DemoResult",
    "Figure",
    "FootprintReport",
    "ModeResult",
    "RefusalRow",
    "SessionRow",
    "Source",
]

Count = Annotated[int, Field(ge=0)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    def to_json(self) -> str:
        """The model as indented JSON text; :meth:`from_json` of the same class gives an equal model back."""
        return self.model_dump_json(indent=2)


class Source(enum.StrEnum):
    """Where a figure comes from (rule M3)."""

    MEASURED_DEVICE = "measured_device"
    MEASURED_HOST = "measured_host"
    MODELLED = "modelled"

    @property
    def words(self) -> str:
        """For a reader: ``"measured on the device"``, ``"measured on the host"`` or ``"modelled"``."""
        return {
            Source.MEASURED_DEVICE: "measured on the device",
            Source.MEASURED_HOST: "measured on the host",
            Source.MODELLED: "modelled",
        }[self]


class Figure(_Frozen):
    """A number of bytes that says what it is. ``bytes`` is None where nothing could be read; ``how`` says why."""

    bytes: int | None
    source: Source
    how: str

    def __add__(self, other: Figure) -> Figure:
        """The sum of two figures of one source; unknown if either is.

        Raises:
            ValueError: the sources differ. Such figures are never added (rule M3).
        """
        if self.source is not other.source:
            raise ValueError(
                f"a figure {self.source.words} and one {other.source.words} are never added [rule M3] "
                "Remedy: report them side by side."
            )
        total = None if self.bytes is None or other.bytes is None else self.bytes + other.bytes
        how = self.how if self.how == other.how else f"{self.how}; {other.how}"
        return Figure(bytes=total, source=self.source, how=how)


class RefusalRow(_Frozen):
    """Graphs that got an executable of their own for one reason, with the first one met as the example."""

    reason: str
    count: Count
    example: str


class AloneRow(_Frozen):
    """A live graph that shares its executable with nobody, and why: a reason on record, or how the nearest graph differs."""

    graph: str
    why: str


class SessionRow(_Frozen):
    """One capture session: how many graphs it captured, and how many executables those made necessary."""

    name: str
    captured: Count
    execs: Count


class BreakRow(_Frozen):
    """A break that live graphs were split at: its name, where the forward met it, and how many segments follow it."""

    name: str
    segments: Count


class FootprintReport(_Frozen):
    """A snapshot of one dedup backend: what was captured, what it folded to, and what that costs.

    ``execs`` are alive now, ``peak_execs`` is what memory was paid for: a driver keeps the memory of a destroyed
    executable for the next one. ``nodes`` counts the nodes of all captured graphs. ``unfolded`` counts graphs that
    folded and later had to get an executable of their own. For the others see :class:`graphdedup.Stats`.
    """

    schema_version: Literal[1] = 1
    kind: Literal["graphdedup.footprint"] = "graphdedup.footprint"
    device: str
    driver_version: str
    torch_version: str
    sessions: tuple[SessionRow, ...] = ()
    breaks: tuple[BreakRow, ...] = ()
    captured: Count
    execs: Count
    peak_execs: Count
    groups: Count
    nodes: Count
    updates: Count
    launches: Count
    refused: Count
    unfolded: Count
    passed_through: Count
    replay_updates: Count = 0
    splits: Count = 0
    evictions: Count = 0
    refreshes: Count = 0
    verified: Count = 0
    mismatches: Count = 0
    opaque_nodes: Count = 0
    tier: str = ""
    plan_digest: str = ""
    """Equal in every process that captured and folded the same graphs alike."""
    refusals: tuple[RefusalRow, ...] = ()
    unfoldings: tuple[RefusalRow, ...] = ()
    alone: tuple[AloneRow, ...] = ()
    exec_device: Figure
    exec_host: Figure
    libraries: Figure | None = None
    """What else grew on the device while graphs were captured: modules, and what the driver and libraries took unseen by
    torch. None where nothing is measured."""
    pool: Figure
    walk_seconds: Seconds
    fold_seconds: Seconds
    instantiate_seconds: Seconds

    @property
    def updates_per_replay(self) -> float | None:
        """How often a replay had to re-point its executable: 0 never, 1 always; None before the first replay."""
        return self.replay_updates / self.launches if self.launches else None

    @classmethod
    def from_json(cls, text: str) -> FootprintReport:
        """The report that ``to_json`` wrote. Raises ``pydantic.ValidationError`` for anything else."""
        return cls.model_validate_json(text)

    def to_text(self, color: bool = False) -> str:
        """A table for a terminal, without a trailing newline; ``color`` adds ANSI colours."""
        from graphdedup.report.text import footprint_text  # the renderer reads this module

        return footprint_text(self, color=color)


class DemoModel(_Frozen):
    """The transformer of a demo run. ``dtype`` is torch's name for it, such as ``"bfloat16"``."""

    name: str
    layers: Count
    hidden: Count
    heads: Count
    kv_heads: Count
    head_dim: Count
    mlp: Count
    vocab: Count
    max_seq: Count
    dtype: str
    parameters: Count


class ModeResult(_Frozen):
    """One capture mode of a demo run.

    ``captured`` counts segments: a size captured in FULL mode is one, in BREAKABLE mode one more than the model has
    layers. ``compared`` counts replays compared with the eager forward, ``mismatches`` those that differed in any bit.
    The ``unfolded_*`` fields come from a second capture without folding, in a process of its own, and are None when
    none was made. ``pool_bytes`` is measured by the allocator, None if it does not tell; ``bytes_source`` speaks for the bytes
    of executables.
    """

    captured: Count
    execs: Count
    peak_execs: Count
    groups: Count
    nodes: Count
    segments_per_graph: Count
    sizes: tuple[int, ...]
    rounds: Count
    compared: Count
    mismatches: Count
    updates: Count
    launches: Count
    refused: Count
    unfolded: Count
    passed_through: Count
    refusals: tuple[RefusalRow, ...] = ()
    bytes_source: Literal["measured", "modelled"]
    bytes_how: str
    exec_device_bytes: int | None
    exec_host_bytes: int | None
    pool_bytes: Count | None
    capture_seconds: Seconds
    fold_seconds: Seconds
    unfolded_captured: Count | None = None
    unfolded_compared: Count | None = None
    unfolded_mismatches: Count | None = None
    unfolded_exec_device_bytes: int | None = None
    unfolded_exec_host_bytes: int | None = None
    unfolded_seconds: Seconds | None = None

    @property
    def total_mismatches(self) -> int:
        """Mismatches of the folded and of the unfolded capture together."""
        return self.mismatches + (self.unfolded_mismatches or 0)


class DemoResult(_Frozen):
    """What one run of ``graphdedup demo`` measured; ``modes`` maps ``"full"`` and ``"breakable"`` to their results."""

    schema_version: Literal[1] = 1
    kind: Literal["graphdedup.demo"] = "graphdedup.demo"
    device: str
    driver_version: str
    torch_version: str
    command: str
    seed: int
    tier: str = "structure"
    model: DemoModel
    modes: dict[Literal["full", "breakable"], ModeResult] = Field(min_length=1)

    @property
    def mismatches(self) -> int:
        """Replays that differed from eager, over all modes, folded or not."""
        return sum(mode.total_mismatches for mode in self.modes.values())

    @classmethod
    def from_json(cls, text: str) -> DemoResult:
        """The result that ``to_json`` wrote. Raises ``pydantic.ValidationError`` for anything else."""
        return cls.model_validate_json(text)

    def to_text(self, color: bool = False) -> str:
        """A table for a terminal, without a trailing newline; ``color`` adds ANSI colours."""
        from graphdedup.report.text import demo_text  # the renderer reads this module

        return demo_text(self, color=color)
