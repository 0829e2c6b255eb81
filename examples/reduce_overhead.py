"""``torch.compile(mode="reduce-overhead")`` at several shapes: Inductor captures a graph for each, in its CUDA graph trees."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

if not __package__:  # as a script, which finds its own folder only
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from examples.common import Example, main

WIDTH = 512


class Block(nn.Module):
    """A gated MLP with a residual and a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.up(self.norm(x)).chunk(2, dim=-1)
        y: Tensor = self.down(nn.functional.silu(gate) * up)
        return x + y


class ReduceOverhead:
    """A compiled stack of blocks, called with several batch sizes."""

    step_is = "one call, at another batch size each time"
    timed_steps = 60

    def __init__(self, device: torch.device, small: bool = False) -> None:
        torch.manual_seed(0)
        torch._dynamo.reset()  # at most a handful of shapes are compiled for one function
        self.device = device
        self.sizes = (16, 8) if small else (256, 128, 64, 32, 16, 8)
        self.model = nn.Sequential(*(Block() for _ in range(1 if small else 4))).to(device, torch.bfloat16)
        self.inputs = {size: torch.zeros(size, WIDTH, dtype=torch.bfloat16, device=device) for size in self.sizes}
        self.compiled: Any = torch.compile(self.model, mode="reduce-overhead", dynamic=False)
        for size in self.sizes:  # Inductor compiles at the first call of a shape, and captures at the second
            self.call(size)
        torch.cuda.synchronize(device)

    @torch.no_grad()
    def call(self, size: int) -> Tensor:
        torch.compiler.cudagraph_mark_step_begin()  # nobody reads the last output any more
        y: Tensor = self.compiled(self.inputs[size])
        return y

    def capture(self) -> None:
        for size in self.sizes:
            for _ in range(2):
                self.call(size)

    def round(self, number: int) -> Iterator[Tensor]:
        generator = torch.Generator(self.device).manual_seed(number)
        for size in random.Random(number).sample(self.sizes, len(self.sizes)):
            self.inputs[size].normal_(generator=generator)
            for _ in range(2):  # the second call needs no update
                yield self.call(size)

    def step(self, number: int) -> None:
        self.call(self.sizes[number % len(self.sizes)])

    def close(self) -> None:
        from torch._inductor.cudagraph_trees import reset_cudagraph_trees

        reset_cudagraph_trees()
        torch._dynamo.reset()


EXAMPLE = Example("reduce_overhead", ReduceOverhead, needs=("triton",))

if __name__ == "__main__":
    sys.exit(main(EXAMPLE))
