"""An updated executable is made anew for a graph that is replayed in a row: it would run longer on a GPU than a new one."""

from __future__ import annotations

from typing import Any

import pytest

from graphdedup import DriverError, FoldPolicy, SettingsError, snapshot
from seam.simulated import Stream
from seam.simulated import stream as on_stream
from tests.unit.fold.bench import Bench


def made(bench: Bench) -> int:
    return bench.device.instantiation_count


def test_a_steady_graph_gets_a_new_executable_after_so_many_replays_in_a_row() -> None:
    bench = Bench(refresh_after=3)
    first, second = bench.fold(1), bench.fold(2)  # the executable was updated with the second when that joined
    assert made(bench) == 1
    bench.check(first, first, first)
    assert (made(bench), bench.registry.counters.refreshes) == (1, 0)
    bench.check(first)
    assert (made(bench), bench.registry.counters.refreshes) == (2, 1)
    assert bench.execs == bench.device.live_exec_count == 1, "the old one is gone"
    bench.check(*[first] * 10)
    assert made(bench) == 2, "a new one stays as it is"
    bench.check(second, second, first, first)
    assert made(bench) == 2, "an update begins the count again"
    bench.check(*[second] * 4)
    assert (made(bench), bench.registry.counters.refreshes) == (3, 2)
    bench.check(first, second, first)
    assert snapshot.stats(bench.registry).refreshes == snapshot.footprint(bench.registry).refreshes == 2


def test_an_executable_that_was_never_updated_is_not_made_anew() -> None:
    bench = Bench(refresh_after=1)
    member = bench.fold(1)
    bench.check(*[member] * 5)
    assert (made(bench), bench.registry.counters.refreshes) == (1, 0)


def test_without_the_policy_nothing_is_made_anew() -> None:
    bench = Bench()
    first, _ = bench.fold(1), bench.fold(2)
    bench.check(*[first] * 200)
    assert (made(bench), bench.registry.counters.refreshes) == (1, 0)


def test_graphs_in_turn_are_never_worth_a_new_executable() -> None:
    bench = Bench(refresh_after=2)
    members = [bench.fold(value) for value in (1, 2)]
    bench.check(*members * 10)
    assert made(bench) == 1


def test_where_there_is_no_room_the_old_executable_serves_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """And it is not tried again at every replay: only after another update."""
    bench = Bench(refresh_after=2)
    first, second = bench.fold(1), bench.fold(2)
    tried: list[Any] = []

    def instantiate(raw: Any) -> Any:
        tried.append(raw)
        raise DriverError("out of memory", remedy="none")

    monkeypatch.setattr(bench.driver, "instantiate", instantiate)
    bench.check(*[first] * 8)
    assert len(tried) == 1
    bench.check(*[second] * 8)
    assert len(tried) == 2
    assert (bench.execs, bench.registry.counters.refreshes) == (1, 0)
    assert bench.registry.alone.counts["no new executable for a steady graph: out of memory"] == 2
    monkeypatch.undo()
    bench.check(first, *[second] * 4)
    assert bench.registry.counters.refreshes == 1


def test_the_last_launch_has_ended_before_the_old_executable_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(refresh_after=1)
    first, _ = bench.fold(1), bench.fold(2)
    calls: list[str] = []
    for name in ("instantiate", "finish", "destroy", "launch"):
        call = getattr(bench.driver, name)
        monkeypatch.setattr(bench.driver, name, lambda *given, name=name, call=call: (calls.append(f"{name}"), call(*given))[1])
    bench.check(first, first)
    assert calls == ["launch", "instantiate", "finish", "destroy", "launch"]


def test_a_new_executable_serves_other_streams_and_bounds_like_the_old_one() -> None:
    bench = Bench(refresh_after=1, max_execs=1)
    members = [bench.fold(value) for value in (1, 2, 3)]
    for turn in range(3):
        with on_stream(Stream()):
            bench.check(*[members[turn]] * 3, *members)
    assert bench.execs == bench.device.live_exec_count == 1
    for member in members:
        bench.registry.release(member)
    assert bench.device.live_exec_count == 0


@pytest.mark.parametrize("value", [0, -1, "many"])
def test_the_number_is_one_or_more(value: Any) -> None:
    with pytest.raises(SettingsError, match="refresh_after"):
        FoldPolicy.parse(refresh_after=value)
