"""What measure_memory.py captures: a decode step, and a prefill over the tokens of one sequence, with breaks at attention."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import seam
from graphdedup.demo import PRESETS, ModelConfig
from graphdedup.demo.model import DecoderModel, KVCache, RMSNorm, apply_rotary, rotary_tables
from graphdedup.demo.sizes import USUAL_SIZES

__all__ = ["WORKLOADS", "Forward", "PrefillModel", "Workload", "prefill_config"]

PREFILL_SIZES = (
    *(1, 2, 4, 8, 16, 32, 48, 64, 80, 96, 112, 128),
    *range(160, 513, 32),
    *range(576, 1025, 64),
    *(1280, 1536, 1792, 2048, 2304, 2560, 2816, 3072, 3584, 4096),
)
"""42 token counts up to 4,096, with gaps that grow, as engines capture prefill."""


def prefill_config(device: str) -> ModelConfig:
    """32 layers of hidden size 4,096 on a GPU; something small on the CPU."""
    if device != "cuda":
        return PRESETS["tiny"].model_copy(update={"layers": 4, "max_seq": PREFILL_SIZES[-1]})
    return ModelConfig(
        name="7b-like",
        layers=32,
        hidden=4096,
        heads=32,
        kv_heads=8,
        head_dim=128,
        mlp=14336,
        vocab=32000,
        max_seq=PREFILL_SIZES[-1],
        dtype="bfloat16",
    )


@seam.eager_break(name="attention")
def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention of one sequence over itself: ``q`` ``[tokens, heads, dim]``, ``k`` and ``v`` with fewer heads."""
    groups = q.shape[1] // k.shape[1]
    keys, values = (part.transpose(0, 1).repeat_interleave(groups, dim=0) for part in (k, v))
    attended = F.scaled_dot_product_attention(q.transpose(0, 1)[None], keys[None], values[None], is_causal=True)
    return attended[0].transpose(0, 1).flatten(1)


class PrefillModel(nn.Module):
    """A decoder-only transformer over the tokens of one sequence; it returns the hidden state of the last one."""

    cos: Tensor
    sin: Tensor

    def __init__(self, config: ModelConfig, device: torch.device, seed: int = 0) -> None:
        super().__init__()
        self.config = config
        dtype = config.torch_dtype
        pairs = config.kv_heads * config.head_dim
        queries = config.heads * config.head_dim
        self.parts = (queries, pairs, pairs)

        def linear(inside: int, out: int) -> nn.Linear:
            made = nn.Linear(inside, out, bias=False, dtype=dtype, device=device)
            with torch.no_grad():
                made.weight.normal_(std=inside**-0.5, generator=generator)
            return made

        generator = torch.Generator(device).manual_seed(seed)
        self.embedding = nn.Embedding(config.vocab, config.hidden, dtype=dtype, device=device)
        self.layers = nn.ModuleList(
            nn.ModuleDict(
                {
                    "before": RMSNorm(config.hidden, dtype=dtype, device=device),
                    "qkv": linear(config.hidden, sum(self.parts)),
                    "out": linear(queries, config.hidden),
                    "after": RMSNorm(config.hidden, dtype=dtype, device=device),
                    "gate_up": linear(config.hidden, 2 * config.mlp),
                    "down": linear(config.mlp, config.hidden),
                }
            )
            for _ in range(config.layers)
        )
        cos, sin = rotary_tables(config, device)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        self.requires_grad_(False)

    def _layers(self) -> Iterator[nn.ModuleDict]:
        for layer in self.layers:
            if isinstance(layer, nn.ModuleDict):  # which all of them are
                yield layer

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens int64 ``[T]``; the last token's hidden state, ``[1, hidden]``."""
        count = tokens.shape[0]
        cos, sin = self.cos[:count].unsqueeze(1), self.sin[:count].unsqueeze(1)
        x = self.embedding(tokens)
        for layer in self._layers():
            split = layer["qkv"](layer["before"](x)).split(self.parts, dim=-1)
            q, k, v = (part.view(count, -1, self.config.head_dim) for part in split)
            x = x + layer["out"](attention(apply_rotary(q, cos, sin), apply_rotary(k, cos, sin), v))
            gate, up = layer["gate_up"](layer["after"](x)).chunk(2, dim=-1)
            x = x + layer["down"](F.silu(gate) * up)
        last: Tensor = x[-1:]
        return last


class Forward(Protocol):
    """What is captured. ``start`` comes before it is compared."""

    def start(self) -> None: ...

    @property
    def __call__(self) -> Callable[..., Tensor]: ...


@dataclass(frozen=True, slots=True)
class Workload:
    """A forward, and a ladder of shapes of its inputs."""

    sizes: tuple[int, ...]
    inputs: Mapping[str, seam.Input]
    config: Callable[[str], ModelConfig]
    make: Callable[[ModelConfig, torch.device, int], Forward]
    """Makes the forward on a device, for shapes up to the last argument."""
    fresh: Callable[[ModelConfig, int, torch.Generator], dict[str, Tensor]]
    """Inputs of a shape, on the CPU."""


class _Decode:
    """A decode step on a cache of its own."""

    def __init__(self, config: ModelConfig, device: torch.device, largest: int) -> None:
        self.model, self.cache = DecoderModel(config, device=device), KVCache(config, largest, device)

    def start(self) -> None:
        """Fill the cache: breaks run on garbage at capture, and write it there."""
        self.cache.fill(0)

    def __call__(self, tokens: Tensor, positions: Tensor) -> Tensor:
        logits: Tensor = self.model(tokens, positions, self.cache)
        return logits


def _fresh_decode(config: ModelConfig, size: int, generator: torch.Generator) -> dict[str, Tensor]:
    return {
        "tokens": torch.randint(config.vocab, (size,), generator=generator),
        "positions": torch.randint(config.max_seq, (size,), generator=generator),
    }


class _Prefill:
    """A prefill that keeps nothing between calls."""

    def __init__(self, config: ModelConfig, device: torch.device, largest: int) -> None:
        self.model = PrefillModel(config, device)

    def start(self) -> None:
        """Nothing to do."""

    def __call__(self, tokens: Tensor) -> Tensor:
        last: Tensor = self.model(tokens)
        return last


def _fresh_prefill(config: ModelConfig, size: int, generator: torch.Generator) -> dict[str, Tensor]:
    return {"tokens": torch.randint(config.vocab, (size,), generator=generator)}


_ROWS = seam.Input((None,), torch.int64)

WORKLOADS: Mapping[str, Workload] = MappingProxyType(
    {
        "decode": Workload(
            USUAL_SIZES,
            MappingProxyType({"tokens": _ROWS, "positions": _ROWS}),
            lambda device: PRESETS["0.6b" if device == "cuda" else "tiny"],
            _Decode,
            _fresh_decode,
        ),
        "prefill": Workload(PREFILL_SIZES, MappingProxyType({"tokens": _ROWS}), prefill_config, _Prefill, _fresh_prefill),
    }
)
"""The workloads by name."""
