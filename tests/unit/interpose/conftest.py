"""A torch of each version, with its CUDA graphs on a simulated device."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from graphdedup.interpose import installed
from seam.simulated import SimulatedBackend, SimulatedDevice
from tests.unit.interpose.stand_in import VERSIONS, backend_maker, torch_class


@pytest.fixture
def device() -> SimulatedDevice:
    return SimulatedDevice()


@pytest.fixture(params=VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def plain(version: str, device: SimulatedDevice, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Torch's own class, where torch has it. Nothing is installed when a test begins and ends, and no executable is left."""
    made = torch_class(SimulatedBackend(device), version)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", made)
    monkeypatch.setattr(torch.cuda.graphs, "CUDAGraph", made)
    assert installed() is None
    yield made
    assert installed() is None, "something is left installed"
    if device.live_exec_count:
        gc.collect()  # exceptions that a test caught hold its frames
    assert device.live_exec_count == 0, "an executable was left behind"


@pytest.fixture
def maker(device: SimulatedDevice) -> Any:
    return backend_maker(device)
