"""Graphs that were captured on one stream go together.

``torch.cuda.CUDAGraph.reset`` gives back the cuBLAS workspaces of the stream that the graph was captured on, in releases of
torch after 2.11. Other graphs captured on that stream still write there, and whoever gets the memory next is overwritten. So
a graph that goes before its family is emptied at once, which frees what it costs, and reset with the last of the family.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from functools import cache
from typing import Any

import torch

from seam.errors import SeamError

__all__ = ["Family", "family_of"]


class Family:
    """The live graphs of one capture stream, and those that wait for the last of them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._live = 0
        self._emptied: list[torch.cuda.CUDAGraph] = []

    def joined(self) -> None:
        """A graph was captured."""
        with self._lock:
            self._live += 1

    def leave(self, graph: torch.cuda.CUDAGraph) -> None:
        """A graph goes. The device is done with it."""
        with self._lock:
            self._live -= 1
            due = [graph] if not self._live else []
            if due:
                due, self._emptied = [*self._emptied, graph], []
            else:
                self._emptied.append(graph)
        if due:
            for one in due:
                one.reset()
        else:
            _empty(graph)


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


def _empty(graph: torch.cuda.CUDAGraph) -> None:
    """Take every node out of a captured graph, and out of its executable if it has one."""
    raw = ctypes.c_void_p(graph.raw_cuda_graph())
    lib, count = _libcuda(), ctypes.c_size_t()
    _check(lib.cuGraphGetNodes(raw, None, ctypes.byref(count)), "cuGraphGetNodes")
    nodes = (ctypes.c_void_p * count.value)()
    if count.value:
        _check(lib.cuGraphGetNodes(raw, nodes, ctypes.byref(count)), "cuGraphGetNodes")
    for node in nodes:
        _check(lib.cuGraphDestroyNode(ctypes.c_void_p(node)), "cuGraphDestroyNode")
    try:
        graph.raw_cuda_graph_exec()
    except RuntimeError:
        return  # it was never instantiated
    graph.instantiate()  # destroys the executable that there was, and makes one of no nodes


@cache
def _libcuda() -> Any:
    return ctypes.CDLL("libcuda.so.1")


def _check(result: int, what: str) -> None:
    if result:
        raise SeamError(
            f"{what} failed: CUDA error {result}", remedy="see the CUDA driver API reference for this result", rule="S14"
        )
