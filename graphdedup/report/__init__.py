"""Reports: versioned models, their renderings, and reading them back. A report is a pure function of a snapshot (rule M5)."""

from __future__ import annotations

from graphdedup.report.model import (
    AloneRow,
    BreakRow,
    DemoModel,
    DemoResult,
    Environment,
    ExecRow,
    Figure,
    FootprintReport,
    GroupRow,
    MemberRow,
    ModeResult,
    NodeRow,
    PoolRow,
    RefusalRow,
    SessionRow,
    Source,
    StageRow,
)
from graphdedup.report.reading import read_report

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
    "read_report",
]
