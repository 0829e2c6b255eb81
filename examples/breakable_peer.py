"""A decoder captured by the package ``breakable-cuda-graphs``: it splits the capture at attention, and each segment is a
``torch.cuda.CUDAGraph``, which the fold finds under it."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

if not __package__:  # as a script, which finds its own folder only
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from examples.common import Example, main
from graphdedup.demo.model import DecoderModel, KVCache, ModelConfig, apply_rotary, attend

CONFIG = ModelConfig(
    name="peer",
    layers=4,
    hidden=512,
    heads=8,
    kv_heads=4,
    head_dim=64,
    mlp=1536,
    vocab=8192,
    max_seq=64,
    dtype="bfloat16",
)


class BreakablePeer:
    """One breakable graph for each batch size, all in one pool."""

    step_is = "one decode step in segments, at another batch size each time"
    timed_steps = 48

    @torch.no_grad()
    def __init__(self, device: torch.device, small: bool = False) -> None:
        import breakable_cuda_graphs

        self.peer: Any = breakable_cuda_graphs
        config = CONFIG.model_copy(update={"layers": 2, "vocab": 256}) if small else CONFIG
        self.sizes = (4, 2, 1) if small else (64, 32, 16, 8, 4, 2, 1)
        self.model = DecoderModel(config, device=device)
        self.cache = KVCache(config, self.sizes[0], device)
        self.tokens = torch.zeros(self.sizes[0], dtype=torch.int64, device=device)
        self.positions = torch.zeros(self.sizes[0], dtype=torch.int64, device=device)
        self.stream = torch.cuda.Stream(device)
        self.graphs: dict[int, Any] = {}
        self.logits: dict[int, Tensor] = {}

        def attention(out: Tensor, *inputs: Tensor) -> None:
            """A break may return no tensor there: it writes into a buffer of its caller's."""
            out.copy_(attend(*inputs))

        self.attention = self.peer.no_graph(attention)
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            for size in self.sizes:
                self.forward(size)
        torch.cuda.synchronize(device)

    def forward(self, size: int) -> Tensor:
        """The forward of ``DecoderModel``, with attention written into a buffer."""
        model, positions, rows = self.model, self.positions[:size], self.cache.rows[:size]
        cos, sin = (table.index_select(0, positions).unsqueeze(1) for table in (model.cos, model.sin))
        unseen = model.slots > positions.unsqueeze(1)
        x: Tensor = model.embedding(self.tokens[:size])
        for index, layer in enumerate(model.layers):
            parts: Any = layer
            split = parts.qkv(parts.attention_norm(x)).split(parts.parts, dim=-1)
            q, k, v = (part.view(size, -1, parts.head_dim) for part in split)
            q, k = apply_rotary(q, cos, sin), apply_rotary(k, cos, sin)
            out = torch.empty_like(split[0], memory_format=torch.contiguous_format)
            self.attention(out, q, k, v, self.cache.k[index, :size], self.cache.v[index, :size], rows, positions, unseen)
            x = x + parts.o(out)
            gate, up = parts.gate_up(parts.mlp_norm(x)).chunk(2, dim=-1)
            x = x + parts.down(F.silu(gate) * up)
        return F.linear(model.norm(x), model.embedding.weight)

    @torch.no_grad()
    def capture(self) -> None:
        pool = torch.cuda.graph_pool_handle()
        for size in self.sizes:
            self.graphs[size] = self.peer.BreakableCUDAGraph(pool=pool)
            with self.peer.breakable_graph(self.graphs[size], stream=self.stream):
                self.logits[size] = self.forward(size)
        for size in self.sizes:
            self.graphs[size].replay()

    @torch.no_grad()
    def round(self, number: int) -> Iterator[Tensor]:
        generator = torch.Generator(self.tokens.device).manual_seed(number)
        self.cache.fill(number)  # attention between the segments of a capture has run on tensors that held nothing yet
        for size in random.Random(number).sample(self.sizes, len(self.sizes)):
            self.tokens.random_(self.model.config.vocab, generator=generator)
            self.positions.random_(self.model.config.max_seq, generator=generator)
            self.logits[size].fill_(float("nan"))  # so that work that was not done cannot pass for work done
            self.graphs[size].replay()
            yield self.logits[size]
        yield from (self.cache.k, self.cache.v)

    @torch.no_grad()
    def step(self, number: int) -> None:
        self.graphs[self.sizes[number % len(self.sizes)]].replay()

    def close(self) -> None:
        for graph in self.graphs.values():
            graph.reset()


EXAMPLE = Example("breakable_peer", BreakablePeer, needs=("breakable_cuda_graphs",))

if __name__ == "__main__":
    sys.exit(main(EXAMPLE))
