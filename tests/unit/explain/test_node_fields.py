"""Two nodes side by side: every kind of difference, with both values in words, and which tier holds it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from graphdedup.capabilities import Capabilities
from graphdedup.driver.simulated import SimulatedDriver
from graphdedup.errors import SettingsError
from graphdedup.explain import FieldDifference, Held, first_difference
from graphdedup.node_fields import differences, forbids_sharing
from graphdedup.probe.known import probe_profile
from graphdedup.topology import Node
from seam.simulated import DriverProfile, SimulatedDevice

FLAGS = 1
TIERS = ("structure", "function", "exact")
H200 = probe_profile(DriverProfile())
OLD = probe_profile(DriverProfile(carries_function="refused"))


def nothing(*_: Any) -> None:
    """A kernel that writes nothing."""


def kernel(name: str = "gemm", value: float = 1.0, **how: Any) -> Node:
    """A kernel node as the simulated driver exports it."""
    device = SimulatedDevice(1 << 20)
    graph = device.new_graph()
    graph.add_kernel(name, nothing, (value,), **how)
    return SimulatedDriver(device).topology(graph).nodes[0]


def other(kind: str, buffer: torch.Tensor, **how: Any) -> Node:
    """A memcpy or memset node on a buffer, exported."""
    device = SimulatedDevice(1 << 20)
    graph = device.new_graph()
    graph.add_node(kind, target=buffer, **how)
    return SimulatedDriver(device).topology(graph).nodes[0]


def holders(left: Node, right: Node, capabilities: Capabilities = H200) -> tuple[str, ...]:
    """The tiers in which the two may not share an executable."""
    return tuple(tier for tier in TIERS if first_difference(left, right, Held.of(tier, capabilities, FLAGS)) is not None)


CLUSTER: dict[str, Any] = {"cluster": (2, 1, 1)}
KERNELS = [
    ({"name": "relu"}, "kernel function", "gemm", "relu", ("function", "exact")),
    ({"cluster": (2, 1, 1)}, "cluster dimension", "none", "(2, 1, 1)", TIERS),
    ({"cluster": (1, 1, 1)}, "cluster dimension", "none", "(1, 1, 1)", ("function", "exact")),
    ({"required_cluster": (2, 1, 1)}, "cluster dimension", "none", "(2, 1, 1)", TIERS),
    ({"attributes": {"cooperative": 1}}, "cooperative launch", "no", "yes", TIERS),
    ({"local_bytes": 4096}, "local memory", "0 bytes a thread", "4096 bytes a thread", TIERS),
    ({"attributes": {"mem_sync_domain": 1}}, "mem sync domain", "0", "1", TIERS),
    ({"attributes": {"mem_sync_domain_map": (1, 0)}}, "mem sync domain map", "0", "(1, 0)", TIERS),
    ({"attributes": {"shared_memory_carveout": 50}}, "shared memory carveout", "0", "50", ("function", "exact")),
    ({"attributes": {"priority": -1}}, "priority", "0", "-1", ("exact",)),
    ({"grid": (8, 1, 1)}, "grid", "(1, 1, 1)", "(8, 1, 1)", ("exact",)),
    ({"block": (32, 1, 1)}, "block", "(1, 1, 1)", "(32, 1, 1)", ("exact",)),
    ({"shared_bytes": 1024}, "shared memory", "0 bytes", "1024 bytes", ("exact",)),
    ({"value": 2.0}, "parameters", "args[0] 1.0", "args[0] 2.0", ()),
]


@pytest.mark.parametrize(("change", "field", "left", "right", "tiers"), KERNELS, ids=[row[1] for row in KERNELS])
def test_kernels_differ_in_one_field(change: dict[str, Any], field: str, left: str, right: str, tiers: tuple[str, ...]) -> None:
    """D3, D4: named in words, and held where an update does not carry it or the tier asks for it."""
    one, two = kernel(), kernel(**change)
    assert list(differences(one, two)) == [FieldDifference(field, left, right)]
    assert first_difference(two, one) == FieldDifference(field, right, left)
    assert holders(one, two) == tiers
    assert first_difference(one, kernel()) is None


def test_the_first_of_several_differences_is_named_in_a_set_order() -> None:
    """And the others follow."""
    one = kernel()
    two = kernel("relu", 2.0, grid=(8, 1, 1), cluster=(2, 1, 1), local_bytes=64, attributes={"cooperative": 1, "priority": 3})
    assert [difference.field for difference in differences(one, two)] == [
        "kernel function", "cluster dimension", "cooperative launch", "local memory", "priority", "grid", "parameters",
    ]  # fmt: skip


def test_a_cluster_dimension_is_carried_together_with_another_function_alone() -> None:
    """D3: as an H200 does it; where functions are not carried both are held, where clusters are carried neither is."""
    one, two = kernel(), kernel("relu", cluster=(2, 1, 1))
    assert holders(one, two) == ("function", "exact")
    assert holders(one, two, OLD) == TIERS
    whole = probe_profile(DriverProfile(carries_cluster_alone="carried", carries_unset_cluster="carried"))
    assert holders(one, kernel(cluster=(2, 1, 1)), whole) == ("function", "exact")


def test_of_a_kernel_without_clusters_an_attribute_for_clusters_says_nothing() -> None:
    """D3."""
    policy: dict[str, Any] = {"attributes": {"cluster_scheduling_policy": 1}}
    assert first_difference(kernel(), kernel(**policy)) is None
    spread = first_difference(kernel(**CLUSTER), kernel(**CLUSTER, **policy))
    assert spread == FieldDifference("cluster scheduling policy", "0", "1")
    assert holders(kernel(**CLUSTER), kernel(**CLUSTER, **policy)) == ("function", "exact")


def test_two_functions_of_one_name_are_told_apart() -> None:
    """As when a kernel is compiled twice; an export that does not tell its functions leaves it at the names."""
    one = kernel("triton_poi_fused_0")
    two = one.model_copy(update={"function": 77})
    assert first_difference(one, two) == FieldDifference(
        "kernel function", "triton_poi_fused_0", "another function of this name"
    )
    assert holders(one, two) == ("function", "exact")
    assert first_difference(one, one.model_copy(update={"function": None})) is None


BUFFER = torch.zeros(256, dtype=torch.uint8)
COPY = {"source": torch.zeros(256, dtype=torch.uint8)}
ROWS = {"size_bytes": 16, "height": 4, "pitch_bytes": 64}
OTHERS: list[tuple[str, dict[str, Any], dict[str, Any], tuple[str, str, str], tuple[str, ...]]] = [
    ("memcpy", COPY, {"direction": "h2d"}, ("copy kind", "device to device", "host to device"), TIERS),
    ("memcpy", COPY, {"direction": "d2h"}, ("copy kind", "device to device", "device to host"), TIERS),
    ("memcpy", COPY, {"size_bytes": 100}, ("copy width", "256", "100"), ("exact",)),
    ("memset", {}, {"size_bytes": 100}, ("memset width", "256", "100"), ("exact",)),
    ("memset", {}, {"element_bytes": 2}, ("memset element size", "1", "2"), ("exact",)),
    ("memset", {}, {"value": 3}, ("memset value", "0", "3"), ()),
    ("memset", ROWS, {"height": 3}, ("memset height", "4", "3"), TIERS),
    ("memset", ROWS, {"size_bytes": 12}, ("memset width", "16", "12"), TIERS),
    ("memset", ROWS, {"element_bytes": 4}, ("memset element size", "1", "4"), TIERS),
    ("memset", ROWS, {"pitch_bytes": 32}, ("memset pitch", "64", "32"), TIERS),
    ("memset", ROWS, {"height": 1}, ("memset height", "4", "1"), TIERS),
]


@pytest.mark.parametrize(("kind", "base", "change", "told", "tiers"), OTHERS, ids=[f"{row[0]} {row[2]}" for row in OTHERS])
def test_copies_and_memsets_differ_in_one_field(
    kind: str, base: dict[str, Any], change: dict[str, Any], told: tuple[str, str, str], tiers: tuple[str, ...]
) -> None:
    """D3: the kind of a copy and the extent of a memset of several rows are always held."""
    one, two = other(kind, BUFFER, **base), other(kind, BUFFER, **(base | change))
    assert first_difference(one, two) == told
    assert holders(one, two) == tiers


def test_addresses_are_parameters() -> None:
    elsewhere = torch.zeros(256, dtype=torch.uint8)
    one, two = other("memset", BUFFER), other("memset", elsewhere)
    told = ("parameters", f"destination {BUFFER.data_ptr()}", f"destination {elsewhere.data_ptr()}")
    assert first_difference(one, two) == told
    assert holders(one, two) == ()


def test_nodes_of_two_kinds_differ_in_their_kind_alone() -> None:
    assert list(differences(kernel(), other("memset", BUFFER))) == [FieldDifference("kind", "kernel", "memset")]


def test_a_node_of_another_context_is_told() -> None:
    """D3."""
    one = kernel()
    two = kernel(context=10**6)
    assert first_difference(one, two) == FieldDifference("context", "the device's own", "1000000")
    assert holders(one, two) == TIERS


def test_what_is_not_known_is_no_difference() -> None:
    """An export of an earlier release tells neither local memory nor the memory of copies."""
    one, two = kernel(), kernel(local_bytes=64)
    assert first_difference(one.model_copy(update={"local_bytes": None}), two) is None
    copies = other("memcpy", BUFFER, **COPY), other("memcpy", BUFFER, **COPY, direction="h2d")
    assert first_difference(copies[0].model_copy(update={"memory": None}), copies[1]) is None


def test_long_parameters_are_cut_and_missing_ones_said() -> None:
    one = Node(index=0, kind="kernel", name="k", parameters={"kernel_params": ["00", "ab" * 40]})
    two = one.model_copy(update={"parameters": {"kernel_params": ["00"]}})
    assert first_difference(one, two) == (
        "parameters",
        f"kernel_params[1] {'ab' * 18}a...",
        "kernel_params[1] none",
    )


@pytest.mark.parametrize(
    ("node", "reason"),
    [
        (Node(index=0, kind="mem_alloc"), "graphs with a node of kind mem_alloc are passed through (rule D11)"),
        (
            Node(index=0, kind="kernel", attributes={"device_updatable": (1, 0)}),
            "graphs with a device-updatable kernel are passed through (rule D11)",
        ),
        (kernel(attributes={"device_updatable": 1}), "graphs with a device-updatable kernel are passed through (rule D11)"),
        (
            Node(index=0, kind="kernel", unreadable=("cluster", "local memory")),
            "cluster, local memory cannot be read and could be in use (rule D3)",
        ),
        (Node(index=0, kind="kernel", unreadable=("priority", "kernel_params", "preferred_cluster")), ""),
        (kernel(), ""),
    ],
)
def test_what_keeps_a_graph_from_sharing_at_all(node: Node, reason: str) -> None:
    """D3, D11."""
    assert forbids_sharing(node, Held.of("structure", H200, FLAGS)) == reason


def test_a_hidden_attribute_keeps_from_sharing_where_a_kernel_could_use_it() -> None:
    """D3: a driver that uses preferred clusters and does not tell them."""
    hidden = DriverProfile(uses_preferred_cluster=True, carries_attributes={"preferred_cluster": "stale"})
    held = Held.of("structure", probe_profile(hidden), FLAGS)
    reason = "preferred cluster cannot be read and could be in use (rule D3)"
    assert forbids_sharing(kernel(**CLUSTER), held) == reason
    assert forbids_sharing(kernel(), held) == ""


def test_a_tier_that_does_not_exist_is_one_clear_error() -> None:
    with pytest.raises(SettingsError, match=r"tier 'loose' is unknown\. Remedy: use one of structure, function, exact"):
        Held.of("loose", H200, FLAGS)
