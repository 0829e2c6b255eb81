"""Reports to test with: functions that make one, with chosen fields changed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from graphdedup.report import (
    BreakRow,
    DemoModel,
    DemoResult,
    Figure,
    FootprintReport,
    ModeResult,
    RefusalRow,
    SessionRow,
    Source,
)


def _footprint(**changes: object) -> FootprintReport:
    values: dict[str, object] = {
        "device": "NVIDIA H200",
        "driver_version": "580.159",
        "torch_version": "2.11.0",
        "sessions": (SessionRow(name="decode", captured=1044, execs=29),),
        "breaks": (BreakRow(name="attention (model.py:88)", segments=1008),),
        "captured": 1044,
        "execs": 29,
        "peak_execs": 31,
        "groups": 5,
        "nodes": 18288,
        "updates": 1234,
        "launches": 4567,
        "refused": 3,
        "unfolded": 1,
        "passed_through": 2,
        "refusals": (RefusalRow(reason="TOPOLOGY_CHANGED", count=3, example="decode bs=8 segment 0, node 17"),),
        "exec_device": Figure(bytes=2_097_152, source=Source.MEASURED_DEVICE, how="around the whole span"),
        "exec_host": Figure(bytes=300_000, source=Source.MEASURED_HOST, how="resident memory"),
        "pool": Figure(bytes=None, source=Source.MEASURED_DEVICE, how="no pool alive"),
        "walk_seconds": 0.25,
        "fold_seconds": 0.125,
        "instantiate_seconds": 0.0625,
    }
    return FootprintReport.model_validate(values | changes)


def _mode_result(**changes: object) -> ModeResult:
    values: dict[str, object] = {
        "captured": 256,
        "execs": 2,
        "peak_execs": 3,
        "groups": 2,
        "nodes": 137216,
        "segments_per_graph": 1,
        "sizes": tuple(range(1, 257)),
        "rounds": 3,
        "compared": 768,
        "mismatches": 0,
        "updates": 1021,
        "launches": 1024,
        "refused": 0,
        "unfolded": 0,
        "passed_through": 0,
        "bytes_source": "measured",
        "bytes_how": "device: around the whole span; host: resident memory",
        "exec_device_bytes": 2_097_152,
        "exec_host_bytes": 7_000_000,
        "pool_bytes": 31_457_280,
        "capture_seconds": 1.5,
        "fold_seconds": 0.75,
    }
    return ModeResult.model_validate(values | changes)


def _demo_result(**modes: ModeResult) -> DemoResult:
    return DemoResult(
        device="NVIDIA H200",
        driver_version="580.159",
        torch_version="2.11.0",
        command="graphdedup demo --sizes 1..256",
        seed=7,
        model=DemoModel(
            name="0.6b",
            layers=28,
            hidden=1024,
            heads=16,
            kv_heads=8,
            head_dim=128,
            mlp=3072,
            vocab=32000,
            max_seq=128,
            dtype="bfloat16",
            parameters=473_000_000,
        ),
        modes=modes or {"full": _mode_result()},
    )


@pytest.fixture
def footprint() -> Callable[..., FootprintReport]:
    return _footprint


@pytest.fixture
def mode_result() -> Callable[..., ModeResult]:
    return _mode_result


@pytest.fixture
def demo_result() -> Callable[..., DemoResult]:
    return _demo_result
