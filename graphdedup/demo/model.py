"""The demo's model: one decode step of a decoder-only transformer, in plain torch, with random weights.

What an engine captures, in small: RMSNorm, rotary embedding, grouped-query attention over a static KV cache, gated MLP,
tied head. No call waits for the device, and every operation can infer its result's shape without data.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor, nn

import seam

__all__ = ["PRESETS", "DecoderModel", "KVCache", "ModelConfig", "RMSNorm", "apply_rotary", "attend", "rotary_tables"]


class ModelConfig(BaseModel):
    """Dimensions of a :class:`DecoderModel`. ``dtype`` is torch's name for it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    layers: int = Field(ge=1, le=1024)
    hidden: int = Field(ge=1)
    heads: int = Field(ge=1)
    kv_heads: int = Field(ge=1)
    head_dim: int = Field(ge=2, multiple_of=2)
    mlp: int = Field(ge=1)
    vocab: int = Field(ge=2)
    max_seq: int = Field(ge=1)
    dtype: str = Field(pattern="^(float32|bfloat16|float16)$")
    rope_base: float = 10000.0

    @model_validator(mode="after")
    def _heads_divide(self) -> ModelConfig:
        if self.heads % self.kv_heads:
            raise ValueError(f"heads ({self.heads}) must be a multiple of kv_heads ({self.kv_heads})")
        return self

    @property
    def torch_dtype(self) -> torch.dtype:
        dtype: torch.dtype = getattr(torch, self.dtype)
        return dtype

    def with_layers(self, layers: int) -> ModelConfig:
        """The same model with another number of layers."""
        return ModelConfig.model_validate({**self.model_dump(), "layers": layers})


PRESETS = {
    "tiny": ModelConfig(
        name="tiny",
        layers=3,
        hidden=64,
        heads=4,
        kv_heads=2,
        head_dim=16,
        mlp=128,
        vocab=256,
        max_seq=32,
        dtype="float32",
    ),
    "0.6b": ModelConfig(
        name="0.6b",
        layers=28,
        hidden=1024,
        heads=16,
        kv_heads=8,
        head_dim=128,
        mlp=3072,
        vocab=32000,
        max_seq=128,
        dtype="bfloat16",
    ),
}
"""The models that ``graphdedup demo --model`` knows."""


class KVCache:
    """Keys and values of every layer, allocated once for the largest batch: captured graphs bake its addresses.

    Attributes:
        k, v: ``[layers, max_batch, kv_heads, max_seq, head_dim]``.
        rows: ``[max_batch]``, 0, 1, 2, ...: the batch index of each row. A buffer, not made in the forward: in a
            breakable capture attention runs once before any captured work has run, and must not index by garbage.
    """

    def __init__(self, config: ModelConfig, max_batch: int, device: torch.device | str) -> None:
        shape = (config.layers, max_batch, config.kv_heads, config.max_seq, config.head_dim)
        self.k = torch.zeros(shape, dtype=config.torch_dtype, device=device)
        self.v = torch.zeros(shape, dtype=config.torch_dtype, device=device)
        self.rows = torch.arange(max_batch, device=device)

    def fill(self, seed: int) -> None:
        """Fill every slot with a random history that depends on ``seed`` and the kind of device only."""
        generator = torch.Generator(self.k.device).manual_seed(seed)
        for layer in (*self.k, *self.v):
            layer.normal_(generator=generator)

    def written(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """What the first B rows hold at ``positions`` ``[B]``, as copies: ``[layers, B, kv_heads, head_dim]`` each."""
        rows = self.rows[: positions.shape[0]]
        return self.k.transpose(2, 3)[:, rows, positions], self.v.transpose(2, 3)[:, rows, positions]

    def write(self, positions: Tensor, k: Tensor | float, v: Tensor | float) -> None:
        """Write at ``positions``; the counterpart of :meth:`written`."""
        rows = self.rows[: positions.shape[0]]
        self.k.transpose(2, 3)[:, rows, positions] = k
        self.v.transpose(2, 3)[:, rows, positions] = v


class RMSNorm(nn.Module):
    """``x / sqrt(mean(x^2) + eps) * weight`` over the last dimension, computed in float32; one kernel on a GPU."""

    def __init__(self, dim: int, *, eps: float = 1e-6, dtype: torch.dtype, device: torch.device | str) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim, dtype=dtype, device=device))

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), self.weight, self.eps)


def rotary_tables(config: ModelConfig, device: torch.device | str) -> tuple[Tensor, Tensor]:
    """Cosine and sine of ``position * base^(-2i / head_dim)``, for both halves of a head: two ``[max_seq, head_dim]``."""
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float64) / config.head_dim
    angles = torch.outer(torch.arange(config.max_seq, dtype=torch.float64), config.rope_base**-exponents).repeat(1, 2)
    return angles.cos().to(device, config.torch_dtype), angles.sin().to(device, config.torch_dtype)


def apply_rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn each pair ``(x[i], x[i + half])`` by its angle: ``x`` ``[B, heads, 2 * half]``, tables ``[B, 1, 2 * half]``."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


@seam.eager_break
def attend(
    q: Tensor, k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, rows: Tensor, positions: Tensor, unseen: Tensor
) -> Tensor:
    """Write this step's keys and values into the cache, then attend over it: the one break point of the model.

    Args:
        q: ``[B, heads, head_dim]``.
        k, v: ``[B, kv_heads, head_dim]``.
        k_cache, v_cache: ``[B, kv_heads, max_seq, head_dim]`` of one layer; written at ``positions``.
        rows, positions: ``[B]``, where to write.
        unseen: bool ``[B, max_seq]``, True where a slot lies after the row's position.

    Returns:
        ``[B, heads * head_dim]``, a tensor of its own.
    """
    batch, heads, head_dim = q.shape
    kv_heads, max_seq = k_cache.shape[1], k_cache.shape[2]
    k_cache.transpose(1, 2).index_put_((rows, positions), k)
    v_cache.transpose(1, 2).index_put_((rows, positions), v)
    # The whole cache is read at every step: shapes then depend on the batch size only.
    keys = k_cache.view(batch * kv_heads, max_seq, head_dim)
    values = v_cache.view(batch * kv_heads, max_seq, head_dim)
    grouped = q.view(batch * kv_heads, heads // kv_heads, head_dim)
    scores = torch.bmm(grouped * head_dim**-0.5, keys.transpose(1, 2)).view(batch, heads, max_seq)
    scores = scores.masked_fill(unseen.unsqueeze(1), float("-inf"))
    weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(v.dtype).view(batch * kv_heads, -1, max_seq)
    return torch.bmm(weights, values).view(batch, heads * head_dim)


class _Layer(nn.Module):
    def __init__(self, config: ModelConfig, device: torch.device | str) -> None:
        super().__init__()
        dtype = config.torch_dtype
        queries, pairs = config.heads * config.head_dim, config.kv_heads * config.head_dim
        self.head_dim = config.head_dim
        self.parts = (queries, pairs, pairs)
        self.attention_norm = RMSNorm(config.hidden, dtype=dtype, device=device)
        self.qkv = nn.Linear(config.hidden, sum(self.parts), bias=False, dtype=dtype, device=device)
        self.o = nn.Linear(queries, config.hidden, bias=False, dtype=dtype, device=device)
        self.mlp_norm = RMSNorm(config.hidden, dtype=dtype, device=device)
        self.gate_up = nn.Linear(config.hidden, 2 * config.mlp, bias=False, dtype=dtype, device=device)
        self.down = nn.Linear(config.mlp, config.hidden, bias=False, dtype=dtype, device=device)

    def forward(
        self,
        x: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        rows: Tensor,
        positions: Tensor,
        unseen: Tensor,
        cos: Tensor,
        sin: Tensor,
    ) -> Tensor:
        batch = x.shape[0]
        split = self.qkv(self.attention_norm(x)).split(self.parts, dim=-1)
        q, k, v = (part.view(batch, -1, self.head_dim) for part in split)
        q, k = apply_rotary(q, cos, sin), apply_rotary(k, cos, sin)
        x = x + self.o(attend(q, k, v, k_cache, v_cache, rows, positions, unseen))
        gate, up = self.gate_up(self.mlp_norm(x)).chunk(2, dim=-1)
        gated: Tensor = self.down(F.silu(gate) * up)
        return x + gated


class DecoderModel(nn.Module):
    """A decoder-only transformer that decodes one token for each row of a batch.

    Weights are random: they depend on ``seed`` alone, not on the device. On ``"meta"`` none are drawn.
    """

    cos: Tensor
    sin: Tensor
    slots: Tensor

    def __init__(self, config: ModelConfig, *, device: torch.device | str = "cpu", seed: int = 0) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab, config.hidden, dtype=config.torch_dtype, device=device)
        self.layers = nn.ModuleList(_Layer(config, device) for _ in range(config.layers))
        self.norm = RMSNorm(config.hidden, dtype=config.torch_dtype, device=device)
        cos, sin = rotary_tables(config, device)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        self.register_buffer("slots", torch.arange(config.max_seq, device=device), persistent=False)
        if torch.device(device).type != "meta":
            self._draw_weights(seed)
        self.requires_grad_(False)

    @torch.no_grad()
    def _draw_weights(self, seed: int) -> None:
        """Matrices with variance 1 / fan-in, so that activations neither vanish nor explode; norms near 1."""
        generator = torch.Generator().manual_seed(seed)
        for parameter in self.parameters():
            drawn = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(drawn * parameter.shape[-1] ** -0.5 if parameter.dim() > 1 else 1 + 0.1 * drawn)

    def forward(self, tokens: Tensor, positions: Tensor, cache: KVCache) -> Tensor:
        """One decode step.

        Args:
            tokens: int64 ``[B]``, the token of each row.
            positions: int64 ``[B]``, the slot of the cache that each row writes; it sees slots 0 to there.
            cache: rows 0 to B - 1 are read and written.

        Returns:
            Logits, ``[B, vocab]``.
        """
        batch = tokens.shape[0]
        rows = cache.rows[:batch]
        cos = self.cos.index_select(0, positions).unsqueeze(1)
        sin = self.sin.index_select(0, positions).unsqueeze(1)
        unseen = self.slots > positions.unsqueeze(1)
        x = self.embedding(tokens)
        for index, layer in enumerate(self.layers):
            x = layer(x, cache.k[index, :batch], cache.v[index, :batch], rows, positions, unseen, cos, sin)
        logits: Tensor = F.linear(self.norm(x), self.embedding.weight)
        return logits
