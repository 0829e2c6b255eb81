"""The report's models: frozen, versioned, and equal after a round trip through JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from graphdedup.report import DemoResult, Figure, FootprintReport, ModeResult, Source, read_report
from graphdedup.report.schema import schema_text


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


def test_graphs_on_their_own_are_the_members_with_a_reason(grouped: Callable[..., FootprintReport]) -> None:
    report = grouped(5, alone=2)
    assert [(row.graph, row.why) for row in report.alone] == [
        ("decode bs=2 segment 1 (graph 4)", "node 1 differs"),
        ("decode bs=3 segment 0 (graph 5)", "node 2 differs"),
    ]
    assert [member.id for member in report.members] == [1, 2, 3, 4, 5]
    assert FootprintReport.from_json(report.to_json()) == report


def test_five_thousand_graphs_that_do_not_fold_are_a_file_of_a_few_megabytes(
    grouped: Callable[..., FootprintReport],
) -> None:
    assert len(grouped(5_000, alone=4_999).to_json()) < 5_000_000


def test_m3_a_sum_of_figures_has_no_peak() -> None:
    """M3: peaks of two figures need not have been at one time."""
    one = Figure(bytes=3, source=Source.MODELLED, how="table", peak_bytes=5)
    assert (one + one).peak_bytes is None


def version_1(report: FootprintReport) -> dict[str, Any]:
    """A report's JSON as the first schema had it."""
    later = ("environment", "stages", "plain_device", "plain_host", "allocator", "process", "host", "pools", "group_rows")
    document: dict[str, Any] = json.loads(report.to_json())
    for name in (*later, "node_rows", "listed_alone"):
        del document[name]
    for name in ("exec_device", "exec_host", "pool"):
        del document[name]["peak_bytes"]
    document["sessions"] = [{"name": row.name, "captured": row.captured, "execs": row.execs} for row in report.sessions]
    return document | {"schema_version": 1, "alone": [{"graph": "c segment 0 (graph 3)", "why": "2 nodes against 1"}]}


def test_a_file_of_the_first_schema_is_read_and_rendered(footprint: Callable[..., FootprintReport], tmp_path: Path) -> None:
    """What it does not have is missing, and nothing is made up: it lists of all graphs only those on their own."""
    document = version_1(footprint())
    file = tmp_path / "old.json"
    file.write_text(json.dumps(document))
    report = read_report(file)
    assert isinstance(report, FootprintReport)
    assert report == FootprintReport.from_json(json.dumps(document))
    assert (report.schema_version, report.captured, report.group_rows, report.environment) == (2, 1044, (), None)
    assert [(row.graph, row.why) for row in report.alone] == [("c segment 0 (graph 3)", "2 nodes against 1")]
    assert FootprintReport.from_json(report.to_json()) == report
    for text in (report.to_text(), report.to_markdown()):
        assert "2 nodes against 1" in text


def test_the_published_schema_is_up_to_date(pytestconfig: pytest.Config) -> None:
    """graphdedup report --schema > docs/report-schema.json"""
    held = json.loads((pytestconfig.rootpath / "docs" / "report-schema.json").read_text())
    assert held == json.loads(schema_text())
    assert set(held["discriminator"]["mapping"]) == {"graphdedup.footprint", "graphdedup.demo"}
