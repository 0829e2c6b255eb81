"""docs/what-an-update-carries.md is what its tool makes of the reports."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from graphdedup.capabilities import AnswerRow, AttributeRow, Capabilities, FactRow, Outcome


@pytest.fixture
def tool(pytestconfig: pytest.Config) -> Any:
    spec = importlib.util.spec_from_file_location("make_carries_page", pytestconfig.rootpath / "tools" / "make_carries_page.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_current(tool: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert tool.main(["--check"]) == 0, capsys.readouterr().err


def house(root: Path, **reports: Capabilities) -> Path:
    """A root with reports of these names."""
    (root / "docs").mkdir()
    (root / "reports").mkdir()
    for name, capabilities in reports.items():
        (root / "reports" / f"{name}-probe.json").write_text(capabilities.to_json())
    return root


def measured(device: str, outcome: str) -> Capabilities:
    return Capabilities(
        device=device,
        driver_version="1.2",
        torch_version="2.9",
        source="measured by hand",
        attributes=(AttributeRow(name="priority", number=8, readable=True, settable=False),),
        answers=(
            AnswerRow(topic="priority", way="changed", outcome=Outcome(outcome)),
            AnswerRow(topic="grid", way="larger", outcome=Outcome.CARRIED),
            AnswerRow(topic="grid", way="smaller", outcome=Outcome.CARRIED),
        ),
        facts=(FactRow(name="a disabled node stays disabled", value="yes"),),
    )


def test_the_page_has_a_column_for_each_report_by_file_name(tool: Any, tmp_path: Path) -> None:
    root = house(tmp_path, b=measured("First", "stale"), a=measured("Second", "refused"))
    (root / "reports" / "other.json").write_text("{}")  # no probe's
    assert tool.main([], root=root) == 0
    lines = (root / "docs" / "what-an-update-carries.md").read_text().splitlines()
    assert lines[0] == "# What an update carries"
    assert (
        "The tables below are made from [reports/a-probe.json](../reports/a-probe.json), "
        + ("[reports/b-probe.json](../reports/b-probe.json).")
        in lines
    )
    assert lines.count("|  | Second | First |") == 3  # where it was measured, what follows, facts
    for row in (
        "| driver | 1.2 | 1.2 |",
        "| `priority` | 8 | readable yes, settable no | readable yes, settable no |",
        "| `priority` | changed | refused | **stale** |",
        "| grid | larger; smaller | carried | carried |",
        "| a disabled node stays disabled | yes | yes |",
    ):
        assert lines.count(row) == 1, row


def test_check_writes_nothing_and_tells_a_page_that_is_not_current(
    tool: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = house(tmp_path, a=measured("Device", "stale"))
    page = root / "docs" / "what-an-update-carries.md"
    assert tool.main(["--check"], root=root) == 1
    assert not page.exists()
    assert "docs/what-an-update-carries.md is not current" in capsys.readouterr().err
    assert tool.main([], root=root) == 0
    assert tool.main(["--check"], root=root) == 0
    page.write_text(page.read_text() + "more\n")
    assert tool.main(["--check"], root=root) == 1
    assert page.read_text().endswith("more\n")
    assert tool.main([], root=root) == 0
    (root / "reports" / "a-probe.json").write_text(measured("Device", "carried").to_json())
    assert tool.main(["--check"], root=root) == 1


def test_reports_that_are_none(tool: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = house(tmp_path)
    assert tool.main([], root=root) == 2
    assert "there is no reports/*-probe.json" in capsys.readouterr().err
    (root / "reports" / "odd-probe.json").write_text('{"kind": "somebody.else"}')
    assert tool.main([], root=root) == 2
    assert "odd-probe.json: not capabilities" in capsys.readouterr().err
    assert not (root / "docs" / "what-an-update-carries.md").exists()
