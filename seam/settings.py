"""The seam's switch, and how switches are read."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache

from seam.errors import SeamError

__all__ = ["DISABLE", "SWITCH_WORDS", "disabled"]

DISABLE = "SEAM_DISABLE"
"""Environment switch: ``1`` or ``true`` makes every capture scope of the process inert (rule S10)."""

SWITCH_WORDS: Mapping[str, bool] = {"1": True, "true": True, "0": False, "false": False}
"""What a switch may say, in any case."""


@cache
def disabled() -> bool:
    """Whether :data:`DISABLE` is set. Read once per process (rule S10): half a process must not capture.

    Raises:
        SeamError: it holds something that is no switch.
    """
    text = os.environ.get(DISABLE, "0")
    try:
        return SWITCH_WORDS[text.strip().lower()]
    except KeyError:
        raise SeamError(f"{DISABLE}={text!r} is no switch", rule="S10", remedy="use one of 0, 1, true, false") from None
