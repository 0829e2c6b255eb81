"""Switches, parsed strictly: what is given in code wins over the environment, which wins over the default."""

from __future__ import annotations

import enum
import os
from collections.abc import Mapping
from typing import TypeVar

from graphdedup.errors import SettingsError

__all__ = ["CACHE", "DISABLE", "PROBE", "choice", "enabled", "parse_switch", "probe"]

DISABLE = "GRAPHDEDUP_DISABLE"
"""Environment switch: ``1`` or ``true`` leaves every graph to the wrapped backend (rule D14)."""
PROBE = "GRAPHDEDUP_PROBE"
"""Environment switch: ``0`` or ``false`` never measures a device on its own; only the cache is read (rule D3)."""
CACHE = "GRAPHDEDUP_CACHE"
"""Environment variable: the folder in which measured capabilities are kept."""

_E = TypeVar("_E", bound=enum.StrEnum)
_WORDS = {"1": True, "true": True, "0": False, "false": False}


def parse_switch(name: str, text: str) -> bool:
    """Read a switch.

    Raises:
        SettingsError: ``text`` is none of 0, 1, true, false (any case).
    """
    try:
        return _WORDS[text.strip().lower()]
    except KeyError:
        raise SettingsError(f"{name}={text!r} is no switch", remedy="use one of 0, 1, true, false") from None


def enabled(given: bool | None, environment: Mapping[str, str] | None = None) -> bool:
    """Whether to fold: ``given`` if it is not None, else what :data:`DISABLE` says, else True.

    Raises:
        SettingsError: the environment holds something that is no switch.
    """
    if given is not None:
        return given
    text = (os.environ if environment is None else environment).get(DISABLE)
    return True if text is None else not parse_switch(DISABLE, text)


def probe(given: bool | None, environment: Mapping[str, str] | None = None) -> bool:
    """Whether a device may be measured: ``given`` if it is not None, else what :data:`PROBE` says, else True.

    Raises:
        SettingsError: the environment holds something that is no switch.
    """
    if given is not None:
        return given
    text = (os.environ if environment is None else environment).get(PROBE)
    return True if text is None else parse_switch(PROBE, text)


def choice(name: str, given: str, kind: type[_E]) -> _E:
    """Read one of an enumeration's values.

    Raises:
        SettingsError: ``given`` is none of them; the message lists them.
    """
    try:
        return kind(given)
    except ValueError:
        values = ", ".join(repr(str(member.value)) for member in kind)
        raise SettingsError(f"{name}={given!r} is unknown", remedy=f"use one of {values}") from None
