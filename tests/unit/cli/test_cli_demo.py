"""``graphdedup demo`` and ``graphdedup report`` end to end on the simulated device."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from graphdedup import DedupBackend, cli
from graphdedup.report import FootprintReport, read_report

DEMO = ["demo", "--device", "cpu", "--model", "tiny", "--sizes", "1..3,8"]


def test_the_demo_folds_prints_and_writes(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The main job: log line, table, verdict, JSON; and the table comes back from the JSON."""
    file = tmp_path / "demo.json"
    assert cli.main([*DEMO, "--json", str(file)]) == 0
    out, err = capsys.readouterr()
    document = json.loads(file.read_text())
    full, breakable = document["modes"]["full"], document["modes"]["breakable"]
    assert (full["captured"], breakable["captured"]) == (4, 16)
    assert full["execs"] < 4
    assert breakable["execs"] < 16
    assert full["mismatches"] == breakable["mismatches"] == 0
    assert full["compared"] == breakable["compared"] == 12
    assert full["bytes_source"] == "modelled"
    assert full["unfolded_exec_device_bytes"] is None
    assert document["command"] == f"graphdedup {' '.join(DEMO)} --json {file}"
    assert f"captured 4 graphs, deduped to {full['execs']} execs" in err
    assert f"captured 16 graphs, deduped to {breakable['execs']} execs" in err
    assert out.splitlines()[-1].startswith("OK: 24 replays equal eager bit for bit")

    assert cli.main(["report", str(file)]) == 0
    assert capsys.readouterr().out == out


def test_one_mode_and_compare(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "demo.json"
    assert cli.main([*DEMO, "--mode", "full", "--layers", "1", "--compare", "--json", str(file)]) == 0
    out = capsys.readouterr().out
    document = json.loads(file.read_text())
    assert list(document["modes"]) == ["full"]
    assert document["model"]["layers"] == 1
    mode = document["modes"]["full"]
    assert mode["unfolded_captured"] == mode["captured"] == 4
    assert mode["unfolded_mismatches"] == 0
    assert mode["unfolded_exec_device_bytes"] > mode["exec_device_bytes"]
    assert "without folding" in out
    assert "modelled" in out


def test_a_mismatch_is_exit_1(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A fold that launches the graph of another size; the JSON is written all the same."""
    handles: list[Any] = []
    end, replay = DedupBackend.end_capture, DedupBackend.replay_graph

    def end_capture(self: DedupBackend, **options: Any) -> Any:
        handles.append(end(self, **options))
        return handles[-1]

    monkeypatch.setattr(DedupBackend, "end_capture", end_capture)
    monkeypatch.setattr(DedupBackend, "replay_graph", lambda self, handle: replay(self, handles[0]))
    file = tmp_path / "demo.json"
    assert cli.main([*DEMO, "--mode", "full", "--json", str(file)]) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "FAILED: 9 of 12 replays differ from eager"
    assert json.loads(file.read_text())["modes"]["full"]["mismatches"] == 9


def test_a_file_that_cannot_be_written_in_the_end_loses_no_numbers(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The folder went away during the run: the table is printed, and one line says what happened."""
    monkeypatch.setattr(cli, "_check_writable", lambda file: None)
    assert cli.main([*DEMO, "--mode", "full", "--json", str(tmp_path / "gone" / "demo.json")]) == 2
    out, err = capsys.readouterr()
    assert out.splitlines()[-1].startswith("OK: ")
    assert err.splitlines()[-1].startswith("graphdedup: error: --json ")


def test_a_footprint_prints_its_own_table(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    from seam.simulated import SimulatedBackend

    report = DedupBackend(SimulatedBackend()).report()
    file = tmp_path / "footprint.json"
    file.write_text(report.to_json())
    assert cli.main(["report", str(file)]) == 0
    assert capsys.readouterr().out == report.to_text() + "\n"
    assert isinstance(read_report(file), FootprintReport)
