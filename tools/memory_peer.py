"""The arm ``peer`` of measure_memory.py: the same forwards, split by ``breakable-cuda-graphs``.

It keeps views of what crosses a break. Its breaks return nothing: attention writes into a buffer that the forward takes from
the pool before it. Outputs go to one buffer that all shapes share, as in the other arms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from graphdedup.demo import model as demo_model
from seam.buffers import StaticInputs

if TYPE_CHECKING:  # where tools is no package
    import memory_workloads
else:
    from tools import memory_workloads

__all__ = ["PeerLadder", "in_place"]


class PeerLadder:
    """One graph of the peer for each shape, the largest captured first, in one pool and on one stream.

    Args:
        forward: called with the inputs by name.
        sizes: the ladder.
        inputs: as for ``seam.CapturedForward``.
        device: a CUDA device.
        beside: another ladder, whose pool and stream are used.
    """

    def __init__(
        self,
        forward: Callable[..., Tensor],
        sizes: Sequence[int],
        inputs: Any,
        device: torch.device,
        beside: PeerLadder | None = None,
    ) -> None:
        self.forward = forward
        self.sizes = tuple(sorted(sizes, reverse=True))
        self.inputs = StaticInputs(inputs, self.sizes[0], device)
        self.stream: torch.cuda.Stream = torch.cuda.Stream(device) if beside is None else beside.stream
        self.pool: Any = torch.cuda.graph_pool_handle() if beside is None else beside.pool
        self.graphs: dict[int, Any] = {}
        self.output: Tensor | None = None
        self.rows: dict[int, int] = {}

    def warm_up(self) -> None:
        """Run each shape once on the capture stream: libraries take their memory."""
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            for size in self.sizes:
                self.forward(**self.inputs.views(size))
        torch.cuda.synchronize()

    def capture(self) -> PeerLadder:
        """Capture every shape, and return this."""
        import breakable_cuda_graphs as peer

        with in_place(peer.no_graph):
            for size in self.sizes:
                given = self.inputs.views(size)
                self.stream.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(self.stream):
                    y = self.forward(**given)
                torch.cuda.synchronize()
                if self.output is None:
                    self.output = torch.empty_like(y)
                self.rows[size] = y.shape[0]
                del y
                graph = peer.BreakableCUDAGraph(self.pool)
                with peer.breakable_graph(graph, stream=self.stream, capture_error_mode="thread_local"):
                    self.output[: self.rows[size]].copy_(self.forward(**given))
                self.graphs[size] = graph
        return self

    def __call__(self, **live: Tensor) -> Tensor:
        """A live batch whose size is one of the ladder."""
        size = next(iter(live.values())).shape[0]
        self.inputs.write(live, size, size)
        self.graphs[size].replay()
        assert self.output is not None
        return self.output[: self.rows[size]]

    def close(self) -> None:
        """Drop every graph."""
        torch.cuda.synchronize()
        while self.graphs:
            self.graphs.popitem()[1].reset()

    @property
    def segments(self) -> int:
        """How many graphs of torch's there are."""
        return sum(isinstance(part, torch.cuda.CUDAGraph) for graph in self.graphs.values() for part in graph._segments)


@contextmanager
def in_place(no_graph: Callable[..., Any]) -> Iterator[None]:
    """Let the models' attention write into a buffer, behind the peer's mark, instead of returning a tensor."""

    def marked(attention: Callable[..., Tensor]) -> Callable[..., Tensor]:
        own = getattr(attention, "__wrapped__", attention)

        @no_graph
        def attend_into(out: Tensor, *args: Tensor) -> None:
            out.copy_(own(*args))

        def attend(q: Tensor, *args: Tensor) -> Tensor:
            out = q.new_empty(q.shape[0], q.shape[1] * q.shape[2])
            attend_into(out, q, *args)
            return out

        return attend

    seams = ((demo_model, "attend"), (memory_workloads, "attention"))
    before = [getattr(module, name) for module, name in seams]
    for (module, name), function in zip(seams, before, strict=True):
        setattr(module, name, marked(function))
    try:
        yield
    finally:
        for (module, name), function in zip(seams, before, strict=True):
            setattr(module, name, function)
