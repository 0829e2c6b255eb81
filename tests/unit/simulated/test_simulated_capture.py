"""What a capture records, what it refuses, and what is left when it fails."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch

from seam.backend import GraphBackend, Pool
from seam.errors import SeamError
from seam.simulated import (
    HostReadError,
    SimulatedBackend,
    SimulatedDevice,
    SimulatedDeviceError,
    SimulatedSegment,
    Stream,
    default_stream,
    stream,
)


def record(backend: SimulatedBackend, function: Callable[..., Any], pool: Any = None) -> tuple[SimulatedSegment, Any]:
    pool = pool or backend.new_pool()
    with pool.entered():
        backend.begin_capture(pool)
        try:
            result = function()
        except BaseException:
            backend.end_capture(discard=True)
            raise
        segment = backend.end_capture()
    assert segment is not None
    return segment, result


def kinds(segment: SimulatedSegment) -> list[str]:
    return [node.kind for node in segment.graph.nodes]


def test_it_is_a_seam_backend() -> None:
    backend = SimulatedBackend()
    assert isinstance(backend, GraphBackend)
    assert isinstance(backend.new_pool(), Pool)
    assert backend.name == "simulated"


X = torch.arange(6.0)
NODES: dict[str, tuple[Callable[[], Any], list[str]]] = {
    "view": (lambda: X.view(2, 3).t()[0].unsqueeze(0).expand(4, 2), []),
    "reshape of a transpose copies": (lambda: X.view(2, 3).t().reshape(-1), ["kernel"]),
    "reshape that is a view": (lambda: X.reshape(3, 2), []),
    "contiguous already": (lambda: X.contiguous(), []),
    "empty": (lambda: torch.empty(3) is torch.empty_like(X), []),
    "no elements": (lambda: X[:0] + 1, []),
    "clone": (lambda: X.clone(), ["memcpy"]),
    "copy_": (lambda: torch.empty(6).copy_(X), ["memcpy"]),
    "copy_ with a cast": (lambda: torch.empty(6, dtype=torch.float64).copy_(X), ["kernel"]),
    "copy_ that spreads": (lambda: torch.empty(2, 6).copy_(X), ["kernel"]),
    "copy_ into columns": (lambda: torch.empty(3, 2)[:, 0].copy_(X[:3]), ["kernel"]),
    "zeros": (lambda: torch.zeros(3), ["memset"]),
    "zeros_like": (lambda: torch.zeros_like(X), ["memset"]),
    "zero_": (lambda: torch.empty(3).zero_(), ["memset"]),
    "fill_ with 0": (lambda: torch.empty(3).fill_(0), ["memset"]),
    "fill_ with -0.0": (lambda: torch.empty(3).fill_(-0.0), ["kernel"]),
    "fill_ with 1": (lambda: torch.empty(3).fill_(1), ["kernel"]),
    "zero_ of a column": (lambda: torch.empty(3, 2)[:, 0].zero_(), ["kernel"]),
    "meta tensors": (lambda: torch.empty(3, device="meta") + 1, []),
    "a constant": (lambda: torch.tensor([1.0, 2.0]), []),
    "nothing": (lambda: None, []),
}


@pytest.mark.parametrize("inference", [True, False])
@pytest.mark.parametrize("case", NODES)
def test_nodes_by_kind(case: str, inference: bool) -> None:
    function, expected = NODES[case]
    with torch.inference_mode(inference):
        assert kinds(record(SimulatedBackend(), function)[0]) == expected


@pytest.mark.parametrize("inference", [True, False])
def test_composite_calls_are_recorded_as_what_they_are_made_of(inference: bool) -> None:
    x, w, b = torch.randn(2, 3), torch.randn(4, 3), torch.randn(4)
    with torch.inference_mode(inference):
        segment, _ = record(SimulatedBackend(), lambda: torch.nn.functional.linear(x, w, b))
    assert [node.function for node in segment.graph.nodes] == ["aten::addmm<float32>[64x8]"]


def test_products_of_two_batch_sizes_differ_in_function_and_cluster() -> None:
    backend, w = SimulatedBackend(), torch.randn(8, 8)
    small, large = (record(backend, lambda n=n: torch.randn(n, 8) is None or torch.ones(n, 8) @ w)[0] for n in (8, 64))
    a, b = (segment.graph.nodes[-1] for segment in (small, large))
    assert (a.function, a.cluster) == ("aten::mm<float32>[64x8]", (4, 1, 1))
    assert (b.function, b.cluster) == ("aten::mm<float32>[64x64]", (1, 2, 1))
    assert a.function_id != b.function_id
    assert all(extent % max(1, size) == 0 for extent, size in zip(b.grid, b.cluster, strict=True))


def test_function_ids_are_equal_for_equal_functions_only() -> None:
    segment, _ = record(SimulatedBackend(), lambda: (X + 1, X + 2, X * 2))
    first, second, third = (node.function_id for node in segment.graph.nodes)
    assert first == second != third
    assert 0 not in (first, third)


def test_work_on_one_stream_is_a_chain() -> None:
    segment, _ = record(SimulatedBackend(), lambda: ((X + 1) * 2).exp())
    assert segment.graph.edges == ((0, 1, (0, 0, 0)), (1, 2, (0, 0, 0)))


def test_parameters_can_be_exported_as_json() -> None:
    x = torch.zeros(2, 3)
    segment, y = record(SimulatedBackend(), lambda: torch.add(x, 1, alpha=2))
    told = json.loads(json.dumps(segment.graph.describe()))
    (node,) = told["nodes"]
    assert node["params"]["args"][0] == {
        "address": x.data_ptr(),
        "dtype": "float32",
        "size": [2, 3],
        "stride": [3, 1],
        "storage_bytes": 24,
    }
    assert node["params"]["args"][1] == "1"
    assert node["params"]["kwargs"] == {"alpha": "2"}
    assert node["params"]["outputs"][0]["address"] == y.data_ptr()
    assert (told["edges"], told["draws"]) == ([], False)


HOST_READS: dict[str, Callable[[], Any]] = {
    "item": lambda: X.sum().item(),
    "bool": lambda: bool(X[0] > 0),
    "equal": lambda: torch.equal(X, X + 1),
    "allclose": lambda: torch.allclose(X, X),
    "nonzero": lambda: X.nonzero(),
    "masked_select": lambda: X.masked_select(X > 2),
    "boolean index": lambda: X[X > 2],
    "boolean index_put": lambda: X.clone().index_put_((X > 2,), torch.zeros(3)),
    "unique": lambda: torch.unique(X),
    "repeat_interleave": lambda: torch.repeat_interleave(X[:2], torch.tensor([1, 2])),
    "bincount": lambda: torch.bincount(torch.zeros(3, dtype=torch.int64)),
}


@pytest.mark.parametrize("inference", [True, False])
@pytest.mark.parametrize("call", HOST_READS)
def test_reading_data_on_the_host_is_refused_and_invalidates(call: str, inference: bool) -> None:
    backend = SimulatedBackend()
    pool = backend.new_pool()
    with torch.inference_mode(inference), pool.entered():
        backend.begin_capture(pool)
        with pytest.raises(HostReadError, match=r"rule S7.*@seam\.eager_break") as caught:
            HOST_READS[call]()
        assert isinstance(caught.value, SeamError)
        with pytest.raises(SimulatedDeviceError, match="invalidated before"):
            X + 1
        with pytest.raises(HostReadError):
            backend.end_capture()
    assert kinds(record(backend, lambda: X + 1, pool)[0]) == ["kernel"]


def test_an_invalid_capture_may_be_discarded() -> None:
    backend = SimulatedBackend()
    pool = backend.new_pool()
    with pool.entered():
        backend.begin_capture(pool)
        with pytest.raises(HostReadError):
            X.sum().item()
        assert backend.end_capture(discard=True) is None
    assert (X + 1).tolist() == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    assert kinds(record(backend, lambda: X + 1, pool)[0]) == ["kernel"]


def test_an_error_of_the_captured_code_invalidates_nothing() -> None:
    five = torch.ones(5)

    def clumsy() -> torch.Tensor:
        with pytest.raises(RuntimeError, match="broadcast"):
            X + five
        with pytest.raises(RuntimeError):
            X.add_(five)
        return X * 2

    segment, y = record(SimulatedBackend(), clumsy)
    assert kinds(segment) == ["kernel"]
    assert y.isnan().all()


def test_an_operator_without_a_meta_kernel_is_refused_with_the_remedy() -> None:
    library = torch.library.Library("seam_simulated_test", "FRAGMENT")
    library.define("no_meta(Tensor x) -> Tensor")
    library.define("no_meta_in_place(Tensor(a!) x) -> Tensor(a!)")
    library.impl("no_meta", lambda x: x + 1, "CPU")
    library.impl("no_meta_in_place", lambda x: x.add_(1), "CPU")
    operators = torch.ops.seam_simulated_test
    backend = SimulatedBackend()
    pool = backend.new_pool()
    with pool.entered():
        backend.begin_capture(pool)
        with pytest.raises(SimulatedDeviceError, match=r"no meta kernel.*register_fake"):
            operators.no_meta(X)
        backend.end_capture(discard=True)
    x = torch.zeros(2)
    segment, _ = record(backend, lambda: operators.no_meta_in_place(x))
    assert x.tolist() == [0.0, 0.0]
    backend.replay_graph(segment)
    assert x.tolist() == [1.0, 1.0]


@pytest.mark.parametrize(
    "call",
    [
        lambda: torch.rand(2, generator=torch.Generator()),
        lambda: X.to_sparse() + X.to_sparse(),
        lambda: torch.eye(2).to_sparse(),
        lambda: torch.ones(3).resize_(5),
    ],
    ids=["generator", "sparse", "to_sparse", "resize of contents"],
)
def test_what_a_graph_cannot_hold_is_refused(call: Callable[[], Any]) -> None:
    backend = SimulatedBackend()
    pool = backend.new_pool()
    with pool.entered():
        backend.begin_capture(pool)
        with pytest.raises(SimulatedDeviceError):
            call()
        assert backend.end_capture(discard=True) is None


def test_begin_twice_and_end_without_begin_are_refused() -> None:
    backend, other = SimulatedBackend(), SimulatedBackend()
    pool, second = backend.new_pool(), backend.new_pool()
    with pytest.raises(SimulatedDeviceError, match="no capture open"):
        backend.end_capture()
    with pool.entered():
        backend.begin_capture(pool)
        with pytest.raises(SimulatedDeviceError, match="has a capture open"):
            backend.begin_capture(second)
        with pytest.raises(SimulatedDeviceError, match="no capture open on this device"):
            other.end_capture()
        y = X + 1
        segment = backend.end_capture()
    assert segment is not None
    assert kinds(segment) == ["kernel"]
    assert y.isnan().all()


@pytest.mark.parametrize(
    ("pool_of", "enter", "match"),
    [
        (lambda backend: backend.new_pool(), False, "not the current stream"),
        (lambda backend: backend.new_pool(default_stream()), True, "default stream"),
        (lambda backend: SimulatedBackend().new_pool(), True, "another device"),
    ],
    ids=["stream not current", "default stream", "other device"],
)
def test_a_capture_that_may_not_begin_leaves_nothing_behind(
    pool_of: Callable[[SimulatedBackend], Any], enter: bool, match: str
) -> None:
    backend = SimulatedBackend()
    pool = pool_of(backend)
    with stream(pool.stream if enter else None), pytest.raises(SimulatedDeviceError, match=match):
        backend.begin_capture(pool)
    assert (X + 1)[0].item() == 1.0
    assert kinds(record(backend, lambda: X + 1)[0]) == ["kernel"]


def test_unknown_error_modes_are_refused_and_the_known_taken() -> None:
    backend = SimulatedBackend()
    pool = backend.new_pool()
    with pool.entered():
        with pytest.raises(ValueError, match="global, thread_local, relaxed"):
            backend.begin_capture(pool, capture_error_mode="strict")
        for mode in ("global", "thread_local", "relaxed"):
            backend.begin_capture(pool, capture_error_mode=mode)
            assert backend.end_capture(discard=True) is None


def test_ending_on_another_stream_is_refused_but_ends() -> None:
    backend = SimulatedBackend()
    pool = backend.new_pool()
    with pool.entered():
        backend.begin_capture(pool)
    with pytest.raises(SimulatedDeviceError, match="not current"):
        backend.end_capture()
    assert kinds(record(backend, lambda: X + 1, pool)[0]) == ["kernel"]


def test_a_mode_entered_inside_the_capture_survives_its_end() -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Count(TorchDispatchMode):
        seen = 0

        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            Count.seen += 1
            return function(*args, **(kwargs or {}))

    backend = SimulatedBackend()
    pool = backend.new_pool()
    with pool.entered():
        backend.begin_capture(pool)
        with Count():
            X + 1
            segment = backend.end_capture()
            assert (X + 1)[0] == 1.0
    assert segment is not None
    assert kinds(segment) == ["kernel"]
    assert Count.seen > 2


def test_work_between_two_captures_runs_at_once() -> None:
    backend, x = SimulatedBackend(), torch.ones(2)
    pool = backend.new_pool()
    with pool.entered():
        backend.begin_capture(pool)
        first = x + 1
        one = backend.end_capture()
        between = x + 5
        backend.begin_capture(pool)
        second = between * 2
        two = backend.end_capture()
    assert between.tolist() == [6.0, 6.0]
    for segment in (one, two):
        assert segment is not None
        backend.replay_graph(segment)
    assert (first.tolist(), second.tolist()) == ([2.0, 2.0], [12.0, 12.0])


def test_exhausting_the_memory_says_so_and_can_be_discarded() -> None:
    backend = SimulatedBackend(SimulatedDevice(4096))
    pool = backend.new_pool(Stream())
    with pool.entered():
        backend.begin_capture(pool)
        with pytest.raises(SimulatedDeviceError, match="memory_bytes"):
            torch.zeros(4096)
        backend.end_capture(discard=True)
    assert kinds(record(backend, lambda: X + 1, pool)[0]) == ["kernel"]
