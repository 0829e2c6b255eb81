"""Mode tc_piecewise: torch.compile ends its pieces where a capture splits, and one marking serves both."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
import torch

import seam


@pytest.fixture(autouse=True)
def compiled_anew() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


class Cache:
    """Something that no compiled graph could take as an argument."""

    def __init__(self) -> None:
        self.seen: list[float] = []
        self.compiled = False


@seam.eager_break(name="attend")
def attend(x: torch.Tensor, cache: Cache) -> torch.Tensor:
    cache.compiled |= torch.compiler.is_compiling()
    cache.seen.append(x.sum().item())
    return x * 2 if cache.seen[-1] > 0 else x * 3  # depends on the host


def plus_seven(x: torch.Tensor) -> torch.Tensor:
    return x + 7


class Layer(torch.nn.Module):
    def __init__(self, number: int) -> None:
        super().__init__()
        self.register_buffer("factor", torch.full((), float(number)))

    def forward(self, x: torch.Tensor, cache: Cache) -> torch.Tensor:
        h = torch.relu(x * self.factor) - 1
        return attend(h, cache) + x


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(Layer(number) for number in (1, 2, 3))

    def forward(self, x: torch.Tensor, cache: Cache) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x, cache)
        return x * 0.5


def inner(device: str) -> str:
    return "inductor" if device == "cuda" else "eager"


@torch.no_grad()
def test_pieces_end_at_the_break_points_and_the_capture_is_exact(backend: seam.GraphBackend, device: str) -> None:
    model, cache = Model().to(device), Cache()
    forward = seam.piecewise(model, inner=inner(device))
    x = torch.zeros(4, device=device)
    graph = seam.BreakableGraph(backend)
    with seam.capture(graph, mode="tc_piecewise", warmup=lambda: forward(x, cache), expect_breaks=["attend"] * 3):
        y = forward(x, cache)
    assert len(graph.segments) == 4
    assert {met.site.rpartition(":")[0] for met in graph.break_points} == {__file__}
    assert forward.pieces, "something was compiled"
    assert all(piece.operations for piece in forward.pieces)
    assert not cache.compiled, "the break is in none of them"
    for value in (-2.0, 5.0, 0.5, -1.0):
        x.fill_(value)
        cache.seen.clear()
        graph.replay()
        ours, seen = y.tolist(), list(cache.seen)
        cache.seen.clear()
        assert ours == model(x, cache).tolist(), "sums and products of small numbers: exact in any order"
        assert seen == cache.seen
    graph.close()


@torch.no_grad()
def test_markers_and_borrowed_functions_end_pieces_too(
    backend: seam.GraphBackend, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = ModuleType("somebody_elses")
    module.plus_seven = plus_seven  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "somebody_elses", module)

    def forward(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        seam.graph_break("here")
        return module.plus_seven(y + 1) * 3

    compiled = seam.piecewise(forward, inner=inner(device))
    x = torch.zeros(4, device=device)
    graph = seam.BreakableGraph(backend)
    with seam.capture(
        graph,
        mode="tc_piecewise",
        warmup=lambda: compiled(x),
        break_at=["somebody_elses:plus_seven"],
        expect_breaks=["here", "somebody_elses:plus_seven"],
    ):
        y = compiled(x)
    assert len(graph.segments) == 3
    for value in (0, 1, 2):
        x.fill_(value)
        graph.replay()
        assert y.tolist() == [(2 * value + 8) * 3] * 4
    graph.close()


def plain_compiled(operations: list[int]) -> Any:
    """2 * (x + 1) + 3 with two break points, compiled by torch alone; ``operations`` has what each compilation found."""

    def count(graph: torch.fx.GraphModule, example_inputs: list[Any]) -> Any:
        operations.append(sum(node.op == "call_function" for node in graph.graph.nodes))
        return graph.forward

    double = seam.eager_break(name="double")(lambda value: value * 2)

    def forward(x: torch.Tensor) -> torch.Tensor:
        y = double(x + 1)
        seam.graph_break()
        return y + 3

    return torch.compile(forward, backend=count, fullgraph=True)


@torch.no_grad()
def test_plain_compiled_code_has_the_break_points_compiled_in() -> None:
    operations: list[int] = []
    assert plain_compiled(operations)(torch.zeros(4)).tolist() == [5] * 4
    assert operations == [3]


@pytest.mark.gpu
@torch.no_grad()
def test_plain_compiled_code_is_not_compiled_anew_inside_a_capture() -> None:
    """Nothing of it depends on whether a scope is open. (The simulated device records uncompiled code only.)"""
    operations: list[int] = []
    compiled = plain_compiled(operations)
    x = torch.zeros(4, device="cuda")
    graph = seam.BreakableGraph(seam.default_backend("cuda"))
    with seam.capture(graph, mode="full", warmup=lambda: compiled(x), expect_breaks=0):
        y = compiled(x)
    assert operations == [3]
    for value in (1, 2, 3):
        x.fill_(value)
        graph.replay()
        assert y.tolist() == [2 * value + 5] * 4
    graph.close()


def test_a_shape_that_would_be_compiled_inside_a_capture_is_refused() -> None:
    forward = seam.piecewise(lambda x: x * x.shape[0], inner="eager", dynamic=False)
    assert forward(torch.ones(2)).tolist() == [2, 2]
    with forward.only_compiled():
        assert forward(torch.ones(2)).tolist() == [2, 2]
    before = len(forward.pieces)
    with pytest.raises(seam.CaptureError, match=r"a shape that was not compiled.*warmup="), forward.only_compiled():
        forward(torch.ones(3))
    assert len(forward.pieces) == before, "not even tried: a compiler may run kernels to choose among them"
    with pytest.raises(LookupError), forward.only_compiled():
        raise LookupError
    assert forward(torch.ones(3)).tolist() == [3, 3, 3]


def test_a_function_that_is_compiled_first_inside_a_capture_is_refused() -> None:
    forward = seam.piecewise(lambda x: x + 1, inner="eager")
    with pytest.raises(seam.CaptureError, match="was not compiled"), forward.only_compiled():
        forward(torch.ones(2))


@torch.no_grad()
def test_outside_of_a_capture_a_forward_in_pieces_is_the_forward(device: str) -> None:
    model, cache = Model().to(device), Cache()
    forward = seam.piecewise(model, inner=inner(device))
    for value in (-2.0, 0.5, 3.0):
        x = torch.full((4,), value, device=device)
        assert forward(x, cache).tolist() == model(x, cache).tolist()
