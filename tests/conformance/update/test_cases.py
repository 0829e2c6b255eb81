"""Cases from public bug reports, and the driver's documented rules, as far as they concern updates.

Each graph is folded through a registry, replayed at least three times in shuffled order with fresh contents of every buffer,
and compared byte for byte with an executable of its own, which is made of a second build of the graph and only afterwards:
nothing is made ready for the fold.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from graphdedup.capabilities import Capabilities, Outcome
from graphdedup.group import Member
from graphdedup.policy import FoldPolicy
from graphdedup.probe.bench import AUTO_FREE_ON_LAUNCH, USE_NODE_PRIORITY, Bench, NotHere
from graphdedup.probe.bench_simulated import SimulatedBench
from graphdedup.probe.known import probe_profile
from graphdedup.probe.questions import ARENA, branches
from graphdedup.probe.spec import (
    PLAIN_EDGE,
    PROGRAMMATIC_EDGE,
    Child,
    GraphSpec,
    Host,
    Kernel,
    MemAlloc,
    Memcpy,
    Memset,
    line,
)
from graphdedup.registry import Registry
from seam.backend import SegmentInfo
from seam.simulated import DriverProfile, SimulatedDevice

CONFLICT = "a node runs a function that a sibling runs with another cluster dimension (rule D3)"


class Fold:
    """A registry on a bench, the members in it, and what their graphs were built from."""

    def __init__(self, bench: Bench, capabilities: Capabilities) -> None:
        self.bench = bench
        self.registry = Registry(bench.driver, FoldPolicy(draws_vouched=True), capabilities=capabilities)
        self.specs: dict[int, GraphSpec] = {}
        self._seed = 100
        self._random = random.Random(7)

    def add(self, *specs: GraphSpec) -> list[Member]:
        """Fold graphs of these specs, in order."""
        members = []
        for spec in specs:
            members.append(self.registry.fold(self.bench.build(spec), SegmentInfo(0, f"graph {len(self.specs)}")))
            self.specs[members[-1].id] = spec
        return members

    def check(self, *order: Member, rounds: int = 3, alike: bool = False) -> None:
        """Replay in ``order``, or all members in shuffled orders, and compare with executables of their own.

        ``alike``: the graphs are not told apart by what they leave behind; all others have to differ, or nothing is shown.
        """
        members = [member for member in self.registry.members.values() if member.group is not None]
        seen: list[tuple[int, int, bytes]] = []
        for _ in range(1 if order else rounds):
            self._seed += 1
            for member in order or self._random.sample(members, len(members)):
                replay = partial(self.registry.replay, member)
                seen.append((member.id, self._seed, self.bench.run_by(replay, self._seed)))
        own = {
            member: self._own(self.specs[member], [seed for other, seed, _ in seen if other == member]) for member, *_ in seen
        }
        for member, seed, found in seen:
            assert found == own[member][seed], f"graph {list(self.specs).index(member)}, seed {seed}"
        last = [runs[self._seed] for runs in own.values()]
        assert alike or len(set(last)) == len(last), "these graphs cannot be told apart"

    def _own(self, spec: GraphSpec, seeds: list[int]) -> dict[int, bytes]:
        raw = self.bench.build(spec)
        executable = self.bench.instantiate(raw)
        try:
            return {seed: self.bench.run(executable, seed) for seed in seeds}
        finally:
            self.bench.destroy(executable)
            self.bench.discard(raw)

    @property
    def execs(self) -> int:
        return self.registry.exec_count

    def close(self) -> None:
        """Release what is left; the last member of each group frees the executable."""
        for member in list(self.registry.members.values()):
            raw = member.raw
            self.registry.release(member)
            self.bench.discard(raw)
        assert self.registry.exec_count == 0


@pytest.fixture
def fold(bench: Bench, capabilities: Capabilities) -> Iterator[Fold]:
    """An empty fold; what a test puts into it goes when the test ends."""
    before = bench.device.live_exec_count if isinstance(bench, SimulatedBench) else 0
    made = Fold(bench, capabilities)
    yield made
    made.close()
    assert not isinstance(bench, SimulatedBench) or bench.device.live_exec_count == before


def clustered(count: int | None, function: str = "add", **fields: Any) -> GraphSpec:
    """One kernel with clusters of ``count`` blocks; None sets no cluster dimension."""
    kernel = Kernel(function, **fields)
    return line(kernel if count is None else kernel.with_attributes(cluster=(count, 1, 1)))


def told_apart(members: list[Member]) -> bool:
    """Whether no two of them share an executable."""
    return len({id(member.group) for member in members}) == len(members)


# Attributes and clusters


def test_a_hidden_attribute_is_shared_only_where_it_shows_in_no_launch(
    fold: Fold, capabilities: Capabilities, measured: bool
) -> None:
    """D3: sglang#37657: an attribute that cannot be read forbids sharing, unless the probe saw that a launch ignores it."""
    preferring = Kernel(grid=(64, 1, 1)).with_attributes(cluster=(2, 1, 1))
    two = fold.add(*(line(preferring.with_attributes(preferred_cluster=(count, 1, 1))) for count in (4, 8)))
    fold.add(line(preferring))
    fold.check(alike=True)
    if measured:
        assert capabilities.hidden == ()
        assert two[0].group is two[1].group
    elif "preferred_cluster" in capabilities.hidden:
        assert fold.execs == 3
        assert "preferred_cluster cannot be read" in " ".join(fold.registry.alone.counts)


def test_kernels_that_compute_the_same_under_other_handles_share(fold: Fold, measured: bool) -> None:
    """D4: sglang#37657: a function is known by its handle; that of another module, or of one loaded later, is carried."""
    fold.add(*(line(Kernel(function)) for function in ("add", "elsewhere", "late", "add")))
    fold.check(alike=True)
    assert not measured or fold.execs == 1


@pytest.mark.parametrize("sizes", [(1, 2), (2, 1), (None, 2), (2, None), (4, 2)], ids=str)
def test_one_function_with_two_clusters_is_two_groups(sizes: tuple[int | None, ...], fold: Fold, measured: bool) -> None:
    """D3: mlx#2813: the driver says success and keeps the old cluster, so they are kept apart, before any update."""
    first, second = fold.add(*(clustered(size) for size in sizes))
    fold.check()
    if measured:
        assert fold.execs == 2
        assert fold.registry.alone.counts == {CONFLICT: 1}
        assert fold.registry.counters.refused == 0
    again = fold.add(*(clustered(size, constant=5) for size in reversed(sizes)))
    fold.check()
    if measured:
        assert [member.group for member in again] == [second.group, first.group]


def test_other_functions_bring_their_own_clusters_into_a_group(fold: Fold, measured: bool) -> None:
    """D3, D4: at a node where functions differ their clusters may, set or not; what conflicts founds a group of its own."""
    fold.add(clustered(2), clustered(4, "multiply"), clustered(None, "xor"), clustered(1, "mix"), clustered(8, "wide"))
    assert not measured or fold.execs == 1
    fold.check()
    conflicting, joining = fold.add(clustered(2, "multiply", constant=3), clustered(4, "multiply", constant=3))
    fold.check()
    if measured:
        assert fold.execs == 2
        assert conflicting.group is not joining.group
        assert len(joining.group.members) == 6  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "functions",
    [("add", "paired"), ("paired", "add"), ("add", "xor", "paired", "add"), ("paired", "multiply", "paired")],
    ids=" ".join,
)
def test_a_cluster_that_a_function_was_compiled_for_is_not_inherited(
    functions: tuple[str, ...], fold: Fold, measured: bool
) -> None:
    """D3: no attribute of a node tells it, and a sibling that sets none would run with it."""
    fold.add(*(line(Kernel(function, constant=place)) for place, function in enumerate(functions)))
    fold.check(rounds=4)
    assert not measured or fold.execs == 1


def test_a_compiled_cluster_and_a_set_one_of_equal_size_are_the_same(fold: Fold, measured: bool) -> None:
    """D3: and a function that is given one of another size is kept apart from itself."""
    fold.add(clustered(2, constant=3), line(Kernel("paired")), clustered(4, constant=4))
    fold.check()
    assert not measured or fold.execs == 2


def test_clusters_inside_a_child_graph_are_kept_apart(fold: Fold, measured: bool) -> None:
    """D3: no kernel of a child graph is told to say (1, 1, 1), so its clusters are in the record."""
    fold.add(*(line(Child(clustered(count, constant=place))) for place, count in enumerate((None, 2, 1, None, 2))))
    fold.check()
    assert not measured or fold.execs == 3


# Grids, refusals, reasons


@pytest.mark.parametrize("incompatible", ["another kind of node", "an attribute that is refused"])
def test_grids_share_and_what_is_incompatible_leaves_the_executable_alone(
    incompatible: str, fold: Fold, bench: Bench, measured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D4, D5, D9, D13: sglang#39176: three grids on one executable; after a refusal it still runs what it ran."""
    destroyed: list[Any] = []
    destroy = bench.driver.destroy
    monkeypatch.setattr(bench.driver, "destroy", lambda executable: (destroyed.append(executable), destroy(executable)))
    grids = fold.add(*(line(Kernel(grid=(blocks, 1, 1), constant=blocks)) for blocks in (1, 4, 16)))
    assert fold.execs == 1
    fold.check()
    fold.check(grids[2])
    updates = fold.registry.counters.updates
    hidden = Kernel().with_attributes(nvlink_util_centric_scheduling=(1,))
    (other,) = fold.add(line(Memset(value=9)) if incompatible == "another kind of node" else line(hidden))
    assert bench.last_error() in (0, None)
    if other.group is not grids[0].group:  # a driver that takes the attribute is no case of this
        fold.check(grids[2])
        assert fold.registry.counters.updates == updates
        assert fold.execs == 2
    if measured:
        refused = incompatible == "an attribute that is refused"
        assert fold.registry.counters.refused == len(other.refusals) == int(refused)
        assert fold.execs == 2
    fold.check(other, grids[0], other, grids[1], other, grids[2])
    executables = Counter(one.handle for group in fold.registry.groups() for one in group.executables)
    destroyed.clear()
    fold.close()
    assert Counter(destroyed) == executables


def test_as_many_executables_are_made_as_there_are_groups(fold: Fold, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """D1: sglang#37411: none is made only to try."""
    made: list[Any] = []
    instantiate = bench.driver.instantiate
    monkeypatch.setattr(bench.driver, "instantiate", lambda raw: (made.append(raw), instantiate(raw))[1])
    for count in range(1, 6):
        for constant in (1, 2):
            fold.add(line(*(Kernel(target=1 + place, constant=constant, stamp=place) for place in range(count))))
            assert len(made) == fold.execs == count
    fold.check()


@pytest.mark.parametrize(
    ("first", "second", "verdict", "kernel"),
    [
        (Kernel(), Memset(), "NODE_TYPE_CHANGED", ""),
        (Memcpy(direction="h2d"), Memcpy(direction="d2h"), "PARAMETERS_CHANGED", ""),
        (Kernel("mix"), Kernel("mix").with_attributes(cooperative=(1,)), "ATTRIBUTES_CHANGED", "mix"),
    ],
    ids=["kind", "parameters", "attributes"],
)
def test_a_refusal_names_the_verdict_and_the_node(
    first: Any, second: Any, verdict: str, kernel: str, bench: Bench, measured: bool
) -> None:
    """D5: xla#6667, cuda-python#1843: the reason is not lost between the driver and Python, and no error is left behind."""
    raws = [bench.build(line(Kernel(target=4, stamp=4), node)) for node in (first, second)]
    executable = bench.instantiate(raws[0])
    result = bench.update(executable, raws[1])
    assert bench.last_error() in (0, None)
    bench.destroy(executable)
    for raw in raws:
        bench.discard(raw)
    if measured:
        assert (str(result.verdict), result.node) == (verdict, 1)
        assert kernel in result.detail


def test_the_reason_of_a_refusal_is_kept_with_the_member(fold: Fold, measured: bool) -> None:
    """D5: xla#6667: verdict, node and kernel, and how often; the pair is not tried again."""
    plain = Kernel("mix", target=2, stamp=1)
    first, second = fold.add(line(Kernel(), plain), line(Kernel(), plain.with_attributes(nvlink_util_centric_scheduling=(1,))))
    fold.check(alike=True)
    if measured:
        assert (first.refusals, len(second.refusals)) == ([], 1)
        assert second.refusals[0].startswith("ATTRIBUTES_CHANGED at node 1 (mix")
        assert fold.registry.refusals.counts == {"the driver refused the update: ATTRIBUTES_CHANGED": 1}
        assert fold.registry.counters.refused == 1


def test_the_error_that_a_refusal_leaves_behind_is_consumed() -> None:
    """D13: llama.cpp: error 910 was seen again by an unrelated call."""
    bench = SimulatedBench(SimulatedDevice(16 << 20, profile=DriverProfile(sticky_last_error=True)))
    fold = Fold(bench, probe_profile(DriverProfile()))
    hidden = Kernel(constant=2).with_attributes(nvlink_util_centric_scheduling=(1,))
    fold.add(line(Kernel()), line(hidden))
    assert fold.registry.counters.refused == 1
    assert bench.last_error() == 0
    fold.check()
    fold.close()


@pytest.mark.parametrize("nth", [4, 25])
def test_an_update_that_fails_after_good_ones_unfolds_that_graph_once(nth: int, caplog: pytest.LogCaptureFixture) -> None:
    """D6: tiny-cuda-nn#206, llama.cpp#12420: counted, warned of once, never tried again; every replay is right."""
    bench = SimulatedBench(SimulatedDevice(16 << 20, profile=DriverProfile(refuse_nth_update=nth)))
    fold = Fold(bench, probe_profile(DriverProfile()))
    fold.add(*(line(Kernel(constant=constant)) for constant in (1, 2, 3)))
    assert fold.execs == 1
    for _ in range(10):
        fold.check(alike=True)
    assert (fold.execs, fold.registry.counters.unfolded, fold.registry.counters.refused) == (2, 1, 1)
    assert len([record for record in caplog.records if "un-folded" in record.getMessage()]) == 1
    fold.close()
    bench.close()
    assert bench.device.live_exec_count == 0


# Shapes


def test_a_child_graph_with_another_buffer_folds_and_one_with_another_count_does_not(fold: Fold, measured: bool) -> None:
    """D3: xla#25707: child graphs follow the rules of their nodes, recursively."""
    inner = line(Kernel(), Memset(target=2, value=1))
    elsewhere = line(Kernel(target=3, source=1), Memset(target=4, value=2))
    another = line(Kernel("xor", grid=(3, 1, 1)), Memset(target=2, value=3))
    longer = line(*inner.nodes, Memcpy(target=5))
    children = fold.add(*(line(Child(graph)) for graph in (inner, elsewhere, another, longer)))
    deeper = fold.add(*(line(Child(line(Child(graph)))) for graph in (elsewhere, inner)))
    fold.check(alike=True)
    assert told_apart([children[0], children[3], deeper[0]])
    if measured:
        assert children[0].group is children[1].group is children[2].group
        assert deeper[0].group is deeper[1].group
        assert fold.execs == 3
    assert fold.registry.counters.refused == 0


def test_a_programmatic_edge_is_a_group_of_its_own(fold: Fold) -> None:
    """D3: sglang#18596: edge data is in the record, so the driver is not even asked."""
    plain = line(Kernel(), Kernel("xor", target=2, source=1, stamp=1))
    specs = [GraphSpec(plain.nodes, ((0, 1, data),)) for data in (PLAIN_EDGE, PROGRAMMATIC_EDGE)]
    members = fold.add(*specs, *(spec.with_node(0, constant=5) for spec in specs))
    fold.check(alike=True)
    assert told_apart(members[:2])
    assert [member.group for member in members[2:]] == [member.group for member in members[:2]]
    assert fold.registry.counters.refused == 0


def test_branches_are_exact_whatever_folds(fold: Fold, bench: Bench) -> None:
    """D1, D3: created in swapped order, mirrored, joined in swapped order: nodes are never paired by position alone."""
    kinds = [
        branches(2, 3),
        branches(2, 3, swapped=True),
        branches(3, 2),
        branches(3, 2, swapped=True),
        branches(2, 3, join_swapped=True),
        branches(2, 3, swapped=True, join_swapped=True),
        branches(2, 2),
        branches(2, 2, swapped=True),
    ]
    fold.add(*kinds, *(spec.with_node(0, constant=40 + place) for place, spec in enumerate(kinds)))
    fold.check(rounds=4, alike=True)
    assert fold.execs <= len(kinds)
    assert fold.registry.counters.unfolded == 0


def test_the_record_shows_the_order_in_which_a_node_waits(bench: Bench) -> None:
    """D3: branches that are joined in swapped order are refused by the driver, and told apart before it is asked."""
    join = 6
    last = {False: (2, 5), True: (5, 2)}  # a root, two nodes of the main branch, three of the side branch
    edges = {}
    for swapped, sources in last.items():
        raw = bench.build(branches(2, 3, join_swapped=swapped))
        place = {created: told for told, created in enumerate(bench.node_order(raw))}
        record = bench.driver.walk(raw)
        edges[swapped] = [(edge.source, edge.target) for edge in record.edges]
        into_join = [edge.source for edge in record.edges if edge.target == place[join]]
        assert into_join == [place[source] for source in sources]
        bench.discard(raw)
    assert sorted(edges[False]) == sorted(edges[True])
    assert edges[False] != edges[True]


def test_branches_joined_in_swapped_order_have_executables_of_their_own(fold: Fold) -> None:
    """D3: by the record, with no refusal."""
    members = fold.add(branches(2, 3), branches(2, 3, join_swapped=True))
    fold.check(alike=True)
    assert told_apart(members)
    assert fold.registry.counters.refused == 0


# Memory


def test_graphs_with_memory_nodes_are_passed_through(fold: Fold, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """D11: CUDA.jl#1230, cubecl#1469: at most one executable may exist, so the fold makes none and tries none."""
    tried: list[str] = []
    for name in ("instantiate", "update"):
        monkeypatch.setattr(bench.driver, name, lambda *_, name=name: tried.append(name))
    members = fold.add(line(Kernel(), MemAlloc()), line(Kernel(), MemAlloc(65536)))
    with suppress(NotHere):  # not every driver takes a child graph with memory nodes
        members += fold.add(line(Kernel(), Child(line(Kernel(), MemAlloc()))))
    assert tried == []
    assert all(member.group is None and "mem_alloc (rule D11)" in member.reason for member in members)
    assert not any(fold.registry.replay(member) for member in members)
    assert fold.execs == 0


def test_device_updatable_kernels_are_passed_through(fold: Fold, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """D11: the device may change such a node behind the fold's back, and the driver takes no update of it."""
    try:
        bench.discard(bench.build(line(Kernel().with_attributes(device_updatable=(1, 0)))))
    except NotHere as problem:
        pytest.skip(str(problem))
    tried: list[str] = []
    for name in ("instantiate", "update"):
        monkeypatch.setattr(bench.driver, name, lambda *_, name=name: tried.append(name))
    members = fold.add(*(line(Kernel(constant=constant).with_attributes(device_updatable=(1, 0))) for constant in (1, 2)))
    assert tried == []
    assert all(member.group is None and "device-updatable kernel (rule D11)" in member.reason for member in members)
    assert [fold.registry.replay(member) for member in members] == [False] * 2


def test_functions_of_other_local_memory_are_kept_apart_and_exact_at_the_first_replay(fold: Fold, measured: bool) -> None:
    """D3: an update makes no room for it, and the first launch would compute garbage; of equal need they share."""
    wide = {"grid": (256, 1, 1), "block": (128, 1, 1), "words": ARENA.buffer_bytes // 4}
    members = fold.add(line(Kernel(**wide)), line(Kernel("deep", **wide)), line(Kernel("deep", constant=8, **wide)))
    fold.check(*members, *reversed(members))
    fold.check()
    assert members[0].group is not members[1].group
    assert members[1].group is members[2].group
    assert fold.execs == 2


# The driver's documented rules


def test_every_kind_of_function_shares_one_executable(fold: Fold, measured: bool) -> None:
    """D4: many registers, static and large shared memory, other modules, compiled clusters."""
    fields: dict[str, dict[str, Any]] = {"wide": {"shared_bytes": 96 << 10}, "heavy": {"block": (256, 1, 1)}}
    functions = ("add", "multiply", "xor", "mix", "wide", "elsewhere", "late", "paired", "heavy", "roomy")
    fold.add(*(line(Kernel(function, **fields.get(function, {}))) for function in functions))
    fold.check()
    assert not measured or fold.execs == 1


def test_cooperative_launch_cannot_be_switched(fold: Fold) -> None:
    """D3: it is in the record, so that neither direction is offered."""
    specs = [line(Kernel(constant=constant).with_attributes(cooperative=(on,))) for constant in (1, 2) for on in (0, 1)]
    members = fold.add(*specs)
    fold.check()
    assert told_apart(members[:2])
    assert [member.group for member in members[2:]] == [member.group for member in members[:2]]
    assert fold.registry.counters.refused == 0


def test_copies_share_by_their_direction(fold: Fold, measured: bool) -> None:
    """D3, D4: memory types are fixed; addresses and sizes are carried, with fresh contents on the host as well."""
    fold.add(
        *(
            line(Memcpy(target=1, source=source, size_bytes=size, direction=direction), Kernel(source=1, target=2))
            for direction in ("d2d", "h2d", "d2h")
            for source, size in ((0, 256), (2, 4096), (3, 16))
        )
    )
    fold.check()
    assert fold.execs >= 3
    assert not measured or fold.execs == 3
    assert fold.registry.counters.refused == 0


def test_memsets_in_rows_share_by_their_extent(fold: Fold, measured: bool) -> None:
    """D3: of a 2-D memset an update changes address and value only; a 1-D one may have another size and element."""
    rows = [Memset(target, value, width=64, height=4, pitch_bytes=256) for target, value in ((1, 5), (3, 9))]
    others = [
        Memset(1, 7, width=128, height=4, pitch_bytes=256),
        Memset(1, 7, width=64, height=8, pitch_bytes=256),
        Memset(1, 7, width=64, height=4, pitch_bytes=512),
        Memset(1, 7, element_bytes=4, width=16, height=4, pitch_bytes=256),
    ]
    flat = [Memset(1, 6), Memset(2, 4, width=4096), Memset(1, 0x01020304, element_bytes=4, width=64)]
    first, second, *rest = fold.add(*map(line, rows + others + flat))
    fold.check(alike=True)
    assert first.group is second.group
    assert told_apart([first, *rest[:5]])
    assert not measured or fold.execs == 6
    assert fold.registry.counters.refused == 0


def test_host_functions_and_their_data_are_carried(fold: Fold) -> None:
    """D4: cupy#9274: each replay calls what its own graph calls, three times and more."""
    fold.add(*(line(Kernel(), Host(counter, function)) for counter in (0, 1, 2) for function in ("post", "take")))
    assert fold.execs == 1
    fold.check(rounds=4)


def test_whether_a_node_is_enabled_is_not_part_of_an_update(bench: Bench, measured: bool) -> None:
    """D1: the driver documents it; the executables of the fold have every node enabled, and stay so."""
    if not measured:
        pytest.skip("measured on compute capability 9.0 with a driver of branch 580")
    spec = line(Kernel(), Kernel("xor", target=2, source=1, stamp=1))
    other = spec.with_node(1, constant=9)
    raws = [bench.build(each) for each in (spec, other)]
    updated, own = (bench.instantiate(raw) for raw in raws)
    bench.set_enabled(updated, raws[0], 1, False)
    bench.set_enabled(own, raws[1], 1, False)
    without = bench.run(own, 3)
    assert bench.update(updated, raws[1]).accepted
    assert bench.run(updated, 3) == without
    bench.set_enabled(updated, raws[0], 1, True)
    bench.set_enabled(own, raws[1], 1, True)
    assert bench.run(updated, 3) == bench.run(own, 3) != without
    for executable in (updated, own):
        bench.destroy(executable)
    for raw in raws:
        bench.discard(raw)


@pytest.mark.parametrize("flags", [AUTO_FREE_ON_LAUNCH, AUTO_FREE_ON_LAUNCH | USE_NODE_PRIORITY])
def test_an_executable_keeps_its_flags_through_an_update(flags: int, bench: Bench, measured: bool) -> None:
    """D3: another priority is refused under USE_NODE_PRIORITY only, before an update and after."""
    if not measured:
        pytest.skip("measured on compute capability 9.0 with a driver of branch 580")
    plain, other = Kernel().with_attributes(priority=(0,)), Kernel().with_attributes(priority=(-2,))
    raws = [bench.build(line(kernel)) for kernel in (plain, other, Kernel("xor").with_attributes(priority=(0,)))]
    executable = bench.instantiate(raws[0], flags)
    verdicts = [str(bench.update(executable, raw).verdict) for raw in (raws[1], raws[2], raws[1])]
    bench.destroy(executable)
    for raw in raws:
        bench.discard(raw)
    refused = "ATTRIBUTES_CHANGED" if flags & USE_NODE_PRIORITY else "SUCCESS"
    assert verdicts == [refused, "SUCCESS", refused]


def test_the_priority_is_no_reason_to_keep_graphs_apart_under_torchs_flags(fold: Fold, capabilities: Capabilities) -> None:
    """D3, D4: node priorities are used under USE_NODE_PRIORITY only, and then they are held."""
    assert "priority" not in capabilities.reads(AUTO_FREE_ON_LAUNCH).attributes
    carried = capabilities.outcomes("priority under USE_NODE_PRIORITY") == {Outcome.CARRIED}
    assert carried != ("priority" in capabilities.reads(AUTO_FREE_ON_LAUNCH | USE_NODE_PRIORITY).attributes)
    fold.add(*(line(Kernel(constant=-number).with_attributes(priority=(number,))) for number in (0, -1, -2)))
    fold.check()
    if not fold.registry.driver.instantiate_flags & USE_NODE_PRIORITY:
        assert fold.execs == 1
