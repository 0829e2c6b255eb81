"""Who owns what crosses a break, so that it costs the largest shape and not the sum of the shapes (rules S5, M2).

Timeline of the waste that this prevents. A break's arguments and result are kept with its graph, since a replay needs them at
the same addresses. Kept as tensors they pin their blocks of the pool: 36 batch sizes then hold 36 copies of what one replay at
a time can use.

A replay does not need the tensors. What a captured segment writes into memory of the pool it writes there at each replay,
before the break reads it; what the break writes there it writes before the next segment reads it. Between two replays nobody
reads either. So the seam takes the destination of a result from the pool too, and keeps *views* of both, which own nothing.
The caller's own tensors decide how long a block is taken during a forward: later layers, and other graphs, use it again as
they use the memory of any intermediate. The pool itself lives as long as the graph, and as long as the views.

That holds for a tensor that the pool gave out in this very capture, and for no other: a buffer of the caller's, another graph's
output, what a break made outside of the pool, a tensor inside of a list or an object that somebody may change. Those are held.
Where a tensor comes from is looked up in the allocator, not assumed.

The rejected alternative is an allocator of the seam's own: it would have to learn when the caller drops a tensor, which the
device's allocator knows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from seam.backend import Ledger, Pool
from seam.slot import map_leaves, storages_of, tensors_in

__all__ = ["Bridges", "Crossing", "CrossingBytes"]


@dataclass(frozen=True, slots=True)
class CrossingBytes:
    """What crosses one break, arguments and result, each storage counted once."""

    shared_bytes: int = 0
    """In memory of the pool that others use before and after: it costs the largest shape."""
    held_bytes: int = 0
    """In memory of the pool, or of the seam's own, that is held for this break alone."""


@dataclass(frozen=True, slots=True)
class Crossing:
    """What the seam keeps of one break for its replays."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    destination: Any
    """Where every later result is written to."""
    cost: CrossingBytes


class Bridges:
    """What crosses the breaks of one scope.

    Args:
        pool: is captured into. Where there is none, or it opens no ledger, everything is held.
    """

    def __init__(self, pool: Pool | None) -> None:
        self._ledger: Ledger | None = pool.ledger() if pool is not None else None

    @property
    def empty_strided(self) -> Callable[..., torch.Tensor]:
        """Makes the destination of a result; as ``torch.empty_strided``."""
        return torch.empty_strided if self._ledger is None else self._ledger.empty_strided

    def cross(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], given: Any, *, lend_result: bool) -> Crossing:
        """Keep what a replay needs: views of what the pool gave out in this capture, everything else itself.

        A list, mapping or object among the arguments is kept itself, with its tensors: the caller may change what is in it
        between replays.

        Args:
            args: of the break, as the caller passed them.
            kwargs: likewise.
            given: what the captured program gets as the result.
            lend_result: whether the result is written back and nobody else holds its destination.
        """
        lent = _Lent()
        crossing_args = tuple(self._lend(part, lent) for part in args)
        crossing_kwargs = {name: self._lend(part, lent) for name, part in kwargs.items()}
        destination = map_leaves(given, lambda part: self._lend(part, lent)) if lend_result else given
        passed = storages_of((args, dict(kwargs)))
        held = self._held((crossing_args, crossing_kwargs), lent) | self._held(destination, lent, own_beside=passed)
        shared = sum(size for address, size in lent.sizes.items() if address not in held)
        return Crossing(crossing_args, crossing_kwargs, destination, CrossingBytes(shared, sum(held.values())))

    def _lend(self, value: Any, lent: _Lent) -> Any:
        if isinstance(value, torch.Tensor):
            if self._ledger is None or not self._may_be_lent(value):
                return value
            storage = value.untyped_storage()
            lent.sizes[storage.data_ptr()] = storage.nbytes()
            view = self._ledger.view(value)
            lent.views.append(view)
            return view
        if type(value) is tuple or (isinstance(value, tuple) and hasattr(value, "_make")):
            parts = [self._lend(part, lent) for part in value]
            if all(new is old for new, old in zip(parts, value, strict=True)):
                return value
            return value._make(parts) if hasattr(value, "_make") else tuple(parts)
        return value

    def _may_be_lent(self, tensor: torch.Tensor) -> bool:
        return (
            type(tensor) is torch.Tensor
            and tensor.layout is torch.strided
            and not tensor.requires_grad
            and not (tensor.is_conj() or tensor.is_neg())
            and self._made_here(tensor)
        )

    def _made_here(self, tensor: torch.Tensor) -> bool:
        return self._ledger is not None and tensor.numel() > 0 and self._ledger.made_here(tensor)

    def _held(self, kept: Any, lent: _Lent, own_beside: set[int] | None = None) -> dict[int, int]:
        """Address and bytes of what is held for the break alone: of the pool, or outside of it a result that the seam copied.

        Args:
            kept: what the seam keeps.
            lent: what of it are views.
            own_beside: for a result: storages of the arguments, which the caller owns; any other one is the seam's.
        """
        views = {id(view) for view in lent.views}
        held: dict[int, int] = {}
        for _, tensor in tensors_in(kept):
            if id(tensor) in views or tensor.layout is not torch.strided or not tensor.numel():
                continue
            storage = tensor.untyped_storage()
            own = own_beside is not None and storage.data_ptr() not in own_beside
            if own or self._made_here(tensor):
                held[storage.data_ptr()] = storage.nbytes()
        return held


class _Lent:
    """What was lent of one break: the storages' bytes by address, and the views."""

    def __init__(self) -> None:
        self.sizes: dict[int, int] = {}
        self.views: list[torch.Tensor] = []
