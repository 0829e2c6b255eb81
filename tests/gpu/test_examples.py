"""Every example on a real GPU, as its user would run it, and the tool that measures them."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

from examples.common import NAMES, load
from tools import measure_runners
from tools.measure_runners import Result

pytestmark = pytest.mark.gpu

_ALWAYS_FOLD = {"ladder", "graphed_callables", "breakable_peer"}
"""Those with graphs of one structure, whatever kernels the libraries choose."""


def _skip_without_packages(name: str) -> None:
    missing = [package for package in load(name).needs if importlib.util.find_spec(package) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} is not installed")


@pytest.mark.parametrize("name", NAMES)
def test_an_example_puts_out_the_same_bits_with_and_without_the_fold(name: str, pytestconfig: pytest.Config) -> None:
    """In a process of its own: what its packages warn of is theirs, and what they leave behind goes with it."""
    _skip_without_packages(name)
    done = subprocess.run(
        [sys.executable, f"examples/{name}.py", "--small"],
        cwd=pytestconfig.rootpath,
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    counts = re.search(r"captured (\d+) graphs, deduped to (\d+) execs", done.stdout)
    assert counts is not None, done.stdout + done.stderr
    captured, execs = map(int, counts.groups())
    assert 1 <= execs <= captured
    if name in _ALWAYS_FOLD:
        assert execs < captured
    assert f"{name}: captured {captured} graphs in" in done.stdout, "without the fold there were as many captures"
    assert "3 of 3 rounds gave the same bits" in done.stdout


def test_the_runners_are_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, report = tmp_path / "runners.json", tmp_path / "report.json"
    given = ["--only", "ladder", "--small", "--steps", "5", "--json", str(file), "--report", str(report)]
    assert measure_runners.main(given) == 0, capsys.readouterr()
    result = Result.model_validate_json(file.read_bytes())
    (row,) = result.rows
    assert row.outcome == "measured"
    assert row.plain is not None
    assert row.folded is not None
    assert (row.plain.captured, row.plain.execs, row.folded.captured) == (4, 4, 4)
    assert row.folded.execs < 4
    assert row.equal_rounds == result.rounds == 3
    assert result.device
    assert result.driver_version
    assert report.exists()
