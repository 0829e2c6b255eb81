"""M2: what crosses a break costs the largest shape. S5: it holds what the program computed all the same."""

from __future__ import annotations

import random
import threading
from typing import Any, NamedTuple

import pytest
import torch

import seam

COLUMNS = 1024
KIB = 1024


class Layers:
    """x -> twice attention(x + 1, x) - x in each layer, on exact integers; ``attention`` is the break."""

    def __init__(self, count: int, *, in_place: bool = False) -> None:
        self.count = count
        self.in_place = in_place
        self.attention = seam.eager_break(name="attention")(self.plain)

    def plain(self, q: torch.Tensor, pair: tuple[torch.Tensor, torch.Tensor], out: torch.Tensor | None = None) -> Any:
        result = q + pair[0] * 2 - pair[1]
        return result if out is None else out.copy_(result)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(self.count):
            out = torch.empty_like(x) if self.in_place else None
            x = (self.attention(x + 1, (x, x * 1), out=out) - x) % 97
        return x

    def expected(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(self.count):
            x = (x + 1 + x * 2 - x - x) % 97
        return x


class Rung(NamedTuple):
    graph: seam.BreakableGraph
    x: torch.Tensor
    y: torch.Tensor


def ladder(
    backend: seam.GraphBackend, device: str, layers: Layers, sizes: tuple[int, ...], pool: seam.Pool, **how: Any
) -> list[Rung]:
    rungs = []
    for size in sizes:
        x = torch.zeros(size, COLUMNS, device=device)
        graph = seam.BreakableGraph(backend, label=f"bs={size}")
        with torch.no_grad(), seam.capture(graph, pool=pool, **how):
            y = layers(x)
        rungs.append(Rung(graph, x, y))
    return rungs


def check(layers: Layers, rungs: list[Rung], rounds: int = 3) -> None:
    """Every graph in shuffled order with fresh inputs, while the allocator hands out what is free."""
    for turn in range(rounds):
        churn = [torch.full((size, COLUMNS), -3.0, device=rungs[0].x.device) for size in (1, 7, 64, 256)]
        for number, (graph, x, y) in enumerate(random.Random(turn).sample(rungs, len(rungs))):
            x.copy_(torch.arange(x.numel()).view_as(x) % (50 + number + turn))
            graph.replay()
            assert torch.equal(y, layers.expected(x)), graph.label
        assert all(bool((part == -3).all()) for part in churn)


def close(*ladders: list[Rung]) -> None:
    for rungs in ladders:
        for graph, *_ in rungs:
            graph.close()


def test_a_ladder_costs_what_its_largest_shape_costs(backend: seam.GraphBackend, device: str) -> None:
    """M2: the smaller shapes fit into what the largest one left free. Outputs, which live on, are all that is added.

    On the simulated device that is exact. On a GPU the allocator takes large tensors from other segments than small ones.
    """
    layers = Layers(3)
    pool = backend.new_pool()
    first = ladder(backend, device, layers, (512,), pool)
    alone = pool.reserved_bytes()
    rest = ladder(backend, device, layers, (384, 256, 128, 64), pool)
    outputs = sum(y.numel() * 4 for _, _, y in rest)
    added = pool.reserved_bytes() - alone
    assert added <= outputs if backend.name == "simulated" else added <= outputs + (24 << 20)
    check(layers, first + rest)
    close(first, rest)


def test_smaller_shapes_may_come_first(backend: seam.GraphBackend, device: str) -> None:
    """Nothing moves when a later shape needs more: what was captured stays right."""
    layers = Layers(3)
    pool = backend.new_pool()
    rungs = ladder(backend, device, layers, (64, 512, 128, 384), pool)
    check(layers, rungs)
    close(rungs)


def test_layers_use_each_others_memory(backend: seam.GraphBackend, device: str) -> None:
    """M2: a forward of eight layers needs no more than one of two: what a layer's break took is free in the next."""
    reserved = []
    for count in (2, 8):
        layers = Layers(count)
        pool = backend.new_pool()
        rungs = ladder(backend, device, layers, (512,), pool)
        reserved.append(pool.reserved_bytes())
        check(layers, rungs)
        close(rungs)
    assert reserved[0] == reserved[1]


def test_two_ladders_of_one_pool_stay_exact(backend: seam.GraphBackend, device: str) -> None:
    """S5: a second ladder is captured while the first one is in use, and takes what is free of its memory."""
    pool = backend.new_pool()
    two, three = Layers(2), Layers(3, in_place=True)
    first = ladder(backend, device, two, (256, 64, 8), pool)
    check(two, first)
    second = ladder(backend, device, three, (200, 64, 16), pool)
    for _ in range(2):
        check(two, first)
        check(three, second)
    close(first)
    check(three, second)
    close(second)


@pytest.mark.parametrize("in_place", [False, True])
def test_what_crosses_is_counted(in_place: bool, backend: seam.GraphBackend, device: str) -> None:
    """Three tensors of one layer: x + 1, x * 1 and the result, in place or not. The first layer's x is the caller's buffer.

    That is the input of the first layer, and a tensor of the pool in the second.
    """
    pool = backend.new_pool()
    rungs = ladder(backend, device, Layers(2, in_place=in_place), (8,), pool)
    graph = rungs[0].graph
    assert [at.cost.shared_bytes for at in graph.breaks] == [3 * 32 * KIB, 4 * 32 * KIB]
    assert graph.crossing == seam.CrossingBytes(shared_bytes=7 * 32 * KIB, held_bytes=0)
    close(rungs)


def test_an_in_place_break_takes_no_memory_of_its_own(backend: seam.GraphBackend, device: str) -> None:
    """M2: the caller's ``out`` is the destination; the same forward without a break needs as much."""
    reserved = []
    for mode in ("breakable", "full"):
        layers = Layers(1, in_place=True)
        if mode == "full":
            layers.plain = lambda q, pair, out=None: out.copy_(q)  # type: ignore[method-assign]
            layers.attention = layers.plain
        pool = backend.new_pool()
        rungs = ladder(backend, device, layers, (256,), pool, mode=mode)
        reserved.append(pool.reserved_bytes())
        close(rungs)
    assert reserved[0] == reserved[1]


def test_tensors_in_a_list_are_held_and_counted(backend: seam.GraphBackend, device: str) -> None:
    """S5: the caller may change a list or mapping between replays, so the seam passes on that itself."""

    @seam.eager_break
    def body(parts: list[torch.Tensor], scale: dict[str, int]) -> torch.Tensor:
        return sum(parts) * scale["by"]  # type: ignore[return-value]

    x = torch.zeros(256, device=device)
    more = torch.full((256,), 1000.0, device=device)
    graph = seam.BreakableGraph(backend)
    scale = {"by": 2}
    with seam.capture(graph):
        parts = [x + 1]
        y = body(parts, scale) + 0
    assert graph.crossing == seam.CrossingBytes(shared_bytes=1 * KIB, held_bytes=1 * KIB)
    for value, scale["by"], added in ((1, 2, 0), (4, 3, 1000), (2, 5, 1000)):
        x.fill_(value)
        if added and len(parts) == 1:
            parts.append(more)
        graph.replay()
        assert y.tolist() == [(value + 1 + added) * scale["by"]] * 256
    graph.close()


def test_arguments_by_name_are_shared_and_count_once(backend: seam.GraphBackend, device: str) -> None:
    """A tensor that is held in one place is held, however often it is passed otherwise."""
    seen: list[Any] = []

    @seam.eager_break
    def body(first: torch.Tensor, *, second: torch.Tensor, more: list[torch.Tensor]) -> None:
        seen.append([part[0].item() for part in (first, second, *more)])

    x = torch.zeros(256, device=device)
    costs = []
    for in_list in (False, True):
        graph = seam.BreakableGraph(backend)
        with seam.capture(graph):
            made = x + 1
            body(made, second=made if in_list else x * 3, more=[made] if in_list else [])
            del made
        costs.append(graph.crossing)
        for value in (1, 5, 2):
            x.fill_(value)
            graph.replay()
            assert seen[-1] == ([value + 1] * 3 if in_list else [value + 1, 3 * value])
        graph.close()
    assert costs == [seam.CrossingBytes(2 * KIB, 0), seam.CrossingBytes(0, 1 * KIB)]


@pytest.mark.parametrize("written_back", [True, False])
def test_another_graphs_output_is_held(written_back: bool, backend: seam.GraphBackend, device: str) -> None:
    """S5: it lies in the pool, yet this graph does not write it; were it a view, a third graph would take its memory."""
    seen: list[float] = []
    doubled = torch.zeros(256, device=device)

    @seam.eager_break
    def body(value: torch.Tensor) -> Any:
        seen.append(value[0].item())
        return value * 2 if written_back else seam.NoWriteback(torch.mul(value, 2, out=doubled))

    pool = backend.new_pool()
    x = torch.zeros(256, device=device)
    first, second, third = (seam.BreakableGraph(backend) for _ in range(3))
    with seam.capture(first, pool=pool):
        y = x + 1
    with seam.capture(second, pool=pool):
        z = body(y) + 0
    shared = 1 * KIB if written_back else 0  # the result alone is the seam's to share
    assert second.crossing == seam.CrossingBytes(shared_bytes=shared, held_bytes=1 * KIB - shared)
    del y
    with seam.capture(third, pool=pool):
        w = x + 100
    for value in (1, 5, 2):
        x.fill_(value)
        seen.clear()
        first.replay()
        third.replay()
        assert w.tolist() == [value + 100] * 256
        second.replay()
        assert seen == [value + 1]
        assert z.tolist() == [2 * (value + 1)] * 256
    for graph in (first, second, third):
        graph.close()


def test_a_tensor_of_another_pool_is_held(backend: seam.GraphBackend, device: str) -> None:
    """S5: it was given out while this graph was captured, but a replay of this graph does not write it."""
    seen: list[float] = []
    elsewhere = backend.new_pool()
    x = torch.zeros(256, device=device)
    inner, graph, third = (seam.BreakableGraph(backend) for _ in range(3))
    made: list[torch.Tensor] = []

    def capture_inner() -> None:
        with seam.capture(inner, pool=elsewhere):
            made.append(x + 1)

    @seam.eager_break
    def run_inner() -> None:
        if inner.state is seam.GraphState.EMPTY:
            thread = threading.Thread(target=capture_inner)
            thread.start()
            thread.join(60)
        else:
            inner.replay()

    @seam.eager_break
    def body(value: torch.Tensor) -> None:
        seen.append(value[0].item())

    with seam.capture(graph):
        run_inner()
        body(made.pop())
    with seam.capture(third, pool=elsewhere):
        z = x + 100
    for value in (1, 5, 2):
        x.fill_(value)
        third.replay()
        assert z.tolist() == [value + 100] * 256
        seen.clear()
        graph.replay()
        assert seen == [value + 1]
        assert z.tolist() == [value + 100] * 256
    for one in (inner, graph, third):
        one.close()


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int64, torch.bool, torch.complex64, torch.uint8])
def test_views_are_of_the_same_elements(dtype: torch.dtype, inference: bool, backend: seam.GraphBackend, device: str) -> None:
    """Type, shape, strides and offset of what crosses are kept, both ways."""
    seen: list[Any] = []

    @seam.eager_break
    def body(value: torch.Tensor) -> torch.Tensor:
        seen.append((value.dtype, value.shape, value.stride(), value.storage_offset(), value.tolist()))
        return torch.stack((value, value), dim=-1).movedim(0, 1)

    x = torch.zeros(6, 8, dtype=dtype, device=device)
    graph = seam.BreakableGraph(backend)
    with torch.inference_mode(inference), seam.capture(graph):
        given = body((x.clone())[2:, 1::3].t())
        y = given.clone()
    assert given.stride() == (2, 8, 1)
    for value in (0, 1, 3):
        x.copy_((torch.arange(48).view(6, 8) + value) % 2)
        graph.replay()
        crossed = x[2:, 1::3].t()
        assert seen[-1] == (dtype, (3, 4), (3, 8), 17, crossed.tolist())
        assert torch.equal(y, torch.stack((crossed, crossed), dim=-1).movedim(0, 1))
    graph.close()


def test_a_gradient_is_no_reason_to_lose_a_tensor(backend: seam.GraphBackend, device: str) -> None:
    """What requires a gradient carries more than its elements: it is held."""

    @seam.eager_break
    def body(value: torch.Tensor) -> torch.Tensor:
        return value.detach() * (2 if value.requires_grad else 5)

    x = torch.zeros(256, device=device)
    graph = seam.BreakableGraph(backend)
    with seam.capture(graph):
        y = body((x + 1).requires_grad_()) + 0
    assert graph.crossing == seam.CrossingBytes(shared_bytes=1 * KIB, held_bytes=1 * KIB)
    for value in (1, 5, 2):
        x.fill_(value)
        graph.replay()
        assert y.tolist() == [2 * (value + 1)] * 256
    graph.close()


def test_an_argument_that_a_break_stored_stays_readable(backend: seam.GraphBackend, device: str) -> None:
    """Whatever it holds: its memory is the pool's, which lives as long as somebody has a view of it."""
    stored: list[torch.Tensor] = []

    @seam.eager_break
    def body(value: torch.Tensor) -> torch.Tensor:
        stored[:] = [value]
        return value * 2

    x = torch.zeros(1 << 20, device=device)
    graph = seam.BreakableGraph(backend)
    with seam.capture(graph):
        y = body(x + 1) + 0
    for value in (4, 1, 2):
        x.fill_(value)
        graph.replay()
        assert y[0].item() == 2 * (value + 1)
    graph.close()
    del graph, y
    if device == "cuda":
        torch.cuda.empty_cache()
    assert stored[0].clone().numel() == 1 << 20


def test_poison_names_the_break_that_read_what_nobody_writes(backend: seam.GraphBackend, device: str) -> None:
    """M2: ``table`` is filled at capture alone. Whoever takes its memory decides what a replay reads there.

    It is too large for what comes after it to lie on a part of it.

    ``check_crossing="poison"`` poisons what is free before each replay, so that the break is named.
    """
    filled: list[bool] = []

    @seam.eager_break(name="lookup")
    def lookup(table: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        if not filled:
            table.fill_(7)
            filled.append(True)
        return table[at]

    def forward(check: str | None) -> tuple[seam.BreakableGraph, torch.Tensor]:
        filled.clear()
        graph = seam.BreakableGraph(backend)
        at = torch.arange(4, device=device)
        with seam.capture(graph, check_crossing=check):
            y = lookup(torch.empty(1 << 19, device=device), at) + 1
        return graph, y

    graph, _ = forward("poison")
    with pytest.raises(seam.BreakError, match=r"argument of lookup \[0\] holds poison in 524288 of 524288 elements.*S5"):
        graph.replay()
    graph.close()
    graph, _ = forward("nan")
    if backend.name == "cuda":
        graph.replay()  # nobody has taken the memory yet
    graph.close()
    graph, _ = forward(None)
    assert not graph.poisons
    graph.close()


def test_what_is_computed_is_not_taken_for_poison(backend: seam.GraphBackend, device: str) -> None:
    layers = Layers(3)
    rungs = ladder(backend, device, layers, (64, 8), backend.new_pool(), check_crossing="poison")
    assert all(graph.poisons for graph, *_ in rungs)
    check(layers, rungs)
    close(rungs)


def test_a_pool_that_cannot_be_split_is_told_before_the_break_runs(
    backend: seam.GraphBackend, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S5: a segment may take its memory when it runs. Without a break nothing is asked; in mode full nothing splits."""
    ran: list[bool] = []

    @seam.eager_break
    def body(x: torch.Tensor) -> torch.Tensor:
        ran.append(True)
        return x * 2

    def refuse(pool: Any) -> None:
        raise seam.CaptureError("not here", rule="S5", remedy="mode='full'")

    pool, x = backend.new_pool(), torch.ones(4, device=device)
    monkeypatch.setattr(type(pool), "check_split", refuse)
    graph = seam.BreakableGraph(backend)
    with pytest.raises(seam.CaptureError, match=r"not here.*S5"), seam.capture(graph, pool=pool):
        body(x + 1)
    assert not ran
    for mode, forward in (("breakable", lambda: x + 1), ("full", lambda: body(x))):
        graph.reset()
        with seam.capture(graph, pool=pool, mode=mode):
            y = forward()
        graph.replay()
        assert y.tolist() == [2] * 4
    graph.close()


def test_the_simulated_device_knows_no_pool_of_others() -> None:
    with pytest.raises(seam.CaptureError, match=r"knows no pool \(0, 7\).*M1"):
        seam.simulated.SimulatedBackend().new_pool(handle=(0, 7))
