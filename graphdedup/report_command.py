"""``graphdedup report``: a report file in another form, on the terminal or in a file."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from graphdedup.errors import SettingsError
from graphdedup.report import DemoResult, FootprintReport, read_report
from graphdedup.report.schema import schema_text

__all__ = ["FORMATS", "render", "report_command"]

FORMATS = ("text", "json", "markdown", "html")


def report_command(file: Path | None, *, style: str, output: Path | None, schema: bool) -> None:
    """Print a report in a form, or write it to ``output``; or print the JSON schema of reports.

    Raises:
        ReportError: the file is no report, or the form needs a package that is not installed.
        SettingsError: the form is unknown, no file is given, or ``output`` cannot be written.
    """
    if style not in FORMATS:
        raise SettingsError(f"--format {style!r} is unknown.", remedy=f"use one of {', '.join(FORMATS)}.")
    if schema:
        text = schema_text()
    elif file is None:
        raise SettingsError("no report file is given.", remedy="name a JSON file of a report, or ask for --schema.")
    else:
        color = output is None and style == "text" and sys.stdout.isatty() and not os.environ.get("NO_COLOR")
        text = render(read_report(file), style, color=color)
    if output is None:
        sys.stdout.write(text)
        return
    try:
        output.write_text(text, encoding="utf-8", newline="\n")
    except OSError as error:
        reason = error.strerror or "cannot be written"
        raise SettingsError(f"--output {output}: {reason}.", remedy="name a file in a folder that can be written.") from error


def render(report: FootprintReport | DemoResult, style: str, *, color: bool = False) -> str:
    """The report in one of :data:`FORMATS`, with a newline at its end.

    Raises:
        ReportError: HTML is asked for without the ``html`` extra.
    """
    if style == "html":
        return report.to_html()
    if style == "markdown":
        return report.to_markdown()
    return (report.to_json() if style == "json" else report.to_text(color=color)) + "\n"
