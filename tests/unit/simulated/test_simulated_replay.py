"""Replays give bit for bit what eager gives, for real torch code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from seam.simulated import SimulatedBackend, SimulatedSegment

DIM, HEADS, KV_HEADS, HEAD_DIM, CONTEXT = 32, 4, 2, 8, 16


def record(
    backend: SimulatedBackend, function: Callable[..., Any], *args: Any, pool: Any = None
) -> tuple[SimulatedSegment, Any]:
    pool = pool or backend.new_pool()
    with pool.entered():
        backend.begin_capture(pool)
        try:
            result = function(*args)
        except BaseException:
            backend.end_capture(discard=True)
            raise
        segment = backend.end_capture()
    assert segment is not None
    return segment, result


class Block(torch.nn.Module):
    """One decode step: RMSNorm, rotary, grouped-query attention over a static cache, gated MLP."""

    def __init__(self, dtype: torch.dtype, fused: bool) -> None:
        super().__init__()
        make = torch.Generator().manual_seed(5)
        shapes = {
            "qkv": ((HEADS + 2 * KV_HEADS) * HEAD_DIM, DIM),
            "out": (DIM, HEADS * HEAD_DIM),
            "gate_up": (4 * DIM, DIM),
            "down": (DIM, 2 * DIM),
        }
        for name, shape in shapes.items():
            self.register_parameter(name, torch.nn.Parameter(torch.randn(shape, generator=make).to(dtype) / 5))
        self.norm = torch.nn.Parameter(torch.rand(DIM, generator=make).to(dtype))
        self.register_buffer("rates", 1.0 / 100 ** (torch.arange(HEAD_DIM // 2) / (HEAD_DIM // 2)))
        self.fused = fused

    def rms(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * self.norm

    def rotate(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        angles = positions[:, None, None].float() * self.rates
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        first, second = x.chunk(2, dim=-1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        if self.fused:
            return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        scores = q @ k.transpose(-1, -2) / HEAD_DIM**0.5
        return scores.masked_fill(~mask, float("-inf")).softmax(-1, dtype=torch.float32).to(q.dtype) @ v

    def forward(self, x: torch.Tensor, positions: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        rows = x.shape[0]
        q, k, v = F.linear(self.rms(x), self.qkv).split([HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM], -1)
        q = self.rotate(q.reshape(rows, HEADS, HEAD_DIM), positions)
        k = self.rotate(k.reshape(rows, KV_HEADS, HEAD_DIM), positions)
        which = torch.arange(rows)
        keys[which, positions] = k
        values.index_put_((which, positions), v.reshape(rows, KV_HEADS, HEAD_DIM))
        groups = HEADS // KV_HEADS
        wide_k = keys[:rows].transpose(1, 2).repeat_interleave(groups, dim=1)
        wide_v = values[:rows].transpose(1, 2).repeat_interleave(groups, dim=1)
        mask = (torch.arange(CONTEXT) <= positions[:, None])[:, None, None, :]
        attended = self.attend(q[:, :, None, :], wide_k, wide_v, mask).transpose(1, 2).reshape(rows, -1)
        x = x + F.dropout(F.linear(attended, self.out), 0.0)
        gate, up = F.linear(self.rms(x), self.gate_up).chunk(2, -1)
        return x + F.linear(F.silu(gate) * up, self.down).contiguous()


@pytest.mark.parametrize("fused", [True, False], ids=["sdpa", "matmul"])
@pytest.mark.parametrize("mode", ["inference", "no_grad", "grad"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("rows", [1, 3])
def test_a_transformer_block_replays_bit_for_bit(dtype: torch.dtype, mode: str, fused: bool, rows: int) -> None:
    backend, block = SimulatedBackend(), Block(dtype, fused)
    scopes = {"inference": torch.inference_mode, "no_grad": torch.no_grad, "grad": torch.enable_grad}
    # Caches that autograd follows may not be written twice; none of ours asks for gradients in the other modes.
    block.requires_grad_(mode != "grad")
    make = torch.Generator().manual_seed(3)
    keys = torch.randn(rows, CONTEXT, KV_HEADS, HEAD_DIM, generator=make).to(dtype)
    values = torch.randn(rows, CONTEXT, KV_HEADS, HEAD_DIM, generator=make).to(dtype)
    x, positions = torch.zeros(rows, DIM, dtype=dtype), torch.zeros(rows, dtype=torch.int64)
    eager_keys, eager_values = keys.clone(), values.clone()
    with scopes[mode]():
        segment, y = record(backend, block, x, positions, keys, values)
    assert torch.equal(keys, eager_keys), "a capture computes nothing"
    for step in range(3):
        x.copy_(torch.randn(rows, DIM, generator=make))
        positions.copy_(torch.arange(rows) + 4 * step)
        backend.replay_graph(segment)
        with scopes[mode]():
            expected = block(x, positions, eager_keys, eager_values)
        assert torch.equal(y, expected)
        assert torch.equal(keys, eager_keys)
        assert torch.equal(values, eager_values)
    backend.destroy_graph(segment)


def test_outputs_are_poison_until_the_first_replay() -> None:
    backend, x = SimulatedBackend(), torch.ones(4)
    segment, y = record(backend, lambda: (x + 1, x * 2))
    assert all(tensor.isnan().all() for tensor in y)
    backend.replay_graph(segment)
    assert [tensor.tolist() for tensor in y] == [[2.0] * 4, [2.0] * 4]


WAYS: dict[str, tuple[Callable[[torch.Tensor], Any], list[Any]]] = {
    "view chain": (lambda x: x.view(2, 3).t()[1:].reshape(-1) * 10, [20.0, 50.0, 30.0, 60.0]),
    "in place": (lambda x: (x * 2).add_(1).mul_(3), [9.0, 15.0, 21.0, 27.0, 33.0, 39.0]),
    "in place on a view": (lambda x: _zeroed_tail(x.clone()), [1.0, 2.0, 3.0, 0.0, 0.0, 0.0]),
    "0-dim": (lambda x: x.sum() / 2, 10.5),
    "integers": (lambda x: x.to(torch.int32) // 2 + torch.arange(6, dtype=torch.int32), [0, 2, 3, 5, 6, 8]),
    "bool": (lambda x: (x > 3) & (x < 6), [False, False, False, True, True, False]),
    "values of max": (lambda x: x.view(2, 3).max(dim=1)[0], [3.0, 6.0]),
    "indices of max": (lambda x: x.view(2, 3).max(dim=1)[1], [2, 2]),
    "topk": (lambda x: torch.topk(x, 2).indices, [5, 4]),
    "split and cat": (lambda x: torch.cat(list(torch.split(x * 1, 2))[::-1]), [5.0, 6.0, 3.0, 4.0, 1.0, 2.0]),
    "out=": (lambda x: torch.add(x, 1, out=torch.empty(6)), [2.0, 3.0, 4.0, 5.0, 6.0, 7.0]),
    "out= that grows": (lambda x: torch.add(x, 1, out=torch.empty(0)), [2.0, 3.0, 4.0, 5.0, 6.0, 7.0]),
    "zero size": (lambda x: torch.cat([x[:0] * 2, x[5:] * 2, x.new_empty(0)]), [12.0]),
    "factories": (lambda x: torch.zeros(2) + torch.ones(2) + torch.full((2,), 3.0) + x[0], [5.0, 5.0]),
    "masked fill": (lambda x: x.masked_fill(x > 4, 0.0), [1.0, 2.0, 3.0, 4.0, 0.0, 0.0]),
    "where": (lambda x: torch.where(x > 4, x, -x), [-1.0, -2.0, -3.0, -4.0, 5.0, 6.0]),
    "one value under a mask": (lambda x: _mask_set(x.clone()), [1.0, 2.0, 9.0, 9.0, 9.0, 9.0]),
    "foreach": (lambda x: torch._foreach_add([x[:1], x[1:2]], 1.0)[1], [3.0]),
    "foreach in place": (lambda x: _foreach(x * 1), [2.0, 3.0, 4.0, 5.0, 6.0, 7.0]),
    "complex": (lambda x: torch.view_as_complex(x.view(3, 2).clone()).conj().resolve_conj().imag, [-2.0, -4.0, -6.0]),
    "lazy conj": (lambda x: (torch.view_as_complex(x.view(3, 2)).conj() * 1j).real, [2.0, 4.0, 6.0]),
    "einsum": (lambda x: torch.einsum("ij,kj->ik", x.view(2, 3), x.view(2, 3)).flatten(), [14.0, 32.0, 32.0, 77.0]),
    "cumsum": (lambda x: x.cumsum(0), [1.0, 3.0, 6.0, 10.0, 15.0, 21.0]),
    "transposed clone": (lambda x: x.view(2, 3).t().contiguous().flatten(), [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]),
    "fixed repeat_interleave": (
        lambda x: x[:2].repeat_interleave(torch.tensor([1, 2]), output_size=3),
        [1.0, 2.0, 2.0],
    ),
}


def _zeroed_tail(x: torch.Tensor) -> torch.Tensor:
    x[3:] = 0
    return x


def _mask_set(x: torch.Tensor) -> torch.Tensor:
    x[x > 2] = 9.0
    return x


def _foreach(x: torch.Tensor) -> torch.Tensor:
    torch._foreach_add_([x[:3], x[3:]], 1.0)
    return x


@pytest.mark.parametrize("inference", [True, False], ids=["inference", "grad"])
@pytest.mark.parametrize("way", WAYS)
def test_each_way_of_computing_replays(way: str, inference: bool) -> None:
    function, expected = WAYS[way]
    backend, x = SimulatedBackend(), torch.zeros(6)
    with torch.inference_mode(inference):
        segment, y = record(backend, function, x)
    for _ in range(2):
        x.copy_(torch.arange(1.0, 7.0))
        backend.replay_graph(segment)
        assert y.tolist() == expected
        assert x.tolist() == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]


@pytest.mark.parametrize("function", ["conv", "lstm", "layer_norm", "embedding", "attention"])
@pytest.mark.parametrize("inference", [True, False])
def test_library_layers_replay_bit_for_bit(function: str, inference: bool) -> None:
    torch.manual_seed(0)
    layers: dict[str, tuple[Any, Callable[[], torch.Tensor]]] = {
        "conv": (torch.nn.Conv2d(3, 4, 3, padding=1), lambda: torch.randn(2, 3, 5, 5)),
        "lstm": (torch.nn.LSTM(4, 5, batch_first=True), lambda: torch.randn(2, 3, 4)),
        "layer_norm": (torch.nn.LayerNorm(6), lambda: torch.randn(2, 6)),
        "embedding": (torch.nn.Embedding(7, 3), lambda: torch.randint(0, 7, (5,))),
        "attention": (
            torch.nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True).eval(),
            lambda: torch.randn(2, 3, 8),
        ),
    }
    layer, sample = layers[function]
    backend, x = SimulatedBackend(), sample()
    with torch.inference_mode(inference):
        segment, y = record(backend, layer, x)
    y = y[0] if isinstance(y, tuple) else y
    for _ in range(3):
        x.copy_(sample())
        backend.replay_graph(segment)
        with torch.inference_mode(inference):
            expected = layer(x)
        assert torch.equal(y, expected[0] if isinstance(expected, tuple) else expected)


def test_forward_and_backward_are_captured_together() -> None:
    backend = SimulatedBackend()
    x, w = torch.randn(4, 3), torch.randn(3, 2, requires_grad=True)

    def step() -> torch.Tensor:
        (grad,) = torch.autograd.grad((x @ w).square().sum(), w)
        return grad

    segment, grad = record(backend, step)
    for _ in range(3):
        x.copy_(torch.randn(4, 3))
        backend.replay_graph(segment)
        assert torch.equal(grad, step())


@pytest.mark.parametrize("inference", [True, False])
@pytest.mark.parametrize("call", ["linear", "einsum", "norm"])
def test_autocast_at_capture_is_what_replays(call: str, inference: bool) -> None:
    calls: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "linear": lambda x: F.linear(x, w),
        "einsum": lambda x: torch.einsum("ij,kj->ik", x, w),
        "norm": lambda x: F.cosine_similarity(x @ w, x),
    }
    backend, x, w = SimulatedBackend(), torch.randn(8, 8), torch.randn(8, 8)
    with torch.inference_mode(inference), torch.autocast("cpu", torch.bfloat16):
        segment, y = record(backend, calls[call], x)
        x.copy_(torch.randn(8, 8))
        backend.replay_graph(segment)
        expected = calls[call](x)
        assert y.dtype == expected.dtype
        assert torch.equal(y, expected)


def test_autocast_at_replay_changes_nothing() -> None:
    backend, x, w = SimulatedBackend(), torch.randn(8, 8), torch.randn(8, 8)
    segment, y = record(backend, lambda: x @ w)
    with torch.autocast("cpu", torch.bfloat16):
        backend.replay_graph(segment)
    assert torch.equal(y, x @ w)


@pytest.mark.parametrize("replay_inference", [True, False])
@pytest.mark.parametrize("capture_inference", [True, False])
def test_capture_and_replay_may_differ_in_inference_mode(capture_inference: bool, replay_inference: bool) -> None:
    backend, x, w = SimulatedBackend(), torch.randn(2, 4), torch.randn(4, 4, requires_grad=True)
    with torch.inference_mode(capture_inference):
        segment, y = record(backend, lambda: F.linear(x, w).relu())
    with torch.inference_mode(replay_inference):
        backend.replay_graph(segment)
    assert torch.equal(y, F.linear(x, w).relu())


def test_dispatch_modes_of_the_caller_do_not_see_a_replay() -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Count(TorchDispatchMode):
        seen = 0

        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            Count.seen += 1
            return function(*args, **(kwargs or {}))

    backend, x = SimulatedBackend(), torch.ones(2)
    segment, y = record(backend, lambda: x + 1)
    with Count(), torch.device("meta"):
        backend.replay_graph(segment)
    assert (y.tolist(), Count.seen) == ([2.0, 2.0], 0)


def test_default_dtype_and_shapes_do_not_leak_between_captures() -> None:
    backend = SimulatedBackend()
    before = torch.get_default_dtype()
    try:
        for dtype in (torch.float32, torch.float64):
            torch.set_default_dtype(dtype)
            segment, y = record(backend, lambda: torch.ones(3))
            backend.replay_graph(segment)
            assert (y.dtype, y.tolist()) == (dtype, [1.0] * 3)
    finally:
        torch.set_default_dtype(before)


def test_scalars_of_equal_value_and_other_type_promote_as_eager() -> None:
    backend, x = SimulatedBackend(), torch.ones(2, dtype=torch.int64)
    dtypes = [record(backend, lambda scalar=scalar: x * scalar)[1].dtype for scalar in (1, 1.0, True)]
    assert dtypes == [torch.int64, torch.float32, torch.int64]
