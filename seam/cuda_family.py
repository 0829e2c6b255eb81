"""Graphs that were captured on one stream go together, where torch needs it.

From torch 2.12 on ``torch.cuda.CUDAGraph.reset`` gives back the cuBLAS workspaces of the stream that the graph was captured
on. Other graphs captured on that stream still write there, and whoever gets the memory next is overwritten. So a graph that
goes before its family waits, whole, and is reset with the last of the family. Releases before 2.12 keep the workspaces.
"""

from __future__ import annotations

import threading
import weakref

import torch

__all__ = ["Family", "family_of"]

_RESET_CLEARS_WORKSPACES = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 12)


class Family:
    """The live graphs of one capture stream, and those that wait for the last of them.

    Args:
        together: whether graphs have to be reset together; by default what this torch needs.
    """

    def __init__(self, *, together: bool = _RESET_CLEARS_WORKSPACES) -> None:
        self._together = together
        self._lock = threading.RLock()  # a finalizer that the collector runs in here may come back through leave()
        self._live = 0
        self._waiting: list[torch.cuda.CUDAGraph] = []

    def joined(self) -> None:
        """A graph was captured."""
        with self._lock:
            self._live += 1

    def leave(self, graph: torch.cuda.CUDAGraph) -> None:
        """A graph goes. The device is done with it."""
        with self._lock:
            self._live -= 1
            self._waiting.append(graph)
            if self._together and self._live:
                return
            due, self._waiting = self._waiting, []
        for one in due:
            one.reset()


_families: weakref.WeakValueDictionary[tuple[int, int], Family] = weakref.WeakValueDictionary()
_lock = threading.Lock()


def family_of(stream: torch.cuda.Stream) -> Family:
    """The family of a capture stream, as long as somebody holds it."""
    key = (stream.device_index, stream.cuda_stream)
    with _lock:
        found = _families.get(key)
        if found is None:
            found = _families[key] = Family()
        return found
