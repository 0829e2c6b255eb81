"""Bad input to the command line: exit 2, and one line on stderr that says what is wrong and what to do."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from graphdedup import cli

BAD_DEMO = [
    (["--mode", "sideways"], "--mode 'sideways' is unknown"),
    (["--mode", ""], "--mode '' is unknown"),
    (["--device", "tpu"], "--device 'tpu' is unknown"),
    (["--model", "70b"], "--model '70b' is unknown"),
    (["--sizes", ""], "the size list is empty"),
    (["--sizes", "1,,2"], "neither a size nor a range"),
    (["--sizes", "0"], "sizes go from 1"),
    (["--sizes", "-4"], "neither a size nor a range"),
    (["--sizes", "8..4"], "backwards"),
    (["--sizes", "big"], "neither a size nor a range"),
    (["--rounds", "2"], "--rounds 2 is out of range"),
    (["--rounds", "0"], "--rounds 0 is out of range"),
    (["--rounds", "many"], "valid integer"),
    (["--layers", "0"], "--layers 0 is out of range"),
    (["--layers", "-1"], "--layers -1 is out of range"),
    (["--layers", "2000"], "--layers 2000 is out of range"),
    (["--seed", "-1"], "--seed -1 is out of range"),
    (["--seed", str(2**70)], "is out of range"),
    (["--json", "no/such/folder/demo.json"], "there is no folder"),
    (["--json", "."], "it is a folder"),
    (["--sizes"], "--sizes"),
    (["--surprise"], "--surprise"),
    (["extra"], "extra"),
]


def refused(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> str:
    """Run the command; it must refuse in one line. Returns that line."""
    assert cli.main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("graphdedup: error: ")
    assert err.count("\n") == 1
    assert err.endswith("\n")
    assert "Remedy: " in err
    return err


@pytest.fixture
def no_long_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is refused must be refused before anything is captured."""

    def started(*_: Any) -> None:
        pytest.fail("the demo was started")

    monkeypatch.setattr(cli, "_run_demo", started)


@pytest.mark.usefixtures("no_long_work")
@pytest.mark.parametrize(("options", "words"), BAD_DEMO)
def test_bad_options_of_the_demo(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, options: list[str], words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert words in refused(capsys, ["demo", *options])


@pytest.mark.usefixtures("no_long_work")
def test_cuda_without_a_gpu(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "torch sees no GPU" in refused(capsys, ["demo", "--device", "cuda"])


@pytest.mark.usefixtures("no_long_work")
def test_cuda_without_the_extra(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(cli, "_has_cuda_bindings", lambda: False)
    line = refused(capsys, ["demo", "--device", "cuda"])
    assert "cuda-bindings is missing" in line
    assert "graphdedup[cuda]" in line


def test_auto_without_the_extra_says_that_it_simulates(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GPU that is left unused is no silent matter."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(cli, "_has_cuda_bindings", lambda: False)
    assert cli._resolve_device("auto") == "cpu"
    assert "using the simulated device" in capsys.readouterr().err


def test_a_missing_parent_package_is_no_cuda_bindings(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(importlib.util, "find_spec", missing)
    assert cli._has_cuda_bindings() is False


def test_reports_that_are_none(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    foreign = tmp_path / "foreign.json"
    foreign.write_text('{"kind": "somebody.else", "schema_version": 1}')
    newer = tmp_path / "newer.json"
    newer.write_text('{"kind": "graphdedup.demo", "schema_version": 99}')
    text = tmp_path / "text.json"
    text.write_text("captured 36 graphs")
    assert "no such file" in refused(capsys, ["report", str(tmp_path / "missing.json")])
    assert "not a regular file" in refused(capsys, ["report", str(tmp_path)])
    assert "somebody.else" in refused(capsys, ["report", str(foreign)])
    assert "99 is newer" in refused(capsys, ["report", str(newer)])
    assert "not JSON" in refused(capsys, ["report", str(text)])


@pytest.mark.parametrize("arguments", [[], ["fly"], ["report"], ["--surprise"]])
def test_no_command_to_run(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    refused(capsys, arguments)


def test_without_typer_one_line_says_what_to_install(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "typer" else find(name))
    assert "pip install 'graphdedup[cli]'" in refused(capsys, ["demo"])


def test_as_a_process_it_is_one_line_and_exit_2() -> None:
    """What a shell sees: no traceback of any library."""
    command = [sys.executable, "-m", "graphdedup", "demo", "--device", "cpu", "--sizes", "none"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 2
    assert ran.stdout == ""
    assert ran.stderr.count("\n") == 1
    assert ran.stderr.startswith("graphdedup: error: size list 'none'")


def test_version_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("graphdedup ")
    assert cli.main(["demo", "--help"]) == 0
    assert "--compare" in capsys.readouterr().out


def test_errors_nobody_foresaw_are_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug keeps its traceback."""

    def bug(*_: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(cli, "_run_demo", bug)
    with pytest.raises(ZeroDivisionError):
        cli.main(["demo", "--device", "cpu"])


def test_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "_run_demo", interrupted)
    assert cli.main(["demo", "--device", "cpu"]) == 130
