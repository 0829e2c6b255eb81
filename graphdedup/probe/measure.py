"""Measuring the capabilities of one device: every question asked, every attribute read, and some facts besides."""

from __future__ import annotations

from collections.abc import Callable

import torch

from graphdedup.capabilities import AnswerRow, AttributeRow, Capabilities, FactRow, Outcome
from graphdedup.driver.attributes import ATTRIBUTES
from graphdedup.errors import DriverError
from graphdedup.probe.ask import ask
from graphdedup.probe.bench import Bench, Interval, NotHere
from graphdedup.probe.questions import ATTRIBUTE_VALUES, branches, questions
from graphdedup.probe.spec import Kernel, MemAlloc, Memset, line

__all__ = ["FACTS", "measure"]


def measure(bench: Bench, *, source: str) -> Capabilities:
    """Everything that ``bench`` can tell; what it cannot is "unknown". It takes a second or two and leaves nothing behind."""
    identity = bench.driver.identity
    answers = []
    for question in questions(bench.arena):
        answer = ask(bench, question)
        answers.append(
            AnswerRow(
                topic=question.topic,
                way=question.way,
                outcome=answer.outcome,
                verdict=answer.verdict,
                detail=answer.detail,
            )
        )
    facts = [_fact(bench, name, look) for name, look in FACTS.items()]
    return Capabilities(
        device=identity.name,
        compute_capability=identity.compute_capability,
        driver_version=identity.driver_version,
        cuda_version=torch.version.cuda or "",
        torch_version=torch.__version__,
        source=source,
        attributes=tuple(_attribute(bench, name) for name in ATTRIBUTES),
        answers=tuple(answers),
        facts=(_refusals(answers), *facts),
    )


def _attribute(bench: Bench, name: str) -> AttributeRow:
    """Readable: from a plain kernel. Settable: the driver takes a kernel with it."""
    readable = settable = None
    kernel, one, _ = ATTRIBUTE_VALUES.get(name, (Kernel(), None, None))
    try:
        raw = bench.build(line(kernel))
        readable = bench.attribute(raw, 0, name) is not None
        bench.discard(raw)
    except (NotHere, DriverError):
        pass
    if one is not None:
        try:
            raw = bench.build(line(kernel.with_attributes(**{name: one})))
            settable = True
            bench.discard(raw)
        except (NotHere, DriverError):
            # Refused because of this attribute, or because nothing works here?
            settable = None if readable is None else False
    return AttributeRow(name=name, number=ATTRIBUTES[name].number, readable=readable, settable=settable)


def _refusals(answers: list[AnswerRow]) -> FactRow:
    refused = sum(answer.outcome is Outcome.REFUSED for answer in answers)
    broken = [f"{answer.topic}: {answer.way}" for answer in answers if answer.outcome is Outcome.BROKEN]
    value = "unknown" if not refused + len(broken) else "no" if broken else "yes"
    return FactRow(
        name="a refused update leaves the executable as it was",
        value=value,
        detail=", ".join(broken) or f"{refused} refusals, launched before and after",
    )


def _fact(bench: Bench, name: str, look: Callable[[Bench], tuple[str, str]]) -> FactRow:
    try:
        value, detail = look(bench)
    except (NotHere, DriverError) as problem:
        value, detail = "unknown", str(problem)
    return FactRow(name=name, value=value, detail=detail)


def _yes(condition: bool) -> str:
    return "yes" if condition else "no"


def _error_left(bench: Bench) -> tuple[str, str]:
    first, second = bench.build(line(Kernel())), bench.build(line(Memset()))
    executable = bench.instantiate(first)
    try:
        if bench.last_error() is None:
            return "unknown", "the runtime's last error cannot be asked here"
        if bench.update(executable, second).accepted:
            return "unknown", "the update was not refused"
        error = bench.last_error()
        return _yes(error != 0), f"cudaGetLastError answers {error}"
    finally:
        bench.destroy(executable)
        bench.discard(first)
        bench.discard(second)


def _in_flight(bench: Bench) -> tuple[str, str]:
    first, second = (bench.build(line(Kernel("interval", constant=constant, grid=(1, 1, 1)))) for constant in (1, 2))
    executable = bench.instantiate(first)
    try:
        intervals, running = bench.launch_beside([executable], (executable, second))
        if not running:
            return "unknown", "the launch had ended when the update returned"
        then, _ = bench.launch_beside([executable])
        seen = [interval.constant for interval in intervals + then]
        return _yes(seen == [1, 2]), f"constants seen by the launch before and the one after: {seen}"
    finally:
        bench.destroy(executable)
        bench.discard(first)
        bench.discard(second)


def _overlap(bench: Bench, executable_count: int) -> tuple[str, str]:
    graph = bench.build(line(Kernel("interval", grid=(1, 1, 1))))
    made = [bench.instantiate(graph) for _ in range(executable_count)]
    try:
        intervals, _ = bench.launch_beside([made[0], made[-1]])
        if len(intervals) != 2:
            return "unknown", f"{len(intervals)} launches were seen"
        first, second = sorted(intervals, key=lambda interval: interval.start_ns)
        return _yes(second.start_ns < first.end_ns), _described(first, second)
    finally:
        for executable in made:
            bench.destroy(executable)
        bench.discard(graph)


def _described(first: Interval, second: Interval) -> str:
    return f"the second began {(second.start_ns - first.start_ns) / 1e6:.2f} ms after the first, which took " + (
        f"{(first.end_ns - first.start_ns) / 1e6:.2f} ms"
    )


def _creation_order(bench: Bench) -> tuple[str, str]:
    graph = bench.build(branches(2, 3, swapped=True))
    order = bench.node_order(graph)
    bench.discard(graph)
    return _yes(order == sorted(order)), f"places in creation order: {order}"


def _stays_disabled(bench: Bench) -> tuple[str, str]:
    spec = branches(2, 3)
    first, second = bench.build(spec), bench.build(spec.with_node(3, constant=99))
    updated, own = bench.instantiate(first), bench.instantiate(second)
    try:
        bench.set_enabled(updated, first, 3, False)
        bench.set_enabled(own, second, 3, False)
        without = bench.run(own, 1)
        bench.update(updated, second)
        return _yes(bench.run(updated, 1) == without), "a kernel node, disabled before the update"
    finally:
        for executable in (updated, own):
            bench.destroy(executable)
        for graph in (first, second):
            bench.discard(graph)


def _memory_twice(bench: Bench) -> tuple[str, str]:
    graph = bench.build(line(MemAlloc()))
    made = [bench.instantiate(graph)]
    try:
        made.append(bench.instantiate(graph))
        return "yes", ""
    except NotHere as problem:
        return "no", str(problem)
    finally:
        for executable in made:
            bench.destroy(executable)
        bench.discard(graph)


FACTS: dict[str, Callable[[Bench], tuple[str, str]]] = {
    "a refused update leaves an error behind": _error_left,
    "an update is legal while the executable runs": _in_flight,
    "two launches of one executable overlap": lambda bench: _overlap(bench, 1),
    "launches of two executables overlap": lambda bench: _overlap(bench, 2),
    "nodes are told in creation order": _creation_order,
    "a disabled node stays disabled": _stays_disabled,
    "a graph with memory nodes has two executables": _memory_twice,
    "instantiate flags of torch": lambda bench: (str(bench.torch_flags()), "1: auto free on launch, 8: use node priority"),
}
"""Each fact by name: what looks it up answers "yes", "no", "unknown" or a number, and what it saw."""
