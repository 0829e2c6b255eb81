"""The report's models: frozen, versioned, and equal after a round trip through JSON."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from pydantic import ValidationError

from graphdedup.report import DemoResult, Figure, FootprintReport, ModeResult, Source


def test_m5_a_footprint_is_equal_after_a_round_trip(footprint: Callable[..., FootprintReport]) -> None:
    """M5: JSON is the source, so it loses nothing."""
    report = footprint()
    assert FootprintReport.from_json(report.to_json()) == report


def test_m5_a_demo_result_is_equal_after_a_round_trip(
    mode_result: Callable[..., ModeResult], demo_result: Callable[..., DemoResult]
) -> None:
    result = demo_result(full=mode_result(), breakable=mode_result(captured=1044, unfolded_captured=1044))
    assert DemoResult.from_json(result.to_json()) == result


def test_demo_json_has_the_documented_fields(demo_result: Callable[..., DemoResult]) -> None:
    """Whoever reads the file finds these names; without an unfolded capture its fields are null, not absent."""
    document = json.loads(demo_result().to_json())
    assert set(document) >= {"schema_version", "kind", "device", "driver_version", "torch_version", "model", "modes"}
    mode = document["modes"]["full"]
    assert set(mode) >= {
        "captured", "execs", "segments_per_graph", "compared", "mismatches", "updates", "refused",
        "exec_device_bytes", "exec_host_bytes", "pool_bytes", "bytes_source", "capture_seconds", "fold_seconds",
    }  # fmt: skip
    for name in ("unfolded_exec_device_bytes", "unfolded_exec_host_bytes", "unfolded_seconds", "unfolded_compared"):
        assert mode[name] is None


def test_a_report_cannot_be_changed(footprint: Callable[..., FootprintReport]) -> None:
    with pytest.raises(ValidationError, match="frozen"):
        footprint().captured = 1


@pytest.mark.parametrize("changes", [{"captured": -1}, {"walk_seconds": float("nan")}, {"surprise": 1}])
def test_nonsense_is_refused(changes: dict[str, object], footprint: Callable[..., FootprintReport]) -> None:
    with pytest.raises(ValidationError):
        footprint(**changes)


def test_m3_figures_of_one_source_add() -> None:
    one = Figure(bytes=3, source=Source.MODELLED, how="table")
    other = Figure(bytes=4, source=Source.MODELLED, how="table")
    assert one + other == Figure(bytes=7, source=Source.MODELLED, how="table")
    unknown = Figure(bytes=None, source=Source.MODELLED, how="no table")
    assert one + unknown == Figure(bytes=None, source=Source.MODELLED, how="table; no table")


def test_m3_figures_of_two_sources_never_add() -> None:
    """M3: a measured and a modelled figure have no sum."""
    modelled = Figure(bytes=3, source=Source.MODELLED, how="table")
    with pytest.raises(ValueError, match="M3"):
        modelled + Figure(bytes=4, source=Source.MEASURED_DEVICE, how="span")


def test_mismatches_count_every_mode_folded_or_not(
    mode_result: Callable[..., ModeResult], demo_result: Callable[..., DemoResult]
) -> None:
    result = demo_result(full=mode_result(mismatches=2), breakable=mode_result(mismatches=1, unfolded_mismatches=4))
    assert result.mismatches == 7
