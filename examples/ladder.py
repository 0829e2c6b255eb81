"""A decoder captured at a ladder of batch sizes with ``torch.cuda.graph``: one pool, one stream, largest first."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

if not __package__:  # as a script, which finds its own folder only
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from examples.common import Example, main
from graphdedup.demo.model import DecoderModel, KVCache, ModelConfig
from graphdedup.demo.sizes import USUAL_SIZES

CONFIG = ModelConfig(
    name="ladder",
    layers=8,
    hidden=512,
    heads=8,
    kv_heads=4,
    head_dim=64,
    mlp=1536,
    vocab=8192,
    max_seq=64,
    dtype="bfloat16",
)


class Ladder:
    """One graph for each batch size, over inputs that all of them share."""

    step_is = "one decode step, at another batch size each time"
    timed_steps = 72

    @torch.no_grad()
    def __init__(self, device: torch.device, small: bool = False) -> None:
        config = CONFIG.model_copy(update={"layers": 2, "vocab": 256}) if small else CONFIG
        self.sizes = (8, 4, 2, 1) if small else USUAL_SIZES[::-1]
        self.model = DecoderModel(config, device=device)
        self.cache = KVCache(config, self.sizes[0], device)
        self.tokens = torch.zeros(self.sizes[0], dtype=torch.int64, device=device)
        self.positions = torch.zeros(self.sizes[0], dtype=torch.int64, device=device)
        self.stream = torch.cuda.Stream(device)
        self.graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self.logits: dict[int, Tensor] = {}
        self.cache.fill(0)
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            for size in self.sizes:  # warm up where the capture will be
                self.forward(size)
        torch.cuda.synchronize(device)

    def forward(self, size: int) -> Tensor:
        logits: Tensor = self.model(self.tokens[:size], self.positions[:size], self.cache)
        return logits

    @torch.no_grad()
    def capture(self) -> None:
        pool = torch.cuda.graph_pool_handle()
        for size in self.sizes:
            self.graphs[size] = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graphs[size], pool=pool, stream=self.stream):
                self.logits[size] = self.forward(size)
        for size in self.sizes:
            self.graphs[size].replay()

    def round(self, number: int) -> Iterator[Tensor]:
        generator = torch.Generator(self.tokens.device).manual_seed(number)
        self.cache.fill(number)
        for size in random.Random(number).sample(self.sizes, len(self.sizes)):
            self.tokens.random_(self.model.config.vocab, generator=generator)
            self.positions.random_(self.model.config.max_seq, generator=generator)
            self.logits[size].fill_(float("nan"))  # so that work that was not done cannot pass for work done
            self.graphs[size].replay()
            yield self.logits[size]
        yield from (self.cache.k, self.cache.v)

    def step(self, number: int) -> None:
        self.graphs[self.sizes[number % len(self.sizes)]].replay()

    def close(self) -> None:
        for graph in self.graphs.values():
            graph.reset()


EXAMPLE = Example("ladder", Ladder)

if __name__ == "__main__":
    sys.exit(main(EXAMPLE))
