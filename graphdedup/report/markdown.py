"""Markdown for a pull request: what it costs at a glance, and the reasons. Pure functions of the report (rule M5).

Labels and names are escaped: none of them can make a link, a mention, an element or another cell.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

from graphdedup.report.base import Figure
from graphdedup.report.demo import DemoResult, ModeResult
from graphdedup.report.model import FootprintReport
from graphdedup.report.text import format_bytes, named_figures

__all__ = ["demo_markdown", "escaped", "footprint_markdown"]

_MOST_ROWS = 10
_ESCAPES = {
    "&": "&amp;",
    "<": "&lt;",
    ">": "&gt;",
    # Where plain text is searched for mentions, issues and addresses, a backslash does not help.
    "@": "&#64;",
    "#": "&#35;",
    "://": ":&#47;&#47;",
    "www.": "www&#46;",
}

_SPECIAL = re.compile(r"://|www\.|[&<>@#\\`*_{}\[\]|~$!]")


def escaped(text: str) -> str:
    """Text that Markdown shows as it stands, in one line."""
    return re.sub(_SPECIAL, lambda part: _ESCAPES.get(part[0], f"\\{part[0]}"), " ".join(text.split()))


def footprint_markdown(report: FootprintReport) -> str:
    """A heading, the figures, the reasons, and the rest folded away; ends with a newline."""
    ratio = "-" if report.updates_per_replay is None else f"{report.updates_per_replay:.2f}"
    lines = [
        f"### {report.captured:,} captured graphs, {report.execs:,} execs",
        "",
        escaped(f"{report.device}, driver {report.driver_version}, torch {report.torch_version}, tier {report.tier or '-'}"),
        "",
        *_table(("bytes", "now", "peak", "", "how"), [_figure_cells(*one) for one in named_figures(report)], numbers=(1, 2)),
        "",
        *_table(
            ("groups", "execs at peak", "nodes", "replays", "updates per replay", "refused", "un-folded", "passed through"),
            [
                (
                    f"{report.groups:,}",
                    f"{report.peak_execs:,}",
                    f"{report.nodes:,}",
                    f"{report.launches:,}",
                    ratio,
                    f"{report.refused:,}",
                    f"{report.unfolded:,}",
                    f"{report.passed_through:,}",
                )
            ],
            numbers=range(8),
        ),
    ]
    if report.verified:
        lines += ["", f"Verified replays: {report.verified:,}, of these wrong: {report.mismatches:,}"]
    reasons = [*report.refusals, *report.unfoldings]
    if reasons:
        cells = [(f"{row.count:,}", row.reason, row.example) for row in reasons]
        lines += ["", *_folded("Why graphs do not fold", ("count", "reason", "example"), cells, numbers=(0,))]
    if report.alone:
        alone = [(row.graph, row.why) for row in report.alone]
        lines += ["", *_folded(f"Graphs on their own: {len(alone):,}", ("graph", "why"), alone)]
    if report.node_rows:
        cells = [(f"{row.count:,}", row.kind, row.name) for row in report.node_rows]
        lines += ["", *_folded("Nodes by kernel", ("count", "kind", "name"), cells, numbers=(0,))]
    return "\n".join(lines) + "\n"


def demo_markdown(result: DemoResult) -> str:
    """A heading, the verdict and a table by mode; ends with a newline."""
    modes = list(result.modes.items())
    compared = sum(mode.compared + (mode.unfolded_compared or 0) for _, mode in modes)
    good = compared > 0 and not result.mismatches
    captured, execs = sum(mode.captured for _, mode in modes), sum(mode.execs for _, mode in modes)
    verdict = f"{compared:,} replays equal eager bit for bit." if good else ""
    lines = [
        f"### {captured:,} captured graphs, {execs:,} execs",
        "",
        escaped(f"{result.device}, driver {result.driver_version}, torch {result.torch_version}, tier {result.tier}"),
        "",
        verdict or f"**{result.mismatches:,} of {compared:,} replays differ from eager.**",
        "",
        *_table(("", *(name for name, _ in modes)), _demo_cells([mode for _, mode in modes]), numbers=range(1, len(modes) + 1)),
        "",
        *(escaped(f"{name}: bytes of execs {mode.bytes_source}, {mode.bytes_how}.") + "\n" for name, mode in modes),
        f"`{result.command.replace('`', chr(39))}`",
    ]
    return "\n".join(lines) + "\n"


def _demo_cells(modes: Sequence[ModeResult]) -> list[tuple[str, ...]]:
    def row(name: str, cells: Iterable[str]) -> tuple[str, ...]:
        return (name, *cells)

    def plain(of: Callable[[ModeResult], int | None]) -> Iterable[str]:
        return ("-" if mode.unfolded_captured is None else f"{format_bytes(of(mode))} {mode.bytes_source}" for mode in modes)

    rows = [
        row("captured graphs", (f"{mode.captured:,}" for mode in modes)),
        row("execs", (f"{mode.execs:,}" for mode in modes)),
        row("nodes", (f"{mode.nodes:,}" for mode in modes)),
        row("updates", (f"{mode.updates:,}" for mode in modes)),
        row("execs, device", (f"{format_bytes(mode.exec_device_bytes)} {mode.bytes_source}" for mode in modes)),
        row("execs, host", (f"{format_bytes(mode.exec_host_bytes)} {mode.bytes_source}" for mode in modes)),
        row("pool", (f"{format_bytes(mode.pool_bytes)} measured" for mode in modes)),
        row("capture seconds", (f"{mode.capture_seconds:.3f}" for mode in modes)),
    ]
    if any(mode.unfolded_captured is not None for mode in modes):
        rows.insert(5, row("execs without folding, device", plain(lambda mode: mode.unfolded_exec_device_bytes)))
        rows.insert(7, row("execs without folding, host", plain(lambda mode: mode.unfolded_exec_host_bytes)))
    return rows


def _figure_cells(name: str, figure: Figure) -> tuple[str, ...]:
    peak = "-" if figure.peak_bytes is None else format_bytes(figure.peak_bytes)
    return name, format_bytes(figure.bytes), peak, figure.source.words, figure.how


def _folded(title: str, head: Sequence[str], rows: Sequence[Sequence[str]], numbers: Iterable[int] = ()) -> list[str]:
    """A table behind a line that one clicks; of many rows the first."""
    lines = ["<details>", f"<summary>{title}</summary>", "", *_table(head, rows[:_MOST_ROWS], numbers=numbers), ""]
    if len(rows) > _MOST_ROWS:
        lines += [f"and {len(rows) - _MOST_ROWS:,} more, in the JSON", ""]
    return [*lines, "</details>"]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], numbers: Iterable[int] = ()) -> list[str]:
    right = set(numbers)
    rule = ("---:" if column in right else "---" for column in range(len(head)))
    cells = ([escaped(cell) for cell in row] for row in (head, *rows))
    first, *others = (f"| {' | '.join(row)} |" for row in cells)
    return [first, f"| {' | '.join(rule)} |", *others]
