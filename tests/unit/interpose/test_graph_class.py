"""Under interposition graphs fold, and their class is torch's in everything else."""

from __future__ import annotations

import gc
import pickle
import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from graphdedup import GraphDedupError, interpose
from graphdedup.interpose import Interposition
from seam.simulated import SimulatedDevice


@pytest.fixture
def found(plain: Any, maker: Any) -> Iterator[Interposition]:
    with interpose(make_backend=maker) as made:
        yield made


class Run:
    """A captured (x + 1) * factor for one size, as a runner makes it."""

    def __init__(self, size: int, factor: int = 2, pool: Any = None, graph: Any = None, **how: Any) -> None:
        self.x = torch.zeros(size)
        self.factor = factor
        self.graph = torch.cuda.CUDAGraph(**how) if graph is None else graph
        self.graph.capture_begin(*([] if pool is None else [pool]))
        self.y = (self.x + 1) * factor
        self.graph.capture_end()

    def check(self, value: float) -> None:
        self.x.fill_(value)
        self.graph.replay()
        assert self.y.tolist() == [(value + 1) * self.factor] * len(self.x)


def check(runs: list[Run], rounds: int = 3) -> None:
    for turn in range(rounds):
        for number, run in enumerate(random.Random(turn).sample(runs, len(runs))):
            run.check(10 * turn + number)


def test_a_ladder_folds_onto_one_executable(found: Interposition, plain: Any, device: SimulatedDevice) -> None:
    runs = [Run(size) for size in (64, 32, 8, 1)]
    assert (found.stats().captured, found.stats().execs, device.live_exec_count) == (4, 1, 1)
    check(runs)
    assert found.stats().launches == 12
    assert type(runs[0].graph) is torch.cuda.CUDAGraph is not plain
    assert isinstance(runs[0].graph, plain)


def test_graphs_stay_folded_after_the_context(plain: Any, maker: Any, device: SimulatedDevice) -> None:
    with interpose(make_backend=maker) as found:
        runs = [Run(size) for size in (16, 4)]
    assert torch.cuda.CUDAGraph is plain
    check(runs)
    assert (found.stats().execs, device.live_exec_count) == (1, 1)
    after = Run(2)
    check([after])
    assert (found.stats().captured, device.live_exec_count) == (2, 2)
    for run in (*runs, after):
        run.graph.reset()


def test_graphs_of_before_stay_as_they_were(plain: Any, maker: Any, device: SimulatedDevice) -> None:
    """They are instances of the class under its name all the same, and of subclasses that are made then they are none."""
    before = Run(4)
    with interpose(make_backend=maker) as found:
        inside = Run(4)
        assert isinstance(before.graph, torch.cuda.CUDAGraph)
        assert issubclass(plain, torch.cuda.CUDAGraph)
        assert not isinstance(3, torch.cuda.CUDAGraph)

        class Mine(torch.cuda.CUDAGraph):  # type: ignore[misc]
            pass

        assert not isinstance(before.graph, Mine)
        assert isinstance(Mine(), Mine)
        check([before, inside])
        assert found.stats().captured == 1
        before.graph.reset()
        inside.graph.reset()
    assert device.live_exec_count == 0


def test_a_subclass_with_arguments_of_its_own_folds(found: Interposition) -> None:
    class Named(torch.cuda.CUDAGraph):  # type: ignore[misc]
        def __init__(self, name: str, more: int) -> None:
            super().__init__()
            self.name = name

    runs = [Run(size, graph=Named(f"bs={size}", size)) for size in (8, 4)]
    check(runs)
    assert (found.stats().captured, found.stats().execs) == (2, 1)
    assert runs[0].graph.name == "bs=8"


def test_a_subclass_of_before_works_as_before(plain: Any, maker: Any) -> None:
    class Early(plain):  # type: ignore[misc]
        pass

    with interpose(make_backend=maker) as found:
        run = Run(4, graph=Early())
        assert isinstance(run.graph, torch.cuda.CUDAGraph)
        check([run])
        assert found.stats().captured == 0
        run.graph.reset()


def test_reset_gives_the_graph_back_and_it_can_capture_again(found: Interposition, device: SimulatedDevice) -> None:
    first, second = Run(8), Run(4)
    first.graph.reset()
    with pytest.raises(RuntimeError, match="without a preceding successful capture"):
        first.graph.replay()
    check([second])
    first.graph.reset()
    again = Run(16, graph=first.graph)
    check([again, second])
    assert (found.stats().captured, found.stats().execs, len(found.backend().export().graphs)) == (3, 1, 2)
    again.graph.reset()
    second.graph.reset()
    assert (found.stats().execs, device.live_exec_count) == (0, 0)


def test_a_kept_graph_that_was_reset_is_empty(found: Interposition) -> None:
    run = Run(4, keep_graph=True)
    run.check(1)
    run.graph.reset()
    for attempt in (run.graph.replay, run.graph.instantiate):
        with pytest.raises(RuntimeError, match=r"without a preceding successful capture|capture_end\(\) must have been called"):
            attempt()
    assert (found.stats().captured, found.stats().execs) == (1, 0)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
@pytest.mark.parametrize("cycle", [False, True])
def test_graphs_are_dropped_in_any_order(
    order: tuple[int, ...], cycle: bool, found: Interposition, device: SimulatedDevice
) -> None:
    """Also those in a cycle, which the collector finds."""
    runs: dict[int, Run] = {number: Run(4 + number) for number in range(3)}
    if cycle:
        for run in runs.values():
            run.graph.itself = run.graph
        del run
    for gone in order:
        del runs[gone]
        gc.collect()
        if runs:
            check(list(runs.values()))
        assert len(found.backend().export().graphs) == len(runs)
    assert (found.stats().execs, device.live_exec_count) == (0, 0)


def test_what_the_caller_did_not_ask_to_keep_is_hidden(found: Interposition, plain: Any) -> None:
    for run in (Run(4), Run(4, keep_graph=False)):
        with pytest.raises(RuntimeError, match="unless CUDAGraph was initialized with keep_graph=True"):
            run.graph.raw_cuda_graph()
        with pytest.raises(RuntimeError, match="only when keep_graph=true"):
            run.graph.instantiate()
    with pytest.raises(RuntimeError, match=r"capture_end\(\) must have been called"):
        torch.cuda.CUDAGraph().instantiate()


def test_a_graph_that_is_kept_may_be_edited_before_it_is_instantiated(found: Interposition) -> None:
    """And after: instantiate() takes what it is then."""
    kept, plain_run = Run(4, keep_graph=True), Run(4)
    assert found.stats().captured == 1, "one is not instantiated yet"
    raw = kept.graph.raw_cuda_graph()
    assert len(raw.nodes) == 2
    target = torch.zeros(4)
    raw.add_node("memset", target=target, after=(1,))
    target.fill_(9)
    kept.check(3)
    assert target.tolist() == [0] * 4
    assert (found.stats().captured, found.stats().execs) == (2, 2)
    second = torch.ones(4)
    raw.add_node("memset", target=second, after=(2,))
    kept.check(5)
    assert second.tolist() == [1] * 4, "torch does not see an edit before the next instantiate()"
    kept.graph.instantiate()
    kept.check(7)
    assert second.tolist() == [0] * 4
    check([plain_run])


def test_kept_graphs_fold_at_instantiate_or_at_the_first_replay(found: Interposition) -> None:
    runs = [Run(size, keep_graph=True) for size in (8, 4, 2)]
    runs[0].graph.instantiate()
    assert found.stats().captured == 1
    check(runs)
    assert (found.stats().captured, found.stats().execs) == (3, 1)


def test_whoever_asks_for_the_executable_gets_one_of_its_own(found: Interposition, device: SimulatedDevice) -> None:
    runs = [Run(size) for size in (8, 4, 2)]
    handle = runs[1].graph.raw_cuda_graph_exec()
    assert found.stats().execs == 2
    check(runs)
    for value in (3, 4, 5):
        runs[1].x.fill_(value)
        device.launch(handle)
        assert runs[1].y.tolist() == [(value + 1) * 2] * 4
        runs[0].check(value)
    assert runs[1].graph.raw_cuda_graph_exec() is handle
    assert [row.reason for row in found.report().unfoldings] == ["its executable was asked for"]


def test_debug_and_pickling_are_torchs(found: Interposition, plain: Any) -> None:
    run = Run(4)
    run.graph.enable_debug_mode()
    assert run.graph.debug_dump("here") == "here: 2 nodes"
    assert run.graph.raw_cuda_graph() is not None
    with pytest.raises(TypeError, match="cannot pickle"):
        pickle.dumps(run.graph)
    made = torch.cuda.CUDAGraph
    assert (made.__name__, made.__module__, made.__doc__) == (plain.__name__, plain.__module__, plain.__doc__)
    assert made.replay.__doc__ == plain.replay.__doc__


def test_pools_are_shared_as_the_caller_says(found: Interposition) -> None:
    first = Run(8)
    second = Run(4, pool=first.graph.pool())
    assert second.graph.pool() is first.graph.pool()
    first.check(1)
    second.check(2)
    assert found.report().pool.bytes == first.graph.pool().reserved_bytes() > 0, "counted once"


def test_draws_are_those_of_torchs_own_replay(found: Interposition, plain: Any) -> None:
    """D12: the same seed gives the same numbers, and the generator has advanced by as much."""

    def captured(kind: Any, size: int) -> tuple[Any, torch.Tensor]:
        graph = kind()
        graph.capture_begin()
        y = torch.rand(size)
        graph.capture_end()
        return graph, y

    folded = [captured(torch.cuda.CUDAGraph, size) for size in (8, 4)]
    own = [captured(plain, size) for size in (8, 4)]
    assert (found.stats().captured, found.stats().execs) == (2, 1)
    drawn: dict[str, list[Any]] = {}
    for name, graphs in (("folded", folded), ("own", own)):
        torch.manual_seed(5)
        told = []
        for number in (0, 1, 1, 0, 1):
            graph, y = graphs[number]
            graph.replay()
            told.append(y.tolist())
        drawn[name] = [told, torch.get_rng_state().tolist()]
    assert drawn["folded"] == drawn["own"]
    for graph, _ in own:
        graph.reset()


def test_a_kept_graph_that_draws_keeps_torchs_own(found: Interposition) -> None:
    """Its caller may ask for it, so it cannot be emptied to advance the numbers."""
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    graph.capture_begin()
    y = torch.rand(4)
    graph.capture_end()
    graph.instantiate()
    assert (found.stats().passed_through, found.stats().execs) == (1, 1)
    torch.manual_seed(3)
    graph.replay()
    torch.manual_seed(3)
    assert y.tolist() == torch.rand(4).tolist()
    assert len(graph.raw_cuda_graph().nodes) == 1


def test_a_generator_of_the_callers_is_registered(found: Interposition) -> None:
    graph = torch.cuda.CUDAGraph()
    generator = torch.Generator()
    graph.register_generator_state(generator)
    assert graph.generators == [generator]
    run = Run(4, graph=graph)
    check([run])


def test_a_graph_that_cannot_fold_is_torchs_own(found: Interposition, device: SimulatedDevice) -> None:
    """D11: one with a memory node, added by hand to a graph that the caller keeps."""
    run = Run(4, keep_graph=True)
    run.graph.raw_cuda_graph().add_node("mem_alloc", size_bytes=512)
    run.check(1)
    run.check(2)
    assert (found.stats().passed_through, found.stats().execs, device.live_exec_count) == (1, 1, 1)
    assert run.graph.raw_cuda_graph_exec() is run.graph._exec
    run.graph.reset()
    assert (found.stats().passed_through, device.live_exec_count) == (0, 0)


def test_a_capture_that_fails_leaves_the_graph_as_torch_does(found: Interposition) -> None:
    graph = torch.cuda.CUDAGraph()
    x = torch.zeros(4)
    graph.capture_begin()
    with pytest.raises(Exception, match="on the host"):
        (x + 1).sum().item()
    with pytest.raises(Exception, match="on the host"):
        graph.capture_end()
    assert found.stats().captured == 0
    with pytest.raises(RuntimeError, match="without a preceding"):
        graph.replay()
    check([Run(4, graph=graph), Run(8)])


def test_a_fold_that_fails_leaves_torchs_own(found: Interposition, monkeypatch: pytest.MonkeyPatch) -> None:
    Run(2).check(1)

    def fails(*_: Any, **__: Any) -> Any:
        raise GraphDedupError("no luck", rule="D5", remedy="none")

    monkeypatch.setattr(type(found.backend()), "adopt", fails)
    run = Run(4)
    assert run.graph._exec is not None, "made at the end of the capture, as torch makes it"
    check([run])
    run.graph.reset()


def test_a_replay_inside_a_capture_is_torchs_own(found: Interposition, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(4)
    draws = torch.cuda.CUDAGraph()
    draws.capture_begin()
    torch.rand(4)
    draws.capture_end()
    launches = found.stats().launches
    monkeypatch.setattr(found, "capturing", lambda: True)
    run.check(3)
    assert (found.stats().launches, run.graph._exec is not None) == (launches, True)
    with pytest.raises(GraphDedupError, match=r"cannot be replayed inside another capture.*D12"):
        draws.replay()


def test_inputs_are_tracked_where_torch_tracks_them(found: Interposition, version: str) -> None:
    if version not in ("2.13", "2.14"):
        pytest.skip("this torch does not")
    run = Run(4)
    graph = torch.cuda.CUDAGraph()
    graph.capture_begin(check_input_liveness=True)
    y = run.x + 5
    graph.capture_end()
    graph.replay()
    assert (graph._tracker.asked, y.tolist()) == (1, [5] * 4)
    graph._tracker.gone = True
    with pytest.raises(RuntimeError, match="an input was deallocated"):
        graph.replay()


def test_a_graph_with_hooks_is_torchs_own(found: Interposition, version: str) -> None:
    """They see its executable, and each of its replays; registered before the capture or after."""
    seen: list[str] = []
    graph = torch.cuda.CUDAGraph()
    if version != "2.14":
        assert not hasattr(graph, "register_replay_start_hook")
        pytest.skip("this torch has no hooks")
    graph.register_post_instantiate_hook(lambda one: seen.append("instantiated"))
    early, late = Run(4, graph=graph), Run(4)
    assert found.stats().execs == 1
    late.graph.register_replay_start_hook(lambda one: seen.append("start"))
    late.graph.register_replay_end_hook(lambda one: seen.append("end"))
    early.check(1)
    late.check(2)
    assert seen == ["instantiated", "start", "end"]
    assert late.graph.raw_cuda_graph_exec() is late.graph._exec
    assert found.stats().execs == 0
    for run in (early, late):
        run.graph.reset()
