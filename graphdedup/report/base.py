"""What every model of a report is made of: frozen models, and figures that say where they come from (rule M3)."""

from __future__ import annotations

import enum
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["Count", "Figure", "Frozen", "Seconds", "Source"]

Count = Annotated[int, Field(ge=0)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Frozen(BaseModel):
    """A model that cannot be changed and has no fields but its own."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def to_json(self) -> str:
        """The model as indented JSON text; ``from_json`` of the same class, where it has one, gives an equal model back."""
        return self.model_dump_json(indent=2)


class Source(enum.StrEnum):
    """Where a figure comes from (rule M3)."""

    MEASURED_DEVICE = "measured_device"
    MEASURED_HOST = "measured_host"
    MODELLED = "modelled"

    @property
    def words(self) -> str:
        """For a reader: ``"measured on the device"``, ``"measured on the host"`` or ``"modelled"``."""
        return {
            Source.MEASURED_DEVICE: "measured on the device",
            Source.MEASURED_HOST: "measured on the host",
            Source.MODELLED: "modelled",
        }[self]


class Figure(Frozen):
    """A number of bytes that says what it is. ``bytes`` is None where nothing could be read; ``how`` says why."""

    bytes: int | None
    source: Source
    how: str
    peak_bytes: int | None = None
    """The most there was, from the same source; None where nobody kept count."""

    def __add__(self, other: Figure) -> Figure:
        """The sum of two figures of one source; unknown if either is. Peaks need not coincide, so the sum has none.

        Raises:
            ValueError: the sources differ. Such figures are never added (rule M3).
        """
        if self.source is not other.source:
            raise ValueError(
                f"a figure {self.source.words} and one {other.source.words} are never added [rule M3] "
                "Remedy: report them side by side."
            )
        total = None if self.bytes is None or other.bytes is None else self.bytes + other.bytes
        how = self.how if self.how == other.how else f"{self.how}; {other.how}"
        return Figure(bytes=total, source=self.source, how=how)
