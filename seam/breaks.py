"""Break points: what ends a segment inside a capture scope, and is a plain call everywhere else (rule S9)."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, overload

from seam import active, traced
from seam.scope import BreakPoint
from seam.sites import call_site
from seam.slot import BreakSlot

__all__ = ["eager_break", "graph_break", "name_of"]

_P = ParamSpec("_P")
_R = TypeVar("_R")


@overload
def eager_break(function: Callable[_P, _R], /) -> Callable[_P, _R]: ...
@overload
def eager_break(
    *,
    name: str | None = None,
    slot: BreakSlot | None = None,
    enable: bool | Callable[[], bool] = True,
    capture_stub: Callable[..., Any] | None = None,
) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]: ...
def eager_break(
    function: Any = None,
    /,
    *,
    name: str | None = None,
    slot: BreakSlot | None = None,
    enable: bool | Callable[[], bool] = True,
    capture_stub: Callable[..., Any] | None = None,
) -> Any:
    """Mark a function that runs between segments, at capture and again at every replay.

    What it returns is written back at each replay into the storage that the next segment reads (rules S2 to S4): a tensor,
    a sequence, mapping, dataclass or object with tensor fields, None, or a scalar that never changes. It may also write
    into its arguments and return None. A result that no segment reads may be returned as ``NoWriteback(value)``. The
    arguments of the capture are kept and passed again: tensors among them hold what the segment before wrote.

    Outside a capture scope, in a scope of mode ``full`` or ``disabled``, and inside another break it is a plain call (S9).

    Args:
        name: for messages; the function's qualified name if None.
        slot: an explicit destination, to be shared between captures; by default each break has one of its own.
        enable: whether it breaks at all, or a function that says so each time a capture meets it. Where it does not, the
            function is captured like any other.
        capture_stub: called at capture in place of the function, with the same arguments, for the structure of the result:
            for a function that cannot run before its inputs hold something.

    Raises:
        BreakError: at capture, for a result that cannot be written back or a slot used twice in one capture.
    """
    if function is None:
        return functools.partial(eager_break, name=name, slot=slot, enable=enable, capture_stub=capture_stub)
    point = BreakPoint(function, name or name_of(function), capture_stub, enable, slot)

    def meet(*args: Any, **kwargs: Any) -> Any:
        scope = active.current()
        if scope is None:
            return function(*args, **kwargs)
        return scope.meet(point, args, kwargs, call_site(outside_torch=True))

    @functools.wraps(function)
    def marked(*args: Any, **kwargs: Any) -> Any:
        if traced.state.splits or traced.compiling():
            return traced.call(function, meet, args, kwargs)
        scope = active.current()
        if scope is None:
            return function(*args, **kwargs)
        return scope.meet(point, args, kwargs, call_site())

    return marked


def graph_break(name: str = "graph_break") -> None:
    """End the segment here and begin the next one, with nothing in between. Outside a capture it does nothing (S9)."""
    if traced.state.splits or traced.compiling():
        traced.call(_nothing, _meet_nothing, (name,), {})
        return
    scope = active.current()
    if scope is not None:
        scope.meet(BreakPoint(_nothing, name), (), {}, call_site())


def _nothing(name: str = "") -> None:
    pass


def _meet_nothing(name: str) -> None:
    scope = active.current()
    if scope is not None:
        scope.meet(BreakPoint(_nothing, name), (), {}, call_site(outside_torch=True))


def name_of(function: Any) -> str:
    """What a break point is called where nobody named it."""
    return str(getattr(function, "__qualname__", repr(function)))
