"""A memory plan: what a ladder will take, told from two of its smaller shapes, and what it took."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import graphdedup
import seam
from seam import CapturedForward, Input
from seam.plan import PhaseSamples, Sample, predict, sample_shapes

COLUMNS = 128
ROW = COLUMNS * 4
"""Bytes of a row: what the simulated device rounds to, so that bytes grow with the shape without a step."""
LADDER = (8, 16, 32, 64, 128)
INPUTS = {"x": Input((None, COLUMNS), torch.float32)}


@seam.eager_break
def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@seam.eager_break
def first_of(parts: list[torch.Tensor]) -> torch.Tensor:
    return parts[0] * 2


def forward(x: torch.Tensor) -> torch.Tensor:
    return double(x + 1) + 3


def held(x: torch.Tensor) -> torch.Tensor:
    return first_of([x + 1]) + 3


def exact(backend: seam.GraphBackend) -> bool:
    """Whether bytes are told one by one; a GPU's allocator reserves segments of 2 and 20 MB."""
    return backend.name != "cuda"


def made(backend: seam.GraphBackend, what: Any = forward, **more: Any) -> CapturedForward:
    return CapturedForward(what, LADDER, INPUTS, config={"decode": "breakable"}, backend=backend, **more)


def test_a_plan_predicts_what_the_capture_takes(backend: seam.GraphBackend) -> None:
    """Worked out: x + 1, the result and the output take turns in two blocks of the largest shape's rows."""
    with made(backend) as captured:
        plan = captured.plan()
        assert plan.samples == {"decode": (16, 32)}
        assert [row.name for row in plan.rows] == ["inputs", "outputs", "pool", "held for breaks"]
        assert plan.row("inputs").predicted_bytes == plan.row("outputs").predicted_bytes == 128 * ROW
        assert plan.row("held for breaks").predicted_bytes == 0
        assert all(row.measured_bytes is None for row in plan.rows)
        captured.capture()
        x = torch.arange(100 * COLUMNS, dtype=torch.float32, device=captured.inputs.views(1)["x"].device).view(100, COLUMNS)
        assert torch.equal(captured(x=x), (x + 1) * 2 + 3)
        after = captured.report().plan
        assert after is not None
        assert [(row.name, row.predicted_bytes) for row in after.rows] == [(row.name, row.predicted_bytes) for row in plan.rows]
        assert after.row("outputs").measured_bytes == after.row("inputs").measured_bytes == 128 * ROW
        if exact(backend):
            assert after.row("pool") == seam.PlanRow("pool", 2 * 128 * ROW, 2 * 128 * ROW)
        else:
            assert after.row("pool").measured_bytes == after.row("pool").predicted_bytes


def test_outputs_that_are_not_shared_are_in_the_pool_for_every_shape(backend: seam.GraphBackend) -> None:
    with made(backend, share_outputs=False) as captured:
        plan = captured.plan()
        assert plan.row("outputs").predicted_bytes == 0
        if exact(backend):
            assert plan.row("pool").predicted_bytes == (2 * 128 + 64 + 32 + 16 + 8) * ROW
            report = captured.capture().report().plan
            assert report is not None
            measured = report.row("pool").measured_bytes
            assert measured is not None
            assert (128 + 128) * ROW <= measured <= plan.row("pool").predicted_bytes


def test_what_is_held_for_breaks_is_the_sum_of_the_shapes(backend: seam.GraphBackend) -> None:
    with made(backend, held) as captured:
        plan = captured.plan({"decode": (32, 8)})
        assert plan.samples == {"decode": (8, 32)}
        assert plan.row("held for breaks").predicted_bytes == sum(LADDER) * ROW
        report = captured.capture().report()
        assert report.held_bytes == sum(LADDER) * ROW
        assert report.plan is not None
        assert report.plan.row("held for breaks").measured_bytes == sum(LADDER) * ROW
        assert f"held for breaks {sum(LADDER) * ROW:,}" in report.to_text()


@pytest.mark.parametrize("tier", ["structure", "exact"])
def test_executables_are_planned_as_they_fold(tier: str, backend: seam.GraphBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """If each executable took 1 MB, two would take one step of 2 MB, and ten five. Folded, shapes add none."""
    monkeypatch.setattr("graphdedup.backend.modelled_exec_bytes", lambda nodes: (1_000_000, 0))
    execs, steps = (2, 1) if tier == "structure" else (10, 5)
    dedup = graphdedup.DedupBackend(backend, graphdedup.FoldPolicy.parse(tier=tier), enabled=True)
    with made(dedup) as captured:
        plan = captured.plan()
        captured.capture()
        assert dedup.stats().execs == execs
        report = captured.report().plan
        assert report is not None
        assert report.row("execs") == seam.PlanRow("execs", steps << 21, steps << 21)
        assert plan.row("execs").predicted_bytes == steps << 21
    assert dedup.stats().execs == 0


def test_a_plan_leaves_nothing_behind(backend: seam.GraphBackend) -> None:
    """The samples' graphs are closed, the ladder's shapes are captured as without a plan, and largest first."""
    with made(backend) as captured:
        captured.plan()
        assert captured.report().rows == ()
        with pytest.raises(seam.ReplayError, match="not captured"):
            captured.graph(32)
        captured.capture()
        assert captured.report().to_text().count("breakable") == len(LADDER) + 1


def test_samples_that_are_no_shapes_are_refused(backend: seam.GraphBackend) -> None:
    with made(backend) as captured:
        for samples in ({"decode": (8, 9)}, {"decode": (8,)}, {"other": (8, 16)}):
            with pytest.raises(seam.CaptureError, match=r"no two shapes|no phase"):
                captured.plan(samples)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("ladder", "samples"),
    [
        ((4,), (4, 4)),
        ((4, 8), (4, 8)),
        ((1, 2, 4), (1, 2)),
        (LADDER, (16, 32)),
        (tuple(range(1, 257)), (32, 64)),
        ((5, 6, 7), (5, 6)),
    ],
)
def test_samples_are_the_shapes_nearest_to_an_eighth_and_a_quarter(ladder: tuple[int, ...], samples: tuple[int, int]) -> None:
    assert sample_shapes(ladder) == samples


def test_prediction_follows_the_line_and_never_falls_below_nothing() -> None:
    """Worked out by hand: pool 100 + 10 a row, outputs 2 a row, 5 held a row; executables take 3 MB, and 2 MB
    more for each further shape, in all 9 MB or five steps."""
    rising = PhaseSamples((1, 2, 4, 8), (Sample(1, 110, 2, 5, 3_000_000), Sample(2, 120, 4, 10, 5_000_000)), True)
    falling = PhaseSamples((1, 2, 100), (Sample(1, 50, 9, 9, 0), Sample(2, 40, 4, 4, 0)), False)
    plan = predict("model", 64, {"decode": rising, "draft": falling})
    assert {row.name: row.predicted_bytes for row in plan.rows} == {
        "inputs": 64,
        "outputs": 16,
        "pool": 180,  # decode 100 + 10 * 8; draft 0 + (9 + 4)
        "held for breaks": 5 * (1 + 2 + 4 + 8) + 9 + 4 + 0,
        "execs": 5 << 21,
    }
    assert plan.measured({"pool": 1_170, "execs": 2_097_153}).to_text().splitlines() == [
        "memory of model, predicted from decode 1, 2; draft 1, 2",
        "bytes             predicted   measured",
        "inputs                   64",
        "outputs                  16",
        "pool                    180      1,170",
        "held for breaks          88",
        "execs            10,485,760  4,194,304",
    ]
    untold = PhaseSamples((1, 2), (Sample(1, 1, 1, 1, None), Sample(2, 1, 1, 1, 3)), True)
    assert [row.name for row in predict("model", 0, {"decode": untold}).rows][-1] == "held for breaks"


def test_nothing_is_sampled_where_nothing_is_captured(backend: seam.GraphBackend) -> None:
    with CapturedForward(forward, LADDER, INPUTS, config={"decode": "disabled"}, backend=backend) as captured:
        plan = captured.plan()
        assert plan.samples == {}
        assert {row.name: row.predicted_bytes for row in plan.rows} == {
            "inputs": 128 * ROW,
            "outputs": 0,
            "pool": 0,
            "held for breaks": 0,
        }
