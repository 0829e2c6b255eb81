"""NVTX ranges for Nsight Systems: one for each capture, walk, fold, instantiation, update and launch, with the graph's name.

``GRAPHDEDUP_NVTX=1``, or :func:`enable`. Ranges are of the kind that starts and ends, not pushed and popped: a capture begins
and ends in two calls, between which the caller may push ranges of its own.
"""

from __future__ import annotations

import logging
import threading
from typing import Any

import torch

from graphdedup import events
from graphdedup.events import Event

__all__ = ["disable", "enable", "enable_if_not_given"]

_log = logging.getLogger("graphdedup")


class _Ranges:
    """An observer that makes each event a range, such as ``graphdedup update: decode bs=8 segment 3``."""

    def begin(self, event: Event) -> Any:
        return torch.cuda.nvtx.range_start(f"graphdedup {event.kind}: {event.label}")

    def end(self, event: Event, token: Any) -> None:
        torch.cuda.nvtx.range_end(token)


class _State:
    """What was said in code, which wins over the environment, and whether the warning was given."""

    def __init__(self) -> None:
        self.given: bool | None = None
        self.warned = False
        self.ranges = _Ranges()
        self.lock = threading.Lock()


_state = _State()


def enable() -> bool:
    """Make ranges from now on, in the whole process.

    Returns:
        Whether there are any: without a CUDA build of torch it says so once, in the log, and does nothing.
    """
    with _state.lock:
        _state.given = True
        return _enable()


def disable() -> None:
    """Make no ranges from now on, whatever the environment says."""
    with _state.lock:
        _state.given = False
        events.remove(_state.ranges)


def enable_if_not_given() -> None:
    """What ``GRAPHDEDUP_NVTX=1`` does: :func:`enable`, unless code has said otherwise."""
    with _state.lock:
        if _state.given is None:
            _enable()


def _enable() -> bool:
    try:
        torch.cuda.nvtx.range_end(torch.cuda.nvtx.range_start("graphdedup"))
    except (RuntimeError, AttributeError, OSError):  # torch without CUDA has a stand-in that raises one or the other
        if not _state.warned:
            _state.warned = True
            _log.warning(
                "there are no NVTX ranges: this build of torch has no NVTX; use a CUDA build, or unset GRAPHDEDUP_NVTX"
            )
        return False
    events.add(_state.ranges)
    return True
