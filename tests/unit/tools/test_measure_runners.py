"""tools/measure_runners.py with arms that stand in for a GPU's: its table, its file, and what it makes of arms that fail."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from examples.common import NAMES
from tools import measure_runners
from tools.measure_runners import ArmFailed, Result, main, run_apart
from tools.runner_arm import Arm, Spec


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU, and every package that an example needs."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr("importlib.util.find_spec", lambda package: object())


def arm(folded: bool, **changes: Any) -> Arm:
    values = {
        "device": "A GPU",
        "driver_version": "580.1",
        "torch_version": "2.11",
        "step_is": "a step",
        "captured": 36,
        "execs": 2 if folded else 36,
        "kept": 0 if folded else 36,
        "replay_updates": 40 if folded else 0,
        "launches": 40 if folded else 0,
        "device_bytes": 2_000_000 if folded else 30_000_000,
        "reserved_bytes": 4_000_000,
        "host_bytes": 1_500_000 if folded else 20_000_000,
        "startup_seconds": 1.25 if folded else 1.0,
        "step_us": 120.5 if folded else 100.0,
        "steps": 40,
        "digests": ("a", "b", "c"),
    }
    return Arm.model_validate({**values, **changes})


def standing_in(seen: list[Spec], change: Callable[[Spec], dict[str, Any]] = lambda spec: {}) -> Callable[[Spec], Arm]:
    def run(spec: Spec) -> Arm:
        seen.append(spec)
        return arm(spec.folded, **change(spec))

    return run


@pytest.mark.usefixtures("gpu")
def test_each_example_has_a_row_of_both_arms(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, seen = tmp_path / "runners.json", list[Spec]()
    given = ["--only", "ladder,nano_runner", "--json", str(file), "--report", "report.json", "--steps", "9", "--small"]
    assert main(given, run=standing_in(seen)) == 0
    assert [(spec.example, spec.folded, spec.report) for spec in seen] == [
        ("ladder", False, ""),
        ("ladder", True, "report.json"),
        ("nano_runner", False, ""),
        ("nano_runner", True, ""),
    ]
    assert all((spec.rounds, spec.steps, spec.small, spec.policy) == (3, 9, True, "structure") for spec in seen)
    out = capsys.readouterr().out.splitlines()
    assert " ".join(out[1].split()) == "ladder 36 2 30.0 / 2.0 20.0 / 1.5 1.00 / 1.25 100.0 / 120.5 3/3"
    assert out[2].startswith("nano_runner ")
    result = Result.model_validate_json(file.read_bytes())
    assert (result.device, result.driver_version, result.rounds, result.small) == ("A GPU", "580.1", 3, True)
    assert result.command.startswith("python tools/measure_runners.py --only ladder,nano_runner --json")
    assert [(row.example, row.outcome, row.equal_rounds) for row in result.rows] == [
        ("ladder", "measured", 3),
        ("nano_runner", "measured", 3),
    ]
    assert result.rows[0].plain == arm(False)
    assert result.rows[0].folded == arm(True)


@pytest.mark.usefixtures("gpu")
def test_all_examples_are_measured_unless_some_are_named() -> None:
    seen = list[Spec]()
    assert main([], run=standing_in(seen)) == 0
    assert [spec.example for spec in seen if spec.folded] == list(NAMES)


@pytest.mark.usefixtures("gpu")
def test_outputs_that_differ_are_seen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def change(spec: Spec) -> dict[str, Any]:
        return {"digests": ("a", "x", "c")} if spec.folded and spec.example == "ladder" else {}

    file = tmp_path / "runners.json"
    assert main(["--only", "ladder,nano_runner", "--json", str(file)], run=standing_in([], change)) == 1
    assert [row.equal_rounds for row in Result.model_validate_json(file.read_bytes()).rows] == [2, 3]
    assert "2/3" in capsys.readouterr().out


@pytest.mark.usefixtures("gpu")
def test_a_failed_arm_has_a_row_with_the_end_of_its_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The other examples still run, and an arm that went well before it is kept."""

    def run(spec: Spec) -> Arm:
        if spec.folded and spec.example == "ladder":
            raise ArmFailed("x" * 1000 + "\nRuntimeError: the end")
        return arm(spec.folded)

    file = tmp_path / "runners.json"
    assert main(["--only", "ladder,nano_runner", "--json", str(file)], run=run) == 1
    failed, other = Result.model_validate_json(file.read_bytes()).rows
    assert (failed.outcome, failed.plain, failed.folded) == ("failed", arm(False), None)
    assert failed.reason.startswith("the folded arm: xxx")
    assert failed.reason.endswith("RuntimeError: the end")
    assert len(failed.reason) == len("the folded arm: ") + 400
    assert other.outcome == "measured"
    assert "ladder                failed: the folded arm: xxx" in capsys.readouterr().out


@pytest.mark.usefixtures("gpu")
def test_an_example_without_its_package_has_a_row_that_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda package: None if package == "transformers" else object())
    file, seen = tmp_path / "runners.json", list[Spec]()
    assert main(["--only", "transformers_batching,ladder", "--json", str(file)], run=standing_in(seen)) == 0
    missing, other = Result.model_validate_json(file.read_bytes()).rows
    assert (missing.outcome, missing.reason) == ("not run", "needs the package transformers, which is not installed")
    assert other.outcome == "measured"
    assert {spec.example for spec in seen} == {"ladder"}
    assert "transformers_batching not run: needs the package transformers" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["--only", "ladder,stairs"], "'stairs' is unknown"),
        (["--rounds", "2"], "--rounds 2"),
        (["--steps", "0"], "--steps 0"),
        (["--policy", "loose"], "loose"),
        (["--json", "/nowhere/at/all.json"], "/nowhere/at/all.json"),
    ],
)
@pytest.mark.usefixtures("gpu")
def test_what_cannot_be_done_is_said_before_anything_runs(
    given: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    seen = list[Spec]()
    assert main(given, run=standing_in(seen)) == 2
    assert words in capsys.readouterr().err
    assert seen == []


def test_without_a_gpu_nothing_is_measured(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main([]) == 2
    assert "CUDA graphs need a GPU" in capsys.readouterr().err


def test_an_arm_in_a_process_of_its_own_that_fails_says_why() -> None:
    with pytest.raises(ArmFailed, match=r"No module named 'examples\.stairs'|NVIDIA|CUDA"):
        run_apart(Spec(example="stairs", folded=False, rounds=3))


def test_an_arm_that_takes_too_long_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure_runners, "_PATIENCE_SECONDS", 0.05)
    with pytest.raises(ArmFailed, match=r"took longer than 0\.05 s"):
        run_apart(Spec(example="ladder", folded=False, rounds=3))
