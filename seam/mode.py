"""How a scope captures a forward, and which phase of an engine captures how."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from seam.errors import CaptureError

__all__ = ["CaptureConfig", "Mode"]


class Mode(enum.StrEnum):
    """How a scope captures a forward."""

    FULL = "full"
    """One graph; break points are plain calls (rule S9)."""
    BREAKABLE = "breakable"
    """Segments split at the break points."""
    TC_PIECEWISE = "tc_piecewise"
    """The same, of a forward that :func:`seam.piecewise` compiled: split at the same break points."""
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

    @property
    def splits(self) -> bool:
        """Whether break points end a segment."""
        return self in (Mode.BREAKABLE, Mode.TC_PIECEWISE)


_DEFAULTS = {"decode": Mode.FULL, "prefill": Mode.BREAKABLE}


@dataclass(frozen=True, slots=True)
class CaptureConfig:
    """The mode of each phase of an engine: unless it is said otherwise, decode is captured whole and prefill with breaks."""

    modes: Mapping[str, Mode] = field(default_factory=lambda: MappingProxyType(_DEFAULTS))

    @classmethod
    def parse(cls, value: CaptureConfig | Mapping[str, Mode | str] | str | None) -> CaptureConfig:
        """Read a config strictly; phases that are not named keep their default.

        Args:
            value: a config; a mapping of phases to modes; text such as ``"decode=full,prefill=breakable"``; None for the
                defaults, decode ``full`` and prefill ``breakable``.

        Raises:
            CaptureError: text that is no list of ``phase=mode``, a phase named twice, or an unknown mode.
        """
        if isinstance(value, CaptureConfig):
            return value
        if value is None:
            return cls()
        pairs = _pairs(value) if isinstance(value, str) else list(value.items())
        modes: dict[str, Mode] = {}
        for phase, mode in pairs:
            if not isinstance(phase, str) or not phase.isidentifier():
                raise _refused(f"phase {phase!r} is no name", "name phases such as decode, prefill, draft")
            if phase in modes:
                raise _refused(f"phase {phase!r} is named twice", "name each phase once")
            modes[phase] = Mode.parse(mode)
        return cls(MappingProxyType(_DEFAULTS | modes))

    def mode(self, phase: str) -> Mode:
        """The mode of a phase.

        Raises:
            CaptureError: the config does not name it.
        """
        try:
            return self.modes[phase]
        except KeyError:
            known = ", ".join(self.modes)
            raise _refused(f"phase {phase!r} has no mode", f"add {phase}=full, or name one of {known}") from None

    def __str__(self) -> str:
        return ",".join(f"{phase}={mode}" for phase, mode in self.modes.items())


def _pairs(text: str) -> list[tuple[str, str]]:
    pairs = []
    for item in text.split(","):
        phase, equals, mode = (part.strip() for part in item.partition("="))
        if not equals:
            raise _refused(f"{item.strip()!r} is no phase=mode", "write decode=full,prefill=breakable")
        pairs.append((phase, mode))
    return pairs


def _refused(problem: str, remedy: str) -> CaptureError:
    return CaptureError(f"capture config: {problem}", rule="S9", remedy=remedy)
