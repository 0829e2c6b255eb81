"""The JSON schema of report files; ``docs/report-schema.json`` holds it."""

from __future__ import annotations

import json
from typing import Annotated

from pydantic import Field, TypeAdapter

from graphdedup.report.model import DemoResult, FootprintReport

__all__ = ["schema_text"]

_Report = Annotated[FootprintReport | DemoResult, Field(discriminator="kind")]


def schema_text() -> str:
    """JSON schema (draft 2020-12) of the files that this release writes, of both kinds, with a newline at its end."""
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "A report of graphdedup"}
    schema |= TypeAdapter[FootprintReport | DemoResult](_Report).json_schema(mode="serialization")
    return json.dumps(schema, indent=1) + "\n"
