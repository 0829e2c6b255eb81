"""What the examples share, without a GPU: why one cannot run, the comparison, the hash of outputs, the count of captures."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from examples.common import NAMES, Example, cannot_run, counted, digest, load, main
from graphdedup.interpose import installed


class Stand:
    """A runner without graphs; with ``drifts`` its second round comes out otherwise under the fold."""

    step_is = "nothing"
    timed_steps = 1
    drifts = False

    def __init__(self, device: torch.device, small: bool) -> None:
        pass

    def capture(self) -> None:
        pass

    def round(self, number: int) -> Iterator[Tensor]:
        yield torch.tensor([number + (number == 1 and self.drifts and installed() is not None)])

    def step(self, number: int) -> None:
        pass

    def close(self) -> None:
        pass


class Drifting(Stand):
    drifts = True


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device=None: None)


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def test_each_file_is_an_example_and_each_example_a_file(pytestconfig: pytest.Config) -> None:
    others = {"__init__", "common", "prometheus_metrics"}  # the last one is of metrics, and captures nothing of its own
    files = {path.stem for path in (pytestconfig.rootpath / "examples").glob("*.py")} - others
    assert files == set(NAMES)
    assert [load(name).name for name in NAMES] == list(NAMES)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.usefixtures("no_gpu")
def test_without_a_gpu_one_line_says_so(name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda package: object())  # as if every package were there
    assert main(load(name), []) == 2
    assert capsys.readouterr().err == f"{name}: CUDA graphs need a GPU, and torch sees none here\n"


def test_a_file_runs_as_a_script_from_anywhere(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    script = pytestconfig.rootpath / "examples" / "nano_runner.py"
    done = subprocess.run(
        [sys.executable, script, "--device", "cpu"], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stderr) == (2, "nano_runner: CUDA graphs need a GPU, and the device is cpu\n")


@pytest.mark.usefixtures("gpu")
def test_a_missing_package_is_named() -> None:
    example = Example("stand", Stand, needs=("torch", "no_such_package", "nor_this"))
    assert "no_such_package and nor_this" in cannot_run(example, torch.device("cuda"))
    assert cannot_run(Example("stand", Stand, needs=("torch",)), torch.device("cuda")) == ""


@pytest.mark.parametrize(("make", "code", "words"), [(Stand, 0, "3 of 3 rounds"), (Drifting, 1, "2 of 3 rounds")])
@pytest.mark.usefixtures("gpu")
def test_both_runs_are_compared(make: Any, code: int, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(Example("stand", make), []) == code
    assert words in capsys.readouterr().out
    assert installed() is None


@pytest.mark.usefixtures("gpu")
def test_plain_runs_once_and_without_the_fold(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(Example("stand", Drifting), ["--plain"]) == 0
    out = capsys.readouterr().out
    assert "captured 0 graphs" in out
    assert "deduped" not in out


@pytest.mark.parametrize("given", [["--rounds", "2"], ["--device", "nonsense"]])
def test_an_option_that_is_off_is_refused(given: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(Example("stand", Stand), given)
    assert left.value.code == 2
    assert given[1] in capsys.readouterr().err


def test_equal_hashes_are_equal_bits() -> None:
    """Types, shapes, the sign of zero and the order count; where a tensor lies does not."""
    x = torch.arange(6, dtype=torch.float32)
    different = [
        [x],
        [x.to(torch.float64)],
        [x.view(2, 3)],
        [-x],
        [x[:3], x[3:]],
        [x[3:], x[:3]],
        [torch.tensor([0.0])],
        [torch.tensor([-0.0])],
    ]
    assert len({digest(tensors) for tensors in different}) == len(different)
    assert digest([x[::2]]) == digest([torch.tensor([0.0, 2.0, 4.0])])
    assert digest([torch.ones(2, dtype=torch.bfloat16)]) != digest([torch.ones(2, dtype=torch.float16)])


def test_captures_are_counted_and_the_class_is_left_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    class Graph:
        def capture_end(self) -> None:
            if self.__dict__.get("fails"):
                raise RuntimeError("invalidated")

    own = Graph.capture_end
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    with counted() as found:
        Graph().capture_end()
        Graph().capture_end()
        failing = Graph()
        failing.__dict__["fails"] = True
        with pytest.raises(RuntimeError, match="invalidated"):
            failing.capture_end()
    assert found.captured == 2
    assert Graph.capture_end is own
