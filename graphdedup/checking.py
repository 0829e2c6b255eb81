"""Check a captured graph against its eager forward, bit for bit, on inputs that change.

Timeline of the failure that this finds. At capture host code writes a small descriptor into device memory (the sizes of
groups, say), outside of what is captured, and a captured kernel reads it. Replay with the inputs of the capture: all is
well, as the descriptor still fits. Replay with others: the kernel reads the old descriptor, and the numbers are wrong
without an error. So a replay on identical inputs proves nothing, and neither does one into memory that holds the right
result already.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

import seam
from graphdedup.errors import GraphDedupError

__all__ = ["CheckResult", "OutputMismatch", "check"]

_SCALARS = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)
_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True, slots=True)
class OutputMismatch:
    """One output of one round that is not what eager computed."""

    round: int
    """Counted from 1."""
    path: str
    """Where in ``outputs``, such as ``[0]['logits']``; empty for the whole."""
    differing_elements: int
    elements: int
    max_abs_difference: float
    """Of what the replay wrote. NaN where one of the two is not a number; 0 where only bits differ, as between 0 and -0."""
    unwritten_elements: int
    """How many of those that differ the replay did not write."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What :func:`check` found."""

    label: str
    rounds: int
    fresh: bool
    """Whether each round had inputs of its own."""
    tensors: int
    """Tensors compared, all rounds together."""
    mismatches: tuple[OutputMismatch, ...]

    @property
    def ok(self) -> bool:
        """Whether every element of every round was equal, bit for bit."""
        return not self.mismatches

    def to_text(self) -> str:
        """The result for people, one line and one for each mismatch."""
        inputs = "fresh inputs in each" if self.fresh else "the same inputs in each, which proves little: give fresh_inputs"
        counted = f"{self.rounds} {'round' if self.rounds == 1 else 'rounds'} ({inputs}), {self.tensors} tensors compared"
        if self.ok:
            return f"{self.label}: the replay is equal to eager, bit for bit: {counted}"
        lines = [f"{self.label}: the replay is NOT equal to eager: {counted}, {len(self.mismatches)} of them differ"]
        for one in self.mismatches:
            unwritten = f", {one.unwritten_elements} of them not written" if one.unwritten_elements else ""
            lines.append(
                f"  round {one.round}, output{one.path}: {one.differing_elements} of {one.elements} elements differ"
                f"{unwritten}, by {one.max_abs_difference:g} at most"
            )
        return "\n".join(lines)


def check(
    graph: seam.BreakableGraph,
    *,
    eager: Callable[[], Any],
    outputs: Any,
    fresh_inputs: Callable[[], object] | None = None,
    rounds: int = 3,
) -> CheckResult:
    """Compare replays of a captured graph with its eager forward.

    A round computes ``eager()``, overwrites the outputs with the complement of its result, so that what the replay does not
    write shows, replays, and compares. Both draw the same random numbers. Inputs stay as the last round left them, outputs
    hold what the last replay wrote, and what they held before where it wrote nothing.

    Args:
        graph: a captured graph.
        eager: computes the forward anew, from the storage that the graph reads, and leaves that as it is.
        outputs: the tensors that the graph writes, in any nesting of lists, tuples, dicts and what ``torch.utils._pytree``
            knows. None of them may be something that the graph reads before it writes it.
        fresh_inputs: writes other inputs, in place, before each round. Without it the rounds prove little.
        rounds: how many.

    Raises:
        GraphDedupError: ``outputs`` holds no tensor or something that cannot be compared, or ``eager()`` returned another
            structure, shape or dtype. Outputs are as they were.
        Exception: what ``eager``, ``fresh_inputs`` or the replay raised. Outputs are as they were.
    """
    if rounds < 1:
        raise GraphDedupError(f"{graph.label}: rounds={rounds} checks nothing", remedy="give at least 1")
    mismatches: list[OutputMismatch] = []
    tensors = 0
    for number in range(1, rounds + 1):
        if fresh_inputs is not None:
            fresh_inputs()
        with _generators_kept(outputs):
            expected = eager()
        pairs = _pairs(graph.label, outputs, expected)
        tensors += len(pairs)
        mismatches += _replay_and_compare(graph, number, pairs)
    return CheckResult(graph.label, rounds, fresh_inputs is not None, tensors, tuple(mismatches))


@contextmanager
def _generators_kept(outputs: Any) -> Iterator[None]:
    """Leave the default generators where they were, so that the replay draws what eager drew."""
    leaves = pytree.tree_leaves(outputs)
    devices = {leaf.device.index for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.is_cuda}
    with torch.random.fork_rng(devices=sorted(devices)):
        yield


@dataclass(frozen=True, slots=True)
class _Pair:
    """An output and what eager computed for it. ``place`` is the output with each element of its memory once."""

    path: str
    output: torch.Tensor
    place: torch.Tensor
    expected: torch.Tensor
    before: torch.Tensor
    poison: torch.Tensor


def _pairs(label: str, outputs: Any, expected: Any) -> list[_Pair]:
    """What is to be compared. Nothing is written before all of it was found to agree."""
    ours, our_structure = pytree.tree_flatten_with_path(outputs)
    theirs, their_structure = pytree.tree_flatten(expected)
    if our_structure != their_structure:
        raise _disagree(label, f"eager() returned {their_structure}, outputs are {our_structure}")
    pairs = []
    with torch.inference_mode():
        for (key, output), other in zip(ours, theirs, strict=True):
            path = pytree.keystr(key)
            if isinstance(output, torch.Tensor) and isinstance(other, torch.Tensor):
                pairs.append(_pair(label, path, output, other))
            elif not isinstance(output, _SCALARS):
                raise _disagree(label, f"output{path} is a {type(output).__qualname__}, whose tensors are not seen")
            elif type(output) is not type(other) or output != other:
                raise _disagree(label, f"eager() returned {other!r} for output{path}, which is {output!r}")
    if not pairs:
        raise _disagree(label, "outputs hold no tensor, so nothing can be compared")
    return pairs


def _pair(label: str, path: str, output: torch.Tensor, other: torch.Tensor) -> _Pair:
    if (output.dtype, output.shape, output.device) != (other.dtype, other.shape, other.device):
        raise _disagree(label, f"eager() returned {_told(other)} for output{path}, which is {_told(output)}")
    if not output.layout == other.layout == torch.strided or output.is_quantized:
        raise _disagree(label, f"output{path} is no plain strided tensor, so its bits cannot be compared")
    place, expected = _each_once(output, output), _plain_copy(other)
    return _Pair(path, output, place, expected, _plain_copy(place), _complement(_each_once(expected, output)))


def _replay_and_compare(graph: seam.BreakableGraph, number: int, pairs: list[_Pair]) -> list[OutputMismatch]:
    with torch.inference_mode():
        for pair in pairs:
            pair.place.copy_(pair.poison)
    try:
        graph.replay()
    except BaseException:
        with torch.inference_mode():
            for pair in pairs:
                pair.place.copy_(pair.before)
        raise
    with torch.inference_mode():
        compared = [_compare(number, pair) for pair in pairs]
    return [mismatch for mismatch in compared if mismatch is not None]


def _compare(number: int, pair: _Pair) -> OutputMismatch | None:
    """Compare one output, and put back what it held where the replay did not write it."""
    now, written = _plain_copy(pair.output), _plain_copy(pair.place)
    differs = _differing(now, pair.expected)
    count = int(differs.sum())
    if not count:
        return None
    unwritten = ~_differing(written, pair.poison)
    pair.place.copy_(torch.where(unwritten, pair.before, written))
    return OutputMismatch(
        round=number,
        path=pair.path,
        differing_elements=count,
        elements=now.numel(),
        max_abs_difference=_furthest(now, pair.expected, differs & ~unwritten),
        unwritten_elements=int(unwritten.sum()),
    )


def _each_once(tensor: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
    """The part of a tensor that is left when ``output`` loses the dimensions along which it repeats one element."""
    for dimension, (size, stride) in enumerate(zip(output.shape, output.stride(), strict=True)):
        if stride == 0 and size > 1:
            tensor = tensor.narrow(dimension, 0, 1)
    return tensor


def _plain_copy(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """The bits of a plain tensor as integers, of one dimension more where an element has more than 64."""
    if tensor.dtype == torch.complex128:
        tensor = torch.view_as_real(tensor)
    return tensor.view(_WORDS[tensor.dtype.itemsize])


def _differing(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Which elements differ in a bit: not-a-numbers are compared as well, and 0 is not -0."""
    differs = _bits(one) != _bits(other)
    return differs.any(-1) if differs.dim() > one.dim() else differs


def _complement(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of which no bit is the same; of truth values, none."""
    tensor = tensor.contiguous()
    if tensor.dtype == torch.bool:
        return ~tensor
    inverted = ~_bits(tensor)
    if tensor.dtype == torch.complex128:
        return torch.view_as_complex(inverted.view(torch.float64))
    return inverted.view(tensor.dtype)


def _furthest(one: torch.Tensor, other: torch.Tensor, where: torch.Tensor) -> float:
    if not where.any():
        return 0.0
    wide = torch.complex128 if one.is_complex() else torch.float64
    return float((one[where].to(wide) - other[where].to(wide)).abs().max())


def _told(tensor: torch.Tensor) -> str:
    return f"{tensor.dtype} {tuple(tensor.shape)} on {tensor.device}"


def _disagree(label: str, problem: str) -> GraphDedupError:
    return GraphDedupError(
        f"{label} cannot be checked: {problem}",
        remedy="give check() the tensors that the captured forward returned, and an eager() that computes the same ones",
    )
