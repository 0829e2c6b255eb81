"""S10: one switch makes every scope of the process inert. And the process's counts."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch

import seam
from seam import settings
from seam.simulated import SimulatedBackend


@pytest.fixture(autouse=True)
def read_anew() -> Iterator[None]:
    settings.disabled.cache_clear()
    yield
    settings.disabled.cache_clear()


@seam.eager_break
def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@pytest.mark.parametrize("word", ["1", "true", "TRUE", " 1 "])
@pytest.mark.parametrize("mode", ["breakable", "full"])
def test_the_switch_makes_scopes_inert(mode: str, word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(settings.DISABLE, word)
    backend = SimulatedBackend()
    monkeypatch.setattr(backend, "begin_capture", lambda *args, **kwargs: pytest.fail("a backend call"))
    monkeypatch.setattr(backend, "new_pool", lambda *args: pytest.fail("a backend call"))
    graph = seam.BreakableGraph(backend, label="decode")
    x = torch.ones(2)
    with seam.capture(graph, mode=mode):
        y = double(x + 1) + 3
    assert y.tolist() == [7, 7]
    assert (graph.state, graph.segments, graph.break_points) == (seam.GraphState.INERT, [], [])
    with pytest.raises(seam.ReplayError, match=r"decode is inert .*SEAM_DISABLE is set.*call the forward itself"):
        graph.replay()


@pytest.mark.parametrize("word", [None, "0", "false"])
def test_without_the_switch_a_scope_captures(word: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(settings.DISABLE, raising=False)
    if word is not None:
        monkeypatch.setenv(settings.DISABLE, word)
    graph = seam.BreakableGraph(SimulatedBackend())
    with seam.capture(graph):
        double(torch.ones(2))
    assert len(graph.segments) == 2
    graph.close()


def test_the_switch_is_read_once_per_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(settings.DISABLE, "0")
    assert settings.disabled() is False
    monkeypatch.setenv(settings.DISABLE, "1")
    assert settings.disabled() is False


def test_a_word_that_is_no_switch_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(settings.DISABLE, "yes")
    graph = seam.BreakableGraph(SimulatedBackend())
    with pytest.raises(seam.SeamError, match=r"SEAM_DISABLE='yes' is no switch.*S10"):
        seam.capture(graph).__enter__()
    assert graph.state is seam.GraphState.EMPTY


COUNTING = """
import torch, seam
from seam.simulated import SimulatedBackend

@seam.eager_break
def double(x):
    return x * 2

@seam.eager_break
def nested(x):
    return double(x) + 1

backend = SimulatedBackend()
x = torch.zeros(4)
for mode in ("breakable", "full", "full", "disabled"):
    graph = seam.BreakableGraph(backend)
    with seam.capture(graph, mode=mode):
        nested(double(x + 1))
    if mode != "disabled":
        graph.replay()
        graph.replay()
    graph.close()
try:
    with seam.capture(seam.BreakableGraph(backend)):
        double(x)
        raise LookupError
except LookupError:
    pass
held = seam.stats()
print(dict(held.scopes), held.failed, held.break_points, held.breaks, held.segments, held.replays)
"""


def test_the_counts_of_a_process() -> None:
    """Three scopes meet three break points each, the failed one meets one, and the inert one is no scope to them."""
    environment = {name: value for name, value in os.environ.items() if name != settings.DISABLE}
    done = subprocess.run([sys.executable, "-c", COUNTING], capture_output=True, text=True, timeout=120, env=environment)
    scopes = {"full": 2, "breakable": 2, "tc_piecewise": 0, "disabled": 1}
    segments = 3 + 1 + 1 + 1  # the failed capture had ended one
    assert done.stdout.strip() == f"{scopes} 1 {3 * 3 + 1} {2 + 1} {segments} 6", done.stderr
