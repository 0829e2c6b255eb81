"""Read a report file back: whatever is wrong with it is one clear line (rule M5: JSON is the source)."""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import ValidationError

from graphdedup.errors import ReportError
from graphdedup.report.model import DemoResult, FootprintReport
from graphdedup.report.versions import NEWEST, upgraded
from graphdedup.validation import read_bytes

__all__ = ["MAX_REPORT_BYTES", "read_report"]

MAX_REPORT_BYTES = 64 * 1024 * 1024
"""A larger file is no report of ours; it is refused before it is read."""

_MODELS: dict[str, type[FootprintReport] | type[DemoResult]] = {
    "graphdedup.footprint": FootprintReport,
    "graphdedup.demo": DemoResult,
}
_REMEDY = "give a file that `graphdedup demo --json FILE` or FootprintReport.to_json() wrote."


def read_report(path: str | Path) -> FootprintReport | DemoResult:
    """Read a report from ``path``, whichever of the two kinds it is, also one of an older schema.

    Raises:
        ReportError: the file is missing, too large or no JSON, is of a foreign kind or a newer schema, or lacks fields.
            The message is one line that names the file and the remedy.
    """
    name = str(path)
    document = _load(Path(path), name)
    kind = document.get("kind")
    if not isinstance(kind, str) or kind not in _MODELS:
        found = "has no kind" if kind is None else f"is of kind {_short(kind)}"
        raise ReportError(f"{name}: {found}, expected one of {', '.join(_MODELS)}.", remedy=_REMEDY)
    version = document.get("schema_version")
    if isinstance(version, bool) or not isinstance(version, int) or version < 1:
        raise ReportError(f"{name}: schema_version is {_short(version)}, not a whole number from 1.", remedy=_REMEDY)
    if version > NEWEST[kind]:
        raise ReportError(
            f"{name}: schema_version {version} is newer than this release reads ({NEWEST[kind]}).",
            remedy="read it with the graphdedup that wrote it, or a newer one.",
        )
    try:
        # Strict about numbers (no "36" for 36), through JSON's own rules: arrays become tuples.
        return _MODELS[kind].model_validate_json(json.dumps(upgraded(document)), strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        field = ".".join(str(part) for part in first["loc"]) or "the document"
        more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
        raise ReportError(f"{name}: {field}: {' '.join(first['msg'].split())}{more}.", remedy=_REMEDY) from error


def _load(path: Path, name: str) -> dict[str, object]:
    """The JSON object in the file, or a ReportError."""
    held = read_bytes(path, most_bytes=MAX_REPORT_BYTES, called="a report", remedy=_REMEDY)
    try:
        text = held.decode("utf-8")
    except ValueError as error:
        raise ReportError(f"{name}: cannot be read: not UTF-8 text.", remedy=_REMEDY) from error
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        where = f" (line {error.lineno})" if isinstance(error, json.JSONDecodeError) else ""
        raise ReportError(f"{name}: not JSON{where}.", remedy=_REMEDY) from error
    if not isinstance(document, dict):
        raise ReportError(f"{name}: a JSON {type(document).__name__}, not an object.", remedy=_REMEDY)
    return document


def _short(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
