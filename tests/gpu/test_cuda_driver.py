"""What only a real driver can show: cuBLAS graphs, clusters, refusals with their node, flags, the demo and the probe."""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import networkx
import pytest
import torch

import seam
from graphdedup import DedupBackend
from graphdedup.driver import Draws, Verdict

pytestmark = pytest.mark.gpu


@pytest.fixture
def dedup() -> DedupBackend:
    return DedupBackend(seam.default_backend("cuda"), enabled=True)


@pytest.fixture
def driver(dedup: DedupBackend) -> Any:
    assert dedup.registry is not None
    return dedup.registry.driver


def captured(dedup: DedupBackend, forward: Callable[[], torch.Tensor]) -> tuple[seam.BreakableGraph, torch.Tensor, int]:
    with torch.no_grad():
        forward()
        graph = seam.BreakableGraph(dedup)
        with seam.capture(graph, mode="full"):
            y = forward()
    return graph, y, graph.segments[0].member.raw


def test_cublas_graphs_fold_across_functions_and_clusters_bit_for_bit(dedup: DedupBackend) -> None:
    if not dedup.registry.capabilities.carries_cluster:  # type: ignore[union-attr]
        pytest.skip("this driver does not carry clusters")
    weight = torch.randn(1024, 3072, device="cuda", dtype=torch.bfloat16)
    pool, runs, names, clusters = dedup.new_pool(), [], set(), set()
    with torch.no_grad():
        for size in (256, 192, 128, 64, 33, 8, 1):
            x = torch.zeros(size, 1024, device="cuda", dtype=torch.bfloat16)
            torch.relu(x @ weight)
            graph = seam.BreakableGraph(dedup)
            with seam.capture(graph, pool=pool):
                y = torch.relu(x @ weight)
            for node in dedup.topology(graph.segments[0]).nodes:
                names.add(node.name)
                clusters.add(node.cluster)
            runs.append((graph, x, y))
        assert len(names) > 3
        assert len(clusters) > 1
        assert dedup.stats().execs < len(runs)
        for order in (runs, runs[::-1], runs[1::2] + runs[::2]):
            for graph, x, y in order:
                x.normal_()
                y.fill_(float("nan"))
                graph.replay()
                assert torch.equal(y, torch.relu(x @ weight))
    for graph, *_ in runs:
        graph.close()
    assert dedup.stats().execs == 0


def test_a_refusal_names_the_verdict_the_node_and_leaves_no_error_behind(driver: Any, dedup: DedupBackend) -> None:
    """D5, D13: topology, then node kind; the executable goes on with what it ran before."""
    x = torch.zeros(4, device="cuda")
    one, y, raw = captured(dedup, lambda: x + 1)
    two, _, longer = captured(dedup, lambda: (x + 1) * 2)
    target = torch.zeros(4, device="cuda")
    three, _, copy = captured(dedup, lambda: target.copy_(x))
    executable = driver.instantiate(raw)
    result = driver.update(executable, longer)
    assert result.verdict is Verdict.TOPOLOGY_CHANGED
    result = driver.update(executable, copy)
    assert (result.verdict, result.node) == (Verdict.NODE_TYPE_CHANGED, 0)
    assert result.detail.startswith("memcpy")
    assert ctypes.CDLL("libcudart.so.13").cudaGetLastError() == 0 if _has_cudart() else True
    x.fill_(5)
    driver.launch(executable)
    assert y.tolist() == [6] * 4
    driver.destroy(executable)
    for graph in (one, two, three):
        graph.close()


def _has_cudart() -> bool:
    try:
        ctypes.CDLL("libcudart.so.13")
    except OSError:
        return False
    return True


def test_the_walk_sees_what_the_driver_has(driver: Any, dedup: DedupBackend) -> None:
    """A DAG whose counts are the driver's; a GEMM has a name, a geometry and parameter bytes."""
    x, weight = torch.zeros(8, 256, device="cuda"), torch.randn(256, 256, device="cuda")
    graph, _, raw = captured(dedup, lambda: torch.softmax(x @ weight, -1) + 1)
    record, topology = driver.walk(raw), dedup.topology(graph.segments[0])
    assert len(record.nodes) == len(topology.nodes) >= 3
    assert len(record.edges) == len(topology.edges)
    made = topology.to_networkx()
    assert networkx.is_directed_acyclic_graph(made)
    assert made.number_of_nodes() == len(record.nodes)
    kernels = [node for node in topology.nodes if node.kind == "kernel"]
    assert all(node.name and node.grid and node.block and node.parameters["kernel_params"] for node in kernels)
    assert record.draws is Draws.NO
    graph.close()


@pytest.mark.parametrize(
    "draw",
    [
        lambda x: torch.rand_like(x),
        lambda x: torch.nn.functional.dropout(x, 0.5),
        lambda x: torch.randint_like(x, 10),
        lambda x: torch.multinomial(x.abs() + 1, 2),
        lambda x: torch.randperm(64, device="cuda"),
        lambda x: (x + 1).bernoulli_(0.5),
        lambda x: torch.nn.functional.scaled_dot_product_attention(x[None, None], x[None, None], x[None, None], dropout_p=0.5),
    ],
    ids=["rand_like", "dropout", "randint", "multinomial", "randperm", "bernoulli", "attention dropout"],
)
def test_a_draw_is_seen_in_the_parameters_of_its_kernel(draw: Any, driver: Any, dedup: DedupBackend) -> None:
    """D12: by the addresses of seed and offset, for every kind of kernel that draws."""
    x = torch.ones(64, 64, device="cuda")
    graph, _, raw = captured(dedup, lambda: draw(x))
    expected = Draws.YES if driver.philox_pointers else Draws.UNKNOWN
    assert driver.walk(raw).draws is expected
    assert (dedup.stats().execs, dedup.stats().passed_through) == (1, 0)
    graph.close()


def test_torchs_flags_are_read_not_assumed(driver: Any) -> None:
    x = torch.zeros(4, device="cuda")
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        x + 1
    graph.instantiate()
    exec_handle = driver._driver.CUgraphExec(graph.raw_cuda_graph_exec())
    assert int(driver._driver.cuGraphExecGetFlags(exec_handle)[1]) == driver.instantiate_flags


def test_the_demo_folds_and_is_exact(tmp_path: Path) -> None:
    out = tmp_path / "demo.json"
    command = [sys.executable, "-m", "graphdedup", "demo", "--device", "cuda", "--layers", "2", "--sizes", "1,2,8,33,128"]
    done = subprocess.run([*command, "--compare", "--json", str(out)], capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    result = json.loads(out.read_text())
    for mode, segments in (("full", 1), ("breakable", 3)):
        figures = result["modes"][mode]
        assert (figures["captured"], figures["segments_per_graph"]) == (5 * segments, segments)
        assert (figures["compared"], figures["mismatches"]) == (15, 0)
        assert figures["bytes_source"] == "measured"
        assert figures["unfolded_exec_device_bytes"] is not None
        assert figures["execs"] < figures["captured"]


def test_a_capture_may_end_and_begin_again_in_the_middle_of_a_forward(pytestconfig: pytest.Config) -> None:
    probe = pytestconfig.rootpath / "tools" / "probe_rebegin.py"
    done = subprocess.run([sys.executable, str(probe)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "verdict     legal and exact" in done.stdout
