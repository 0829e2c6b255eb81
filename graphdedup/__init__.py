"""Keep every CUDA graph capture, fold the executables: N captured graphs, M execs.

    backend = graphdedup.DedupBackend(seam.default_backend())
    graph = seam.BreakableGraph(backend)
    with seam.capture(graph):
        y = model(x)
    graph.replay()
    print(backend.report().to_text())

Folding is exact (a replay does bit for bit what the unfolded graph does), explainable (every graph knows why it did not
fold) and never fatal (what cannot fold gets an executable of its own).
"""

from __future__ import annotations

from graphdedup.backend import DedupBackend, DedupHandle
from graphdedup.errors import DriverError, GraphDedupError, ReportError, SettingsError
from graphdedup.placement import Placement
from graphdedup.report.model import FootprintReport
from graphdedup.signature import Tier
from graphdedup.stats import Stats
from graphdedup.topology import Edge, Node, Topology

__version__ = "0.1.0"

__all__ = [
    "DedupBackend",
    "DedupHandle",
    "DriverError",
    "Edge",
    "FootprintReport",
    "GraphDedupError",
    "Node",
    "Placement",
    "ReportError",
    "SettingsError",
    "Stats",
    "Tier",
    "Topology",
    "__version__",
]
