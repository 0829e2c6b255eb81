"""S8 for code that uses streams of its own, made with the driver: torch does not know them, so it cannot tell the seam."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import seam
from graphdedup import DedupBackend

pytestmark = pytest.mark.gpu

_cuda = ctypes.CDLL("libcuda.so.1") if torch.cuda.is_available() else None


def call(name: str, *arguments: Any) -> None:
    code = getattr(_cuda, name)(*arguments)
    assert code == 0, (name, code)


class Library:
    """Fills memory on a stream that nobody else knows, forked from the caller's stream and joined to it by its own events."""

    def __init__(self) -> None:
        torch.zeros(1, device="cuda")
        self.stream, self.fork, self.join = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
        call("cuStreamCreate", ctypes.byref(self.stream), 1)
        for event in (self.fork, self.join):
            call("cuEventCreate", ctypes.byref(event), 2)

    def begin(self, into: torch.Tensor, number: int) -> None:
        caller = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        call("cuEventRecord", self.fork, caller)
        call("cuStreamWaitEvent", self.stream, self.fork, 0)
        call("cuMemsetD32Async", ctypes.c_uint64(into.data_ptr()), number, ctypes.c_size_t(into.numel()), self.stream)

    def end(self) -> None:
        call("cuEventRecord", self.join, self.stream)
        call("cuStreamWaitEvent", ctypes.c_void_p(torch.cuda.current_stream().cuda_stream), self.join, 0)

    def close(self) -> None:
        torch.cuda.synchronize()
        for event in (self.fork, self.join):
            call("cuEventDestroy_v2", event)
        call("cuStreamDestroy_v2", self.stream)


@pytest.fixture
def library() -> Iterator[Library]:
    made = Library()
    yield made
    made.close()


@seam.eager_break
def add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x + y


@pytest.mark.parametrize("folded", [True, False])
def test_a_librarys_own_stream_that_is_joined_before_a_break_is_captured(library: Library, folded: bool) -> None:
    backend = DedupBackend(seam.default_backend("cuda"), enabled=folded)
    runs = []
    for size in (64, 16):
        x = torch.zeros(size, dtype=torch.int32, device="cuda")
        filled = torch.empty_like(x)
        graph = seam.BreakableGraph(backend)
        with seam.capture(graph, expect_breaks=2):
            library.begin(filled, 3)
            y = x * 2
            library.end()
            y = add(y, filled)  # 2x + 3
            library.begin(filled, 4)
            library.end()
            y = add(y * 10, filled)  # 20x + 34
        runs.append((graph, x, y, filled))
    for turn in range(3):
        for graph, x, y, filled in reversed(runs):
            x.fill_(turn)
            filled.zero_()
            graph.replay()
            torch.cuda.synchronize()
            assert y.tolist() == [20 * turn + 34] * len(x)
    for graph, *_ in runs:
        graph.close()


def test_one_that_is_left_open_at_a_break_fails_the_capture_and_says_what_to_do(library: Library) -> None:
    """To join it would not do: what the library sends there after the break would run at once, and at no replay."""
    backend = seam.default_backend("cuda")
    graph = seam.BreakableGraph(backend, label="left open")
    x = torch.zeros(8, dtype=torch.int32, device="cuda")
    filled = torch.empty_like(x)
    told = r"left open: a stream was forked.*unjoined.*S8.*a library that forks a stream .* has to join it before each break"
    with pytest.raises(seam.CaptureError, match=told), seam.capture(graph):
        library.begin(filled, 3)
        add(x, filled)
    assert graph.state is seam.GraphState.FAILED
    graph.reset()
    with seam.capture(graph):
        library.begin(filled, 3)
        library.end()
        y = add(x, filled)
    graph.replay()
    torch.cuda.synchronize()
    assert y.tolist() == [3] * 8
    graph.close()
