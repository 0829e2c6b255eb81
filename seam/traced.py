"""What a break point is to ``torch.compile``: a plain call that is compiled with the rest, or where the compiled code ends.

Kept apart from the break points and from what compiles, since both need it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

__all__ = ["call", "compiling", "state"]

compiling = torch.compiler.is_compiling
"""Whether ``torch.compile`` reads this code now, in place of running it."""


class _State:
    """Read by compiled code: it is compiled anew where one of these differs."""

    def __init__(self) -> None:
        self.splits = False
        """Whether the forward that is being called was compiled by :func:`seam.piecewise`."""
        self.outside: Callable[..., Any] = _called
        """Calls a function outside of compiled code."""


def _called(function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    return function(*args, **kwargs)


state = _State()


def call(plain: Callable[..., Any], at_break: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """What code that is compiled, or called by a forward that is compiled in pieces, does at a break point.

    Args:
        plain: the function itself; compiled with the rest by a plain ``torch.compile``.
        at_break: what meets the scope; compiled code ends before it and goes on after it.
        args: of the call.
        kwargs: of the call.
    """
    if state.splits:
        return state.outside(at_break, args, kwargs)
    return plain(*args, **kwargs)
