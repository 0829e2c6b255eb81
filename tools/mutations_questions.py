"""Breaks of what is asked of files: a fold without a device, one graph for other tools, and several reports side by side."""

from __future__ import annotations

from mutation import Mutation

__all__ = ["QUESTIONS"]

DIFFERENCE = "graphdedup/report/difference.py"
EXPORT = "graphdedup/export.py"
FORMATS = "graphdedup/graph_formats.py"
OFFLINE = "graphdedup/driver/offline.py"
RANKS = "graphdedup/report/ranks.py"
WHATIF = "graphdedup/whatif.py"
WORDS = "graphdedup/report/words.py"

DIFFERENCE_TESTS = "tests/unit/questions/test_difference.py"
FORMAT_TESTS = "tests/unit/questions/test_graph_formats.py"
WHATIF_TESTS = "tests/unit/questions/test_whatif.py"

_ROWS = (
    (
        "D3",
        "an export shows a cluster dimension that the fold had the graph say",
        EXPORT,
        "    if not member.completed:",
        "    if True:",
        (WHATIF_TESTS,),
    ),
    (
        "D3",
        "what only clusters use is in the record of every exported kernel",
        OFFLINE,
        "clustered = any(cluster) or",
        "clustered = True or",
        (WHATIF_TESTS,),
    ),
    (
        "D3",
        "graphs kept apart by their clusters are taken for refused by the driver",
        WHATIF,
        "refusal.startswith(tuple(Verdict))",
        "True",
        (WHATIF_TESTS,),
    ),
    (
        "D5",
        "a refusal on record is forgotten",
        WHATIF,
        "        if not any(map(_by_driver, grouped)):",
        "        if True:",
        (WHATIF_TESTS,),
    ),
    (
        "D10",
        "streams that run at once need no executables",
        WHATIF,
        "if self.execs_per_group > 1:",
        "if False:",
        (WHATIF_TESTS,),
    ),
    (
        "M3",
        "figures of two sources are compared",
        DIFFERENCE,
        " and one.source == other.source",
        "",
        (DIFFERENCE_TESTS,),
    ),
    (
        "M3",
        "figures of several sources have a spread over ranks",
        RANKS,
        "if known and len({figure.source for figure, _ in figures}) == 1:",
        "if known:",
        (DIFFERENCE_TESTS,),
    ),
    (
        "report",
        "the ranks that agree are named as those that differ",
        RANKS,
        "if digests[rank] != usual",
        "if digests[rank] == usual",
        (DIFFERENCE_TESTS,),
    ),
    (
        "report",
        "control characters of a name reach the terminal",
        WORDS,
        "c if c.isprintable() else",
        "c if True else",
        (DIFFERENCE_TESTS,),
    ),
    (
        "report",
        "a quote ends a label of DOT",
        FORMATS,
        """.replace('"', '\\\\"')""",
        "",
        (FORMAT_TESTS,),
    ),
)

QUESTIONS: tuple[Mutation, ...] = tuple(Mutation(*row) for row in _ROWS)
""""report" is no rule with a number."""
