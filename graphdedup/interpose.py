"""The fold under ``torch.cuda.CUDAGraph``, for runners that one does not own: no edit, one line.

    with graphdedup.interpose() as dedup:
        runner.capture_all()
    runner.serve()                 # graphs that were captured inside stay folded
    print(dedup.stats())

``torch.cuda.graph``, ``torch.cuda.make_graphed_callables``, Inductor's CUDA graph trees and most runners look the class up when
they make a graph, so they find the subclass that stands there meanwhile.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from graphdedup import settings
from graphdedup.backend import DedupBackend
from graphdedup.errors import GraphDedupError
from graphdedup.interposed_graph import interposed_class
from graphdedup.observing import observe_if_asked
from graphdedup.policy import FoldPolicy
from graphdedup.report.model import FootprintReport
from graphdedup.stats import Stats
from graphdedup.torch_graphs import TorchGraphs
from seam.backend import SegmentInfo

__all__ = ["Interposition", "MakeBackend", "install", "installed", "interpose", "make_backend", "uninstall"]

_log = logging.getLogger("graphdedup")
_QUIET_SECONDS = 2.0
"""A burst of captures is over at the first replay so long after the last of them."""
_PASSED_OVER = frozenset({"torch", "graphdedup", "seam", "contextlib", "functools"})

MakeBackend = Callable[[torch.device, FoldPolicy], DedupBackend]


def make_backend(device: torch.device, policy: FoldPolicy) -> DedupBackend:
    """The backend for graphs that torch captures on a device."""
    return DedupBackend(TorchGraphs(device), policy, enabled=True)


class Interposition:
    """What folds the graphs of ``torch.cuda.CUDAGraph`` while it is installed, and goes on serving them after that.

    Args:
        policy: what may share an executable; see :class:`graphdedup.DedupBackend`.
        make_backend: makes the backend for a device; for tests.
    """

    def __init__(self, policy: FoldPolicy, make_backend: MakeBackend = make_backend) -> None:
        self.policy = policy
        self._make_backend = make_backend
        self._backends: dict[int, DedupBackend | None] = {}
        self._lock = threading.RLock()
        self._count = 0
        self._on_gpu = False
        self._making = False

    @property
    def backends(self) -> tuple[DedupBackend, ...]:
        """One for each device that something was captured on."""
        return tuple(backend for backend in self._backends.values() if backend is not None)

    def backend(self) -> DedupBackend:
        """The backend of the one device that was captured on.

        Raises:
            GraphDedupError: nothing was captured yet, or on several devices.
        """
        found = self.backends
        if len(found) != 1:
            what = "nothing was captured under interposition" if not found else f"{len(found)} devices were captured on"
            remedy = "capture something first" if not found else "ask each of .backends"
            raise GraphDedupError(what, rule="D14", remedy=remedy)
        return found[0]

    def stats(self) -> Stats:
        """The counters now; zeros where nothing was captured yet.

        Raises:
            GraphDedupError: several devices were captured on.
        """
        return self.backend().stats() if self.backends else Stats(captured=0, execs=0, peak_execs=0)

    def report(self) -> FootprintReport:
        """What the captured graphs cost; see :meth:`graphdedup.DedupBackend.report`."""
        return self.backend().report()

    def seal(self) -> None:
        """End the open capture sessions, with their log lines."""
        for backend in self.backends:
            backend.seal()

    # What graphs ask (interposed_graph.Host)

    def begin(self) -> tuple[DedupBackend | None, SegmentInfo, str]:
        """A capture is about to begin on the current device."""
        runner, site = _caller()
        with self._lock:
            if self._making:  # a backend captures too, to learn how torch does it: that graph is torch's own
                return None, SegmentInfo(label="the fold's own graph"), ""
            if not self._backends:
                self._on_gpu = torch.cuda.is_available()  # asked here, since nothing of CUDA may be touched before
            index = torch.cuda.current_device() if self._on_gpu else -1
            if index not in self._backends:
                self._backends[index] = self._made(index)
            self._count += 1
            return self._backends[index], SegmentInfo(label=f"graph {self._count} ({site})"), runner

    def _made(self, index: int) -> DedupBackend | None:
        device = torch.device("cuda", index) if index >= 0 else torch.device("cpu")
        self._making = True
        try:
            backend = self._make_backend(device, self.policy)
        except Exception as error:  # whatever it is, the runner must not notice
            _log.warning("graphs on %s are not folded: %s", device, error)
            return None
        finally:
            self._making = False
        backend.end_sessions_after(_QUIET_SECONDS)
        return backend

    def capturing(self) -> bool:
        """Whether the current stream is being captured."""
        return self._on_gpu and torch.cuda.is_current_stream_capturing()


def _caller() -> tuple[str, str]:
    """The package that captures, and ``file:line``: the nearest frame that is none of torch's or of ours."""
    frame: Any = sys._getframe(2)
    while frame is not None:
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if package not in _PASSED_OVER:
            return "" if package == "__main__" else package, f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return "torch", "torch"


class _Installed:
    """What is installed in this process, and what stood there before."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.interposition: Interposition | None = None
        self.depth = 0
        self.base: Any = None
        self.made: Any = None


_state = _Installed()


def install(policy: FoldPolicy | str | None = None, *, make_backend: MakeBackend = make_backend) -> Interposition:
    """Have graphs that are captured from now on fold. Calling it again with an equal policy returns the same interposition.

    With ``GRAPHDEDUP_DISABLE=1`` it changes nothing: ``torch.cuda.CUDAGraph`` stays torch's own class (rule D14).

    Args:
        policy: what may share an executable and how many there may be; a tier's name stands for a policy of that tier.
        make_backend: makes the backend for a device; for tests.

    Raises:
        GraphDedupError: another policy is installed.
        SettingsError: the policy, or an environment switch, is off.
    """
    wanted = FoldPolicy.of(policy)
    disabled = settings.switch(settings.DISABLE, None, False)
    level = settings.log_level(None)
    if level is not None:
        settings.log_to_stderr(level)
    observe_if_asked()
    with _state.lock:
        held = _state.interposition
        if held is not None:
            if held.policy != wanted:
                raise GraphDedupError(
                    "another policy is installed under torch.cuda.CUDAGraph",
                    rule="D14",
                    remedy="uninstall() it first, or install with the same policy",
                )
            _state.depth += 1
            return held
        made = Interposition(wanted, make_backend)
        if not disabled:
            _state.base = torch.cuda.CUDAGraph
            _state.made = interposed_class(_state.base, made)
            _put(_state.base, _state.made)
        _state.interposition, _state.depth = made, 1
        return made


def uninstall() -> None:
    """Take back one :func:`install`; with the last one torch's own class stands there again. Graphs that fold go on to.

    Where nothing is installed it does nothing. Where somebody else has put another class there meanwhile, that one stays.
    """
    with _state.lock:
        if _state.interposition is None:
            return
        _state.depth -= 1
        if _state.depth:
            return
        interposition, _state.interposition = _state.interposition, None
        base, made, _state.base, _state.made = _state.base, _state.made, None, None
        if made is not None and not _put(made, base):
            _log.warning("torch.cuda.CUDAGraph was replaced by somebody else meanwhile, and is left as it is")
    interposition.seal()


def _put(held: Any, wanted: Any) -> bool:
    """Put a class where torch looks for it, at each name that has ``held``; whether ``torch.cuda`` had it."""
    had = torch.cuda.CUDAGraph is held
    for module in (torch.cuda, torch.cuda.graphs):
        if getattr(module, "CUDAGraph", None) is held:
            module.CUDAGraph = wanted  # type: ignore[attr-defined]
    return had


def installed() -> Interposition | None:
    """What is installed, if anything is."""
    return _state.interposition


@contextmanager
def interpose(policy: FoldPolicy | str | None = None, *, make_backend: MakeBackend = make_backend) -> Iterator[Interposition]:
    """:func:`install` inside, :func:`uninstall` after. Graphs that were captured inside stay folded."""
    made = install(policy, make_backend=make_backend)
    try:
        yield made
    finally:
        uninstall()
