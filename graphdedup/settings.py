"""Switches, parsed strictly: what is given in code wins over the environment, which wins over the default."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping

from graphdedup.errors import SettingsError

__all__ = [
    "CACHE",
    "DISABLE",
    "INTERPOSE",
    "LOG",
    "NVTX",
    "POLICY",
    "PROBE",
    "REPORT",
    "SYNC",
    "TRACE",
    "VERIFY",
    "log_level",
    "log_to_stderr",
    "parse_switch",
    "switch",
]

DISABLE = "GRAPHDEDUP_DISABLE"
"""Environment switch: ``1`` or ``true`` leaves every graph to the wrapped backend (rule D14)."""
VERIFY = "GRAPHDEDUP_VERIFY"
"""Environment switch: ``1`` or ``true`` compares each graph's first replays with an executable of its own."""
SYNC = "GRAPHDEDUP_SYNC"
"""Environment switch: ``1`` or ``true`` waits for the current stream after each launch."""
LOG = "GRAPHDEDUP_LOG"
"""Environment variable: a level from which on graphdedup logs to stderr."""
PROBE = "GRAPHDEDUP_PROBE"
"""Environment switch: ``0`` or ``false`` never measures a device on its own; only the cache is read (rule D3)."""
CACHE = "GRAPHDEDUP_CACHE"
"""Environment variable: the folder in which measured capabilities are kept."""
NVTX = "GRAPHDEDUP_NVTX"
"""Environment switch: ``1`` or ``true`` makes NVTX ranges of what the fold does."""
TRACE = "GRAPHDEDUP_TRACE"
"""Environment variable: where a trace of what the fold does is written at exit."""

INTERPOSE = "GRAPHDEDUP_INTERPOSE"
"""Environment switch: ``1`` or ``true`` has engines that load a plugin of ours fold their graphs."""
POLICY = "GRAPHDEDUP_POLICY"
"""Environment variable: the policy of such engines, such as ``tier=function,placement=position``."""
REPORT = "GRAPHDEDUP_REPORT"
"""Environment variable: where the processes of such engines write their reports at exit."""

_WORDS = {"1": True, "true": True, "0": False, "false": False}
_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def parse_switch(name: str, text: str) -> bool:
    """Read a switch.

    Raises:
        SettingsError: ``text`` is none of 0, 1, true, false (any case).
    """
    try:
        return _WORDS[text.strip().lower()]
    except KeyError:
        raise SettingsError(f"{name}={text!r} is no switch", remedy="use one of 0, 1, true, false") from None


def switch(name: str, given: bool | None, default: bool, environment: Mapping[str, str] | None = None) -> bool:
    """``given`` if it is not None, else what the environment variable ``name`` says, else ``default``.

    Raises:
        SettingsError: the environment holds something that is no switch, or what is given is none.
    """
    if isinstance(given, bool):
        return given
    if given is not None:
        raise SettingsError(f"{name}: {given!r} given in code is no switch", remedy="give True, False or None")
    text = (os.environ if environment is None else environment).get(name)
    return default if text is None else parse_switch(name, text)


def log_level(given: str | None, environment: Mapping[str, str] | None = None) -> int | None:
    """The level given, else the one that :data:`LOG` names, as a number of :mod:`logging`; None if neither is there.

    Raises:
        SettingsError: it is none of debug, info, warning, error (any case).
    """
    text = given if given is not None else (os.environ if environment is None else environment).get(LOG)
    if text is None:
        return None
    try:
        return _LEVELS[text.strip().lower()]
    except (KeyError, AttributeError):
        raise SettingsError(f"{LOG}={text!r} is no level", remedy=f"use one of {', '.join(_LEVELS)}") from None


class _Stderr(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes to whatever ``sys.stderr`` is at the time. One of it serves the process."""

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)


def log_to_stderr(level: int) -> None:
    """Log what graphdedup says from ``level`` on to stderr; once, however often it is called."""
    logger = logging.getLogger("graphdedup")
    if not any(isinstance(handler, _Stderr) for handler in logger.handlers):
        handler = _Stderr()
        handler.setFormatter(logging.Formatter("%(name)s %(levelname)s: %(message)s"))
        logger.addHandler(handler)
    logger.setLevel(level)
