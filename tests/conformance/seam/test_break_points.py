"""Break points in all their forms, and what a capture says of those it met: rules S9 and S13."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from types import ModuleType

import pytest
import torch

import seam


@seam.eager_break
def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@seam.eager_break(name="plus one")
def add_one(x: torch.Tensor) -> torch.Tensor:
    return x + 1


def chain(x: torch.Tensor) -> torch.Tensor:
    return add_one(double(x + 1)) * 3


def check(graph: seam.BreakableGraph, x: torch.Tensor, y: torch.Tensor, values: dict[float, float]) -> None:
    for value, expected in values.items():
        x.fill_(value)
        y.fill_(-1)
        graph.replay()
        assert y.tolist() == [expected] * len(x)


@pytest.fixture
def x(device: str) -> torch.Tensor:
    return torch.zeros(4, device=device)


@pytest.fixture
def graph(backend: seam.GraphBackend) -> Iterator[seam.BreakableGraph]:
    made = seam.BreakableGraph(backend, label="decode bs=4")
    yield made
    made.close()


# enable= and capture_stub=


def test_a_break_point_that_is_not_enabled_is_captured_like_any_other_code(graph: seam.BreakableGraph, x: torch.Tensor) -> None:
    asked: list[bool] = []
    answers = iter([True, False, True])

    def enable() -> bool:
        asked.append(next(answers))
        return asked[-1]

    @seam.eager_break(enable=enable)
    def triple(value: torch.Tensor) -> torch.Tensor:
        return value * 3

    assert triple(x).tolist() == [0] * 4
    assert asked == [], "nobody asks outside of a capture"
    with seam.capture(graph):
        y = triple(triple(triple(x + 1)))
    assert asked == [True, False, True]
    assert (len(graph.segments), len(graph.breaks)) == (3, 2)
    assert [(met.enabled, met.splits) for met in graph.break_points] == [(True, True), (False, False), (True, True)]
    check(graph, x, y, {0: 27, 1: 54, -1: 0})


def test_inside_a_break_point_that_is_not_enabled_others_still_split(graph: seam.BreakableGraph, x: torch.Tensor) -> None:
    @seam.eager_break(enable=False)
    def outer(value: torch.Tensor) -> torch.Tensor:
        return double(value) + 1

    with seam.capture(graph, expect_breaks=1):
        y = outer(x + 1)
    assert len(graph.segments) == 2
    check(graph, x, y, {0: 3, 1: 5, 4: 11})


def test_a_stub_stands_in_for_the_body_at_capture_only(graph: seam.BreakableGraph, x: torch.Tensor) -> None:
    """The body reads a table that the engine fills before each replay, and which holds nothing at capture."""
    table: dict[str, float] = {}
    calls: list[str] = []

    def stub(value: torch.Tensor, *, key: str) -> torch.Tensor:
        calls.append("stub")
        return torch.full_like(value, 77)

    @seam.eager_break(capture_stub=stub)
    def scale(value: torch.Tensor, *, key: str) -> torch.Tensor:
        calls.append("body")
        return value * table[key]

    with seam.capture(graph):
        y = scale(x + 1, key="factor") + 1
    assert calls == ["stub"]
    for value, factor, expected in ((0, 2, 3), (1, 5, 11), (2, 0, 1)):
        table["factor"] = factor
        check(graph, x, y, {value: expected})
    assert calls == ["stub", "body", "body", "body"]
    table["factor"] = 4
    assert scale(x, key="factor").tolist() == [8] * 4, "outside of a capture the stub is not asked"


def test_a_body_must_return_what_its_stub_returned(graph: seam.BreakableGraph, x: torch.Tensor) -> None:
    @seam.eager_break(capture_stub=lambda value: value[:2])
    def body(value: torch.Tensor) -> torch.Tensor:
        return value * 2

    with seam.capture(graph):
        body(x + 1) + 1
    with pytest.raises(seam.BreakError, match=r"body.*\(4,\).*baked.*\(2,\)"):
        graph.replay()


def test_a_stub_that_raises_fails_the_capture(graph: seam.BreakableGraph, x: torch.Tensor) -> None:
    def stub(value: torch.Tensor) -> torch.Tensor:
        raise LookupError("no shape known")

    marked = seam.eager_break(capture_stub=stub)(lambda value: value * 2)
    with pytest.raises(LookupError, match="no shape known"), seam.capture(graph):
        marked(x + 1)
    assert graph.state is seam.GraphState.FAILED
    with seam.capture(graph):
        y = double(x + 1)
    check(graph, x, y, {0: 2, 1: 4, 2: 6})


def test_a_question_that_raises_fails_the_capture(graph: seam.BreakableGraph, x: torch.Tensor) -> None:
    def enable() -> bool:
        raise LookupError("no configuration")

    marked = seam.eager_break(enable=enable)(lambda value: value * 2)
    with pytest.raises(LookupError, match="no configuration"), seam.capture(graph):
        marked(x + 1)
    assert graph.state is seam.GraphState.FAILED


# What a capture met, and what it was expected to meet (S13)


def test_the_graph_lists_the_break_points_with_their_call_sites(graph: seam.BreakableGraph, x: torch.Tensor) -> None:
    with seam.capture(graph):
        y = chain(x)
        seam.graph_break("the end")
    line = chain.__code__.co_firstlineno + 1
    assert [(met.name, met.site) for met in graph.break_points[:2]] == [
        ("double", f"{__file__}:{line}"),
        ("plus one", f"{__file__}:{line}"),
    ]
    assert graph.break_points[2].name == "the end"
    assert [at.site for at in graph.breaks] == [met.site for met in graph.break_points]
    assert graph.counts == seam.GraphCounts(break_points=3, breaks=3, segments=4, replays=0)
    check(graph, x, y, {0: 9, 1: 15, 2: 21})
    assert graph.counts.replays == 3
    graph.reset()
    assert graph.counts == seam.GraphCounts(0, 0, 0, 0)
    assert graph.break_points == []


@pytest.mark.parametrize("expected", [2, ["double", "plus one"], ("double", "plus one")])
@pytest.mark.parametrize("mode", ["breakable", "full"])
def test_expected_breaks_that_were_met(
    mode: str, expected: int | list[str], graph: seam.BreakableGraph, x: torch.Tensor
) -> None:
    """In mode full they do not split, and are met all the same: one expectation serves both."""
    with seam.capture(graph, mode=mode, expect_breaks=expected):
        y = chain(x)
    assert len(graph.segments) == (3 if mode == "breakable" else 1)
    check(graph, x, y, {0: 9, 1: 15, 2: 21})


@pytest.mark.parametrize("mode", ["breakable", "full"])
@pytest.mark.parametrize(
    ("expected", "wanted"),
    [
        (3, "3 break points"),
        (0, "0 break points"),
        ([], "exactly nothing"),
        (["double"], "exactly double"),
        (["plus one", "double"], "exactly plus one, double"),
    ],
)
def test_other_breaks_than_expected_fail_the_capture(
    mode: str, expected: int | list[str], wanted: str, graph: seam.BreakableGraph, x: torch.Tensor
) -> None:
    with pytest.raises(seam.CaptureError, match="S13") as caught, seam.capture(graph, mode=mode, expect_breaks=expected):
        chain(x)
    text = str(caught.value)
    assert "decode bs=4" in text
    assert f"expected to meet {wanted}, and met 2: double (" in text
    assert "test_break_points.py:" in text
    assert graph.state is seam.GraphState.FAILED
    assert graph.segments == []
    assert len(graph.break_points) == 2, "the list survives the failure"
    with seam.capture(graph, expect_breaks=1):
        y = double(x + 1)
    check(graph, x, y, {0: 2, 1: 4, 2: 6})


def test_equal_break_points_in_a_row_are_counted_in_the_message(graph: seam.BreakableGraph, x: torch.Tensor) -> None:
    with pytest.raises(seam.CaptureError, match=r"met 28: double \([^)]*\) 28 times"), seam.capture(graph, expect_breaks=29):
        for _ in range(28):
            x = double(x)


@pytest.mark.parametrize("mode", ["breakable", "full"])
def test_break_points_inside_of_breaks_are_not_expected(mode: str, graph: seam.BreakableGraph, x: torch.Tensor) -> None:
    @seam.eager_break
    def nested(value: torch.Tensor) -> torch.Tensor:
        return double(double(value)) + 1

    with seam.capture(graph, mode=mode, expect_breaks=["double", nested.__qualname__]):
        y = nested(double(x + 1))
    assert graph.counts.break_points == 4
    check(graph, x, y, {0: 9, 1: 17, 2: 25})


# break_at


class Wide:
    def __init__(self, factor: float) -> None:
        self.factor = factor

    def scaled(self, value: torch.Tensor) -> torch.Tensor:
        return value * self.factor

    @staticmethod
    def shifted(value: torch.Tensor) -> torch.Tensor:
        return value + 1

    @classmethod
    def named(cls, value: torch.Tensor) -> torch.Tensor:
        return value * len(cls.__name__)


class Narrow(Wide):
    pass


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Somebody else's module."""
    module = ModuleType("somebody_elses")
    module.triple = lambda value: value * 3  # type: ignore[attr-defined]
    module.Wide, module.Narrow, module.number = Wide, Narrow, 7  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "somebody_elses", module)
    return module


TARGETS: dict[str, Callable[[ModuleType, torch.Tensor], torch.Tensor]] = {
    "somebody_elses:triple": lambda library, value: library.triple(value),
    "somebody_elses:Wide.scaled": lambda library, value: library.Wide(3).scaled(value),
    "somebody_elses:Narrow.scaled": lambda library, value: library.Narrow(3).scaled(value),
    "somebody_elses:Wide.shifted": lambda library, value: library.Wide(7).shifted(value * 3 - 1),
    "somebody_elses:Narrow.named": lambda library, value: library.Narrow.named(value) / 2,
}


@pytest.mark.parametrize("target", TARGETS)
def test_a_function_of_somebody_else_breaks_for_the_length_of_a_capture(
    target: str, library: ModuleType, graph: seam.BreakableGraph, x: torch.Tensor
) -> None:
    call = TARGETS[target]
    before = {name: dict(vars(kind)) for name, kind in (("library", library), ("Wide", Wide), ("Narrow", Narrow))}
    with seam.capture(graph, break_at=[target], expect_breaks=[target]):
        y = call(library, x + 1) * 2
    assert {name: dict(vars(kind)) for name, kind in (("library", library), ("Wide", Wide), ("Narrow", Narrow))} == before
    assert len(graph.segments) == 2
    assert graph.break_points[0].site.startswith(f"{__file__}:")
    check(graph, x, y, {0: 6, 1: 12, -1: 0})
    assert call(library, torch.ones(2)).tolist() == [3, 3]


def test_a_break_at_is_undone_when_the_capture_fails(library: ModuleType, graph: seam.BreakableGraph, x: torch.Tensor) -> None:
    before = library.triple
    with pytest.raises(LookupError), seam.capture(graph, break_at=["somebody_elses:triple"]):
        library.triple(x + 1)
        raise LookupError
    assert library.triple is before


def test_one_break_at_serves_several_captures_and_threads_apart(
    library: ModuleType, backend: seam.GraphBackend, device: str
) -> None:
    """Only captures of the thread that entered it break, and the function stays replaced until the last one leaves."""
    before = library.triple
    segments: dict[str, int] = {}

    def capture(name: str, count: int) -> None:
        for _ in range(count):
            value = torch.zeros(4, device=device)
            graph = seam.BreakableGraph(backend)
            with seam.capture(graph):
                y = library.triple(value + 1)
            segments[name] = len(graph.segments)
            check(graph, value, y, {0: 3, 1: 6, 2: 9})
            graph.close()

    def here_too() -> None:
        with seam.break_at("somebody_elses:triple", name="mine"):
            capture("thread with", 1)

    with seam.break_at("somebody_elses:triple") as at:
        assert library.triple is not before
        assert library.triple(torch.ones(1)).tolist() == [3], "a plain call outside of captures"
        capture("with", 2)
        for target in (lambda: capture("thread without", 1), here_too):
            thread = threading.Thread(target=target)
            thread.start()
            thread.join()
        assert library.triple is not before
        assert at.met_count == 2
    assert library.triple is before
    assert segments == {"with": 2, "thread without": 1, "thread with": 2}


@pytest.mark.parametrize(
    ("target", "call"),
    [
        (torch.ops.aten.mul, lambda value: torch.ops.aten.mul(value, value)),
        (torch.ops.aten.mul, lambda value: torch.ops.aten.mul.Tensor(value, value)),
        (torch.ops.aten.mul.Tensor, lambda value: torch.ops.aten.mul.Tensor(value, value)),
        (torch.nn.functional.relu, lambda value: torch.nn.functional.relu(value) * value),
    ],
)
def test_an_operator_breaks(
    target: object,
    call: Callable[[torch.Tensor], torch.Tensor],
    graph: seam.BreakableGraph,
    x: torch.Tensor,
) -> None:
    with seam.capture(graph, break_at=[seam.break_at(target, name="square")], expect_breaks=["square"]):
        y = call(x + 1) + 1
    assert len(graph.segments) == 2
    assert graph.break_points[0].site.startswith(f"{__file__}:")
    check(graph, x, y, {0: 2, 1: 5, 2: 10})
    with seam.capture(other := seam.BreakableGraph(graph.backend)):
        call(x + 1)
    assert len(other.segments) == 1, "undone after the capture"
    other.close()


def test_another_overload_does_not_break(graph: seam.BreakableGraph, x: torch.Tensor) -> None:
    at = seam.break_at(torch.ops.aten.mul.Scalar, required=False)
    with seam.capture(graph, break_at=[at]):
        torch.ops.aten.mul.Tensor(x, x)
    assert (len(graph.segments), at.met_count) == (1, 0)


def test_a_break_at_takes_a_stub_and_a_question(library: ModuleType, graph: seam.BreakableGraph, x: torch.Tensor) -> None:
    held: dict[str, float] = {}
    library.looked_up = lambda value: value * held["factor"]
    library.plain = lambda value: value + 1
    points = [
        seam.break_at("somebody_elses:looked_up", capture_stub=torch.empty_like),
        seam.break_at("somebody_elses:plain", enable=lambda: False),
    ]
    with seam.capture(graph, break_at=points):
        y = library.plain(library.looked_up(x + 1))
    assert [(met.name, met.splits) for met in graph.break_points] == [
        ("somebody_elses:looked_up", True),
        ("somebody_elses:plain", False),
    ]
    for factor in (2, 3, 4):
        held["factor"] = factor
        check(graph, x, y, {1: 2 * factor + 1})


def test_a_function_to_break_at_that_is_never_met_fails_the_capture(
    library: ModuleType, graph: seam.BreakableGraph, x: torch.Tensor
) -> None:
    """Here the forward holds the function itself, as after a from-import: it was captured, and nobody would know."""
    held = library.triple
    with (
        pytest.raises(seam.CaptureError, match=r"decode bs=4 never came to somebody_elses:triple.*S13"),
        seam.capture(graph, break_at=["somebody_elses:triple"]),
    ):
        held(x)
    assert graph.state is seam.GraphState.FAILED
    with seam.capture(graph, break_at=[seam.break_at("somebody_elses:triple", required=False)]):
        y = held(x + 1)
    check(graph, x, y, {0: 3, 1: 6, 2: 9})


@pytest.mark.parametrize(
    ("target", "problem"),
    [
        ("somebody_elses", "names no function"),
        ("somebody_elses:", "names no function"),
        ("a:b:c", "names no function"),
        ("no_such_module:f", "cannot be found"),
        ("somebody_elses:no_such", "cannot be found"),
        ("somebody_elses:number", "is a int, which cannot be called"),
        (print, "neither a string nor an operator"),
        (7, "neither a string nor an operator"),
    ],
)
def test_what_can_be_no_break_point_is_refused_before_any_backend_call(
    target: object,
    problem: str,
    library: ModuleType,
    graph: seam.BreakableGraph,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(graph.backend, "begin_capture", lambda *args, **kwargs: pytest.fail("a capture was begun"))
    with pytest.raises(seam.CaptureError, match=f"{problem}.*S13"), seam.capture(graph, break_at=[target]):
        pass


def test_a_break_at_is_not_entered_twice_at_once(library: ModuleType) -> None:
    at = seam.break_at("somebody_elses:triple")
    with at, pytest.raises(seam.CaptureError, match="entered already"), at:
        pass
    with at:
        assert at.met_count == 0


def test_a_function_that_somebody_else_replaced_meanwhile_is_left_alone(
    library: ModuleType, caplog: pytest.LogCaptureFixture
) -> None:
    def theirs(value: torch.Tensor) -> torch.Tensor:
        return value

    with seam.break_at("somebody_elses:triple"):
        library.triple = theirs
    assert library.triple is theirs
    assert "replaced by somebody else" in caplog.text
