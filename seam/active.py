"""The capture scope that this thread is in: scopes are per thread (rule S12)."""

from __future__ import annotations

import threading
from typing import Any, Protocol

__all__ = ["current", "recording", "set_current"]


class _Scope(Protocol):
    @property
    def recording(self) -> bool: ...

    def meet(self, point: Any, args: Any, kwargs: Any, site: str) -> Any: ...


class _ThreadState(threading.local):
    scope: _Scope | None = None


_state = _ThreadState()


def current() -> _Scope | None:
    """The scope that this thread has open, or None."""
    return _state.scope


def set_current(scope: _Scope | None) -> None:
    """Make ``scope`` this thread's scope."""
    _state.scope = scope


def recording() -> bool:
    """Whether work that this thread queues now goes into a segment (and not into a break body)."""
    return _state.scope is not None and _state.scope.recording
