"""What one run of ``graphdedup demo`` measured, as a versioned model."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from graphdedup.report.base import Count, Frozen, Seconds
from graphdedup.report.rows import RefusalRow

__all__ = ["DemoModel", "DemoResult", "ModeResult"]


class DemoModel(Frozen):
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


class ModeResult(Frozen):
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


class DemoResult(Frozen):
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

    def to_markdown(self) -> str:
        """For a pull request, with a newline at its end."""
        from graphdedup.report.markdown import demo_markdown  # the renderer reads this module

        return demo_markdown(self)

    def to_html(self) -> str:
        """A page of its own that needs no network. Raises ``ReportError`` without the ``html`` extra."""
        from graphdedup.report.html import page  # the renderer reads this module

        return page(self)
