"""M1: an output is valid until another graph of its pool is replayed; a stamp refuses a later read."""

from __future__ import annotations

import gc

import pytest
import torch

import seam


def captured(
    backend: seam.GraphBackend, device: str, pool: seam.Pool | None, label: str
) -> tuple[seam.BreakableGraph, torch.Tensor]:
    x = torch.ones(4, device=device)
    graph = seam.BreakableGraph(backend, label=label)
    with seam.capture(graph, pool=pool):
        y = x + 1
    return graph, y


def test_a_stale_output_is_refused_until_its_graph_is_replayed_again(backend: seam.GraphBackend, device: str) -> None:
    a, y = captured(backend, device, None, "A")
    b, z = captured(backend, device, a.pool, "B")
    other, w = captured(backend, device, None, "C")
    one, two, three = seam.Stamped(a, y), seam.Stamped(b, z), seam.Stamped(other, w)
    with pytest.raises(seam.ReplayError, match="output of A holds nothing: the graph was not replayed"):
        _ = one.value
    a.replay()
    assert one.value.tolist() == [2] * 4
    b.replay()
    assert two.value.tolist() == [2] * 4
    with pytest.raises(seam.ReplayError, match=r"output of A is stale: B of the same pool was replayed after it.*M1"):
        _ = one.value
    a.replay()
    assert one.value is y
    other.replay()  # of another pool
    assert one.value is y
    assert three.value.tolist() == [2] * 4
    b.replay()
    b.close()
    del b, z, two
    gc.collect()
    with pytest.raises(seam.ReplayError, match="another graph of the same pool"):
        _ = one.value
    a.close()
    other.close()


def test_a_closed_graph_has_no_output(backend: seam.GraphBackend, device: str) -> None:
    a, y = captured(backend, device, None, "A")
    a.replay()
    stamped = seam.Stamped(a, y)
    a.close()
    with pytest.raises(seam.ReplayError, match="output of A"):
        _ = stamped.value
