"""Schema versions: the newest that this release reads, and how an older file becomes a newer one."""

from __future__ import annotations

import json
from typing import Any

__all__ = ["NEWEST", "upgraded", "upgraded_text"]

FOOTPRINT = "graphdedup.footprint"
NEWEST = {FOOTPRINT: 2, "graphdedup.demo": 1}
"""By kind. An older file is read as well; a newer one is refused."""


def upgraded(document: dict[str, Any]) -> dict[str, Any]:
    """A document of an older schema as one of the newest; any other one as it is.

    Version 1 of a footprint lists of all graphs only those on their own, in ``alone``; nothing else of it has changed.
    """
    if document.get("kind") != FOOTPRINT or document.get("schema_version") != 1 or "listed_alone" in document:
        return document
    held = {name: value for name, value in document.items() if name != "alone"}
    if "alone" in document:
        held["listed_alone"] = document["alone"]
    return held | {"schema_version": 2}


def upgraded_text(text: str) -> str:
    """The same for JSON text; what is no JSON object is handed back as it is, for the model to refuse."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return text
    if not isinstance(document, dict):
        return text
    newer = upgraded(document)
    return text if newer is document else json.dumps(newer)
