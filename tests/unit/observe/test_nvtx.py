"""NVTX ranges: one for each event, with the graph's name, closed again; without NVTX one warning and nothing else."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from graphdedup import DedupBackend, SettingsError, nvtx, settings
from graphdedup.events import watching
from seam.simulated import SimulatedBackend, SimulatedDevice
from tests.unit.fold.bench import Bench


class Nvtx:
    """What ``torch.cuda.nvtx`` offers in a CUDA build."""

    def __init__(self) -> None:
        self.open: dict[int, str] = {}
        self.names: list[str] = []

    def range_start(self, name: str) -> int:
        self.names.append(name)
        self.open[len(self.names)] = name
        return len(self.names)

    def range_end(self, number: int) -> None:
        del self.open[number]


@pytest.fixture(autouse=True)
def as_a_new_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(nvtx, "_state", nvtx._State())
    yield
    nvtx.disable()


@pytest.fixture
def ranges(monkeypatch: pytest.MonkeyPatch) -> Nvtx:
    made = Nvtx()
    monkeypatch.setattr(torch.cuda, "nvtx", made)
    return made


@pytest.fixture
def no_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a build without CUDA, also where the tests run on one that has it."""

    class Stub:
        def range_start(self, name: str) -> int:
            raise RuntimeError("NVTX functions not installed. Are you sure you have a CUDA build?")

    monkeypatch.setattr(torch.cuda, "nvtx", Stub())


def backend() -> DedupBackend:
    return DedupBackend(SimulatedBackend(SimulatedDevice(8 << 20)), enabled=True)


def test_each_step_is_a_range_with_the_graphs_name(ranges: Nvtx) -> None:
    assert nvtx.enable()
    bench = Bench()
    first = bench.fold(1)
    second = bench.fold(2)
    bench.check(first, second)
    assert ranges.names[1:] == [
        "graphdedup walk: value 1 segment 0",
        "graphdedup fold: value 1 segment 0",
        "graphdedup instantiate: value 1 segment 0",
        "graphdedup walk: value 2 segment 0",
        "graphdedup fold: value 2 segment 0",
        "graphdedup update: value 2 segment 0",
        "graphdedup update: value 1 segment 0",
        "graphdedup launch: value 1 segment 0",
        "graphdedup update: value 2 segment 0",
        "graphdedup launch: value 2 segment 0",
    ]
    assert ranges.open == {}, "every range was closed"


def test_the_switch_turns_them_on_with_the_first_backend_and_once(ranges: Nvtx, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(settings.NVTX, "1")
    backend()
    backend()
    assert len(watching.observers) == 1


def test_what_code_says_wins_over_the_switch(ranges: Nvtx, monkeypatch: pytest.MonkeyPatch) -> None:
    nvtx.disable()
    monkeypatch.setenv(settings.NVTX, "1")
    backend()
    assert watching.observers == ()
    assert nvtx.enable()
    monkeypatch.setenv(settings.NVTX, "0")
    backend()
    assert len(watching.observers) == 1
    nvtx.disable()
    assert watching.observers == ()


@pytest.mark.usefixtures("no_ranges")
def test_without_nvtx_the_switch_gives_one_warning_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(settings.NVTX, "true")
    with caplog.at_level(logging.WARNING, "graphdedup"):
        for _ in range(3):
            backend()
        assert not nvtx.enable()
    assert [record.getMessage() for record in caplog.records] == [
        "there are no NVTX ranges: this build of torch has no NVTX; use a CUDA build, or unset GRAPHDEDUP_NVTX"
    ]
    assert watching.observers == ()


def test_off_is_the_default_and_touches_nothing(ranges: Nvtx, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(settings.NVTX, raising=False)
    backend()
    assert ranges.names == []
    assert watching.observers == ()


@pytest.mark.parametrize("text", ["", "yes", "2"])
def test_what_is_no_switch_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(settings.NVTX, text)
    with pytest.raises(SettingsError, match=r"GRAPHDEDUP_NVTX=.*0, 1, true, false"):
        backend()


@pytest.mark.skipif(torch.version.cuda is not None, reason="this build of torch has NVTX")
def test_this_builds_own_stand_in_is_told_from_nvtx(caplog: pytest.LogCaptureFixture) -> None:
    """Which exception the stand-in raises has changed over torch's releases."""
    with caplog.at_level(logging.WARNING, "graphdedup"):
        assert not nvtx.enable()


@pytest.mark.gpu
def test_a_cuda_build_takes_the_ranges() -> None:
    assert nvtx.enable()
    bench: Any = Bench()
    member = bench.fold(1)
    bench.check(member)
    assert len(watching.observers) == 1, "no call failed"
