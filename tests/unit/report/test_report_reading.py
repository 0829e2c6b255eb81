"""Reading a report file: either kind comes back equal, anything else is one line with the file's name and a remedy."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from graphdedup.errors import ReportError
from graphdedup.report import DemoResult, FootprintReport, read_report
from graphdedup.report.reading import MAX_REPORT_BYTES


def test_both_kinds_come_back_equal(
    tmp_path: Path, footprint: Callable[..., FootprintReport], demo_result: Callable[..., DemoResult]
) -> None:
    for report in (footprint(), demo_result()):
        file = tmp_path / "report.json"
        file.write_text(report.to_json())
        assert read_report(file) == report


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("", "not JSON"),
        ("captured 36 graphs", "not JSON"),
        ('{"kind": ', "not JSON"),
        ("[1, 2]", "a JSON list, not an object"),
        ("null", "a JSON NoneType, not an object"),
        ("[" * 100_000, "not JSON"),
        ("{}", "has no kind"),
        ('{"kind": "somebody.else"}', 'is of kind "somebody.else"'),
        ('{"kind": ["graphdedup.demo"]}', "is of kind"),
        ({"schema_version": 3}, "schema_version 3 is newer"),
        ({"schema_version": "1"}, "not a whole number"),
        ({"schema_version": ...}, "not a whole number"),
        ({"schema_version": True}, "not a whole number"),
        ({"captured": ...}, "captured: Field required"),
        ({"captured": "36"}, "captured: Input should be a valid integer"),
        ({"captured": -1}, "captured: Input should be greater"),
        ({"group_rows": [{"id": 0, "members": [{"id": 1}]}]}, "group_rows.0.members.0.label: Field required (and 3 more)"),
        ({"schema_version": 1, "listed_alone": []}, "schema_version: Input should be 2"),
        ({"kind": "graphdedup.demo", "schema_version": 2}, "schema_version 2 is newer than this release reads (1)"),
        ({"surprise": 1}, "surprise: Extra inputs are not permitted"),
        ({"exec_device": {"bytes": 1, "source": "guessed", "how": ""}}, "exec_device.source"),
    ],
)
def test_what_is_no_report_is_refused_in_one_line(
    tmp_path: Path, footprint: Callable[..., FootprintReport], content: str | dict[str, Any], expected: str
) -> None:
    """``content`` is the file's text, or what to change in a good report (``...``: leave it out)."""
    if isinstance(content, dict):
        document = {**json.loads(footprint().to_json()), **content}
        content = json.dumps({name: value for name, value in document.items() if value is not ...})
    file = tmp_path / "some.json"
    file.write_text(content)
    with pytest.raises(ReportError) as caught:
        read_report(file)
    message = str(caught.value)
    assert expected in message
    assert message.startswith(str(file))
    assert "Remedy: " in message
    assert "\n" not in message


def test_missing_foreign_and_huge_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ReportError, match="no such file"):
        read_report(tmp_path / "missing.json")
    with pytest.raises(ReportError, match="not a regular file"):
        read_report(tmp_path)
    binary = tmp_path / "binary.json"
    binary.write_bytes(b"\xff\xfe\x00\x01")
    with pytest.raises(ReportError, match="not UTF-8"):
        read_report(binary)
    huge = tmp_path / "huge.json"
    with huge.open("wb") as file:
        os.truncate(file.fileno(), MAX_REPORT_BYTES + 1)  # sparse
    with pytest.raises(ReportError, match="more than the 67,108,864"):
        read_report(huge)
    with pytest.raises(ReportError, match="no such file"):
        read_report("a\0b")


def test_a_file_that_was_cut_off_is_refused(tmp_path: Path, grouped: Callable[..., FootprintReport]) -> None:
    text = grouped().to_json()
    file = tmp_path / "cut.json"
    for length in (1, len(text) // 2, len(text) - 1):
        file.write_text(text[:length])
        with pytest.raises(ReportError, match="not JSON"):
            read_report(file)


def test_the_reports_of_this_repository_are_read_and_rendered(pytestconfig: pytest.Config) -> None:
    files = [path for path in (pytestconfig.rootpath / "reports").glob("*.json") if "graphdedup.demo" in path.read_text()]
    assert len(files) >= 2
    for file in files:
        report = read_report(file)
        assert isinstance(report, DemoResult)
        for text in (report.to_text(), report.to_markdown()):
            assert f"{report.modes[next(iter(report.modes))].captured:,}" in text
