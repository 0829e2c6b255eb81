"""The errors of the simulated device."""

from __future__ import annotations

from seam.errors import SeamError

__all__ = ["HostReadError", "OutOfSimulatedMemory", "SimulatedDeviceError"]


class SimulatedDeviceError(SeamError):
    """The simulated device cannot do what it was asked, as a GPU could not either."""


class OutOfSimulatedMemory(SimulatedDeviceError):
    """The block of memory of a simulated device is full."""


class HostReadError(SimulatedDeviceError):
    """A captured call needs data on the host, which does not exist before a replay."""
