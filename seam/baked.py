"""What a capture holds from the host as it was: scalars that cross breaks, and host memory that captured copies name.

No replay sees a new value of these. A scalar that should change belongs in a tensor; host memory that a copy reads or writes
has to stay where it is for as long as the graph can be replayed.
"""

from __future__ import annotations

import enum
import gc
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch

from seam.backend import HostCopy
from seam.errors import BreakError
from seam.slot import map_leaves

__all__ = ["Baked", "BakedKind", "numbers_in", "scalars_in", "sources_of"]

_SCALARS = (bool, int, float, complex)


class BakedKind(enum.StrEnum):
    """What is baked."""

    ARGUMENT = "argument"
    """A Python number that a break is called with at every replay."""
    RESULT = "result"
    """A Python number that a break returned, and that later segments were captured with."""
    COPY_FROM_HOST = "copy from host"
    COPY_TO_HOST = "copy to host"


@dataclass(frozen=True, slots=True)
class Baked:
    """One thing of the host that a capture holds as it was.

    Attributes:
        kind: what it is.
        what: the value, or address and bytes.
        where: the break and the place in its arguments or result, or the segment.
        kept: for a copy whether a CPU tensor was found that keeps the memory; the graph then holds it.
    """

    kind: BakedKind
    what: str
    where: str
    kept: bool = True

    def __str__(self) -> str:
        return f"{self.kind} {self.what} ({self.where}){'' if self.kept else ', which nobody keeps alive'}"


def scalars_in(value: Any, where: str) -> Iterator[tuple[str, Any]]:
    """Place and value of the Python numbers in a value, and in tuples: what is in a list or an object may change."""
    if isinstance(value, _SCALARS):
        yield where, value
    elif isinstance(value, tuple):
        names = getattr(value, "_fields", range(len(value)))
        for name, part in zip(names, value, strict=True):
            yield from scalars_in(part, f"{where}.{name}" if isinstance(name, str) else f"{where}[{name}]")


def numbers_in(result: Any) -> list[Any]:
    """The Python numbers in a break's result, wherever they are: its containers are the seam's own."""
    found: list[Any] = []

    def note(leaf: Any) -> Any:
        if isinstance(leaf, _SCALARS):
            found.append(leaf)
        return leaf

    with suppress(BreakError):  # a value that is not written back may be of any type
        map_leaves(result, note)
    return found


def sources_of(copies: tuple[HostCopy, ...]) -> list[torch.Tensor | None]:
    """For each copy a CPU tensor whose storage holds all of its host memory; None where there is none.

    It looks through every object of the process, so it takes a while: for the rare segment that copies from the host.
    """
    found: list[torch.Tensor | None] = [None] * len(copies)
    for candidate in gc.get_objects():
        if not issubclass(type(candidate), torch.Tensor) or candidate.device.type != "cpu":
            continue
        if candidate.layout is not torch.strided:
            continue
        storage = candidate.untyped_storage()
        start = storage.data_ptr()
        for at, copy in enumerate(copies):
            if found[at] is None and start <= copy.address and copy.address + copy.size_bytes <= start + storage.nbytes():
                found[at] = candidate
    return found
