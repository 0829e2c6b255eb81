"""``torch.cuda.CUDAGraph`` as each version of torch has it, over the simulated device: what the fold must find on a CPU.

The shapes are recorded from torch's wheels (2.9, 2.11, 2.13) and from the documentation of 2.14: which methods there are, what
they take, when they instantiate and what they refuse.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch

from graphdedup import DedupBackend, FoldPolicy
from graphdedup.driver.simulated import SimulatedDriver
from graphdedup.torch_graphs import TorchGraphs
from seam.simulated import SimulatedBackend, SimulatedDevice, SimulatedGraph

__all__ = ["VERSIONS", "Tracker", "backend_maker", "torch_class"]

VERSIONS = ("2.9", "2.11", "2.13", "2.14")


class _CUDAGraph:
    """As ``torch._C._CUDAGraph``: the flag is taken in ``__init__``."""

    backend: SimulatedBackend

    def __init__(self, keep_graph: bool = False) -> None:
        self._keep = keep_graph
        self._segment: Any = None
        self._exec: Any = None
        self._pool: Any = None
        self._scope: ExitStack | None = None
        self._debug = False
        self.generators: list[torch.Generator] = []

    def capture_begin(self, pool: Any = None, capture_error_mode: str = "global") -> None:
        if self._segment is not None:
            raise RuntimeError("This CUDAGraph instance already owns a captured graph.")
        self._pool = pool if pool is not None else self.backend.new_pool()
        with ExitStack() as scope:
            scope.enter_context(self._pool.entered())
            self.backend.begin_capture(self._pool, capture_error_mode=capture_error_mode)
            self._scope = scope.pop_all()

    def capture_end(self) -> None:
        if self._scope is None:
            raise RuntimeError("capture_end() called before capture_begin()")
        scope, self._scope = self._scope, None
        with scope:
            self._segment = self.backend.end_capture()
        if not self._keep:
            self._make()

    def _make(self) -> None:
        if self._exec is not None:
            self.backend.device.destroy(self._exec)
        self._exec = self.backend.device.instantiate(self._segment.graph)

    def instantiate(self) -> None:
        if self._segment is None:
            raise RuntimeError("capture_end() must have been called before calling instantiate")
        if self._exec is not None and not self._keep:
            raise RuntimeError("instantiate() is intended to be called by the user only when keep_graph=true")
        self._make()

    def replay(self) -> None:
        if self._segment is None:
            raise RuntimeError("Called CUDAGraph::replay without a preceding successful capture.")
        if self._exec is None:
            self._make()
        self.backend.device.launch(self._exec, prologue=True)

    def reset(self) -> None:
        executable, segment, self._exec, self._segment = self._exec, self._segment, None, None
        if executable is not None:
            self.backend.device.destroy(executable)
        if segment is not None:
            self.backend.destroy_graph(segment)

    def pool(self) -> Any:
        return self._pool

    def enable_debug_mode(self) -> None:
        self._debug = True

    def debug_dump(self, debug_path: str) -> str:
        if not (self._debug or self._keep):
            warnings.warn("CUDA Graphs debug not enabled, set with [graph].enable_debug_mode()", stacklevel=2)
            return ""
        return f"{debug_path}: {len(self._segment.graph.nodes)} nodes"

    def raw_cuda_graph(self) -> Any:
        if not self._keep:
            raise RuntimeError("You cannot access the raw cudaGraph_t unless CUDAGraph was initialized with keep_graph=True")
        return self._segment.graph

    def raw_cuda_graph_exec(self) -> Any:
        if self._exec is None:
            raise RuntimeError("You cannot access the raw cudaGraphExec_t instance until instantiate() has been called")
        return self._exec

    def register_generator_state(self, generator: torch.Generator) -> None:
        self.generators.append(generator)

    def __reduce__(self) -> Any:
        raise TypeError(f"cannot pickle {type(self).__name__!r} object")


class Tracker:
    """As torch 2.13's: complains where an input is gone."""

    def __init__(self) -> None:
        self.asked = 0
        self.gone = False

    def check_alive(self, pool: Any) -> None:
        self.asked += 1
        if self.gone:
            raise RuntimeError("an input was deallocated")

    def stop(self) -> None:
        pass


def torch_class(backend: SimulatedBackend, version: str) -> Any:
    """The class that stands at ``torch.cuda.CUDAGraph`` in a version of torch."""
    native = type("_CUDAGraph", (_CUDAGraph,), {"backend": backend})

    class CUDAGraph(native):  # type: ignore[misc, valid-type]
        """Wrapper around a CUDA graph."""

        _tracker: Tracker | None = None

        def __new__(cls, keep_graph: bool = False) -> Any:
            return super().__new__(cls)

        def __del__(self) -> None:
            self.reset_quietly()

        def reset_quietly(self) -> None:
            native.reset(self)  # what torch's destructor does

        def replay(self) -> None:
            """Replay the CUDA work captured by this graph."""
            if self._tracker is not None:
                self._tracker.check_alive(self.pool())
            super().replay()

    if version in ("2.13", "2.14"):

        def capture_begin(
            self: Any, pool: Any = None, capture_error_mode: str = "global", check_input_liveness: bool = False
        ) -> None:
            native.capture_begin(self, pool, capture_error_mode)
            self._tracker = Tracker() if check_input_liveness else None

        CUDAGraph.capture_begin = capture_begin
    if version == "2.14":
        _add_hooks(CUDAGraph, native)
    return CUDAGraph


def _add_hooks(made: Any, native: Any) -> None:
    """Hooks around instantiation and replay. They see the graph's own executable."""

    def register(kind: str) -> Callable[[Any, Callable[[Any], None]], None]:
        def registering(self: Any, hook: Callable[[Any], None]) -> None:
            self.__dict__.setdefault(kind, []).append(hook)

        return registering

    def run(graph: Any, kind: str) -> None:
        for hook in graph.__dict__.get(kind, ()):
            hook(graph)

    def instantiate(self: Any) -> None:
        native.instantiate(self)
        run(self, "instantiated")

    def replay(self: Any) -> None:
        if self._segment is not None and self._exec is None:
            self.instantiate()
        run(self, "started")
        native.replay(self)
        run(self, "ended")

    made.register_post_instantiate_hook = register("instantiated")
    made.register_replay_start_hook = register("started")
    made.register_replay_end_hook = register("ended")
    made.instantiate, made.replay = instantiate, replay


class _Driver(SimulatedDriver):
    """Graphs of the stand-in in place of segments."""

    def raw(self, handle: Any) -> SimulatedGraph:
        graph: SimulatedGraph = handle.graph.raw_cuda_graph()
        return graph


class _Graphs(TorchGraphs):
    name = "simulated"

    def __init__(self, device: SimulatedDevice) -> None:
        self.device = device  # type: ignore[assignment]

    def replay_graph(self, handle: Any) -> None:
        handle.replay()


def backend_maker(device: SimulatedDevice) -> Callable[[torch.device, FoldPolicy], DedupBackend]:
    """What ``interpose`` makes backends with, over a simulated device."""

    def make(_: torch.device, policy: FoldPolicy) -> DedupBackend:
        return DedupBackend(_Graphs(device), policy, enabled=True, driver=_Driver(device))

    return make
