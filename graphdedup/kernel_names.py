"""Names of kernels for people: demangled, and short enough for a line."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import torch

if TYPE_CHECKING:
    from graphdedup.driver.protocol import GraphRecord

__all__ = ["NodeCount", "demangle", "in_words", "node_counts", "side_by_side"]

_LINE = 80
_LONGEST = 120
_BEFORE = 40
"""Characters that are kept ahead of the first one in which two long names differ."""


class NodeCount(NamedTuple):
    """How many nodes of a graph are of one kind, and if they are kernels, of one function."""

    kind: str
    name: str
    """As the driver tells it, which may be mangled."""
    nodes: int


def node_counts(record: GraphRecord) -> tuple[NodeCount, ...]:
    """The nodes of a graph by kind and kernel; a child graph is one node."""
    counted = Counter((node.kind, node.function if node.kind == "kernel" else 0) for node in record.nodes)
    return tuple(NodeCount(kind, record.names.get(function, ""), count) for (kind, function), count in counted.items())


@lru_cache(maxsize=8192)
def demangle(name: str) -> str:
    """A kernel's name as it stands in the source; unchanged where it is not mangled, or where torch cannot demangle."""
    call = getattr(torch._C, "_demangle", None)
    if call is None or not name.startswith("_Z"):
        return name
    try:
        return str(call(name))
    except (TypeError, ValueError, RuntimeError):
        return name


@lru_cache(maxsize=8192)
def in_words(name: str) -> str:
    """The demangled name; of a long one the arguments are left out, then what stands in its templates."""
    told = demangle(name)
    if len(told) > _LINE:
        told = _outline(told, templates=True)
    if len(told) > _LINE:
        told = _outline(told, templates=False)
    return told if len(told) <= _LONGEST else f"{told[: _LONGEST - 3]}..."


def side_by_side(left: str, right: str) -> tuple[str, str]:
    """Two names in words, in which what they differ in is not left out."""
    short = in_words(left), in_words(right)
    if left == right or short[0] != short[1]:
        return short
    full = demangle(left), demangle(right)
    same = next((at for at, (a, b) in enumerate(zip(*full, strict=False)) if a != b), min(map(len, full)))
    begin = max(0, same - _BEFORE)
    return _part(full[0], begin), _part(full[1], begin)


def _part(name: str, begin: int) -> str:
    end = begin + _LONGEST - 6
    return f"{'...' if begin else ''}{name[begin:end]}{'...' if len(name) > end else ''}"


def _outline(name: str, *, templates: bool) -> str:
    """The name without its argument list; ``templates`` False leaves out what stands between angle brackets as well."""
    out: list[str] = []
    depth = at = 0
    while at < len(name):
        char = name[at]
        if char == "(":
            end = _closing(name, at)
            if not depth and not name.startswith("(anonymous", at):
                break
            if templates or not depth:
                out.append(name[at : end + 1])
            at = end
        elif char == "<" and not "".join(out[-9:]).endswith("operator"):
            if templates or not depth:
                out.append("<" if templates else "<...")
            depth += 1
        elif char == ">" and depth and name[at - 1] != "-":
            depth -= 1
            if templates or not depth:
                out.append(char)
        elif templates or not depth:
            out.append(char)
        at += 1
    return "".join(out).rstrip()


def _closing(name: str, at: int) -> int:
    """Index of the bracket that closes the one at ``at``; the last index where none does."""
    depth = 0
    for place in range(at, len(name)):
        depth += {"(": 1, ")": -1}.get(name[place], 0)
        if not depth:
            return place
    return len(name) - 1
