"""The record and the key: what is in it, in which order, and what is not."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import xxhash

from graphdedup.capabilities import Capabilities
from graphdedup.driver import DeviceIdentity, EdgeRecord, GraphRecord, NodeRecord
from graphdedup.driver.protocol import Reads
from graphdedup.probe.known import probe_profile
from graphdedup.signature import Tier, key, reads, record_bytes, shape_digest
from seam.simulated import DriverProfile

DEVICE = DeviceIdentity("cuda", "H200", 0, 0x1234, (9, 0), "580.159", 580)
CARRIES = probe_profile(DriverProfile())
UNKNOWN = Capabilities.unknown(DEVICE, "for a test")
KERNEL = NodeRecord("kernel", (0,), function=77, cluster=(2, 1, 1))
CHAIN = GraphRecord((KERNEL, KERNEL), (EdgeRecord(0, 1),))


def record(graph: GraphRecord = CHAIN, device: DeviceIdentity = DEVICE, flags: int = 1, **how: Any) -> bytes:
    return record_bytes(graph, device, flags, how.get("capabilities", CARRIES), how.get("tier", Tier.STRUCTURE))


def with_node(**change: Any) -> GraphRecord:
    return dataclasses.replace(CHAIN, nodes=(dataclasses.replace(KERNEL, **change), KERNEL))


DIFFERENT: dict[str, bytes] = {
    "kind": record(with_node(kind="memset")),
    "fixed attribute": record(with_node(fixed=(1,))),
    "what cannot be read": record(with_node(unreadable=("preferred_cluster",))),
    "node count": record(GraphRecord((KERNEL, KERNEL, KERNEL), (EdgeRecord(0, 1),))),
    "edge": record(GraphRecord((KERNEL, KERNEL), ())),
    "edge direction": record(GraphRecord((KERNEL, KERNEL), (EdgeRecord(1, 0),))),
    "edge data": record(GraphRecord((KERNEL, KERNEL), (EdgeRecord(0, 1, (1, 0, 1)),))),
    "child": record(with_node(kind="child_graph", child=CHAIN)),
    "nodes of the child": record(with_node(kind="child_graph", child=GraphRecord((KERNEL,), ()))),
    "edges of the child": record(with_node(kind="child_graph", child=GraphRecord((KERNEL, KERNEL), ()))),
    "instantiate flags": record(flags=9),
    "context": record(device=dataclasses.replace(DEVICE, context=0x1235)),
    "device": record(device=dataclasses.replace(DEVICE, ordinal=1)),
    "compute capability": record(device=dataclasses.replace(DEVICE, compute_capability=(9, 1))),
    "kind of device": record(device=dataclasses.replace(DEVICE, kind="simulated")),
}


def test_each_difference_that_an_update_does_not_carry_is_in_the_record() -> None:
    """D3: all of them, and no two of them alike."""
    assert len({record(), *DIFFERENT.values()}) == len(DIFFERENT) + 1


@pytest.mark.parametrize("field", [{"function": 78}, {"cluster": (4, 1, 1)}])
def test_what_is_carried_is_in_the_record_only_where_that_is_not_known(field: dict[str, Any]) -> None:
    """D3, D4."""
    assert record(with_node(**field)) == record()
    assert record(with_node(**field), capabilities=UNKNOWN) != record(capabilities=UNKNOWN)


@pytest.mark.parametrize("field", [{"function": 78}, {"cluster": (4, 1, 1)}])
def test_the_function_tier_holds_functions_and_clusters(field: dict[str, Any]) -> None:
    assert record(with_node(**field), tier=Tier.FUNCTION) != record(tier=Tier.FUNCTION)


def test_edges_and_nodes_are_not_sorted() -> None:
    """D3: the driver pairs nodes by their order."""
    three = (KERNEL, NodeRecord("memset"), KERNEL)
    edges = (EdgeRecord(0, 2), EdgeRecord(1, 2))
    assert record(GraphRecord(three, edges)) != record(GraphRecord(three, edges[::-1]))
    assert record(GraphRecord(three, ())) != record(GraphRecord((three[1], three[0], three[2]), ()))


def test_fields_are_length_prefixed() -> None:
    """Two fields never run into each other: ("ab", "c") is not ("a", "bc")."""
    one = GraphRecord((NodeRecord("ab"), NodeRecord("c")), ())
    other = GraphRecord((NodeRecord("a"), NodeRecord("bc")), ())
    assert record(one) != record(other)


def test_addresses_above_the_sign_bit_are_told_apart() -> None:
    high = with_node(function=2**63 + 77)
    assert record(high, tier=Tier.FUNCTION) != record(tier=Tier.FUNCTION)


def test_the_key_is_the_xxh3_128_of_the_record() -> None:
    assert key(b"") == "99aa06d3014798d86001c324468d497f"  # published test vector of XXH3_128bits, seed 0
    assert key(record()) == xxhash.xxh3_128_hexdigest(record())


# Tiers, and the shape


def test_each_tier_has_a_walk_read_what_it_holds() -> None:
    """D4: what no launch shows to be carried; in the default tier not what changes nothing but time; in the exact one all."""
    domains = ("mem_sync_domain_map", "mem_sync_domain")
    time = ("access_policy_window", "cluster_scheduling_policy")
    assert reads(CARRIES, 1, Tier.STRUCTURE) == Reads(domains)
    assert reads(CARRIES, 1, Tier.FUNCTION) == Reads((*time, *domains, "shared_memory_carveout"))
    assert reads(CARRIES, 1, Tier.EXACT) == Reads(
        (*time, "priority", *domains, "shared_memory_carveout"), geometry=True, memset_extent=True, memcpy_extent=True
    )


@pytest.mark.parametrize("field", [{"function": 78}, {"cluster": (4, 1, 1)}])
def test_the_exact_tier_holds_functions_and_clusters_too(field: dict[str, Any]) -> None:
    """D4."""
    assert record(with_node(**field), tier=Tier.EXACT) != record(tier=Tier.EXACT)


def test_the_shape_is_kinds_and_edges_of_a_graph_and_its_children() -> None:
    """Nothing in it differs between two processes that captured alike: no handle, and nothing that was measured."""
    inner = GraphRecord((KERNEL,), ())
    graphs = [
        CHAIN,
        with_node(kind="memset"),
        GraphRecord(CHAIN.nodes, ()),
        GraphRecord(CHAIN.nodes, (EdgeRecord(1, 0),)),
        GraphRecord(CHAIN.nodes, (EdgeRecord(0, 1, (1, 0, 1)),)),
        with_node(kind="child_graph", child=inner),
        with_node(kind="child_graph", child=GraphRecord((NodeRecord("memset"),), ())),
    ]
    assert len({shape_digest(graph) for graph in graphs}) == len(graphs)
    assert shape_digest(with_node(fixed=(1,), function=78, cluster=(4, 1, 1), unreadable=("x",))) == shape_digest(CHAIN)
