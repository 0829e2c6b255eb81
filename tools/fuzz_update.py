"""Fuzz the update of executables: families of small random graphs, folded, launched in any order, every byte compared.

For each family: every graph runs on an executable of its own, which says what is right. Then an executable of each graph is
offered each other graph, whatever the key says, and what it takes is compared with the key, and with a simulated device that
does the same. Then a registry folds the family and replays it by its schedule: every launch must have the bytes of the graph's
own executable (rules D1 to D6). An update that is taken and not right ("accepted_stale") is no failure: the fold has to avoid
it. A graph that could have folded and did not ("missed_folds") costs memory only.

Usage: python tools/fuzz_update.py [--device cuda|cpu] [--pairs N] [--seed S] [--json FILE]. Exit 0: no launch of a folded graph
had wrong bytes, and no refusal changed an executable; 1: one did, or the device failed; 2: the fuzzer cannot run here.
"""

from __future__ import annotations

import argparse
import json
import math
import struct
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as seeded
from hypothesis.errors import Flaky

if not __package__:  # as a script, which finds its own folder only
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from graphdedup.capabilities import Capabilities
from graphdedup.driver.protocol import UpdateResult, Verdict
from graphdedup.errors import DriverError
from graphdedup.group import Member
from graphdedup.policy import FoldPolicy
from graphdedup.probe.bench import Bench, NotHere
from graphdedup.probe.known import capabilities_for
from graphdedup.probe.spec import STAMP_WORDS, Arena, Child, GraphSpec, Kernel
from graphdedup.registry import Registry
from graphdedup.signature import forbids_sharing, record_bytes
from seam.backend import SegmentInfo

if TYPE_CHECKING:  # where tools is no package
    from fuzz_graphs import ARENA, PAIR_SEED, Family, families
else:
    from tools.fuzz_graphs import ARENA, PAIR_SEED, Family, families

__all__ = ["Counters", "Fuzz", "fuzz_rounds"]

_FIRST_SEED = 0
"""The launch before an update of a pair has other contents than the one after it."""
_MOST_EXAMPLES = 20
_ROUND_FAMILIES = 250
_PHASES = (Phase.generate, Phase.shrink)
_PAIRS_OF_A_FAMILY = 5
_SHRINK_SECONDS = 60


@dataclass(slots=True)
class Counters:
    """What was seen. A pair is an ordered pair of graphs of one family: an executable of the first is offered the second."""

    families: int = 0
    unbuildable: int = 0
    pairs: int = 0
    accepted_right: int = 0
    accepted_stale: int = 0
    """Taken, and the next launch did not do what the graph offered does."""
    refused: Counter[str] = field(default_factory=Counter)
    changed_by_refusal: int = 0
    equal_records: int = 0
    """Pairs that the key takes for the same."""
    equal_but_refused: int = 0
    refused_untold: int = 0
    """The same, where the graphs differ in a launch attribute that the driver does not tell, so that no key can hold it."""
    missed_folds: int = 0
    """Pairs of other records that an update carried."""
    members: int = 0
    folded: int = 0
    """Members that needed no executable of their own when they were taken in."""
    unfolded: int = 0
    passed_through: int = 0
    """Replays that the registry left to the graph's own backend."""
    replays_compared: int = 0
    wrong_bytes: int = 0
    local_memory: int = 0
    """Taken pairs of graphs with other needs of local memory: what the first launch then does is left to chance."""
    other_reason: int = 0
    """Pairs that both devices refuse, with different results: graphs that differ in several ways leave a choice."""
    disagreements: Counter[str] = field(default_factory=Counter)
    """Differences between the two devices, by kind."""
    examples: list[dict[str, str]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Update:
    """What became of an executable that was launched, offered another graph, and launched again."""

    result: UpdateResult
    after: bytes


@dataclass(slots=True)
class _Observed:
    """What one device does with a family."""

    problem: str = ""
    """Why it cannot be built here; there is nothing else then."""
    own: dict[tuple[int, int], bytes] = field(default_factory=dict)
    """The bytes of each (member, seed) on an executable of the member's own."""
    updates: dict[tuple[int, int], _Update] = field(default_factory=dict)
    records: list[bytes | None] = field(default_factory=list)
    """Record bytes of each member; None where it may not share an executable."""


class Fuzz:
    """Tries families on a bench and counts what it sees.

    Args:
        bench: where the registry folds, with the arena of the families.
        twin: a simulated bench of the same arena that has to answer the same.
        capabilities: what an update is known to carry on the bench's device.
        strict: also raise where the two benches disagree, and where the driver refused what the key takes for the same.
    """

    def __init__(self, bench: Bench, twin: Bench | None = None, *, capabilities: Capabilities, strict: bool = False) -> None:
        self.bench = bench
        self.twin = twin
        self.capabilities = capabilities
        self.strict = strict
        self.raising = True
        """Whether a failure raises, so that hypothesis looks for a smaller one; otherwise it is only counted."""
        self.failure: dict[str, str] | None = None
        """The last failure that was raised: the smallest one, once hypothesis is done."""
        self.counters = Counters()
        told = {row.name: row.readable for row in capabilities.attributes}
        self._untold = tuple(name for name, readable in told.items() if readable is False)

    def try_family(self, family: Family) -> None:
        """Everything that there is to try with one family. Nothing of it is left afterwards.

        Raises:
            AssertionError: a folded graph had wrong bytes, or a refusal changed an executable; when strict, also what else
                should not be.
        """
        self.counters.families += 1
        seen = self._observe(self.bench, family)
        if self.twin is not None:
            self._compare(family, seen, self._observe(self.twin, family))
        if seen.problem:
            self.counters.unbuildable += 1
            return
        for pair, update in seen.updates.items():
            self._judge(family, seen, pair, update)
        self._fold(family, seen)

    # What a device does

    def _observe(self, bench: Bench, family: Family) -> _Observed:
        seen = _Observed()
        raws: list[Any] = []
        executables: list[Any] = []
        try:
            for spec in family.specs:
                raws.append(bench.build(spec))
                executables.append(bench.instantiate(raws[-1]))
            # All of them run before any update, so that the device has made room for their local memory.
            pair_launches = [(member, PAIR_SEED) for member in range(len(raws))]
            for member, seed in dict.fromkeys((*pair_launches, *family.schedule)):
                seen.own[member, seed] = _shown(partial(bench.run, executables[member], seed))
            while executables:  # a graph with memory nodes has one executable at a time
                bench.destroy(executables.pop())
            flags = bench.driver.instantiate_flags
            for raw in raws:
                record = bench.driver.walk(raw, self.capabilities.reads(flags))
                alone = record.pass_through or forbids_sharing(record)
                packed = record_bytes(record, bench.driver.identity, flags, self.capabilities)
                seen.records.append(None if alone else packed)
            for one, first in enumerate(raws):
                for other, second in enumerate(raws):
                    if one != other:
                        seen.updates[one, other] = _updated(bench, first, second)
        except NotHere as problem:
            return _Observed(problem=str(problem))
        finally:
            for executable in executables:
                bench.destroy(executable)
            for raw in raws:
                bench.discard(raw)
        return seen

    # What it means

    def _compare(self, family: Family, seen: _Observed, twin: _Observed) -> None:
        """The twin answers as the bench does."""
        if bool(seen.problem) != bool(twin.problem):
            what = f"bench: {seen.problem or 'it can be built'}; twin: {twin.problem or 'it can be built'}"
            self._disagree("buildable", what, family, 0, len(family.specs) - 1)
            return
        for (member, seed), shown in seen.own.items():
            if shown != twin.own[member, seed]:
                what = f"own executable, seed {seed}: {_difference(self.bench.arena, twin.own[member, seed], shown)}"
                self._disagree("own bytes", what, family, member, member)
                return  # what follows from it says no more
        for (one, other), update in seen.updates.items():
            answer = twin.updates[one, other]
            if update.result.accepted != answer.result.accepted:
                what = f"bench: {_told(update.result)}; twin: {_told(answer.result)}"
                self._disagree("verdict", what, family, one, other)
            elif update.result.accepted and _needs(family.specs[one]) != _needs(family.specs[other]):
                self.counters.local_memory += 1
            elif update.after != answer.after:
                what = f"{_told(update.result)}; the twin shows: {_difference(self.bench.arena, answer.after, update.after)}"
                self._disagree("bytes after update", what, family, one, other)
            elif update.result.verdict is not answer.result.verdict:
                self.counters.other_reason += 1

    def _judge(self, family: Family, seen: _Observed, pair: tuple[int, int], update: _Update) -> None:
        """An update of one pair: was it right, and did the key know."""
        counters, (one, other) = self.counters, pair
        counters.pairs += 1
        right = update.after == seen.own[other, PAIR_SEED]
        equal = seen.records[one] is not None and seen.records[one] == seen.records[other]
        counters.equal_records += equal
        if update.result.accepted:
            counters.accepted_right += right
            counters.accepted_stale += not right
            counters.missed_folds += right and not equal
            return
        counters.refused[str(update.result.verdict)] += 1
        if update.after != seen.own[one, PAIR_SEED]:
            counters.changed_by_refusal += 1
            what = f"{_told(update.result)}; {_difference(self.bench.arena, update.after, seen.own[one, PAIR_SEED])}"
            self._fail("a refusal changed the executable", what, family, one, other)
        if equal and self._values_untold(family.specs[one]) != self._values_untold(family.specs[other]):
            counters.refused_untold += 1
        elif equal:
            counters.equal_but_refused += 1
            self._note("equal_but_refused", _told(update.result), family, one, other)

    def _values_untold(self, spec: GraphSpec) -> list[Any]:
        """The attributes of a graph's kernels that the driver does not tell."""
        found: list[Any] = []
        for node in spec.nodes:
            if isinstance(node, Child):
                found.append(self._values_untold(node.graph))
            elif isinstance(node, Kernel):
                found.append([node.attributes.get(name) for name in self._untold])
        return found

    def _fold(self, family: Family, seen: _Observed) -> None:
        """A registry takes the family in and replays it by its schedule."""
        counters = self.counters
        registry = Registry(self.bench.driver, FoldPolicy(draws_vouched=True), capabilities=self.capabilities)
        raws: list[Any] = []
        members: list[Member] = []
        try:
            for index, spec in enumerate(family.specs):
                raws.append(self.bench.build(spec))
                members.append(registry.fold(raws[-1], SegmentInfo(0, f"member {index}")))
            counters.members += len(members)
            counters.folded += sum(member.group is not None for member in members) - registry.exec_count
            before = 0
            for step, (index, seed) in enumerate(family.schedule):
                ran, shown = self._replayed(registry, members[index], seed)
                if not ran:
                    counters.passed_through += 1
                    continue
                counters.replays_compared += 1
                if shown != seen.own[index, seed]:
                    counters.wrong_bytes += 1
                    difference = _difference(self.bench.arena, shown, seen.own[index, seed])
                    what = f"launch {step} of the schedule, member {index} with seed {seed}: {difference}"
                    self._fail("wrong bytes", what, family, before, index)
                before = index
        finally:
            counters.unfolded += registry.counters.unfolded
            for member in list(registry.members.values()):
                registry.release(member)
            for raw in raws:
                self.bench.discard(raw)

    def _replayed(self, registry: Registry, member: Member, seed: int) -> tuple[bool, bytes]:
        """Whether the registry replayed a member, and the bytes."""
        answers: list[bool] = []
        shown = _shown(lambda: self.bench.run_by(lambda: answers.append(registry.replay(member)), seed))
        return answers != [False], shown

    # Saying so

    def _fail(self, kind: str, what: str, family: Family, one: int, other: int) -> None:
        example = _example(kind, what, family, one, other) | {"family": repr(family)}
        if not self.raising:
            self._keep(example)
            return
        self.failure = example
        raise AssertionError(f"{kind}: {what}")

    def _disagree(self, kind: str, what: str, family: Family, one: int, other: int) -> None:
        self.counters.disagreements[kind] += 1
        self._note(kind, what, family, one, other)

    def _note(self, kind: str, what: str, family: Family, one: int, other: int) -> None:
        """Keep an example of what is a failure only when strict."""
        self._keep(_example(kind, what, family, one, other))
        if self.strict:
            raise AssertionError(f"{kind}: {what}")

    def _keep(self, example: dict[str, str]) -> None:
        if len(self.counters.examples) < _MOST_EXAMPLES:
            self.counters.examples.append(example)


def _needs(spec: GraphSpec) -> list[Any]:
    """Which nodes need local memory."""
    return [_needs(node.graph) if isinstance(node, Child) else getattr(node, "function", "") == "deep" for node in spec.nodes]


def _updated(bench: Bench, first: Any, second: Any) -> _Update:
    """An executable of the first graph, launched, offered the second, launched. Nothing else runs in between."""
    executable = bench.instantiate(first)
    try:
        _shown(lambda: bench.run(executable, _FIRST_SEED))
        try:
            result = bench.update(executable, second)
        except DriverError as problem:
            result = UpdateResult(Verdict.ERROR, detail=problem.problem)
        return _Update(result, _shown(lambda: bench.run(executable, PAIR_SEED)))
    finally:
        bench.destroy(executable)


def _shown(run: Callable[[], bytes]) -> bytes:
    """What a launch leaves behind, or why there was none: that is not what it should show either."""
    try:
        return run()
    except DriverError as problem:
        return f"the launch failed: {problem.problem}".encode()


def _told(result: UpdateResult) -> str:
    node = "" if result.node is None else f" at node {result.node}"
    return f"{result.verdict}{node}" + (f" ({result.detail})" if result.detail else "")


def _example(kind: str, what: str, family: Family, one: int, other: int) -> dict[str, str]:
    return {"kind": kind, "what": what, "first": repr(family.specs[one]), "second": repr(family.specs[other])}


def _difference(arena: Arena, shown: bytes, wanted: bytes) -> str:
    """Where two arenas differ, in words."""
    if len(shown) != len(wanted):
        return " against ".join(side.decode(errors="replace") for side in (shown, wanted) if len(side) < 1024)
    places: dict[str, str] = {}
    stamps = arena.buffer_count * arena.buffer_bytes
    hosts = stamps + 4 * STAMP_WORDS * arena.stamp_count
    counts = hosts + arena.host_buffer_count * arena.buffer_bytes
    for at in (at for at, (one, other) in enumerate(zip(shown, wanted, strict=True)) if one != other):
        if at < stamps:
            places.setdefault(f"buffer {at // arena.buffer_bytes}", f" from byte {at % arena.buffer_bytes}")
        elif at < hosts:
            stamp, word = divmod((at - stamps) // 4, STAMP_WORDS)
            values = [struct.unpack_from("<I", side, stamps + 4 * (stamp * STAMP_WORDS + word))[0] for side in (shown, wanted)]
            places[f"stamp {stamp} word {word}"] = f" is {values[0]}, not {values[1]}"
        elif at < counts:
            places.setdefault(
                f"host buffer {(at - hosts) // arena.buffer_bytes}", f" from byte {(at - hosts) % arena.buffer_bytes}"
            )
        else:
            places[f"counter {at - counts}"] = f" is {shown[at]}, not {wanted[at]}"
    return "; ".join(name + value for name, value in places.items()) or "nothing"


# The command


def fuzz_rounds(fuzz: Fuzz, *, pairs: int, number: int) -> int:
    """Rounds of drawn families, of the seeds ``number``, ``number + 1``, ..., until so many pairs were tried.

    Returns:
        How many rounds it took. A round that fails ends with the smallest failure that hypothesis found; the ones after it
        only count.
    """
    rounds, done = 0, -1
    while done < fuzz.counters.pairs < pairs:
        done = fuzz.counters.pairs
        try:
            _round(fuzz, number + rounds, min(_ROUND_FAMILIES, -(-(pairs - done) // _PAIRS_OF_A_FAMILY)))
        except (AssertionError, Flaky) as error:
            print(f"round {rounds} failed: {error}", file=sys.stderr)
            fuzz.raising = fuzz.strict = False
        rounds += 1
    return rounds


def _round(fuzz: Fuzz, number: int, families_count: int) -> None:
    failed: dict[Family, Exception] = {}
    until = math.inf
    counters = fuzz.counters

    @seeded(number)
    @settings(
        max_examples=families_count,
        database=None,
        deadline=None,
        phases=_PHASES,
        suppress_health_check=list(HealthCheck),
        print_blob=False,
        report_multiple_bugs=False,
    )
    @given(families())
    def attempt(family: Family) -> None:
        nonlocal until
        if time.monotonic() > until:  # enough shrinking: what failed before fails again, and nothing new is tried
            if family in failed:
                raise failed[family]
            return
        try:
            fuzz.try_family(family)
        except Exception as error:
            failed[family] = error
            until = min(until, time.monotonic() + (_SHRINK_SECONDS if isinstance(error, AssertionError) else 0))
            fuzz.counters = Counters()  # what shrinking does is not counted
            raise

    try:
        attempt()
    finally:
        fuzz.counters = counters


def _benches(device: str) -> tuple[Bench, Bench | None]:
    """The bench, and its twin where it is no simulated one.

    Raises:
        NotHere: there is no such device here, or no NVRTC.
        DriverError: the bindings of the driver are missing or too old.
    """
    from graphdedup.probe.bench_simulated import SimulatedBench

    if device == "cpu":
        return SimulatedBench(arena=ARENA), None
    if not torch.cuda.is_available():
        raise NotHere("torch sees no CUDA device")
    from graphdedup.probe.bench_cuda import CudaBench

    return CudaBench(arena=ARENA), SimulatedBench(arena=ARENA)


def _result(fuzz: Fuzz) -> dict[str, Any]:
    counters = fuzz.counters
    counts = {name: getattr(counters, name) for name in Counters.__slots__ if name != "examples"}
    examples = [*([fuzz.failure] if fuzz.failure else []), *counters.examples][:_MOST_EXAMPLES]
    return counts | {"examples": examples}


def main() -> int:
    """Run the fuzzer and print its table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    default = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", choices=("cuda", "cpu"), default=default, help="default: cuda where there is one")
    parser.add_argument("--pairs", type=int, default=5000, help="ordered pairs of graphs to try (default: 5000)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the first round (default: 1)")
    parser.add_argument("--json", type=Path, help="also write the result here")
    arguments = parser.parse_args()
    try:
        bench, twin = _benches(arguments.device)
    except (NotHere, DriverError, ImportError) as problem:
        print(f"fuzz_update: cannot run here: {problem}", file=sys.stderr)
        return 2
    began, stopped = time.perf_counter(), ""
    fuzz = Fuzz(bench, twin, capabilities=capabilities_for(bench.driver))
    rounds = 0
    try:
        rounds = fuzz_rounds(fuzz, pairs=arguments.pairs, number=arguments.seed)
        if fuzz.counters.pairs < arguments.pairs:
            stopped = "in a whole round no graph could be built"
        bench.close()
    except Exception as error:  # a device that no longer answers; what was seen until then is told
        stopped = f"{type(error).__name__}: {error}"
    counts = _result(fuzz)
    result = {
        "command": f"python tools/fuzz_update.py --device {arguments.device} --pairs {arguments.pairs} --seed {arguments.seed}",
        "device": bench.driver.identity.name,
        "driver_version": bench.driver.identity.driver_version,
        "torch_version": torch.__version__,
        "seed": arguments.seed,
        "rounds": rounds,
        **counts,
        "stopped": stopped,
        "seconds": round(time.perf_counter() - began, 1),
    }
    for name, value in result.items():
        if name not in ("command", "examples"):
            shown = ", ".join(f"{key}: {count}" for key, count in value.items()) or "none" if isinstance(value, dict) else value
            print(f"{name:<20}{shown}")
    for example in counts["examples"][:3]:
        print("\n" + "\n".join(f"{name}: {value}" for name, value in example.items()))
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=2) + "\n")
    return 1 if stopped or fuzz.counters.wrong_bytes or fuzz.counters.changed_by_refusal else 0


if __name__ == "__main__":
    sys.exit(main())
