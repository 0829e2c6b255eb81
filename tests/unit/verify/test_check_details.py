"""What counts as equal, what is told of what is not, and that outputs are never left overwritten."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import seam
from graphdedup.checking import CheckResult, OutputMismatch, check
from graphdedup.errors import GraphDedupError
from seam.simulated import SimulatedBackend, SimulatedDevice


class Replayed:
    """Something that is replayed: it writes what it is told to, as a captured graph would."""

    label = "graph 1"

    def __init__(self, replay: Callable[[], Any]) -> None:
        self.replay = replay


def run(replay: Callable[[], Any], eager: Callable[[], Any], outputs: Any, **options: Any) -> CheckResult:
    return check(Replayed(replay), eager=eager, outputs=outputs, **({"rounds": 1} | options))  # type: ignore[arg-type]


DTYPES = [
    torch.bool,
    torch.uint8,
    torch.int16,
    torch.int64,
    torch.uint32,
    torch.float8_e4m3fn,
    torch.bfloat16,
    torch.float16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.complex128,
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_is_compared_and_what_is_not_written_shows(dtype: torch.dtype) -> None:
    """Also where the output held the right values before: they are overwritten by others first."""
    right = torch.tensor([0, 1, 1, 0]).to(dtype)
    output = right.clone()
    assert run(lambda: output.copy_(right), lambda: right, output).ok
    result = run(lambda: output[:2].copy_(right[:2]), lambda: right, output)
    (mismatch,) = result.mismatches
    assert (mismatch.differing_elements, mismatch.unwritten_elements, mismatch.elements) == (2, 2, 4)
    assert torch.equal(output.to(torch.complex128), right.to(torch.complex128)), "what it held stays"


def test_not_a_number_and_signed_zero_are_compared_by_their_bits() -> None:
    """An equal NaN is equal, another payload is not; 0 is not -0, though nothing lies between them."""
    patterns = torch.tensor([0x7FC00001, 0x7FC00002, 0, -(1 << 31), 0x3F800000], dtype=torch.int32)
    values, output = patterns.view(torch.float32), torch.zeros(5)
    assert run(lambda: output.copy_(values), lambda: values, output).ok
    assert torch.equal(output.view(torch.int32), patterns)
    other = torch.tensor([0x7FC00001, 0x7FC00002, -(1 << 31), -(1 << 31), 0x3F800000], dtype=torch.int32).view(torch.float32)
    assert run(lambda: output.copy_(other), lambda: values, output).mismatches == (OutputMismatch(1, "", 1, 5, 0.0, 0),)
    other[1] = 5
    (mismatch,) = run(lambda: output.copy_(other), lambda: values, output).mismatches
    assert (mismatch.differing_elements, mismatch.max_abs_difference != mismatch.max_abs_difference) == (2, True)


def test_outputs_in_any_nesting_are_named_by_their_path() -> None:
    a, b, c = torch.zeros(2), torch.zeros(2), torch.zeros(2)

    def replay() -> None:
        a.fill_(1), b.fill_(2), c.fill_(3.5)

    result = run(
        replay,
        lambda: [torch.ones(2), {"logits": (torch.full((2,), 2.0), 7), "cache": torch.full((2,), 3.0)}],
        [a, {"logits": (b, 7), "cache": c}],
    )
    assert result.tensors == 3
    assert result.mismatches == (OutputMismatch(1, "[1]['cache']", 2, 2, 0.5, 0),)


def test_views_expanded_and_conjugated_outputs_are_compared_where_they_lie() -> None:
    base = torch.zeros(4, 3)
    column, row, conjugated = base[:, 1], torch.zeros(1, 3).expand(5, 3), torch.zeros(2, dtype=torch.complex64)
    outputs = [column, row, conjugated.conj()]

    def replay() -> None:
        base[:, 1] = torch.arange(4.0)
        row[0] = torch.arange(3.0)
        conjugated.fill_(1 + 2j)

    def eager() -> list[torch.Tensor]:
        return [torch.arange(4.0), torch.arange(3.0).expand(5, 3), torch.full((2,), 1 - 2j)]

    assert run(replay, eager, outputs).ok
    assert base[:, 0].tolist() == base[:, 2].tolist() == [0] * 4, "only the column is written"
    result = run(lambda: None, eager, outputs)
    assert [(one.differing_elements, one.unwritten_elements) for one in result.mismatches] == [(4, 4), (15, 3), (2, 2)]
    assert row[4].tolist() == [0, 1, 2]
    assert conjugated.tolist() == [1 + 2j] * 2


def test_outputs_may_require_gradients_or_come_from_inference_mode() -> None:
    with torch.inference_mode():
        inferred = torch.zeros(2)
    learned = torch.zeros(2, requires_grad=True)

    def replay() -> None:
        with torch.inference_mode():
            inferred.fill_(1)
            learned.fill_(2)

    assert run(replay, lambda: [torch.ones(2), torch.full((2,), 2.0)], [inferred, learned]).ok


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool])
def test_empty_and_zero_dimensional_outputs(dtype: torch.dtype) -> None:
    empty, point = torch.zeros(0, 3, dtype=dtype), torch.zeros((), dtype=dtype)
    assert run(lambda: point.fill_(1), lambda: (empty.clone(), torch.ones((), dtype=dtype)), (empty, point)).ok
    assert not run(lambda: None, lambda: (empty.clone(), torch.ones((), dtype=dtype)), (empty, point)).ok


def test_a_replay_that_fails_leaves_outputs_as_they_were() -> None:
    output = torch.tensor([1.0, 2.0])

    def replay() -> None:
        output[0] = 50
        raise KeyError("lost")

    with pytest.raises(KeyError, match="lost"):
        run(replay, lambda: torch.zeros(2), output)
    assert output.tolist() == [1, 2]


def test_wrong_outputs_hold_what_the_replay_wrote() -> None:
    output = torch.tensor([1.0, 2.0, 3.0])
    result = run(lambda: output[:2].fill_(7), lambda: torch.full((3,), 8.0), output)
    assert result.mismatches[0].unwritten_elements == 1
    assert output.tolist() == [7, 7, 3]


@pytest.mark.parametrize(
    ("outputs", "eager", "message"),
    [
        ([torch.zeros(2)], lambda: (torch.zeros(2),), "eager\\(\\) returned .*, outputs are"),
        ({"y": torch.zeros(2)}, lambda: {"y": torch.zeros(3)}, r"float32 \(3,\) on cpu for output\['y'\]"),
        (torch.zeros(2), lambda: torch.zeros(2, dtype=torch.float64), "returned torch.float64"),
        (torch.zeros(2), lambda: torch.zeros(2, device="meta"), "on meta"),
        ([torch.zeros(2), 3], lambda: [torch.zeros(2), 4], r"eager\(\) returned 4 for output\[1\], which is 3"),
        ([torch.zeros(2), 1], lambda: [torch.zeros(2), True], r"returned True for output\[1\]"),
        ([torch.zeros(2), object()], lambda: [torch.zeros(2), object()], r"output\[1\] is a object, whose tensors"),
        ([1, "a", None], lambda: [1, "a", None], "no tensor"),
        (torch.eye(2).to_sparse(), lambda: torch.eye(2).to_sparse(), "no plain strided tensor"),
    ],
    ids=["structure", "shape", "dtype", "device", "scalar", "scalar type", "object", "nothing", "sparse"],
)
def test_what_cannot_be_compared_is_refused_before_anything_is_written(
    outputs: Any, eager: Callable[[], Any], message: str
) -> None:
    with pytest.raises(GraphDedupError, match=rf"graph 1 cannot be checked: .*{message}.*Remedy"):
        run(lambda: pytest.fail("replayed"), eager, outputs)


def test_no_rounds_check_nothing() -> None:
    with pytest.raises(GraphDedupError, match="rounds=0 checks nothing"):
        run(lambda: None, lambda: None, torch.zeros(1), rounds=0)


def test_the_text_says_what_differs_and_how_little_equal_inputs_prove() -> None:
    output = torch.zeros(4)
    ok = run(lambda: output.fill_(1), lambda: torch.ones(4), output, fresh_inputs=lambda: None, rounds=2)
    assert ok.to_text() == (
        "graph 1: the replay is equal to eager, bit for bit: 2 rounds (fresh inputs in each), 2 tensors compared"
    )
    wrong = run(lambda: output[:3].fill_(1), lambda: [torch.full((4,), 1.25)], [output])
    assert wrong.to_text() == (
        "graph 1: the replay is NOT equal to eager: 1 round (the same inputs in each, which proves little: give fresh_inputs),"
        " 1 tensors compared, 1 of them differ\n"
        "  round 1, output[0]: 4 of 4 elements differ, 1 of them not written, by 0.25 at most"
    )


def test_the_replay_draws_what_eager_drew() -> None:
    graph = seam.BreakableGraph(SimulatedBackend(SimulatedDevice(1 << 20)))
    x = torch.ones(64)
    with seam.capture(graph):
        y = torch.nn.functional.dropout(x, 0.5) + torch.rand_like(x)
    torch.manual_seed(3)
    result = check(graph, eager=lambda: torch.nn.functional.dropout(x, 0.5) + torch.rand_like(x), outputs=y)
    assert result.ok, result.to_text()
    after = torch.rand(1)
    torch.manual_seed(3)
    for _ in range(3):
        torch.nn.functional.dropout(x, 0.5) + torch.rand_like(x)
    assert torch.equal(after, torch.rand(1)), "one round advances the generator once"
    graph.close()
