"""The check of what crosses a break names the break, the direction and the tensor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch

import seam


@dataclass
class Pair:
    left: torch.Tensor
    right: torch.Tensor


def captured(backend: seam.GraphBackend, device: str, check: str | None, body: Any) -> tuple[seam.BreakableGraph, torch.Tensor]:
    x = torch.zeros(4, device=device)
    graph = seam.BreakableGraph(backend)
    marked = seam.eager_break(name="mix")(body)
    with seam.capture(graph, check_crossing=check):
        marked([x * 1], more={"rows": x * 2})
    return graph, x


def test_nan_in_an_argument_is_found_before_the_break_runs(backend: seam.GraphBackend, device: str) -> None:
    ran: list[bool] = []

    def body(parts: list[torch.Tensor], more: dict[str, torch.Tensor]) -> torch.Tensor:
        ran.append(True)
        return parts[0].nan_to_num(0)

    graph, x = captured(backend, device, "nan", body)
    for value in (0, 1, 2):
        x.fill_(value)
        graph.replay()
    assert len(ran) == 4
    x[1:3] = float("nan")
    with pytest.raises(seam.BreakError, match=r"argument of mix \[0\]\[0\] holds NaN in 2 of 4 elements.*S5"):
        graph.replay()
    assert len(ran) == 4
    x.fill_(3)
    graph.replay()
    graph.close()


def test_nan_in_a_result_is_found_wherever_it_is(backend: seam.GraphBackend, device: str) -> None:
    def body(parts: list[torch.Tensor], more: dict[str, torch.Tensor]) -> Pair:
        return Pair(more["rows"] + 1, 1 / parts[0] - 1 / parts[0])

    graph, x = captured(backend, device, "nan", body)
    for value in (1, 2, 4):
        x.fill_(value)
        graph.replay()
    x[3] = 0
    with pytest.raises(seam.BreakError, match=r"result of mix \[1\] holds NaN in 1 of 4 elements"):
        graph.replay()
    graph.close()


def test_poison_is_found_in_any_type(backend: seam.GraphBackend, device: str) -> None:
    held = {"fill": 0}

    def body(parts: list[torch.Tensor], more: dict[str, torch.Tensor]) -> tuple[torch.Tensor, ...]:
        whole = torch.full((2, 3), held["fill"], device=device, dtype=torch.int32)
        return whole, torch.tensor(True, device=device), torch.empty(0, device=device)

    graph, _ = captured(backend, device, "poison", body)
    for held["fill"] in (1, 2, 255):
        graph.replay()
    held["fill"] = -1
    with pytest.raises(seam.BreakError, match=r"result of mix \[0\] holds poison in 6 of 6 elements .torch.int32"):
        graph.replay()
    graph.close()


def test_a_result_that_is_not_written_back_has_its_arguments_looked_at(backend: seam.GraphBackend, device: str) -> None:
    graph, x = captured(backend, device, "nan", lambda parts, more: seam.NoWriteback(parts[0]))
    x.fill_(float("nan"))
    with pytest.raises(seam.BreakError, match="argument of mix"):
        graph.replay()
    graph.close()


def test_without_a_check_nothing_is_looked_at(backend: seam.GraphBackend, device: str) -> None:
    graph, x = captured(backend, device, None, lambda parts, more: parts[0] + 1)
    x.fill_(float("nan"))
    graph.replay()
    graph.close()


def test_an_unknown_check_is_refused(backend: seam.GraphBackend) -> None:
    graph = seam.BreakableGraph(backend)
    with pytest.raises(seam.CaptureError, match=r"check_crossing 'inf' is unknown.*'nan', 'poison'"):
        seam.capture(graph, check_crossing="inf").__enter__()
    assert graph.state is seam.GraphState.EMPTY
