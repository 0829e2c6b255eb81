"""Where in the caller's code something was called, for messages."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

__all__ = ["call_site"]

_PASSED_OVER = (str(Path(torch.__file__).parent), str(Path(__file__).parent))


def call_site(*, outside_torch: bool = False) -> str:
    """``file:line`` of whoever called the function that calls this.

    Args:
        outside_torch: pass over frames of torch and of the seam itself, where one of them stands in between.
    """
    frame = sys._getframe(2)
    while outside_torch and frame.f_back is not None and frame.f_code.co_filename.startswith(_PASSED_OVER):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
