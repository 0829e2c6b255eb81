"""Verified replays on the simulated device: an executable that went stale is found, and the caller sees the right bytes."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch

import seam
from graphdedup.driver.memory import Region, Saved, Unverifiable
from graphdedup.driver.simulated_memory import SimulatedGraphMemory
from graphdedup.errors import DriverError
from graphdedup.verify import Mismatch, Verifier
from seam.simulated import DriverProfile, SimulatedBackend, SimulatedDevice, SimulatedGraph

Launch = Callable[[], None]


def add_one(_: Any, x: torch.Tensor, y: torch.Tensor) -> None:
    y.copy_(x + 1)


def double(_: Any, x: torch.Tensor, y: torch.Tensor) -> None:
    y.copy_(x * 2)


class Case:
    """A graph of ``y = x * 2``, its own executable, and a shared one that was made for ``y = x + 1`` and then updated."""

    def __init__(self, carries: str = "stale") -> None:
        self.device = SimulatedDevice(1 << 20, profile=DriverProfile(carries_function=carries))  # type: ignore[arg-type]
        self.x = self.device.memory.place((4,), (1,), torch.float32, pool=0, stream=0)
        self.y = torch.full((4,), 9.0)
        self.x.copy_(torch.tensor([0.0, 1, 2, 3]))
        self.first, self.raw = self.graph("add_one", add_one), self.graph("double", double)
        shared, own = self.device.instantiate(self.first), self.device.instantiate(self.raw)
        assert self.device.update(shared, self.raw).verdict == "SUCCESS"
        self.order: list[str] = []
        self.own: Launch = lambda: self.launch("own", own)
        self.shared: Launch = lambda: self.launch("shared", shared)
        self.memory = SimulatedGraphMemory(self.device)

    def graph(self, name: str, call: Callable[..., None]) -> SimulatedGraph:
        made = self.device.new_graph()
        made.add_kernel(name, call, (self.x, self.y))
        return made

    def launch(self, name: str, executable: Any) -> None:
        self.order.append(name)
        self.device.launch(executable)

    def compare(self, **options: Any) -> Mismatch | None:
        return Verifier(self.memory, **options).compare(self.raw, self.own, self.shared)


def test_equal_bytes_are_no_mismatch_and_the_shared_executable_goes_first() -> None:
    """First, because what runs before it could mend it."""
    case = Case("carried")
    assert case.compare() is None
    assert case.y.tolist() == [0, 2, 4, 6]
    assert case.order == ["shared", "own"]


def test_a_stale_executable_is_found_and_the_caller_sees_the_right_bytes() -> None:
    """1, 2, 3, 4 in place of 0, 2, 4, 6: elements 0, 2 and 3 differ, in two, one and one bytes (float32)."""
    case = Case()
    mismatch = case.compare()
    assert mismatch is not None
    address = case.y.data_ptr()
    assert mismatch.regions == (Region(address, 16),)
    assert mismatch.differing_bytes == 4
    assert str(mismatch) == f"4 bytes differ in 1 region (4 of 16 at {address:#x}); the shared executable changed 1"
    assert case.y.tolist() == [0, 2, 4, 6]
    assert case.x.tolist() == [0, 1, 2, 3]


def test_a_graph_that_accumulates_is_replayed_once_as_far_as_the_caller_sees() -> None:
    """Both runs start from the same bytes: y = y + x, once."""
    device = SimulatedDevice(1 << 20)
    x, y = torch.ones(3), torch.full((3,), 5.0)
    raw = device.new_graph()
    raw.add_kernel("accumulate", lambda _, x, y: y.add_(x), (x, y))
    one, two = device.instantiate(raw), device.instantiate(raw)
    verifier = Verifier(SimulatedGraphMemory(device))
    for total in (6, 7, 8):
        assert verifier.compare(raw, lambda: device.launch(one), lambda: device.launch(two)) is None
        assert y.tolist() == [total] * 3
    assert (verifier.compared_count, verifier.skipped_count) == (3, 0)


def test_memory_that_only_the_shared_executable_wrote_is_put_back() -> None:
    """It swaps input and output: the input is no output of the graph, and comes back."""
    case = Case("carried")
    wrong = case.device.new_graph()
    wrong.add_kernel("double", lambda _, x, y: x.copy_(y), (case.x, case.y))
    executable = case.device.instantiate(wrong)
    case.shared = lambda: case.device.launch(executable)
    mismatch = case.compare()
    assert mismatch is not None
    assert set(mismatch.regions) == {Region(case.x.data_ptr(), 16), Region(case.y.data_ptr(), 16)}
    assert (case.x.tolist(), case.y.tolist()) == ([0, 1, 2, 3], [0, 2, 4, 6])


def test_a_shared_executable_that_fails_is_a_mismatch_and_its_half_done_work_is_put_back() -> None:
    case = Case("carried")

    def fail() -> None:
        case.x.fill_(-1)
        raise DriverError("launch failed: ILLEGAL_ADDRESS", remedy="none")

    case.shared = fail
    mismatch = case.compare(fresh_inputs=lambda: pytest.fail("a mismatch needs no fresh inputs"))
    assert mismatch is not None
    assert (mismatch.regions, mismatch.differing_bytes) == ((), 0)
    assert mismatch.where.startswith("the shared executable failed: DriverError: launch failed: ILLEGAL_ADDRESS")
    assert (case.x.tolist(), case.y.tolist()) == ([0, 1, 2, 3], [0, 2, 4, 6])


def test_an_interrupt_of_the_shared_executable_leaves_memory_as_it_was() -> None:
    case = Case("carried")

    def interrupted() -> None:
        case.y.fill_(-1)
        raise KeyboardInterrupt

    case.shared = interrupted
    with pytest.raises(KeyboardInterrupt):
        case.compare()
    assert case.y.tolist() == [9] * 4
    assert case.order == []


def test_an_error_of_its_own_executable_is_the_callers_and_leaves_memory_as_it_was() -> None:
    case = Case("carried")

    def fail() -> None:
        case.y.fill_(-1)
        raise DriverError("launch failed", remedy="none")

    case.own = fail
    with pytest.raises(DriverError, match="launch failed"):
        case.compare()
    assert (case.x.tolist(), case.y.tolist()) == ([0, 1, 2, 3], [9] * 4)


def test_fresh_inputs_find_what_the_callers_own_inputs_hide() -> None:
    """1 + 1 is 2 * 1: only other inputs tell the two functions apart. Afterwards memory is what the own inputs gave."""
    case = Case()
    case.x.fill_(1)
    assert case.compare() is None
    case.y.fill_(9)
    values = iter((1.0, 3.0))
    fresh = [case.compare(fresh_inputs=lambda: case.x.fill_(next(values))) for _ in range(2)]
    assert fresh[0] is None, "x = 1 again proves nothing"
    assert fresh[1] is not None
    assert str(fresh[1]).startswith("with fresh inputs, ")
    assert (case.x.tolist(), case.y.tolist()) == ([1] * 4, [2] * 4)
    assert case.order[-5:] == ["shared", "own", "shared", "own", "own"], "the last one asks whether own repeats itself"


def test_fresh_inputs_see_the_memory_from_before_the_replay() -> None:
    """An accumulator is not advanced twice: the second comparison starts where the first did, the caller sees one step."""
    device = SimulatedDevice(1 << 20)
    x, y, seen = torch.ones(3), torch.full((3,), 5.0), []
    raw = device.new_graph()
    raw.add_kernel("accumulate", lambda _, x, y: y.add_(x), (x, y))
    one, two = device.instantiate(raw), device.instantiate(raw)

    def fresh() -> None:
        seen.append(y.tolist())
        x.fill_(100)

    verifier = Verifier(SimulatedGraphMemory(device), fresh_inputs=fresh)
    assert verifier.compare(raw, lambda: device.launch(one), lambda: device.launch(two)) is None
    assert seen == [[5] * 3]
    assert (x.tolist(), y.tolist()) == ([1] * 3, [6] * 3)


def test_fresh_inputs_that_fail_leave_what_the_replay_gave() -> None:
    case = Case("carried")

    def fail() -> None:
        case.x.fill_(50)
        raise ValueError("no more samples")

    with pytest.raises(ValueError, match="no more samples"):
        case.compare(fresh_inputs=fail)
    assert (case.x.tolist(), case.y.tolist()) == ([0, 1, 2, 3], [0, 2, 4, 6])


class Full(SimulatedGraphMemory):
    """Memory with room for so many saves."""

    room = 0

    def save(self, regions: Any) -> Saved:
        if self.room == 0:
            raise Unverifiable("there is no room", remedy="none")
        self.room -= 1
        return super().save(regions)


@pytest.mark.parametrize(
    ("room", "compared", "order"),
    [
        (0, 0, ["own"]),
        (1, 0, ["shared", "own"]),
        (2, 1, ["shared", "own"]),
        (3, 1, ["shared", "own"]),
        (4, 1, ["shared", "own", "shared", "own"]),
        (5, 1, ["shared", "own", "shared", "own"]),
    ],
)
def test_without_room_the_own_executable_does_the_replay(
    room: int, compared: int, order: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Wherever it runs out: right bytes, no error, one line in the log. Saves: before; by shared; seen; inputs; by shared."""
    case = Case("carried")
    case.memory = Full(case.device)
    verifier = Verifier(case.memory, fresh_inputs=lambda: case.x.fill_(3))
    with caplog.at_level(logging.WARNING, logger="graphdedup"):
        for _ in range(2):
            case.order.clear()
            case.memory.room = room
            case.x.copy_(torch.tensor([0.0, 1, 2, 3]))
            case.y.fill_(9)
            assert verifier.compare(case.raw, case.own, case.shared) is None
            assert (case.x.tolist(), case.y.tolist()) == ([0, 1, 2, 3], [0, 2, 4, 6])
    assert (verifier.compared_count, verifier.skipped_count) == (2 * compared, 0 if room == 5 else 2)
    skipped = [record.getMessage() for record in caplog.records]
    assert skipped == ([] if room == 5 else ["a replay is done without a comparison: there is no room Remedy: none"])


def test_a_graph_with_host_code_runs_it_once() -> None:
    device = SimulatedDevice(1 << 20)
    calls: list[int] = []
    raw = device.new_graph()
    raw.add_node("host", callback=lambda: calls.append(1))
    executable = device.instantiate(raw)
    verifier = Verifier(SimulatedGraphMemory(device))
    assert verifier.compare(raw, lambda: device.launch(executable), lambda: pytest.fail("shared ran")) is None
    assert (calls, verifier.skipped_count) == ([1], 1)


def test_random_numbers_are_the_same_in_both_runs_when_the_first_one_takes_them() -> None:
    """D12: the shared executable runs with the prologue, the own one without; the generator advances once."""
    device = SimulatedDevice(1 << 20)
    x = torch.zeros(8)
    graph = seam.BreakableGraph(SimulatedBackend(device))
    with seam.capture(graph):
        y = torch.rand_like(x)
    raw = graph.segments[0].graph
    one, two = device.instantiate(raw), device.instantiate(raw)
    torch.manual_seed(5)
    expected = [torch.rand(8).tolist() for _ in range(2)]
    torch.manual_seed(5)
    for numbers in expected:
        mismatch = Verifier(SimulatedGraphMemory(device)).compare(
            raw, lambda: device.launch(one), lambda: device.launch(two, prologue=True)
        )
        assert mismatch is None
        assert y.tolist() == numbers
    for executable in (one, two):
        device.destroy(executable)
    graph.close()


def test_a_graph_that_does_not_repeat_itself_is_told_apart() -> None:
    """The shared executable writes 0, its own 1 and then 2: the caller keeps the first of them."""
    device = SimulatedDevice(1 << 20)
    y, numbers = torch.full((1,), 9, dtype=torch.uint8), iter(range(3))
    raw = device.new_graph()
    raw.add_kernel("race", lambda _, y: y.fill_(next(numbers)), (y,))
    executable = device.instantiate(raw)
    mismatch = Verifier(SimulatedGraphMemory(device)).compare(raw, *[lambda: device.launch(executable)] * 2)
    assert mismatch is not None
    assert mismatch.differing_bytes == 1
    assert mismatch.where.endswith(
        "in 1 of them its own executable does not repeat its bytes either: the graph is not deterministic"
    )
    assert y.tolist() == [1]


def test_many_regions_are_told_in_part() -> None:
    device = SimulatedDevice(1 << 20)
    tensors = [torch.zeros(1, dtype=torch.uint8) for _ in range(6)]
    raw, wrong = device.new_graph(), device.new_graph()
    for graph, value in ((raw, 1), (wrong, 2)):
        for tensor in tensors:
            graph.add_node("memset", target=tensor, value=value)
    one, two = device.instantiate(raw), device.instantiate(wrong)
    mismatch = Verifier(SimulatedGraphMemory(device)).compare(raw, lambda: device.launch(one), lambda: device.launch(two))
    assert mismatch is not None
    assert mismatch.where.startswith("6 bytes differ in 6 regions (1 of 1 at 0x")
    assert mismatch.where.endswith(" and 2 more); the shared executable changed 6")
    assert [int(each) for each in tensors] == [1] * 6
