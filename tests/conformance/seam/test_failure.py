"""Failure inside a capture, nesting, and release: rules S6, S7, S11 and S14."""

from __future__ import annotations

import gc
from contextlib import ExitStack

import pytest
import torch

import seam
from seam.collector import collector_paused


class Planned(Exception):
    """Raised on purpose."""


@seam.eager_break
def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@seam.eager_break
def failing(x: torch.Tensor) -> torch.Tensor:
    raise Planned("in a break body")


def in_the_first_segment(x: torch.Tensor) -> None:
    x + 1
    raise Planned("in ordinary code")


def in_the_second_segment(x: torch.Tensor) -> None:
    double(x + 1)
    raise Planned("in ordinary code")


def in_a_break_body(x: torch.Tensor) -> None:
    failing(double(x + 1))


PLACES = {place.__name__: place for place in (in_the_first_segment, in_the_second_segment, in_a_break_body)}


def counted(backend: seam.GraphBackend, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, object]]:
    """Every handle that comes from and goes back to the backend."""
    calls: list[tuple[str, object]] = []
    end_capture, destroy_graph = backend.end_capture, backend.destroy_graph

    def end(*, discard: bool = False) -> object:
        handle = end_capture(discard=discard)
        if handle is not None:
            calls.append(("end", handle))
        return handle

    def destroy(handle: object) -> None:
        calls.append(("destroy", handle))
        destroy_graph(handle)

    monkeypatch.setattr(backend, "end_capture", end)
    monkeypatch.setattr(backend, "destroy_graph", destroy)
    return calls


def assert_each_destroyed_once(calls: list[tuple[str, object]]) -> None:
    made = [id(handle) for what, handle in calls if what == "end"]
    gone = [id(handle) for what, handle in calls if what == "destroy"]
    assert sorted(made) == sorted(gone)


def works(graph: seam.BreakableGraph, pool: seam.Pool | None, device: str) -> None:
    """The object captures and replays (x + 1) * 2 + 3."""
    x = torch.zeros(4, device=device)
    with seam.capture(graph, pool=pool):
        y = double(x + 1) + 3
    for value, expected in ((10, 25), (0, 5), (1, 7)):
        x.fill_(value)
        graph.replay()
        assert y.tolist() == [expected] * 4
    graph.close()


@pytest.mark.parametrize("place", PLACES)
def test_a_failed_capture_leaves_stream_pool_and_object_usable(
    place: str, backend: seam.GraphBackend, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S7: the capture is ended and dropped, the first error comes out, and the same three capture again at once."""
    calls = counted(backend, monkeypatch)
    pool = backend.new_pool()
    graph = seam.BreakableGraph(backend)
    x = torch.zeros(4, device=device)
    with pytest.raises(Planned), seam.capture(graph, pool=pool):
        PLACES[place](x)
    assert graph.state is seam.GraphState.FAILED
    assert graph.segments == []
    assert graph.breaks == []
    assert_each_destroyed_once(calls)
    with pytest.raises(seam.ReplayError, match=r"failed.*Planned"):
        graph.replay()
    assert (x + 1).tolist() == [1] * 4  # nothing is being captured any more
    works(graph, pool, device)
    assert_each_destroyed_once(calls)


def test_a_read_on_the_host_fails_the_capture_and_nothing_else(backend: seam.GraphBackend, device: str) -> None:
    pool = backend.new_pool()
    graph = seam.BreakableGraph(backend)
    x = torch.ones(4, device=device)
    with pytest.raises(RuntimeError), seam.capture(graph, pool=pool):
        (x + 1).sum().item()
    assert graph.state is seam.GraphState.FAILED
    assert torch.rand(4, device=device).shape == (4,)  # the default generator draws again
    works(graph, pool, device)


def test_a_swallowed_read_on_the_host_is_a_failure_all_the_same(backend: seam.GraphBackend, device: str) -> None:
    """The device invalidated the capture; that the caller caught the error does not bring the tail back."""
    pool = backend.new_pool()
    graph = seam.BreakableGraph(backend)
    x = torch.ones(4, device=device)
    with pytest.raises(RuntimeError), seam.capture(graph, pool=pool):
        try:
            (x + 1).sum().item()
        except RuntimeError:
            pass
    assert graph.state is seam.GraphState.FAILED
    works(graph, pool, device)


def test_an_error_of_a_break_caught_inside_the_scope_is_a_failure(backend: seam.GraphBackend, device: str) -> None:
    graph = seam.BreakableGraph(backend)
    x = torch.ones(4, device=device)
    with pytest.raises(seam.CaptureFailed, match="in a break body") as caught, seam.capture(graph):
        try:
            failing(x)
        except Planned:
            pass
        double(x)  # after the failure a break point is a plain call
    assert isinstance(caught.value.__cause__, Planned)
    assert graph.state is seam.GraphState.FAILED
    works(graph, None, device)


def test_the_first_error_wins_over_one_raised_while_handling_it(backend: seam.GraphBackend, device: str) -> None:
    graph = seam.BreakableGraph(backend)
    with pytest.raises(Planned, match="in a break body"), seam.capture(graph):
        try:
            failing(torch.ones(4, device=device))
        finally:
            raise KeyError("second")
    assert "Planned" in graph.error
    graph.close()


@pytest.mark.parametrize("call", ["end_capture", "destroy_graph"])
def test_the_first_error_wins_over_one_raised_while_the_capture_is_dropped(
    call: str, backend: seam.GraphBackend, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S7: the backend fails as well, once the first segment is released or the second one is discarded."""
    graph = seam.BreakableGraph(backend)
    x = torch.zeros(4, device=device)
    real = getattr(backend, call)
    failures: list[str] = []

    def flaky(*args: object, **kwargs: object) -> object:
        result = real(*args, **kwargs)
        if call == "destroy_graph" or kwargs.get("discard"):
            failures.append(call)
            raise KeyError(call)
        return result

    monkeypatch.setattr(backend, call, flaky)
    with pytest.raises(Planned), seam.capture(graph):
        in_the_second_segment(x)
    monkeypatch.undo()
    assert failures == [call]
    assert graph.error.startswith("Planned")
    assert graph.state is seam.GraphState.FAILED
    works(graph, None, device)


@pytest.mark.parametrize("call", ["begin_capture", "end_capture"])
def test_a_backend_that_fails_is_a_failed_capture(
    call: str, backend: seam.GraphBackend, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = backend.new_pool()
    graph = seam.BreakableGraph(backend)
    x = torch.ones(4, device=device)
    real = getattr(backend, call)
    count = 0

    def flaky(*args: object, **kwargs: object) -> object:
        nonlocal count
        count += 1
        if count == 2:  # of the second segment
            if call == "end_capture":
                real(discard=True)
            raise Planned(call)
        return real(*args, **kwargs)

    monkeypatch.setattr(backend, call, flaky)
    with pytest.raises(Planned, match=call), seam.capture(graph, pool=pool):
        double(x + 1) + 3
    monkeypatch.undo()
    assert graph.state is seam.GraphState.FAILED
    assert graph.segments == []
    works(graph, pool, device)


def test_scopes_do_not_nest(backend: seam.GraphBackend, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """S6: the inner scope is refused before any backend call, and the outer one fails with that error."""
    calls: list[str] = []
    outer, inner = seam.BreakableGraph(backend), seam.BreakableGraph(backend)
    with pytest.raises(seam.CaptureError, match="S6"), seam.capture(outer):
        monkeypatch.setattr(backend, "begin_capture", lambda *_, **__: calls.append("begin"))
        monkeypatch.setattr(backend, "new_pool", lambda *_: calls.append("pool"))
        with seam.capture(inner):
            pass
    assert calls == []
    assert inner.state is seam.GraphState.EMPTY
    monkeypatch.undo()
    works(outer, None, device)


def test_replay_inside_a_capture_is_refused(backend: seam.GraphBackend, device: str) -> None:
    first = seam.BreakableGraph(backend)
    x = torch.zeros(4, device=device)
    with seam.capture(first):
        y = x + 1
    second = seam.BreakableGraph(backend)
    with pytest.raises(seam.ReplayError, match="S6"), seam.capture(second):
        first.replay()
    x.fill_(1)
    first.replay()
    assert y.tolist() == [2] * 4
    first.close()
    second.close()


def test_a_captured_graph_is_not_captured_over(backend: seam.GraphBackend, device: str) -> None:
    graph = seam.BreakableGraph(backend)
    x = torch.zeros(4, device=device)
    with seam.capture(graph):
        x + 1
    with pytest.raises(seam.CaptureError, match="captured"), seam.capture(graph):
        pass
    graph.reset()
    works(graph, None, device)
    with pytest.raises(seam.CaptureError, match="closed"), seam.capture(graph):
        pass


def test_a_graph_is_not_reset_or_closed_while_it_is_captured(backend: seam.GraphBackend, device: str) -> None:
    """S6: both are refused, and the capture goes on."""
    graph = seam.BreakableGraph(backend)
    x = torch.zeros(4, device=device)
    with seam.capture(graph):
        middle = double(x + 1)
        for release in (graph.reset, graph.close):
            with pytest.raises(seam.CaptureError, match=r"being captured.*S6"):
                release()
        y = middle + 3
    for value, expected in ((10, 25), (0, 5), (1, 7)):
        x.fill_(value)
        graph.replay()
        assert y.tolist() == [expected] * 4
    graph.close()


def test_a_closed_graph_that_is_reset_stays_closed(backend: seam.GraphBackend) -> None:
    """S14: its finalizer is gone, so that nothing would release what a new capture put into it."""
    graph = seam.BreakableGraph(backend)
    graph.close()
    graph.reset()
    assert graph.state is seam.GraphState.CLOSED
    with pytest.raises(seam.CaptureError, match="closed"), seam.capture(graph):
        pass


def test_a_stream_that_is_not_the_pools_own_is_refused(backend: seam.GraphBackend) -> None:
    """M1: all segments of a pool share its capture stream."""
    pool, other = backend.new_pool(), backend.new_pool()
    graph = seam.BreakableGraph(backend)
    with pytest.raises(seam.CaptureError, match="M1"), seam.capture(graph, pool=pool, stream=other.stream):
        pass
    assert graph.state is seam.GraphState.EMPTY


def test_replay_says_in_which_state_a_graph_is(backend: seam.GraphBackend) -> None:
    graph = seam.BreakableGraph(backend, label="decode bs=8")
    with pytest.raises(seam.ReplayError, match=r"decode bs=8 is empty.*S7.*Remedy: capture it first"):
        graph.replay()
    graph.close()
    graph.close()
    with pytest.raises(seam.ReplayError, match="closed"):
        graph.replay()


@pytest.mark.parametrize(
    "ways",
    [
        ("close",),
        ("close", "close"),
        ("reset", "close"),
        ("close", "reset"),
        ("reset", "reset", "close"),
        ("delete",),
        ("reset", "delete"),
        ("close", "delete"),
    ],
)
def test_each_handle_is_destroyed_once_whatever_the_order(
    ways: tuple[str, ...], backend: seam.GraphBackend, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S14."""
    calls = counted(backend, monkeypatch)
    graph = seam.BreakableGraph(backend)
    x = torch.zeros(4, device=device)
    with seam.capture(graph):
        double(x + 1) + 3
    assert len(calls) == 2
    for way in ways:
        if way == "delete":
            del graph
            gc.collect()
        else:
            getattr(graph, way)()
    assert_each_destroyed_once(calls)


def test_a_handle_destroyed_twice_is_an_error(backend: seam.GraphBackend, device: str) -> None:
    graph = seam.BreakableGraph(backend)
    x = torch.zeros(4, device=device)
    with seam.capture(graph):
        x + 1
    handle = graph.segments[0]
    graph.close()
    with pytest.raises(seam.SeamError):
        backend.destroy_graph(handle)


def test_one_failing_release_does_not_keep_the_others(
    backend: seam.GraphBackend, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = seam.BreakableGraph(backend)
    x = torch.zeros(4, device=device)
    with seam.capture(graph):
        double(double(x + 1)) + 3
    destroyed: list[object] = []
    destroy_graph = backend.destroy_graph

    def flaky(handle: object) -> None:
        destroyed.append(handle)
        destroy_graph(handle)
        if len(destroyed) == 1:
            raise Planned("destroy")

    monkeypatch.setattr(backend, "destroy_graph", flaky)
    with pytest.raises(Planned):
        graph.close()
    assert len(destroyed) == 3
    graph.close()
    assert len(destroyed) == 3


@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_rests_inside_a_capture(enabled: bool, backend: seam.GraphBackend, device: str) -> None:
    """S11, also when the capture fails."""
    was = gc.isenabled()
    (gc.enable if enabled else gc.disable)()
    try:
        seen: list[bool] = []

        def look(x: torch.Tensor) -> None:
            seen.append(gc.isenabled())
            raise Planned

        with pytest.raises(Planned), seam.capture(seam.BreakableGraph(backend)):
            look(torch.zeros(4, device=device))
        assert seen == [False]
        assert gc.isenabled() is enabled
    finally:
        (gc.enable if was else gc.disable)()


def test_the_collector_rests_until_the_last_scope_is_out() -> None:
    """S11: scopes of two threads overlap; the first one out does not start the collector inside the other."""
    was = gc.isenabled()
    gc.enable()
    try:
        with ExitStack() as other:
            other.enter_context(collector_paused())
            with collector_paused():
                assert not gc.isenabled()
            assert not gc.isenabled()
        assert gc.isenabled()
    finally:
        (gc.enable if was else gc.disable)()


@pytest.mark.parametrize("argument", [{"mode": "sideways"}, {"capture_error_mode": "lax"}])
def test_unknown_arguments_are_refused_by_name(argument: dict[str, str], backend: seam.GraphBackend) -> None:
    graph = seam.BreakableGraph(backend)
    value = next(iter(argument.values()))
    with pytest.raises(seam.CaptureError, match=f"'{value}' is unknown"), seam.capture(graph, **argument):  # type: ignore[arg-type]
        pass
    assert graph.state is seam.GraphState.EMPTY
