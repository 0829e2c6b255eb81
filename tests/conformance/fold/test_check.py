"""Checking captured graphs against eager on both devices, and the memory by which replays are verified."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import seam
from graphdedup import DedupBackend
from graphdedup.checking import check
from graphdedup.driver import GraphDriver, driver_for
from graphdedup.driver.memory import GraphMemory
from graphdedup.verify import Verifier


@pytest.fixture(params=["plain", "folded"])
def capturing(request: pytest.FixtureRequest, backend: seam.GraphBackend) -> seam.GraphBackend:
    """A check is of a graph: folded or not, it is the same."""
    return backend if request.param == "plain" else DedupBackend(backend, enabled=True)


class Grouped:
    """Rows of a batch are scaled by group. How many rows each group has, host code writes into a descriptor."""

    def __init__(self, backend: seam.GraphBackend, device: str, *, frozen: bool) -> None:
        self.x = torch.ones(8, 4, device=device)
        self.sizes = [3, 5]
        self.scales = torch.tensor([2.0, 10.0], device=device)
        self.rows = torch.arange(8, device=device)
        self.descriptor = torch.zeros(1, dtype=torch.int64, device=device)
        self.graph = seam.BreakableGraph(backend, label="grouped")
        self.write_descriptor()
        self.forward()  # what is loaded on first use must not be loaded inside the capture
        with seam.capture(self.graph):
            if not frozen:
                seam.eager_break(self.write_descriptor)()
            self.y = self.forward()

    def write_descriptor(self) -> None:
        """What no capture sees: a copy of host data."""
        self.descriptor.copy_(torch.tensor(self.sizes[:1]))

    def forward(self) -> torch.Tensor:
        return self.x * self.scales[(self.rows >= self.descriptor).long()].unsqueeze(1)

    def eager(self) -> torch.Tensor:
        kept = self.descriptor.clone()
        self.write_descriptor()
        y = self.forward()
        self.descriptor.copy_(kept)
        return y

    def fresh_inputs(self) -> None:
        self.sizes = [self.sizes[0] + 1, self.sizes[1] - 1]
        self.x.add_(1)


def test_a_frozen_descriptor_passes_on_equal_inputs_and_is_caught_on_fresh_ones(
    capturing: seam.GraphBackend, device: str
) -> None:
    """Round n has 3 + n rows in the first group, the kernel goes on with 3: n rows of 4 are scaled by 10, not 2."""
    case = Grouped(capturing, device, frozen=True)
    same = check(case.graph, eager=case.eager, outputs=case.y)
    assert same.ok
    assert "proves little" in same.to_text()
    fresh = check(case.graph, eager=case.eager, outputs=case.y, fresh_inputs=case.fresh_inputs)
    assert not fresh.ok
    assert [(one.round, one.differing_elements, one.max_abs_difference) for one in fresh.mismatches] == [
        (1, 4, 16.0),
        (2, 8, 24.0),
        (3, 12, 32.0),
    ]
    assert "round 2, output: 8 of 32 elements differ, by 24 at most" in fresh.to_text()
    case.graph.close()


def test_a_descriptor_that_a_break_writes_passes_on_fresh_inputs(capturing: seam.GraphBackend, device: str) -> None:
    case = Grouped(capturing, device, frozen=False)
    result = check(case.graph, eager=case.eager, outputs=case.y, fresh_inputs=case.fresh_inputs)
    assert result.ok, result.to_text()
    assert (result.rounds, result.tensors) == (3, 3)
    assert torch.equal(case.y, case.eager()), "outputs hold the last replay"
    case.graph.close()


class Raw:
    """Captured graphs as the driver knows them, their executables, and their memory."""

    def __init__(self, backend: seam.GraphBackend) -> None:
        self.backend = backend
        self.driver: GraphDriver = driver_for(backend)
        self.memory: GraphMemory
        if backend.name == "cuda":
            from graphdedup.driver.cuda_calls import bindings
            from graphdedup.driver.cuda_memory import CudaGraphMemory

            self.memory = CudaGraphMemory(bindings(), backend.device)  # type: ignore[attr-defined]
        else:
            from graphdedup.driver.simulated_memory import SimulatedGraphMemory

            self.memory = SimulatedGraphMemory(backend.device)  # type: ignore[attr-defined]
        self.graphs: list[seam.BreakableGraph] = []
        self.executables: list[Any] = []

    def capture(self, forward: Any, pool: seam.Pool | None = None) -> tuple[Any, torch.Tensor]:
        forward()
        graph = seam.BreakableGraph(self.backend)
        self.graphs.append(graph)
        with seam.capture(graph, pool=pool):
            y = forward()
        return self.driver.raw(graph.segments[0]), y

    def instantiate(self, raw: Any) -> Any:
        self.executables.append(self.driver.instantiate(raw))
        return self.executables[-1]


@pytest.fixture
def raw(backend: seam.GraphBackend) -> Iterator[Raw]:
    made = Raw(backend)
    yield made
    made.driver.synchronize()
    for executable in made.executables:
        made.driver.destroy(executable)
    for graph in made.graphs:
        graph.close()


def holds(regions: Any, tensor: torch.Tensor) -> bool:
    start, end = tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes
    return any(region.address <= start and end <= region.end for region in regions)


def test_the_regions_of_a_graph_hold_its_inputs_weights_and_outputs(raw: Raw, device: str) -> None:
    """And not a tensor of another graph's, where that is no neighbour in the pool."""
    x, weight = torch.ones(64, device=device), torch.ones(1000, device=device)
    elsewhere = torch.ones(1 << 20, device=device)
    pool = raw.backend.new_pool()
    graph, y = raw.capture(lambda: (x + weight[100:164]) * 3, pool)
    regions = raw.memory.regions(graph)
    assert all(holds(regions, tensor) for tensor in (x, weight, y))
    assert not holds(regions, elsewhere)
    assert len(set(regions)) == len(regions)
    ordered = sorted(regions)
    assert all(one.end <= other.address for one, other in itertools.pairwise(ordered)), "disjoint"


def test_bytes_are_held_compared_and_put_back(raw: Raw, device: str) -> None:
    x = torch.zeros(1000, device=device)
    graph, y = raw.capture(lambda: x.clone().mul_(2).add_(1))
    y.fill_(5)
    saved = raw.memory.save(raw.memory.regions(graph))
    assert raw.memory.differing(saved) == {}
    x[7] = 2.0
    assert sum(raw.memory.differing(saved).values()) == 1, "0x40000000 differs from 0 in one byte"
    raw.driver.launch(raw.instantiate(graph))
    assert y[7].item() == 5
    assert len(raw.memory.differing(saved)) >= 2
    raw.memory.restore(saved)
    assert raw.memory.differing(saved) == {}
    assert (x.sum().item(), y.tolist()) == (0, [5] * 1000)


@pytest.mark.parametrize("stream", ["current", "side"])
def test_a_wrong_executable_is_found_and_the_right_bytes_stay(stream: str, raw: Raw, device: str) -> None:
    """Another graph of the same addresses stands for a shared executable that went wrong: x + 2 in place of x + 1."""
    x, y = torch.zeros(1 << 16, device=device), torch.zeros(1 << 16, device=device)
    right, _ = raw.capture(lambda: y.add_(x + 1))
    wrong, _ = raw.capture(lambda: y.add_(x + 2))
    own, again, other = raw.instantiate(right), raw.instantiate(right), raw.instantiate(wrong)
    verifier = Verifier(raw.memory, fresh_inputs=lambda: x.fill_(100))
    y.zero_()

    def compare(shared: Any) -> str:
        return str(verifier.compare(right, lambda: raw.driver.launch(own), lambda: raw.driver.launch(shared)))

    def rounds() -> None:
        assert compare(again) == "None"
        assert (y.unique().tolist(), x.unique().tolist()) == ([1], [0])
        assert "differ" in compare(other)
        assert (y.unique().tolist(), x.unique().tolist()) == ([2], [0])
        assert compare(again) == "None"
        assert y.unique().tolist() == [3]

    if stream == "side" and device == "cuda":
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            rounds()
        torch.cuda.current_stream().wait_stream(side)
    else:
        rounds()
    assert verifier.compared_count == 3


def test_memory_that_later_captures_cut_anew_is_compared_whole(raw: Raw, device: str) -> None:
    """Temporaries of the first graph are freed, and small tensors of the second take their start: both ends still count.

    x + 1 goes from 2 to 4, one byte of each element, and twice that from 4 to 8, two bytes of each; but for the few that
    the sum has taken the place of.
    """
    x = torch.ones(4096, device=device)
    pool = raw.backend.new_pool()
    first, _ = raw.capture(lambda: ((x + 1) * 2).sum(), pool)
    raw.capture(lambda: [x[:8] + number for number in range(4)][-1], pool)
    own, again = raw.instantiate(first), raw.instantiate(first)
    raw.driver.launch(own)
    before = raw.memory.save(raw.memory.regions(first))
    x.fill_(3)
    raw.driver.launch(again)
    changed = {region: count for region, count in raw.memory.differing(before).items() if not holds([region], x)}
    assert sum(changed.values()) > 3 * 4096 - 256
    verifier = Verifier(raw.memory)
    assert verifier.compare(first, lambda: raw.driver.launch(own), lambda: raw.driver.launch(again)) is None
