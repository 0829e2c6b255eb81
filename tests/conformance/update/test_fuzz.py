"""Families of random graphs: the fold is exact on every driver, and the fuzzer would notice if it were not."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from graphdedup.driver.protocol import UpdateResult, Verdict
from graphdedup.probe.bench import Bench, NotHere
from graphdedup.probe.bench_simulated import SimulatedBench
from graphdedup.probe.known import probe_in_child, probe_profile
from graphdedup.probe.spec import (
    FUNCTIONS,
    PLAIN_EDGE,
    PROGRAMMATIC_EDGE,
    Child,
    Empty,
    EventRecord,
    GraphSpec,
    Host,
    Kernel,
    MemAlloc,
    Memcpy,
    Memset,
    NodeSpec,
    line,
)
from seam.simulated import DriverProfile, SimulatedDevice, SimulatedExec, SimulatedGraph
from seam.simulated.program import Program
from tools import fuzz_update
from tools.fuzz_graphs import ARENA, PAIR_SEED, Family, Style, families, settled
from tools.fuzz_update import Fuzz, fuzz_rounds

WHOLE_CLUSTERS: dict[str, Any] = {
    "carries_cluster_alone": "carried",
    "freezes_clusters": False,
    "carries_unset_cluster": "carried",
}
PREFERRED: dict[str, Any] = {"uses_preferred_cluster": True, "carries_attributes": {"preferred_cluster": "stale"}}


def simulated(**profile: Any) -> SimulatedBench:
    return SimulatedBench(SimulatedDevice(16 << 20, profile=DriverProfile(**profile)), ARENA)


def fuzz_of(bench: SimulatedBench | None = None, *, strict: bool = True, twin: Bench | None = None) -> Fuzz:
    bench = bench or simulated()
    plain = replace(bench.device.profile, refuse_nth_update=None, refuse_pairs=None)  # one measurement for all of them
    return Fuzz(bench, twin, capabilities=probe_profile(plain), strict=strict)


def each(strategy: st.SearchStrategy[Family], count: int, look: Callable[[Family], None]) -> None:
    """The same families in every run."""

    @settings(
        max_examples=count,
        derandomize=True,
        database=None,
        deadline=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def attempt(family: Family) -> None:
        look(family)

    attempt()


def family_of(*specs: GraphSpec) -> Family:
    """Three launches of each, in turn."""
    return Family(specs, tuple((member, 2 + lap) for lap in range(3) for member in range(len(specs))))


def kernels(spec: GraphSpec) -> Iterator[Kernel]:
    return (node for node in leaves(spec.nodes) if isinstance(node, Kernel))


def leaves(nodes: tuple[NodeSpec, ...]) -> Iterator[NodeSpec]:
    for node in nodes:
        yield from leaves(node.graph.nodes) if isinstance(node, Child) else (node,)


# What is drawn


def places_written(node: NodeSpec) -> set[tuple[str, int]]:
    match node:
        case Kernel():
            return {("buffer", node.target), ("stamp", node.stamp)}
        case Memcpy(direction="d2h"):
            return {("host", node.target)}
        case Memcpy() | Memset():
            return {("buffer", node.target)}
        case Host():
            return {("counter", node.counter)}
        case Child():
            return set().union(*map(places_written, node.graph.nodes))
    return set()


def places_read(node: NodeSpec) -> set[tuple[str, int]]:
    match node:
        case Kernel() | Memcpy(direction="d2d" | "d2h"):
            return {("buffer", node.source)}
        case Memcpy():
            return {("host", node.source)}
    return set()


def check_ownership(spec: GraphSpec, above: frozenset[tuple[str, int]]) -> None:
    """By closure over the edges, not by walking them: another way than the strategy's own."""
    count = len(spec.nodes)
    before = [[False] * count for _ in range(count)]
    for source, target, _ in spec.edges:
        before[source][target] = True
    for middle, source, target in itertools.product(range(count), repeat=3):
        before[source][target] |= before[source][middle] and before[middle][target]
    for index, node in enumerate(spec.nodes):
        assert not before[index][index], "a cycle"
        ready = above.union(*(places_written(spec.nodes[at]) for at in range(count) if before[at][index]))
        if isinstance(node, Child):
            assert not any(isinstance(inner, Child) for inner in node.graph.nodes)
            check_ownership(node.graph, ready)
        else:
            assert places_read(node) <= ready, f"node {index} reads what may not be written yet"


def check_launchable(spec: GraphSpec, clusters: bool) -> None:
    for node in leaves(spec.nodes):
        if isinstance(node, Memset):
            assert node.value < 256**node.element_bytes
            row = node.width * node.element_bytes
            assert node.height == 1 or (node.pitch_bytes >= row and node.pitch_bytes % node.element_bytes == 0)
            assert 0 < node.pitch_bytes * (node.height - 1) + row <= ARENA.buffer_bytes
        elif isinstance(node, Memcpy):
            assert 0 < node.size_bytes <= ARENA.buffer_bytes
        elif isinstance(node, Kernel):
            cluster = node.attributes.get("cluster", (1, 1, 1))
            assert cluster[0] in (1, 2, 4, 8)
            assert cluster[1:] == (1, 1)
            if clusters:
                assert node.grid[0] % 8 == 0, "an executable may keep the cluster dimension of the graph before"
            assert node.grid[0] % cluster[0] == 0
            assert prod(node.block) <= 256
            assert node.shared_bytes <= {"wide": 96 << 10, "roomy": 8 << 10}.get(node.function, 16 << 10)
            assert 0 < 4 * node.words <= ARENA.buffer_bytes // 2
            if node.attributes.get("cooperative") == (1,):
                assert prod(node.grid) <= 16
                assert node.function != "paired"
                assert "cluster" not in node.attributes
            if "cluster_scheduling_policy" in node.attributes or "preferred_cluster" in node.attributes:
                assert "cluster" in node.attributes
            if node.function == "paired":
                assert "cooperative" not in node.attributes
                assert node.attributes.get("cluster", (2, 1, 1)) == (2, 1, 1)


def check_edges(spec: GraphSpec) -> None:
    assert len({edge[:2] for edge in spec.edges}) == len(spec.edges)
    for source, target, data in spec.edges:
        if data != PLAIN_EDGE:
            assert data == PROGRAMMATIC_EDGE
            for end in (spec.nodes[source], spec.nodes[target]):
                assert isinstance(end, Kernel)
                assert end.attributes.get("cooperative", (0,)) == (0,)
    for node in spec.nodes:
        if isinstance(node, Child):
            check_edges(node.graph)


def test_drawn_graphs_have_one_result_and_can_be_launched() -> None:
    """Every place has one writer, reads are of ancestors or of what nobody writes, and every launch is legal."""

    def look(family: Family) -> None:
        assert 2 <= len(family.specs) <= 4
        found = list(itertools.chain.from_iterable(kernels(spec) for spec in family.specs))
        clusters = any("cluster" in node.attributes or node.function == "paired" for node in found)
        for spec in family.specs:
            assert 1 <= len(spec.nodes) <= 8
            written = [place for node in leaves(spec.nodes) for place in places_written(node)]
            assert len(set(written)) == len(written), "two nodes write one place"
            assert not {("buffer", 0), ("host", 0)} & set(written)
            limits = {"buffer": 12, "host": 4, "counter": 4, "stamp": 16}
            assert all(0 <= place < limits[pool] for pool, place in written)
            check_ownership(spec, frozenset({("buffer", 0), ("host", 0)}))
            check_launchable(spec, clusters)
            check_edges(spec)
            assert settled(spec, Style(clusters, preferred_clusters=True)) == spec
        for member in range(len(family.specs)):
            seeds = [seed for at, seed in family.schedule if at == member]
            assert len(set(seeds)) == len(seeds) >= 3
            assert PAIR_SEED not in seeds

    each(families(preferred_clusters=True), 300, look)


def test_drawn_families_have_twins_and_everything_that_can_differ() -> None:
    """Each kind, function, attribute and edge is drawn, and pairs that are equal, that fold, and that do not."""
    seen: Counter[Any] = Counter()

    def look(family: Family) -> None:
        for one, other in itertools.combinations(family.specs, 2):
            seen["equal" if one == other else "other nodes" if len(one.nodes) != len(other.nodes) else "near"] += 1
        for spec in family.specs:
            seen["programmatic"] += any(data == PROGRAMMATIC_EDGE for _, _, data in spec.edges)
            seen["created backwards"] += any(source > target for source, target, _ in spec.edges)
            seen["join"] += any(count > 1 for count in Counter(target for _, target, _ in spec.edges).values())
            seen.update({type(node) for node in (*spec.nodes, *leaves(spec.nodes))})
            seen.update({("rows", node.height > 1, node.element_bytes) for node in spec.nodes if isinstance(node, Memset)})
            seen.update({node.direction for node in spec.nodes if isinstance(node, Memcpy)})
            for node in kernels(spec):
                seen.update({node.function, *node.attributes})

    each(families(preferred_clusters=True), 400, look)
    kinds = {Kernel, Memcpy, Memset, Host, Child, Empty, EventRecord, "d2d", "h2d", "d2h"}
    kinds |= {("rows", rows, element) for rows in (False, True) for element in (1, 2, 4)}
    attributes = {"access_policy_window", "cooperative", "cluster", "cluster_scheduling_policy", "priority"}
    attributes |= {"mem_sync_domain", "mem_sync_domain_map", "nvlink_util_centric_scheduling", "shared_memory_carveout"}
    attributes |= {"preferred_cluster"}
    shapes = {"equal", "near", "other nodes", "programmatic", "created backwards", "join"}
    expected = kinds | attributes | shapes | (set(FUNCTIONS) - {"interval", "crowd"})
    assert {thing for thing in expected if seen[thing] >= 5} == expected
    assert not seen["interval"] + seen["crowd"]
    assert seen["near"] > seen["equal"] > 20


def test_settling_repairs_only_what_is_wrong() -> None:
    """Worked out by hand: a place that two nodes write, a read of no ancestor, an attribute without its cluster."""
    spec = GraphSpec(
        (
            Kernel(target=3, source=3, stamp=0).with_attributes(cluster_scheduling_policy=(1,)),
            Memset(target=3, element_bytes=1, value=7),
            Memcpy(target=0, source=3, size_bytes=16, direction="d2h"),
            Kernel("paired", target=5, source=0, stamp=0, grid=(3, 1, 1)),
        ),
        ((0, 1, PROGRAMMATIC_EDGE), (0, 2, PLAIN_EDGE), (0, 2, PLAIN_EDGE), (0, 3, PROGRAMMATIC_EDGE)),
    )
    plain = settled(spec, Style())
    assert plain.nodes == (
        Kernel(target=3, source=0, stamp=0),
        Memset(target=1, element_bytes=1, value=7),
        Memcpy(target=1, source=3, size_bytes=16, direction="d2h"),
        Kernel("add", target=5, source=0, stamp=1, grid=(3, 1, 1)),
    )
    assert plain.edges == ((0, 1, PLAIN_EDGE), (0, 2, PLAIN_EDGE), (0, 3, PROGRAMMATIC_EDGE))
    clustered = settled(spec, Style(clusters=True))
    assert clustered.nodes[3] == Kernel("paired", target=5, source=0, stamp=1, grid=(8, 1, 1))


# The fold is exact


def every_fifth() -> Callable[[Any, Any], bool]:
    numbers = itertools.count(1)
    return lambda held, offered: next(numbers) % 5 == 0


def to_older_graphs() -> Callable[[Any, Any], bool]:
    """Refuse one way: an executable takes a graph only if it was built after the one that it holds."""
    ages: weakref.WeakKeyDictionary[SimulatedGraph, int] = weakref.WeakKeyDictionary()
    numbers = itertools.count()

    def refuse(held: SimulatedGraph | None, offered: SimulatedGraph) -> bool:
        for graph in filter(None, (held, offered)):
            ages.setdefault(graph, next(numbers))
        return held is not None and ages[held] > ages[offered]

    return refuse


def exact(bench: SimulatedBench, count: int, *, strict: bool = True, preferred: bool = False) -> fuzz_update.Counters:
    """Try so many families: no wrong bytes, nothing passed through, nothing left behind."""
    fuzz = fuzz_of(bench, strict=strict)
    each(families(preferred_clusters=preferred), count, fuzz.try_family)
    counters = fuzz.counters
    assert counters.families == count
    assert counters.pairs > 2 * count
    assert counters.replays_compared >= 6 * count
    assert not counters.wrong_bytes + counters.changed_by_refusal + counters.passed_through + counters.unbuildable
    assert counters.folded > count // 4
    assert bench.device.live_exec_count == 0
    return counters


def test_the_fold_is_exact_on_the_driver_that_was_measured() -> None:
    """D1, D3, D5: updates without the key go wrong, folded graphs never, and none with an equal key is refused."""
    counters = exact(simulated(), 150)
    assert counters.accepted_stale > 10
    assert counters.unfolded == 0
    assert counters.refused_untold > 0, "an attribute that the driver does not tell is left to the driver (D1)"
    assert set(counters.refused) == {
        "TOPOLOGY_CHANGED",
        "NODE_TYPE_CHANGED",
        "PARAMETERS_CHANGED",
        "ATTRIBUTES_CHANGED",
    }


def test_the_fold_is_exact_where_clusters_are_carried_whole() -> None:
    """D4: what is carried is not in the key, and more folds than where it is not."""
    counters = exact(simulated(**WHOLE_CLUSTERS), 50)
    assert counters.accepted_stale == 0
    assert counters.folded > exact(simulated(), 50).folded


@pytest.mark.parametrize("carries", ["stale", "refused"])
def test_the_fold_is_exact_where_functions_are_not_carried(carries: str) -> None:
    """D3: the function is in the key then, so no executable is offered another one."""
    counters = exact(simulated(carries_function=carries), 60)
    if carries == "stale":
        assert counters.accepted_stale > 20
    else:
        assert counters.refused["FUNCTION_CHANGED"] > 20
    assert counters.unfolded == 0


def test_the_fold_is_exact_where_a_hidden_attribute_counts() -> None:
    """D3: kernels whose preferred clusters cannot be read do not share, because an update drops them."""
    counters = exact(simulated(**PREFERRED), 60, preferred=True)
    assert counters.accepted_stale > 4
    assert counters.unfolded == 0


@pytest.mark.parametrize(
    "profile",
    [{"refuse_nth_update": 5}, {"refuse_pairs": every_fifth()}, {"refuse_pairs": to_older_graphs()}],
    ids=["the fifth", "every fifth", "older graphs"],
)
def test_the_fold_is_exact_where_the_driver_refuses_at_will(profile: dict[str, Any]) -> None:
    """D6: a refusal at a replay gives the graph an executable of its own, and never another graph's contents."""
    count = 60
    counters = exact(simulated(**profile), count, strict=False)
    if "refuse_pairs" in profile:
        assert counters.unfolded > count // 4
        assert counters.equal_but_refused > count // 4


def test_the_fifth_update_is_one_of_the_fold() -> None:
    """D6: two graphs that fold; the pairs have the first two updates, and a replay of the first graph has the fifth."""
    fuzz = fuzz_of(simulated(refuse_nth_update=5), strict=False)
    fuzz.try_family(family_of(line(Kernel()), line(Kernel("xor"))))
    assert (fuzz.counters.folded, fuzz.counters.unfolded, fuzz.counters.wrong_bytes) == (1, 1, 0)


# What the counters say, worked out by hand


def test_twins_fold_and_every_launch_is_compared() -> None:
    """Both ways of a pair of equal graphs are taken; one executable serves both, three launches each."""
    fuzz = fuzz_of()
    fuzz.try_family(family_of(line(Kernel(), Memset(target=2)), line(Kernel(), Memset(target=2))))
    counters = fuzz.counters
    assert (counters.families, counters.pairs, counters.accepted_right, counters.equal_records) == (1, 2, 2, 2)
    assert (counters.members, counters.folded, counters.replays_compared) == (2, 1, 6)
    assert not counters.refused
    assert not counters.examples


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        (Kernel(), Kernel("xor"), {"accepted_right": 2, "equal_records": 2, "folded": 1}),
        (
            Kernel().with_attributes(cluster=(2, 1, 1)),
            Kernel().with_attributes(cluster=(4, 1, 1)),
            {"accepted_stale": 2, "equal_records": 2},
        ),
        (
            Kernel().with_attributes(cluster=(2, 1, 1)),
            Kernel("xor"),
            {"accepted_right": 1, "accepted_stale": 1, "equal_records": 2, "folded": 1},
        ),
        (
            Kernel().with_attributes(nvlink_util_centric_scheduling=(1,)),
            Kernel(),
            {"refused": {"ATTRIBUTES_CHANGED": 2}, "equal_records": 2, "refused_untold": 2},
        ),
        (
            Kernel().with_attributes(mem_sync_domain=(1,)),
            Kernel(),
            {"accepted_right": 2, "missed_folds": 2},
        ),
        (Memcpy(), Memcpy(direction="h2d"), {"refused": {"PARAMETERS_CHANGED": 2}}),
        (Memset(value=1), Memset(value=2, width=4, element_bytes=4), {"accepted_right": 2, "equal_records": 2, "folded": 1}),
        (Kernel(), Memset(), {"refused": {"NODE_TYPE_CHANGED": 2}}),
    ],
    ids=["function", "cluster alone", "cluster and function", "untold", "unobserved", "direction", "memset", "kind"],
)
def test_each_pair_is_counted_for_what_it_is(one: NodeSpec, other: NodeSpec, expected: dict[str, Any]) -> None:
    """D1, D3: on the driver that was measured, both ways round."""
    fuzz = fuzz_of()
    fuzz.try_family(family_of(line(one), line(other)))
    names = ("accepted_right", "accepted_stale", "refused", "equal_records", "refused_untold", "missed_folds", "folded")
    seen = {name: getattr(fuzz.counters, name) for name in names}
    assert {name: value for name, value in seen.items() if value} == expected
    assert fuzz.counters.replays_compared == 6


def test_what_cannot_be_built_or_folded_is_counted_apart() -> None:
    """D11: a graph with memory nodes is passed through; one with an attribute that no launch takes is not built at all."""
    fuzz = fuzz_of()
    fuzz.try_family(family_of(line(MemAlloc(), Kernel()), line(Kernel())))
    assert (fuzz.counters.passed_through, fuzz.counters.replays_compared, fuzz.counters.folded) == (3, 3, 0)
    refused = Kernel(shared_bytes=1024).with_attributes(shared_memory_mode=(1,))
    fuzz.try_family(family_of(line(Kernel()), line(refused)))
    assert (fuzz.counters.unbuildable, fuzz.counters.families, fuzz.counters.pairs) == (1, 2, 2)
    assert fuzz.bench.device.live_exec_count == 0  # type: ignore[attr-defined]


# The fuzzer notices


def too_hopeful() -> Fuzz:
    """A registry that takes cluster dimensions for carried, on a device that keeps the old ones."""
    bench = simulated()
    return Fuzz(bench, capabilities=probe_profile(DriverProfile(**WHOLE_CLUSTERS)))


def test_wrong_bytes_of_a_fold_are_noticed() -> None:
    """D3: two cluster dimensions of one function on one executable; nothing is left behind by the failure."""
    two, four = (line(Kernel().with_attributes(cluster=(size, 1, 1))) for size in (2, 4))
    fuzz = too_hopeful()
    with pytest.raises(AssertionError, match=r"wrong bytes: launch 1 .* stamp 0 word 8 is 2, not 4"):
        fuzz.try_family(family_of(two, four))
    assert fuzz.failure is not None
    assert (fuzz.failure["first"], fuzz.failure["second"]) == (repr(two), repr(four))
    assert fuzz.bench.device.live_exec_count == 0  # type: ignore[attr-defined]
    fuzz.raising = False
    fuzz.try_family(family_of(two, four))
    assert fuzz.counters.wrong_bytes == 1 + 3
    assert [example["kind"] for example in fuzz.counters.examples] == ["wrong bytes"] * 3


def test_drawn_families_find_a_fold_that_is_wrong(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """D3: without anybody's help; the round ends with the failure, and later rounds only count."""
    monkeypatch.setattr(fuzz_update, "_PHASES", (Phase.generate,))
    fuzz = too_hopeful()
    assert fuzz_rounds(fuzz, pairs=500, number=1) > 1
    assert "round 0 failed: wrong bytes" in capsys.readouterr().err
    assert fuzz.failure is not None
    assert "cluster" in fuzz.failure["family"]
    assert fuzz.counters.wrong_bytes > 1
    assert fuzz.counters.pairs >= 500
    assert fuzz.bench.device.live_exec_count == 0  # type: ignore[attr-defined]


class Careless(SimulatedBench):
    """A device whose refusals put the refused graph into the executable."""

    def update(self, executable: SimulatedExec, raw: SimulatedGraph) -> UpdateResult:
        result = super().update(executable, raw)
        if not result.accepted:
            executable.swap(Program.of(raw), raw)
        return result


def test_a_refusal_that_changes_the_executable_is_noticed() -> None:
    """D5: also where nothing else is strict."""
    bench = Careless(arena=ARENA)
    fuzz = fuzz_of(bench, strict=False)
    with pytest.raises(AssertionError, match=r"a refusal changed the executable: PARAMETERS_CHANGED .* buffer 1 from byte"):
        fuzz.try_family(family_of(line(Memcpy()), line(Memcpy(direction="h2d"))))
    assert fuzz.counters.changed_by_refusal == 1
    assert bench.device.live_exec_count == 0


def test_a_refusal_of_what_the_key_takes_for_the_same_is_noticed() -> None:
    """D1: raised when strict, otherwise counted, with an example."""
    family = family_of(line(Kernel()), line(Kernel()))
    with pytest.raises(AssertionError, match="equal_but_refused"):
        fuzz_of(simulated(refuse_pairs=lambda held, offered: True)).try_family(family)
    fuzz = fuzz_of(simulated(refuse_pairs=lambda held, offered: True), strict=False)
    fuzz.try_family(family)
    assert fuzz.counters.equal_but_refused == 2
    assert fuzz.counters.folded == 0
    assert {example["kind"] for example in fuzz.counters.examples} == {"equal_but_refused"}


def test_a_twin_of_the_same_make_agrees() -> None:
    """Two devices that know nothing of each other."""
    fuzz = fuzz_of(twin=simulated())
    each(families(), 25, fuzz.try_family)
    assert not fuzz.counters.disagreements


def test_two_refusals_for_two_reasons_are_no_disagreement() -> None:
    """A pair that differs in several ways leaves a driver the choice of what it names; it is counted apart."""

    class Terse(SimulatedBench):
        def update(self, executable: Any, raw: Any) -> UpdateResult:
            result = super().update(executable, raw)
            return result if result.accepted else UpdateResult(Verdict.NOT_SUPPORTED)

    fuzz = fuzz_of(twin=Terse(arena=ARENA))
    fuzz.try_family(family_of(line(Kernel()), line(Memset())))
    assert fuzz.counters.other_reason == 2
    assert not fuzz.counters.disagreements


class Forgetful(SimulatedBench):
    """A device that knows no host nodes and one kernel function."""

    def build(self, spec: GraphSpec) -> SimulatedGraph:
        if any(isinstance(node, Host) for node in spec.nodes):
            raise NotHere("no host nodes here")
        nodes = (replace(node, function="xor") if isinstance(node, Kernel) else node for node in spec.nodes)
        return super().build(replace(spec, nodes=tuple(nodes)))


@pytest.mark.parametrize(
    ("twin", "second", "kind"),
    [
        (lambda: simulated(carries_function="refused"), Kernel("multiply"), "verdict"),
        (lambda: simulated(carries_function="stale"), Kernel("multiply"), "bytes after update"),
        (lambda: Forgetful(arena=ARENA), Kernel("multiply"), "own bytes"),
        (lambda: Forgetful(arena=ARENA), Host(), "buildable"),
    ],
    ids=["verdict", "bytes", "own bytes", "buildable"],
)
def test_a_twin_that_answers_otherwise_is_noticed(twin: Callable[[], SimulatedBench], second: NodeSpec, kind: str) -> None:
    """Raised when strict, otherwise counted by kind, with both answers in the example."""
    family = family_of(line(Kernel()), line(second))
    fuzz = fuzz_of(twin=twin(), strict=False)
    fuzz.try_family(family)
    assert set(fuzz.counters.disagreements) == {kind}
    assert fuzz.counters.examples[0]["kind"] == kind
    with pytest.raises(AssertionError, match=kind):
        fuzz_of(twin=twin()).try_family(family)


# The command


def test_the_command_counts_until_it_has_its_pairs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a script from anywhere, and as a module: the same seed counts the same."""
    arguments = [fuzz_update.__file__, "--device", "cpu", "--pairs", "40", "--seed", "7", "--json"]
    command = [sys.executable, *arguments, "script.json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert "wrong_bytes" in done.stdout
    monkeypatch.setattr(sys, "argv", [*arguments, str(tmp_path / "module.json")])
    assert fuzz_update.main() == 0
    first, second = (json.loads((tmp_path / name).read_text()) for name in ("script.json", "module.json"))
    assert {**first, "seconds": 0} == {**second, "seconds": 0}
    assert first["command"] == "python tools/fuzz_update.py --device cpu --pairs 40 --seed 7"
    assert first["pairs"] >= 40
    assert first["pairs"] == first["accepted_right"] + first["accepted_stale"] + sum(first["refused"].values())
    assert (first["wrong_bytes"], first["disagreements"], first["stopped"]) == (0, {}, "")


def _never(*_: Any) -> SimulatedGraph:
    raise NotHere("nothing can be built here")


def test_the_command_says_when_something_is_wrong(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit 1 for wrong bytes and for a device that fails, 2 where there is no such device."""

    def command(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["fuzz_update", *arguments])
        code = fuzz_update.main()
        told = capsys.readouterr()
        return code, told.out, told.err

    class Wrong(Fuzz):
        def try_family(self, family: Family) -> None:
            self.counters.pairs += 2
            self.counters.wrong_bytes += 1
            self._fail("wrong bytes", "of the test", family, 0, 1)

    with monkeypatch.context() as patch:
        patch.setattr(fuzz_update, "Fuzz", Wrong)
        code, out, _ = command("--device", "cpu", "--pairs", "10")
        assert code == 1
        assert "kind: wrong bytes\nwhat: of the test" in out

    def fails(*_: Any) -> UpdateResult:
        raise RuntimeError("the device is gone")

    with monkeypatch.context() as patch:
        patch.setattr(SimulatedBench, "update", fails)
        code, out, _ = command("--device", "cpu", "--pairs", "10")
        assert code == 1
        assert "RuntimeError: the device is gone" in out

    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with monkeypatch.context() as patch:
        patch.setattr(SimulatedBench, "build", _never)
        code, out, _ = command("--device", "cpu", "--pairs", "10")
        assert code == 1
        assert "no graph could be built" in out

    code, _, err = command("--device", "cuda")
    assert code == 2
    assert "cannot run here" in err


# A GPU


@pytest.mark.gpu
def test_the_fold_is_exact_on_a_gpu_and_the_simulated_device_agrees() -> None:
    """D1 to D6 on the driver that is here: no wrong bytes, and every verdict and byte as on the simulated device."""
    from graphdedup.probe.bench_cuda import CudaBench

    bench, twin = CudaBench(arena=ARENA), SimulatedBench(arena=ARENA)
    try:
        capabilities = probe_in_child(bench.driver.identity)
        assert capabilities.answers, capabilities.source
        fuzz = Fuzz(bench, twin, capabilities=capabilities)
        each(families(), 60, fuzz.try_family)
        counters = fuzz.counters
        assert counters.pairs > 120
        assert not counters.wrong_bytes + counters.changed_by_refusal
        assert not counters.disagreements, counters.examples
    finally:
        bench.close()
        twin.close()
