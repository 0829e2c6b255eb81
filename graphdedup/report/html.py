"""A report as one HTML file that needs no network: figures, charts by plotly, and a table of graphs.

The report is embedded as JSON and drawn by the scripts in ``page/``, which put text into the document as text only. A content
security policy names the two scripts by their hashes and forbids everything else: no other script runs, whatever stands in
a label or in the name of a kernel, and nothing is fetched.
"""

from __future__ import annotations

import base64
import hashlib
import html
import re
from importlib.resources import files

from graphdedup.errors import ReportError
from graphdedup.report.demo import DemoResult
from graphdedup.report.model import FootprintReport

__all__ = ["embedded", "page"]

_SCRIPTS = ("dom.js", "graphs.js", "charts.js", "footprint.js", "demo.js", "start.js")
_ESCAPES = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}


def page(report: FootprintReport | DemoResult) -> str:
    """The page, some 5 MB of text of which plotly's script is most.

    Raises:
        ReportError: the ``html`` extra is not installed.
    """
    plotly = _plotly_script()
    script = '(() => {\n"use strict";\n' + "\n".join(_read(name) for name in _SCRIPTS) + "})();\n"
    hashes = " ".join(f"'sha256-{_digest(text)}'" for text in (plotly, script))
    policy = (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data:; "
        "connect-src 'none'; form-action 'none'; base-uri 'none'"
    )
    values = {
        "policy": policy,
        "title": html.escape(f"graphdedup: {report.device}"),
        "style": _read("page.css"),
        "data": embedded(report.model_dump_json()),
        "plotly": plotly,
        "script": script,
    }
    # In one pass: what stands in a value is never taken for a place of the template.
    return re.sub(r"\{\{(\w+)\}\}", lambda place: values[place[1]], _read("page.html"))


def embedded(text: str) -> str:
    """JSON that may stand in a script element: no character of it can end the element or begin another."""
    return re.sub("[<>&\u2028\u2029]", lambda char: _ESCAPES[char[0]], text)


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _read(name: str) -> str:
    return files("graphdedup.report").joinpath("page", name).read_text(encoding="utf-8")


def _plotly_script() -> str:
    try:
        from plotly.offline import get_plotlyjs
    except ModuleNotFoundError as error:
        raise ReportError(
            "an HTML page needs plotly, which is not installed.",
            remedy="pip install 'graphdedup[html]', or take --format markdown or text.",
        ) from error
    # A browser reads every line end as \n before it compares the hash.
    return str(get_plotlyjs()).replace("\r\n", "\n").replace("\r", "\n")
