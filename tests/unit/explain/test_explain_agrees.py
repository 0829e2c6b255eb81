"""What is said of exported graphs is what the fold does with them, on drawn families of graphs and several drivers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import combinations
from typing import Any

import networkx
import pytest
from hypothesis import HealthCheck, Phase, given, settings

from graphdedup import Tier, Topology, signature
from graphdedup.capabilities import Capabilities
from graphdedup.clusters import ClusterUse, uses
from graphdedup.explain import Held, explain
from graphdedup.probe.bench_simulated import SimulatedBench
from graphdedup.probe.known import probe_profile
from graphdedup.topology import Subgraph
from seam.simulated import DriverProfile, SimulatedDevice
from tools.fuzz_graphs import ARENA, Family, families

FLAGS = 1
HIDDEN = DriverProfile(uses_preferred_cluster=True, carries_attributes={"preferred_cluster": "stale"})
PROFILES = {
    "H200": DriverProfile(),
    "functions are refused": DriverProfile(carries_function="refused"),
    "clusters are carried": DriverProfile(carries_cluster_alone="carried", carries_unset_cluster="carried"),
    "preferred clusters are hidden": HIDDEN,
}


def each(preferred_clusters: bool, look: Callable[[Family], None]) -> None:
    """The same families in every run."""

    @settings(
        max_examples=80,
        derandomize=True,
        database=None,
        deadline=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    @given(families(preferred_clusters=preferred_clusters))
    def attempt(family: Family) -> None:
        look(family)

    attempt()


def would_fold(bench: SimulatedBench, raws: tuple[Any, Any], capabilities: Capabilities, tier: Tier) -> bool:
    """Equal keys, nothing that forbids sharing, and no function with two cluster dimensions: what the registry asks."""
    driver = bench.driver
    wanted = signature.reads(capabilities, FLAGS, tier)
    records = [driver.walk(raw, wanted) for raw in raws]
    packed = {signature.record_bytes(each, driver.identity, FLAGS, capabilities, tier) for each in records}
    if len(packed) > 1 or any(signature.forbids_sharing(each) or each.pass_through for each in records):
        return False
    return capabilities.carries_cluster_alone or ClusterUse(uses(records[0].nodes)).conflict(uses(records[1].nodes)) is None


@pytest.mark.parametrize("make", list(PROFILES))
def test_two_graphs_fold_by_their_fields_where_the_registry_would_try_them(make: str) -> None:
    """D3, D4: in every tier."""
    profile = PROFILES[make]
    capabilities = probe_profile(profile)
    held = {tier: Held.of(tier.value, capabilities, FLAGS) for tier in Tier}
    seen = set()

    def look(family: Family) -> None:
        bench = SimulatedBench(SimulatedDevice(4 << 20, profile=profile), ARENA)
        raws = [bench.build(spec) for spec in family.specs]
        exported = [bench.driver.topology(raw) for raw in raws]
        for (left, one), (right, other) in combinations(zip(raws, exported, strict=True), 2):
            for tier in Tier:
                told = explain(one, other, held[tier])
                folds = would_fold(bench, (left, right), capabilities, tier)
                assert told.folds is folds, told.to_text()
                seen.add((tier, folds))
                assert explain(other, one, held[tier]).folds is folds
        bench.close()

    each(profile is HIDDEN, look)
    assert len(seen) == 2 * len(Tier)


def graphs(exported: Topology) -> Iterator[Subgraph]:
    yield exported
    yield from (node.child for node in exported.nodes if node.child is not None)


def test_the_same_graph_in_another_order_is_one_for_networkx_too() -> None:
    """Up to isomorphism, with kinds and edge data; and where a node has no counterpart there is none."""
    capabilities = probe_profile(DriverProfile())
    held = Held.of("structure", capabilities, FLAGS)
    seen = []

    def same(one: Topology, other: Topology) -> bool:
        def alike(left: Any, right: Any) -> bool:
            children = left["child"], right["child"]
            return left["kind"] == right["kind"] and (
                children[0] is None or same(*(one.model_copy(update=dict(child)) for child in children))
            )

        return bool(
            networkx.is_isomorphic(
                one.to_networkx(), other.to_networkx(), alike, lambda left, right: left["data"] == right["data"]
            )
        )

    def look(family: Family) -> None:
        bench = SimulatedBench(SimulatedDevice(4 << 20), ARENA)
        exported = [bench.driver.topology(bench.build(spec)) for spec in family.specs]
        for one, other in combinations(exported, 2):
            told = explain(one, other, held)
            structural = told.where in ("structure", "node count") or told.field in ("kind", "edge data")
            if structural and "child graph" not in told.where:
                assert told.same_graph_other_order is same(one, other), told.to_text()
                seen.append(told.same_graph_other_order)
        bench.close()

    each(False, look)
    assert {True, False} <= set(seen)
