"""A device without a GPU: it captures real torch code on the CPU as a GPU captures kernels, and replays it exactly.

Memory is re-used as a GPU's private pool re-uses it, so that a wrong lifetime gives wrong bytes; an update carries and
refuses what a driver does. Use it to test what you build on :mod:`seam` where there is no GPU::

    backend = seam.simulated.SimulatedBackend()
    pool = backend.new_pool()
    with pool.entered():
        backend.begin_capture(pool)
        y = model(x)
        segment = backend.end_capture()
    backend.replay_graph(segment)
"""

from __future__ import annotations

from .backend import SimulatedBackend, SimulatedPool, SimulatedSegment
from .device import SimulatedDevice
from .errors import HostReadError, OutOfSimulatedMemory, SimulatedDeviceError
from .graph import SimulatedGraph, SimulatedNode
from .params import LaunchInfo
from .profile import DriverProfile
from .program import SimulatedExec
from .streams import Event, Stream, current_stream, default_stream, stream
from .update import SimulatedUpdateResult

__all__ = [
    "DriverProfile",
    "Event",
    "HostReadError",
    "LaunchInfo",
    "OutOfSimulatedMemory",
    "SimulatedBackend",
    "SimulatedDevice",
    "SimulatedDeviceError",
    "SimulatedExec",
    "SimulatedGraph",
    "SimulatedNode",
    "SimulatedPool",
    "SimulatedSegment",
    "SimulatedUpdateResult",
    "Stream",
    "current_stream",
    "default_stream",
    "stream",
]
