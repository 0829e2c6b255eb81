"""Graphs of ``torch.cuda.CUDAGraph`` as the fold takes them: what a driver asks of one, and a backend that launches them.

Used under interposition, where somebody else captures: there are no segments here, and nothing is captured or released.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch

from graphdedup.errors import GraphDedupError
from seam.backend import Pool, SegmentInfo

__all__ = ["TorchGraph", "TorchGraphs", "TorchPool", "pool_of"]


class TorchGraph:
    """One captured graph, by the methods of torch's own class: those of a subclass would lead back into the fold.

    It does not keep the graph alive: the fold keeps this, and the graph's owner decides when it goes.
    """

    __slots__ = ("_base", "_graph", "generators", "pool")

    def __init__(self, base: type[Any], graph: Any, generators: Sequence[torch.Generator] = ()) -> None:
        self._base = base
        self._graph = weakref.ref(graph)
        self.pool = pool_of(graph)
        self.generators = tuple(generators)

    @property
    def graph(self) -> TorchGraph:
        """This: a driver asks a segment's graph for what it needs."""
        return self

    def raw_cuda_graph(self) -> Any:
        """The ``cudaGraph_t``."""
        return self._base.raw_cuda_graph(self._alive())

    def replay(self) -> None:
        """Torch's own replay."""
        graph = self._alive()
        state = getattr(graph, "_graphdedup", None)  # an interposed graph's: torch's own code may call methods of the class
        with state.torchs() if state is not None else nullcontext():
            self._base.replay(graph)

    def _alive(self) -> Any:
        graph = self._graph()
        if graph is None:
            raise GraphDedupError(
                "a graph was dropped and is still used", rule="D8", remedy="keep it as long as it is replayed"
            )
        return graph


class TorchPool:
    """A graph pool of torch's, by its id: for the figures of a report. Made by :func:`pool_of`."""

    def __init__(self, pool: tuple[int, int]) -> None:
        self.id = pool
        self.ids = (pool,)

    def reserved_bytes(self) -> int | None:
        """Bytes that torch's allocator holds for it, measured; None with ``cudaMallocAsync``, which does not tell."""
        from seam.cuda_memory import pool_bytes

        if torch.cuda.get_allocator_backend() != "native":
            return None
        return pool_bytes(torch.cuda.memory_snapshot(), [self.id])


_pools: weakref.WeakValueDictionary[tuple[int, int], TorchPool] = weakref.WeakValueDictionary()
_lock = threading.Lock()


def pool_of(graph: Any) -> Any:
    """The pool of a graph, one object for each id, so that a report counts it once; it lives as long as somebody holds it."""
    pool = graph.pool()
    if not isinstance(pool, tuple):
        return pool
    with _lock:
        found = _pools.get(pool)
        if found is None:
            found = _pools[pool] = TorchPool(pool)
        return found


class TorchGraphs:
    """A seam backend for graphs that others capture: it replays them, and leaves their release to their owners."""

    name = "cuda"

    def __init__(self, device: torch.device) -> None:
        from seam.cuda_streams import launch_streams

        self.device = device
        self.launches = launch_streams(device)

    def new_pool(self, stream: Any = None, *, handle: Any = None) -> Pool:
        """Nothing is captured through this backend."""
        raise self._refused()

    def begin_capture(
        self,
        pool: Pool,
        *,
        segment: SegmentInfo | None = None,
        capture_error_mode: str = "thread_local",
        generators: Sequence[torch.Generator] = (),
    ) -> None:
        """Nothing is captured through this backend."""
        raise self._refused()

    def end_capture(self, *, discard: bool = False) -> TorchGraph | None:
        """Nothing is captured through this backend."""
        raise self._refused()

    def replay_graph(self, handle: TorchGraph) -> None:
        """Torch's own replay, noted for whoever waits for launches."""
        self.launches.note_current()
        handle.replay()

    def destroy_graph(self, handle: TorchGraph) -> None:
        """Nothing: its owner resets or drops it."""

    def _refused(self) -> GraphDedupError:
        return GraphDedupError(
            "this backend folds graphs that others capture", rule="S6", remedy="capture with torch.cuda.graph under interpose()"
        )
