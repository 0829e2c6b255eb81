"""What a capture holds from the host is listed on its graph, and host memory that it names is kept."""

from __future__ import annotations

import gc
import logging
from typing import Any, NamedTuple

import pytest
import torch

import graphdedup
import seam
from seam.backend import HostCopy
from seam.baked import sources_of

KINDS = seam.BakedKind


class Options(NamedTuple):
    scale: float
    mask: torch.Tensor


def told(graph: seam.BreakableGraph) -> list[tuple[str, str, str]]:
    return [(str(baked.kind), baked.what, baked.where) for baked in graph.baked]


def test_numbers_that_cross_a_break_are_listed(backend: seam.GraphBackend, device: str) -> None:
    """Those in lists and objects are not baked: the caller may change them."""

    @seam.eager_break(name="attention")
    def attention(x: torch.Tensor, layer: int, options: Options, *, causal: bool, more: list[Any]) -> Any:
        return {"y": x * options.scale, "rows": [3, True], "name": "attention", "none": None}

    x = torch.zeros(4, device=device)
    graph = seam.BreakableGraph(backend)
    with seam.capture(graph):
        y = attention(x + 1, 7, Options(0.5, x), causal=True, more=[5])["y"] + 0
    assert told(graph) == [
        ("argument", "7", "argument of attention [1]"),
        ("argument", "0.5", "argument of attention [2].scale"),
        ("argument", "True", "argument of attention causal"),
        ("result", "3", "result of attention"),
        ("result", "True", "result of attention"),
    ]
    assert all(baked.kept for baked in graph.baked)
    for value in (1, 3, 5):
        x.fill_(value)
        graph.replay()
        assert y.tolist() == [(value + 1) / 2] * 4
    graph.reset()
    assert graph.baked == []


def test_a_value_that_is_not_written_back_may_be_of_any_type(backend: seam.GraphBackend) -> None:
    @seam.eager_break(name="note")
    def note() -> Any:
        return seam.NoWriteback({1, 2})

    graph = seam.BreakableGraph(backend)
    with seam.capture(graph):
        note()
    assert graph.baked == []
    graph.close()


def copy_from(source: torch.Tensor, target: torch.Tensor, device: str) -> None:
    """A captured copy of pinned memory; on the simulated device torch makes none, so the node is added by hand."""
    if device == "cuda":
        target.copy_(source, non_blocking=True)
    else:
        stream = seam.simulated.current_stream()
        stream._capture.add_node(stream, "memcpy", target=target, source=source, direction="h2d")  # type: ignore[union-attr]


def copy_to(target: torch.Tensor, source: torch.Tensor, device: str) -> None:
    if device == "cuda":
        target.copy_(source, non_blocking=True)
    else:
        stream = seam.simulated.current_stream()
        stream._capture.add_node(stream, "memcpy", target=target, source=source, direction="d2h")  # type: ignore[union-attr]


def test_host_memory_that_a_copy_names_is_listed_and_kept(backend: seam.GraphBackend, device: str) -> None:
    """The caller drops its tensors after the capture; the graph holds them until it is closed."""
    dedup = graphdedup.DedupBackend(backend, enabled=True)
    source = torch.arange(128.0)
    seen = torch.zeros(128)
    if device == "cuda":
        source, seen = source.pin_memory(), seen.pin_memory()
    x = torch.zeros(128, device=device)
    graph = seam.BreakableGraph(dedup, label="decode")
    with seam.capture(graph):
        copy_from(source, x, device)
        y = x + 1
        copy_to(seen, y, device)
    addresses = source.data_ptr(), seen.data_ptr()
    assert told(graph) == [
        ("copy from host", f"512 bytes at {addresses[0]:#x}", "decode segment 0"),
        ("copy to host", f"512 bytes at {addresses[1]:#x}", "decode segment 0"),
    ]
    values = source  # the caller may go on to fill it
    for value in (1, 5, 2):
        values.fill_(value)
        graph.replay()
        if device == "cuda":
            torch.cuda.synchronize()
        assert y.tolist() == seen.tolist() == [value + 1] * 128
    del source, values
    gc.collect()
    assert sources_of((HostCopy(addresses[0], 512, True),))[0] is not None
    graph.close()
    gc.collect()
    assert sources_of((HostCopy(addresses[0], 512, True),)) == [None]


def test_host_memory_that_nobody_keeps_is_reported(
    backend: seam.GraphBackend, device: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    dedup = graphdedup.DedupBackend(backend, enabled=True)
    source = torch.zeros(64)
    if device == "cuda":
        source = source.pin_memory()
    x = torch.zeros(64, device=device)
    graph = seam.BreakableGraph(dedup, label="decode")
    monkeypatch.setattr("seam.scope.sources_of", lambda copies: [None] * len(copies))
    with caplog.at_level(logging.WARNING, logger="seam"), seam.capture(graph):
        copy_from(source, x, device)
    assert [baked.kept for baked in graph.baked] == [False]
    assert f"copy from host 256 bytes at {source.data_ptr():#x} (decode segment 0), which nobody keeps alive" in caplog.text
    graph.close()


def test_a_keeper_holds_all_of_the_copy() -> None:
    """A tensor over the front half of the memory is none; any view of a tensor is one."""
    whole = torch.zeros(64)
    view = whole[32:]
    address = whole.data_ptr()
    assert sources_of((HostCopy(address + 16, 240, True),))[0] is not None
    assert sources_of((HostCopy(address + 16, 241, True),)) == [None]
    assert sources_of((HostCopy(address - 8, 16, True),)) == [None]
    del whole
    found = sources_of((HostCopy(address, 256, False), HostCopy(1, 1, True)))
    assert found[0] is not None
    assert found[0].untyped_storage().data_ptr() == address
    assert found[1] is None
    assert view.tolist() == [0] * 32


def test_without_copies_of_the_host_nothing_is_looked_for(
    backend: seam.GraphBackend, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("seam.scope.sources_of", lambda copies: pytest.fail("it looked"))
    dedup = graphdedup.DedupBackend(backend, enabled=True)
    assert dedup.registry is not None
    monkeypatch.setattr(type(dedup.registry.driver), "topology", lambda *_, **__: pytest.fail("it read the whole graph"))
    x = torch.zeros(64, device=device)
    for used in (dedup, backend):
        graph = seam.BreakableGraph(used)
        with seam.capture(graph):
            (x + 1).clone()
        assert graph.baked == []
        graph.close()
