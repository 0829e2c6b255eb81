"""Footprint model and topology: the small floors of the house."""

from __future__ import annotations

import ctypes
import json
from typing import Any

import pytest
import torch

import graphdedup
import graphdedup.report
import seam
from graphdedup.footprint import Span, modelled_exec_bytes


def test_a_driver_library_that_is_too_old_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process itself stands for a library that has none of the calls."""
    from graphdedup.driver import cuda_raw

    monkeypatch.setattr(cuda_raw, "libcuda", lambda: ctypes.CDLL(None))
    with pytest.raises(graphdedup.DriverError, match=r"cuGraph.*Remedy: install an NVIDIA driver for CUDA 12\.3"):
        cuda_raw.raw_calls()


def test_a_backend_without_a_driver_is_refused() -> None:
    class Strange:
        name = "strange"

    with pytest.raises(graphdedup.DriverError, match=r"'strange' has no driver.*driver="):
        graphdedup.DedupBackend(Strange(), enabled=True)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        (0, (133_000, 76_000)),
        (10, (133_000, 76_000)),
        (30, (181_500, 192_000)),  # half way from 10 to 50
        (50, (230_000, 308_000)),
        (500, (1_372_000, 2_917_000)),
        (2_000, (5_222_000, 11_506_000)),
        (3_500, (9_072_000, 20_095_000)),  # the last slope goes on: 3,850 KB and 8,589 KB for 1,500 nodes
    ],
)
def test_the_model_goes_through_what_was_measured(nodes: int, expected: tuple[int, int]) -> None:
    assert modelled_exec_bytes(nodes) == expected


def test_a_span_on_the_cpu_measures_the_host_alone() -> None:
    reading = Span.begin(torch.device("cpu")).end()
    assert reading.exec_device_bytes is None
    assert reading.device_used_bytes is None


def test_a_span_takes_out_what_the_allocator_reserved(monkeypatch: pytest.MonkeyPatch) -> None:
    """M4: over a span in which 1,000 graphs ran and the pool grew, the driver took 300 - 200 bytes, whatever one took."""
    readings = iter([(900, 1000, 40), (600, 1000, 240)])
    now = (0, 0, 0)

    def mem_get_info(device: Any) -> tuple[int, int]:
        nonlocal now
        now = next(readings)
        return now[:2]

    monkeypatch.setattr(torch.cuda, "mem_get_info", mem_get_info)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: now[2])
    reading = Span.begin(torch.device("cuda", 0)).end()
    assert (reading.device_used_bytes, reading.torch_reserved_bytes, reading.exec_device_bytes) == (300, 200, 100)


def topology(**change: Any) -> dict[str, Any]:
    nodes = [{"index": 0, "kind": "kernel", "name": "a"}, {"index": 1, "kind": "memset"}]
    base = {"device": "d", "driver_version": "1", "instantiate_flags": 1, "nodes": nodes, "edges": [{"source": 0, "target": 1}]}
    return base | change


def test_a_topology_comes_back_from_json_equal() -> None:
    made = graphdedup.Topology.from_json(json.dumps(topology()))
    assert graphdedup.Topology.from_json(made.to_json()) == made
    graph = made.to_networkx()
    assert list(graph.edges(data=True)) == [(0, 1, {"data": (0, 0, 0)})]
    assert graph.nodes[0]["name"] == "a"
    assert graph.graph["device"] == "d"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "not a topology"),
        ("[]", "not a topology"),
        (json.dumps(topology(kind="graphdedup.demo")), "kind"),
        (json.dumps(topology(schema_version=2)), "schema_version"),
        (json.dumps(topology(edges=[{"source": 0, "target": 2}])), "0 -> 2 names a node that does not exist"),
        (json.dumps(topology(nodes=[{"index": 1, "kind": "kernel"}], edges=[])), "count from 0"),
        (json.dumps(topology(nodes=[{"index": 0}], edges=[])), r"nodes\.0\.kind"),
    ],
)
def test_what_is_no_topology_is_refused_with_the_place(text: str, said: str) -> None:
    with pytest.raises(graphdedup.ReportError, match=said):
        graphdedup.Topology.from_json(text)


def test_the_public_names_are_pinned() -> None:
    """A name that goes or comes is a decision, not an accident."""
    assert sorted(graphdedup.__all__) == [
        "CheckResult", "Concurrent", "DedupBackend", "DedupHandle", "DriverError", "Edge", "ExecEstimate", "FoldPolicy",
        "FootprintReport", "GraphDedupError", "GraphsFile", "Interposition", "Node", "OutputMismatch", "Placement",
        "ReportError", "SessionStats", "SettingsError", "Stats", "Tier", "Topology", "Verify", "WhatIf", "__version__",
        "assert_ranks_agree", "check", "estimate_bytes", "install", "interpose", "uninstall", "what_if",
    ]  # fmt: skip
    assert sorted(seam.__all__) == [
        "Baked", "BakedKind", "Break", "BreakAt", "BreakError", "BreakMet", "BreakSlot", "BreakableGraph", "CaptureConfig",
        "CaptureError", "CaptureFailed", "CapturedForward", "CrossingBytes", "CrossingCheck", "ForwardReport", "GraphBackend",
        "GraphCounts", "GraphState", "Handle", "Input", "MemoryPlan", "Mode", "NoWriteback", "Piecewise", "PlanRow", "Pool",
        "ReplayError", "SeamError", "SeamStats", "SegmentInfo", "ShapeRow", "Stamped", "break_at", "capture", "copy_output",
        "default_backend", "eager_break", "graph_break", "piecewise", "register_output_type", "stats",
    ]  # fmt: skip
    assert sorted(graphdedup.report.__all__) == [
        "AloneRow", "BreakRow", "DemoModel", "DemoResult", "Environment", "ExecRow", "Figure", "FootprintReport", "GroupRow",
        "MemberRow", "ModeResult", "NodeRow", "PoolRow", "RefusalRow", "SessionRow", "Source", "StageRow", "read_report",
    ]  # fmt: skip
    for module in (graphdedup, graphdedup.report, seam):
        assert all(hasattr(module, name) for name in module.__all__)


def test_a_floor_imports_only_floors_below(pytestconfig: pytest.Config) -> None:
    """The house: seam knows nothing of graphdedup; driver and signature nothing of the registry; report of neither."""
    root = pytestconfig.rootpath
    forbidden = {
        "seam": ("graphdedup",),
        "graphdedup/driver": ("graphdedup.registry", "graphdedup.backend"),
        "graphdedup/report": ("graphdedup.registry", "graphdedup.backend", "graphdedup.driver"),
        "graphdedup/signature.py": ("graphdedup.registry",),
    }
    for place, names in forbidden.items():
        path = root / place
        for file in [path] if path.suffix else sorted(path.rglob("*.py")):
            text = file.read_text()
            for name in names:
                assert f"import {name}" not in text, f"{file} imports {name}"
                assert f"from {name}" not in text, f"{file} imports {name}"
