"""A forward at a ladder of shapes: padded, replayed, refused and reported."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import seam
from seam import CapturedForward, Input
from seam.errors import SeamError

HIDDEN = 4


class Model:
    """Embeds, breaks at something that the host decides, and projects: exact integers in floats."""

    def __init__(self, device: str) -> None:
        self.weight = torch.arange(HIDDEN * 3, device=device, dtype=torch.float32).view(HIDDEN, 3) - 5
        self.table = torch.zeros(64, device=device)
        self.marked = seam.eager_break(name="decide")(self.decide)
        self.calls = 0

    def decide(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        self.table[positions] += x[:, 0]
        return x * 2 if int(positions[0]) % 2 else x * 3  # depends on the host

    def __call__(self, x: torch.Tensor, positions: torch.Tensor) -> dict[str, Any]:
        self.calls += 1
        y = self.marked(x + 1, positions) @ self.weight
        return {"logits": y, "best": (y.argmax(dim=-1), y.sum()), "shape": tuple(self.weight.shape)}


class Whole(Model):
    """The same without anything that the host decides: captured whole."""

    def decide(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        self.table[positions] += x[:, 0]
        return torch.where((positions[:1] % 2 == 1), x * 2, x * 3)


INPUTS = {"x": Input((None, HIDDEN), torch.float32), "positions": Input((None,), torch.int64, pad=63)}


def batch(size: int, device: str, seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "x": torch.randint(-8, 8, (size, HIDDEN), generator=generator).float().to(device),
        "positions": torch.randperm(63, generator=generator)[:size].to(device),
    }


@pytest.fixture(params=["full", "breakable", "tc_piecewise", "disabled"])
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def model(mode: str, device: str) -> Model:
    return Whole(device) if mode == "full" else Model(device)


@pytest.fixture
def captured(backend: seam.GraphBackend, model: Model, mode: str) -> Iterator[CapturedForward]:
    expect = {"decode": ["decide"]}
    with CapturedForward(model, (8, 1, 4), INPUTS, config={"decode": mode}, backend=backend, expect_breaks=expect) as made:
        yield made.capture()


def equal(got: dict[str, Any], expected: dict[str, Any], *, sums: bool) -> bool:
    """``sums``: of whole batches; over padding a sum has more terms."""
    pairs = [(got["logits"], expected["logits"]), (got["best"][0], expected["best"][0])]
    pairs += [(got["best"][1], expected["best"][1])] * sums
    return got.keys() == expected.keys() and got["shape"] == (HIDDEN, 3) and all(torch.equal(a, b) for a, b in pairs)


def test_every_size_up_to_the_largest_is_padded_to_the_next_shape_and_exact(
    captured: CapturedForward, model: Model, mode: str, device: str
) -> None:
    shapes = {1: 1, 2: 4, 3: 4, 4: 4, 5: 8, 7: 8, 8: 8}
    segments = {"full": 1, "breakable": 2, "tc_piecewise": 2}
    if mode != "disabled":
        assert [len(captured.graph(shape).segments) for shape in (1, 4, 8)] == [segments[mode]] * 3
    for turn in range(3):
        for size in torch.randperm(7, generator=torch.Generator().manual_seed(turn)).tolist():
            size = list(shapes)[size]
            live = batch(size, device, 10 * turn + size)
            before = model.table.clone()
            got = captured(**live)
            ours, model.table[:] = model.table.clone(), before
            expected = model(**live)
            whole = mode == "disabled" or shapes[size] == size
            assert equal(got, expected, sums=whole), (turn, size)
            assert torch.equal(ours[:63], model.table[:63]), "no live row of state was written by padding"
            assert captured.shape_for(size) == shapes[size]


def test_results_hold_until_the_next_call_and_share_one_buffer(captured: CapturedForward, mode: str, device: str) -> None:
    if mode == "disabled":
        pytest.skip("nothing is captured")
    small, large = captured(**batch(1, device, 1))["logits"], captured(**batch(8, device, 2))["logits"]
    assert small.data_ptr() == large.data_ptr()
    assert captured.report().output_bytes == 8 * 3 * 4 + 8 * 8 + 4


def test_the_report_counts_calls_and_padding(captured: CapturedForward, mode: str, device: str) -> None:
    for size in (1, 3, 3, 5):
        captured(**batch(size, device, size))
    report = captured.report()
    assert report.input_bytes == 8 * HIDDEN * 4 + 8 * 8
    assert json.loads(json.dumps(report.to_dict()))["config"] == f"decode={mode}"
    if mode == "disabled":
        assert (report.rows, report.uncaptured_calls, report.pool_bytes) == ((), {"decode": 4}, 0)
        assert "calls not captured: decode 4" in report.to_text()
        return
    rows = {row.shape: (row.calls, row.live_rows, row.padded_rows) for row in report.rows}
    assert rows == {1: (1, 1, 0), 4: (2, 6, 2), 8: (1, 5, 3)}
    assert report.padding == 5 / 17
    assert {row.breaks for row in report.rows} == {0 if mode == "full" else 1}
    assert "padding 29.4% of all rows" in report.to_text()


def test_a_live_batch_may_be_written_into_the_static_buffers_itself(
    captured: CapturedForward, model: Model, device: str
) -> None:
    views = captured.inputs.views(3)
    live = batch(3, device, 5)
    for name, view in views.items():
        view.copy_(live[name])
    model.table.zero_()
    expected = model(**{name: tensor.clone() for name, tensor in live.items()})
    assert equal(captured(**views), expected, sums=False)


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "a name is missing": ({"x": torch.zeros(2, HIDDEN)}, "was given x, and has buffers for positions, x"),
    "another dtype": (
        {"x": torch.zeros(2, HIDDEN), "positions": torch.zeros(2, dtype=torch.int32)},
        r"input 'positions' is torch.int32 \(2,\) on cpu, and its static buffer is torch.int64 \(batch\)",
    ),
    "another rank": (
        {"x": torch.zeros(2, HIDDEN, 1), "positions": torch.zeros(2, dtype=torch.int64)},
        rf"input 'x' is torch.float32 \(2, {HIDDEN}, 1\) on cpu, and its static buffer is torch.float32 \(batch, {HIDDEN}\)",
    ),
    "another fixed size": ({"x": torch.zeros(2, 3), "positions": torch.zeros(2, dtype=torch.int64)}, "input 'x' is"),
    "other batches": (
        {"x": torch.zeros(2, HIDDEN), "positions": torch.zeros(3, dtype=torch.int64)},
        "inputs of different batch sizes: x 2, positions 3",
    ),
    "no tensor": ({"x": 3, "positions": torch.zeros(3, dtype=torch.int64)}, "input 'x' is a int"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_live_batch_that_does_not_fit_is_refused_and_nothing_is_copied(case: str, captured: CapturedForward) -> None:
    live, problem = BAD[case]
    captured.inputs.views(8)["x"].fill_(7)
    with pytest.raises(seam.ReplayError, match=problem):
        captured(**live)
    assert bool((captured.inputs.views(8)["x"] == 7).all())


@pytest.mark.parametrize("beyond", ["refuse", "eager"])
def test_a_batch_beyond_every_shape_is_refused_or_runs_eagerly(beyond: Any, backend: seam.GraphBackend, device: str) -> None:
    model = Whole(device)
    live = batch(5, device, 1)
    with CapturedForward(model, [2, 4], INPUTS, backend=backend, beyond=beyond).capture() as captured:
        calls = model.calls
        assert captured.shape_for(5) is None
        if beyond == "refuse":
            with pytest.raises(
                seam.ReplayError, match=r"decode: a batch of 5 is larger than every shape, up to 4.*beyond='eager'"
            ):
                captured(**live)
            assert captured.report().refused_calls == {"decode": 1}
            assert "calls refused: decode 1" in captured.report().to_text()
        else:
            got = captured(**live)
            assert model.calls == calls + 1
            model.table.zero_()
            assert equal(got, model(**live), sums=True)
            assert captured.report().uncaptured_calls == {"decode": 1}
        with pytest.raises(seam.ReplayError, match="the batch is empty"):
            captured(**batch(0, device, 1))


def test_phases_have_ladders_and_modes_of_their_own(backend: seam.GraphBackend, device: str) -> None:
    model = Whole(device)
    ladder = {"decode": (1, 2), "prefill": (16,), "draft": [2]}
    with CapturedForward(model, ladder, INPUTS, config="draft=disabled", backend=backend, label="llm") as captured:
        captured.capture()
        modes = {(row.phase, row.shape): (row.mode, row.segments) for row in captured.report().rows}
        assert modes == {("decode", 1): ("full", 1), ("decode", 2): ("full", 1), ("prefill", 16): ("breakable", 2)}
        assert captured.graph(16, "prefill").label == "llm prefill bs=16"
        for phase, size in (("decode", 2), ("prefill", 9), ("draft", 2), ("prefill", 16), ("decode", 1)):
            live = batch(size, device, size)
            got = captured(phase, **live)
            model.table.zero_()
            assert equal(got, model(**live), sums=False), phase
        with pytest.raises(seam.CaptureError, match=r"there is no phase None.*decode, prefill, draft"):
            captured(**batch(1, device, 1))
        with pytest.raises(seam.CaptureError, match="there is no phase 'encode'"):
            captured("encode", **batch(1, device, 1))


def test_a_shape_that_is_not_captured_yet_says_so(backend: seam.GraphBackend, device: str) -> None:
    captured = CapturedForward(Whole(device), [2], INPUTS, backend=backend)
    for ask in (lambda: captured(**batch(2, device, 1)), lambda: captured.graph(2)):
        with pytest.raises(seam.ReplayError, match=r"bs=2 is not captured.*\.capture\(\)"):
            ask()
    captured.capture()
    first = captured.graph(2)
    captured.capture()
    assert captured.graph(2) is first, "captured once"
    captured.close()
    assert first.state is seam.GraphState.CLOSED
    captured.capture()
    assert captured.graph(2) is not first
    captured.close()


def test_a_shape_that_emits_more_rows_than_the_largest_is_refused(backend: seam.GraphBackend, device: str) -> None:
    """sglang#36048: a buffer is sized by what the body emits, and checked."""

    def forward(x: torch.Tensor) -> torch.Tensor:
        return x if len(x) == 12 else torch.cat([x] * 5)

    inputs = {"x": Input((None,), torch.float32)}
    captured = CapturedForward(forward, [3, 12], inputs, backend=backend, label="body")
    with pytest.raises(seam.CaptureError, match=r"output of body decode bs=3 is torch.float32 \(15,\).*torch.float32 \(12,\)"):
        captured.capture()
    assert captured(x=torch.arange(12.0, device=device)).tolist() == list(range(12)), "the largest shape stays"
    captured.close()
    with CapturedForward(forward, [3, 12], inputs, backend=backend, share_outputs=False).capture() as apart:
        assert apart(x=torch.arange(3.0, device=device)).tolist() == [0, 1, 2] * 5


def test_outputs_that_grow_by_another_factor_and_that_do_not_grow(backend: seam.GraphBackend, device: str) -> None:
    """Two rows for each row of the batch: two requests have four. A table of four rows stays whole, also at a batch of four."""

    def forward(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        return x.repeat_interleave(2), x.sum() + torch.arange(4, device=device), None

    inputs = {"x": Input((None,), torch.float32)}
    with CapturedForward(forward, [2, 4], inputs, backend=backend).capture() as captured:
        for values in ([1.0], [1.0, 2.0], [5.0, 6.0, 7.0], [1.0, 2.0, 3.0, 4.0]):
            doubled, table, nothing = captured(x=torch.tensor(values, device=device))
            assert doubled.tolist() == [value for value in values for _ in range(2)]
            assert table.tolist() == [sum(values) + index for index in range(4)]
            assert nothing is None


def test_the_whole_forward_as_one_break_for_debugging(backend: seam.GraphBackend, device: str) -> None:
    model = Model(device)
    with CapturedForward(model, [2, 4], INPUTS, backend=backend, eager=True, expect_breaks={"decode": 9}).capture() as captured:
        assert [(met.name, met.splits) for met in captured.graph(4).break_points] == [("the whole forward", True)]
        calls = model.calls
        for size in (1, 2, 3):
            live = batch(size, device, size)
            got = captured(**live)
            model.table.zero_()
            assert equal(got, model(**live), sums=False)
        assert model.calls == calls + 2 * 3, "each replay called it"


def test_captures_of_a_phase_are_one_session_of_a_folding_backend(backend: seam.GraphBackend, device: str) -> None:
    from graphdedup import DedupBackend

    dedup = DedupBackend(backend, enabled=True)
    model = Whole(device)
    with CapturedForward(model, {"decode": (1, 2, 4), "prefill": (8,)}, INPUTS, backend=dedup).capture() as captured:
        assert [(row.name, row.captured) for row in dedup.report().sessions] == [("decode", 3), ("prefill", 2)]
        assert captured.inputs.views(1)["x"].device.type == device
        for turn in range(3):
            for size in (4, 1, 3, 2):
                live = batch(size, device, turn)
                got = captured("decode", **live)
                model.table.zero_()
                assert equal(got, model(**live), sums=False)
    assert dedup.stats().execs == 0


def test_where_there_is_no_backend_and_no_gpu_nothing_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    """The simulated device is there to be asked for: an engine on a CPU runs its forward."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    captured = CapturedForward(lambda x: x + 1, [4], {"x": Input((None,), torch.float32)}).capture()
    assert captured(x=torch.zeros(9)).tolist() == [1] * 9
    assert (captured.report().rows, captured.report().config) == ((), "decode=disabled")


@pytest.mark.parametrize(
    ("how", "problem"),
    [
        ({"ladder": []}, r"the ladder of decode is \[\]"),
        ({"ladder": [0, 2]}, r"the ladder of decode is \[0, 2\]"),
        ({"ladder": {"draft": [1]}}, "phase 'draft' has no mode"),
        ({"inputs": {"x": Input((3,), torch.float32)}}, r"none of the inputs \(x\) has the size of the batch"),
        ({"inputs": {}}, r"none of the inputs \(none\)"),
        ({"beyond": "drop"}, "beyond='drop' is unknown"),
        ({"warmup_count": 0}, "warmup_count=0 is no count"),
        ({"expect_breaks": {"prefill": 1}}, "there is no phase 'prefill'"),
    ],
)
def test_arguments_that_are_off_are_refused(how: dict[str, Any], problem: str, backend: seam.GraphBackend) -> None:
    with pytest.raises(SeamError, match=problem):
        CapturedForward(**({"forward": lambda x: x, "ladder": [1], "inputs": INPUTS, "backend": backend} | how))


def test_other_breaks_than_expected_fail_the_capture_of_their_phase(backend: seam.GraphBackend, device: str) -> None:
    captured = CapturedForward(
        Model(device), [2], INPUTS, backend=backend, config="decode=breakable", expect_breaks={"decode": 2}
    )
    with pytest.raises(seam.CaptureError, match=r"decode bs=2 was expected to meet 2 break points, and met 1: decide"):
        captured.capture()
    captured.close()


def test_what_a_forward_returns_must_be_known(backend: seam.GraphBackend, device: str) -> None:
    captured = CapturedForward(lambda x, positions: (x, object()), [2], INPUTS, backend=backend, label="odd")
    with pytest.raises(seam.CaptureError, match=r"odd decode bs=2 returned a tuple with something in it.*register_output_type"):
        captured.capture()
