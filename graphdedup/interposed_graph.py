"""The class that stands in for ``torch.cuda.CUDAGraph`` under interposition.

It keeps its raw graph, which an update needs, and hides that: to its caller it is the class that torch has. What it does at
each point of a graph's life:

- ``capture_end`` folds the graph, where torch would instantiate it. A graph that the caller asked to keep (``keep_graph=True``)
  may still be edited then, so it is folded at ``instantiate`` or at the first replay, where torch would instantiate that one.
- ``replay`` launches the shared executable.
- ``reset`` and the end of the object release the graph from the fold first, through the one hook that every graph goes through.
- Whoever asks for the executable (``raw_cuda_graph_exec``) gets one that nobody else uses.

A graph that cannot be folded, and one on which a hook of torch 2.14 or newer was registered, is torch's own in everything.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple, Protocol

import torch

from graphdedup import events
from graphdedup.backend import DedupBackend, DedupHandle
from graphdedup.errors import GraphDedupError
from graphdedup.events import Kind, Span
from graphdedup.group import Member
from graphdedup.registry import Registry
from graphdedup.torch_graphs import TorchGraph
from seam.backend import SegmentInfo

__all__ = ["Host", "interposed_class"]

_log = logging.getLogger("graphdedup")

_KEEP_FIRST = "You cannot access the raw cudaGraph_t unless CUDAGraph was initialized with keep_graph=True"
_NOT_TO_BE_CALLED = "instantiate() is intended to be called by the user only when keep_graph=true"
_HOOKS = ("register_post_instantiate_hook", "register_replay_start_hook", "register_replay_end_hook")
"""Those of torch 2.14 that see torch's own executable, or its replay."""


class Host(Protocol):
    """What an interposed graph asks of the interposition that made its class."""

    def begin(self) -> tuple[DedupBackend | None, SegmentInfo, str]:
        """A capture is about to begin: who folds it (nobody where that is not possible), what it is called, and the runner."""

    def capturing(self) -> bool:
        """Whether the current stream is being captured."""


class _Folded(NamedTuple):
    backend: DedupBackend
    registry: Registry
    handle: DedupHandle
    member: Member


class _State:
    """What the fold knows of one graph."""

    __slots__ = (
        "asked_keep",
        "backend",
        "by_torch",
        "captured",
        "debug",
        "event",
        "generators",
        "handle",
        "hooked",
        "runner",
        "segment",
    )

    def __init__(self, asked_keep: bool) -> None:
        self.asked_keep = asked_keep
        self.by_torch = False
        """Whether torch's own code runs, which may call methods of the class itself (from 2.14 on)."""
        self.debug = False
        self.hooked = False
        self.generators: list[torch.Generator] = []
        self.forget()

    def forget(self) -> None:
        """As before the capture."""
        self.backend: DedupBackend | None = None
        self.segment, self.runner = SegmentInfo(), ""
        self.captured = False
        self.event: Span | None = None
        self.handle: DedupHandle | None = None

    @property
    def folded(self) -> _Folded | None:
        """Its place in the fold, if it has an executable there."""
        handle, backend = self.handle, self.backend
        if handle is None or backend is None or backend.registry is None or handle.member is None:
            return None
        return _Folded(backend, backend.registry, handle, handle.member) if handle.member.group is not None else None

    @contextmanager
    def torchs(self) -> Iterator[None]:
        """Inside, torch's own code runs."""
        before, self.by_torch = self.by_torch, True
        try:
            yield
        finally:
            self.by_torch = before

    def release(self) -> None:
        """Take the graph out of the fold."""
        handle, self.handle = self.handle, None
        if handle is not None and self.backend is not None:
            self.backend.destroy_graph(handle)


def interposed_class(base: Any, host: Host) -> Any:
    """A subclass of torch's class whose graphs fold.

    Args:
        base: ``torch.cuda.CUDAGraph``, whatever version of it.
        host: the interposition.
    """

    class _Same(type(base)):  # type: ignore[misc]
        """Graphs of torch's own class, such as those that were captured before, are instances of the class under its name."""

        def __instancecheck__(cls, instance: Any) -> bool:
            return isinstance(instance, base) if cls is CUDAGraph else bool(super().__instancecheck__(instance))

        def __subclasscheck__(cls, subclass: Any) -> bool:
            return issubclass(subclass, base) if cls is CUDAGraph else bool(super().__subclasscheck__(subclass))

    class CUDAGraph(base, metaclass=_Same):  # type: ignore[misc]
        __doc__ = base.__doc__

        def __new__(cls, *args: Any, **kwargs: Any) -> Any:
            # A subclass may take arguments of its own, which torch's pays no heed to here.
            return base.__new__(cls, True)

        def __init__(self, keep_graph: bool = False) -> None:
            super().__init__(True)
            self._graphdedup = _State(bool(keep_graph))

        def __del__(self) -> None:
            try:
                self._graphdedup.release()
            except Exception:  # raised from here it could only be printed
                _log.debug("a graph that was dropped could not be released", exc_info=True)
            finish = getattr(super(), "__del__", None)
            if finish is not None:
                finish()

        def capture_begin(self, *args: Any, **kwargs: Any) -> None:
            state, event = self._graphdedup, None
            if state.handle is None:
                state.backend, state.segment, state.runner = host.begin()
                if state.backend is not None:
                    event = events.begin(Kind.CAPTURE, state.segment)
            try:
                super().capture_begin(*args, **kwargs)
            except BaseException as error:
                if event is not None:
                    event.close(error)
                raise
            state.event = event

        def capture_end(self, *args: Any, **kwargs: Any) -> None:
            state = self._graphdedup
            event, state.event = state.event, None
            with event or nullcontext(), state.torchs():
                super().capture_end(*args, **kwargs)
            state.captured = True
            if not state.asked_keep:
                self._fold()

        def _fold(self) -> None:
            """Where torch would instantiate: fold, or let torch do it."""
            state = self._graphdedup
            if state.backend is not None and not state.hooked:
                view = TorchGraph(base, self, state.generators)
                try:
                    # The caller may ask for the graph that it keeps, so that one must not be emptied.
                    detachable = not state.asked_keep
                    state.handle = state.backend.adopt(view, state.segment, detachable=detachable, runner=state.runner)
                except GraphDedupError as error:
                    _log.warning("%s keeps torch's own executable: %s", state.segment, error)
            if state.folded is None:
                super().instantiate()

        def instantiate(self) -> None:
            state = self._graphdedup
            if state.by_torch or not state.captured:
                super().instantiate()
            elif not state.asked_keep:
                raise RuntimeError(_NOT_TO_BE_CALLED)
            else:
                state.release()  # the graph may have been edited since
                self._fold()

        def replay(self) -> None:
            state = self._graphdedup
            capturing = host.capturing()
            if state.handle is None and state.captured and state.asked_keep and not capturing:
                self._fold()
            folded = state.folded
            if folded is None:
                with state.torchs():
                    super().replay()
            elif capturing:
                # It becomes a child of the graph that is being captured, which no shared executable may be.
                if folded.member.detached:
                    raise GraphDedupError(
                        f"{state.segment} draws random numbers and cannot be replayed inside another capture",
                        rule="D12",
                        remedy="capture it with GRAPHDEDUP_DISABLE=1, or replay it outside",
                    )
                with state.torchs():
                    super().replay()
            else:
                tracker = getattr(self, "_tracker", None)  # torch 2.13 and newer: whether inputs are alive
                if tracker is not None:
                    tracker.check_alive(self.pool())
                folded.backend.replay_graph(folded.handle)

        def reset(self) -> None:
            state = self._graphdedup
            try:
                state.release()
            finally:
                state.forget()
                super().reset()

        def register_generator_state(self, generator: torch.Generator) -> None:
            super().register_generator_state(generator)
            self._graphdedup.generators.append(generator)

        def enable_debug_mode(self) -> None:
            super().enable_debug_mode()
            self._graphdedup.debug = True

        def raw_cuda_graph(self) -> Any:
            state = self._graphdedup
            if not (state.asked_keep or state.debug):
                raise RuntimeError(_KEEP_FIRST)
            return super().raw_cuda_graph()

        def raw_cuda_graph_exec(self) -> Any:
            folded = self._graphdedup.folded
            return super().raw_cuda_graph_exec() if folded is None else folded.registry.own(folded.member)

    def hooking(name: str) -> Any:
        def register(self: Any, *args: Any, **kwargs: Any) -> Any:
            state = self._graphdedup
            state.hooked = True
            folded = state.folded
            if folded is not None and not folded.member.detached:
                state.release()
                base.instantiate(self)
            return getattr(base, name)(self, *args, **kwargs)

        register.__name__, register.__doc__ = name, getattr(base, name).__doc__
        return register

    for name in _HOOKS:
        if hasattr(base, name):
            setattr(CUDAGraph, name, hooking(name))
    for name in ("capture_begin", "capture_end", "instantiate", "replay", "reset", "raw_cuda_graph", "raw_cuda_graph_exec"):
        getattr(CUDAGraph, name).__doc__ = getattr(getattr(base, name, None), "__doc__", None)
    CUDAGraph.__name__, CUDAGraph.__qualname__, CUDAGraph.__module__ = base.__name__, base.__qualname__, base.__module__
    return CUDAGraph
