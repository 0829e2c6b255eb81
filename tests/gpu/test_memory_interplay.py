"""The pools of the seam beside what else torch's allocator can do: pools of others, emptied caches, other kinds of memory."""

from __future__ import annotations

import gc
import os
import random
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

import seam
from graphdedup import DedupBackend

pytestmark = pytest.mark.gpu

WIDTH = 512
Ladder = list[tuple[seam.BreakableGraph, torch.Tensor, torch.Tensor]]


@seam.eager_break
def halve(x: torch.Tensor) -> torch.Tensor:
    return x / 2


def forward(x: torch.Tensor) -> torch.Tensor:
    for _ in range(3):
        x = halve(torch.relu(x) + 1) * 3
    return x


def capture_ladder(
    backend: seam.GraphBackend, pool: Any, sizes: tuple[int, ...], between: Callable[[], None], mode: str = "breakable"
) -> Ladder:
    rungs = []
    for size in sizes:
        x = torch.zeros(size, WIDTH, device="cuda")
        graph = seam.BreakableGraph(backend, label=f"bs={size}")
        with seam.capture(graph, pool=pool, mode=mode, expect_breaks=3):
            y = forward(x)
        rungs.append((graph, x, y))
        between()
    return rungs


def check(rungs: Ladder, between: Callable[[], None] = lambda: None) -> None:
    for turn in range(3):
        for graph, x, y in random.Random(turn).sample(rungs, len(rungs)):
            x.normal_()
            graph.replay()
            assert torch.equal(y, forward(x)), graph.label
            between()


def close(rungs: Ladder) -> None:
    for graph, *_ in rungs:
        graph.close()


def spoil() -> None:
    """Give back what is cached, and let others take what was given back."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    for shift in range(9, 26):
        torch.full((1 << shift,), 255, dtype=torch.uint8, device="cuda")


@pytest.fixture(params=["folded", "plain"])
def backend(request: pytest.FixtureRequest) -> DedupBackend:
    return DedupBackend(seam.default_backend("cuda"), enabled=request.param == "folded")


def test_an_emptied_cache_between_captures_and_replays_changes_nothing(backend: DedupBackend) -> None:
    """M1: what a pinned pool holds is given back with the pool, and not before."""
    pool = backend.new_pool()
    rungs = capture_ladder(backend, pool, (256, 64, 8), spoil)
    held = pool.reserved_bytes()
    check(rungs, spoil)
    assert pool.reserved_bytes() == held
    close(rungs)


def test_a_handle_of_torchs_is_captured_into_and_shared_with_torchs_own_graphs(backend: DedupBackend) -> None:
    handle = torch.cuda.graph_pool_handle()
    pool: Any = backend.new_pool(handle=handle)
    assert backend.new_pool(handle=handle) is pool
    with pytest.raises(seam.CaptureError, match=r"another stream.*M1"):
        backend.new_pool(torch.cuda.Stream(), handle=handle)
    rungs = capture_ladder(backend, pool, (256, 64), spoil)
    x = torch.zeros(32, WIDTH, device="cuda")
    other = torch.cuda.CUDAGraph()
    with torch.cuda.graph(other, pool=handle, stream=pool.stream):
        y = torch.relu(x) * 5
    assert tuple(other.pool()) == handle == pool.id
    for _ in range(3):
        check(rungs)
        x.normal_()
        other.replay()
        assert torch.equal(y, torch.relu(x) * 5)
    other.reset()
    check(rungs)
    close(rungs)


def test_a_mem_pool_is_captured_into_and_kept_alive(backend: DedupBackend) -> None:
    own = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(own):
        beside = torch.full((1 << 20,), 7.0, device="cuda")
    pool: Any = backend.new_pool(handle=own)
    assert pool.id == own.id
    before = pool.reserved_bytes()
    assert before is not None
    assert before >= 4 << 20
    rungs = capture_ladder(backend, pool, (1024, 64, 8), spoil)
    del own
    gc.collect()
    check(rungs, spoil)
    assert bool((beside == 7).all())
    close(rungs)


@pytest.mark.parametrize("wrong", [0, (0, 0), (1,), "pool", (1.0, 2), None.__class__])
def test_what_is_no_handle_is_refused(wrong: Any) -> None:
    with pytest.raises(seam.CaptureError, match=r"is no handle of a pool.*M1.*MemPool"):
        seam.default_backend("cuda").new_pool(handle=wrong)


_CHILD = """
import torch, seam
from graphdedup import DedupBackend
from tests.gpu.test_memory_interplay import capture_ladder, check, close, spoil
backend = DedupBackend(seam.default_backend("cuda"), enabled=True)
pool = backend.new_pool()
rungs = capture_ladder(backend, pool, (1024, 256, 64, 8), spoil, mode="{mode}")
check(rungs, spoil)
stats = backend.stats()
held = max(graph.crossing.held_bytes for graph, *_ in rungs)
counts = stats.captured, stats.execs, stats.passed_through
print(torch.cuda.get_allocator_backend(), *counts, pool.reserved_bytes(), held, sep="|")
print(*stats.passed_through_by_reason, sep="|")
print(backend.report().to_text())
close(rungs)
late = seam.BreakableGraph(backend, label="late")
x = torch.zeros(8, device="cuda")
try:
    with seam.capture(late):
        seam.eager_break(torch.relu)(x + 1)
except seam.CaptureError as error:
    print(error)
print("done")
"""


def child(settings: str, mode: str) -> list[str]:
    """What a process with these settings of the allocator prints."""
    environment = {**os.environ, "PYTORCH_CUDA_ALLOC_CONF": settings, "PYTORCH_ALLOC_CONF": settings}
    ran = subprocess.run(
        [sys.executable, "-c", _CHILD.format(mode=mode)], env=environment, capture_output=True, text=True, timeout=240
    )
    assert ran.returncode == 0, ran.stderr[:3000]
    lines = ran.stdout.splitlines()
    assert lines[-1] == "done"
    return lines


def test_expandable_segments_are_read_as_they_grow() -> None:
    lines = child("expandable_segments:True", "breakable")
    name, captured, execs, passed_through, reserved, held = lines[0].split("|")
    assert (name, captured, passed_through, held) == ("native", "16", "0", "0")
    assert int(execs) < 16
    assert int(reserved) >= 2 * 1024 * WIDTH * 4


def test_memory_nodes_of_cuda_malloc_async_are_passed_through_and_said_so() -> None:
    """D11: graphs get nodes that take memory when they run; so at a capture there is nothing that a break could read (S5)."""
    lines = child("backend:cudaMallocAsync", "full")
    name, captured, execs, passed_through, reserved, held = lines[0].split("|")
    assert (name, captured, execs, passed_through, reserved, held) == ("cudaMallocAsync", "4", "4", "4", "None", "0")
    assert lines[1] == "a node is of kind mem_alloc (rule D11)"
    assert any(line.startswith("pool") and "unknown" in line for line in lines)
    assert lines[-2].startswith("a break cannot run while the allocator is cudaMallocAsync")
    assert "[rule S5]" in lines[-2]
