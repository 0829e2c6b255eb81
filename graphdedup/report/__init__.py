"""Reports: versioned models, their text, and reading them back. A report is a pure function of a snapshot (rule M5)."""

from __future__ import annotations

from graphdedup.report.model import (
    BreakRow,
    DemoModel,
    DemoResult,
    Figure,
    FootprintReport,
    ModeResult,
    RefusalRow,
    SessionRow,
    Source,
)
from graphdedup.report.reading import read_report

__all__ = [
    "BreakRow",
    "DemoModel",
    "DemoResult",
    "Figure",
    "FootprintReport",
    "ModeResult",
    "RefusalRow",
    "SessionRow",
    "Source",
    "read_report",
]
