"""Who keeps what alive, what a wrong lifetime does, and what is left when everything is gone."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

from seam.simulated import SimulatedBackend, SimulatedDevice, SimulatedDeviceError, SimulatedPool, SimulatedSegment


def record(
    backend: SimulatedBackend, function: Callable[..., Any], pool: SimulatedPool | None = None
) -> tuple[SimulatedSegment, Any]:
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


def test_a_tensor_that_was_dropped_too_early_gives_wrong_bytes_after_a_second_capture() -> None:
    """The hazard of a private pool: captured memory is read by address, whoever has it now."""
    backend, x = SimulatedBackend(), torch.ones(4)
    pool = backend.new_pool()
    first, crossing = record(backend, lambda: x + 1, pool)
    second, y = record(backend, lambda kept=crossing: kept * 10, pool)
    for segment in (first, second):
        backend.replay_graph(segment)
    assert y.tolist() == [20.0] * 4

    address = crossing.data_ptr()
    del crossing
    third, z = record(backend, lambda: x + 100, pool)
    assert z.data_ptr() == address
    backend.replay_graph(first)
    backend.replay_graph(third)
    backend.replay_graph(second)
    assert y.tolist() == [1010.0] * 4


def test_a_tensor_that_was_dropped_reads_as_poison() -> None:
    backend, x = SimulatedBackend(), torch.ones(4)
    pool = backend.new_pool()
    first, crossing = record(backend, lambda: x + 1, pool)
    second, y = record(backend, lambda kept=crossing: kept * 10, pool)
    backend.replay_graph(first)
    del crossing
    backend.replay_graph(second)
    assert y.isnan().all()


def test_an_intermediate_is_free_for_the_rest_of_its_own_capture() -> None:
    backend, x = SimulatedBackend(), torch.ones(128)
    pool = backend.new_pool()

    def chain() -> torch.Tensor:
        y = x
        for _ in range(10):
            y = y + 1
        return y

    segment, y = record(backend, chain, pool)
    assert pool.reserved_bytes() == 2 * 512, "two blocks take turns"
    backend.replay_graph(segment)
    assert y.tolist() == [11.0] * 128


def test_tensors_from_outside_stay_alive_with_the_graph_or_the_executable() -> None:
    backend = SimulatedBackend()
    weight = torch.full((4,), 3.0)
    segment, y = record(backend, lambda w=weight: w * 2)
    executable = backend.device.instantiate(segment.graph)
    storage = weight.untyped_storage()._weak_ref()
    del weight
    gc.collect()
    backend.destroy_graph(segment)
    backend.device.launch(executable)
    assert y.tolist() == [6.0] * 4
    backend.device.destroy(executable)
    del executable, segment, y
    gc.collect()
    assert torch.UntypedStorage._expired(storage)
    torch.UntypedStorage._free_weak_ref(storage)


def test_everything_is_back_at_zero_when_everything_is_gone() -> None:
    backend, x = SimulatedBackend(), torch.ones(4)
    device, pool = backend.device, backend.new_pool()
    segments = [record(backend, lambda: x + 1, pool) for _ in range(3)]
    for segment, _ in segments:
        backend.replay_graph(segment)
        backend.replay_graph(segment)
    assert (device.live_exec_count, device.peak_exec_count, device.instantiation_count) == (3, 3, 3)
    assert (device.launch_count, device.memory.live_blocks()) == (6, 3)
    for segment, _ in segments:
        backend.destroy_graph(segment)
    assert (device.live_exec_count, device.destroy_count, device.peak_exec_count) == (0, 3, 3)
    assert pool.reserved_bytes() == 3 * 512
    del segments, segment, _, pool
    gc.collect()
    assert (device.memory.live_blocks(), device.memory.total_reserved_bytes()) == (0, 0)


def test_a_segment_keeps_its_pool_until_it_is_destroyed() -> None:
    backend, x = SimulatedBackend(), torch.ones(4)
    segment, y = record(backend, lambda: x + 1)
    del y
    gc.collect()
    assert segment.pool is not None
    assert segment.pool.reserved_bytes() == 512
    backend.destroy_graph(segment)
    gc.collect()
    assert segment.pool is None
    assert backend.device.memory.total_reserved_bytes() == 0


def test_a_discarded_capture_returns_its_memory() -> None:
    backend = SimulatedBackend()
    pool = backend.new_pool()
    with pool.entered():
        backend.begin_capture(pool)
        torch.zeros(4) + 1
        backend.end_capture(discard=True)
    assert pool.allocated_bytes() == 0


def test_a_graph_that_is_never_replayed_has_no_executable() -> None:
    backend = SimulatedBackend()
    segment, _ = record(backend, lambda: torch.zeros(2))
    assert (segment.exec, backend.device.instantiation_count) == (None, 0)
    backend.destroy_graph(segment)
    assert backend.device.destroy_count == 0


def test_destroying_twice_and_use_afterwards_are_errors() -> None:
    backend = SimulatedBackend()
    device = backend.device
    segment, _ = record(backend, lambda: torch.zeros(2))
    graph, executable = segment.graph, device.instantiate(segment.graph)
    other, _ = record(backend, lambda: torch.zeros(2))
    device.destroy(executable)
    backend.destroy_graph(segment)
    calls: list[Callable[[], Any]] = [
        lambda: device.destroy(executable),
        lambda: device.launch(executable),
        lambda: device.upload(executable),
        lambda: device.update(executable, other.graph),
        lambda: backend.destroy_graph(segment),
        lambda: backend.replay_graph(segment),
        lambda: device.instantiate(graph),
        lambda: graph.nodes,
        lambda: graph.destroy(),
        lambda: device.update(device.instantiate(other.graph), graph),
        lambda: device.launch(other.graph),  # type: ignore[arg-type]
        lambda: SimulatedDevice(4096).launch(device.instantiate(other.graph)),
    ]
    for call in calls:
        with pytest.raises(SimulatedDeviceError):
            call()


def test_an_executable_outlives_the_graph_that_it_was_made_from() -> None:
    backend, x = SimulatedBackend(), torch.ones(4)
    segment, y = record(backend, lambda: x + 1)
    executable = backend.device.instantiate(segment.graph)
    backend.destroy_graph(segment)
    backend.device.launch(executable)
    assert y.tolist() == [2.0] * 4


def test_a_graph_changed_after_it_was_instantiated_does_not_change_the_executable() -> None:
    device, calls = SimulatedDevice(4096), []
    graph = device.new_graph()
    graph.add_node("host", callback=lambda: calls.append(0))
    executable = device.instantiate(graph)
    graph.add_node("host", callback=lambda: calls.append(1))
    device.launch(executable)
    assert calls == [0]


def test_a_graph_with_memory_nodes_has_one_executable_at_most() -> None:
    device = SimulatedDevice(4096)
    graph = device.new_graph()
    graph.add_node("mem_alloc", size_bytes=512)
    executable = device.instantiate(graph)
    with pytest.raises(SimulatedDeviceError, match=r"memory nodes.*rule D11"):
        device.instantiate(graph)
    device.destroy(executable)
    device.launch(device.instantiate(graph))


def test_a_launch_on_a_captured_stream_is_refused() -> None:
    backend, x = SimulatedBackend(), torch.ones(4)
    segment, _ = record(backend, lambda: x + 1)
    pool = backend.new_pool()
    with pool.entered():
        backend.begin_capture(pool)
        with pytest.raises(SimulatedDeviceError, match="being captured"):
            backend.replay_graph(segment)
        backend.end_capture(discard=True)
    backend.replay_graph(segment)


def test_a_node_that_fails_on_launch_is_named() -> None:
    backend, index = SimulatedBackend(), torch.tensor([0])
    segment, _ = record(backend, lambda: torch.nn.functional.embedding(index, torch.zeros(2, 2)))
    index.fill_(5)
    with pytest.raises(SimulatedDeviceError, match=r"node 1 \(aten::embedding<float32>\) failed"):
        backend.replay_graph(segment)
    index.fill_(1)
    backend.replay_graph(segment)


def test_nodes_run_in_creation_order_where_edges_allow_it_and_along_edges_otherwise() -> None:
    device, calls = SimulatedDevice(4096), []
    graph = device.new_graph()
    for name in "abcd":
        graph.add_node("host", callback=lambda name=name: calls.append(name))
    graph.add_edge(3, 0)
    device.launch(device.instantiate(graph))
    assert "".join(calls) == "bcda"
    graph.add_edge(0, 3)
    with pytest.raises(SimulatedDeviceError, match="cycle"):
        device.instantiate(graph)


def test_child_and_conditional_graphs_run_inside() -> None:
    device, calls = SimulatedDevice(4096), []
    body, graph = device.new_graph(), device.new_graph()
    body.add_node("host", callback=lambda: calls.append("body"))
    wanted = [False]
    graph.add_node("conditional", graph=body, condition=lambda: wanted[0])
    graph.add_node("child_graph", graph=body)
    executable = device.instantiate(graph)
    device.launch(executable)
    assert calls == ["body"]
    wanted[0] = True
    device.launch(executable)
    assert calls == ["body"] * 3


@pytest.mark.parametrize(
    "add",
    [
        lambda graph: graph.add_node("kernel"),
        lambda graph: graph.add_node("memcopy"),
        lambda graph: graph.add_node("memcpy", target=torch.zeros(1)),
        lambda graph: graph.add_node("memcpy", target=torch.zeros(1), source=torch.zeros(1), size_bytes=5),
        lambda graph: graph.add_node("memcpy", target=torch.zeros(1), source=torch.zeros(1), direction="sideways"),
        lambda graph: graph.add_node("memset", target=torch.zeros(1), size_bytes=5),
        lambda graph: graph.add_node("memset", target=torch.zeros(1), value=256),
        lambda graph: graph.add_node("memset", target=torch.zeros(4), size_bytes=4, height=2, pitch_bytes=2),
        lambda graph: graph.add_edge(0, 0),
        lambda graph: graph.add_edge(0, 7),
        lambda graph: [graph.add_edge(0, 1), graph.add_edge(0, 1)],
    ],
)
def test_a_graph_is_checked_as_it_is_built(add: Callable[[Any], Any]) -> None:
    graph = SimulatedDevice(4096).new_graph()
    graph.add_node("empty")
    graph.add_node("empty")
    with pytest.raises(ValueError, match=r".+"):
        add(graph)


def in_threads(count: int, work: Callable[[int], None]) -> None:
    errors: list[BaseException] = []

    def guarded(index: int) -> None:
        try:
            work(index)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(index,)) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not errors, errors


def test_threads_capture_and_replay_side_by_side() -> None:
    backend, meet = SimulatedBackend(), threading.Barrier(4)

    def work(index: int) -> None:
        x, pool = torch.zeros(16), backend.new_pool()
        for round_ in range(5):
            with pool.entered():
                backend.begin_capture(pool)
                meet.wait(30)
                y = (x + index) * 2
                meet.wait(30)
                segment = backend.end_capture()
            assert segment is not None
            assert len(segment.graph.nodes) == 2
            x.fill_(round_)
            backend.replay_graph(segment)
            assert y.tolist() == [(round_ + index) * 2.0] * 16
            backend.destroy_graph(segment)

    in_threads(4, work)
    assert (backend.device.live_exec_count, backend.device.destroy_count) == (0, 20)


def test_another_thread_is_not_recorded_and_cannot_capture_into_the_same_pool() -> None:
    backend, x = SimulatedBackend(), torch.ones(2)
    pool = backend.new_pool()

    def other(_: int) -> None:
        assert (x + 1).sum().item() == 4.0
        with pool_current(pool), pytest.raises(SimulatedDeviceError, match="another capture"):
            backend.begin_capture(pool)

    def both() -> torch.Tensor:
        in_threads(1, other)
        return x + 2

    segment, _ = record(backend, both, pool)
    assert len(segment.graph.nodes) == 1


def pool_current(pool: SimulatedPool) -> Any:
    from seam.simulated import stream

    return stream(pool.stream)


def test_one_executable_serves_threads_one_at_a_time_and_the_counts_hold() -> None:
    device, running, overlaps = SimulatedDevice(1 << 20), [0], []
    graph = device.new_graph()

    def busy() -> None:
        running[0] += 1
        overlaps.append(running[0])
        running[0] -= 1

    graph.add_node("host", callback=busy)
    shared = device.instantiate(graph)

    def work(_: int) -> None:
        for _ in range(50):
            device.launch(shared)
            assert device.update(shared, graph).accepted
            own = device.instantiate(graph)
            device.destroy(own)

    in_threads(4, work)
    assert overlaps == [1] * 200
    assert (device.live_exec_count, device.launch_count, device.update_count) == (1, 200, 200)


def test_an_executable_may_be_updated_and_destroyed_while_it_runs() -> None:
    device, calls = SimulatedDevice(1 << 20), []
    one, two = device.new_graph(), device.new_graph()
    executable = device.instantiate(two)

    def meddle() -> None:
        calls.append("one")
        assert device.update(executable, two).accepted
        device.destroy(executable)

    for graph, first, second in ((one, meddle, "tail of one"), (two, lambda: calls.append("two"), "tail of two")):
        graph.add_node("host", callback=first)
        graph.add_node("host", callback=lambda second=second: calls.append(second), after=(0,))
    executable = device.instantiate(one)
    device.launch(executable)
    assert calls == ["one", "tail of one"]
