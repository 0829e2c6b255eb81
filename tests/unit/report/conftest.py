"""Reports to test with: functions that make one, with chosen fields changed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from graphdedup.report import (
    BreakRow,
    DemoModel,
    DemoResult,
    Environment,
    ExecRow,
    Figure,
    FootprintReport,
    GroupRow,
    MemberRow,
    ModeResult,
    NodeRow,
    PoolRow,
    RefusalRow,
    SessionRow,
    Source,
    StageRow,
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


def _grouped(graphs: int = 5, *, text: str = "", alone: int = 1) -> FootprintReport:
    """A report of ``graphs`` live graphs of two segments a label: one group, and ``alone`` graphs on their own.

    Graph i has i nodes and was replayed i times; ``text`` stands in labels, reasons and names.
    """
    modelled = Source.MODELLED

    def member(number: int, why: str = "") -> MemberRow:
        return MemberRow(
            id=number,
            label=f"decode bs={(number + 1) // 2}{text}",
            segment=(number + 1) % 2,
            session=f"decode{text}",
            pool=1,
            nodes=number,
            own_device_bytes=1000 * number,
            own_host_bytes=100 * number,
            replays=number,
            updates=number % 2,
            why=why,
        )

    def group(number: int, members: list[MemberRow]) -> GroupRow:
        size = members[0].nodes
        executable = ExecRow(
            nodes=size,
            device_bytes=1000 * size,
            device_source=modelled,
            host_bytes=1,
            host_source=modelled,
            updates=1,
            launches=2,
        )
        return GroupRow(id=number, key=f"{number:032x}", execs=(executable,), members=tuple(members))

    shared = graphs - alone
    rows = [group(0, [member(number) for number in range(1, shared + 1)])]
    rows += [group(at, [member(shared + at, f"node {at} differs{text}")]) for at in range(1, alone + 1)]
    plain = 1000 * graphs * (graphs + 1) // 2
    how = "live execs x a table"
    return _footprint(
        captured=graphs,
        execs=1 + alone,
        nodes=plain // 1000,
        device=f"Simulated{text}",
        sessions=(SessionRow(name=f"decode{text}", captured=graphs, execs=1 + alone, seconds=1.5),),
        refusals=(RefusalRow(reason=f"refused{text}", count=3, example=f"an example{text}"),),
        exec_device=Figure(bytes=2_250_000, source=modelled, how=how, peak_bytes=1_350_000_000),
        plain_device=Figure(bytes=plain, source=modelled, how=how),
        pool=Figure(bytes=4096, source=Source.MEASURED_HOST, how="reserved"),
        pools=(PoolRow(id=1, graphs=graphs, source=Source.MEASURED_HOST, reserved_bytes=4096, allocated_bytes=1024),),
        group_rows=tuple(rows),
        node_rows=(NodeRow(kind="kernel", name=f"gemm{text}", count=plain // 1000),),
        stages=(StageRow(name="now", device_used_bytes=None, torch_reserved_bytes=None, host_resident_bytes=5_000),),
        environment=Environment(graphdedup="0", python="3", platform=f"here{text}", torch="2", policy={"tier": "exact"}),
    )


@pytest.fixture
def grouped() -> Callable[..., FootprintReport]:
    return _grouped


@pytest.fixture
def footprint() -> Callable[..., FootprintReport]:
    return _footprint


@pytest.fixture
def mode_result() -> Callable[..., ModeResult]:
    return _mode_result


@pytest.fixture
def demo_result() -> Callable[..., DemoResult]:
    return _demo_result
