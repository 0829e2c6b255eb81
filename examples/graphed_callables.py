"""Training with ``torch.cuda.make_graphed_callables``: a graph for the forward and one for the backward of each layer.

Ten steps with dropout, gradients accumulated over two batches for each. python -m examples.graphed_callables [--small]
"""

from __future__ import annotations

import sys
import warnings
from typing import Any

import torch
from torch import Tensor, nn

from examples.common import Options, main

__all__ = ["GraphedCallables"]

STEPS, ACCUMULATED, BATCH = 10, 2, 32


class GraphedCallables:
    def __init__(self, options: Options) -> None:
        torch.manual_seed(0)
        self.hidden = 64 if options.small else 512
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(self.hidden, self.hidden), nn.GELU(), nn.Dropout(0.1), nn.LayerNorm(self.hidden))
            for _ in range(3 if options.small else 12)
        ).cuda()
        for parameter in self.layers.parameters():  # a graph's own buffer is no place to accumulate in
            parameter.grad = torch.zeros_like(parameter)
        self.start = [parameter.detach().clone() for parameter in self.layers.parameters()]
        self.graphed: tuple[Any, ...] = ()
        self.batch = torch.zeros(BATCH, self.hidden, device="cuda")

    def capture(self) -> None:
        samples = tuple((torch.zeros(BATCH, self.hidden, device="cuda", requires_grad=True),) for _ in self.layers)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="The AccumulateGrad node's stream")  # of the warm-up, torch's own
            self.graphed = torch.cuda.make_graphed_callables(tuple(self.layers), samples)

    def _backward(self, x: Tensor) -> None:
        for layer in self.graphed:
            x = layer(x)
        x.square().mean().backward()

    @torch.no_grad()
    def _descend(self) -> list[Tensor]:
        gradients = []
        for parameter in self.layers.parameters():
            assert parameter.grad is not None
            gradients.append(parameter.grad.clone())
            parameter.sub_(parameter.grad, alpha=0.05)
            parameter.grad.zero_()
        return gradients

    def round(self, turn: int) -> list[Tensor]:
        """Ten steps from the same weights; the gradients of each."""
        with torch.no_grad():
            for parameter, start in zip(self.layers.parameters(), self.start, strict=True):
                parameter.copy_(start)
                if parameter.grad is not None:
                    parameter.grad.zero_()
        torch.manual_seed(turn)
        seen = []
        for _ in range(STEPS):
            for _ in range(ACCUMULATED):
                self._backward(torch.randn(BATCH, self.hidden, device="cuda"))
            seen += self._descend()
        return seen

    def step(self) -> None:
        self._backward(self.batch)

    def close(self) -> None:
        torch.cuda.synchronize()
        self.graphed = ()
        self.layers = nn.ModuleList()


if __name__ == "__main__":
    sys.exit(main(GraphedCallables))
