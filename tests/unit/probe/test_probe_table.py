"""The tables of capabilities: pure functions that show every answer, and say in words what the fold makes of them."""

from __future__ import annotations

import re
from typing import Any

import pytest

from graphdedup.capabilities import AnswerRow, AttributeRow, Capabilities, FactRow, Outcome
from graphdedup.driver.protocol import DeviceIdentity
from graphdedup.probe.table import conclusions, summary, to_markdown, to_text

OTHER = ", with another function"


def answers(*told: tuple[str, str, str]) -> tuple[AnswerRow, ...]:
    """Rows of (topic, way, outcome)."""
    return tuple(AnswerRow(topic=topic, way=way, outcome=Outcome(outcome)) for topic, way, outcome in told)


def ways(*told: tuple[str, str]) -> tuple[AnswerRow, ...]:
    return answers(*(("topic", way, outcome) for way, outcome in told))


def made(**fields: Any) -> Capabilities:
    """Capabilities of a device that is called "Device"."""
    return Capabilities(**{"device": "Device", "source": "measured by hand", **fields})


def carrying(**other: str) -> Capabilities:
    """Functions of each kind are carried; ``cluster`` answers, by way ("_" for a space), are given."""
    functions = (
        "function",
        "function with local memory",
        "function with many registers",
        "function with static shared memory",
        "function above 48 KB",
        "function with printf",
        "function of another module",
        "function of a module loaded later",
    )
    told = [(topic, "to it", "carried") for topic in functions]
    for way, outcome in other.items():
        alone = way.removesuffix("_other").replace("_", " ")
        told.append(("cluster", alone + (OTHER if way.endswith("_other") else ""), outcome))
    return made(answers=answers(*told))


def cells(text: str) -> dict[str, list[str]]:
    """Label -> the cells after it, for lines of columns set apart by two spaces or more."""
    rows = [re.split(r" {2,}", line) for line in text.splitlines()]
    return {row[0]: row[1:] for row in rows if len(row) > 1 and row[0]}


# What an update does, in a few words


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (ways(), ["not asked"]),
        (ways(("changed", "refused"), ("set", "refused")), ["refused"]),
        (ways(("changed", "unobserved"), ("changed" + OTHER, "unobserved")), ["unobserved"]),
        (ways(("larger", "carried"), ("smaller", "stale"), ("back", "carried")), ["carried (larger; back)", "stale (smaller)"]),
        (
            ways(("changed" + OTHER, "carried"), ("changed", "stale"), ("set", "stale"), ("set" + OTHER, "carried")),
            ["stale alone", "carried with another function"],
        ),
        (
            ways(("changed", "stale"), ("changed" + OTHER, "carried"), ("unset" + OTHER, "stale"), ("same", "unobserved")),
            [
                "stale alone (changed)",
                "unobserved alone (same)",
                "carried with another function (changed)",
                "stale with another function (unset)",
            ],
        ),
        (
            ways(("changed" + OTHER, "carried"), ("unset" + OTHER, "stale")),
            ["carried with another function (changed)", "stale with another function (unset)"],
        ),
    ],
)
def test_a_topic_in_as_few_words_as_its_answers_allow(rows: tuple[AnswerRow, ...], expected: list[str]) -> None:
    assert summary(rows) == expected


# The terminal


MEASURED = made(
    device="NVIDIA H200",
    compute_capability=(9, 0),
    driver_version="580.1",
    cuda_version="13.0",
    torch_version="2.11.0",
    attributes=(
        AttributeRow(name="cooperative", number=2, readable=True, settable=True),
        AttributeRow(name="cluster", number=4, readable=True, settable=None),
        AttributeRow(name="device_updatable", number=13, readable=False),
    ),
    answers=answers(
        ("cooperative", "changed", "refused"),
        ("cluster", "changed", "stale"),
        ("grid", "larger", "carried"),
        ("cluster", "changed" + OTHER, "carried"),
        ("grid", "smaller", "broken"),
    ),
    facts=(
        FactRow(name="nodes are told in creation order", value="yes", detail="places: [0, 1]"),
        FactRow(name="a disabled node stays disabled", value="unknown"),
    ),
)


def test_the_table_shows_every_attribute_topic_and_fact() -> None:
    text = to_text(MEASURED)
    assert text.splitlines()[:2] == [
        "graphdedup probe: NVIDIA H200, compute capability 9.0, driver 580.1, CUDA 13.0, torch 2.11.0",
        "measured by hand",
    ]
    shown = cells(text)
    assert shown["name"] == ["number", "readable", "settable", "an update"]
    assert shown["cooperative"] == ["2", "yes", "yes", "refused"]
    assert shown["cluster"] == ["4", "yes", "unknown", "stale alone"]
    assert shown["device_updatable"] == ["13", "no", "unknown", "not asked"]
    assert shown["grid"] == ["carried (larger)"]
    assert shown["nodes are told in creation order"] == ["yes (places: [0, 1])"]
    assert shown["a disabled node stays disabled"] == ["unknown"]
    lines = [line.strip() for line in text.splitlines()]
    assert lines[lines.index("cluster" + " " * 11 + "4       yes       unknown   stale alone") + 1] == (
        "carried with another function"
    )
    assert "broken (smaller)" in lines
    titles = ["Launch attributes", "Everything else an update may change", "Facts", "So the fold"]
    assert [line for line in lines if line in titles] == titles


def test_color_only_adds_color_and_shows_what_the_driver_did_silently() -> None:
    plain, colored = to_text(MEASURED), to_text(MEASURED, color=True)
    assert re.sub(r"\x1b\[\d+m", "", colored) == plain
    assert "\x1b[31mstale alone\x1b[0m" in colored
    assert "\x1b[31mbroken (smaller)\x1b[0m" in colored
    assert "\x1b[31mcarried" not in colored
    assert "\x1b[1mSo the fold\x1b[0m" in colored


def test_what_nobody_measured_has_no_empty_sections() -> None:
    identity = DeviceIdentity("cuda", "Device", 0, 0, (9, 0), "580.1", 580)
    text = to_text(Capabilities.unknown(identity, "no NVRTC"))
    lines = text.splitlines()
    assert lines[:4] == [
        "graphdedup probe: Device, compute capability 9.0, driver 580.1",
        "not measured: no NVRTC",
        "",
        "So the fold",
    ]
    assert cells(text)["kernel functions"] == ["stay in the key: only graphs of the same functions share an executable"]


def test_what_does_not_fit_goes_on_in_the_next_line() -> None:
    """Nothing is cut off, and no line is wider than 120."""
    words = [f"word{number}" for number in range(60)]
    long = made(
        attributes=(AttributeRow(name="cluster", number=4),),
        answers=answers(*(("cluster", word, "stale") for word in words), ("cluster", "set", "carried")),
        facts=(FactRow(name="a fact", value="yes", detail=" ".join(words)),),
    )
    text = to_text(long)
    assert max(map(len, text.splitlines())) <= 120
    assert all(len(re.findall(rf"{word}\b", text)) == 2 for word in words)


# What follows for the fold


def said(capabilities: Capabilities) -> dict[str, str]:
    return dict(conclusions(capabilities))


def test_d4_functions_and_clusters_that_are_not_known_to_be_carried_stay_in_the_key() -> None:
    """D4: nothing known is nothing carried."""
    nothing = said(made())
    assert nothing["kernel functions"] == "stay in the key: only graphs of the same functions share an executable"
    assert nothing["cluster dimensions"] == "stay in the key"
    assert nothing["no cluster dimension"] == "nothing to do: cluster dimensions are in the key"
    assert nothing["grid, block, shared memory"] == "in the key"
    assert nothing["size of 1-D memsets"] == "in the key; that of 2-D memsets always stays"
    assert nothing["size of memcpys"] == "in the key"


def test_d3_clusters_that_go_with_functions_and_those_that_go_alone() -> None:
    """D3: what is said of clusters follows from the answers, with and without another function."""
    together = {"changed_other": "carried", "set_other": "carried", "to_one_block_other": "carried"}
    alone = dict.fromkeys(("changed", "changed_back", "set", "to_one_block", "from_one_block"), "carried")
    nested = "in child graphs they stay in the key"
    rule = (
        "not in the key, they fold together with functions: within a group one function has one cluster dimension at each node"
    )
    mended = "a kernel that sets none is made to say (1, 1, 1) where the executable may hold another"

    assert said(carrying())["kernel functions"] == "not in the key: graphs of other functions share an executable"
    assert said(carrying())["cluster dimensions"] == "stay in the key"

    as_on_hopper = said(carrying(**together, changed="stale", unset_other="stale"))
    assert as_on_hopper["cluster dimensions"] == f"{rule}; {nested}"
    assert as_on_hopper["no cluster dimension"] == mended

    whole = carrying(**together, **alone, unset="carried", unset_other="carried")
    assert said(whole)["cluster dimensions"] == f"not in the key; {nested}"
    assert said(whole)["no cluster dimension"] == "nothing to do: an update carries it"
    assert said(carrying(**together, **alone, unset="stale", unset_other="carried"))["no cluster dimension"] == mended

    broken = said(carrying(**together, from_one_block="broken"))
    assert broken["cluster dimensions"] == "stay in the key"


@pytest.mark.parametrize(
    ("topics", "name", "words"),
    [
        (("grid", "block", "shared memory", "shared memory above 48 KB"), "grid, block, shared memory", "not in the key"),
        (("memset width", "memset element size"), "size of 1-D memsets", "not in the key; that of 2-D memsets always stays"),
        (("memcpy size",), "size of memcpys", "not in the key"),
    ],
)
def test_d4_a_size_is_not_in_the_key_when_all_of_its_topics_are_carried(topics: tuple[str, ...], name: str, words: str) -> None:
    """D4: and it says nothing of the others."""
    sizes = ("grid, block, shared memory", "size of 1-D memsets", "size of memcpys")
    seen = said(made(answers=answers(*((topic, "larger", "carried") for topic in topics))))
    assert seen[name] == words
    assert all(seen[other].startswith("in the key") for other in sizes if other != name)
    stale = answers(*((topic, "larger", "carried") for topic in topics), (topics[-1], "smaller", "stale"))
    assert said(made(answers=stale))[name].startswith("in the key")


def held_attributes(*told: tuple[str, str, str], flags: str = "1", **rows: tuple[bool, bool]) -> list[str]:
    """The attributes that are said to stay in the key, and, behind "hidden", those that forbid sharing."""
    numbers = {"cooperative": 2, "cluster": 4, "priority": 8, "mem_sync_domain": 10, "preferred_cluster": 11}
    capabilities = made(
        answers=answers(*told),
        attributes=tuple(
            AttributeRow(name=name, number=numbers[name], readable=readable, settable=settable)
            for name, (readable, settable) in rows.items()
        ),
        facts=(FactRow(name="instantiate flags of torch", value=flags),),
    )
    words = said(capabilities)
    hidden = words["hidden attributes"].split(": ")[-1].split(", ")
    return [*words["launch attributes"].split(": ")[-1].split(", "), "hidden", *hidden]


def test_d3_attributes_that_stay_in_the_key_and_those_that_forbid_sharing() -> None:
    """D3: unobserved is not carried; what cannot be read forbids sharing unless a kernel would see it."""
    seen = held_attributes(
        ("mem_sync_domain", "changed", "unobserved"),
        ("preferred_cluster", "changed", "unobserved"),
        mem_sync_domain=(True, True),
        preferred_cluster=(False, True),
    )
    kept, hidden = seen[: seen.index("hidden")], seen[seen.index("hidden") + 1 :]
    assert kept[0] == "cooperative (always)"
    assert "mem_sync_domain" in kept
    assert "preferred_cluster" not in kept + hidden  # a kernel sees it, and saw no difference
    assert "priority" not in kept  # flags 1: node priorities are not used

    seen = held_attributes(("preferred_cluster", "changed", "stale"), preferred_cluster=(False, True))
    assert "preferred_cluster" in seen[seen.index("hidden") :]
    assert "preferred_cluster" not in seen[: seen.index("hidden")]

    assert "priority" in held_attributes(flags="9")
    assert "priority" in held_attributes(flags="unknown")  # what is not known is read


def test_no_hidden_attribute_is_said_too() -> None:
    rows = tuple(
        AttributeRow(name=name, number=number, readable=True)
        for name, number in {
            "cooperative": 2,
            "cluster": 4,
            "mem_sync_domain_map": 9,
            "mem_sync_domain": 10,
            "preferred_cluster": 11,
            "device_updatable": 13,
        }.items()
    )
    assert said(made(attributes=rows))["hidden attributes"] == "none forbids sharing"


# The page


def rows_of(markdown: str) -> list[str]:
    return [line for line in markdown.splitlines() if line.startswith("|")]


def test_ways_of_one_outcome_share_a_row() -> None:
    told = (
        AnswerRow(topic="cluster", way="changed", outcome=Outcome.STALE, verdict="SUCCESS"),
        AnswerRow(topic="cluster", way="changed" + OTHER, outcome=Outcome.CARRIED, verdict="SUCCESS"),
        AnswerRow(topic="cluster", way="set", outcome=Outcome.STALE, verdict="SUCCESS"),
        AnswerRow(topic="cluster", way="unset" + OTHER, outcome=Outcome.STALE, verdict="SUCCESS"),
        AnswerRow(topic="memcpy size", way="larger", outcome=Outcome.REFUSED, verdict="PARAMETERS_CHANGED", detail="memcpy"),
        AnswerRow(topic="memcpy size", way="smaller, from host", outcome=Outcome.REFUSED, verdict="PARAMETERS_CHANGED"),
        AnswerRow(topic="memory node", way="another size", outcome=Outcome.UNKNOWN, detail="not here"),
        AnswerRow(topic="event", way="one", outcome=Outcome.UNKNOWN, detail="this"),
        AnswerRow(topic="event", way="two", outcome=Outcome.UNKNOWN, detail="that"),
    )
    attribute = AttributeRow(name="cluster", number=4, readable=True)
    fact = FactRow(name="nodes are told in creation order", value="no", detail="1, 0")
    lines = rows_of(to_markdown([made(answers=told, attributes=(attribute,), facts=(fact,), driver_version="1.2")]))
    assert [line for line in lines if line.startswith(("| `cluster`", "| memcpy size", "| memory", "| event", "| nodes"))] == [
        "| `cluster` | 4 | readable yes, settable unknown |",
        "| `cluster` | changed; set; with another function: unset | **stale** |",
        "| `cluster` | with another function: changed | carried |",
        "| memcpy size | larger; smaller, from host | refused: PARAMETERS_CHANGED |",
        "| memory node | another size | unknown: not here |",
        "| event | one; two | unknown |",
        "| nodes are told in creation order | no (1, 0) |",
    ]
    assert {"| driver | 1.2 |", "| CUDA | unknown |", "| attribute | number | Device |"} <= set(lines)


def test_each_device_has_a_column() -> None:
    """Ways share a row only where they do so on every device; what one device was not asked is told from "unknown"."""
    one = made(device="One", answers=answers(("grid", "larger", "carried"), ("grid", "smaller", "carried")))
    two = made(
        device="Two", answers=answers(("grid", "larger", "stale"), ("grid", "smaller", "carried"), ("block", "x", "broken"))
    )
    lines = rows_of(to_markdown([one, two]))
    assert "| topic | difference | One | Two |" in lines
    assert [line for line in lines if line.startswith(("| grid |", "| block |"))] == [
        "| grid | larger | carried | **stale** |",
        "| grid | smaller | carried | carried |",
        "| block | x | not asked | **broken** |",
    ]


def test_two_measurements_of_one_device_are_told_apart() -> None:
    columns = [made(driver_version=version, torch_version="2.11") for version in ("580", "590")]
    assert "|  | Device, driver 580, torch 2.11 | Device, driver 590, torch 2.11 |" in rows_of(to_markdown(columns))


def test_no_name_breaks_a_row() -> None:
    odd = made(device="a|b", source="<made\nup>", facts=(FactRow(name="fact", value="yes", detail="x | y"),))
    lines = rows_of(to_markdown([odd]))
    assert "|  | a\\|b |" in lines
    assert "| source | &lt;made up> |" in lines
    assert "| fact | yes (x \\| y) |" in lines


def test_m5_the_same_capabilities_give_the_same_text() -> None:
    """M5: what came back from JSON is shown as what was measured."""
    again = Capabilities.from_json(MEASURED.to_json())
    assert to_text(again) == to_text(MEASURED)
    assert to_markdown([again]) == to_markdown([MEASURED])
