"""Break points in functions that one does not own, for the length of a capture."""

from __future__ import annotations

import functools
import importlib
import inspect
import logging
import threading
from collections.abc import Callable
from contextlib import ExitStack
from types import TracebackType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode, get_testing_overrides

from seam import active, traced
from seam.breaks import name_of
from seam.errors import CaptureError
from seam.scope import BreakPoint
from seam.sites import call_site

__all__ = ["BreakAt", "break_at"]

_log = logging.getLogger("seam")
_OPERATORS = (torch._ops.OpOverload, torch._ops.OpOverloadPacket)


class BreakAt:
    """One function that breaks while this is entered; made by :func:`break_at`. May be entered again, not twice at once.

    Attributes:
        met_count: how often a capture came to it since it was entered, breaks inside of breaks left out.
    """

    def __init__(
        self,
        target: Any,
        *,
        name: str | None = None,
        enable: bool | Callable[[], bool] = True,
        capture_stub: Callable[..., Any] | None = None,
        required: bool = True,
    ) -> None:
        self.target = target
        self.name = name or (target if isinstance(target, str) else _shown(target))
        self.required = required
        self.met_count = 0
        self._enable = enable
        self._stub = capture_stub
        self._undo: Callable[[], None] | None = None
        if isinstance(target, str):
            if target.count(":") != 1 or not all(target.split(":")):
                raise self._refused("names no function", "write 'package.module:function' or 'package.module:Class.method'")
        elif not _is_torch_function(target):
            raise self._refused(
                "is neither a string nor an operator or function of torch",
                "give 'package.module:function', an operator such as torch.ops.aten.mul, or a function of torch",
            )

    def __repr__(self) -> str:
        return f"<seam.break_at {self.name}>"

    def __enter__(self) -> BreakAt:
        if self._undo is not None:
            raise self._refused("is entered already", "make one for each use")
        self.met_count = 0
        self._undo = self._patch() if isinstance(self.target, str) else self._intercept()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        undo, self._undo = self._undo, None
        if undo is not None:
            undo()

    def meet(self, original: Callable[..., Any], args: Any, kwargs: Any, site: str) -> Any:
        """The function was called: a break point where a scope of this thread is open."""
        scope = active.current()
        if scope is None:
            return original(*args, **kwargs)
        self.met_count += scope.recording
        return scope.meet(BreakPoint(original, self.name, self._stub, self._enable), args, kwargs, site)

    def _intercept(self) -> Callable[[], None]:
        calls = ExitStack()
        calls.enter_context(_Calls(self))
        return calls.close

    def _patch(self) -> Callable[[], None]:
        owner, attribute = self._found()
        patch = _Patch.of(owner, attribute)
        mine = _here.entered.setdefault(patch.key, [])
        mine.append(self)

        def undo() -> None:
            mine.remove(self)
            patch.leave()

        return undo

    def _found(self) -> tuple[Any, str]:
        module, _, path = self.target.partition(":")
        try:
            owner = importlib.import_module(module)
            *outer, attribute = path.split(".")
            for name in outer:
                owner = getattr(owner, name)
            found = getattr(owner, attribute)
        except (ImportError, AttributeError) as error:
            raise self._refused(f"cannot be found ({error})", "name it as it is imported: 'package.module:function'") from error
        if not callable(found):
            raise self._refused(f"is a {type(found).__qualname__}, which cannot be called", "name a function")
        return owner, attribute

    def _refused(self, problem: str, remedy: str) -> CaptureError:
        return CaptureError(f"break_at({self.name!r}) {problem}", rule="S13", remedy=remedy)


def break_at(
    target: Any,
    *,
    name: str | None = None,
    enable: bool | Callable[[], bool] = True,
    capture_stub: Callable[..., Any] | None = None,
    required: bool = True,
) -> BreakAt:
    """Make a function that one does not own a break point, as :func:`seam.eager_break` does, for the length of a capture.

    ``seam.capture(graph, break_at=["package.attention:forward"])``, or for several captures
    ``with seam.break_at(torch.ops.aten.softmax): ...``. Everything is undone at the end. Only captures of the thread that
    entered it break there.

    Args:
        target: ``"package.module:function"`` or ``"package.module:Class.method"``: the attribute is replaced for the time, so
            a caller that holds the function itself, as after ``from package.module import function``, is not seen. Or an
            operator (``torch.ops.aten.mul``, or one overload of it) or a function of torch
            (``torch.nn.functional.softmax``): calls from Python are seen, those inside of torch's own C++ code are not.
        name: for messages; the target if None.
        enable: as for :func:`seam.eager_break`.
        capture_stub: as for :func:`seam.eager_break`.
        required: whether a capture that was given this, and never came to it, fails (rule S13).

    Raises:
        CaptureError: the target can be no break point. That a string names nothing shows when it is entered.
    """
    return BreakAt(target, name=name, enable=enable, capture_stub=capture_stub, required=required)


class _Here(threading.local):
    def __init__(self) -> None:
        self.entered: dict[tuple[int, str], list[BreakAt]] = {}


_here = _Here()
_patches: dict[tuple[int, str], _Patch] = {}
_lock = threading.Lock()


class _Patch:
    """A function that is replaced as long as any thread has a break point there."""

    def __init__(self, owner: Any, attribute: str) -> None:
        self.key = (id(owner), attribute)
        self._owner = owner
        self._attribute = attribute
        self._users = 0
        self._had = attribute in vars(owner)
        self._before = inspect.getattr_static(owner, attribute)
        self._after: Any = None

    @classmethod
    def of(cls, owner: Any, attribute: str) -> _Patch:
        with _lock:
            patch = _patches.get((id(owner), attribute))
            if patch is None:
                patch = _patches[(id(owner), attribute)] = cls(owner, attribute)
                patch._replace()
            patch._users += 1
            return patch

    def leave(self) -> None:
        with _lock:
            self._users -= 1
            if self._users:
                return
            del _patches[self.key]
            if vars(self._owner).get(self._attribute) is not self._after:
                _log.warning("%s was replaced by somebody else during a capture, and is left so", self._attribute)
            elif self._had:
                setattr(self._owner, self._attribute, self._before)
            else:
                delattr(self._owner, self._attribute)

    def _replace(self) -> None:
        kind = type(self._before)
        if kind in (staticmethod, classmethod):
            self._after = kind(self._wrapped(self._before.__func__))
        else:
            self._after = self._wrapped(self._before)
        setattr(self._owner, self._attribute, self._after)

    def _wrapped(self, original: Callable[..., Any]) -> Callable[..., Any]:
        key = self.key

        def meet(*args: Any, **kwargs: Any) -> Any:
            mine = _here.entered.get(key)
            if not mine:
                return original(*args, **kwargs)
            return mine[-1].meet(original, args, kwargs, call_site(outside_torch=True))

        def call(*args: Any, **kwargs: Any) -> Any:
            if traced.state.splits or traced.compiling():
                return traced.call(original, meet, args, kwargs)
            return meet(*args, **kwargs)

        return functools.update_wrapper(call, original) if hasattr(original, "__dict__") else call


class _Calls(TorchFunctionMode):
    """Sees the calls of torch's functions in one thread."""

    def __init__(self, at: BreakAt) -> None:
        super().__init__()
        self._at = at

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        wanted = self._at.target
        if func is not wanted and getattr(func, "overloadpacket", None) is not wanted:
            return func(*args, **(kwargs or {}))
        return self._at.meet(func, args, kwargs or {}, call_site(outside_torch=True))


def _is_torch_function(target: Any) -> bool:
    return isinstance(target, _OPERATORS) or (callable(target) and target in get_testing_overrides())


def _shown(target: Any) -> str:
    return str(target) if isinstance(target, _OPERATORS) else name_of(target)
