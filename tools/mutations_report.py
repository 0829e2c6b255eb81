"""Reports: what a model holds, what a snapshot fills in, and what its renderings make of it."""

from __future__ import annotations

from mutation import Mutation

__all__ = ["RENDERED"]

PAGE = "graphdedup/report/page/"
VERSIONS = "graphdedup/report/versions.py"
HTML, HTML_TESTS = "graphdedup/report/html.py", "tests/unit/report/test_report_html.py"
PAGE_TESTS = "tests/unit/report/test_report_page.py"
MARKDOWN, MARKDOWN_TESTS = "graphdedup/report/markdown.py", "tests/unit/report/test_report_markdown.py"
MODEL_TESTS = "tests/unit/report/test_report_model.py"
READING_TESTS = "tests/unit/report/test_report_reading.py::test_what_is_no_report_is_refused_in_one_line"
SNAPSHOT, SNAPSHOT_TESTS = "graphdedup/snapshot_rows.py", "tests/unit/fold/test_snapshot_rows.py"
TIMELINE_TESTS = "tests/unit/fold/test_timeline.py"
CALIBRATION, CALIBRATION_TESTS = "graphdedup/calibration.py", "tests/unit/fold/test_calibration.py"

_ROWS: tuple[tuple[str, str, str, str, str], ...] = (
    (
        "updates have no time",
        "graphdedup/registry.py",
        "            self.replay_updates_over_time.add()\n",
        "",
        TIMELINE_TESTS,
    ),
    (
        "a history that doubles its spans loses every other one",
        "graphdedup/timeline.py",
        "[sum(self._bins[first : first + 2]) for first",
        "[sum(self._bins[first : first + 1]) for first",
        TIMELINE_TESTS,
    ),
    (
        "a history never doubles its spans",
        "graphdedup/timeline.py",
        "self._seconds *= 2",
        "self._seconds *= 1024",
        TIMELINE_TESTS,
    ),
    (
        "what ends a script element is not escaped",
        HTML,
        "embedded(report.model_dump_json())",
        "report.model_dump_json()",
        HTML_TESTS,
    ),
    (
        "the policy allows every inline script",
        HTML,
        "script-src {hashes};",
        "script-src 'unsafe-inline';",
        HTML_TESTS,
    ),
    ("the page may fetch", HTML, "\"connect-src 'none'; ", '"connect-src *; ', HTML_TESTS),
    ("text is read as HTML", PAGE + "dom.js", "made.textContent = text;", "made.innerHTML = text;", PAGE_TESTS),
    (
        "charts read labels as HTML",
        PAGE + "charts.js",
        'return short.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");',
        "return short;",
        PAGE_TESTS,
    ),
    ("halves are rounded up on the page", PAGE + "dom.js", "=== 0.25;", "=== 2;", PAGE_TESTS),
    ("sorting twice is sorting once", PAGE + "graphs.js", "? !downwards :", "? downwards :", PAGE_TESTS),
    ("search minds capitals", PAGE + "graphs.js", "search.value.toLowerCase()", "search.value", PAGE_TESTS),
    (
        "every graph of a group pays for its executable",
        PAGE + "charts.js",
        "founded.add(graph.group.id);",
        "",
        PAGE_TESTS,
    ),
    ("a label makes a cell more", MARKDOWN, "\\[\\]|~$!]", "\\[\\]~$!]", MARKDOWN_TESTS),
    ("a label mentions people", MARKDOWN, '    "@": "&#64;",\n', "", MARKDOWN_TESTS),
    (
        "the first schema is not read",
        "graphdedup/report/versions.py",
        '"schema_version": 2}',
        '"schema_version": 1}',
        MODEL_TESTS,
    ),
    ("a newer demo is read", VERSIONS, '"graphdedup.demo": 1}', '"graphdedup.demo": 2}', READING_TESTS),
    (
        "dead graphs are counted by kernel",
        SNAPSHOT,
        "for kind, name, count in member.counts:",
        "for kind, name, count in ():",
        SNAPSHOT_TESTS,
    ),
    (
        "a folder is put into the report",
        SNAPSHOT,
        "settings.PROBE,",
        "settings.PROBE, settings.CACHE,",
        SNAPSHOT_TESTS,
    ),
    (
        "replays that re-point are not told by graph",
        "graphdedup/registry.py",
        "            member.updates += 1\n",
        "",
        SNAPSHOT_TESTS,
    ),
    (
        "a pool gets another number each time",
        "graphdedup/pools.py",
        "found = self._numbers.get(pool)",
        "found = None",
        SNAPSHOT_TESTS,
    ),
    ("executables are not held to the end", CALIBRATION, "held += [driver", "held[1:] = [driver", CALIBRATION_TESTS),
    (
        "another process is taken for this one",
        "graphdedup/nvml.py",
        "if one.pid == os.getpid()",
        "if one.pid",
        CALIBRATION_TESTS,
    ),
    ("NVML stays open", "graphdedup/nvml.py", "        nvml.nvmlShutdown()\n", "        pass\n", CALIBRATION_TESTS),
)

RENDERED = tuple(Mutation("report", breaks, file, old, new, (tests,)) for breaks, file, old, new, tests in _ROWS)
