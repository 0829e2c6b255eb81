"""What the examples share: a small decoder, and a main that runs an example plain and folded and compares every bit."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import graphdedup

__all__ = ["Block", "Decoder", "Example", "NeedsPackage", "Options", "counted", "main"]

ROUNDS = 3


class NeedsPackage(Exception):
    """The example needs a package that is not here; the message names it."""


class Options(argparse.Namespace):
    """How large an example is."""

    small: bool = False


class Example(Protocol):
    """A runner that captures with torch alone. It is made, captured, replayed in rounds, and closed."""

    def capture(self) -> None:
        """Capture every graph."""

    def round(self, turn: int) -> list[Tensor]:
        """Replay everything once in an order and on inputs that depend on ``turn`` alone; the results, in a fixed order."""

    def step(self) -> None:
        """The step that is timed."""

    def close(self) -> None:
        """Drop the graphs."""


Make = Callable[[Options], Example]


class Block(nn.Module):
    """Normalise, mix, gate: one layer without attention."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.mix = nn.Linear(hidden, hidden, bias=False)
        self.gate_up = nn.Linear(hidden, 4 * hidden, bias=False)
        self.down = nn.Linear(2 * hidden, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.mix(F.rms_norm(x, (x.shape[-1],)))
        gate, up = self.gate_up(F.rms_norm(x, (x.shape[-1],))).chunk(2, dim=-1)
        gated: Tensor = self.down(F.silu(gate) * up)
        return x + gated


class Decoder(nn.Module):
    """Embed tokens, run the layers, score the vocabulary: ``[B]`` to ``[B, vocab]``."""

    def __init__(self, layers: int, hidden: int = 512, vocab: int = 4096) -> None:
        super().__init__()
        self.vocab = vocab
        self.embedding = nn.Embedding(vocab, hidden)
        self.layers = nn.ModuleList(Block(hidden) for _ in range(layers))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return F.linear(F.rms_norm(x, (x.shape[-1],)), self.embedding.weight)


@contextmanager
def counted() -> Iterator[list[int]]:
    """Count the captures that end inside; one entry for each."""
    graph: Any = torch.cuda.CUDAGraph
    end, seen = graph.capture_end, []

    def capture_end(self: Any) -> None:
        end(self)
        seen.append(1)

    graph.capture_end = capture_end
    try:
        yield seen
    finally:
        graph.capture_end = end


def _rounds(example: Example) -> list[Tensor]:
    return [one.clone() for turn in range(ROUNDS) for one in example.round(turn)]


def main(make: Make) -> int:
    """Run an example without the fold and with it. Exit 0: equal; 1: a result differed; 2: it cannot run here."""
    parser = argparse.ArgumentParser(description=(sys.modules[make.__module__].__doc__ or "").splitlines()[0])
    parser.add_argument("--small", action="store_true", help="fewer and smaller graphs")
    options = parser.parse_args(namespace=Options())
    if not torch.cuda.is_available():
        print("this example captures CUDA graphs: it needs a GPU", file=sys.stderr)
        return 2
    try:
        plain = make(options)
        plain.capture()
        expected = _rounds(plain)
        plain.close()
        with graphdedup.interpose() as found:  # the one line
            folded = make(options)
            folded.capture()
        results = _rounds(folded)
    except NeedsPackage as missing:
        print(missing, file=sys.stderr)
        return 2
    stats = found.stats()
    wrong = sum(not torch.equal(a, b) for a, b in zip(expected, results, strict=True))
    print(f"captured {stats.captured} graphs, deduped to {stats.execs} execs; {wrong} of {len(results)} results differ")
    folded.close()
    return int(wrong > 0)
