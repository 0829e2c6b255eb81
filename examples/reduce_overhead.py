"""``torch.compile(mode="reduce-overhead")`` at several shapes: Inductor's trees of CUDA graphs.

python -m examples.reduce_overhead [--small]
"""

from __future__ import annotations

import random
import sys
import warnings

import torch
from torch import Tensor

from examples.common import Decoder, Options, main

__all__ = ["ReduceOverhead"]


class ReduceOverhead:
    def __init__(self, options: Options) -> None:
        torch.manual_seed(0)
        torch._dynamo.reset()
        self.sizes = (8, 32) if options.small else (1, 2, 4, 8, 16, 32, 64, 128)
        self.model = Decoder(1 if options.small else 4).to("cuda").requires_grad_(False)
        torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, 2 * len(self.sizes))
        self.compiled = torch.compile(self.model, mode="reduce-overhead", dynamic=False)
        self.tokens = {size: torch.zeros(size, dtype=torch.int64, device="cuda") for size in self.sizes}

    def capture(self) -> None:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")  # the compiler's advice, and the empty graph that a tree begins with
            for _ in range(3):  # compile, warm up, record
                for tokens in self.tokens.values():
                    torch.compiler.cudagraph_mark_step_begin()
                    self.compiled(tokens)
        torch.cuda.synchronize()

    @torch.no_grad()
    def round(self, turn: int) -> list[Tensor]:
        generator = torch.Generator().manual_seed(turn)
        live = {size: torch.randint(self.model.vocab, (size,), generator=generator) for size in self.sizes}
        found = {}
        for size in random.Random(turn).sample(self.sizes, len(self.sizes)):
            self.tokens[size].copy_(live[size])
            torch.compiler.cudagraph_mark_step_begin()
            found[size] = self.compiled(self.tokens[size]).clone()
        return [found[size] for size in self.sizes]

    @torch.no_grad()
    def step(self) -> None:
        torch.compiler.cudagraph_mark_step_begin()
        self.compiled(self.tokens[self.sizes[-1]])

    def close(self) -> None:
        torch.cuda.synchronize()
        torch._dynamo.reset()


if __name__ == "__main__":
    sys.exit(main(ReduceOverhead))
