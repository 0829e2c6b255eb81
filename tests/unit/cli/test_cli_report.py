"""graphdedup report in its forms, and graphdedup calibrate."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from graphdedup import DedupBackend, FootprintReport, cli
from graphdedup.calibration import Calibration
from seam.simulated import SimulatedBackend


@pytest.fixture
def file(tmp_path: Path) -> Path:
    written = tmp_path / "footprint.json"
    written.write_text(DedupBackend(SimulatedBackend(), enabled=True).report().to_json())
    return written


def test_each_form_is_what_the_report_gives(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = FootprintReport.from_json(file.read_text())
    forms = {"text": report.to_text() + "\n", "json": report.to_json() + "\n", "markdown": report.to_markdown()}
    for style, text in forms.items():
        assert cli.main(["report", str(file), "--format", style]) == 0
        assert capsys.readouterr().out == text


def test_a_page_is_written_to_a_file(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("plotly", reason="the html extra is not installed")
    page = tmp_path / "page.html"
    assert cli.main(["report", str(file), "--format", "html", "--output", str(page)]) == 0
    assert capsys.readouterr().out == ""
    assert page.read_text() == FootprintReport.from_json(file.read_text()).to_html()


def test_the_schema_is_printed_without_a_file(capsys: pytest.CaptureFixture[str], pytestconfig: pytest.Config) -> None:
    assert cli.main(["report", "--schema"]) == 0
    held = json.loads((pytestconfig.rootpath / "docs" / "report-schema.json").read_text())
    assert json.loads(capsys.readouterr().out) == held


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["report"], "no report file is given"),
        (["report", "FILE", "--format", "pdf"], "--format 'pdf' is unknown"),
        (["report", "FILE", "--output", "no/such/folder/x"], "--output no/such/folder/x: "),
        (["calibrate", "--nodes", "ten"], "--nodes 'ten' is no list of numbers"),
        (["calibrate", "--device", "cpu", "--nodes", "10"], "two lengths"),
        (["calibrate", "--device", "cpu", "--execs", "0"], "execs 0 is out of range"),
        (["calibrate", "--device", "cpu", "--json", "no/such/folder/x"], "there is no folder"),
    ],
)
def test_what_cannot_be_done_is_one_line(
    arguments: list[str], said: str, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([str(file) if one == "FILE" else one for one in arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("graphdedup: error: ")
    assert said in err
    assert err.count("\n") == 1


def test_without_plotly_a_page_is_refused(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    assert cli.main(["report", str(file), "--format", "html"]) == 2
    assert "pip install 'graphdedup[html]'" in capsys.readouterr().err


def test_a_calibration_is_printed_and_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "calibration.json"
    assert cli.main(["calibrate", "--device", "cpu", "--nodes", "10,500", "--execs", "2", "--json", str(file)]) == 0
    told = Calibration.model_validate_json(file.read_text())
    assert capsys.readouterr().out == told.to_text() + "\n"
    assert [(row.nodes, row.execs) for row in told.rows] == [(10, 2), (500, 2)]
