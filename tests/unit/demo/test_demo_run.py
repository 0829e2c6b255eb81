"""The demo's loop on the simulated device: it folds, it compares, and it notices what is wrong."""

from __future__ import annotations

import logging
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

import seam
from graphdedup import DedupBackend
from graphdedup.demo import PRESETS, DemoRequest, run_demo
from graphdedup.demo.arm import ArmResult, ArmSpec, _Inputs, _same_bits, run_arm
from graphdedup.demo.model import KVCache
from graphdedup.demo.run import _last_lines, logging_to_stderr, run_apart
from graphdedup.errors import GraphDedupError
from graphdedup.footprint import modelled_exec_bytes
from graphdedup.report import DemoResult, Source

TINY = PRESETS["tiny"]
SIZES = (1, 2, 4, 6)


def spec(**changes: Any) -> ArmSpec:
    values = {"device": "cpu", "mode": "breakable", "folded": True, "config": TINY, "sizes": SIZES}
    return ArmSpec.model_validate(values | changes)


@pytest.mark.parametrize(("mode", "segments"), [("full", 1), ("breakable", TINY.layers + 1)])
def test_an_arm_folds_and_equals_eager(mode: str, segments: int) -> None:
    """One graph per size (and segment) goes in, fewer executables come out, and every replay is exact."""
    result = run_arm(spec(mode=mode))
    assert result.segments_per_graph == segments
    assert result.captured == segments * len(SIZES)
    assert result.execs < result.captured
    assert result.compared == 3 * len(SIZES)
    assert result.mismatches == 0
    assert result.unfolded == 0
    assert result.passed_through == 0
    # One replay of each size, then three rounds of all: each launches every segment of the size.
    assert result.launches == 4 * result.captured
    assert 0 < result.fold_seconds <= result.capture_seconds


def test_m3_bytes_on_the_simulated_device_are_modelled() -> None:
    """M3: an unfolded exec per graph costs what the table says for its nodes; fewer execs cost less."""
    folded = run_arm(spec(mode="full"))
    unfolded = run_arm(spec(mode="full", folded=False))
    assert {folded.exec_device.source, folded.exec_host.source, unfolded.exec_device.source} == {Source.MODELLED}
    assert unfolded.execs == unfolded.captured == len(SIZES)
    # Every size has the same node count in FULL mode: the model is the same for each.
    device_bytes, host_bytes = modelled_exec_bytes(folded.nodes // len(SIZES))
    assert unfolded.exec_device.bytes == len(SIZES) * device_bytes
    assert unfolded.exec_host.bytes == len(SIZES) * host_bytes
    assert folded.exec_device.bytes == folded.execs * device_bytes
    assert folded.exec_host.bytes == folded.execs * host_bytes


def test_m1_sizes_share_one_pool() -> None:
    """M1: with one pool, captured largest first, smaller sizes re-use the blocks of the largest."""
    alone = run_arm(spec(mode="full", sizes=(64,))).pool_bytes
    together = run_arm(spec(mode="full", sizes=(16, 32, 48, 64))).pool_bytes
    assert 0 < alone <= together < 2 * alone


def test_s14_graphs_are_released(monkeypatch: pytest.MonkeyPatch) -> None:
    """S14: by name and not by the collector, also when a replay fails."""
    kept: list[seam.BreakableGraph] = []
    begin = seam.capture

    def capture(graph: seam.BreakableGraph, **options: Any) -> Any:
        kept.append(graph)
        return begin(graph, **options)

    def fail(*_: Any) -> None:
        raise RuntimeError("no replay today")

    monkeypatch.setattr(seam, "capture", capture)
    monkeypatch.setattr(DedupBackend, "replay_graph", fail)
    with pytest.raises(RuntimeError, match="no replay today"):
        run_arm(spec(mode="full"))
    assert [graph.state for graph in kept] == [seam.GraphState.CLOSED] * len(SIZES)


def test_each_round_replays_every_size_in_an_order_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Captured largest first, replayed once in that order, then shuffled; the seed decides, so a run can be repeated."""

    def orders(seed: int) -> list[list[str]]:
        labels: list[str] = []
        replay = seam.BreakableGraph.replay

        def noted(graph: seam.BreakableGraph) -> None:
            labels.append(graph.label)
            replay(graph)

        with monkeypatch.context() as patch:
            patch.setattr(seam.BreakableGraph, "replay", noted)
            run_arm(spec(mode="full", config=TINY.with_layers(1), sizes=(1, 2, 3, 4, 5, 6), seed=seed))
        return [labels[start : start + 6] for start in range(0, len(labels), 6)]

    first, *rounds = orders(1)
    assert first == [f"decode bs={size}" for size in (6, 5, 4, 3, 2, 1)]
    assert len(rounds) == 3
    assert all(sorted(order) == sorted(first) and order != first for order in rounds)
    assert rounds[0] != rounds[1]
    assert orders(1) == [first, *rounds]
    assert orders(2) != [first, *rounds]


def swap_replays(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fold that launches another size's graph: every replay runs the segment captured before it, if there is one."""
    handles: list[Any] = []
    end, replay = DedupBackend.end_capture, DedupBackend.replay_graph

    def end_capture(self: DedupBackend, **options: Any) -> Any:
        handles.append(end(self, **options))
        return handles[-1]

    def replay_graph(self: DedupBackend, handle: Any) -> None:
        replay(self, handles[max(handles.index(handle) - 1, 0)])

    monkeypatch.setattr(DedupBackend, "end_capture", end_capture)
    monkeypatch.setattr(DedupBackend, "replay_graph", replay_graph)


def test_a_fold_that_launches_another_graph_is_noticed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """All but the first captured size differ from eager, in each round; one warning stands for all."""
    swap_replays(monkeypatch)
    with caplog.at_level(logging.WARNING, "graphdedup"):
        result = run_arm(spec(mode="full"))
    assert result.mismatches == 3 * (len(SIZES) - 1)
    assert len([record for record in caplog.records if record.name == "graphdedup.demo"]) == 1


def test_a_replay_that_does_nothing_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What eager left behind cannot pass for the replay's work."""
    monkeypatch.setattr(DedupBackend, "replay_graph", lambda self, handle: None)
    result = run_arm(spec(mode="full"))
    assert result.mismatches == result.compared


def test_a_replay_that_leaves_the_cache_as_it_was_is_noticed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Right logits are not enough: the rows that eager wrote before do not count as written by the replay."""
    caches: list[KVCache] = []
    make, replay = KVCache.__init__, DedupBackend.replay_graph

    def made(self: KVCache, *arguments: Any) -> None:
        make(self, *arguments)
        caches.append(self)

    def replay_graph(self: DedupBackend, handle: Any) -> None:
        k, v = caches[0].k.clone(), caches[0].v.clone()
        replay(self, handle)
        caches[0].k.copy_(k)
        caches[0].v.copy_(v)

    monkeypatch.setattr(KVCache, "__init__", made)
    monkeypatch.setattr(DedupBackend, "replay_graph", replay_graph)
    with caplog.at_level(logging.WARNING, "graphdedup"):
        result = run_arm(spec(mode="full"))
    assert result.mismatches == result.compared
    assert "keys, values not as eager" in caplog.text
    assert "logits" not in caplog.text


def test_the_number_of_threads_is_restored() -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        run_arm(spec(mode="full", sizes=(1,)))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_bits_are_compared_not_values() -> None:
    nan = torch.tensor([float("nan"), 1.0])
    assert _same_bits(nan, nan.clone())
    assert not _same_bits(torch.tensor([0.0]), torch.tensor([-0.0]))
    assert not _same_bits(torch.ones(2), torch.ones(3))
    assert not _same_bits(torch.ones(2), torch.ones(2, dtype=torch.bfloat16))
    assert not _same_bits(torch.tensor([1.0], dtype=torch.bfloat16), torch.tensor([1.0078125], dtype=torch.bfloat16))


def test_inputs_change_in_place_and_stay_in_range() -> None:
    inputs = _Inputs(TINY, 64, torch.device("cpu"), seed=1)
    tokens, positions = inputs.of(64)
    inputs.refresh(64)
    first = tokens.clone()
    inputs.refresh(64)
    assert not torch.equal(first, tokens)
    assert 0 <= int(tokens.min()) <= int(tokens.max()) < TINY.vocab
    assert 0 <= int(positions.min()) <= int(positions.max()) < TINY.max_seq
    kept = tokens.clone()
    inputs.refresh(8)
    assert torch.equal(tokens[8:], kept[8:])


def test_the_demo_sets_both_arms_side_by_side() -> None:
    request = DemoRequest(
        device="cpu",
        config=TINY.with_layers(2),
        sizes=(3, 1),
        modes=("breakable",),
        compare=True,
        seed=5,
        command="x",
    )
    result = run_demo(request)
    assert list(result.modes) == ["breakable"]
    assert result.mismatches == 0
    assert (result.command, result.seed, result.model.name, result.model.layers) == ("x", 5, "tiny", 2)
    breakable = result.modes["breakable"]
    assert breakable.sizes == (1, 3)
    assert breakable.captured == breakable.unfolded_captured == 6
    assert breakable.unfolded_compared == 6
    assert breakable.unfolded_mismatches == 0
    assert breakable.bytes_source == "modelled"
    assert breakable.exec_device_bytes is not None
    assert breakable.unfolded_exec_device_bytes is not None
    assert breakable.unfolded_exec_device_bytes > breakable.exec_device_bytes
    assert breakable.unfolded_exec_host_bytes is not None
    assert breakable.unfolded_seconds is not None
    assert breakable.unfolded_seconds > 0
    assert DemoResult.from_json(result.to_json()) == result


def test_an_arm_in_a_process_of_its_own_gives_the_same_counts() -> None:
    here, apart = run_arm(spec(sizes=(1, 2))), run_apart(spec(sizes=(1, 2)))
    timed = {"capture_seconds", "first_replay_seconds", "fold_seconds"}
    assert apart.model_dump(exclude=timed) == here.model_dump(exclude=timed)


def run_instead(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """Let the arm's process run ``code``."""
    start = subprocess.Popen

    def popen(command: list[str], **options: Any) -> Any:
        return start([command[0], "-c", code], **options)

    monkeypatch.setattr(subprocess, "Popen", popen)


def test_a_process_that_fails_is_one_error_with_its_last_words(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its stderr passes through as well."""
    run_instead(monkeypatch, r"import sys; sys.stderr.write('\x1b[1mloading\x1b[0m\nout of luck.\n'); sys.exit(3)")
    with pytest.raises(GraphDedupError, match=r"the breakable arm ended with exit code 3: loading \| out of luck\. R"):
        run_apart(spec())
    assert capsys.readouterr().err == "\x1b[1mloading\x1b[0m\nout of luck.\n"


def test_a_process_that_is_killed_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    run_instead(monkeypatch, "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    with pytest.raises(GraphDedupError, match="was killed by signal 9: it left no message"):
        run_apart(spec())


def test_a_process_without_a_result_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    run_instead(monkeypatch, "pass")
    with pytest.raises(GraphDedupError, match="without folding ended without a result"):
        run_apart(spec(folded=False))


def test_last_lines_are_one_line() -> None:
    assert _last_lines("a\n\nb\n\x1b[31mc\x1b[0m\r\n d. \n") == "b | c | d"
    assert _last_lines("") == ""


def test_logging_is_restored(capsys: pytest.CaptureFixture[str]) -> None:
    logger = logging.getLogger("graphdedup")
    before = (logger.level, list(logger.handlers))
    with logging_to_stderr(logging.INFO):
        logger.info("captured 4 graphs, deduped to 2 execs")
    logger.info("unheard")
    assert capsys.readouterr().err == "captured 4 graphs, deduped to 2 execs\n"
    assert (logger.level, list(logger.handlers)) == before


def test_the_child_needs_two_arguments(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    from graphdedup.demo.__main__ import main

    assert main([]) == 2
    assert capsys.readouterr().err.startswith("usage: ")
    output = tmp_path / "arm.json"
    assert main([spec(sizes=(1,), mode="full").model_dump_json(), str(output)]) == 0
    assert ArmResult.model_validate_json(output.read_text()).captured == 1
    assert "captured 1 graphs, deduped to 1 execs" in capsys.readouterr().err
