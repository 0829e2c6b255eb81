"""Two reports of one kind side by side, and those of several ranks."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from graphdedup import GraphDedupError, ReportError, assert_ranks_agree
from graphdedup.report import BreakRow, DemoResult, Figure, FootprintReport, ModeResult, RefusalRow, SessionRow, Source
from graphdedup.report.difference import Difference, difference
from graphdedup.report.ranks import Ranks, merge_ranks

Make = Callable[..., Any]
A, B, C = "a" * 32, "b" * 32, "c" * 32


def on_device(value: int | None, source: Source = Source.MEASURED_DEVICE) -> Figure:
    return Figure(bytes=value, source=source, how="around the span")


def rows(told: Difference, part: str) -> dict[str, Any]:
    return {row.name: row for row in getattr(told, part)}


# Two reports


def test_counters_and_bytes_are_compared_one_by_one(footprint: Make) -> None:
    left = footprint(execs=29, exec_device=on_device(4_000_000))
    right = footprint(execs=5, exec_device=on_device(1_500_000))
    told = difference(left, right, left_name="a.json", right_name="b.json")
    counters = rows(told, "counters")
    assert (counters["execs"].left, counters["execs"].right) == (29, 5)
    assert {name for name, row in counters.items() if row.left != row.right} == {"execs"}
    assert "segments after attention (model.py:88)" in counters
    figure = rows(told, "figures")["exec_device"]
    assert (figure.left, figure.right, figure.comparable) == (4_000_000, 1_500_000, True)
    assert told.environment == ()
    lines = told.to_text().splitlines()
    assert lines[:2] == ["graphdedup report: a.json against b.json", "same environment"]
    assert "execs  29  5  -24" in lines
    row = next(line for line in lines if line.startswith("exec device"))
    assert re.split(" {2,}", row)[1:] == ["4.0 MB", "1.5 MB", "-2.5 MB", "measured on the device"]
    assert "seconds" not in lines, "equal seconds are not shown"


def test_figures_of_other_sources_are_shown_and_not_compared(footprint: Make) -> None:
    """M3: one was modelled, the other measured; no change is told. The same where one is not known."""
    left = footprint(exec_device=on_device(4_000_000, Source.MODELLED), libraries=on_device(5))
    told = difference(left, footprint(exec_device=on_device(1_000_000)))
    figures = rows(told, "figures")
    assert not figures["exec_device"].comparable
    assert not figures["pool"].comparable, "nothing was read"
    assert (figures["libraries"].left, figures["libraries"].right_source) == (5, None)
    text = told.to_text()
    row = next(line for line in text.splitlines() if line.startswith("exec device"))
    assert "4.0 MB" in row
    assert "1.0 MB" in row
    assert row.endswith("not comparable  modelled against measured on the device")
    assert "-3.0 MB" not in text


def test_figures_are_never_added() -> None:
    """M3: as many rows of bytes as the reports have figures, and no sum."""
    assert not any("total" in name or "sum" in name for name in Difference.model_fields)


def test_what_ran_where_is_named_first(footprint: Make) -> None:
    told = difference(footprint(), footprint(device="NVIDIA H100", torch_version="2.12.0", tier="exact", captured=7))
    assert [row.name for row in told.environment] == ["device", "torch_version", "tier"]
    lines = told.to_text().splitlines()
    assert lines[2:6] == [
        "environment",
        "device: NVIDIA H200 -> NVIDIA H100",
        "torch version: 2.11.0 -> 2.12.0",
        'tier: "" -> exact',
    ]


def test_reasons_that_came_and_went_are_told(footprint: Make) -> None:
    def refused(reason: str, count: int) -> RefusalRow:
        return RefusalRow(reason=reason, count=count, example="e")

    left = footprint(refusals=(refused("TOPOLOGY_CHANGED", 3), refused("stays", 2), refused("more", 1)))
    right = footprint(refusals=(refused("stays", 2), refused("more", 5), refused("ERROR", 1)))
    text = difference(left, right).to_text()
    assert "reasons: appeared\n  - -> 1  refusals: ERROR" in text
    assert "reasons: went\n  3 -> -  refusals: TOPOLOGY_CHANGED" in text
    assert "reasons: other counts\n  1 -> 5  refusals: more" in text
    assert "stays" not in text


def test_fold_plans_are_compared_by_their_digest(footprint: Make) -> None:
    assert difference(footprint(plan_digest=A), footprint(plan_digest=A)).same_plan is True
    other = difference(footprint(plan_digest=A), footprint(plan_digest=B))
    assert other.same_plan is False
    assert other.to_text().endswith("the fold plans differ")
    assert difference(footprint(plan_digest=A), footprint()).same_plan is None


def test_demos_are_compared_mode_by_mode(
    demo_result: Callable[..., DemoResult], mode_result: Callable[..., ModeResult]
) -> None:
    """A number of bytes takes its source from its mode; pools are measured by their allocator."""
    left = demo_result(full=mode_result(), breakable=mode_result(execs=5))
    right = demo_result(full=mode_result(execs=3, bytes_source="modelled", sizes=(1, 2)))
    told = difference(left, right)
    counters, figures = rows(told, "counters"), rows(told, "figures")
    assert (counters["full: execs"].left, counters["full: execs"].right) == (2, 3)
    assert (counters["breakable: execs"].left, counters["breakable: execs"].right) == (5, None)
    assert not figures["full: exec_device_bytes"].comparable
    assert figures["full: pool_bytes"].comparable
    assert figures["full: pool_bytes"].left_source == "measured"
    assert "full: seed" not in counters
    assert "model: layers" not in counters, "what was run is no counter"
    assert "full: sizes" in rows(told, "environment")
    assert "1, 2" in told.to_text()


def test_reports_of_two_kinds_are_refused(footprint: Make, demo_result: Make) -> None:
    with pytest.raises(ReportError) as caught:
        difference(footprint(), demo_result(), left_name="a.json", right_name="b.json")
    assert caught.value.problem == (
        "a.json is of kind graphdedup.footprint, b.json of kind graphdedup.demo: they cannot be compared."
    )


def test_a_difference_is_data(footprint: Make) -> None:
    told = difference(footprint(), footprint(execs=1))
    assert Difference.model_validate_json(told.to_json()) == told
    assert json.loads(told.to_json())["kind"] == "graphdedup.difference"


def test_hostile_words_do_not_reach_the_terminal(footprint: Make) -> None:
    bad = footprint(
        device="\x1b[31mred",
        sessions=(SessionRow(name="s\nt", captured=1, execs=1),),
        breaks=(BreakRow(name="\x07bell", segments=1),),
        refusals=(RefusalRow(reason="\x1b]0;x\x07", count=1, example=""),),
    )
    for text in (difference(footprint(), bad).to_text(), merge_ranks([footprint(), bad], ["a\x1b", "b"]).to_text()):
        assert all(char.isprintable() or char == "\n" for char in text)
    assert "session s\\nt: captured" in difference(footprint(), bad).to_text()
    assert difference(footprint(), bad).to_text(color=True).startswith("\x1b[1mgraphdedup report")


# Ranks


def test_ranks_stand_side_by_side_with_their_spread(footprint: Make) -> None:
    reports = [
        footprint(plan_digest=A, execs=execs, exec_device=on_device(size))
        for execs, size in ((5, 2_000_000), (4, 4_000_000), (7, 2_000_000))
    ]
    told = merge_ranks(reports, ["r0.json", "r1.json", "r2.json"])
    assert [(row.rank, row.label, row.counters["execs"]) for row in told.ranks] == [
        (0, "r0.json", 5), (1, "r1.json", 4), (2, "r2.json", 7),
    ]  # fmt: skip
    spread = {row.name: row for row in told.spread}
    execs, size = spread["execs"], spread["exec_device"]
    assert (execs.least, execs.least_rank, execs.most, execs.most_rank) == (4, 1, 7, 2)
    assert (size.least, size.most, size.most_rank, size.unit, size.source) == (
        2_000_000, 4_000_000, 1, "bytes", "measured on the device",
    )  # fmt: skip
    assert told.plans_agree is True
    text = told.to_text()
    assert text.splitlines()[-1] == "the fold plans of all 3 ranks agree"
    assert [line.split()[:2] for line in text.splitlines()[2:6]] == [
        ["rank", "file"], ["0", "r0.json"], ["1", "r1.json"], ["2", "r2.json"],
    ]  # fmt: skip
    assert Ranks.model_validate_json(told.to_json()) == told


def test_figures_of_several_sources_have_no_spread(footprint: Make) -> None:
    """M3: one rank measured what another one modelled."""
    told = merge_ranks([footprint(exec_device=on_device(1)), footprint(exec_device=on_device(2, Source.MODELLED))], ["a", "b"])
    assert "exec_device" not in {row.name for row in told.spread}
    assert "exec device bytes: measured on the device on some ranks, on others modelled, not comparable" in told.to_text()


def test_ranks_that_fold_otherwise_are_named_with_the_first_difference(footprint: Make) -> None:
    reports = [footprint(plan_digest=digest, execs=5 if digest == A else 6) for digest in (A, B, A, A, C)]
    told = merge_ranks(reports, [f"r{rank}.json" for rank in range(5)])
    assert (told.plans_agree, told.differing) == (False, (1, 4))
    assert told.first_difference == "execs: 6 on rank 1, 5 on rank 0"
    assert told.to_text().splitlines()[-1] == (
        "the fold plans DIFFER: rank 1 (bbbbbbbb), rank 4 (cccccccc) are not as ranks 0, 2, 3 (aaaaaaaa); "
        "execs: 6 on rank 1, 5 on rank 0"
    )


def test_whether_plans_agree_is_not_known_where_a_report_has_none(footprint: Make, demo_result: Make) -> None:
    assert merge_ranks([footprint(plan_digest=A), footprint()], ["a", "b"]).plans_agree is None
    told = merge_ranks([demo_result(), demo_result()], ["a", "b"])
    assert told.plans_agree is None
    assert "full: execs" in told.ranks[0].counters
    assert told.to_text().endswith("not known: not every report has one")


class Ranked(FootprintReport):
    """A report that says its rank."""

    rank: int


def test_a_report_that_says_its_rank_has_it_and_the_others_come_in_order(footprint: Make) -> None:
    def ranked(rank: int) -> Ranked:
        return Ranked(**dict(footprint(plan_digest=A)), rank=rank)

    told = merge_ranks([ranked(3), footprint(plan_digest=A), ranked(0)], ["x", "y", "z"])
    assert [(row.rank, row.label) for row in told.ranks] == [(0, "z"), (1, "y"), (3, "x")]
    with pytest.raises(ReportError, match=r"x and z are both of rank 3\."):
        merge_ranks([ranked(3), ranked(1), ranked(3)], ["x", "y", "z"])


def test_ranks_are_several_reports_of_one_kind(footprint: Make, demo_result: Make) -> None:
    with pytest.raises(ReportError, match="one report is no comparison"):
        merge_ranks([footprint()], ["a"])
    with pytest.raises(ReportError, match=r"a is of kind graphdedup\.footprint, b of kind graphdedup.demo"):
        merge_ranks([footprint(), demo_result()], ["a", "b"])


# In a program


def test_ranks_that_agree_pass(footprint: Make) -> None:
    assert_ranks_agree([A, A, A])
    assert_ranks_agree({4: A, 7: footprint(plan_digest=A)})
    assert_ranks_agree([])


def test_ranks_that_do_not_are_named(footprint: Make) -> None:
    """Of two that differ the lowest rank is taken to be right; digests alone tell no more."""
    with pytest.raises(GraphDedupError, match=r"2 ranks differ: rank 1 \(bbbbbbbb\) is not as rank 0 \(aaaaaaaa\) Remedy: "):
        assert_ranks_agree([A, B])
    with pytest.raises(GraphDedupError, match=r"rank 0 \(bbbbbbbb\) is not as ranks 1, 2 \(aaaaaaaa\)"):
        assert_ranks_agree([B, A, A])
    reports = {5: footprint(plan_digest=A), 9: footprint(plan_digest=B, captured=1043)}
    with pytest.raises(GraphDedupError, match=r"rank 9 .* as rank 5 .*; captured: 1043 on rank 9, 1044 on rank 5 Remedy"):
        assert_ranks_agree(reports)
    with pytest.raises(GraphDedupError, match="no counter differs between rank 1 and rank 0: labels or the order of captures"):
        assert_ranks_agree([footprint(plan_digest=A), footprint(plan_digest=B)])


def test_many_ranks_are_listed_in_part() -> None:
    with pytest.raises(GraphDedupError) as caught:
        assert_ranks_agree([A] * 40 + [B] * 20)
    assert "rank 51 (bbbbbbbb) and 8 more are not as ranks 0, 1, 2" in str(caught.value)
    assert "11 and 28 more (aaaaaaaa)" in str(caught.value)


@pytest.mark.parametrize("plan", ["", "abc", "G" * 32, None, 7])
def test_what_is_no_plan_is_refused(plan: Any) -> None:
    with pytest.raises(GraphDedupError, match=r"rank 1: .* is no digest of a fold plan"):
        assert_ranks_agree([A, plan])
