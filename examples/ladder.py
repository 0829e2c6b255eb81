"""One graph for each batch size over ``torch.cuda.graph``, in one pool, the largest first.

python -m examples.ladder [--small]
"""

from __future__ import annotations

import random
import sys

import torch
from torch import Tensor

from examples.common import Decoder, Options, main

__all__ = ["Ladder"]

SIZES = (1, 2, 4, *range(8, 257, 8))


class Ladder:
    def __init__(self, options: Options) -> None:
        torch.manual_seed(0)
        self.sizes = SIZES[::8] if options.small else SIZES
        self.model = Decoder(2 if options.small else 16).to("cuda", torch.bfloat16).requires_grad_(False)
        self.tokens = torch.zeros(self.sizes[-1], dtype=torch.int64, device="cuda")
        self.graphs: dict[int, tuple[torch.cuda.CUDAGraph, Tensor]] = {}

    def capture(self) -> None:
        pool, stream = torch.cuda.graph_pool_handle(), torch.cuda.Stream()
        for size in reversed(self.sizes):
            tokens = self.tokens[:size]
            with torch.cuda.stream(stream):
                self.model(tokens)  # libraries choose their kernels before the capture
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool, stream=stream):
                logits = self.model(tokens)
            self.graphs[size] = graph, logits

    def run(self, tokens: Tensor) -> Tensor:
        graph, logits = self.graphs[tokens.shape[0]]
        self.tokens[: tokens.shape[0]].copy_(tokens)
        graph.replay()
        return logits

    def round(self, turn: int) -> list[Tensor]:
        generator = torch.Generator().manual_seed(turn)
        live = {size: torch.randint(self.model.vocab, (size,), generator=generator).cuda() for size in self.sizes}
        order = random.Random(turn).sample(self.sizes, len(self.sizes))
        found = {size: self.run(live[size]).clone() for size in order}
        return [found[size] for size in self.sizes]

    def step(self) -> None:
        self.graphs[self.sizes[len(self.sizes) // 2]][0].replay()

    def close(self) -> None:
        torch.cuda.synchronize()
        self.graphs.clear()


if __name__ == "__main__":
    sys.exit(main(Ladder))
