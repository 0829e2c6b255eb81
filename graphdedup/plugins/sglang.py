"""The plugin for SGLang: entry point group ``sglang.srt.plugins``; and a registry that SGLang's own capture code can be given.

SGLang's ``BreakableCUDAGraph`` takes an object to register each captured segment with, and replays what that returns.
:class:`FoldRegistry` is such an object, for those who switch SGLang's own deduplication on and want this fold in its place.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch

from graphdedup.backend import DedupBackend, DedupHandle
from graphdedup.errors import GraphDedupError
from graphdedup.interpose import MakeBackend, make_backend
from graphdedup.plugins.environment import install_if_asked
from graphdedup.policy import FoldPolicy
from graphdedup.torch_graphs import TorchGraph
from seam.backend import SegmentInfo

__all__ = ["FoldRegistry", "FoldedGraph", "register"]


def register() -> None:
    """What SGLang calls. See :func:`graphdedup.plugins.environment.install_if_asked`."""
    install_if_asked()


class FoldedGraph:
    """A registered graph. It keeps the captured one alive until the registry is closed."""

    def __init__(self, backend: DedupBackend, handle: DedupHandle, original: Any) -> None:
        self._backend = backend
        self._handle = handle
        self.original_graph = original

    def replay(self, stream: int | None = None) -> None:
        """Replay on a stream, by its handle; the current one if None.

        Raises:
            GraphDedupError: the registry was closed.
        """
        if self.original_graph is None:
            raise GraphDedupError("the registry of this graph was closed", rule="S14", remedy="replay it before that")
        elsewhere = stream is not None and stream != torch.cuda.current_stream().cuda_stream
        with torch.cuda.stream(torch.cuda.ExternalStream(stream)) if stream is not None and elsewhere else nullcontext():
            self._backend.replay_graph(self._handle)

    def close(self) -> None:
        """Give it back, and reset the captured graph; again it does nothing."""
        original, self.original_graph = self.original_graph, None
        if original is not None:
            self._backend.destroy_graph(self._handle)
            original.reset()


class FoldRegistry:
    """Takes captured graphs (``torch.cuda.CUDAGraph(keep_graph=True)``) and gives back what replays them, folded.

    Args:
        policy: see :class:`graphdedup.DedupBackend`.
        make: makes the backend; for tests.
    """

    def __init__(self, policy: FoldPolicy | str | None = None, *, make: MakeBackend = make_backend) -> None:
        self.sealed = False
        self._policy = FoldPolicy.of(policy)
        self._make = make
        self._backend: DedupBackend | None = None
        self._graphs: list[FoldedGraph] = []

    def register(self, captured_graph: Any) -> FoldedGraph:
        """Fold one.

        Raises:
            GraphDedupError: the registry is sealed, or the graph was captured without ``keep_graph=True``.
        """
        if self.sealed:
            raise GraphDedupError("this registry is sealed", rule="S14", remedy="make a new one for each round of captures")
        if self._backend is None:
            on_gpu = torch.cuda.is_available()
            self._backend = self._make(
                torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu"), self._policy
            )
        view = TorchGraph(type(captured_graph), captured_graph)
        try:
            view.raw_cuda_graph()
        except RuntimeError as error:
            raise GraphDedupError(
                f"a captured graph cannot be read: {error}",
                rule="D3",
                remedy="capture into torch.cuda.CUDAGraph(keep_graph=True)",
            ) from error
        number = len(self._graphs) + 1
        handle = self._backend.adopt(view, SegmentInfo(label=f"segment {number}"), runner="sglang")
        self._graphs.append(FoldedGraph(self._backend, handle, captured_graph))
        return self._graphs[-1]

    def stats(self) -> tuple[int, int]:
        """How many graphs, and on how many executables they run."""
        if self._backend is None:
            return 0, 0
        now = self._backend.stats()
        return len(self._graphs), now.execs

    def seal(self) -> None:
        """Nothing more is registered; the log line comes."""
        self.sealed = True
        if self._backend is not None:
            self._backend.seal()

    def close(self) -> None:
        """Give every graph back and reset it."""
        self.seal()
        while self._graphs:
            self._graphs.pop().close()
