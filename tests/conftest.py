"""Backends to test on. Tests marked ``gpu`` are left out where torch sees no GPU."""

from __future__ import annotations

import weakref
from collections.abc import Iterator

import pytest
import torch

import seam


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    left_out = [item for item in items if item.get_closest_marker("gpu")]
    items[:] = [item for item in items if not item.get_closest_marker("gpu")]
    config.hook.pytest_deselected(items=left_out)


@pytest.fixture(autouse=True)
def registries_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device has one registry in a process; a test that shares it with others could count on nothing."""
    monkeypatch.setattr("graphdedup.registries._registries", weakref.WeakValueDictionary())


@pytest.fixture(params=["simulated", pytest.param("cuda", marks=pytest.mark.gpu)])
def backend(request: pytest.FixtureRequest) -> Iterator[seam.GraphBackend]:
    """A seam backend of each kind. Nothing of it may be left when the test ends."""
    made = seam.default_backend("cuda" if request.param == "cuda" else "cpu")
    yield made
    if request.param == "simulated":
        assert made.device.live_exec_count == 0, "an executable was left behind"  # type: ignore[attr-defined]


@pytest.fixture
def device(backend: seam.GraphBackend) -> str:
    """The torch device that belongs to ``backend``."""
    return "cuda" if backend.name == "cuda" else "cpu"
