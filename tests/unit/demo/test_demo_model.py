"""The demo's transformer against independent computations, and its reachability by the seam."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

import seam
from graphdedup.demo.model import (
    PRESETS,
    DecoderModel,
    KVCache,
    ModelConfig,
    RMSNorm,
    apply_rotary,
    attend,
    rotary_tables,
)

TINY = PRESETS["tiny"]


@pytest.fixture(autouse=True)
def _no_grad() -> Any:
    with torch.no_grad():
        yield


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def test_rms_norm_is_by_the_formula() -> None:
    norm = RMSNorm(5, eps=1e-6, dtype=torch.float32, device="cpu")
    norm.weight.copy_(random(5, seed=1))
    x = random(3, 5)
    expected = [
        [
            value / math.sqrt(sum(v * v for v in row) / 5 + 1e-6) * weight
            for value, weight in zip(row, norm.weight.tolist(), strict=True)
        ]
        for row in x.tolist()
    ]
    assert torch.allclose(norm(x), torch.tensor(expected), atol=1e-6)


def test_rms_norm_sums_in_float32() -> None:
    """A bfloat16 result is rounded once, at the end."""
    norm = RMSNorm(1024, dtype=torch.bfloat16, device="cpu")
    x = random(8, 1024).bfloat16()
    exact = x.double() / (x.double().pow(2).mean(-1, keepdim=True) + 1e-6).sqrt()
    assert torch.equal(norm(x), exact.bfloat16())


def test_rotary_multiplies_complex_pairs() -> None:
    """(x[i], x[i + half]) is a complex number, turned by position * base^(-2i / dim)."""
    cos, sin = rotary_tables(TINY, "cpu")
    x, positions = random(4, 3, TINY.head_dim), torch.tensor([0, 1, 7, 31])
    got = apply_rotary(x, cos[positions].unsqueeze(1), sin[positions].unsqueeze(1))
    half = TINY.head_dim // 2
    for row, position in enumerate(positions.tolist()):
        for head in range(3):
            for i in range(half):
                pair = complex(x[row, head, i], x[row, head, i + half])
                angle = position * 10000 ** (-2 * i / TINY.head_dim)
                turned = pair * complex(math.cos(angle), math.sin(angle))
                assert got[row, head, i].item() == pytest.approx(turned.real, abs=1e-5)
                assert got[row, head, i + half].item() == pytest.approx(turned.imag, abs=1e-5)


def test_attention_is_by_the_formula_and_writes_its_row() -> None:
    """Plain loops in float64: each head attends over slots 0 to its row's position, the written one included."""
    heads, kv_heads, dim, max_seq = 4, 2, 8, 6
    q, k, v = random(3, heads, dim), random(3, kv_heads, dim, seed=1), random(3, kv_heads, dim, seed=2)
    k_cache, v_cache = random(3, kv_heads, max_seq, dim, seed=3), random(3, kv_heads, max_seq, dim, seed=4)
    before = k_cache.clone()
    positions, rows = torch.tensor([0, 3, 5]), torch.arange(3)
    unseen = torch.arange(max_seq) > positions.unsqueeze(1)
    out = attend(q, k, v, k_cache, v_cache, rows, positions, unseen)

    assert out.shape == (3, heads * dim)
    for row, position in enumerate(positions.tolist()):
        assert torch.equal(k_cache[row, :, position], k[row])
        assert torch.equal(v_cache[row, :, position], v[row])
        untouched = [slot for slot in range(max_seq) if slot != position]
        assert torch.equal(k_cache[row][:, untouched], before[row][:, untouched])
        for head in range(heads):
            pair = head // (heads // kv_heads)
            scores = [
                sum(a * b for a, b in zip(q[row, head].tolist(), k_cache[row, pair, slot].tolist(), strict=True))
                / math.sqrt(dim)
                for slot in range(position + 1)
            ]
            weights = [math.exp(score - max(scores)) for score in scores]
            for i in range(dim):
                expected = sum(w * v_cache[row, pair, slot, i].item() for slot, w in enumerate(weights)) / sum(weights)
                assert out[row, head * dim + i].item() == pytest.approx(expected, abs=1e-5)


def whole_sequence_logits(model: DecoderModel, tokens: Tensor) -> Tensor:
    """The same transformer over a whole sequence ``[T]`` at once, without a cache, written in another way."""
    config = model.config
    half = config.head_dim // 2
    frequencies = config.rope_base ** (-torch.arange(half) / half)
    turns = torch.polar(torch.ones(len(tokens), half), torch.outer(torch.arange(len(tokens)).float(), frequencies))

    def norm(x: Tensor, by: Any) -> Tensor:
        return torch.nn.functional.rms_norm(x, (config.hidden,), by.weight, by.eps)

    def turned(x: Tensor) -> Tensor:
        pairs = torch.complex(x[..., :half], x[..., half:]) * turns.unsqueeze(1)
        return torch.cat((pairs.real, pairs.imag), -1)

    x = model.embedding.weight[tokens]
    for layer in model.layers:
        y = norm(x, layer.attention_norm)
        heads = (config.heads, config.kv_heads, config.kv_heads)
        weights = layer.qkv.weight.split([count * config.head_dim for count in heads])
        q, k, v = ((y @ weight.T).unflatten(-1, (-1, config.head_dim)) for weight in weights)
        y = torch.nn.functional.scaled_dot_product_attention(
            turned(q).transpose(0, 1), turned(k).transpose(0, 1), v.transpose(0, 1), is_causal=True, enable_gqa=True
        )
        x = x + y.transpose(0, 1).flatten(1) @ layer.o.weight.T
        y = norm(x, layer.mlp_norm)
        gate, up = layer.gate_up.weight.chunk(2)
        x = x + (torch.nn.functional.silu(y @ gate.T) * (y @ up.T)) @ layer.down.weight.T
    return norm(x, model.norm) @ model.embedding.weight.T


def test_decoding_step_by_step_equals_the_whole_sequence() -> None:
    """Cache, mask, rotary and layers together: decode 12 tokens, row 1 of a batch of 3."""
    model = DecoderModel(TINY, seed=3)
    tokens = torch.randint(TINY.vocab, (3, 12), generator=torch.Generator().manual_seed(5))
    cache = KVCache(TINY, 3, "cpu")
    cache.fill(9)  # what stands in slots not yet written must not matter
    steps = [model(tokens[:, step], torch.full((3,), step), cache)[1] for step in range(12)]
    assert torch.allclose(torch.stack(steps), whole_sequence_logits(model, tokens[1]), atol=1e-4)


def test_weights_come_from_the_seed() -> None:
    def logits(seed: int) -> Tensor:
        cache = KVCache(TINY, 2, "cpu")
        return DecoderModel(TINY, seed=seed)(torch.tensor([1, 2]), torch.tensor([0, 0]), cache)

    assert torch.equal(logits(1), logits(1))
    assert not torch.allclose(logits(1), logits(2))
    assert logits(1).isfinite().all()
    assert not torch.allclose(logits(1)[0], logits(1)[1])


def test_what_was_written_can_be_read_and_spoiled() -> None:
    cache = KVCache(TINY, 4, "cpu")
    positions = torch.tensor([3, 0, 31])
    k, v = random(TINY.layers, 3, TINY.kv_heads, TINY.head_dim), random(TINY.layers, 3, 2, 16, seed=1)
    cache.write(positions, k, v)
    assert torch.equal(cache.k[2, 0, :, 3], k[2, 0])
    assert torch.equal(cache.v[1, 2, :, 31], v[1, 2])
    assert all(map(torch.equal, cache.written(positions), (k, v)))
    cache.write(positions, float("nan"), float("nan"))
    assert cache.k.isnan().sum() == k.numel()


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_every_operation_infers_its_shape_without_data(name: str) -> None:
    """A simulated device infers results on meta tensors."""
    config = PRESETS[name].with_layers(2)
    model, cache = DecoderModel(config, device="meta"), KVCache(config, 8, "meta")
    tokens, positions = (torch.zeros(5, dtype=torch.int64, device="meta") for _ in range(2))
    logits = model(tokens, positions, cache)
    assert logits.shape == (5, config.vocab)
    assert logits.dtype == config.torch_dtype


def test_the_presets_are_the_documented_ones() -> None:
    big = PRESETS["0.6b"]
    assert (big.layers, big.hidden, big.heads, big.kv_heads, big.head_dim, big.mlp) == (28, 1024, 16, 8, 128, 3072)
    assert big.dtype == "bfloat16"
    assert TINY.dtype == "float32"


def test_layers_override_is_checked() -> None:
    assert TINY.with_layers(5) == ModelConfig.model_validate({**TINY.model_dump(), "layers": 5})
    with pytest.raises(ValidationError):
        TINY.with_layers(0)
    with pytest.raises(ValidationError, match="multiple of kv_heads"):
        ModelConfig.model_validate({**TINY.model_dump(), "heads": 3})


class CountingBackend:
    """Captures nothing: work runs as it comes. Enough to see where the seam splits a forward."""

    name = "counting"

    def __init__(self) -> None:
        self.begun = 0

    def new_pool(self, stream: Any = None) -> Any:
        from contextlib import nullcontext
        from unittest.mock import Mock

        stream = Mock()
        return Mock(stream=stream, current_stream=lambda: stream, entered=nullcontext, ledger=lambda: None)

    def begin_capture(self, pool: Any, *, segment: Any = None, capture_error_mode: str = "thread_local") -> None:
        self.begun += 1

    def end_capture(self, *, discard: bool = False) -> int | None:
        return None if discard else self.begun

    def replay_graph(self, handle: int) -> None:
        pass

    def destroy_graph(self, handle: int) -> None:
        pass


@pytest.mark.parametrize(("mode", "segments"), [("breakable", TINY.layers + 1), ("full", 1)])
def test_the_seam_reaches_attention_in_every_layer(mode: str, segments: int) -> None:
    """The one @seam.eager_break line of the model splits its own forward into layers + 1 segments (S1)."""
    model, cache = DecoderModel(TINY), KVCache(TINY, 4, "cpu")
    graph = seam.BreakableGraph(CountingBackend(), label="decode bs=4")
    with seam.capture(graph, mode=mode):
        model(torch.arange(4), torch.arange(4), cache)
    assert len(graph.segments) == segments
    assert len(graph.breaks) == segments - 1
    graph.close()
