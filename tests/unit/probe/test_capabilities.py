"""What follows from the answers of a probe for the fold: each property from answers made by hand."""

from __future__ import annotations

import json
from typing import Any

import pytest

import graphdedup
from graphdedup.capabilities import ANOTHER_FUNCTION, AnswerRow, AttributeRow, Capabilities, FactRow, Outcome
from graphdedup.driver.attributes import ATTRIBUTES, Effect
from graphdedup.driver.protocol import DeviceIdentity, GraphRecord, NodeRecord
from graphdedup.signature import record_bytes

IDENTITY = DeviceIdentity("cuda", "Some GPU", 0, 7, (9, 0), "580.159", 580)
AUTO_FREE_ON_LAUNCH, USE_NODE_PRIORITY = 1, 8
BOTH_WAYS = {"to it": "carried", "from it": "carried"}
GOOD: dict[str, dict[str, str]] = {
    "function": BOTH_WAYS,
    "function with local memory": BOTH_WAYS,
    "function with many registers": BOTH_WAYS,
    "function with static shared memory": BOTH_WAYS,
    "function above 48 KB": BOTH_WAYS,
    "function with printf": BOTH_WAYS,
    "function of another module": BOTH_WAYS,
    "function of a module loaded later": BOTH_WAYS,
    "cluster": {
        **dict.fromkeys(("changed", "changed back", "set", "unset", "to one block", "from one block"), "stale"),
        **{way + ANOTHER_FUNCTION: "carried" for way in ("changed", "set", "to one block")},
        "unset" + ANOTHER_FUNCTION: "stale",
    },
    "grid": {"larger": "carried", "smaller": "carried"},
    "block": {"larger": "carried", "smaller": "carried"},
    "shared memory": {"more": "carried", "less": "carried"},
    "shared memory above 48 KB": {"more": "carried", "less": "carried"},
    "memset width": {"larger": "carried", "smaller": "carried"},
    "memset element size": {"1 to 4": "carried", "4 to 1": "carried"},
    "memcpy size": {"larger": "carried", "smaller": "carried"},
    "access_policy_window": {"changed": "carried"},
    "cluster_scheduling_policy": {"changed": "carried"},
    "mem_sync_domain_map": {"changed": "carried"},
    "mem_sync_domain": {"changed": "carried"},
    "preferred_cluster": {"changed": "unobserved"},
    "shared_memory_carveout": {"changed": "carried"},
    "nvlink_util_centric_scheduling": {"changed": "refused"},
    "portable_cluster_size": {"changed": "unknown"},
    "shared_memory_mode": {"changed": "unknown"},
    "priority under USE_NODE_PRIORITY": {"changed": "carried"},
}
"""A driver that carries clusters with another function only, and most else."""
UNREADABLE = {"preferred_cluster", "nvlink_util_centric_scheduling", "portable_cluster_size", "shared_memory_mode"}
ROWS = tuple(
    AttributeRow(name=name, number=attribute.number, readable=name not in UNREADABLE, settable=True)
    for name, attribute in ATTRIBUTES.items()
)
ALL_CLUSTERS = dict.fromkeys((*GOOD["cluster"],), "carried")


def made(changes: dict[str, dict[str, str] | None] | None = None, attributes: Any = ROWS) -> Capabilities:
    """``GOOD`` with some topics answered otherwise, way by way; None leaves a topic out, an empty outcome a way."""
    table = {topic: dict(ways) for topic, ways in GOOD.items()}
    for topic, ways in (changes or {}).items():
        if ways is None:
            del table[topic]
        else:
            table.setdefault(topic, {}).update(ways)
    answers = tuple(
        AnswerRow(topic=topic, way=way, outcome=Outcome(outcome))
        for topic, ways in table.items()
        for way, outcome in ways.items()
        if outcome
    )
    return Capabilities(device="Some GPU", source="by hand", attributes=attributes, answers=answers)


def rows(**changes: dict[str, bool | None]) -> tuple[AttributeRow, ...]:
    """``ROWS`` with some attributes otherwise."""
    return tuple(row.model_copy(update=changes.get(row.name, {})) for row in ROWS)


# Functions


@pytest.mark.parametrize(
    ("changes", "carried"),
    [
        ({}, True),
        ({"function with printf": {"to it": "refused", "from it": "refused"}}, True),
        ({"function of another module": {"from it": "refused"}}, True),
        ({"function": {"to it": "refused", "from it": "refused"}}, False),
        ({"function": {"from it": "refused"}}, False),
        ({"function": None}, False),
        ({"function with local memory": {"to it": "stale"}}, True),  # always in the key, whatever was measured
        ({"function with many registers": {"from it": "broken"}}, False),
        ({"function with static shared memory": {"to it": "unobserved"}}, False),
        ({"function above 48 KB": {"to it": "unknown"}}, False),
        ({"function of a module loaded later": None}, False),
    ],
)
def test_functions_may_differ_where_each_kind_is_carried_or_refused(changes: Any, carried: bool) -> None:
    """D3, D4: a plain one has to be carried; one kind that goes wrong, or was not tried, keeps all of them in the key."""
    assert made(changes).carries_function is carried


# Clusters


@pytest.mark.parametrize(
    ("changes", "carried"),
    [
        ({}, True),
        ({"cluster": {"unset" + ANOTHER_FUNCTION: "carried"}}, True),
        ({"cluster": {"changed" + ANOTHER_FUNCTION: "stale"}}, False),
        ({"cluster": {"set" + ANOTHER_FUNCTION: "refused"}}, False),
        ({"cluster": {"to one block" + ANOTHER_FUNCTION: "unobserved"}}, False),
        ({"cluster": {"changed" + ANOTHER_FUNCTION: ""}}, False),
        ({"cluster": {"changed": "broken"}}, False),
        ({"cluster": None}, False),
        ({"function": None}, False),
        ({"function": None, "cluster": ALL_CLUSTERS}, True),
    ],
)
def test_clusters_may_differ_where_they_are_carried_with_another_function(changes: Any, carried: bool) -> None:
    """D3: where functions stay in the key, clusters have to be carried alone."""
    assert made(changes).carries_cluster is carried


@pytest.mark.parametrize("way", ["changed", "changed back", "set", "to one block", "from one block"])
def test_clusters_are_carried_alone_where_every_way_is(way: str) -> None:
    """D3: with one way that is stale, refused or unknown, a function has one cluster dimension within a group."""
    assert made({"cluster": ALL_CLUSTERS}).carries_cluster_alone
    for outcome in ("stale", "refused", "unobserved", ""):
        assert not made({"cluster": {**ALL_CLUSTERS, way: outcome}}).carries_cluster_alone


def test_a_cluster_that_cannot_be_unset_is_still_carried_alone() -> None:
    """D3: a kernel that sets none says (1, 1, 1) instead."""
    changes = {"cluster": {**ALL_CLUSTERS, "unset": "stale", "unset" + ANOTHER_FUNCTION: "stale"}}
    assert made(changes).carries_cluster_alone
    assert made(changes).mends_unset_cluster


@pytest.mark.parametrize("way", ["unset", "unset" + ANOTHER_FUNCTION])
def test_a_kernel_without_clusters_is_mended_unless_none_is_carried_both_ways(way: str) -> None:
    """D3: what was not measured is mended as well: (1, 1, 1) does no harm."""
    assert not made({"cluster": ALL_CLUSTERS}).mends_unset_cluster
    for outcome in ("stale", "refused", "unobserved", "unknown", ""):
        assert made({"cluster": {**ALL_CLUSTERS, way: outcome}}).mends_unset_cluster


# Attributes that cannot be read


@pytest.mark.parametrize(
    ("outcome", "harmless"),
    [("carried", True), ("refused", True), ("unobserved", True), ("stale", False), ("broken", False), ("unknown", False)],
)
def test_an_unreadable_preferred_cluster_is_hidden_where_an_update_may_drop_it(outcome: str, harmless: bool) -> None:
    """D3: a kernel sees its cluster, so where two values show the same, the device does not use them."""
    assert made({"preferred_cluster": {"changed": outcome}}).hidden == (() if harmless else ("preferred_cluster",))


@pytest.mark.parametrize(
    ("outcome", "harmless"), [("carried", True), ("refused", True), ("unobserved", False), ("stale", False), ("unknown", False)]
)
def test_an_unreadable_attribute_that_no_kernel_sees_is_hidden_unless_carried_or_refused(outcome: str, harmless: bool) -> None:
    """D3: that a memory domain shows in no launch does not say that it is carried."""
    unreadable = rows(mem_sync_domain={"readable": False})
    found = made({"mem_sync_domain": {"changed": outcome}}, unreadable).hidden
    assert found == (() if harmless else ("mem_sync_domain",))


def test_one_way_that_goes_wrong_is_enough_to_hide() -> None:
    """D3."""
    assert made({"preferred_cluster": {"changed": "carried", "unset": "stale"}}).hidden == ("preferred_cluster",)
    assert made({"preferred_cluster": None}).hidden == ("preferred_cluster",)


@pytest.mark.parametrize(
    ("row", "hidden"),
    [
        ({"readable": True}, False),
        ({"readable": None}, True),
        ({"settable": False}, False),
        ({"settable": None}, True),
    ],
)
def test_only_what_is_unreadable_and_can_be_set_is_hidden(row: dict[str, Any], hidden: bool) -> None:
    """D3: an attribute that the driver takes from nobody no kernel has; what could not be told counts as possible."""
    found = made({"preferred_cluster": {"changed": "stale"}}, rows(preferred_cluster=row)).hidden
    assert found == (("preferred_cluster",) if hidden else ())


def test_what_changes_the_time_alone_is_never_hidden() -> None:
    """D3: it could not change what a kernel computes."""
    stale = {name: {"changed": "stale"} for name, attribute in ATTRIBUTES.items() if attribute.effect is not Effect.BYTES}
    unreadable = rows(**{name: {"readable": False} for name in stale})
    assert made(stale, unreadable).hidden == ()


# What a walk reads


def test_nothing_more_is_read_where_everything_is_carried() -> None:
    """D4."""
    reads = made().reads(AUTO_FREE_ON_LAUNCH)
    assert reads.attributes == ()
    assert (reads.geometry, reads.memset_extent, reads.memcpy_extent) == (False,) * 3


@pytest.mark.parametrize(
    "name", ["access_policy_window", "cluster_scheduling_policy", "mem_sync_domain", "mem_sync_domain_map"]
)
@pytest.mark.parametrize("outcome", ["stale", "refused", "unobserved", "unknown", "broken"])
def test_a_readable_attribute_is_read_unless_every_way_is_carried(name: str, outcome: str) -> None:
    """D3: what shows in no launch may have been dropped; what is refused need not be offered."""
    assert made({name: {"changed": "carried"}}).reads(AUTO_FREE_ON_LAUNCH).attributes == ()
    assert made({name: {"unset": outcome}}).reads(AUTO_FREE_ON_LAUNCH).attributes == (name,)
    assert made({name: None}).reads(AUTO_FREE_ON_LAUNCH).attributes == (name,)


def test_a_readable_preferred_cluster_that_shows_in_no_launch_is_not_read() -> None:
    """D3, D4: it is not used, so it is no reason to keep graphs apart; one that is used and stale is."""
    readable = rows(preferred_cluster={"readable": True})
    assert made({}, readable).reads(1).attributes == ()
    assert made({"preferred_cluster": {"set": "stale"}}, readable).reads(1).attributes == ("preferred_cluster",)


def test_what_cannot_be_read_is_asked_for_only_where_it_could_matter() -> None:
    """D3: a hidden attribute is asked for, so that a walk names the nodes that could use it; one of time only is not."""
    changes = {name: {"changed": "stale"} for name in UNREADABLE}
    assert made(changes).reads(AUTO_FREE_ON_LAUNCH).attributes == ("preferred_cluster",)


def test_what_every_record_has_is_not_asked_for_again() -> None:
    """D3: cooperative launch, clusters and device-updatable kernels are always read."""
    changes = {name: {"changed": "stale"} for name in ("cooperative", "cluster", "device_updatable")}
    assert made(changes).reads(AUTO_FREE_ON_LAUNCH).attributes == ()


@pytest.mark.parametrize("flags", [0, AUTO_FREE_ON_LAUNCH])
def test_the_priority_is_read_only_under_the_flag_that_uses_it(flags: int) -> None:
    """D3: and there by what was measured under it."""
    refused = made({"priority under USE_NODE_PRIORITY": {"changed": "refused"}, "priority": {"changed": "carried"}})
    assert refused.reads(flags).attributes == ()
    assert refused.reads(flags | USE_NODE_PRIORITY).attributes == ("priority",)
    assert made({"priority": {"changed": "stale"}}).reads(flags | USE_NODE_PRIORITY).attributes == ()


@pytest.mark.parametrize(
    ("topic", "field"),
    [
        ("grid", "geometry"),
        ("block", "geometry"),
        ("shared memory", "geometry"),
        ("shared memory above 48 KB", "geometry"),
        ("memset width", "memset_extent"),
        ("memset element size", "memset_extent"),
        ("memcpy size", "memcpy_extent"),
    ],
)
@pytest.mark.parametrize("outcome", ["stale", "refused", "unobserved", "broken", None])
def test_an_extent_is_read_unless_every_way_is_carried(topic: str, field: str, outcome: str | None) -> None:
    """D3, D4: and no other extent with it."""
    reads = made({topic: None if outcome is None else {next(iter(GOOD[topic])): outcome}}).reads(AUTO_FREE_ON_LAUNCH)
    fields = ("geometry", "memset_extent", "memcpy_extent")
    assert {name for name in fields if getattr(reads, name)} == {field}
    assert reads.attributes == ()


# Nothing known


def test_unknown_capabilities_hold_everything() -> None:
    """D3: what was not measured is not taken as carried."""
    unknown = Capabilities.unknown(IDENTITY, "for a test")
    assert (unknown.device, unknown.driver_version, unknown.compute_capability) == ("Some GPU", "580.159", (9, 0))
    assert unknown.source == "not measured: for a test"
    assert not unknown.carries_function
    assert not unknown.carries_cluster
    assert not unknown.carries_cluster_alone
    assert unknown.mends_unset_cluster
    assert set(unknown.hidden) == {name for name, attribute in ATTRIBUTES.items() if attribute.effect is Effect.BYTES}
    reads = unknown.reads(AUTO_FREE_ON_LAUNCH)
    assert (reads.geometry, reads.memset_extent, reads.memcpy_extent) == (True,) * 3
    assert set(reads.attributes) == ATTRIBUTES.keys() - {"priority"}
    assert set(unknown.reads(USE_NODE_PRIORITY).attributes) == ATTRIBUTES.keys()
    assert unknown.outcome("grid", "larger") is Outcome.UNKNOWN
    assert unknown.outcomes("grid") == {Outcome.UNKNOWN}
    assert unknown.fact("a disabled node stays disabled") == "unknown"


def test_unknown_capabilities_keep_functions_and_clusters_in_the_record() -> None:
    """D3, D4: and what is known to be carried leaves them out."""

    def record(capabilities: Capabilities, **node: Any) -> bytes:
        return record_bytes(GraphRecord((NodeRecord("kernel", **node),), ()), IDENTITY, 1, capabilities)

    unknown, known = Capabilities.unknown(IDENTITY, "for a test"), made()
    for one, two in (({"function": 5}, {"function": 6}), ({"cluster": (1, 1, 1)}, {"cluster": (2, 1, 1)})):
        assert record(unknown, **one) != record(unknown, **two)
        assert record(known, **one) == record(known, **two)


# JSON


FULL = made().model_copy(
    update={
        "compute_capability": (9, 0),
        "driver_version": "580.159",
        "cuda_version": "13.0",
        "torch_version": "2.11.0",
        "facts": (FactRow(name="instantiate flags of torch", value="1", detail="as read"),),
    }
)


@pytest.mark.parametrize("indent", [None, 2])
def test_capabilities_come_back_from_json_equal(indent: int | None) -> None:
    text = FULL.to_json(indent=indent)
    back = Capabilities.from_json(text)
    assert back == FULL == Capabilities.from_json(text.encode())
    assert back.fact("instantiate flags of torch") == "1"
    assert back.outcome("nvlink_util_centric_scheduling", "changed") is Outcome.REFUSED
    assert json.loads(text)["kind"] == "graphdedup.capabilities"


def changed(path: str, value: Any) -> str:
    held = json.loads(FULL.to_json())
    *parents, last = path.split(".")
    place = held
    for name in parents:
        place = place[int(name) if name.isdigit() else name]
    place[last] = value
    return json.dumps(held)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "the text"),
        ("{", "the text"),
        ("[]", "the text"),
        ("{}", "device"),
        (changed("kind", "graphdedup.demo"), "kind"),
        (changed("schema_version", 2), "schema_version"),
        (changed("answers.3.outcome", "maybe"), r"answers\.3\.outcome"),
        (changed("attributes.0.readable", "perhaps"), r"attributes\.0\.readable"),
        (changed("facts.0.surprise", 1), r"facts\.0\.surprise"),
        (changed("compute_capability", [9]), r"compute_capability"),
    ],
)
def test_what_is_no_capabilities_is_refused_with_the_field(text: str, said: str) -> None:
    with pytest.raises(graphdedup.ReportError, match=rf"not capabilities: {said}.*graphdedup probe --json"):
        Capabilities.from_json(text)


def test_what_costs_time_alone_is_left_out_where_every_change_of_it_was_taken() -> None:
    """D4: not seen, or not whole, is no matter there; refused, or never asked, it stays."""
    time_only = {name for name, attribute in ATTRIBUTES.items() if attribute.effect is Effect.TIME}

    def reads(changes: dict[str, dict[str, str] | None]) -> tuple[str, ...]:
        return made(changes).reads(AUTO_FREE_ON_LAUNCH, leave_out=(Effect.TIME,)).attributes

    name = "cluster_scheduling_policy"
    for outcome in ("carried", "stale", "unobserved"):
        assert name not in reads({name: {"changed": outcome}})
    for outcome in ("refused", "broken"):
        assert name in reads({name: {"changed": outcome}})
    assert "mem_sync_domain" in reads({"mem_sync_domain": {"changed": "stale"}})
    unknown = Capabilities.unknown(IDENTITY, "for a test").reads(AUTO_FREE_ON_LAUNCH, leave_out=(Effect.TIME,))
    assert time_only - {"priority"} <= set(unknown.attributes)


def test_the_exact_tier_reads_all_that_the_driver_tells() -> None:
    """D4: but for what every record has; an attribute that no driver tells is not asked for."""
    reads = made({}).reads_everything()
    assert (reads.geometry, reads.memset_extent, reads.memcpy_extent) == (True, True, True)
    always = {"cooperative", "cluster", "device_updatable"}
    untold = {row.name for row in made({}).attributes if row.readable is False}
    assert set(reads.attributes) == ATTRIBUTES.keys() - always - untold
