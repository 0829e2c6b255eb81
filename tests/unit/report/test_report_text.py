"""Text renderings: pure functions of the report that show every number, and say where bytes come from."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest

from graphdedup.report import DemoResult, FootprintReport, ModeResult
from graphdedup.report.text import format_bytes, table


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "unknown"),
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 KB"),
        (1_372_000, "1.4 MB"),
        (999_949, "999.9 KB"),
        (999_960, "1.0 MB"),
        (3_760_000_000, "3.8 GB"),
        (5_000_000_000_000_000, "5000.0 TB"),
        (-2_097_152, "-2.1 MB"),
    ],
)
def test_bytes_are_decimal_and_never_print_as_a_thousand(value: int | None, text: str) -> None:
    assert format_bytes(value) == text


def test_columns_align_left_then_right() -> None:
    assert table([("a", "1"), ("long", "22")]) == ["a      1", "long  22"]


def rows(text: str) -> dict[str, list[str]]:
    """Label -> the cells after it, for lines of columns set apart by two spaces or more."""
    cells = [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in text.splitlines()]
    return {line[0]: line[1:] for line in cells if len(line) > 1}


def test_footprint_shows_its_numbers(footprint: Callable[..., FootprintReport]) -> None:
    text = footprint().to_text()
    assert text.splitlines()[0] == "graphdedup footprint: NVIDIA H200, driver 580.159, torch 2.11.0"  # M5: not this machine's
    shown = rows(text)
    assert shown["captured graphs"] == ["1,044"]
    assert shown["execs"] == ["29"]
    assert shown["execs at peak"] == ["31"]
    assert shown["nodes"] == ["18,288"]
    assert shown["updates"] == ["1,234"]
    assert shown["decode"] == ["1,044", "29"]
    assert shown["3"] == ["TOPOLOGY_CHANGED", "e.g. decode bs=8 segment 0, node 17"]
    assert shown["1,008"] == ["attention (model.py:88)"]
    assert shown["walk seconds"] == ["0.250"]


def test_m3_every_byte_figure_says_what_it_is(footprint: Callable[..., FootprintReport]) -> None:
    """M3: the source and the method stand beside the number."""
    shown = rows(footprint().to_text())
    assert shown["execs, device"] == ["2.1 MB", "measured on the device", "around the whole span"]
    assert shown["execs, host"] == ["300.0 KB", "measured on the host", "resident memory"]
    assert shown["pool"] == ["unknown", "measured on the device", "no pool alive"]


def test_footprint_shows_groups_pools_and_nodes(grouped: Callable[..., FootprintReport]) -> None:
    text = grouped(5).to_text()
    shown = rows(text)
    assert shown["0"] == ["decode bs=1 segment 0", "4", "1", "10", "2"], "1 + 2 + 3 + 4 replays, two of odd graphs updated"
    assert shown["1"] == ["decode bs=3 segment 0", "1", "1", "5", "1"]
    lines = text.splitlines()
    assert lines[lines.index("pools") + 2].split() == ["1", "5", "4.1", "KB", "1.0", "KB", "unknown"]
    assert shown["15"] == ["kernel", "gemm"]
    assert shown["execs, device"] == ["2.2 MB", "modelled", "live execs x a table; peak 1.4 GB"]
    assert shown["now"] == ["-", "-", "5.0 KB"]


def test_demo_shows_its_numbers_by_mode(mode_result: Callable[..., ModeResult], demo_result: Callable[..., DemoResult]) -> None:
    full = mode_result()
    breakable = mode_result(
        captured=1044, execs=29, segments_per_graph=29, bytes_source="modelled", exec_device_bytes=3_857_000
    )
    text = demo_result(full=full, breakable=breakable).to_text()
    shown = rows(text)
    assert shown["captured graphs"] == ["256", "1,044"]
    assert shown["execs"] == ["2", "29"]
    assert shown["segments per graph"] == ["1", "29"]
    assert shown["mismatches"] == ["0", "0"]
    assert shown["exec bytes, device"] == ["2.1 MB measured", "3.9 MB modelled"]
    assert shown["pool bytes"] == ["31.5 MB measured", "31.5 MB measured"]
    assert "without folding" not in text
    assert text.splitlines()[-1] == "OK: 1,536 replays equal eager bit for bit; 1,300 captured graphs ran on 31 execs"


def test_demo_sets_the_unfolded_capture_beside_the_folded(
    mode_result: Callable[..., ModeResult], demo_result: Callable[..., DemoResult]
) -> None:
    mode = mode_result(
        unfolded_captured=256,
        unfolded_compared=768,
        unfolded_mismatches=0,
        unfolded_exec_device_bytes=362_000_000,
        unfolded_exec_host_bytes=931_000_000,
        unfolded_seconds=1.74,
    )
    text = demo_result(full=mode).to_text()
    assert "362.0 MB measured" in text
    assert "931.0 MB measured" in text
    assert rows(text)["seconds without folding"] == ["1.740"]


def test_a_mismatch_is_the_verdict(mode_result: Callable[..., ModeResult], demo_result: Callable[..., DemoResult]) -> None:
    text = demo_result(full=mode_result(mismatches=5)).to_text()
    assert text.splitlines()[-1] == "FAILED: 5 of 768 replays differ from eager"


def test_nothing_compared_is_no_success(mode_result: Callable[..., ModeResult], demo_result: Callable[..., DemoResult]) -> None:
    assert "FAILED" in demo_result(full=mode_result(compared=0)).to_text()


def test_color_adds_nothing_but_color(
    footprint: Callable[..., FootprintReport], demo_result: Callable[..., DemoResult]
) -> None:
    import re

    result = demo_result()
    colored = result.to_text(color=True)
    assert "\x1b[32mOK" in colored
    assert re.sub(r"\x1b\[\d+m", "", colored) == result.to_text()
    assert "\x1b" not in result.to_text() + footprint().to_text()


def test_the_text_needs_no_optional_package() -> None:
    """Reports render where the cli extra is not installed."""
    code = "import sys, graphdedup.report.text; print([m for m in ('rich', 'typer') if m in sys.modules])"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"
