"""What engines load: off unless switched on, once in a process, and nothing of CUDA is touched. And the registry for SGLang."""

from __future__ import annotations

import subprocess
import sys
import weakref
from importlib.metadata import distributions
from typing import Any

import pytest
import torch

from graphdedup import FoldPolicy, GraphDedupError, SettingsError, uninstall
from graphdedup.interpose import installed
from graphdedup.plugins import environment, sglang, vllm
from graphdedup.plugins.sglang import FoldRegistry
from graphdedup.torch_graphs import TorchGraph
from seam.simulated import SimulatedDevice

REGISTERS = {"vllm.general_plugins": vllm.register, "sglang.srt.plugins": sglang.register}


@pytest.fixture
def version() -> str:
    return "2.11"


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "_done", False)


@pytest.mark.parametrize("group", REGISTERS)
def test_the_entry_points_are_there(group: str) -> None:
    """Looked for in the metadata of every installation of ours: a source tree may have older metadata lying about."""
    ours = [one for one in distributions() if one.metadata["Name"] == "graphdedup"]
    found = {point.load() for one in ours for point in one.entry_points if point.group == group}
    assert found == {REGISTERS[group]}


@pytest.mark.parametrize("group", REGISTERS)
def test_a_plugin_is_off_unless_it_is_switched_on(group: str, plain: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for value in (None, "0", "false"):
        if value is not None:
            monkeypatch.setenv("GRAPHDEDUP_INTERPOSE", value)
        REGISTERS[group]()
        assert installed() is None
        assert torch.cuda.CUDAGraph is plain
    monkeypatch.setenv("GRAPHDEDUP_INTERPOSE", "yes")
    with pytest.raises(SettingsError, match="GRAPHDEDUP_INTERPOSE='yes' is no switch"):
        REGISTERS[group]()


@pytest.mark.parametrize("group", REGISTERS)
def test_a_plugin_installs_once(group: str, plain: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAPHDEDUP_INTERPOSE", "1")
    monkeypatch.setenv("GRAPHDEDUP_POLICY", "tier=function,placement=position")
    for _ in range(3):
        REGISTERS[group]()
    found = installed()
    assert found is not None
    assert found.policy == FoldPolicy.parse(tier="function", placement="position")
    assert torch.cuda.CUDAGraph is not plain
    uninstall()
    assert torch.cuda.CUDAGraph is plain


def test_a_policy_that_is_off_is_told(plain: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAPHDEDUP_INTERPOSE", "1")
    monkeypatch.setenv("GRAPHDEDUP_POLICY", "tier=soft")
    with pytest.raises(SettingsError, match="tier='soft'"):
        vllm.register()
    assert installed() is None


def test_loading_a_plugin_touches_nothing_of_cuda_and_a_process_writes_its_report() -> None:
    """In a process of its own: CUDA is not initialised, and at exit the report would be written; nothing was captured."""
    code = (
        "import os, torch\n"
        "from graphdedup.plugins import vllm, sglang\n"
        "vllm.register(), sglang.register()\n"
        "assert not torch.cuda.is_initialized()\n"
        "from graphdedup.interpose import installed\n"
        "print(installed() is not None)\n"
    )
    settings = {"GRAPHDEDUP_INTERPOSE": "1", "GRAPHDEDUP_REPORT": "nowhere/r.json"}
    import os

    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **settings}, capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr


class Segments:
    """What SGLang's capture code does with a registry: keep graphs, register, replay what comes back."""

    def __init__(self, registry: FoldRegistry, sizes: tuple[int, ...]) -> None:
        self.runs = []
        for size in sizes:
            x = torch.zeros(size)
            graph = torch.cuda.CUDAGraph(keep_graph=True)
            graph.capture_begin()
            y = (x + 1) * 2
            graph.capture_end()
            self.runs.append((registry.register(graph), x, y))

    def check(self) -> None:
        for value in (3, 0, 7):
            for segment, x, y in self.runs:
                x.fill_(value)
                segment.replay()
                assert y.tolist() == [(value + 1) * 2] * len(x)


def test_the_registry_folds_what_it_is_given(plain: Any, maker: Any, device: SimulatedDevice) -> None:
    registry = FoldRegistry(make=maker)
    assert registry.stats() == (0, 0)
    segments = Segments(registry, (8, 4, 2))
    assert registry.stats() == (3, 1)
    registry.seal()
    assert registry.sealed
    segments.check()
    with pytest.raises(GraphDedupError, match="sealed"):
        Segments(registry, (1,))
    originals = [segment.original_graph for segment, _, _ in segments.runs]
    registry.close()
    registry.close()
    assert device.live_exec_count == 0
    for original in originals:
        with pytest.raises(RuntimeError, match="without a preceding successful capture"):
            original.replay()
    with pytest.raises(GraphDedupError, match="was closed"):
        segments.runs[0][0].replay()


def test_the_registry_advances_random_numbers(plain: Any, maker: Any) -> None:
    registry = FoldRegistry(make=maker)
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    graph.capture_begin()
    y = torch.rand(4)
    graph.capture_end()
    folded = registry.register(graph)
    torch.manual_seed(3)
    drawn = []
    for _ in range(3):
        folded.replay()
        drawn.append(y.tolist())
    torch.manual_seed(3)
    assert drawn == [torch.rand(4).tolist() for _ in range(3)]
    registry.close()


def test_a_graph_that_was_not_kept_cannot_be_registered(plain: Any, maker: Any) -> None:
    registry = FoldRegistry(make=maker)
    graph = torch.cuda.CUDAGraph()
    graph.capture_begin()
    torch.zeros(4) + 1
    graph.capture_end()
    with pytest.raises(GraphDedupError, match=r"cannot be read.*keep_graph=True"):
        registry.register(graph)
    registry.close()
    graph.reset()


def test_graphs_of_a_profiling_pass_leave_the_fold_as_they_came(plain: Any, maker: Any, device: SimulatedDevice) -> None:
    """vLLM captures once to measure, resets those graphs, and captures again at the same addresses (D8)."""
    from graphdedup import interpose
    from tests.unit.interpose.test_graph_class import Run, check

    with interpose(make_backend=maker) as found:
        pool = Run(1).graph.pool()
        for _ in range(3):
            runs = [Run(size, pool=pool) for size in (16, 8, 4)]
            check(runs)
            assert (found.stats().execs, len(found.backend().export().graphs)) == (1, 3)
            for run in runs:
                run.graph.reset()
            del run, runs
        assert (found.stats().captured, found.stats().execs) == (10, 0)
    assert device.live_exec_count == 0


def test_a_pool_of_torchs_is_one_object_as_long_as_a_graph_is_in_it() -> None:
    """By its id, so that a report counts it once however many graphs it has."""

    class InPool:
        def __init__(self, number: int) -> None:
            self.number = number

        def pool(self) -> tuple[int, int]:
            return 0, self.number

    first, second, other = TorchGraph(InPool, InPool(7)), TorchGraph(InPool, InPool(7)), TorchGraph(InPool, InPool(8))
    assert first.pool is second.pool is not other.pool
    assert (first.pool.id, other.pool.id) == ((0, 7), (0, 8))
    gone = weakref.ref(first.pool)
    del first, second
    assert gone() is None
