"""``graphdedup probe``: end to end on the simulated device, and on CUDA with the child process and the identity made up."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from graphdedup import cli
from graphdedup.capabilities import AnswerRow, Capabilities, Outcome
from graphdedup.driver.protocol import DeviceIdentity
from graphdedup.probe import command, known, store
from graphdedup.probe.table import to_text

NAMES = ("GPU zero", "GPU one")


def refused(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> str:
    """Run the command; it must refuse in one line. Returns that line."""
    assert cli.main(["probe", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("graphdedup: error: ")
    assert err.count("\n") == 1
    assert "Remedy: " in err
    return err


def identity(index: int) -> DeviceIdentity:
    return DeviceIdentity("cuda", NAMES[index], index, 0, (9, 0), "580.1", 580)


def measured(device: DeviceIdentity, outcome: str = "carried") -> Capabilities:
    """What a child process would answer here."""
    return Capabilities(
        device=device.name,
        compute_capability=device.compute_capability,
        driver_version=device.driver_version,
        cuda_version=torch.version.cuda or "",
        torch_version=torch.__version__,
        source="measured on the device",
        answers=(AnswerRow(topic="grid", way="larger", outcome=Outcome(outcome)),),
    )


class Child:
    """Stands for the process that measures: what it was asked, and what it answers."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.answer: Callable[[DeviceIdentity], Capabilities] = measured

    def __call__(self, device: DeviceIdentity, **_: Any) -> Capabilities:
        self.asked.append(device.ordinal)
        return self.answer(device)


@pytest.fixture
def child(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Child:
    """Two GPUs, whose capabilities are kept under ``tmp_path``."""
    made = Child()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(cli, "_has_cuda_bindings", lambda: True)
    monkeypatch.setattr(command, "identity_of", identity)
    monkeypatch.setattr(known, "probe_in_child", made)
    monkeypatch.setenv("GRAPHDEDUP_CACHE", str(tmp_path / "cache"))
    return made


# The simulated device


def test_on_the_cpu_the_simulated_device_is_measured(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The whole way: questions, table, JSON; and nothing is kept."""
    monkeypatch.setenv("GRAPHDEDUP_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "probe.json"
    assert cli.main(["probe", "--device", "cpu", "--json", str(file)]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    found = Capabilities.from_json(file.read_text())
    assert found.outcome("grid", "larger") is Outcome.CARRIED
    assert found.outcome("node kind", "kernel to memset") is Outcome.REFUSED
    assert out == to_text(found) + "\n\nnot kept: the simulated device is measured by every process\n"
    assert out.startswith("graphdedup probe: Simulated H200, compute capability 9.0, ")
    assert not (tmp_path / "cache").exists()


def test_without_a_gpu_auto_is_the_simulated_device(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert cli.main(["probe"]) == 0
    assert "Simulated" in capsys.readouterr().out.splitlines()[0]


# CUDA


def test_d3_it_measures_once_and_then_reads_what_is_kept(
    capsys: pytest.CaptureFixture[str], child: Child, tmp_path: Path
) -> None:
    """D3: once for each device, in the file that every later process reads."""
    assert cli.main(["probe", "--device", "cuda", "--device-index", "1"]) == 0
    file = store.path_of(store.key_of(identity(1)))
    assert file.parent == tmp_path / "cache"
    assert Capabilities.from_json(file.read_bytes()) == measured(identity(1))
    out, err = capsys.readouterr()
    assert (out, err) == (f"{to_text(measured(identity(1)))}\n\nkept in {file}\n", "")

    assert cli.main(["probe", "--device-index", "1"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"kept in {file}; --refresh measures again"
    assert child.asked == [1]

    assert cli.main(["probe"]) == 0  # the other device is another file
    assert child.asked == [1, 0]
    assert len(list(file.parent.iterdir())) == 2


def test_refresh_measures_again_and_keeps_the_new(capsys: pytest.CaptureFixture[str], child: Child, tmp_path: Path) -> None:
    key = store.key_of(identity(0))
    store.save(key, measured(identity(0), "stale"))
    file = tmp_path / "probe.json"
    assert cli.main(["probe", "--json", str(file)]) == 0
    assert child.asked == []
    assert Capabilities.from_json(file.read_text()) == measured(identity(0), "stale")

    assert cli.main(["probe", "--refresh", "--json", str(file)]) == 0
    assert child.asked == [0]
    assert Capabilities.from_json(file.read_text()) == measured(identity(0))
    assert store.load(key) == measured(identity(0))
    assert capsys.readouterr().out.splitlines()[-1] == f"kept in {store.path_of(key)}"


def test_what_is_asked_for_is_not_forbidden_by_the_switch(child: Child, monkeypatch: pytest.MonkeyPatch) -> None:
    """``GRAPHDEDUP_PROBE=0`` forbids measuring unasked."""
    monkeypatch.setenv("GRAPHDEDUP_PROBE", "0")
    assert cli.main(["probe"]) == 0
    assert child.asked == [0]


def test_nothing_measured_is_one_line_and_loses_nothing(
    capsys: pytest.CaptureFixture[str], child: Child, tmp_path: Path
) -> None:
    child.answer = lambda device: Capabilities.unknown(device, "the probe failed with exit code 1: no NVRTC")
    file = tmp_path / "probe.json"
    line = refused(capsys, ["--json", str(file)])
    assert "GPU zero: not measured: the probe failed with exit code 1: no NVRTC. Remedy: run python -m graphdedup.probe" in line
    assert not file.exists()
    assert not (tmp_path / "cache").exists()

    key = store.key_of(identity(0))
    store.save(key, measured(identity(0)))
    assert "no NVRTC" in refused(capsys, ["--refresh"])
    assert store.load(key) == measured(identity(0))


def test_a_cache_that_cannot_be_written_is_said_and_no_failure(
    capsys: pytest.CaptureFixture[str], child: Child, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("GRAPHDEDUP_CACHE", str(tmp_path / "file" / "cache"))
    assert cli.main(["probe"]) == 0
    out = capsys.readouterr().out
    assert out == f"{to_text(measured(identity(0)))}\n\nnot kept: {tmp_path / 'file' / 'cache'} cannot be written\n"


def test_a_file_that_cannot_be_written_in_the_end_loses_no_answers(
    capsys: pytest.CaptureFixture[str], child: Child, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(cli, "_check_writable", lambda file: None)
    assert cli.main(["probe", "--json", str(tmp_path / "gone" / "probe.json")]) == 2
    out, err = capsys.readouterr()
    assert out.splitlines()[-1].startswith("kept in ")
    assert err.startswith("graphdedup: error: --json ")


def test_bad_options_are_refused_before_anything_is_measured(
    capsys: pytest.CaptureFixture[str], child: Child, tmp_path: Path
) -> None:
    assert "--device-index 2 is out of range. Remedy: give 0 to 1." in refused(capsys, ["--device-index", "2"])
    assert "--device-index -1 is out of range" in refused(capsys, ["--device-index", "-1"])
    assert "valid integer" in refused(capsys, ["--device-index", "first"])
    assert "--device-index 1 is out of range. Remedy: give 0." in refused(capsys, ["--device", "cpu", "--device-index", "1"])
    assert "--device 'tpu' is unknown" in refused(capsys, ["--device", "tpu"])
    assert "it is a folder" in refused(capsys, ["--json", str(tmp_path)])
    assert "there is no folder" in refused(capsys, ["--json", str(tmp_path / "no" / "probe.json")])
    assert "extra" in refused(capsys, ["extra"])
    assert child.asked == []


def test_cuda_without_a_gpu(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "torch sees no GPU" in refused(capsys, ["--device", "cuda"])


def test_the_identity_is_the_one_under_which_the_fold_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Name and driver version are what the fold's own driver says: torch's and NVML's."""
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: NAMES[index])
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: (9, 0))
    monkeypatch.setattr(command, "driver_branch", lambda: ("580.1", 580))
    assert command.identity_of(1) == identity(1)
