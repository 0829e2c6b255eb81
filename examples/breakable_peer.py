"""The package ``breakable-cuda-graphs``: its segments are graphs of torch's, so they fold under it.

Attention runs between the segments, and writes into a buffer, as the package asks. python -m examples.breakable_peer [--small]
"""

from __future__ import annotations

import importlib
import random
import sys
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from examples.common import Block, NeedsPackage, Options, main

__all__ = ["BreakablePeer"]

LENGTH, HEADS = 32, 4


def _peer() -> Any:
    try:
        return importlib.import_module("breakable_cuda_graphs")
    except ImportError:
        raise NeedsPackage("this example needs breakable-cuda-graphs: pip install breakable-cuda-graphs") from None


class BreakablePeer:
    def __init__(self, options: Options) -> None:
        self.peer = _peer()
        torch.manual_seed(0)
        self.sizes = (64, 8) if options.small else (128, 96, 64, 48, 32, 24, 16, 8, 4, 2, 1)
        hidden, layers = (64, 2) if options.small else (512, 12)
        self.hidden = hidden
        self.qkv = nn.ModuleList(nn.Linear(hidden, 3 * hidden, bias=False) for _ in range(layers)).cuda().requires_grad_(False)
        self.blocks = nn.ModuleList(Block(hidden) for _ in range(layers)).cuda().requires_grad_(False)
        self.cache = torch.zeros(layers, 2, self.sizes[0], LENGTH, hidden, device="cuda")
        self.x = torch.zeros(self.sizes[0], hidden, device="cuda")
        self.y = torch.zeros_like(self.x)
        self.graphs: dict[int, Any] = {}

        def attend(out: Tensor, qkv: Tensor, cache: Tensor) -> None:
            q, k, v = (part.view(len(out), 1, HEADS, -1).transpose(1, 2) for part in qkv.chunk(3, dim=-1))
            before = cache[:, : len(out)].view(2, len(out), LENGTH, HEADS, -1).transpose(2, 3)
            keys, values = torch.cat((before[0], k), dim=2), torch.cat((before[1], v), dim=2)
            out.copy_(F.scaled_dot_product_attention(q, keys, values).flatten(1))

        self.attend = self.peer.no_graph(attend)

    def _forward(self, size: int) -> None:
        x = self.x[:size]
        for qkv, block, cache in zip(self.qkv, self.blocks, self.cache, strict=True):
            attended = torch.empty_like(x)
            self.attend(attended, qkv(x), cache)
            x = block(x + attended)
        self.y[:size] = x

    def capture(self) -> None:
        pool, stream = torch.cuda.graph_pool_handle(), torch.cuda.Stream()
        for size in self.sizes:
            with torch.cuda.stream(stream):
                self._forward(size)
            torch.cuda.synchronize()
            graph = self.peer.BreakableCUDAGraph(pool)
            with self.peer.breakable_graph(graph, stream=stream, capture_error_mode="thread_local"):
                self._forward(size)
            self.graphs[size] = graph

    def round(self, turn: int) -> list[Tensor]:
        generator = torch.Generator("cuda").manual_seed(turn)
        self.cache.normal_(generator=generator)
        live = {size: torch.randn(size, self.hidden, device="cuda", generator=generator) for size in self.sizes}
        found = {}
        for size in random.Random(turn).sample(self.sizes, len(self.sizes)):
            self.x[:size] = live[size]
            self.graphs[size].replay()
            found[size] = self.y[:size].clone()
        return [found[size] for size in self.sizes]

    def step(self) -> None:
        self.graphs[self.sizes[len(self.sizes) // 2]].replay()

    def close(self) -> None:
        torch.cuda.synchronize()
        for graph in self.graphs.values():
            graph.reset()
        self.graphs.clear()


if __name__ == "__main__":
    sys.exit(main(BreakablePeer))
