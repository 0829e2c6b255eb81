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
from graphdedup.checking import CheckResult, OutputMismatch, check
from graphdedup.errors import DriverError, GraphDedupError, ReportError, SettingsError
from graphdedup.estimate import ExecEstimate, estimate_bytes
from graphdedup.graphs_file import GraphsFile
from graphdedup.interpose import Interposition, install, interpose, uninstall
from graphdedup.placement import Placement
from graphdedup.policy import Concurrent, FoldPolicy, Verify
from graphdedup.report.model import FootprintReport
from graphdedup.report.ranks import assert_ranks_agree
from graphdedup.signature import Tier
from graphdedup.stats import SessionStats, Stats
from graphdedup.topology import Edge, Node, Topology
from graphdedup.whatif import WhatIf, what_if

__version__ = "0.1.0"

__all__ = [
    "CheckResult",
    "Concurrent",
    "DedupBackend",
    "DedupHandle",
    "DriverError",
    "Edge",
    "ExecEstimate",
    "FoldPolicy",
    "FootprintReport",
    "GraphDedupError",
    "GraphsFile",
    "Interposition",
    "Node",
    "OutputMismatch",
    "Placement",
    "ReportError",
    "SessionStats",
    "SettingsError",
    "Stats",
    "Tier",
    "Topology",
    "Verify",
    "WhatIf",
    "__version__",
    "assert_ranks_agree",
    "check",
    "estimate_bytes",
    "install",
    "interpose",
    "uninstall",
    "what_if",
]
