"""Which memory a graph of the simulated device reaches, and its bytes: held, put back, compared."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

import seam
from graphdedup.driver.memory import Region, Unverifiable, merged
from graphdedup.driver.simulated_memory import SimulatedGraphMemory
from seam.simulated import SimulatedBackend, SimulatedDevice


@pytest.fixture
def device() -> SimulatedDevice:
    return SimulatedDevice(1 << 20)


@pytest.fixture
def memory(device: SimulatedDevice) -> SimulatedGraphMemory:
    return SimulatedGraphMemory(device)


def region_of(tensor: torch.Tensor) -> Region:
    storage = tensor.untyped_storage()
    return Region(storage.data_ptr(), storage.nbytes())


def placed(device: SimulatedDevice, size: int) -> torch.Tensor:
    return device.memory.place((size,), (1,), torch.float32, pool=0, stream=0)


def nothing(*_: object) -> None:
    pass


def test_inputs_outputs_and_weights_are_reached_in_the_device_and_outside(device: SimulatedDevice) -> None:
    x, weight = torch.ones(4), torch.ones(6)
    backend = SimulatedBackend(device)
    graph = seam.BreakableGraph(backend)
    with seam.capture(graph):
        y = x + weight[2:]
    raw = graph.segments[0].graph
    assert set(SimulatedGraphMemory(device).regions(raw)) == {region_of(x), region_of(weight), region_of(y)}
    assert region_of(weight).size_bytes == 24, "the whole storage, not the view"
    graph.close()


def test_every_kind_of_node_is_read_child_graphs_too(device: SimulatedDevice, memory: SimulatedGraphMemory) -> None:
    a, b, c, d, e, f = (placed(device, 4) for _ in range(6))
    child = device.new_graph()
    child.add_kernel("inner", nothing, ([a], {"out": b}))
    raw = device.new_graph()
    raw.add_node("child_graph", graph=child)
    raw.add_node("memcpy", target=c, source=d, size_bytes=8)
    raw.add_node("memset", target=e, size_bytes=2, height=3, pitch_bytes=4)
    raw.add_node("empty")
    expected = [Region(each.data_ptr(), size) for each, size in ((a, 16), (b, 16), (c, 8), (d, 8), (e, 2 + 2 * 4))]
    assert sorted(memory.regions(raw)) == sorted(expected)
    assert region_of(f) not in memory.regions(raw)


@pytest.mark.parametrize("kind", ["host", "mem_alloc", "conditional"])
def test_a_graph_that_does_more_than_write_memory_is_refused(
    kind: str, device: SimulatedDevice, memory: SimulatedGraphMemory
) -> None:
    raw, child = device.new_graph(), device.new_graph()
    more = {
        "host": {"callback": nothing},
        "mem_alloc": {"size_bytes": 8},
        "conditional": {"graph": child, "condition": lambda: True},
    }
    raw.add_node("empty")
    raw.add_node(kind, **more[kind])  # type: ignore[arg-type]
    outer = device.new_graph()
    outer.add_node("child_graph", graph=raw)
    for graph in (raw, outer):
        with pytest.raises(Unverifiable, match=rf"node 1 is of kind {kind}.*Remedy"):
            memory.regions(graph)


def test_ranges_that_share_a_byte_become_one_and_neighbours_stay_two() -> None:
    spans = {Region(0, 10): ("a",), Region(8, 4): ("b",), Region(12, 4): ("c",), Region(30, 0): ("d",), Region(2, 3): ("e",)}
    assert merged(spans) == {Region(0, 12): ("a", "e", "b"), Region(12, 4): ("c",)}


def test_bytes_are_held_compared_and_put_back(device: SimulatedDevice, memory: SimulatedGraphMemory) -> None:
    x, y = placed(device, 2).fill_(1), torch.full((3,), 7, dtype=torch.uint8)
    raw = device.new_graph()
    raw.add_kernel("reads", nothing, (x, y))
    saved = memory.save(memory.regions(raw))
    assert memory.differing(saved) == {}
    x[1] = 2  # 0x3f800000 becomes 0x40000000: two bytes
    y[:] = torch.tensor([7, 8, 9])
    assert memory.differing(saved) == {region_of(x): 2, region_of(y): 2}
    memory.restore({region_of(y): saved[region_of(y)]})
    assert (x.tolist(), y.tolist()) == ([1, 2], [7, 7, 7])
    memory.restore(saved)
    assert x.tolist() == [1, 1]
    assert memory.differing(saved) == {}


def test_a_storage_that_was_resized_is_read_where_it_is_now(device: SimulatedDevice, memory: SimulatedGraphMemory) -> None:
    x = torch.zeros(2)
    raw = device.new_graph()
    raw.add_kernel("reads", nothing, (x,))
    x.untyped_storage().resize_(1 << 16)
    assert memory.regions(raw) == (region_of(x),)
    assert region_of(x).size_bytes == 1 << 16


def test_what_is_held_keeps_the_memory_alive(device: SimulatedDevice, memory: SimulatedGraphMemory) -> None:
    x = torch.zeros(4)
    alive = weakref.ref(x.untyped_storage())
    raw = device.new_graph()
    raw.add_kernel("reads", nothing, (x,))
    saved = memory.save(memory.regions(raw))
    raw.destroy()
    del x, raw
    gc.collect()
    assert alive() is not None
    memory.restore(saved)
    del saved
    gc.collect()
    assert alive() is None
