"""tools/measure_memory.py in small, on the simulated device."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tools.measure_memory import Arm, Spec, main, run_arm
from tools.memory_workloads import PREFILL_SIZES, WORKLOADS, prefill_config

SIZES = (2, 4, 8, 16)


def arm(workload: str, name: str) -> Arm:
    return run_arm(Spec(device="cpu", workload=workload, arm=name, sizes=SIZES, layers=2, rounds=2))


@pytest.mark.parametrize("workload", list(WORKLOADS))
def test_the_ladder_adds_what_its_largest_shape_adds_and_is_exact(workload: str) -> None:
    """M2. Held, everything that crosses comes on top, for each shape."""
    largest, ladder, held = (arm(workload, name) for name in ("largest", "ladder", "held"))
    assert (ladder.compared, ladder.mismatches) == (2 * len(SIZES), 0)
    assert largest.added_bytes == ladder.added_bytes < held.added_bytes
    assert (largest.graphs, ladder.graphs, held.graphs) == (3, 3 * len(SIZES), 3 * len(SIZES))
    assert (ladder.held_bytes, largest.held_bytes) == (0, 0)
    assert ladder.shared_bytes_largest == largest.shared_bytes_largest > 0
    assert held.shared_bytes_largest == 0
    assert [name for name, _, _ in ladder.plan] == ["inputs", "outputs", "pool", "held for breaks", "execs"]
    assert all(measured is not None for _, _, measured in ladder.plan)


def test_a_result_that_differs_is_counted_and_makes_the_exit_code(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "memory.json"
    given = ["--device", "cpu", "--workload", "prefill", "--arm", "ladder", "--sizes", "4,8", "--layers", "1", "--rounds", "1"]
    assert main([*given, "--json", str(file)]) == 0
    told = json.loads(file.read_text())
    assert told["models"] == {"prefill": "tiny"}
    assert told["command"].startswith("python tools/measure_memory.py --device cpu --workload prefill")
    assert (told["arms"][0]["compared"], told["arms"][0]["mismatches"]) == (2, 0)
    assert "0/2" in capsys.readouterr().out
    equal: Any = torch.equal
    monkeypatch.setattr(torch, "equal", lambda a, b: not equal(a, b))
    assert main(given) == 1
    assert "2/2" in capsys.readouterr().out


@pytest.mark.parametrize("off", [["--workload", "other"], ["--arm", "none"], ["--layers", "0"], ["--sizes", "0"]])
def test_an_option_that_is_off_is_refused(off: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--device", "cpu", *off]) == 2
    assert "measure_memory: cannot run here" in capsys.readouterr().err


def test_the_prefill_ladder_is_the_one_that_engines_capture() -> None:
    assert (len(PREFILL_SIZES), PREFILL_SIZES[0], PREFILL_SIZES[-1]) == (42, 1, 4096)
    config = prefill_config("cuda")
    assert (config.layers, config.hidden, config.dtype) == (32, 4096, "bfloat16")
