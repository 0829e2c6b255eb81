"""The reports of several ranks of one job: a row for each, how far they spread, and whether they fold alike.

Ranks whose graphs hold collectives must launch them in one order. A rank that folds otherwise than its siblings still replays
the right graph, but it is the first sign that it captured something else.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Literal

from pydantic import BaseModel, ConfigDict

from graphdedup.errors import GraphDedupError, ReportError
from graphdedup.report.difference import Report, one_kind
from graphdedup.report.flat import FlatReport, flatten
from graphdedup.report.model import FootprintReport
from graphdedup.report.text import format_bytes, table
from graphdedup.report.words import field_words, one_line

__all__ = ["RankRow", "Ranks", "SpreadRow", "assert_ranks_agree", "merge_ranks"]

_BOLD, _RED, _RESET = "\x1b[1m", "\x1b[31m", "\x1b[0m"
_SHOWN = ("captured", "execs", "groups", "refused", "unfolded")
_MOST_LISTED = 12


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class RankFigure(_Model):
    """Bytes of one rank, with what they are (rule M3)."""

    bytes: int | None
    source: str


class RankRow(_Model):
    """One rank's report. ``label`` is where it came from."""

    rank: int
    label: str
    environment: dict[str, str]
    counters: dict[str, int]
    seconds: dict[str, float]
    figures: dict[str, RankFigure]
    plan_digest: str
    """Empty where the report has none."""


class SpreadRow(_Model):
    """The least and the most of a counter or a figure over the ranks that tell it, and a rank that has each."""

    name: str
    unit: Literal["", "bytes"]
    least: int
    most: int
    least_rank: int
    most_rank: int
    source: str = ""
    """Of bytes: what they are. Figures of several sources are not spread (rule M3)."""


class Ranks(_Model):
    """Reports of several ranks, by rank."""

    schema_version: Literal[1] = 1
    kind: Literal["graphdedup.ranks"] = "graphdedup.ranks"
    merged: str
    """The kind of the reports."""
    ranks: tuple[RankRow, ...]
    spread: tuple[SpreadRow, ...]
    plans_agree: bool | None
    """Whether all fold plans have one digest; None where a report has none."""
    differing: tuple[int, ...] = ()
    """Ranks whose plan is not that of most ranks."""
    first_difference: str = ""
    """The first counter in which one of those differs from the others, in words."""

    def to_json(self, *, indent: int | None = 2) -> str:
        """All of it as JSON."""
        return self.model_dump_json(indent=indent)

    def to_text(self, color: bool = False) -> str:
        """A row for each rank, the spread, and whether the plans agree; ``color`` adds ANSI colours."""
        return _text(self, color)


def merge_ranks(reports: list[Report], labels: list[str]) -> Ranks:
    """Put the reports of several ranks side by side.

    A rank has the number that its report says, else the next one that is free, in the order of the reports.

    Args:
        reports: one for each rank, all of one kind.
        labels: where each came from, such as its file's name.

    Raises:
        ReportError: fewer than two, of several kinds, or two of one rank.
    """
    if len(reports) < 2:
        raise ReportError("one report is no comparison of ranks.", remedy="give a file for each rank, two at least.")
    kind = one_kind(reports, labels)
    flats = [flatten(report) for report in reports]
    rows = tuple(
        RankRow(
            rank=rank,
            label=label,
            environment=flat.environment,
            counters=flat.counters,
            seconds=flat.seconds,
            figures={name: RankFigure(bytes=one.bytes, source=one.source) for name, one in flat.figures.items()},
            plan_digest=flat.plan_digest,
        )
        for rank, label, flat in sorted(zip(_numbers(flats, labels), labels, flats, strict=True), key=lambda row: row[0])
    )
    digests = {row.rank: row.plan_digest for row in rows}
    known = all(digests.values())
    differing = _differing(digests) if known else ()
    return Ranks(
        merged=kind,
        ranks=rows,
        spread=_spread(rows),
        plans_agree=not differing if known else None,
        differing=differing,
        first_difference=_first_difference(rows, differing),
    )


def assert_ranks_agree(plans: Iterable[FootprintReport | str] | Mapping[int, FootprintReport | str]) -> None:
    """Check that all ranks of a job fold alike.

    Each rank gives ``backend.plan_digest()`` or ``backend.report()``, gathered as with
    ``torch.distributed.all_gather_object``; with reports the error can name the first counter that differs.

    Args:
        plans: in the order of ranks, or by rank; digests or reports.

    Raises:
        GraphDedupError: a rank folds otherwise: the message names the ranks and the first difference; or a plan is none.
    """
    given = dict(plans) if isinstance(plans, Mapping) else dict(enumerate(plans))
    digests: dict[int, str] = {}
    for rank, plan in given.items():
        digest = plan if isinstance(plan, str) else getattr(plan, "plan_digest", "")
        if not re.fullmatch(r"[0-9a-f]{32}", digest):
            raise GraphDedupError(
                f"rank {rank}: {digest!r:.60} is no digest of a fold plan",
                remedy="give what DedupBackend.plan_digest() or report() returned on each rank",
            )
        digests[rank] = digest
    differing = _differing(digests)
    if not differing:
        return
    reports = {rank: plan for rank, plan in given.items() if isinstance(plan, FootprintReport)}
    told = ""
    if len(reports) == len(given):
        order = sorted(reports)
        told = _first_difference(_by_rank(reports, order), differing)
    raise GraphDedupError(
        f"the fold plans of {len(digests)} ranks differ: {_plans(digests, differing)}{f'; {told}' if told else ''}",
        remedy="capture the same graphs in the same order on every rank; graphdedup report A.json B.json compares two",
    )


def _by_rank(reports: Mapping[int, FootprintReport], order: list[int]) -> tuple[RankRow, ...]:
    rows = merge_ranks([reports[rank] for rank in order], [f"rank {rank}" for rank in order]).ranks
    return tuple(row.model_copy(update={"rank": rank}) for row, rank in zip(rows, order, strict=True))


def _numbers(flats: list[FlatReport], labels: list[str]) -> list[int]:
    said: dict[int, str] = {}
    for flat, label in zip(flats, labels, strict=True):
        if flat.rank is None:
            continue
        if flat.rank in said:
            raise ReportError(
                f"{said[flat.rank]} and {label} are both of rank {flat.rank}.", remedy="give one file for each rank."
            )
        said[flat.rank] = label
    free = iter(number for number in range(len(flats) + len(said)) if number not in said)
    return [flat.rank if flat.rank is not None else next(free) for flat in flats]


def _differing(digests: Mapping[int, str]) -> tuple[int, ...]:
    """Ranks whose digest is not the one of most ranks; of as many, the one of the lowest rank counts."""
    if len(set(digests.values())) < 2:
        return ()
    counts = Counter(digests[rank] for rank in sorted(digests))
    usual = counts.most_common(1)[0][0]  # the first met, of as many
    return tuple(rank for rank in sorted(digests) if digests[rank] != usual)


def _first_difference(rows: tuple[RankRow, ...], differing: tuple[int, ...]) -> str:
    """The first counter or setting in which the first differing rank is not as one of the others."""
    if not differing:
        return ""
    odd = next(row for row in rows if row.rank == differing[0])
    usual = next(row for row in rows if row.rank not in differing)
    for one, other in ((odd.environment, usual.environment), (odd.counters, usual.counters)):
        for name in dict.fromkeys((*other, *one)):
            mine, theirs = one.get(name), other.get(name)
            if mine != theirs:
                return one_line(f"{field_words(name)}: {mine} on rank {odd.rank}, {theirs} on rank {usual.rank}")
    return f"no counter differs between rank {odd.rank} and rank {usual.rank}: labels or the order of captures do"


def _spread(rows: tuple[RankRow, ...]) -> tuple[SpreadRow, ...]:
    told = []
    for name in dict.fromkeys(name for row in rows for name in row.counters):
        values = [(row.counters[name], row.rank) for row in rows if name in row.counters]
        told.append(_spread_row(name, "", values))
    for name in dict.fromkeys(name for row in rows for name in row.figures):
        figures = [(row.figures[name], row.rank) for row in rows if name in row.figures]
        known = [(figure.bytes, rank) for figure, rank in figures if figure.bytes is not None]
        if known and len({figure.source for figure, _ in figures}) == 1:
            told.append(_spread_row(name, "bytes", known, figures[0][0].source))
    return tuple(told)


def _spread_row(name: str, unit: Literal["", "bytes"], values: list[tuple[int, int]], source: str = "") -> SpreadRow:
    least, most = min(values, key=lambda value: value[0]), max(values, key=lambda value: value[0])
    return SpreadRow(name=name, unit=unit, least=least[0], most=most[0], least_rank=least[1], most_rank=most[1], source=source)


# Text


def _text(told: Ranks, color: bool) -> str:
    lines = [_bold(f"graphdedup report: {len(told.ranks)} ranks", color), ""]
    counters = [name for name in _all_counters(told) if name.rpartition(": ")[2] in _SHOWN and "session " not in name]
    figures = list(dict.fromkeys(name for row in told.ranks for name in row.figures))
    header = (
        "rank",
        "file",
        "device",
        *map(field_words, counters),
        *(f"{field_words(name)} bytes" for name in figures),
        "fold plan",
    )
    rows = [header] + [
        (
            str(row.rank),
            one_line(row.label),
            one_line(row.environment.get("device", "-")),
            *(f"{row.counters[name]:,}" if name in row.counters else "-" for name in counters),
            *(_figure(row.figures.get(name)) for name in figures),
            row.plan_digest[:8] or "-",
        )
        for row in told.ranks
    ]
    lines += table(rows, left=3)
    apart = [row for row in told.spread if row.least != row.most]
    if apart:
        lines += ["", _bold("spread", color)]
        lines += table(
            [("", "least", "on rank", "most", "on rank")]
            + [
                (
                    field_words(row.name),
                    _amount(row, row.least),
                    str(row.least_rank),
                    _amount(row, row.most),
                    str(row.most_rank),
                )
                for row in apart
            ]
        )
    lines += ["", f"{len(told.spread) - len(apart):,} counters and figures are equal on all ranks"]
    lines += [f"{field_words(name)} bytes: {source}" for name, source in _sources(told, figures)]
    lines.append(_verdict(told, color))
    return "\n".join(lines)


def _verdict(told: Ranks, color: bool) -> str:
    if told.plans_agree is None:
        return "whether the fold plans agree is not known: not every report has one"
    if told.plans_agree:
        return f"the fold plans of all {len(told.ranks)} ranks agree"
    digests = {row.rank: row.plan_digest for row in told.ranks}
    text = f"the fold plans DIFFER: {_plans(digests, told.differing)}; {told.first_difference}"
    return f"{_RED}{text}{_RESET}" if color else text


def _plans(digests: Mapping[int, str], differing: tuple[int, ...]) -> str:
    usual = [rank for rank in sorted(digests) if rank not in differing]
    others = [f"{_listed([rank])} ({digests[rank][:8]})" for rank in differing[:_MOST_LISTED]]
    more = f" and {len(differing) - _MOST_LISTED} more" if len(differing) > _MOST_LISTED else ""
    verb = "is" if len(differing) == 1 else "are"
    return f"{', '.join(others)}{more} {verb} not as {_listed(usual)} ({digests[usual[0]][:8]})"


def _listed(ranks: list[int]) -> str:
    shown = ", ".join(map(str, ranks[:_MOST_LISTED]))
    more = f" and {len(ranks) - _MOST_LISTED} more" if len(ranks) > _MOST_LISTED else ""
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {shown}{more}"


def _all_counters(told: Ranks) -> list[str]:
    return list(dict.fromkeys(name for row in told.ranks for name in row.counters))


def _sources(told: Ranks, figures: list[str]) -> list[tuple[str, str]]:
    """What the figures are; where ranks differ in that, all of it."""
    found = []
    for name in figures:
        sources = dict.fromkeys(row.figures[name].source for row in told.ranks if name in row.figures)
        found.append((name, " on some ranks, on others ".join(sources) + (", not comparable" if len(sources) > 1 else "")))
    return found


def _figure(figure: RankFigure | None) -> str:
    return "-" if figure is None else format_bytes(figure.bytes)


def _amount(row: SpreadRow, value: int) -> str:
    return format_bytes(value) if row.unit else f"{value:,}"


def _bold(text: str, color: bool) -> str:
    return f"{_BOLD}{text}{_RESET}" if color else text
