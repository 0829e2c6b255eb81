"""A model runner as small engines have it: static buffers, few batch sizes, a batch padded to the next one, greedy decoding.

python -m examples.nano_runner [--small]
"""

from __future__ import annotations

import random
import sys
from bisect import bisect_left
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from examples.common import Options, main

__all__ = ["NanoRunner"]


@dataclass
class Sequence:
    """One request: its tokens so far, and the slot of the cache that is its own."""

    tokens: list[int]
    slot: int = 0
    new: list[int] = field(default_factory=list)


class Attention(nn.Module):
    """Attention of one new token over a cache ``[slots, length, heads, dim]``, all of it inside of the graph."""

    k: Tensor
    v: Tensor

    def __init__(self, hidden: int, heads: int, slots: int, length: int) -> None:
        super().__init__()
        self.heads, self.dim = heads, hidden // heads
        self.qkv = nn.Linear(hidden, 3 * hidden, bias=False)
        self.out = nn.Linear(hidden, hidden, bias=False)
        for name in ("k", "v"):
            self.register_buffer(name, torch.zeros(slots, length, heads, self.dim), persistent=False)

    def forward(self, x: Tensor, slots: Tensor, positions: Tensor) -> Tensor:
        q, k, v = (part.view(-1, self.heads, self.dim) for part in self.qkv(x).chunk(3, dim=-1))
        self.k[slots, positions], self.v[slots, positions] = k, v
        keys, values = self.k[slots].transpose(1, 2), self.v[slots].transpose(1, 2)
        seen = torch.arange(keys.shape[2], device=x.device) <= positions[:, None]
        attended = F.scaled_dot_product_attention(q[:, :, None], keys, values, attn_mask=seen[:, None, None])
        result: Tensor = self.out(attended.flatten(1))
        return result


class Model(nn.Module):
    def __init__(self, layers: int, hidden: int, vocab: int, slots: int, length: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab, hidden)
        self.attention = nn.ModuleList(Attention(hidden, 4, slots, length) for _ in range(layers))
        self.up = nn.ModuleList(nn.Linear(hidden, 2 * hidden, bias=False) for _ in range(layers))
        self.down = nn.ModuleList(nn.Linear(2 * hidden, hidden, bias=False) for _ in range(layers))

    def forward(self, tokens: Tensor, slots: Tensor, positions: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for attention, up, down in zip(self.attention, self.up, self.down, strict=True):
            x = x + attention(F.rms_norm(x, (x.shape[-1],)), slots, positions)
            x = x + down(F.gelu(up(F.rms_norm(x, (x.shape[-1],)))))
        return F.linear(x, self.embedding.weight)


class NanoRunner:
    """Holds the graphs. The last slot of the cache belongs to the rows that pad a batch."""

    def __init__(self, options: Options, most: int = 64, length: int = 64, vocab: int = 2048) -> None:
        torch.manual_seed(0)
        self.sizes = [1, 2, 4, 8, *range(16, most + 1, 16)]
        self.vocab, self.spare = vocab, most
        self.new_tokens = 4 if options.small else 12
        self.model = Model(2 if options.small else 8, 256, vocab, most + 1, length).to("cuda").requires_grad_(False)
        self.tokens, self.slots, self.positions = (torch.zeros(most, dtype=torch.int64, device="cuda") for _ in range(3))
        self.logits = torch.zeros(most, vocab, device="cuda")
        self.graphs: dict[int, torch.cuda.CUDAGraph] = {}

    def _forward(self, size: int) -> None:
        self.logits[:size] = self.model(self.tokens[:size], self.slots[:size], self.positions[:size])

    def capture(self) -> None:
        pool = None
        self.slots.fill_(self.spare)
        for size in reversed(self.sizes):
            self._forward(size)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool):
                self._forward(size)
            pool = pool or graph.pool()
            self.graphs[size] = graph
            torch.cuda.synchronize()

    def decode(self, tokens: list[int], slots: list[int], positions: list[int]) -> list[int]:
        """The next token of each sequence."""
        size = self.sizes[bisect_left(self.sizes, len(tokens))]
        for buffer, live, pad in ((self.tokens, tokens, 0), (self.slots, slots, self.spare), (self.positions, positions, 0)):
            buffer[:size] = torch.tensor(live + [pad] * (size - len(live)))
        self.graphs[size].replay()
        return [int(token) for token in self.logits[: len(tokens)].argmax(dim=-1)]

    def generate(self, prompts: list[list[int]]) -> list[list[int]]:
        """Greedy decoding; prompts are fed token by token, and sequences leave as they end, so batches shrink."""
        running = [Sequence(list(prompt), slot) for slot, prompt in enumerate(prompts)]
        done = list(running)
        at = 0
        while running:
            next_tokens = self.decode([one.tokens[at] for one in running], [one.slot for one in running], [at] * len(running))
            at += 1
            for one, token in zip(running, next_tokens, strict=True):
                if at == len(one.tokens):
                    one.tokens.append(token)
                    one.new.append(token)
            running = [one for one in running if len(one.new) < self.new_tokens]
        return [one.new for one in done]

    def round(self, turn: int) -> list[Tensor]:
        draw = random.Random(turn)
        prompts = [[draw.randrange(self.vocab) for _ in range(draw.randint(2, 12))] for _ in range(draw.choice((5, 23, 60)))]
        return [*(torch.tensor(new) for new in self.generate(prompts)), self.logits[:1]]  # rows that pad mean nothing

    def step(self) -> None:
        self.graphs[16].replay()

    def close(self) -> None:
        torch.cuda.synchronize()
        self.graphs.clear()


if __name__ == "__main__":
    sys.exit(main(NanoRunner))
