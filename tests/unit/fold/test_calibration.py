"""Calibration: bytes of an executable by the slope; and device memory of a process, by whoever can tell."""

from __future__ import annotations

import os
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from graphdedup import SettingsError, calibration
from graphdedup.calibration import calibrate, slope
from graphdedup.driver.simulated import SimulatedDriver
from graphdedup.footprint import SpanReading, host_peak_bytes, host_rss_bytes
from graphdedup.nvml import process_bytes
from graphdedup.report import Source

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


def test_the_line_goes_through_its_points() -> None:
    assert slope([(10, 70.0), (20, 120.0), (40, 220.0)]) == pytest.approx((20.0, 5.0))
    assert slope([(0, 0.0), (2, 6.0), (4, 0.0)]) == pytest.approx((2.0, 0.0))


def test_on_the_simulated_device_the_numbers_are_the_models() -> None:
    """From 500 to 2,000 nodes the table rises by 3,850 KB device and 8,589 KB host: that is the slope."""
    told = calibrate(CPU, (500, 2_000), execs=4)
    assert (told.device_source, told.host_source, told.step_bytes) == (Source.MODELLED, Source.MODELLED, 0)
    assert [(row.nodes, row.execs, row.device_bytes, row.host_bytes) for row in told.rows] == [
        (500, 4, 4 * 1_372_000, 4 * 2_917_000),
        (2_000, 4, 4 * 5_222_000, 4 * 11_506_000),
    ]
    assert told.device_bytes_per_node == pytest.approx(3_850_000 / 1_500)
    assert told.host_bytes_per_node == pytest.approx(8_589_000 / 1_500)
    assert told.device_bytes_per_exec == pytest.approx(1_372_000 - 500 * 3_850_000 / 1_500)
    assert told.to_text().count("modelled") == 3


def test_m4_each_length_is_measured_over_a_whole_lot_that_stays_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    """M4: a driver hands the memory of destroyed executables to later ones, so all are held to the end."""
    live: list[int] = []
    made: list[int] = []
    instantiate, destroy = SimulatedDriver.instantiate, SimulatedDriver.destroy

    def counted(self: SimulatedDriver, raw: Any) -> Any:
        live.append(len(raw.nodes))
        made.append(len(raw.nodes))
        return instantiate(self, raw)

    def gone(self: SimulatedDriver, executable: Any) -> None:
        live.pop()
        destroy(self, executable)

    class FakeSpan:
        """1,000 bytes an executable and 10 a node on the device, 7 a node on the host."""

        def __init__(self) -> None:
            self.before = list(live)

        @classmethod
        def begin(cls, device: torch.device) -> FakeSpan:
            return cls()

        def end(self) -> SpanReading:
            grown = live[len(self.before) :]
            assert live[: len(self.before)] == self.before
            return SpanReading(1_000 * len(grown) + 10 * sum(grown), None, None, 7 * sum(grown))

    monkeypatch.setattr(SimulatedDriver, "exec_bytes", lambda self, count: None)
    monkeypatch.setattr(SimulatedDriver, "instantiate", counted)
    monkeypatch.setattr(SimulatedDriver, "destroy", gone)
    monkeypatch.setattr(calibration, "Span", FakeSpan)
    told = calibrate(CPU, (8, 2, 5), execs=3)
    assert made == [1, 2, 2, 2, 5, 5, 5, 8, 8, 8], "one ahead of all, for what the first one brings along"
    assert live == []
    assert [(row.nodes, row.device_bytes) for row in told.rows] == [(2, 3 * 1_020), (5, 3 * 1_050), (8, 3 * 1_080)]
    assert (told.device_bytes_per_exec, told.device_bytes_per_node) == pytest.approx((1_000, 10))
    assert (told.host_bytes_per_exec, told.host_bytes_per_node) == pytest.approx((0, 7))
    assert (told.device_source, told.host_source) == (Source.MEASURED_DEVICE, Source.MEASURED_HOST)
    assert "steps of 2 MiB" in told.how


@pytest.mark.parametrize(
    ("nodes", "execs", "said"),
    [((5,), 1, "two lengths"), ((0, 5), 1, "two lengths"), ((5, 10**6), 1, "20,000"), ((1, 2), 0, "execs 0")],
)
def test_what_cannot_be_measured_is_refused(nodes: tuple[int, ...], execs: int, said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        calibrate(CPU, nodes, execs)


def test_the_peak_of_the_host_is_no_less_than_now() -> None:
    peak = host_peak_bytes()
    assert peak is not None
    assert peak >= host_rss_bytes() - (1 << 20), "the two files of the system are not of one moment"


class NvmlError(Exception):
    pass


def nvml(*processes: tuple[int, int | None], fails: str = "") -> ModuleType:
    """A stand-in for pynvml that sees these processes: id and bytes. ``fails`` names the call that raises."""
    module: Any = ModuleType("pynvml")
    module.NVMLError, module.open = NvmlError, 0

    def call(name: str, result: Any = None) -> Any:
        def made(*arguments: Any) -> Any:
            if name == fails:
                raise NvmlError("not supported")
            module.open += {"nvmlInit": 1, "nvmlShutdown": -1}.get(name, 0)
            if name == "nvmlDeviceGetHandleByUUID":
                assert arguments == ("GPU-12-34",)
            return result

        return made

    seen = [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in processes]
    for name in ("nvmlInit", "nvmlShutdown", "nvmlDeviceGetHandleByUUID"):
        setattr(module, name, call(name))
    module.nvmlDeviceGetComputeRunningProcesses = call("nvmlDeviceGetComputeRunningProcesses", seen)
    return module


@pytest.fixture
def device_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device of 1,000 bytes, 400 of them in use by whoever."""
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (600, 1000))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid="12-34"))


@pytest.mark.usefixtures("device_memory")
def test_nvml_tells_what_this_process_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    module = nvml((1, 999), (os.getpid(), 123))
    monkeypatch.setitem(sys.modules, "pynvml", module)
    assert tuple(process_bytes(GPU)) == (123, "NVML, this process alone", True)
    assert module.open == 0, "what was opened is closed"


@pytest.mark.usefixtures("device_memory")
@pytest.mark.parametrize(
    ("module", "said"),
    [
        (None, "pip install 'graphdedup[nvml]'"),
        (nvml(), "does not list this process, as in most containers"),
        (nvml((1, 999)), "does not list this process, as in most containers"),
        (nvml((os.getpid(), None)), "does not list this process"),
        (nvml(fails="nvmlInit"), "NVML cannot be used: not supported"),
        (nvml(fails="nvmlDeviceGetComputeRunningProcesses"), "NVML does not tell: not supported"),
    ],
)
def test_where_nvml_does_not_tell_the_whole_device_is_read_and_said_to_be(
    module: ModuleType | None, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", module)
    told = process_bytes(GPU)
    assert (told.bytes, told.of_process) == (400, False)
    assert told.how.startswith("mem_get_info, every process on the device, steps of 2 MiB; ")
    assert said in told.how
