"""The runners of examples/, on the simulated device: they capture, fold and put out the same bits as without the fold."""

from __future__ import annotations

import gc
import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch

from examples.common import Runner, load, play
from graphdedup import interpose
from seam.simulated import SimulatedBackend, SimulatedDevice
from tools import runner_arm
from tools.runner_arm import Spec, run_arm


class _Stream:
    """Where there is one queue of work only."""

    def wait_stream(self, other: Any) -> None:
        pass


@pytest.fixture
def version() -> str:
    return "2.11"


@pytest.fixture
def cuda(plain: Any, device: SimulatedDevice, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What the runners call of ``torch.cuda``, over the simulated device."""

    @contextmanager
    def graph(cuda_graph: Any, pool: Any = None, stream: Any = None, capture_error_mode: str = "global") -> Iterator[None]:
        cuda_graph.capture_begin(*([] if pool is None else [pool]), capture_error_mode=capture_error_mode)
        yield
        cuda_graph.capture_end()

    backend = SimulatedBackend(device)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device=None: _Stream())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: _Stream())
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device=None: None)
    for module in (torch.cuda, torch.cuda.graphs):
        monkeypatch.setattr(module, "graph_pool_handle", backend.new_pool)
        monkeypatch.setattr(module, "graph", graph)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # what is computed here is shorter than the wait for other threads
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize(
    ("name", "captured", "execs"),
    [("ladder", 4, 1), ("nano_runner", 3, 2), ("graphed_callables", 4, 2), ("breakable_peer", 9, 3)],
)
@pytest.mark.usefixtures("cuda")
def test_a_runner_folds_and_puts_out_the_same_bits(
    name: str, captured: int, execs: int, maker: Any, device: SimulatedDevice
) -> None:
    """Graphs of all sizes have one structure, and so have forwards and backwards of equal layers, and segments of one place.
    The nano runner's products need no copy at batch size 1, which makes another structure."""
    example = load(name)
    if any(importlib.util.find_spec(package) is None for package in example.needs):
        pytest.skip(f"{', '.join(example.needs)} is not installed")

    def played(runner: Runner) -> list[str]:
        runner.capture()
        found = play(runner, 3)
        runner.step(0)
        return found

    def released(runner: Runner) -> None:
        runner.close()
        gc.collect()

    plain = example.make(torch.device("cpu"), True)
    own = played(plain)
    assert device.live_exec_count == captured
    released(plain)
    assert device.live_exec_count == 0
    assert len(set(own)) == 3
    with interpose(make_backend=maker) as dedup:
        runner = example.make(torch.device("cpu"), True)
        assert played(runner) == own
        assert (dedup.stats().captured, dedup.stats().execs) == (captured, execs)
        released(runner)
        assert dedup.stats().execs == 0


@pytest.mark.usefixtures("cuda")
def test_an_arm_counts_what_it_captures_with_and_without_the_fold(maker: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four sizes: four executables or one. Five steps over sizes in turn: with the fold each needs an update."""
    monkeypatch.setattr(runner_arm, "interpose", lambda policy: interpose(policy, make_backend=maker))
    spec = Spec(example="ladder", folded=False, rounds=3, steps=5, small=True)
    plain = run_arm(spec, torch.device("cpu"))
    folded = run_arm(spec.model_copy(update={"folded": True}), torch.device("cpu"))
    assert (plain.captured, plain.execs, plain.kept, plain.replay_updates, plain.launches) == (4, 4, 4, 0, 0)
    # Three steps before the five are not timed.
    assert (folded.captured, folded.execs, folded.kept, folded.replay_updates, folded.launches) == (4, 1, 0, 8, 8)
    assert plain.digests == folded.digests
    assert len(set(plain.digests)) == 3
    assert plain.steps == folded.steps == 5
    assert min(plain.step_us, folded.step_us) > 0
    assert (plain.device_bytes, plain.reserved_bytes) == (None, None)  # no GPU to read them from
