"""How a scope captures a forward."""

from __future__ import annotations

import enum

from seam.errors import CaptureError

__all__ = ["Mode"]


class Mode(enum.StrEnum):
    """How a scope captures a forward."""

    FULL = "full"
    """One graph; break points are plain calls (rule S9)."""
    BREAKABLE = "breakable"
    """Segments split at the break points."""
    DISABLED = "disabled"
    """Nothing is captured: the scope is inert, its body runs as it would without a scope."""

    @classmethod
    def parse(cls, value: Mode | str) -> Mode:
        """Read a mode strictly.

        Raises:
            CaptureError: the value is no mode; the message lists the modes.
        """
        try:
            return cls(value)
        except ValueError:
            modes = ", ".join(repr(mode.value) for mode in cls)
            raise CaptureError(f"mode {value!r} is unknown", rule="S9", remedy=f"use one of {modes}") from None
