"""The estimate of a ladder from two captures: its bounds against what was measured on an H200, and what they assume."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import networkx
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import seam
from graphdedup import (
    DedupBackend,
    Edge,
    ExecEstimate,
    FoldPolicy,
    GraphDedupError,
    Node,
    Placement,
    SettingsError,
    Tier,
    Topology,
    estimate_bytes,
)
from graphdedup.capabilities import Capabilities
from graphdedup.demo import PRESETS
from graphdedup.footprint import modelled_exec_bytes
from graphdedup.graph_size import branch_count
from graphdedup.report import Source
from graphdedup.topology import Subgraph
from seam.plan import MemoryPlan, PlanRow
from seam.simulated import SimulatedBackend, SimulatedDevice
from tools.fold_workloads import WORKLOADS, Captures, Workload

STEP = 2 << 20


def graph(count: int, edges: Sequence[tuple[int, int]] | None = None, **node: Any) -> Topology:
    """A graph of ``count`` kernels, in a line unless edges are given."""
    pairs = [(index, index + 1) for index in range(count - 1)] if edges is None else edges
    return Topology(
        device="d",
        driver_version="1",
        instantiate_flags=1,
        nodes=tuple(Node(index=index, **{"kind": "kernel"} | node) for index in range(count)),
        edges=tuple(Edge(source=source, target=target) for source, target in pairs),
    )


def forked(count: int, forks: int) -> Topology:
    """A line that forks and joins ``forks`` times."""
    edges, end = [], 0
    for left in range(1, 3 * forks, 3):
        right, joined = left + 1, left + 2
        edges += [(end, left), (end, right), (left, joined), (right, joined)]
        end = joined
    edges += [(index - 1, index) for index in range(end + 1, count)]
    return graph(count, edges)


# What was measured: reports/h200-*.json. They tell the nodes of all graphs together, so the captures here have the mean,
# rounded down and up, in a line; the side stream of every layer forks and joins once.


class Measured(NamedTuple):
    file: str
    workload: str
    tier: str
    captured: int
    nodes: int
    execs: int
    folded_bytes: int
    plain_bytes: int

    def captures(self) -> list[list[Topology]]:
        segments = 29 if self.workload == "breakable" else 1
        shapes = self.captured // segments
        mean, left = divmod(self.nodes, self.captured)
        assert 0 < left < self.captured
        if segments > 1:  # first, middle and last segment are of different lengths, of this mean
            few = [graph(mean - 2), *[graph(mean)] * 27, graph(mean + 2)]
            return [few, [graph(mean - 1), *[graph(mean)] * 27, graph(mean + 3)]]
        assert shapes == self.captured
        forks = 28 if self.workload == "two-streams" else 0
        return [[forked(mean, forks)], [forked(mean + 1, forks)]]


MEASURED = (
    Measured("h200-full-1-256.json", "full", "structure", 256, 233_012, 3, 6_291_456, 723_517_440),
    Measured("h200-breakable-usual.json", "breakable", "structure", 1_044, 20_936, 5, 0, 184_549_376),
    Measured("h200-fold-full.json", "full", "structure", 256, 233_012, 3, 6_291_456, 723_517_440),
    Measured("h200-fold-full.json", "full", "function", 256, 233_012, 89, 251_658_240, 723_517_440),
    Measured("h200-fold-full.json", "full", "exact", 256, 233_012, 256, 723_517_440, 723_517_440),
    Measured("h200-fold-breakable.json", "breakable", "structure", 1_044, 20_936, 5, 0, 184_549_376),
    Measured("h200-fold-breakable.json", "breakable", "function", 1_044, 20_936, 86, 12_582_912, 184_549_376),
    Measured("h200-fold-breakable.json", "breakable", "exact", 1_044, 20_936, 108, 16_777_216, 184_549_376),
    Measured("h200-fold-more.json", "two-streams", "structure", 256, 247_348, 3, 23_068_672, 2_415_919_104),
    Measured("h200-fold-more.json", "compiled", "structure", 256, 20_268, 3, 0, 79_691_776),
    Measured("h200-fold-more.json", "sampling", "structure", 256, 248_628, 3, 6_291_456, 796_917_760),
)


def test_the_numbers_are_those_of_the_reports() -> None:
    """A workload's plain bytes stand in one of its reports. Measured anew, the bounds are to be checked anew."""
    folder = Path(__file__).parents[3] / "reports"
    if not folder.exists():
        pytest.skip("a copy of the tree without the reports")
    told, plain = [], {}
    for file, workload in (("h200-full-1-256.json", "full"), ("h200-breakable-usual.json", "breakable")):
        mode = json.loads((folder / file).read_text())["modes"][workload]
        plain[workload] = mode["unfolded_exec_device_bytes"]
        sizes = mode["captured"], mode["nodes"], mode["execs"], mode["exec_device_bytes"]
        told.append(Measured(file, workload, "structure", *sizes, plain[workload]))
    for file in ("h200-fold-full.json", "h200-fold-breakable.json", "h200-fold-more.json"):
        for row in json.loads((folder / file).read_text())["rows"]:
            made = row["measured"]
            sizes = made["captured"], made["nodes"], made["execs"], made["exec_device_bytes"]
            own = made["own_exec_device_bytes"] or plain[row["workload"]]
            told.append(Measured(file, row["workload"], row["tier"], *sizes, own))
    assert tuple(told) == MEASURED


@pytest.mark.parametrize("row", MEASURED, ids=lambda row: f"{row.file}-{row.workload}-{row.tier}")
def test_the_bounds_hold_on_what_an_h200_measured(row: Measured) -> None:
    """Plain: not below what was measured and within 25 % of it. Folded: not below it, in executables and in bytes."""
    captures = row.captures()
    shapes = row.captured // len(captures[0])
    told = estimate_bytes(captures, shapes=shapes, policy=FoldPolicy(tier=Tier(row.tier)))
    assert row.plain_bytes <= told.plain_upper_bytes <= 1.25 * row.plain_bytes
    assert 0.9 * row.plain_bytes <= told.plain_bytes <= 1.1 * row.plain_bytes
    assert row.execs <= told.folded_execs_at_most
    assert row.folded_bytes <= told.folded_upper_bytes <= told.plain_upper_bytes
    assert told.source is Source.MODELLED
    known = estimate_bytes(captures, shapes=shapes, groups_at_most=row.execs)
    assert known.folded_execs_at_most == row.execs
    assert row.folded_bytes <= known.folded_upper_bytes


def test_the_forked_workload_that_was_measured_has_two_branches_a_layer() -> None:
    """The constant for a branch was told from it: a side branch and a join in each layer."""
    device = torch.device("cpu")
    config = PRESETS["tiny"].with_layers(3)
    backend = DedupBackend(SimulatedBackend(SimulatedDevice(64 << 20)), enabled=True)
    for name, branches in (("two-streams", 6), ("full", 0)):
        captures = Captures(Workload(WORKLOADS[name], config, (2, 1), device, 0), backend, name)
        captures.take((2, 1))
        for made in captures.graphs.values():
            assert branch_count(backend.topology(made.segments[0])) == branches
        captures.close()


# Worked out by hand


def test_equal_captures_of_one_segment() -> None:
    """Ten nodes are modelled with 133,000 bytes. Plain: 4 x 1.10 and 4 x 1.24 of that. Folded: one, or at most log2(4) + 1."""
    told = estimate_bytes([graph(10), graph(10)], shapes=[1, 2, 3, 4])
    assert modelled_exec_bytes(10)[0] == 133_000
    assert (told.shapes, told.segments, told.plain_execs) == (4, 1, 4)
    assert (told.plain_bytes, told.plain_upper_bytes) == (585_200, STEP)
    assert (told.folded_bytes, told.folded_execs, told.folded_execs_at_most) == (146_300, 1, 3)
    assert told.folded_upper_bytes == STEP
    assert told.pool is None


def test_another_shape_may_exceed_the_larger_capture_by_the_difference() -> None:
    """500 and 1,250 nodes: up to 2,000, which are 5,222,000 bytes. 100 x 1.24 x that is 308.8 steps of 2 MB."""
    told = estimate_bytes([graph(500), graph(1_250)], shapes=100)
    assert told.plain_upper_bytes == 309 * STEP
    # 1,250 is half way from 500 (1,372,000) to 2,000 nodes (5,222,000): 3,297,000; the mean of both captures, 100 times
    assert told.plain_bytes == round(100 * 1.10 * (1_372_000 + 3_297_000) / 2)
    assert (told.folded_execs, told.folded_execs_at_most) == (2, 9)
    # either capture has one structure, so an executable is as large as the largest, nine times
    assert told.folded_upper_bytes == 28 * STEP


def test_branches_and_joins_cost_bytes() -> None:
    """Two forks that join: two further branches and two joins, 115,000 and at most 120,000 bytes each."""
    line, two = (estimate_bytes([one, one], shapes=1_000) for one in (graph(10), forked(10, 2)))
    assert two.plain_bytes - line.plain_bytes == 1_000 * 4 * 115_000
    assert two.plain_upper_bytes - line.plain_upper_bytes == pytest.approx(1_000 * 4 * 120_000, abs=STEP)


@pytest.mark.parametrize(
    ("shapes", "most"),
    [
        ([1, 2], 2),
        (range(1, 257), 9),
        (range(1, 258), 10),  # a ninth doubling has begun
        ([8, 16, 32], 3),
        ([100, 101, 102, 103], 2),
        (36, 9),  # only their number is known: taken to reach to 256 times the smallest
        (1_000, 11),
        (3, 3),
        ((1, 2, 4, *range(8, 257, 8)), 9),
    ],
)
def test_groups_are_bounded_by_the_doublings_of_the_ladder(shapes: Any, most: int) -> None:
    assert estimate_bytes([graph(5), graph(5)], shapes=shapes).folded_execs_at_most == most


def test_each_structure_of_a_capture_is_counted_once() -> None:
    """A first, a middle and a last segment: three structures, in two doublings and one more each."""
    capture = [graph(12), *[graph(20)] * 4, graph(10)]
    told = estimate_bytes([capture, capture], shapes=[1, 2, 3, 4])
    assert (told.segments, told.plain_execs, told.folded_execs, told.folded_execs_at_most) == (6, 24, 3, 9)
    parts = [modelled_exec_bytes(count)[0] for count in (12, 20, 10)]
    assert told.folded_bytes == round(1.10 * sum(parts))
    by_position = estimate_bytes([capture, capture], shapes=[1, 2, 3, 4], policy=FoldPolicy(placement=Placement.POSITION))
    assert (by_position.folded_execs, by_position.folded_execs_at_most) == (6, 18)


def test_stricter_tiers_and_devices_that_carry_less_fold_no_shape_onto_another() -> None:
    capture = [graph(12), graph(20), graph(20)]
    for how in ({"policy": FoldPolicy(tier=Tier.FUNCTION)}, {"policy": FoldPolicy(tier=Tier.EXACT)}, {"capabilities": NOTHING}):
        assert estimate_bytes([capture, capture], shapes=50, **how).folded_execs_at_most == 100  # type: ignore[arg-type]


NOTHING = Capabilities(device="d", source="a test")


def test_in_stricter_tiers_each_further_shape_is_expected_to_add_what_the_second_one_added() -> None:
    """Three executables for the first capture, two more for the second: 3 + 9 x 2 for ten shapes. Equal ones add nothing."""
    first = [graph(10, name="a"), graph(10, name="b"), graph(10, name="same")]
    second = [graph(10, name="c"), graph(10, name="d"), graph(10, name="same")]
    told = estimate_bytes([first, second], shapes=10, policy=FoldPolicy(tier=Tier.FUNCTION))
    assert (told.folded_execs, told.folded_bytes) == (21, round(21 * 1.10 * 133_000))
    bounded = estimate_bytes([first, second], shapes=10, policy=FoldPolicy(tier=Tier.FUNCTION, max_execs=7))
    assert (bounded.folded_execs, bounded.folded_bytes) == (7, round(7 * 1.10 * 133_000))
    assert estimate_bytes([first, first], shapes=10, policy=FoldPolicy(tier=Tier.FUNCTION)).folded_execs == 3
    assert estimate_bytes([first, second], shapes=10).folded_execs == 1


@pytest.mark.parametrize(
    ("change", "execs"),
    [
        ({"name": "b"}, {Tier.STRUCTURE: 1, Tier.FUNCTION: 2, Tier.EXACT: 2}),
        ({"cluster": (2, 1, 1)}, {Tier.STRUCTURE: 1, Tier.FUNCTION: 2, Tier.EXACT: 2}),
        ({"grid": (2, 1, 1)}, {Tier.STRUCTURE: 1, Tier.FUNCTION: 1, Tier.EXACT: 2}),
        ({"shared_bytes": 8}, {Tier.STRUCTURE: 1, Tier.FUNCTION: 1, Tier.EXACT: 2}),
        ({"local_bytes": 8}, {Tier.STRUCTURE: 2, Tier.FUNCTION: 2, Tier.EXACT: 2}),
        ({"kind": "memset"}, {Tier.STRUCTURE: 2, Tier.FUNCTION: 2, Tier.EXACT: 2}),
        ({"parameters": {"bytes": "00"}}, {Tier.STRUCTURE: 1, Tier.FUNCTION: 1, Tier.EXACT: 1}),
    ],
)
def test_what_two_captures_may_differ_in_and_fold(change: dict[str, Any], execs: dict[Tier, int]) -> None:
    for tier, expected in execs.items():
        captures = [graph(3, name="a") if "name" in change else graph(3), graph(3, **change)]
        assert estimate_bytes(captures, shapes=2, policy=FoldPolicy(tier=tier)).folded_execs == expected


def test_graphs_that_cannot_fold_take_one_executable_for_each_shape() -> None:
    """D11: the middle segment allocates memory."""
    capture = [graph(10), graph(10, kind="mem_alloc"), graph(10)]
    told = estimate_bytes([capture, capture], shapes=range(1, 101))
    assert (told.folded_execs, told.folded_execs_at_most) == (1 + 100, 8 + 100)
    assert told.folded_bytes == round(1.10 * 133_000 * 101)
    assert told.folded_upper_bytes == 9 * STEP  # 108 x 1.24 x 133,000 bytes are 8.5 steps


def test_child_graphs_count_with_what_they_hold() -> None:
    child = Subgraph(nodes=forked(6, 1).nodes, edges=forked(6, 1).edges)
    holder = graph(5)
    nodes = (*holder.nodes[:4], Node(index=4, kind="child_graph", child=child))
    nested = holder.model_copy(update={"nodes": nodes})
    assert branch_count(nested) == 2
    told = estimate_bytes([nested, nested], shapes=10)
    assert told.plain_bytes == round(10 * (1.10 * modelled_exec_bytes(11)[0] + 2 * 115_000))


def test_what_is_known_of_the_groups_replaces_the_rule_and_is_checked() -> None:
    captures = [[graph(10), graph(60)], [graph(10), graph(60)]]
    told = estimate_bytes(captures, shapes=500, groups_at_most=4)
    assert told.folded_execs_at_most == 4
    assert "at most 4 groups, as was given" in told.assumptions[1]
    with pytest.raises(SettingsError, match=r"groups_at_most=1, and the captures alone made 2 groups"):
        estimate_bytes(captures, shapes=500, groups_at_most=1)


def test_streams_and_bounds_of_the_policy_change_the_executables() -> None:
    captures = [[graph(60)], [graph(60)]]
    one, three = (estimate_bytes(captures, shapes=256, streams=count) for count in (1, 3))
    assert (one.folded_execs_at_most, three.folded_execs_at_most) == (9, 27)
    assert three.folded_upper_bytes > one.folded_upper_bytes
    bounded = estimate_bytes(captures, shapes=256, policy=FoldPolicy(tier=Tier.EXACT, max_execs=5))
    assert bounded.folded_execs_at_most == 5
    assert bounded.folded_upper_bytes == STEP


def test_more_captures_than_the_rule_expects_raise_its_bound() -> None:
    """Four captures of neighbouring shapes, each a structure of its own: at most as many again would be too few."""
    captures = [graph(count) for count in (20, 21, 22, 23)]
    told = estimate_bytes(captures, shapes=[100, 101, 102, 103])
    assert (told.folded_execs, told.folded_execs_at_most) == (4, 4)


def test_a_memory_plans_pool_stands_beside_it_and_is_added_to_nothing() -> None:
    """M3: other memory, predicted in another way."""
    plan = MemoryPlan("decode", {}, (PlanRow("inputs", 5), PlanRow("pool", 10**9)))
    captures = [graph(10), graph(10)]
    told, alone = estimate_bytes(captures, shapes=8, plan=plan), estimate_bytes(captures, shapes=8)
    assert told.pool is not None
    assert (told.pool.bytes, told.pool.source) == (10**9, Source.MODELLED)
    assert told.model_copy(update={"pool": None}) == alone
    assert "pool: 1,000.0 MB" in told.to_text()


def test_the_text_and_the_json_say_what_it_is() -> None:
    told = estimate_bytes([graph(10), graph(10)], shapes=[1, 2, 3, 4])
    text = told.to_text()
    assert text.splitlines()[0] == "device bytes of executables, 4 shapes of 1 segments, modelled"
    assert [line.split() for line in text.splitlines()[1:4]] == [
        ["execs", "expected", "at", "most"],
        ["plain", "4", "0.6", "MB", "2.1", "MB"],
        ["folded", "1", "to", "3", "0.1", "MB", "2.1", "MB"],
    ]
    assert text.count("assumed: ") == 4
    assert ExecEstimate.model_validate_json(told.to_json()) == told


@pytest.mark.parametrize(
    ("captures", "how", "error", "said"),
    [
        ([], {"shapes": 4}, GraphDedupError, "0 captures are too few"),
        ([graph(3)], {"shapes": 4}, GraphDedupError, "1 captures are too few to estimate 4 shapes"),
        ([[], []], {"shapes": 4}, GraphDedupError, "too few"),
        ([[graph(3)], [graph(3), graph(3)]], {"shapes": 4}, GraphDedupError, "differ in their segments: 1, 2"),
        ([graph(3), graph(3)], {"shapes": 0}, SettingsError, "shapes=0"),
        ([graph(3), graph(3)], {"shapes": []}, SettingsError, "names no shape"),
        ([graph(3), graph(3)], {"shapes": [0, 1]}, SettingsError, "below 1"),
        ([graph(3), graph(3), graph(3)], {"shapes": 2}, SettingsError, "shapes=2, and 3 are captured"),
        ([graph(3), graph(3)], {"shapes": 2, "streams": 0}, SettingsError, "streams=0"),
        ([graph(3, [(0, 1), (1, 2), (2, 1)])] * 2, {"shapes": 2}, GraphDedupError, "wait for each other"),
    ],
)
def test_what_cannot_be_estimated_is_one_clear_error(captures: Any, how: Any, error: Any, said: str) -> None:
    with pytest.raises(error, match=rf"{said}.*Remedy: "):
        estimate_bytes(captures, **how)


@given(
    st.integers(1, 12).flatmap(
        lambda count: st.tuples(
            st.just(count), st.sets(st.tuples(st.integers(0, count - 1), st.integers(0, count - 1)), max_size=30)
        )
    ),
    st.randoms(),
)
def test_branches_are_counted_on_the_edges_that_say_something(drawn: tuple[int, set[tuple[int, int]]], order: Any) -> None:
    """Against networkx's transitive reduction, with nodes in any order."""
    count, pairs = drawn
    names = list(range(count))
    order.shuffle(names)
    edges = [(names[min(pair)], names[max(pair)]) for pair in sorted(pairs) if pair[0] != pair[1]]
    reduced = networkx.DiGraph(edges)
    reduced.add_nodes_from(range(count))
    reduced = networkx.transitive_reduction(reduced)
    roots = sum(degree == 0 for _, degree in reduced.in_degree)
    expected = roots - 1 + sum(max(0, degree - 1) for _, degree in reduced.out_degree)
    expected += sum(degree > 1 for _, degree in reduced.in_degree)
    assert branch_count(graph(count, edges)) == expected


@given(
    st.lists(st.integers(1, 3_000), min_size=1, max_size=4),
    st.lists(st.integers(1, 3_000), min_size=4, max_size=4),
    st.integers(2, 300),
    st.integers(1, 8),
)
def test_no_bound_is_below_what_is_expected(first: list[int], second: list[int], shapes: int, most: int) -> None:
    captures = [[CHAINS(count) for count in first], [CHAINS(count) for count in second[: len(first)]]]
    for policy in (FoldPolicy(), FoldPolicy(tier=Tier.EXACT), FoldPolicy(max_execs=most)):
        told = estimate_bytes(captures, shapes=shapes, policy=policy)
        assert told.plain_bytes <= told.plain_upper_bytes
        assert told.folded_bytes <= told.folded_upper_bytes <= told.plain_upper_bytes
        assert told.folded_execs <= told.folded_execs_at_most <= told.plain_execs


_chains: dict[int, Topology] = {}


def CHAINS(count: int) -> Topology:
    """Short lines stand for long ones: sizes are what matters here."""
    size = 1 + count % 97
    return _chains.setdefault(size, graph(size))


# Live graphs


def ladder(backend: DedupBackend, sizes: Sequence[int], session: str = "decode") -> list[seam.BreakableGraph]:
    """Split once; above 8 rows one kernel more is needed in the second segment, as libraries do it."""
    made = []

    @seam.eager_break
    def middle(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    for size in sizes:
        x = torch.zeros(size, 4_096)
        one = seam.BreakableGraph(backend, label=f"bs={size}")
        with backend.session(session), seam.capture(one):
            y = middle(x + 1)
            y = y + 3
            if size > 8:
                y + 4
        made.append(one)
    return made


def backend(**how: Any) -> DedupBackend:
    return DedupBackend(SimulatedBackend(SimulatedDevice(256 << 20)), **{"enabled": True, **how})


def test_a_live_ladder_stays_within_what_two_captures_told() -> None:
    """The smallest and the largest shape first; then every other one, and what they really made necessary."""
    folding = backend()
    graphs = ladder(folding, (64, 1))
    told = folding.estimate(shapes=range(1, 65))
    assert (told.shapes, told.segments, told.plain_execs) == (64, 2, 128)
    assert told.folded_execs == folding.stats().execs == 2
    graphs += ladder(folding, range(2, 64))
    after = folding.stats()
    assert after.execs <= told.folded_execs_at_most == 2 * 7
    modelled = folding.modelled_exec_bytes()
    assert modelled is not None
    assert modelled <= told.folded_upper_bytes
    assert folding.registry is not None
    plain = sum(modelled_exec_bytes(member.node_count)[0] for member in folding.registry.members.values())
    assert plain <= told.plain_upper_bytes
    for one in graphs:
        one.close()


def test_live_graphs_are_taken_by_the_groups_that_they_really_have() -> None:
    """In the default tier all six segments fold onto one executable; in tier exact none of another size does."""
    for policy, execs, ladder_execs in (("structure", 1, 1), ("exact", 3, 4)):
        folding = backend(policy=policy)
        graphs = ladder(folding, (1, 2, 4))
        told = folding.estimate(shapes=(1, 2, 4, 8))
        assert (folding.stats().execs, told.folded_execs) == (execs, ladder_execs)
        for one in graphs:
            one.close()


def test_a_session_is_named_where_there_are_several() -> None:
    folding = backend()
    graphs = [*ladder(folding, (1, 2)), *ladder(folding, (16, 32), "prefill")]
    with pytest.raises(GraphDedupError, match=r"several sessions are alive: 'decode', 'prefill' Remedy: name one"):
        folding.estimate(shapes=8)
    assert (
        folding.estimate(shapes=8, session="decode").plain_bytes < folding.estimate(shapes=8, session="prefill").plain_bytes + 1
    )
    with pytest.raises(GraphDedupError, match="0 captures are too few"):
        folding.estimate(shapes=8, session="none")
    for one in graphs:
        one.close()


def test_a_live_graph_that_is_passed_through_is_counted_for_each_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    folding = backend()
    assert folding.registry is not None
    walk = folding.registry.driver.walk

    def failing(*_: Any) -> Any:
        raise ValueError("unreadable")

    monkeypatch.setattr(folding.registry.driver, "walk", failing)
    graphs = ladder(folding, (1, 2))
    monkeypatch.setattr(folding.registry.driver, "walk", walk)
    told = folding.estimate(shapes=10)
    assert told.folded_execs == told.folded_execs_at_most == told.plain_execs == 20
    assert told.folded_upper_bytes == told.plain_upper_bytes
    for one in graphs:
        one.close()


def test_with_the_fold_switched_off_there_is_nothing_to_estimate() -> None:
    with pytest.raises(GraphDedupError, match=r"switched off: nothing was read .*D14"):
        backend(enabled=False).estimate(shapes=4)
