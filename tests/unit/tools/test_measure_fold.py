"""tools/measure_fold.py in small, on the simulated device: it measures, it compares, and it notices what is wrong."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import seam.simulated
from graphdedup import DedupBackend
from graphdedup.demo import PRESETS
from tools import measure_fold
from tools.fold_arm import Row, Spec, _same_bits, run_arm
from tools.fold_workloads import WORKLOADS, Against, ForkedLinear, Workload
from tools.measure_fold import Result, _one_process, main

SIZES = (1, 2, 3)
ONE_LAYER = PRESETS["tiny"].with_layers(1)


def spec(workload: str, **changes: Any) -> Spec:
    values = {"device": "cpu", "workload": workload, "tier": "structure", "config": ONE_LAYER, "sizes": SIZES, "replays": 1}
    return Spec.model_validate({**values, **changes})


def arm(workload: str, **changes: Any) -> Any:
    row = run_arm(spec(workload, **changes))
    assert row.measured is not None, row.reason
    return row.measured


def replace_folded_replay(monkeypatch: pytest.MonkeyPatch, replay: Any) -> None:
    """``replay(original, backend, handle)`` instead of the replay of backends that fold."""
    original = DedupBackend.replay_graph

    def replay_graph(self: DedupBackend, handle: Any) -> None:
        if self.enabled:
            replay(original, self, handle)
        else:
            original(self, handle)

    monkeypatch.setattr(DedupBackend, "replay_graph", replay_graph)


@pytest.mark.parametrize(
    ("workload", "graphs", "execs", "compared_with"),
    [
        ("full", 3, 1, Against.EAGER),
        ("breakable", 6, 2, Against.EAGER),
        ("two-streams", 3, 1, Against.OWN),
        ("sampling", 3, 1, Against.SEEDED),
    ],
)
def test_a_workload_folds_and_every_replay_is_exact(workload: str, graphs: int, execs: int, compared_with: Against) -> None:
    """Graphs of all sizes have one structure; two segments of one graph have two. None keeps torch's executable."""
    measured = arm(workload)
    assert (measured.captured, measured.execs, measured.groups, measured.kept) == (graphs, execs, execs, 0)
    assert (measured.refused, measured.unfolded, measured.refusals) == (0, 0, {})
    # In the seeded rounds each size is replayed twice in a row.
    assert measured.compared == 3 * len(SIZES) * (2 if compared_with is Against.SEEDED else 1)
    assert measured.compared_with is compared_with
    assert measured.mismatches == 0
    assert measured.exec_bytes_source == "modelled"
    assert measured.exec_device_bytes is not None
    assert 0 < measured.fold_seconds <= measured.capture_seconds


@pytest.mark.parametrize("workload", ["full", "two-streams", "sampling"])
def test_in_the_exact_tier_other_sizes_do_not_fold(workload: str) -> None:
    measured = arm(workload, tier="exact")
    assert (measured.captured, measured.execs, measured.mismatches) == (3, 3, 0)


def test_times_tell_a_steady_replay_from_one_after_another_size() -> None:
    """A steady replay takes no update and one after its neighbour takes one; what does not fold has no partner."""
    folded, exact = arm("full", replays=2).timings, arm("full", tier="exact").timings
    assert [timing.size for timing in folded] == [1, 2, 3]
    assert [timing.partner for timing in folded] == [2, 1, 2]
    assert {(timing.steady_update_count, timing.alternating_update_count) for timing in folded} == {(0.0, 1.0)}
    assert [(timing.partner, timing.alternating_us) for timing in exact] == [(None, None)] * 3
    assert all(timing.own_us > 0 and timing.steady_us > 0 for timing in (*folded, *exact))


def test_four_sizes_over_the_range_are_timed() -> None:
    measured = arm("full", sizes=tuple(range(1, 11)), rounds=1)
    assert [timing.size for timing in measured.timings] == [1, 4, 7, 10]


@pytest.mark.parametrize("workload", ["full", "breakable", "two-streams", "sampling"])
def test_a_replay_that_does_nothing_is_noticed(monkeypatch: pytest.MonkeyPatch, workload: str) -> None:
    """What the right replay left behind cannot pass for the folded one's work."""
    replace_folded_replay(monkeypatch, lambda replay, backend, handle: None)
    measured = arm(workload)
    assert measured.mismatches == measured.compared


@pytest.mark.parametrize("workload", ["full", "two-streams"])
def test_a_fold_that_launches_another_graph_is_noticed(monkeypatch: pytest.MonkeyPatch, workload: str) -> None:
    """All but the first captured size differ, in each round."""
    handles: list[Any] = []

    def replay(original: Any, backend: DedupBackend, handle: Any) -> None:
        if handle not in handles:
            handles.append(handle)
        original(backend, handles[max(handles.index(handle) - 1, 0)])

    replace_folded_replay(monkeypatch, replay)
    assert arm(workload).mismatches == 3 * (len(SIZES) - 1)


def test_a_replay_that_does_not_advance_the_generator_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """It draws right numbers after a seed only: of twice three replays in a round the first is right."""

    def replay(original: Any, backend: DedupBackend, handle: Any) -> None:
        with torch.random.fork_rng(devices=[]):
            original(backend, handle)

    replace_folded_replay(monkeypatch, replay)
    measured = arm("sampling", rounds=2)
    # The eager draw after a round's first replay differs already: how far the generator is belongs to the replay.
    assert (measured.compared, measured.mismatches) == (12, 12)


def test_the_sampling_workload_draws() -> None:
    """Dropout and the sampled tokens follow the seed: another seed, other numbers."""
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        work = Workload(WORKLOADS["sampling"], ONE_LAYER, (64,), torch.device("cpu"), seed=0)
        left = []
        for seed in (1, 1, 2):
            torch.manual_seed(seed)
            left.append(work.forward(64))
    (logits, tokens), (same_logits, same_tokens), (other_logits, other_tokens) = left
    assert torch.equal(logits, same_logits)
    assert torch.equal(tokens, same_tokens)
    assert not torch.equal(logits, other_logits)
    assert not torch.equal(tokens, other_tokens)
    assert tokens.shape == (64,)


def test_a_forked_layer_computes_its_halves_on_two_streams() -> None:
    """The same numbers as the layer it replaces; captured, two branches meet in the concatenation."""
    linear = nn.Linear(4, 6, bias=False).requires_grad_(False)
    forked = ForkedLinear(linear, seam.simulated, seam.simulated.Stream())
    x = torch.arange(8.0).view(2, 4)
    torch.testing.assert_close(forked(x), linear(x))

    backend = seam.simulated.SimulatedBackend()
    pool = backend.new_pool()
    with torch.no_grad(), pool.entered():
        backend.begin_capture(pool)
        forked(x + 1)
        segment = backend.end_capture()
    assert segment is not None
    assert sorted((source, target) for source, target, _ in segment.graph.edges) == [(0, 1), (0, 2), (1, 3), (2, 3)]
    backend.destroy_graph(segment)


def test_bits_are_compared_not_values() -> None:
    nan = torch.tensor([float("nan"), 1.0])
    assert _same_bits([nan], [nan.clone()])
    assert not _same_bits([torch.tensor([0.0])], [torch.tensor([-0.0])])
    assert not _same_bits([torch.ones(2)], [torch.ones(3)])
    assert not _same_bits([torch.ones(2)], [torch.ones(2, dtype=torch.float16)])
    assert _same_bits([torch.arange(3)], [torch.arange(3)])


def test_generators_and_threads_are_left_as_they_were() -> None:
    before, threads = torch.get_rng_state(), torch.get_num_threads()
    run_arm(spec("sampling"))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.get_num_threads() == threads


def test_an_arm_in_a_process_of_its_own_gives_the_same_counts() -> None:
    timed = {"capture_seconds", "first_replay_seconds", "fold_seconds", "warm_up_seconds", "timings"}
    here, apart = run_arm(spec("full")).measured, _one_process(spec("full")).measured
    assert here is not None
    assert apart is not None
    assert apart.model_dump(exclude=timed) == here.model_dump(exclude=timed)


def test_a_process_that_dies_is_a_failed_row() -> None:
    class Deadly(Spec):
        def __reduce__(self) -> Any:
            return os._exit, (3,)  # what the other process does in place of unpickling it

    row = _one_process(Deadly.model_validate(spec("full").model_dump()))
    assert (row.workload, row.outcome, row.measured) == ("full", "failed", None)
    assert row.reason.startswith("its process ended without a result: ")


def run(*arguments: str) -> int:
    return main(["--device", "cpu", "--sizes", "1..3", "--layers", "1", "--rounds", "1", "--replays", "1", *arguments])


def test_the_command_prints_a_table_and_writes_the_same_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "fold.json"
    assert run("--workload", "full,two-streams,sampling", "--tier", "structure,exact", "--json", str(file)) == 0
    result = Result.model_validate_json(file.read_bytes())
    assert (result.model, result.sizes, result.rounds, result.replays) == ("tiny", (1, 2, 3), 1, 1)
    assert result.command.startswith("python tools/measure_fold.py --device cpu --sizes 1..3 ")
    names = [(workload, tier) for workload in ("full", "two-streams", "sampling") for tier in ("structure", "exact")]
    assert [(row.workload, row.tier) for row in result.rows] == names
    assert {row.outcome for row in result.rows} == {"measured"}
    lines = capsys.readouterr().out.splitlines()
    assert [tuple(line.split()[:2]) for line in lines[1:7]] == names
    assert lines[1].split()[2:6] == ["3", "1", "1", "0"]
    assert lines[1].split()[7] == "0/3"
    assert lines[7] == ""
    assert len(lines) == 9 + 6 * len(SIZES)


def test_a_workload_that_cannot_run_here_says_why_and_is_no_failure(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--workload", "compiled") == 0
    captured = capsys.readouterr()
    assert "compiled     structure  not run: compiled code on the CPU bypasses torch's dispatcher" in captured.out
    assert captured.err == ""


def test_a_failed_arm_is_a_row_and_the_next_one_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 1; the traceback is on stderr."""

    def fail(original: Any, backend: DedupBackend, handle: Any) -> None:
        monkeypatch.undo()
        raise RuntimeError("no replay\ntoday")

    replace_folded_replay(monkeypatch, fail)
    assert run("--workload", "full,breakable") == 1
    captured = capsys.readouterr()
    assert "full         structure  failed: RuntimeError: no replay today\nbreakable    structure " in captured.out
    assert "Traceback" in captured.err


def test_a_mismatch_is_exit_code_1(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    replace_folded_replay(monkeypatch, lambda replay, backend, handle: None)
    assert run("--workload", "full") == 1
    assert " 3/3 " in capsys.readouterr().out


def test_what_was_measured_before_the_run_is_cut_short_is_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "fold.json"

    def interrupted(of: Spec) -> Row:
        if of.workload == "breakable":
            raise KeyboardInterrupt
        return run_arm(of)

    monkeypatch.setattr(measure_fold, "run_arm", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run("--workload", "full,breakable", "--json", str(file))
    assert [row.workload for row in Result.model_validate_json(file.read_bytes()).rows] == ["full"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--workload", "full,half"), "--workload 'half' is unknown. Remedy: use one of full, breakable, compiled"),
        (("--tier", "loose"), "--tier 'loose' is unknown"),
        (("--sizes", "0"), "from 1 to 4096"),
        (("--rounds", "0"), "--rounds 0 is out of range"),
        (("--compiled-layers", "0"), "--compiled-layers 0 is out of range"),
        (("--seed", "-1"), "--seed -1 is out of range"),
        (("--json", "/no/such/folder/fold.json"), "/no/such/folder/fold.json"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    arguments: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*arguments) == 2
    captured = capsys.readouterr()
    assert words in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""
