"""A decode runner as small engines have one (nano-vllm for instance): paged keys and values, static buffers, one graph for each
of a few batch sizes, and a batch replayed at the next larger size."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

if not __package__:  # as a script, which finds its own folder only
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from examples.common import Example, main

BLOCK, BLOCKS_EACH = 16, 4
HEADS, HEAD_DIM = 8, 64
WIDTH, VOCAB = HEADS * HEAD_DIM, 4096
LENGTH = BLOCK * BLOCKS_EACH


class Layer(nn.Module):
    """Attention over paged keys and values, and an MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor, keys: Tensor, values: Tensor, slots: Tensor, seen: Tensor, unseen: Tensor) -> Tensor:
        q, k, v = self.qkv(F.rms_norm(x, (WIDTH,))).view(-1, 3, HEADS, HEAD_DIM).unbind(1)
        keys.index_copy_(0, slots, k)
        values.index_copy_(0, slots, v)
        scores = torch.einsum("bhd,bshd->bhs", q * HEAD_DIM**-0.5, keys[seen])
        weights = scores.masked_fill(unseen.unsqueeze(1), float("-inf")).softmax(-1)
        x = x + self.out(torch.einsum("bhs,bshd->bhd", weights, values[seen]).flatten(1))
        y: Tensor = x + self.down(F.silu(self.up(F.rms_norm(x, (WIDTH,)))))
        return y


class Decoder(nn.Module):
    """One decode step for each row; block 0 of the cache belongs to rows that pad a batch."""

    cache: Tensor
    in_block: Tensor
    in_row: Tensor

    def __init__(self, layers: int, rows: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCAB, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(layers))
        self.register_buffer("cache", torch.zeros(layers, 2, (1 + rows * BLOCKS_EACH) * BLOCK, HEADS, HEAD_DIM))
        self.register_buffer("in_block", torch.arange(BLOCK))
        self.register_buffer("in_row", torch.arange(LENGTH))

    def forward(self, tokens: Tensor, positions: Tensor, slots: Tensor, blocks: Tensor) -> Tensor:
        seen = (blocks.unsqueeze(-1) * BLOCK + self.in_block).flatten(1)
        unseen = self.in_row > positions.unsqueeze(1)
        x: Tensor = self.tokens(tokens) + self.places(positions)
        for layer, (keys, values) in zip(self.layers, self.cache, strict=True):
            x = layer(x, keys, values, slots, seen, unseen)
        return x


class NanoRunner:
    """Decode batches of any size up to the largest."""

    step_is = "one decode step, at another batch size each time"
    timed_steps = 60

    @torch.no_grad()
    def __init__(self, device: torch.device, small: bool = False) -> None:
        torch.manual_seed(0)
        self.device = device
        self.largest = 4 if small else 128
        self.sizes = [size for size in (1, 2, 4, 8, *range(16, 129, 16)) if size <= self.largest]
        self.model = Decoder(2 if small else 6, self.largest).to(device, torch.bfloat16).requires_grad_(False)

        def rows(*shape: int) -> Tensor:
            return torch.zeros(self.largest, *shape, dtype=torch.int64, device=device)

        self.tokens, self.positions, self.slots, self.blocks = rows(), rows(), rows(), rows(BLOCKS_EACH)
        self.hidden = torch.zeros(self.largest, WIDTH, dtype=torch.bfloat16, device=device)
        self.tables = 1 + torch.arange(self.largest * BLOCKS_EACH, device=device).view(self.largest, BLOCKS_EACH)
        self.graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self.stream = torch.cuda.Stream(device)
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            for size in self.sizes:
                self.forward(size)
        torch.cuda.synchronize(device)
        self.logits(self.hidden)

    def forward(self, size: int) -> None:
        inputs = (self.tokens[:size], self.positions[:size], self.slots[:size], self.blocks[:size])
        self.hidden[:size].copy_(self.model(*inputs))

    def logits(self, hidden: Tensor) -> Tensor:
        return F.linear(F.rms_norm(hidden, (WIDTH,)), self.model.tokens.weight)

    @torch.no_grad()
    def capture(self) -> None:
        pool = None
        for size in reversed(self.sizes):
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool, stream=self.stream):
                self.forward(size)
            pool = pool or graph.pool()
            self.graphs[size] = graph
        for graph in self.graphs.values():
            graph.replay()

    @torch.no_grad()
    def run(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """Logits of one decode step: row ``i`` of the batch owns row ``i`` of the block tables."""
        count = len(tokens)
        size = next(size for size in self.sizes if size >= count)
        for buffer in (self.tokens, self.positions, self.slots, self.blocks):
            buffer[:size].zero_()
        self.tokens[:count].copy_(tokens)
        self.positions[:count].copy_(positions)
        self.blocks[:count].copy_(self.tables[:count])
        owned = self.tables[:count].gather(1, (positions // BLOCK).unsqueeze(1)).squeeze(1)
        self.slots[:count].copy_(owned * BLOCK + positions % BLOCK)
        self.hidden.fill_(float("nan"))  # so that work that was not done cannot pass for work done
        self.graphs[size].replay()
        return self.logits(self.hidden[:count])

    def round(self, number: int) -> Iterator[Tensor]:
        """Greedy decoding of a few tokens for batches of several sizes."""
        generator = torch.Generator(self.device).manual_seed(number)
        self.model.cache.normal_(generator=generator)
        counts = [size - size // 4 for size in self.sizes] + self.sizes
        for count in random.Random(number).sample(counts, len(counts)):
            tokens = torch.randint(VOCAB, (count,), device=self.device, generator=generator)
            positions = torch.randint(LENGTH - 4, (count,), device=self.device, generator=generator)
            for _ in range(4):
                logits = self.run(tokens, positions)
                yield logits
                tokens, positions = logits.argmax(-1), positions + 1

    def step(self, number: int) -> None:
        count = self.sizes[number % len(self.sizes)]
        self.run(self.tokens[:count].clone(), self.positions[:count].clone())

    def close(self) -> None:
        for graph in self.graphs.values():
            graph.reset()


EXAMPLE = Example("nano_runner", NanoRunner)

if __name__ == "__main__":
    sys.exit(main(EXAMPLE))
