"""Asking one question of one device, and what the answer means."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Any

from graphdedup.capabilities import Outcome
from graphdedup.driver.protocol import UpdateResult
from graphdedup.errors import DriverError
from graphdedup.probe.bench import Bench, NotHere
from graphdedup.probe.questions import Question
from graphdedup.probe.spec import STAMP_WORDS, GraphSpec

__all__ = ["SEEDS", "Answer", "ask"]

SEEDS = (1, 2, 3)
"""Contents of the arena: each executable is launched with all of them, in changing order."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What one device answered. ``after`` has the bytes of the launches after the update, a launch for each seed."""

    outcome: Outcome
    result: UpdateResult | None = None
    detail: str = ""
    after: tuple[bytes, ...] = field(default=(), repr=False)

    @property
    def verdict(self) -> str:
        """The update's verdict by name; empty when it was not tried."""
        return "" if self.result is None else str(self.result.verdict)


def ask(bench: Bench, question: Question) -> Answer:
    """Launch an executable of the first graph, offer it the second, launch again. Everything made is freed.

    Between the two launches nothing else runs on the device: on an H200 a kernel outside of graphs changes the answer. The
    second graph is built after the first ran, so that a module which it alone needs is loaded later, and what it computes on
    an executable of its own is found out last.
    """
    graphs: list[Any] = []
    executables: list[Any] = []

    def make(spec: GraphSpec) -> Any:
        graphs.append(bench.build(spec))
        return graphs[-1]

    def instantiate(graph: Any) -> Any:
        executables.append(bench.instantiate(graph, question.flags))
        return executables[-1]

    try:
        first = instantiate(make(question.first))
        look = _crowd if question.crowd else _runs
        before = look(bench, first)
        second = make(question.second)
        result = bench.update(first, second)
        after = look(bench, first, bare=question.bare)
        wanted = look(bench, instantiate(second)) if result.accepted or question.crowd else ()
    except (NotHere, DriverError) as problem:
        return Answer(Outcome.UNKNOWN, detail=str(problem))
    finally:
        for executable in executables:
            bench.destroy(executable)
        for graph in graphs:
            bench.discard(graph)
    if question.crowd:
        return _judge_crowd(result, before[0], after[0], wanted[0])
    if not result.accepted:
        return Answer(Outcome.REFUSED if after == before else Outcome.BROKEN, result, result.detail, after)
    if after != wanted:
        return Answer(Outcome.STALE, result, "" if after != before else "the launch shows the old value", after)
    shown = before != wanted and (not question.watch or _watched(bench, question, before) != _watched(bench, question, wanted))
    return Answer(Outcome.CARRIED if shown else Outcome.UNOBSERVED, result, after=after)


def _runs(bench: Bench, executable: Any, *, bare: bool = False) -> tuple[Any, ...]:
    return tuple(bench.run(executable, seed, bare=bare) for seed in SEEDS)


def _crowd(bench: Bench, executable: Any, *, bare: bool = False) -> tuple[Any, ...]:
    """The most blocks that one multiprocessor held at once, in three launches."""
    seen = []
    for seed in SEEDS:
        bench.run(executable, seed, bare=bare)
        seen.append(bench.stamp(0)[13])
    return (max(seen),)


def _watched(bench: Bench, question: Question, runs: tuple[bytes, ...]) -> list[int]:
    start = bench.arena.buffer_count * bench.arena.buffer_bytes
    stamp = struct.unpack_from(f"<{STAMP_WORDS}I", runs[0], start)
    return [stamp[word] for word in question.watch]


def _judge_crowd(result: UpdateResult, before: int, after: int, wanted: int) -> Answer:
    detail = f"blocks at once: {before} before, {after} after, {wanted} for an executable of its own"
    if not result.accepted:
        return Answer(Outcome.REFUSED if 2 * abs(after - before) <= abs(after - wanted) else Outcome.BROKEN, result, detail)
    if 4 * abs(before - wanted) <= before + wanted:
        return Answer(Outcome.UNOBSERVED, result, detail)
    carried = abs(after - wanted) < abs(after - before)
    return Answer(Outcome.CARRIED if carried else Outcome.STALE, result, detail)
