"""What crosses a break: rules S2, S3, S4 and S5."""

from __future__ import annotations

import collections
import dataclasses
import weakref
from typing import Any, NamedTuple

import pytest
import torch

import seam


class Pair(NamedTuple):
    a: torch.Tensor
    b: torch.Tensor


@dataclasses.dataclass(frozen=True)
class Frozen:
    a: torch.Tensor
    b: torch.Tensor
    name: str = "x"


class Plain:
    def __init__(self, a: torch.Tensor, b: torch.Tensor) -> None:
        self.a, self.b, self.note = a, b, None


class Foreign:
    """A type that the seam does not know: no tensor among its fields."""

    def __init__(self, parts: list[torch.Tensor]) -> None:
        self._parts = tuple(parts)

    __slots__ = ("_parts",)


FORMS: dict[str, tuple[Any, Any]] = {
    "tuple": (lambda a, b: (a, b), lambda v: (v[0], v[1])),
    "list": (lambda a, b: [a, b], lambda v: (v[0], v[1])),
    "named tuple": (Pair, lambda v: (v.a, v.b)),
    "dict": (lambda a, b: {"b": b, "a": a}, lambda v: (v["a"], v["b"])),
    "ordered dict": (lambda a, b: collections.OrderedDict(a=a, b=b), lambda v: (v["a"], v["b"])),
    "frozen dataclass": (Frozen, lambda v: (v.a, v.b)),
    "object": (Plain, lambda v: (v.a, v.b)),
    "nested": (lambda a, b: {"x": [a, (b, None)], "n": 3}, lambda v: (v["x"][0], v["x"][1][0])),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_result_is_written_back(form: str, backend: seam.GraphBackend, device: str) -> None:
    """S2: a = 2 (x + 1), b = 3 (x + 1), y = a - b / 3, so y = x + 1 again, at every replay."""
    make, parts = FORMS[form]

    @seam.eager_break
    def body(x: torch.Tensor) -> Any:
        return make(x * 2, x * 3)

    graph = seam.BreakableGraph(backend)
    x = torch.zeros(4, device=device)
    with seam.capture(graph):
        result = body(x + 1)
        assert type(result) is type(make(x, x))
        a, b = parts(result)
        y = a * 10 + b
    for value, expected in ((0, 23), (1, 46), (-1, 0)):
        x.fill_(value)
        graph.replay()
        assert y.tolist() == [expected] * 4
    graph.close()


def test_a_type_that_is_not_known_is_an_error_at_capture(backend: seam.GraphBackend, device: str) -> None:
    graph = seam.BreakableGraph(backend)

    @seam.eager_break
    def body(x: torch.Tensor) -> Foreign:
        return Foreign([x])

    with pytest.raises(seam.BreakError, match=r"Foreign.*S2.*register_output_type"), seam.capture(graph):
        body(torch.zeros(4, device=device))
    assert graph.state is seam.GraphState.FAILED
    graph.close()


def test_a_registered_type_is_written_back(backend: seam.GraphBackend, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("seam.slot._registry", {})
    seam.register_output_type(Foreign, flatten=lambda v: v._parts, rebuild=lambda _, parts: Foreign(list(parts)))
    graph = seam.BreakableGraph(backend)
    x = torch.zeros(4, device=device)

    @seam.eager_break
    def body(value: torch.Tensor) -> Foreign:
        return Foreign([value * 2, value * 3])

    with seam.capture(graph):
        crossed = body(x + 1)
        y = crossed._parts[0] + crossed._parts[1]
    for value, expected in ((0, 5), (1, 10), (2, 15)):
        x.fill_(value)
        graph.replay()
        assert y.tolist() == [expected] * 4
    graph.close()


def test_no_writeback_must_be_asked_for_by_name(backend: seam.GraphBackend, device: str) -> None:
    calls = 0

    @seam.eager_break
    def body(x: torch.Tensor) -> Any:
        nonlocal calls
        calls += 1
        return seam.NoWriteback(object())

    graph = seam.BreakableGraph(backend)
    x = torch.zeros(4, device=device)
    with seam.capture(graph):
        a = x + 1
        assert not isinstance(body(a), seam.NoWriteback)
        y = a * 2
    for value, expected in ((0, 2), (1, 4), (2, 6)):
        x.fill_(value)
        graph.replay()
        assert y.tolist() == [expected] * 4
    assert calls == 4
    graph.close()


def test_what_was_without_writeback_stays_so(backend: seam.GraphBackend, device: str) -> None:
    answers: list[Any] = [seam.NoWriteback(), 1]

    @seam.eager_break
    def body() -> Any:
        return answers.pop(0)

    graph = seam.BreakableGraph(backend)
    with seam.capture(graph):
        torch.zeros(4, device=device).add_(1)
        body()
    with pytest.raises(seam.BreakError, match="NoWriteback"):
        graph.replay()
    graph.close()


CHANGES: dict[str, tuple[Any, Any, str]] = {
    "dtype": (lambda t: t * 1, lambda t: t.double(), "float64"),
    "shape": (lambda t: t * 1, lambda t: t[:2], r"\(2,\)"),
    "shape that would spread": (lambda t: t * 1, lambda t: t[:1], r"\(1,\)"),
    "no tensor": (lambda t: t * 1, lambda t: 3, "int"),
    "structure": (lambda t: (t * 1, t + 1), lambda t: [t, t + 1], "list"),
    "count": (lambda t: (t * 1, t + 1), lambda t: (t,), "1 parts"),
    "keys": (lambda t: {"a": t * 1}, lambda t: {"b": t}, r"\['b'\]"),
    "second of two": (lambda t: (t * 1, t * 2), lambda t: (t * 1, t.double()), "float64"),
    "scalar": (lambda t: (t * 1, 3), lambda t: (t * 1, 4), "4; the next segment baked 3"),
    "NoWriteback": (lambda t: t * 1, lambda t: seam.NoWriteback(t), "NoWriteback"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_result_that_no_longer_agrees_is_refused_before_a_byte_moves(
    change: str, backend: seam.GraphBackend, device: str
) -> None:
    """S4, and S2 for scalars, which are baked."""
    first, later, said = CHANGES[change]
    form = first
    x = torch.full((4,), 5.0, device=device)

    @seam.eager_break(name="attention")
    def body(value: torch.Tensor) -> Any:
        return form(value)

    graph = seam.BreakableGraph(backend)
    with seam.capture(graph):
        result = body(x * 1)
    graph.replay()
    held = graph.breaks[0].slot.destination
    tensors = list(held.values()) if isinstance(held, dict) else list(held) if isinstance(held, tuple) else [held]
    before = [part.clone() for part in tensors if isinstance(part, torch.Tensor)]
    form = later
    x.fill_(7)
    with pytest.raises(seam.BreakError, match=rf"attention.*{said}"):
        graph.replay()
    after = [part for part in tensors if isinstance(part, torch.Tensor)]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert result is not None
    graph.close()


def test_a_result_on_another_device_is_refused(device: str) -> None:
    """S4: a tensor on the meta device has the captured dtype and shape, but no byte to move."""
    destination = torch.ones(4, device=device)
    with pytest.raises(seam.BreakError, match=r"on meta; the next segment baked.*S4"):
        seam.copy_output(destination, torch.zeros(4, device="meta"))
    assert destination.tolist() == [1] * 4


def test_two_breaks_of_one_capture_may_not_share_a_slot(backend: seam.GraphBackend, device: str) -> None:
    """S3: by the slot's identity; a slot with an equal name is another slot."""
    shared = seam.BreakSlot("shared")

    @seam.eager_break(slot=shared)
    def body(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @seam.eager_break(slot=seam.BreakSlot("shared"))
    def other(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    x = torch.zeros(4, device=device)
    graph = seam.BreakableGraph(backend)
    with pytest.raises(seam.BreakError, match=r"shared.*S3"), seam.capture(graph):
        body(body(x))
    with seam.capture(graph):
        y = other(body(x))
    x.fill_(3)
    graph.replay()
    assert y.tolist() == [12] * 4
    graph.close()


def test_a_later_capture_may_use_the_slot_again(backend: seam.GraphBackend, device: str) -> None:
    shared = seam.BreakSlot("shared")

    @seam.eager_break(slot=shared)
    def body(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    graphs = []
    for size in (4, 4, 2):
        x = torch.zeros(size, device=device)
        graph = seam.BreakableGraph(backend)
        with seam.capture(graph):
            crossed = body(x + 1)
            y = crossed + size
        graphs.append((graph, x, crossed, y, size))
    assert graphs[0][2].data_ptr() == graphs[1][2].data_ptr() != graphs[2][2].data_ptr()
    for value in (0, 5, 1):
        for graph, x, _, y, size in graphs:
            x.fill_(value)
            graph.replay()
            assert y.tolist() == [2 * (value + 1) + size] * size
    for graph, *_ in graphs:
        graph.close()


def test_a_slot_that_is_shared_has_memory_of_its_own(backend: seam.GraphBackend, device: str) -> None:
    """S3: graphs of other pools write there, so no pool may give it to anyone."""
    shared = seam.BreakSlot("shared")

    @seam.eager_break(slot=shared)
    def body(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    x = torch.zeros(256, device=device)
    pool = backend.new_pool()
    first, second, third = (seam.BreakableGraph(backend) for _ in range(3))
    with seam.capture(first, pool=pool):
        body(x)
    with seam.capture(second):
        y = body(x) + 1
    with seam.capture(third, pool=pool):
        z = x + 100
    for value in (1, 5, 2):
        x.fill_(value)
        third.replay()
        second.replay()
        assert y.tolist() == [2 * value + 1] * 256
        assert z.tolist() == [value + 100] * 256
    for graph in (first, second, third):
        graph.close()


def test_the_destination_outlives_the_frame_that_made_it(backend: seam.GraphBackend, device: str) -> None:
    """S3, S5: the break's own tensors are long gone, and everything freed was handed out again."""
    x = torch.zeros(1024, device=device)
    graph = seam.BreakableGraph(backend)

    @seam.eager_break
    def body(value: torch.Tensor) -> torch.Tensor:
        return value * 2

    def forward() -> torch.Tensor:
        return body(x + 1) + 3

    with seam.capture(graph):
        y = forward()
    for value, expected in ((10, 25), (0, 5), (1, 7)):
        churn = [torch.full((1024,), -1.0, device=device) for _ in range(64)]
        x.fill_(value)
        graph.replay()
        assert y.tolist() == [expected] * 1024
        assert all((part == -1).all() for part in churn)
    graph.close()


def test_a_break_that_returns_one_of_two_buffers_leaves_the_other_alone(backend: seam.GraphBackend, device: str) -> None:
    """The destination is the seam's own: writing back must not overwrite a buffer of the program's."""
    buffers = [torch.zeros(4, device=device), torch.zeros(4, device=device)]
    turn = 0

    @seam.eager_break
    def body(x: torch.Tensor) -> torch.Tensor:
        nonlocal turn
        turn += 1
        return buffers[turn % 2].copy_(x)

    x = torch.zeros(4, device=device)
    graph = seam.BreakableGraph(backend)
    with seam.capture(graph):
        y = body(x + 1) * 10
    for value, kept in ((1, None), (2, 2), (3, 3), (4, 4)):
        x.fill_(value)
        graph.replay()
        assert y.tolist() == [(value + 1) * 10] * 4
        if kept is not None:
            assert buffers[(turn + 1) % 2].tolist() == [kept] * 4  # what the replay before wrote, untouched
    graph.close()


def test_a_view_of_an_argument_stays_a_view_of_it(backend: seam.GraphBackend, device: str) -> None:
    @seam.eager_break
    def first_half(x: torch.Tensor) -> torch.Tensor:
        return x[:2]

    x = torch.zeros(4, device=device)
    graph = seam.BreakableGraph(backend)
    with seam.capture(graph):
        a = x + 1
        first_half(a).mul_(10)
        y = a + 0
    for value, expected in ((0, [10, 10, 1, 1]), (1, [20, 20, 2, 2]), (4, [50, 50, 5, 5])):
        x.fill_(value)
        graph.replay()
        assert y.tolist() == expected
    graph.close()


def test_results_that_are_swapped_destinations_are_both_right(backend: seam.GraphBackend, device: str) -> None:
    """copy_output reads every source that it would overwrite before it writes."""
    a, b = torch.full((4,), 1.0, device=device), torch.full((4,), 2.0, device=device)
    seam.copy_output((a, b), (b, a))
    assert a.tolist() == [2] * 4
    assert b.tolist() == [1] * 4


def test_strides_of_a_result_are_kept(backend: seam.GraphBackend, device: str) -> None:
    seen: list[tuple[int, ...]] = []

    @seam.eager_break
    def body(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x.view(2, 3) * 2
        return y.t(), y[:, ::2], y[:1].expand(5, 3)

    x = torch.arange(6.0, device=device)
    graph = seam.BreakableGraph(backend)
    with seam.capture(graph):
        parts = body(x * 1)
        seen += [part.stride() for part in parts]
        outputs = [part + 0 for part in parts]
    assert seen[:2] == [(1, 3), (3, 2)]
    for start in (0, 1, 10):
        x.copy_(torch.arange(start, start + 6.0))
        graph.replay()
        y = torch.arange(start, start + 6.0).view(2, 3) * 2
        for output, expected in zip(outputs, (y.t(), y[:, ::2], y[:1].expand(5, 3)), strict=True):
            assert torch.equal(output.cpu(), expected)
    graph.close()


@pytest.mark.parametrize("inference", [True, False])
def test_a_break_runs_under_the_modes_of_its_capture(inference: bool, backend: seam.GraphBackend, device: str) -> None:
    seen: list[tuple[bool, bool]] = []

    @seam.eager_break
    def body(x: torch.Tensor) -> torch.Tensor:
        seen.append((torch.is_inference_mode_enabled(), torch.is_grad_enabled()))
        return x * 2

    x = torch.zeros(4, device=device)
    graph = seam.BreakableGraph(backend)
    with torch.inference_mode(inference), torch.set_grad_enabled(False), seam.capture(graph):
        y = body(x + 1) + 3
    x.fill_(10)
    graph.replay()
    with torch.inference_mode():
        graph.replay()
    assert seen == [(inference, False)] * 3
    assert y.tolist() == [25] * 4
    graph.close()


def test_bucket_b_does_not_take_what_bucket_a_crosses_a_break_with(backend: seam.GraphBackend, device: str) -> None:
    """S5 (the public case: a later bucket re-carves the pool under an earlier one): A, B on the same pool, A again."""

    @seam.eager_break
    def attention(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return q * 2 + k

    pool = backend.new_pool()
    buckets = {}
    for size in (256, 128, 512):
        x = torch.zeros(size, device=device)
        graph = seam.BreakableGraph(backend)
        with seam.capture(graph, pool=pool):
            y = attention(x + 1, x * 3) - 1  # the temporaries die inside the capture
        buckets[size] = (graph, x, y)
    for value in (0, 2, 7):
        for size in (256, 512, 128, 256):
            graph, x, y = buckets[size]
            x.fill_(value)
            graph.replay()
            assert y.tolist() == [2 * (value + 1) + 3 * value - 1] * size
    for graph, _, _ in buckets.values():
        graph.close()


@pytest.mark.parametrize("written_back", [True, False])
def test_the_arguments_of_a_break_stay_its_own(written_back: bool, backend: seam.GraphBackend, device: str) -> None:
    """S5: the break sees x + 1 at each replay, also where a graph of the same pool has the memory in between."""
    seen: list[float] = []

    @seam.eager_break
    def body(q: torch.Tensor) -> Any:
        seen.append(q[0].item())
        return q * 2 if written_back else seam.NoWriteback()

    pool = backend.new_pool()
    x = torch.zeros(256, device=device)
    graph, other = seam.BreakableGraph(backend), seam.BreakableGraph(backend)
    with seam.capture(graph, pool=pool):
        body(x + 1)
    with seam.capture(other, pool=pool):
        z = x + 100
    seen.clear()
    for value in (1, 5, 2):
        x.fill_(value)
        other.replay()
        assert z.tolist() == [value + 100] * 256
        graph.replay()
    assert seen == [2, 6, 3]
    graph.close()
    other.close()


@pytest.mark.parametrize("own_pool", [True, False])
def test_a_replay_inside_a_break_does_not_write_over_what_crosses_it(
    own_pool: bool, backend: seam.GraphBackend, device: str
) -> None:
    """S5: ``middle`` crosses the break without being an argument; a later graph of the pool has its memory.

    Replayed inside the break that one is refused, before a byte is written; from a pool of its own it is right.
    """
    inner: list[seam.BreakableGraph] = []

    @seam.eager_break
    def note() -> None:
        for one in inner:
            one.replay()

    def forward() -> torch.Tensor:
        middle = x + 1
        note()
        return middle * 10

    pool = backend.new_pool()
    x = torch.zeros(256, device=device)
    graph, other = seam.BreakableGraph(backend), seam.BreakableGraph(backend)
    with seam.capture(graph, pool=pool):
        y = forward()
    with seam.capture(other, pool=None if own_pool else pool):
        z = x + 100
    for value in (1, 5, 2):
        x.fill_(value)
        inner[:] = [other]
        if own_pool:
            graph.replay()
            assert z.tolist() == [value + 100] * 256
        else:
            with pytest.raises(seam.ReplayError, match=r"same pool.*S5.*pool of its own"):
                graph.replay()
            inner.clear()
            graph.replay()
        assert y.tolist() == [(value + 1) * 10] * 256
    other.replay()  # outside of the break it may be replayed, also after a failed replay
    assert z.tolist() == [102] * 256
    graph.close()
    other.close()


def test_the_value_of_a_no_writeback_lives_as_long_as_the_graph(backend: seam.GraphBackend, device: str) -> None:
    """S5: a segment may bake its address."""
    made: list[weakref.ref[torch.Tensor]] = []

    @seam.eager_break
    def body() -> Any:
        value = torch.full((4,), 7.0, device=device)
        made.append(weakref.ref(value))
        return seam.NoWriteback(value)

    def forward() -> torch.Tensor:
        return body() * 2

    graph = seam.BreakableGraph(backend)
    with seam.capture(graph):
        y = forward()
    assert made[0]() is not None
    for _ in range(3):
        graph.replay()
        assert y.tolist() == [14] * 4
    graph.close()
    assert made[0]() is None


def test_the_slot_refuses_layouts_without_one_storage() -> None:
    sparse = torch.eye(3).to_sparse()
    with pytest.raises(seam.BreakError, match="layout"):
        seam.BreakSlot("s").bind(sparse, kept=set())
