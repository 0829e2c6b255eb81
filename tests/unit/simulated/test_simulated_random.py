"""Random numbers: torch's own replay draws what eager draws; a bare launch repeats."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from seam.simulated import SimulatedBackend, SimulatedSegment

X = torch.ones(64)


def record(backend: SimulatedBackend, function: Callable[[], Any]) -> tuple[SimulatedSegment, Any]:
    pool = backend.new_pool()
    with pool.entered():
        backend.begin_capture(pool)
        try:
            result = function()
        except BaseException:
            backend.end_capture(discard=True)
            raise
        segment = backend.end_capture()
    assert segment is not None
    return segment, result


def noisy() -> torch.Tensor:
    return F.dropout(X, 0.5) + torch.rand(64) + torch.empty(64).normal_()


@pytest.mark.parametrize("inference", [True, False])
def test_replays_draw_what_eager_draws_and_advance_the_generator_alike(inference: bool) -> None:
    backend = SimulatedBackend()
    with torch.inference_mode(inference):
        torch.manual_seed(1)
        before = torch.get_rng_state()
        segment, y = record(backend, noisy)
        assert torch.equal(torch.get_rng_state(), before), "a capture draws nothing"
        torch.manual_seed(7)
        expected = [noisy() for _ in range(3)] + [torch.rand(4)]
        torch.manual_seed(7)
        got = []
        for _ in range(3):
            backend.replay_graph(segment)
            got.append(y.clone())
        got.append(torch.rand(4))
    assert segment.graph.draws
    assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))
    assert not torch.equal(got[0], got[1])


def test_a_bare_launch_repeats_the_numbers_of_the_last_replay_and_leaves_the_generator() -> None:
    backend = SimulatedBackend()
    segment, y = record(backend, noisy)
    torch.manual_seed(7)
    backend.replay_graph(segment)
    drawn = y.clone()
    torch.manual_seed(8)  # elsewhere than where the cell's own numbers end
    after = torch.get_rng_state()
    executable = backend.device.instantiate(segment.graph)
    for _ in range(2):
        backend.device.launch(executable)
        assert torch.equal(y, drawn)
        assert torch.equal(torch.get_rng_state(), after)


def test_before_any_replay_the_cell_holds_some_state_that_is_not_the_callers() -> None:
    backend = SimulatedBackend()
    segment, y = record(backend, lambda: torch.rand(8))
    executable = backend.device.instantiate(segment.graph)
    torch.manual_seed(7)
    backend.device.launch(executable)
    first = y.clone()
    backend.device.launch(executable)
    assert torch.equal(y, first)
    assert not torch.equal(first, torch.rand(8))


def test_a_launch_with_the_prologue_is_a_replay_also_for_an_updated_executable() -> None:
    backend = SimulatedBackend()
    one, _ = record(backend, lambda: torch.rand(8))
    two, y = record(backend, lambda: torch.rand(8))
    executable = backend.device.instantiate(one.graph)
    assert backend.device.update(executable, two.graph).accepted
    torch.manual_seed(3)
    backend.device.launch(executable, prologue=True)
    torch.manual_seed(3)
    assert torch.equal(y, torch.rand(8))
    assert torch.equal(two.graph.cell.state, torch.manual_seed(3).get_state())


@pytest.mark.parametrize(
    ("call", "draws"),
    [
        (lambda: F.dropout(X, 0.5), True),
        (lambda: F.dropout(X, 0.0), False),
        (lambda: F.dropout(X, 0.5, training=False), False),
        (lambda: torch.native_dropout(X, 0.5, True), True),
        (lambda: torch.native_dropout(X, 0.5, False), False),
        (lambda: torch.native_dropout(X, 0.0, True), False),
        (lambda: F.scaled_dot_product_attention(*[X.view(1, 1, 8, 8)] * 3), False),
        (lambda: F.scaled_dot_product_attention(*[X.view(1, 1, 8, 8)] * 3, dropout_p=0.5), True),
        (lambda: F.rrelu(X, training=False), False),
        (lambda: F.rrelu(X, training=True), True),
        (lambda: torch.randn(3), True),
        (lambda: torch.randn(0), False),
        (lambda: X * 2, False),
    ],
)
@pytest.mark.parametrize("inference", [True, False])
def test_a_graph_knows_whether_it_draws(call: Callable[[], Any], draws: bool, inference: bool) -> None:
    with torch.inference_mode(inference):
        segment, _ = record(SimulatedBackend(), call)
    assert segment.graph.draws is draws


def test_a_replay_that_draws_nothing_leaves_the_generator() -> None:
    backend = SimulatedBackend()
    segment, _ = record(backend, lambda: F.dropout(X, 0.0) * 2)
    before = torch.get_rng_state()
    backend.replay_graph(segment)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_child_graph_that_draws_makes_its_parent_draw() -> None:
    backend = SimulatedBackend()
    segment, _ = record(backend, lambda: torch.rand(2))
    parent = backend.device.new_graph()
    parent.add_node("child_graph", graph=segment.graph)
    assert parent.draws
