"""What a report holds: frozen, versioned models. JSON is the source, every other form is rendered from it (rule M5).

Two kinds of file: a :class:`FootprintReport` (``graphdedup.footprint``) is one backend's snapshot, a
:class:`DemoResult` (``graphdedup.demo``) is what one run of the demo measured.
"""

from __future__ import annotations

from typing import Literal

from graphdedup.report.base import Count, Figure, Frozen, Seconds, Source
from graphdedup.report.demo import DemoModel, DemoResult, ModeResult
from graphdedup.report.rows import (
    AloneRow,
    BreakRow,
    Environment,
    ExecRow,
    GroupRow,
    MemberRow,
    NodeRow,
    PoolRow,
    RefusalRow,
    SessionRow,
    StageRow,
    TimelineRow,
)
from graphdedup.report.versions import upgraded_text

__all__ = [
    "AloneRow",
    "BreakRow",
    "DemoModel",
    "DemoResult",
    "Environment",
    "ExecRow",
    "Figure",
    "FootprintReport",
    "GroupRow",
    "MemberRow",
    "ModeResult",
    "NodeRow",
    "PoolRow",
    "RefusalRow",
    "SessionRow",
    "Source",
    "StageRow",
    "TimelineRow",
]


class FootprintReport(Frozen):
    """A snapshot of one dedup backend: what was captured, what it folded to, and what that costs.

    ``execs`` are alive now, ``peak_execs`` is what memory was paid for: a driver keeps the memory of a destroyed
    executable for the next one. ``nodes`` counts the nodes of all live graphs. ``unfolded`` counts graphs that
    folded and later had to get an executable of their own. For the other counts see :class:`graphdedup.Stats`.
    Figures of different sources are never added (rule M3).
    """

    schema_version: Literal[2] = 2
    kind: Literal["graphdedup.footprint"] = "graphdedup.footprint"
    device: str
    driver_version: str
    torch_version: str
    environment: Environment | None = None
    """None in a file of schema version 1, as everything below that a default stands at."""
    sessions: tuple[SessionRow, ...] = ()
    stages: tuple[StageRow, ...] = ()
    """Before the first capture, after the last session, and when the report was made."""
    breaks: tuple[BreakRow, ...] = ()
    captured: Count
    execs: Count
    peak_execs: Count
    groups: Count
    """Distinct records; see ``group_rows`` for the groups themselves."""
    nodes: Count
    updates: Count
    launches: Count
    refused: Count
    unfolded: Count
    passed_through: Count
    replay_updates: Count = 0
    replay_updates_over_time: TimelineRow = TimelineRow()
    """When replays had to re-point their executable."""
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
    exec_device: Figure
    exec_host: Figure
    plain_device: Figure | None = None
    """Modelled: what the live graphs would take with an executable each."""
    plain_host: Figure | None = None
    libraries: Figure | None = None
    """What else grew on the device while graphs were captured: modules, and what the driver and libraries took unseen by
    torch. None where nothing is measured."""
    pool: Figure
    allocator: Figure | None = None
    """What torch's allocator holds on the device, pools included. None without a GPU."""
    process: Figure | None = None
    """Device memory of this process, or of the device where the process cannot be told apart. None without a GPU."""
    host: Figure | None = None
    """Resident memory of this process."""
    walk_seconds: Seconds
    fold_seconds: Seconds
    instantiate_seconds: Seconds
    pools: tuple[PoolRow, ...] = ()
    group_rows: tuple[GroupRow, ...] = ()
    """Every live graph is a member of one of them."""
    node_rows: tuple[NodeRow, ...] = ()
    """The most frequent first; the last one may stand for all the others."""
    listed_alone: tuple[AloneRow, ...] = ()
    """Of a file of schema version 1, which lists no other graphs; see :attr:`alone`."""

    @property
    def updates_per_replay(self) -> float | None:
        """How often a replay had to re-point its executable: 0 never, 1 always; None before the first replay."""
        return self.replay_updates / self.launches if self.launches else None

    @property
    def members(self) -> tuple[MemberRow, ...]:
        """All live graphs, in the order of their capture."""
        return tuple(sorted((member for group in self.group_rows for member in group.members), key=lambda one: one.id))

    @property
    def alone(self) -> tuple[AloneRow, ...]:
        """A row for each live graph that shares its executable with nobody, where there are others."""
        rows = (AloneRow(graph=f"{one.name} (graph {one.id})", why=one.why) for one in self.members if one.why)
        return self.listed_alone or tuple(rows)

    @classmethod
    def from_json(cls, text: str) -> FootprintReport:
        """The report that ``to_json`` wrote, now or in schema version 1. Raises ``pydantic.ValidationError`` for anything
        else."""
        return cls.model_validate_json(upgraded_text(text))

    def to_text(self, color: bool = False) -> str:
        """A table for a terminal, without a trailing newline; ``color`` adds ANSI colours."""
        from graphdedup.report.text import footprint_text  # the renderer reads this module

        return footprint_text(self, color=color)

    def to_markdown(self) -> str:
        """For a pull request, with a newline at its end."""
        from graphdedup.report.markdown import footprint_markdown  # the renderer reads this module

        return footprint_markdown(self)

    def to_html(self) -> str:
        """A page of its own that needs no network. Raises ``ReportError`` without the ``html`` extra."""
        from graphdedup.report.html import page  # the renderer reads this module

        return page(self)
