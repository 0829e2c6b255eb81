"""The HTML page as text: nothing of a report can be more than data in it. What a browser makes of it: test_report_page."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import sys
from collections.abc import Callable

import pytest

from graphdedup.errors import ReportError
from graphdedup.report import DemoResult, FootprintReport
from graphdedup.report.html import embedded

HOSTILE = '</script><img src=x onerror="x">{{script}}&\u2028\u2029<!--'


@pytest.fixture
def plotly(monkeypatch: pytest.MonkeyPatch) -> None:
    """A short script in place of plotly's."""
    pytest.importorskip("plotly", reason="the html extra is not installed")
    monkeypatch.setattr("plotly.offline.get_plotlyjs", lambda: "var Plotly = 1;\r\n")


def test_embedded_json_is_the_same_json() -> None:
    text = json.dumps({"a": HOSTILE}, ensure_ascii=False)
    assert not set(embedded(text)) & set("<>&\u2028\u2029")
    assert json.loads(embedded(text)) == {"a": HOSTILE}


@pytest.mark.usefixtures("plotly")
def test_m5_the_page_holds_the_report_and_nothing_of_it_is_markup(grouped: Callable[..., FootprintReport]) -> None:
    """M5: JSON is the source. Every character that HTML could take for its own is escaped."""
    report = grouped(5, text=HOSTILE)
    page = report.to_html()
    found = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)
    assert len(found) == 1
    assert FootprintReport.from_json(found[0]) == report
    tags = re.compile(r"</?(?:script|img|iframe|link|object)\b")
    assert tags.findall(page) == tags.findall(grouped(5).to_html())


@pytest.mark.usefixtures("plotly")
def test_the_policy_names_the_scripts_and_forbids_the_network(demo_result: Callable[..., DemoResult]) -> None:
    page = demo_result().to_html()
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)
    scripts = re.findall(r"<script>(.*?)</script>", page, re.S)
    assert len(scripts) == 2
    assert scripts[0] == "var Plotly = 1;\n", "line ends are as a browser hashes them"
    hashes = [f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'" for text in scripts]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["script-src"].split() == hashes, "by their hashes alone: no inline handler runs"
    assert (rules["default-src"], rules["connect-src"], rules["base-uri"]) == ("'none'", "'none'", "'none'")
    assert not re.findall(r"(?:src|href)\s*=\s*[\"']?https?:", page)


def test_without_plotly_one_line_says_what_to_install(
    demo_result: Callable[..., DemoResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    with pytest.raises(ReportError, match=r"needs plotly.*Remedy: pip install 'graphdedup\[html\]'"):
        demo_result().to_html()
