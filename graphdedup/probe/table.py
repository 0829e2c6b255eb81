"""Renderings of capabilities: a table for the terminal, and the tables of docs/what-an-update-carries.md.

Each function is pure: the same capabilities give the same text (rule M5).
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence

from graphdedup.capabilities import ANOTHER_FUNCTION, AnswerRow, AttributeRow, Capabilities, Outcome
from graphdedup.driver.attributes import ATTRIBUTES, Effect
from graphdedup.probe.bench import AUTO_FREE_ON_LAUNCH, USE_NODE_PRIORITY
from graphdedup.report.text import table

__all__ = ["conclusions", "summary", "to_markdown", "to_text"]

_BOLD, _RED, _RESET = "\x1b[1m", "\x1b[31m", "\x1b[0m"
_HARMFUL = (Outcome.STALE, Outcome.BROKEN)
"""The driver did something else than it said; these are made to stand out."""
_WIDTH = 120
"""Of the table for a terminal; what does not fit goes on in the next line."""
_NOT_ASKED = "not asked"


# What both renderings say


def summary(rows: Iterable[AnswerRow]) -> list[str]:
    """What an update does with one topic, in a line for each outcome.

    One outcome for all ways is that word alone. Otherwise each outcome names its ways, and where some ways change the
    function as well, whether it holds alone or with another function; there too one outcome for all needs no list.
    """
    groups: dict[tuple[bool, Outcome], list[str]] = {}
    for row in rows:
        way = row.way.removesuffix(ANOTHER_FUNCTION)
        groups.setdefault((way != row.way, row.outcome), []).append(way)
    outcomes = {outcome for _, outcome in groups}
    if len(outcomes) < 2:
        return [str(outcome) for outcome in outcomes] or [_NOT_ASKED]
    sides = [accompanied for accompanied, _ in groups]
    lines = []
    for accompanied, outcome in sorted(groups, key=lambda group: group[0]):
        company = "" if True not in sides else " with another function" if accompanied else " alone"
        listed = "" if company and sides.count(accompanied) == 1 else f" ({'; '.join(groups[accompanied, outcome])})"
        lines.append(f"{outcome}{company}{listed}")
    return lines


def conclusions(capabilities: Capabilities) -> list[tuple[str, str]]:
    """What follows for the fold (rules D3, D4): what it is about, and what happens there."""
    flags = _flags(capabilities)
    reads, hidden = capabilities.reads(flags, leave_out=(Effect.TIME,)), capabilities.hidden
    held = [name for name in reads.attributes if name not in hidden]
    timely = [name for name in capabilities.reads(flags).attributes if name not in reads.attributes]
    more = f"; in the tiers function and exact also those that change nothing but time: {', '.join(timely)}" if timely else ""
    return [
        (
            "kernel functions",
            "not in the key: graphs of other functions share an executable"
            if capabilities.carries_function
            else "stay in the key: only graphs of the same functions share an executable",
        ),
        ("cluster dimensions", _clusters(capabilities)),
        ("no cluster dimension", _unset_clusters(capabilities)),
        (
            "launch attributes",
            f"with instantiate flags {flags} these stay in the key: {', '.join(['cooperative (always)', *held])}{more}",
        ),
        (
            "hidden attributes",
            f"a graph shares no executable where a kernel can use one of these and the driver does not tell it: "
            f"{', '.join(hidden)}"
            if hidden
            else "none forbids sharing",
        ),
        ("grid, block, shared memory", _held(reads.geometry)),
        ("local memory of functions", "in the key, always"),
        ("size of 1-D memsets", _held(reads.memset_extent) + "; that of 2-D memsets always stays"),
        ("size of memcpys", _held(reads.memcpy_extent)),
    ]


def _clusters(capabilities: Capabilities) -> str:
    if not capabilities.carries_cluster:
        return "stay in the key"
    nested = "in child graphs they stay in the key"
    if capabilities.carries_cluster_alone:
        return f"not in the key; {nested}"
    return (
        "not in the key, they fold together with functions: within a group one function has one cluster dimension "
        f"at each node; {nested}"
    )


def _unset_clusters(capabilities: Capabilities) -> str:
    if not capabilities.carries_cluster:
        return "nothing to do: cluster dimensions are in the key"
    if capabilities.mends_unset_cluster:
        return "a kernel that sets none is made to say (1, 1, 1) where the executable may hold another"
    return "nothing to do: an update carries it"


def _held(held: bool) -> str:
    return "in the key" if held else "not in the key"


def _flags(capabilities: Capabilities) -> int:
    """The instantiate flags of torch that were measured; else those under which most is read."""
    told = capabilities.fact("instantiate flags of torch")
    return int(told) if told.isdecimal() else AUTO_FREE_ON_LAUNCH | USE_NODE_PRIORITY


def _topics(columns: Sequence[Capabilities], *, attributes: bool) -> list[str]:
    """The topics in the order of their first answers: those named as a launch attribute, or the others."""
    seen = dict.fromkeys(row.topic for column in columns for row in column.answers)
    return [topic for topic in seen if (topic in ATTRIBUTES) is attributes]


def _rows_of(capabilities: Capabilities, topic: str) -> list[AnswerRow]:
    return [row for row in capabilities.answers if row.topic == topic]


def _yes(value: bool | None) -> str:
    return "unknown" if value is None else "yes" if value else "no"


def _about(capabilities: Capabilities) -> list[tuple[str, str]]:
    """What the answers depend on, as far as it is known."""
    major, minor = capabilities.compute_capability
    return [
        ("compute capability", f"{major}.{minor}" if major else ""),
        ("driver", capabilities.driver_version),
        ("CUDA", capabilities.cuda_version),
        ("torch", capabilities.torch_version),
    ]


def _facts(capabilities: Capabilities) -> list[tuple[str, str]]:
    return [(fact.name, f"{fact.value} ({fact.detail})" if fact.detail else fact.value) for fact in capabilities.facts]


# For a terminal


def to_text(capabilities: Capabilities, *, color: bool = False) -> str:
    """The table for a terminal, without a trailing newline."""
    known = [f"{name} {value}" for name, value in _about(capabilities) if value]
    lines = [_bold(f"graphdedup probe: {', '.join([capabilities.device, *known])}", color), capabilities.source]
    if capabilities.attributes:
        lines += ["", _bold("Launch attributes", color), *_attribute_table(capabilities, color)]
    if others := _topics([capabilities], attributes=False):
        lines += ["", _bold("Everything else an update may change", color)]
        lines += _block([(topic, summary(_rows_of(capabilities, topic))) for topic in others], color)
    if capabilities.facts:
        lines += ["", _bold("Facts", color)]
        lines += _block([(name, [words]) for name, words in _facts(capabilities)], color)
    lines += ["", _bold("So the fold", color)]
    lines += _block([(name, [words]) for name, words in conclusions(capabilities)], color)
    return "\n".join(lines)


def _attribute_table(capabilities: Capabilities, color: bool) -> list[str]:
    head = ("number", "readable", "settable")
    margin = max(len(row.name) for row in capabilities.attributes) + sum(len(cell) + 2 for cell in head) + 2
    rows = [("name", *head, "an update")]
    for row in capabilities.attributes:
        words = _wrapped(summary(_rows_of(capabilities, row.name)), margin, color)
        rows.append((row.name, str(row.number), _yes(row.readable), _yes(row.settable), words[0]))
        rows += [("", "", "", "", more) for more in words[1:]]
    return table(rows, left=5)


def _block(rows: Sequence[tuple[str, list[str]]], color: bool) -> list[str]:
    """Two columns, the second as many lines as it needs."""
    margin = max(len(name) for name, _ in rows) + 2
    cells: list[tuple[str, str]] = []
    for name, lines in rows:
        words = _wrapped(lines, margin, color)
        cells += [(name, words[0]), *(("", more) for more in words[1:])]
    return table(cells, left=2)


def _wrapped(lines: Iterable[str], margin: int, color: bool) -> list[str]:
    """Lines that fit to the right of ``margin``; what goes on is indented."""
    pieces = []
    for line in lines:
        harmful = color and line.startswith(_HARMFUL)
        width = max(_WIDTH - margin, _WIDTH // 3)
        for piece in textwrap.wrap(line, width, subsequent_indent="  ", break_long_words=False):
            pieces.append(f"{_RED}{piece}{_RESET}" if harmful else piece)
    return pieces or [""]


def _bold(text: str, color: bool) -> str:
    return f"{_BOLD}{text}{_RESET}" if color else text


# For the page


def to_markdown(columns: Sequence[Capabilities]) -> str:
    """The sections of the page, with a column for each device, without a trailing newline.

    Ways of one topic that have the same outcome on every device share a row.
    """
    devices = [column.device for column in columns]
    if len(set(devices)) < len(devices):
        devices = [f"{column.device}, driver {column.driver_version}, torch {column.torch_version}" for column in columns]
    sections = [
        ("Where it was measured", _markdown_table(("", *devices), _aligned([_about_all(column) for column in columns]))),
        ("So the fold", _markdown_table(("", *devices), _aligned([conclusions(column) for column in columns]))),
        (
            "Launch attributes: what the driver tells and takes",
            _markdown_table(("attribute", "number", *devices), _told(columns)),
        ),
        (
            "Launch attributes: what an update does",
            _markdown_table(("attribute", "difference", *devices), _differences(columns, attributes=True)),
        ),
        (
            "Everything else an update may change",
            _markdown_table(("topic", "difference", *devices), _differences(columns, attributes=False)),
        ),
        ("Facts", _markdown_table(("", *devices), _aligned([_facts(column) for column in columns]))),
    ]
    return "\n\n".join(f"## {title}\n\n{body}" for title, body in sections)


def _about_all(capabilities: Capabilities) -> list[tuple[str, str]]:
    return [*_about(capabilities), ("source", capabilities.source)]


def _aligned(columns: Sequence[Sequence[tuple[str, str]]]) -> Iterator[tuple[str, ...]]:
    """Rows of all columns' names in the order of their first appearance; what a column lacks is unknown."""
    tables = [dict(column) for column in columns]
    for name in dict.fromkeys(name for column in columns for name, _ in column):
        yield name, *(column.get(name) or "unknown" for column in tables)


def _told(columns: Sequence[Capabilities]) -> Iterator[tuple[str, ...]]:
    tables: list[dict[str, AttributeRow]] = [{row.name: row for row in column.attributes} for column in columns]
    numbers = {row.name: row.number for column in columns for row in column.attributes}
    for name, number in numbers.items():
        rows = [column.get(name, AttributeRow(name=name, number=number)) for column in tables]
        yield f"`{name}`", str(number), *(f"readable {_yes(row.readable)}, settable {_yes(row.settable)}" for row in rows)


def _differences(columns: Sequence[Capabilities], *, attributes: bool) -> Iterator[tuple[str, ...]]:
    for topic in _topics(columns, attributes=attributes):
        answers = [{row.way: row for row in _rows_of(column, topic)} for column in columns]
        groups: dict[tuple[str, ...], list[str]] = {}
        for way in dict.fromkeys(way for column in answers for way in column):
            groups.setdefault(tuple(_cell(column.get(way)) for column in answers), []).append(way)
        for cells, ways in groups.items():
            reasons = [_why_unknown([column[way] for way in ways if way in column]) for column in answers]
            shown = (cell + reason for cell, reason in zip(cells, reasons, strict=True))
            yield f"`{topic}`" if attributes else topic, _ways(ways), *shown


def _cell(row: AnswerRow | None) -> str:
    """An outcome, with the driver's own word for a refusal; what the driver did behind one's back is bold."""
    if row is None:
        return _NOT_ASKED
    outcome = f"**{row.outcome}**" if row.outcome in _HARMFUL else str(row.outcome)
    return f"{outcome}: {row.verdict}" if row.outcome in (Outcome.REFUSED, Outcome.BROKEN) and row.verdict else outcome


def _why_unknown(rows: Sequence[AnswerRow]) -> str:
    """Why a whole row of ways could not be tried, where there is one reason."""
    details = {row.detail for row in rows if row.outcome is Outcome.UNKNOWN}
    return f": {details.pop()}" if len(details) == 1 and all(details) else ""


def _ways(ways: Sequence[str]) -> str:
    """Ways in one cell; those with another function stand together behind the others."""
    alone = [way for way in ways if not way.endswith(ANOTHER_FUNCTION)]
    accompanied = [way.removesuffix(ANOTHER_FUNCTION) for way in ways if way.endswith(ANOTHER_FUNCTION)]
    if not accompanied:
        return "; ".join(alone)
    return "; ".join([*alone, f"with another function: {'; '.join(accompanied)}"])


def _markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(_escaped, line))} |" for line in lines)


def _escaped(cell: str) -> str:
    """Text that stays in its cell, whatever a driver or device calls itself."""
    return " ".join(cell.replace("|", "\\|").replace("<", "&lt;").split())
