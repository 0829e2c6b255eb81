"""Capture a forward as graph segments with eager breaks between them.

    graph = seam.BreakableGraph(seam.default_backend())
    with seam.capture(graph):
        y = model(x)          # functions marked with @seam.eager_break run between segments
    graph.replay()

The seam knows nothing of folding; :mod:`graphdedup` wraps any of its backends.
"""

from __future__ import annotations

from typing import Any

from seam.backend import GraphBackend, Handle, Pool, SegmentInfo
from seam.baked import Baked, BakedKind
from seam.break_at import BreakAt, break_at
from seam.breaks import eager_break, graph_break
from seam.buffers import Input
from seam.capture import capture
from seam.counters import SeamStats, stats
from seam.crossing import CrossingCheck
from seam.errors import BreakError, CaptureError, CaptureFailed, ReplayError, SeamError
from seam.forward import CapturedForward
from seam.forward_report import ForwardReport, ShapeRow
from seam.graph import Break, BreakableGraph, BreakMet, GraphCounts, GraphState
from seam.memory import CrossingBytes
from seam.mode import CaptureConfig, Mode
from seam.piecewise import Piecewise, piecewise
from seam.plan import MemoryPlan, PlanRow
from seam.slot import BreakSlot, NoWriteback, copy_output, register_output_type
from seam.stamp import Stamped

__all__ = [
    "Baked",
    "BakedKind",
    "Break",
    "BreakAt",
    "BreakError",
    "BreakMet",
    "BreakSlot",
    "BreakableGraph",
    "CaptureConfig",
    "CaptureError",
    "CaptureFailed",
    "CapturedForward",
    "CrossingBytes",
    "CrossingCheck",
    "ForwardReport",
    "GraphBackend",
    "GraphCounts",
    "GraphState",
    "Handle",
    "Input",
    "MemoryPlan",
    "Mode",
    "NoWriteback",
    "Piecewise",
    "PlanRow",
    "Pool",
    "ReplayError",
    "SeamError",
    "SeamStats",
    "SegmentInfo",
    "ShapeRow",
    "Stamped",
    "break_at",
    "capture",
    "copy_output",
    "default_backend",
    "eager_break",
    "graph_break",
    "piecewise",
    "register_output_type",
    "stats",
]


def default_backend(device: Any = None) -> GraphBackend:
    """The backend for a device: CUDA where there is a GPU, else the simulated device.

    Args:
        device: ``None`` picks; ``"cpu"`` is the simulated device; ``"cuda"``, ``"cuda:1"`` or an index is that GPU.

    Raises:
        SeamError: a GPU was asked for and torch sees none, or the device is of another kind.
    """
    import torch

    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    kind = "cuda" if isinstance(device, int) else torch.device(device).type
    if kind == "cuda":
        from seam.cuda import CudaBackend

        return CudaBackend(device)
    if kind == "cpu":
        from seam.simulated import SimulatedBackend

        return SimulatedBackend()
    raise SeamError(f"device {device!r} has no backend", rule="M1", remedy="use 'cuda' or 'cpu'")
