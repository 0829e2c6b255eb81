"""Markdown: the numbers are there, and what a label holds is shown and does nothing."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from graphdedup.report import DemoResult, FootprintReport, ModeResult
from graphdedup.report.markdown import escaped

HOSTILE = "</td><img src=x onerror=alert(1)> | `code` [link](http://example.org) @everyone #12 &amp; www.example.org\n# heading"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("decode bs=8 segment 3", "decode bs=8 segment 3"),
        ("a|b", r"a\|b"),
        ("<b>", "&lt;b&gt;"),
        ("&lt;", "&amp;lt;"),
        ("@all #7", "&#64;all &#35;7"),
        ("http://x www.x 1.5", "http:&#47;&#47;x www&#46;x 1.5"),
        ("two\n\tlines", "two lines"),
        (r"\| `x` *y* _z_ [l](m) ~s~ $t$", r"\\\| \`x\` \*y\* \_z\_ \[l\](m) \~s\~ \$t\$"),
    ],
)
def test_text_is_shown_as_it_stands(text: str, shown: str) -> None:
    assert escaped(text) == shown


def cells(markdown: str) -> dict[str, list[str]]:
    """First cell of each row of a table -> the others."""
    split = [[cell.strip() for cell in line.strip("|").split("|")] for line in markdown.splitlines() if line.startswith("| ")]
    return {row[0]: row[1:] for row in split}


def test_a_footprint_at_a_glance(grouped: Callable[..., FootprintReport]) -> None:
    text = grouped(5).to_markdown()
    assert text.startswith("### 5 captured graphs, 2 execs\n")
    assert text.endswith("\n")
    shown = cells(text)
    assert shown["execs, device"] == ["2.2 MB", "1.4 GB", "modelled", "live execs x a table"]
    assert shown["execs without folding, device"] == ["15.0 KB", "-", "modelled", "live execs x a table"]
    assert shown["5"] == ["31", "15", "4,567", "0.00", "3", "1", "2"], "groups, then the row's other counts"
    assert shown["decode bs=3 segment 0 (graph 5)"] == ["node 1 differs"]
    assert "<summary>Graphs on their own: 1</summary>" in text


def test_what_labels_and_names_hold_does_nothing(grouped: Callable[..., FootprintReport]) -> None:
    hostile = grouped(5, text=HOSTILE).to_markdown()
    plain = grouped(5).to_markdown()
    assert hostile.count("\n") == plain.count("\n"), "no line more"
    elements = re.compile(r"<[^>]*>")
    assert elements.findall(hostile) == elements.findall(plain)
    unescaped = re.compile(r"(?<!\\)[`|\[]")
    assert unescaped.findall(hostile) == unescaped.findall(plain), "no code, link or cell more"
    assert "@" not in hostile
    assert "://" not in hostile


def test_many_rows_are_cut_and_said_to_be(grouped: Callable[..., FootprintReport]) -> None:
    text = grouped(40, alone=30).to_markdown()
    assert "and 20 more, in the JSON" in text
    assert text.count("segment") == 10


def test_a_demo_by_mode(mode_result: Callable[..., ModeResult], demo_result: Callable[..., DemoResult]) -> None:
    plain = {"unfolded_captured": 256, "unfolded_compared": 768, "unfolded_mismatches": 0}
    full = mode_result(**plain, unfolded_exec_device_bytes=362_000_000, unfolded_exec_host_bytes=None)
    text = demo_result(full=full, breakable=mode_result(captured=1044, execs=29)).to_markdown()
    shown = cells(text)
    assert shown["captured graphs"] == ["256", "1,044"]
    assert shown["execs, device"] == ["2.1 MB measured", "2.1 MB measured"]
    assert shown["execs without folding, device"] == ["362.0 MB measured", "-"]
    assert shown["execs without folding, host"] == ["unknown measured", "-"]
    assert "2,304 replays equal eager bit for bit." in text
    assert "**5 of 768 replays differ from eager.**" in demo_result(full=mode_result(mismatches=5)).to_markdown()
