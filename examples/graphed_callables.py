"""``torch.cuda.make_graphed_callables`` over the layers of a model that trains: forward and backward graphs, dropout, and
gradients accumulated over two batches before each step of the optimizer."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

if not __package__:  # as a script, which finds its own folder only
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from examples.common import Example, main

BATCH, WIDTH = 32, 256
STEPS, ACCUMULATED = 10, 2


class Layer(nn.Module):
    """What is captured: all layers have one shape, so their forwards are equal graphs, and their backwards are."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = x + self.dropout(self.down(torch.relu(self.up(self.norm(x)))))
        return y


class GraphedCallables:
    """A stack of layers, each with a graph for its forward and one for its backward."""

    step_is = "one forward and backward of the model"
    timed_steps = 40

    def __init__(self, device: torch.device, small: bool = False) -> None:
        torch.manual_seed(0)
        self.device = device
        self.layers = nn.ModuleList(Layer() for _ in range(2 if small else 12)).to(device)
        self.parameters = list(self.layers.parameters())
        for parameter in self.parameters:
            parameter.grad = torch.zeros_like(parameter)  # from the start, since a graph's own buffer is no place to add up in
        self.start = [parameter.detach().clone() for parameter in self.parameters]
        self.optimizer = torch.optim.SGD(self.parameters, lr=0.05)
        self.graphed: Any = self.layers
        self.batch(0)
        torch.cuda.synchronize(device)

    def capture(self) -> None:
        samples = tuple((torch.randn(BATCH, WIDTH, device=self.device, requires_grad=True),) for _ in self.layers)
        self.graphed = torch.cuda.make_graphed_callables(tuple(self.layers), samples)
        self.batch(0)

    def batch(self, number: int) -> Tensor:
        """Forward and backward of one batch; gradients add up."""
        generator = torch.Generator(self.device).manual_seed(number)
        x = torch.randn(BATCH, WIDTH, device=self.device, generator=generator, requires_grad=True)  # as the sample has it
        wanted = torch.randn(BATCH, WIDTH, device=self.device, generator=generator)
        for layer in self.graphed:
            x = layer(x)
        loss = (x - wanted).square().mean()
        loss.backward()
        return loss

    def round(self, number: int) -> Iterator[Tensor]:
        """Ten steps from the same weights, with the losses, and the gradients before each step of the optimizer."""
        torch.manual_seed(number)  # dropout
        with torch.no_grad():
            for parameter, start in zip(self.parameters, self.start, strict=True):
                parameter.copy_(start)
        self.optimizer.zero_grad(set_to_none=False)
        for step in range(STEPS):
            for part in range(ACCUMULATED):
                yield self.batch(number * 1000 + step * ACCUMULATED + part)
            yield from (parameter.grad for parameter in self.parameters if parameter.grad is not None)
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=False)

    def step(self, number: int) -> None:
        self.batch(number)

    def close(self) -> None:
        for layer in self.layers:
            del layer.forward  # the graphed one, which holds the graphs


EXAMPLE = Example("graphed_callables", GraphedCallables)

if __name__ == "__main__":
    sys.exit(main(EXAMPLE))
