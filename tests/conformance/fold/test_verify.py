"""The verify switch: each graph's first replays also run on an executable of its own; a mismatch never reaches the caller."""

from __future__ import annotations

import dataclasses
import logging
from typing import Any

import pytest
import torch

import seam
from graphdedup import DedupBackend, DriverError, Verify


class Pair:
    """(x + addend) * 3 for two sizes, on one executable; a cache outside of the pool is written as well."""

    def __init__(self, dedup: DedupBackend, device: str) -> None:
        self.dedup = dedup
        self.cache = torch.zeros(8, device=device)
        self.runs = []
        pool = dedup.new_pool()
        for size in (8, 4):
            x = torch.zeros(size, device=device)
            graph = seam.BreakableGraph(dedup, label=f"size {size}")
            with seam.capture(graph, pool=pool):
                y = (x + size) * 3
                self.cache[:size].add_(1)
            self.runs.append((graph, x, y, size))
        assert dedup.stats().execs == 1

    def check(self, rounds: int = 3) -> None:
        """Every replay is right, and counts once in the cache."""
        for number in range(rounds):
            for graph, x, y, size in self.runs[:: 1 if number % 2 else -1]:
                before = self.cache.clone()
                x.fill_(number)
                y.fill_(-1)
                graph.replay()
                assert y.tolist() == [(number + size) * 3] * size
                before[:size] += 1
                assert torch.equal(self.cache, before)
                assert x.tolist() == [number] * size

    def close(self) -> None:
        for graph, *_ in self.runs:
            graph.close()


def test_the_first_replays_of_each_graph_are_compared_and_no_other(backend: seam.GraphBackend, device: str) -> None:
    dedup = DedupBackend(backend, enabled=True, verify=Verify(replays=2))
    pair = Pair(dedup, device)
    pair.check(rounds=4)
    assert (dedup.stats().verified, dedup.stats().mismatches, dedup.stats().unfolded) == (4, 0, 0)
    assert dedup.stats().execs == 1, "the executables of their own are gone"
    pair.close()


def test_the_environment_switches_it_on(backend: seam.GraphBackend, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAPHDEDUP_VERIFY", "1")
    dedup = DedupBackend(backend, enabled=True)
    pair = Pair(dedup, device)
    pair.check(rounds=4)
    assert dedup.stats().verified == 6
    off = DedupBackend(backend, enabled=True, verify=False)
    assert off._verifier is None
    pair.close()


@pytest.mark.parametrize("fails", ["launches another graph", "launches nothing", "raises"])
def test_a_wrong_replay_is_unfolded_and_the_caller_gets_the_right_bytes(
    fails: str, backend: seam.GraphBackend, device: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """D6: the driver says that it took an update, and did not; or it launches nothing; or it fails."""
    dedup = DedupBackend(backend, enabled=True, verify=True)
    assert dedup.registry is not None
    driver, registry = dedup.registry.driver, dedup.registry
    pair = Pair(dedup, device)
    shared = registry.groups()[0].executables[0].handle
    update, launch = driver.update, driver.launch

    def lying(executable: Any, raw: Any) -> Any:
        return dataclasses.replace(update(shared, pair.runs[1][0].segments[0].member.raw)) if executable is shared else None

    def failing(executable: Any, prologue: Any = None) -> None:
        if executable is not shared:
            launch(executable, prologue)
        elif fails == "raises":
            raise RuntimeError("the device is unwell")

    if fails == "launches another graph":
        monkeypatch.setattr(driver, "update", lying)
    else:
        monkeypatch.setattr(driver, "launch", failing)
    with caplog.at_level(logging.WARNING, logger="graphdedup"):
        pair.check(rounds=1)
        monkeypatch.undo()
        pair.check(rounds=3)
    stats = dedup.stats()
    lost = 1 if fails == "launches another graph" else 2
    assert (stats.mismatches, stats.unfolded) == (lost, lost)
    assert stats.unfolded_by_reason == {"it wrote other bytes than on an executable of its own": lost}
    assert sum("un-folded at replay: verify: " in record.getMessage() for record in caplog.records) == lost
    (row,) = dedup.report().unfoldings
    assert row.count == lost
    assert "verify: " in row.example
    pair.close()
    assert dedup.stats().execs == 0


def test_fresh_inputs_repeat_each_comparison_and_leave_no_trace(backend: seam.GraphBackend, device: str) -> None:
    calls: list[int] = []
    pairs: list[Pair] = []

    def fresh_inputs() -> None:
        calls.append(1)
        for _, x, *_ in pairs[0].runs:
            x.fill_(100 + len(calls))

    dedup = DedupBackend(backend, enabled=True, verify=Verify(replays=2, fresh_inputs=fresh_inputs))
    pairs.append(Pair(dedup, device))
    pairs[0].check()
    assert len(calls) == 4
    assert (dedup.stats().verified, dedup.stats().mismatches) == (4, 0)
    pairs[0].close()


def test_a_graph_that_draws_is_compared_on_the_same_numbers(backend: seam.GraphBackend, device: str) -> None:
    """D12: and the generator advances once."""
    sequences = []
    for which in (backend, DedupBackend(backend, enabled=True, verify=True)):
        x = torch.ones(64, device=device)
        graph = seam.BreakableGraph(which)
        with seam.capture(graph):
            y = torch.nn.functional.dropout(x, 0.5) + torch.rand_like(x)
        torch.manual_seed(4)
        seen = []
        for _ in range(5):
            graph.replay()
            seen += [y.clone(), torch.rand(3, device=device)]
        sequences.append(seen)
        if isinstance(which, DedupBackend):
            assert (which.stats().verified, which.stats().mismatches) == (3, 0)
        graph.close()
    assert all(torch.equal(ours, torchs) for ours, torchs in zip(*sequences, strict=True))


def test_without_an_executable_of_its_own_a_graph_is_replayed_and_not_compared(
    backend: seam.GraphBackend, device: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """There is no room for one: each replay is right, and said not to be verified."""
    dedup = DedupBackend(backend, enabled=True, verify=Verify(replays=2))
    assert dedup.registry is not None
    pair = Pair(dedup, device)

    def failing(raw: Any) -> Any:
        raise DriverError("out of memory", remedy="none")

    monkeypatch.setattr(dedup.registry.driver, "instantiate", failing)
    with caplog.at_level(logging.WARNING, logger="graphdedup"):
        pair.check()
    assert (dedup.stats().verified, dedup.stats().mismatches, dedup.stats().unfolded) == (0, 0, 0)
    assert [record.getMessage() for record in caplog.records][:1] == ["size 4 segment 0 cannot be verified: out of memory"]
    assert len(caplog.records) == 4
    pair.close()
