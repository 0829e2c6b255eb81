"""Drivers: what the fold asks of a device. One for the CUDA driver API, one for the simulated device."""

from __future__ import annotations

from typing import Any

from graphdedup.driver.protocol import (
    DeviceIdentity,
    Draws,
    EdgeRecord,
    GraphDriver,
    GraphRecord,
    NodeRecord,
    UpdateResult,
    Verdict,
)
from graphdedup.errors import DriverError

__all__ = [
    "DeviceIdentity",
    "Draws",
    "EdgeRecord",
    "GraphDriver",
    "GraphRecord",
    "NodeRecord",
    "UpdateResult",
    "Verdict",
    "driver_for",
]


def driver_for(backend: Any) -> GraphDriver:
    """The driver of a seam backend, by the backend's name.

    Raises:
        DriverError: the backend is of another kind, or its driver cannot be used here; the message says what to install.
    """
    if backend.name == "cuda":
        from graphdedup.driver.cuda import CudaDriver

        return CudaDriver(backend.device, backend.launches)
    if backend.name == "simulated":
        from graphdedup.driver.simulated import SimulatedDriver

        return SimulatedDriver(backend.device)
    raise DriverError(f"backend {backend.name!r} has no driver", remedy="pass driver= to DedupBackend")
