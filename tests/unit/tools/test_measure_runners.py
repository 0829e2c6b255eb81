"""The tool that measures the examples, without a GPU: its table, its verdict, and what it says where it cannot run."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from examples.common import Decoder, Options
from tools import measure_runners
from tools.measure_runners import RUNNERS, Arm, digest, main, table

ROOT = Path(__file__).resolve().parents[3]


def arm(name: str, folded: bool, **more: Any) -> Arm:
    return Arm(name=name, folded=folded, **more)


def test_each_line_has_what_was_measured_and_whether_the_bytes_are_equal() -> None:
    arms = [
        arm(
            "ladder", False, captured=36, execs=36, device_bytes=90_500_000, host_bytes=2 * 10**6, step_us=10.0, digests=("a",)
        ),
        arm("ladder", True, captured=36, execs=2, device_bytes=None, host_bytes=1_000_000, step_us=12.5, digests=("a",)),
        arm("peer", False, skipped="needs a package"),
        arm("other", True, failed="RuntimeError: a\nb"),
    ]
    lines = [line.split() for line in table(arms, {"ladder": True})]
    assert lines[1] == ["ladder", "plain", "36", "36", "0", "90.5", "2.0", "0.00", "10.0"]
    assert lines[2] == ["ladder", "folded", "36", "2", "0", "-", "1.0", "0.00", "12.5", "yes"]
    assert " ".join(lines[3]) == "peer plain not run: needs a package"
    assert " ".join(lines[4]) == "other folded failed: RuntimeError: a b"
    assert table(arms[:2], {"ladder": False})[2].endswith("NO")


def test_a_digest_tells_types_shapes_and_every_byte() -> None:
    x = torch.arange(6.0)
    told = digest([x])
    assert len(told) == 32
    assert told == digest([x.clone()])
    others = [[x.double()], [x.view(2, 3)], [x + torch.tensor([0, 0, 0, 0, 0, 1e-6])], [x, x], [], [x.view(2, 3).T]]
    assert len({told, *map(digest, others)}) == 7


@pytest.mark.parametrize(("second", "code"), [(("a", "b"), 0), (("a", "c"), 1), ((), 1)])
def test_arms_that_differ_or_fail_make_the_exit_code(
    second: tuple[str, ...], code: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def ran(spec: measure_runners.Spec) -> Arm:
        if not spec.folded:
            return arm(spec.name, False, captured=2, execs=2, digests=("a", "b"))
        return arm(spec.name, True, captured=2, execs=1, digests=second, report="{}", failed="" if second else "broken")

    class Driver:
        class identity:
            name, driver_version = "a GPU", "1"

    monkeypatch.setattr(measure_runners, "_one_process", ran)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr("graphdedup.driver.driver_for", lambda backend: Driver)
    monkeypatch.setattr("seam.default_backend", lambda device: None)
    told, report = tmp_path / "runners.json", tmp_path / "report.json"
    assert main(["--only", "ladder", "--json", str(told), "--report", str(report)]) == code
    result = measure_runners.Result.model_validate_json(told.read_text())
    assert result.equal == ({} if not second else {"ladder": not code})
    assert [one.report for one in result.arms] == ["", ""]
    assert report.read_text() == "{}\n"
    assert "ladder" in capsys.readouterr().out


def test_what_cannot_be_asked_is_refused() -> None:
    for wrong in (["--only", "nothing"], ["--rounds", "0"], ["--steps", "-1"]):
        with pytest.raises(SystemExit) as left:
            main(wrong)
        assert left.value.code == 2


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("module", ["examples.ladder", "tools.measure_runners"])
def test_without_a_gpu_one_line_says_so(module: str) -> None:
    ran = subprocess.run([sys.executable, "-m", module], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert "GPU" in ran.stderr
    assert len(ran.stderr.splitlines()) == 1


@pytest.mark.parametrize("name", sorted(RUNNERS))
def test_every_runner_is_there_and_says_what_it_is(name: str) -> None:
    module, made = RUNNERS[name]
    found = importlib.import_module(module)
    assert callable(getattr(found, made))
    assert f"python -m examples.{name}" in (found.__doc__ or "")


def test_the_examples_decoder_scores_its_vocabulary() -> None:
    with torch.no_grad():
        assert Decoder(2, hidden=16, vocab=32)(torch.tensor([1, 2, 3])).shape == (3, 32)
    assert Options().small is False
