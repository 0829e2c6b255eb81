"""``graphdedup run``: a program of somebody else's, folded, with its report at the end, also when it fails."""

from __future__ import annotations

import gc
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from graphdedup import FootprintReport, GraphsFile, SettingsError, cli, what_if
from graphdedup.interpose import installed
from graphdedup.running import run_program
from seam.simulated import SimulatedDevice

PROGRAM = """
import sys, torch
graphs, ys = [], []
for size in (8, 4, 2):
    x = torch.full((size,), 3.0)
    graph = torch.cuda.CUDAGraph()
    graph.capture_begin()
    y = (x + 1) * 2
    graph.capture_end()
    graphs.append(graph), ys.append(y)
for graph, y in zip(graphs, ys):
    graph.replay()
    assert y.tolist() == [8] * len(y)
print(__name__, sys.argv[1:], sys.path[0])
"""


@pytest.fixture
def version() -> str:
    return "2.11"


@pytest.fixture
def program(tmp_path: Path) -> Path:
    file = tmp_path / "program.py"
    file.write_text(PROGRAM)
    return file


def test_a_script_runs_folded_and_its_report_is_written(
    program: Path, plain: Any, maker: Any, device: SimulatedDevice, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "report.json"
    assert run_program([str(program), "--some", "-m", "words"], report=file, make=maker) == 0
    out, err = capsys.readouterr()
    assert out == f"__main__ ['--some', '-m', 'words'] {tmp_path}\n"
    assert "captured 3 graphs, deduped to 1 execs" in err
    report = FootprintReport.from_json(file.read_text())
    assert (report.captured, report.execs, report.launches) == (3, 1, 3)
    assert torch.cuda.CUDAGraph is plain
    assert installed() is None
    gc.collect()
    assert device.live_exec_count == 0


@pytest.mark.parametrize(
    ("ending", "code", "said"),
    [
        ("sys.exit()", 0, ""),
        ("sys.exit(3)", 3, ""),
        ("sys.exit('no more')", 1, "no more\n"),
        ("raise ValueError('it broke')", 1, "ValueError: it broke"),
        ("1 / 0", 1, "ZeroDivisionError"),
    ],
)
def test_the_exit_code_is_the_programs_and_the_report_is_written(
    ending: str, code: int, said: str, program: Path, plain: Any, maker: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program.write_text(PROGRAM + ending + "\n")
    file = tmp_path / "report.json"
    assert run_program([str(program)], report=file, make=maker) == code
    assert said in capsys.readouterr().err
    assert FootprintReport.from_json(file.read_text()).execs == 1, "its graphs are alive when the report is made"
    assert torch.cuda.CUDAGraph is plain


def test_the_captured_graphs_are_written_as_a_file_that_explain_and_whatif_read(
    program: Path, plain: Any, maker: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "graphs.json"
    assert run_program([str(program)], graphs=file, make=maker) == 0
    read = GraphsFile.read(file)
    assert [len(graph.topology.nodes) for graph in read.graphs] == [2, 2, 2]
    assert what_if(read).predictions[0].execs == 1
    program.write_text("")
    assert run_program([str(program)], graphs=tmp_path / "none.json", make=maker) == 0
    assert "no file of graphs was written to" in capsys.readouterr().err


def test_an_interrupt_is_passed_on_after_the_report(program: Path, plain: Any, maker: Any, tmp_path: Path) -> None:
    program.write_text(PROGRAM + "raise KeyboardInterrupt\n")
    file = tmp_path / "report.json"
    with pytest.raises(KeyboardInterrupt):
        run_program([str(program)], report=file, make=maker)
    assert file.is_file()
    assert torch.cuda.CUDAGraph is plain


def test_a_module_runs_as_python_would_run_it(
    program: Path, plain: Any, maker: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "somebodys"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "serve.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    assert run_program(["somebodys.serve", "a", "b"], module=True, make=maker) == 0
    assert capsys.readouterr().out == f"__main__ ['a', 'b'] {tmp_path}\n"


def test_processes_that_it_starts_are_told(program: Path, plain: Any, maker: Any, tmp_path: Path) -> None:
    told = tmp_path / "told.json"
    names = ["GRAPHDEDUP_INTERPOSE", "GRAPHDEDUP_POLICY", "GRAPHDEDUP_REPORT"]
    program.write_text(
        f"import json, os, pathlib\npathlib.Path({str(told)!r}).write_text(json.dumps([os.environ[name] for name in {names}]))"
    )
    policy = "tier=function,draws_vouched=true,max_execs=4"
    assert run_program([str(program)], policy=policy, report=tmp_path / "r.json", make=maker) == 0
    said = json.loads(told.read_text())
    assert said == ["1", "tier=function,max_execs=4,draws_vouched=true", str(tmp_path / "r.json")]
    assert not any(name in os.environ for name in names)


def test_a_program_that_captures_nothing_has_no_report(
    program: Path, plain: Any, maker: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program.write_text("print('done')")
    file = tmp_path / "report.json"
    assert run_program([str(program)], report=file, make=maker) == 0
    assert f"no report was written to {file}: nothing was captured" in capsys.readouterr().err
    assert not file.exists()


def test_the_report_of_a_program_does_not_fail_it(
    program: Path, plain: Any, maker: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert run_program([str(program)], report=tmp_path / "gone" / "report.json", make=maker) == 0
    assert "no report was written to" in caplog.text


def test_the_command_line_hands_everything_on(
    program: Path, plain: Any, maker: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Options after the script are the script's."""
    monkeypatch.setattr("graphdedup.running.make_backend", maker)
    given: dict[str, Any] = {}

    def run(target: list[str], **how: Any) -> int:
        given.update(how, target=target)
        return 7

    monkeypatch.setattr("graphdedup.running.run_program", run)
    file = tmp_path / "r.json"
    arguments = ["run", "--policy", "exact", "--report", str(file), str(program), "--report", "x", "-m", "--help"]
    assert cli.main(arguments) == 7
    assert given == {
        "target": [str(program), "--report", "x", "-m", "--help"],
        "module": False,
        "policy": "exact",
        "report": file,
        "graphs": None,
    }
    assert cli.main(["run", "-m", "pkg.mod", "--flag"]) == 7
    assert given == {"target": ["pkg.mod", "--flag"], "module": True, "policy": None, "report": None, "graphs": None}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["no/such/file.py"], "there is no script no/such/file.py"),
        ([], "target"),
        (["--policy", "soft", "{program}"], "tier"),
        (["--policy", "tier=exact,tier=exact", "{program}"], "names a field again"),
        (["--policy", "max_execs=0", "{program}"], "max_execs"),
        (["--report", "no/such/folder/r.json", "{program}"], "there is no folder"),
    ],
)
def test_bad_input_is_refused_in_one_line(
    arguments: list[str], said: str, program: Path, plain: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["run", *(one.format(program=program) for one in arguments)]) == 2
    err = capsys.readouterr().err
    assert err.startswith("graphdedup: error: ")
    assert err.count("\n") == 1
    assert said.lower() in err.lower()
    assert installed() is None


def test_a_missing_script_is_an_error_of_its_own(plain: Any, maker: Any) -> None:
    with pytest.raises(SettingsError, match="there is no script"):
        run_program(["nowhere.py"], make=maker)
