"""A forward compiled in pieces: ``torch.compile`` ends each piece at the break points that a capture splits at.

One marking serves both. A break point is no part of any piece: the compiled code ends before it, it runs as it would have run
uncompiled, and the next piece goes on after it. So a capture of mode ``tc_piecewise`` has the same segments as one of mode
``breakable``, with compiled kernels in them.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from seam import traced
from seam.errors import CaptureError

__all__ = ["Piece", "Piecewise", "piecewise"]

_lock = threading.RLock()


@dataclass(frozen=True, slots=True)
class Piece:
    """One compiled piece: how many operations ``torch.compile`` found in it, before it compiled them."""

    operations: int


class Piecewise:
    """A forward that is compiled in pieces at its first calls; made by :func:`piecewise`.

    Attributes:
        pieces: what was compiled so far, in the order of the forward. A shape that is compiled anew adds its own.
    """

    def __init__(self, forward: Callable[..., Any], inner: str | Callable[..., Any], dynamic: bool | None) -> None:
        self.pieces: list[Piece] = []
        self._inner = inner
        if traced.state.outside is traced._called:
            traced.state.outside = torch.compiler.disable(traced._called)
        self._compiled = torch.compile(forward, backend=self._compile, dynamic=dynamic)
        functools.update_wrapper(self, forward, updated=())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the forward; what is not compiled yet is compiled first, which no capture can hold."""
        with _splitting():
            return self._compiled(*args, **kwargs)

    @contextmanager
    def only_compiled(self) -> Iterator[None]:
        """Inside, a call that would have to compile something fails.

        Raises:
            CaptureError: it did.
        """
        with torch.compiler.set_stance("fail_on_recompile"):
            try:
                yield
            except RuntimeError as error:
                if "fail_on_recompile" in str(error):
                    raise _not_compiled(str(error)) from error
                raise

    def _compile(self, graph: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        """The backend that ``torch.compile`` hands each piece to."""
        calls = sum(node.op in ("call_function", "call_method", "call_module") for node in graph.graph.nodes)
        self.pieces.append(Piece(calls))
        inner: Any = torch._dynamo.lookup_backend(self._inner) if isinstance(self._inner, str) else self._inner
        compiled: Callable[..., Any] = inner(graph, example_inputs)
        return compiled


def piecewise(
    forward: Callable[..., Any], *, inner: str | Callable[..., Any] = "inductor", dynamic: bool | None = None
) -> Piecewise:
    """Compile a forward in pieces that end where it breaks: at marked functions, ``graph_break`` and ``break_at``.

    Call it at every shape before it is captured. In plain ``torch.compile`` a break point is compiled like any other code, and
    no capture splits there.

    Args:
        forward: the forward, or a module.
        inner: the backend of ``torch.compile`` that compiles each piece.
        dynamic: as for ``torch.compile``.
    """
    return Piecewise(forward, inner, dynamic)


@contextmanager
def _splitting() -> Iterator[None]:
    """Compiled code ends at break points. One thread at a time: the state is read by the code of all of them."""
    with _lock:
        before, traced.state.splits = traced.state.splits, True
        try:
            yield
        finally:
            traced.state.splits = before


def _not_compiled(problem: str) -> CaptureError:
    return CaptureError(
        f"a capture came to a shape that was not compiled: {problem.splitlines()[0]}",
        rule="S7",
        remedy="call the forward at this shape, in the same modes, before the capture, such as by warmup=",
    )
