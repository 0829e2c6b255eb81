"""Nothing leaks on a real GPU, and graphs of one stream go in any order."""

from __future__ import annotations

import contextlib
import gc
import subprocess
import sys
import threading

import pytest
import torch

import seam
from graphdedup import DedupBackend

pytestmark = pytest.mark.gpu


@seam.eager_break
def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def forward(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.dropout(double(torch.relu(x @ weight)) @ weight, 0.5)


def test_two_hundred_cycles_leave_device_memory_flat_after_the_first_ten() -> None:
    """Capture, fold, replay, release: segments that draw and that do not, siblings, a fresh pool each time.

    On one capture stream: torch keeps a cuBLAS workspace of 32 MB for each stream that it ever ran a product on.
    """
    dedup = DedupBackend(seam.default_backend("cuda"), enabled=True)
    assert dedup.registry is not None
    weight = torch.randn(256, 256, device="cuda")
    free: list[int] = []
    stream = torch.cuda.Stream()
    for _ in range(200):
        pool = dedup.new_pool(stream)
        graphs = []
        for size in (64, 8):
            x = torch.ones(size, 256, device="cuda")
            with pool.entered():
                forward(x, weight)
            graph = seam.BreakableGraph(dedup)
            with seam.capture(graph, pool=pool):
                forward(x, weight)
            graphs.append(graph)
        for graph in graphs:
            graph.replay()
        for graph in graphs:
            graph.close()
        del graph, graphs, pool, x
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        free.append(torch.cuda.mem_get_info()[0])
    assert min(free[10:]) >= free[9]
    assert dedup.stats().execs == 0
    assert dedup.registry.members == {}


@pytest.mark.parametrize("folded", [True, False])
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
def test_graphs_of_one_stream_stay_exact_as_their_siblings_go(order: tuple[int, ...], folded: bool) -> None:
    """cuBLAS workspaces belong to the stream: they are given back with the last graph, not with the first."""
    dedup = DedupBackend(seam.default_backend("cuda"), enabled=folded)
    pool = dedup.new_pool()
    left = torch.randn(64, 8192, device="cuda", dtype=torch.bfloat16)  # few rows and a long sum: split, with a workspace
    right = torch.randn(8192, 64, device="cuda", dtype=torch.bfloat16)
    runs = []
    for _ in range(3):
        with pool.entered():
            left @ right
        graph = seam.BreakableGraph(dedup)
        with seam.capture(graph, pool=pool):
            y = left @ right
        graph.replay()
        torch.cuda.synchronize()
        runs.append((graph, y, y.clone()))
    alive = set(order)
    for gone in order:
        runs[gone][0].close()
        alive.discard(gone)
        spoilers = [torch.full((size << 20,), 7, dtype=torch.uint8, device="cuda") for size in (1, 4, 8, 16, 32) * 2]
        with torch.cuda.stream(pool.stream):
            spoilers += [torch.full((size << 20,), 7, dtype=torch.uint8, device="cuda") for size in (1, 4, 8, 16, 32) * 2]
        torch.cuda.synchronize()
        for index in alive:
            graph, y, expected = runs[index]
            y.zero_()
            graph.replay()
            torch.cuda.synchronize()
            assert torch.equal(y, expected)
        assert all(bool((spoiler == 7).all()) for spoiler in spoilers)


def test_what_is_read_of_a_pool_leaves_its_id_alone() -> None:
    """torch's snapshot of one pool frees the numbers of its id (pytorch#196366): ids above 256 are no shared constants."""
    backend = seam.default_backend("cuda")
    pool = backend.new_pool()
    while pool.id[1] <= 256:
        torch.cuda.graph_pool_handle()
        pool = backend.new_pool()
    with pool.entered():
        kept = torch.ones(1 << 20, device="cuda")
    graph = seam.BreakableGraph(backend)
    with seam.capture(graph, pool=pool):
        y = kept + 1
    before = [sys.getrefcount(number) for number in pool.id]
    assert [pool.reserved_bytes() >= 4 << 20 for _ in range(8)] == [True] * 8
    assert [sys.getrefcount(number) for number in pool.id] == before
    del y
    graph.close()


def test_another_threads_call_that_breaks_a_global_capture_is_told_as_such() -> None:
    """S12: memory cannot be taken from the driver while any thread captures in mode global; the default mode allows it."""

    def allocate() -> None:
        with contextlib.suppress(RuntimeError):
            torch.empty(3 << 30, dtype=torch.uint8, device="cuda")

    backend = seam.default_backend("cuda")
    x = torch.zeros(4, device="cuda")
    torch.cuda.empty_cache()
    graph = seam.BreakableGraph(backend)
    with (
        pytest.raises(seam.CaptureError, match=r"mode 'global'.*S12.*capture_error_mode='thread_local'"),
        seam.capture(graph, capture_error_mode="global"),
    ):
        x + 1
        thread = threading.Thread(target=allocate)
        thread.start()
        thread.join(60)
    torch.cuda.empty_cache()
    with seam.capture(graph):
        y = x + 1
        thread = threading.Thread(target=allocate)
        thread.start()
        thread.join(60)
    for value in (1, 2, 3):
        x.fill_(value)
        graph.replay()
        assert y.tolist() == [value + 1] * 4
    graph.close()


CODE = """
import torch, seam
from graphdedup import DedupBackend
dedup = DedupBackend(seam.default_backend("cuda"), enabled=True)
x = torch.ones(64, device="cuda")
graphs = []
for _ in range(3):
    graph = seam.BreakableGraph(dedup)
    with seam.capture(graph):
        y = torch.nn.functional.dropout(x, 0.5) + torch.rand_like(x)
    graph.replay()
    graphs.append(graph)
print(dedup.stats().execs)
"""


def test_an_interpreter_that_ends_with_live_graphs_ends_quietly() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n", "")
