"""Graphs made by hand, and reports, as their own tests make them."""

from __future__ import annotations

from tests.unit.explain.conftest import h200, make
from tests.unit.report.conftest import demo_result, footprint, mode_result

__all__ = ["demo_result", "footprint", "h200", "make", "mode_result"]
