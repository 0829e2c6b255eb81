"""What lives how long: pools without graphs, graphs closed inside another capture, interpreter exit, threads."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest
import torch

import seam
from graphdedup import DedupBackend


@seam.eager_break
def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def captured(
    backend: seam.GraphBackend, device: str, pool: seam.Pool | None = None
) -> tuple[seam.BreakableGraph, torch.Tensor, torch.Tensor]:
    x = torch.zeros(4, device=device)
    graph = seam.BreakableGraph(backend)
    with seam.capture(graph, pool=pool):
        y = double(x + 1) + 3
    return graph, x, y


def check(graph: seam.BreakableGraph, x: torch.Tensor, y: torch.Tensor) -> None:
    for value, expected in ((10, 25), (0, 5), (1, 7)):
        x.fill_(value)
        graph.replay()
        assert y.tolist() == [expected] * 4


def test_a_pool_outlives_its_last_graph(backend: seam.GraphBackend, device: str) -> None:
    """M1: pinned; torch alone fails an internal assert here."""
    pool = backend.new_pool()
    for _ in range(3):
        graph, x, y = captured(backend, device, pool)
        check(graph, x, y)
        graph.close()
        del x, y


def test_a_graph_keeps_its_pool_alive(backend: seam.GraphBackend, device: str) -> None:
    graph, *_ = captured(backend, device)
    other, x2, y2 = captured(backend, device, graph.pool)
    assert other.pool is graph.pool
    graph.close()
    del graph
    check(other, x2, y2)
    other.close()


@pytest.mark.parametrize("fold", [False, True])
def test_closing_a_graph_inside_a_capture_does_not_invalidate_it(fold: bool, backend: seam.GraphBackend, device: str) -> None:
    used = DedupBackend(backend, enabled=True) if fold else backend
    old, *_ = captured(used, device)
    dropped, *_ = captured(used, device)
    old.replay()
    dropped.replay()
    x = torch.zeros(4, device=device)
    graph = seam.BreakableGraph(used)
    with seam.capture(graph):
        middle = x + 1
        old.close()
        del dropped
        y = double(middle) + 3
    check(graph, x, y)
    graph.close()


def test_another_thread_allocates_during_a_capture(backend: seam.GraphBackend, device: str) -> None:
    """S12: thread_local mode; a scope of one thread is no scope of another."""
    inside: list[object] = []

    def work() -> None:
        inside.append((torch.ones(1 << 16, device=device) * 2).sum().item())
        inside.append(double(torch.ones(1, device=device)).item())

    x = torch.zeros(4, device=device)
    graph = seam.BreakableGraph(backend)
    with seam.capture(graph):
        middle = x + 1
        thread = threading.Thread(target=work)
        thread.start()
        thread.join(60)
        y = double(middle) + 3
    assert inside == [2.0 * (1 << 16), 2.0]
    assert len(graph.breaks) == 1
    check(graph, x, y)
    graph.close()


@pytest.mark.parametrize(("given", "passed"), [({}, "thread_local"), ({"capture_error_mode": "relaxed"}, "relaxed")])
@pytest.mark.parametrize("fold", [False, True])
def test_the_capture_mode_is_thread_local_unless_the_caller_says_otherwise(
    fold: bool,
    given: dict[str, str],
    passed: str,
    backend: seam.GraphBackend,
    device: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """S12: it reaches the device for each of the two segments, also through the folding backend."""
    modes: list[str] = []
    begin_capture = backend.begin_capture

    def begin(pool: seam.Pool, *, segment: seam.SegmentInfo | None = None, capture_error_mode: str = "not said") -> None:
        modes.append(capture_error_mode)
        begin_capture(pool, segment=segment, capture_error_mode="thread_local")

    monkeypatch.setattr(backend, "begin_capture", begin)
    graph = seam.BreakableGraph(DedupBackend(backend, enabled=True) if fold else backend)
    x = torch.zeros(4, device=device)
    with seam.capture(graph, **given):  # type: ignore[arg-type]
        double(x + 1)
    assert modes == [passed] * 2
    graph.close()


def test_two_threads_capture_at_the_same_time(backend: seam.GraphBackend, device: str) -> None:
    barrier = threading.Barrier(2, timeout=60)
    failures: list[BaseException] = []

    def work() -> None:
        try:
            x = torch.zeros(4, device=device)
            graph = seam.BreakableGraph(backend)
            pool = backend.new_pool()
            barrier.wait()
            with seam.capture(graph, pool=pool):
                middle = x + 1
                barrier.wait()
                y = double(middle) + 3
                barrier.wait()
            check(graph, x, y)
            graph.close()
        except BaseException as error:
            failures.append(error)
            barrier.abort()

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not failures


EXIT = """
import atexit, sys
left = []  # looked at behind everything that is registered from here on
atexit.register(lambda: left and print(len(left), "segments were never released", file=sys.stderr))
import torch, seam, graphdedup
device = sys.argv[1]
torch.manual_seed(3)
expected = torch.rand(2, device=device)
torch.manual_seed(3)
backend = graphdedup.DedupBackend(seam.default_backend(device), enabled=True)
assert torch.equal(torch.rand(2, device=device), expected), "the backend drew from the user's generator"
end_capture, destroy_graph = backend.end_capture, backend.destroy_graph
def end(**how):
    left.append(end_capture(**how))
    return left[-1]
def destroy(handle):
    destroy_graph(handle)
    left.remove(handle)
backend.end_capture, backend.destroy_graph = end, destroy
kept = []
for size in (4, 2):
    x = torch.zeros(size, device=device)
    graph = seam.BreakableGraph(backend)
    with seam.capture(graph):
        y = x + 1
        seam.graph_break()
        z = y * 2
    graph.replay()
    kept.append((graph, x, z))
assert z.tolist() == [2.0, 2.0]
assert len(left) == 4
cycle = [kept]
cycle.append(cycle)
"""


def test_a_process_may_end_without_closing_anything(device: str) -> None:
    """S14: at interpreter exit every segment is released, and nothing is printed or raised."""
    done = subprocess.run(
        [sys.executable, "-c", EXIT, "cuda" if device == "cuda" else "cpu"], capture_output=True, text=True, timeout=300
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_side_streams_of_a_full_capture_are_part_of_it(backend: seam.GraphBackend, device: str) -> None:
    """A fork and a join inside one segment: y = 2 (x + 1) + 3 (x + 1)."""
    if device == "cuda":
        side, current = torch.cuda.Stream(), torch.cuda.current_stream
        entered = torch.cuda.stream
    else:
        from seam import simulated

        side, current, entered = simulated.Stream(), simulated.current_stream, simulated.stream  # type: ignore[assignment]
    x = torch.zeros(4, device=device)
    graph = seam.BreakableGraph(backend)
    with seam.capture(graph, mode="full"):
        base = x + 1
        side.wait_stream(current())
        with entered(side):
            tripled = base * 3
        doubled = base * 2
        current().wait_stream(side)
        y = doubled + tripled
    for value in (0, 1, 4):
        x.fill_(value)
        graph.replay()
        assert y.tolist() == [5 * (value + 1)] * 4
    graph.close()
