"""What a break returns: the destination that the next segment bakes, and how a replay writes into it.

Timeline of the failure this prevents. At capture a break returns a tensor; the next segment bakes its address. The
caller's frame ends, the tensor dies, its block is handed to someone else. At replay the break returns a *new* tensor at
another address, and the segment reads the old one: wrong numbers, no error. So the seam owns the destination
(:class:`BreakSlot`), hands *it* to the caller, and copies each later result into it (rules S2, S3, S4).

The rejected alternative is to keep the tensor that the body returned: a body that returns one of two buffers in turn
would have one overwritten with the other.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from seam.errors import BreakError

__all__ = ["BreakSlot", "NoWriteback", "copy_output", "register_output_type", "storages_of", "tensors_in"]

Flatten = Callable[[Any], Sequence[Any]]
Rebuild = Callable[[Any, Sequence[Any]], Any]

_SCALARS = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)
_registry: dict[type, tuple[Flatten, Rebuild]] = {}


class NoWriteback:
    """Wrap a break's result in this to say that nothing of it may be written back.

    The captured program then gets ``value`` as it was at capture, at every replay. Use it for results that no captured
    segment reads. It has to be asked for by name: a result that cannot be written back is an error otherwise (S2).
    """

    def __init__(self, value: Any = None) -> None:
        self.value = value


def register_output_type(kind: type, *, flatten: Flatten, rebuild: Rebuild) -> None:
    """Teach the seam to write back a break's result of type ``kind`` (and of its subclasses).

    Args:
        kind: the type.
        flatten: ``flatten(value)`` gives the parts, each of a type that the seam knows, always in the same order.
        rebuild: ``rebuild(value, parts)`` makes a value like ``value`` that holds ``parts`` instead.
    """
    _registry[kind] = (flatten, rebuild)


def _handler(value: Any) -> tuple[Flatten, Rebuild] | None:
    """The parts of a container, or None for a leaf (tensor or scalar). Nearest registered base wins."""
    for base in type(value).__mro__:
        if base in _registry:
            return _registry[base]
    if isinstance(value, (torch.Tensor, *_SCALARS)):
        return None
    if isinstance(value, Mapping):
        return _mapping_parts, _rebuild_mapping
    if isinstance(value, Sequence):
        return list, _rebuild_sequence
    if dataclasses.is_dataclass(value) or _has_tensor_field(value):
        return _object_parts, _rebuild_object
    raise BreakError(
        f"a break returned {type(value).__qualname__}, which the seam does not know how to write back",
        rule="S2",
        remedy="register it with seam.register_output_type, or return seam.NoWriteback(value) if no captured segment reads it",
    )


def _mapping_parts(value: Mapping[Any, Any]) -> list[Any]:
    return list(value.values())


def _rebuild_mapping(value: Mapping[Any, Any], parts: Sequence[Any]) -> Any:
    made: Any = copy.copy(value)
    for key, part in zip(value, parts, strict=True):
        made[key] = part
    return made


def _rebuild_sequence(value: Any, parts: Sequence[Any]) -> Any:
    if isinstance(value, tuple) and hasattr(value, "_make"):
        return value._make(parts)
    return type(value)(parts)


def _fields(value: Any) -> dict[str, Any]:
    if dataclasses.is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return dict(vars(value))


def _has_tensor_field(value: Any) -> bool:
    return hasattr(value, "__dict__") and any(isinstance(part, torch.Tensor) for part in vars(value).values())


def _object_parts(value: Any) -> list[Any]:
    return list(_fields(value).values())


def _rebuild_object(value: Any, parts: Sequence[Any]) -> Any:
    made = copy.copy(value)
    for name, part in zip(_fields(value), parts, strict=True):
        object.__setattr__(made, name, part)  # a frozen dataclass too: it is a copy that nobody has seen yet
    return made


def map_leaves(value: Any, leaf: Callable[[Any], Any]) -> Any:
    handler = _handler(value)
    if handler is None:
        return leaf(value)
    flatten, rebuild = handler
    return rebuild(value, [map_leaves(part, leaf) for part in flatten(value)])


def storages_of(value: Any) -> set[int]:
    """Addresses of the storages that a value's tensors live in; what holds none contributes nothing.

    Valid only while ``value`` is alive.
    """
    found: set[int] = set()

    def visit(part: Any) -> None:
        if isinstance(part, torch.Tensor):
            if part.layout is torch.strided:
                found.add(part.untyped_storage().data_ptr())
        elif isinstance(part, Mapping):
            for item in part.values():
                visit(item)
        elif isinstance(part, list | tuple | set | frozenset):
            for item in part:
                visit(item)

    visit(value)
    return found


def tensors_in(value: Any, name: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors in a value of any structure that a break may return, and where they are, such as ``[0]['key']``.

    What the seam could not write back is passed over.
    """
    yield from _tensors(value, name, set())


def _tensors(value: Any, name: str, above: set[int]) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield name, value
        return
    try:
        handler = _handler(value)
    except BreakError:
        return
    if handler is None or id(value) in above:
        return
    parts = handler[0](value)
    keys = list(value) if isinstance(value, Mapping) and len(value) == len(parts) else range(len(parts))
    for key, part in zip(keys, parts, strict=True):
        yield from _tensors(part, f"{name}[{key!r}]", above | {id(value)})


def _describe(tensor: torch.Tensor) -> str:
    return f"{tensor.dtype} {tuple(tensor.shape)} on {tensor.device}"


def _pair(destination: Any, source: Any, where: str, pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Collect the tensor copies of one write-back; nothing is moved before all of it was found to agree (S4)."""
    if isinstance(source, NoWriteback):
        raise BreakError(
            f"{where} returned NoWriteback on replay, but at capture it returned a value that a segment bakes",
            rule="S2",
            remedy="return NoWriteback in both, or in neither",
        )
    handler = _handler(destination)
    if handler is not None:
        if type(source) is not type(destination):
            raise BreakError(
                f"{where} returned {type(source).__qualname__}; at capture it was {type(destination).__qualname__}",
                rule="S4",
                remedy="return the same structure at capture and on every replay",
            )
        keys = list(destination) if isinstance(destination, Mapping) else None
        if keys is not None and set(keys) != set(source):
            raise BreakError(
                f"{where} returned keys {sorted(map(str, source))}; at capture they were {sorted(map(str, keys))}",
                rule="S4",
                remedy="return the same keys at capture and on every replay",
            )
        ours = list(handler[0](destination))
        theirs = [source[key] for key in keys] if keys is not None else list(handler[0](source))
        if len(ours) != len(theirs):
            raise BreakError(
                f"{where} returned {len(theirs)} parts; at capture there were {len(ours)}",
                rule="S4",
                remedy="return the same structure at capture and on every replay",
            )
        for index, (mine, new) in enumerate(zip(ours, theirs, strict=True)):
            _pair(mine, new, f"{where}[{keys[index]!r}]" if keys is not None else f"{where}[{index}]", pairs)
    elif isinstance(destination, torch.Tensor):
        if not isinstance(source, torch.Tensor):
            raise BreakError(
                f"{where} returned {type(source).__qualname__}; at capture it was a tensor {_describe(destination)}",
                rule="S4",
                remedy="return a tensor of the captured dtype, shape and device",
            )
        if (source.dtype, source.shape, source.device) != (destination.dtype, destination.shape, destination.device):
            raise BreakError(
                f"{where} returned {_describe(source)}; the next segment baked {_describe(destination)}",
                rule="S4",
                remedy="return the captured dtype, shape and device, or capture a graph for this shape",
            )
        pairs.append((destination, source))
    elif not _same_scalar(destination, source):
        raise BreakError(
            f"{where} returned {source!r}; the next segment baked {destination!r}",
            rule="S2",
            remedy="return it as a tensor: a Python scalar is baked at capture and cannot be written back",
        )


def _same_scalar(baked: Any, new: Any) -> bool:
    return type(baked) is type(new) and (baked == new or (baked != baked and new != new))


def _same_memory(destination: torch.Tensor, source: torch.Tensor) -> bool:
    return destination is source or (destination.data_ptr() == source.data_ptr() and destination.stride() == source.stride())


def copy_output(destination: Any, source: Any, *, where: str = "the break") -> None:
    """Write a break's result into the destination that the next segment baked.

    Covers tensors, sequences (named tuples too), mappings, dataclasses and objects with tensor fields, nested in any
    way, and types taught with :func:`register_output_type`. Python scalars must equal those of the capture.

    Args:
        destination: what :meth:`BreakSlot.bind` made at capture.
        source: what the body returned now.
        where: the break's name, for messages.

    Raises:
        BreakError: structure, dtype, shape, device or a scalar differ (S4), or a type is unknown (S2). Nothing was
            written then.
    """
    pairs: list[tuple[torch.Tensor, torch.Tensor]] = []
    _pair(destination, source, where, pairs)
    moves = [(mine, new) for mine, new in pairs if not _same_memory(mine, new)]
    if len(moves) > 1:
        # A body may return its destinations permuted: read every such source before the first write.
        written = {mine.untyped_storage().data_ptr() for mine, _ in moves}
        moves = [(mine, new.clone() if new.untyped_storage().data_ptr() in written else new) for mine, new in moves]
    for mine, new in moves:
        mine.copy_(new)


class BreakSlot:
    """The destination of one break's result. It belongs to the seam and outlives the frame that made it (S3).

    A break point makes a slot of its own. Pass one explicitly (``@eager_break(slot=...)``) to share a destination between
    *captures*: within one capture a second break on the same slot is refused, by the slot's identity.
    """

    def __init__(self, name: str = "") -> None:
        self.name = name
        self.destination: Any = None
        self._reusable = False

    def bind(
        self,
        value: Any,
        *,
        kept: set[int],
        where: str = "the break",
        empty_strided: Callable[..., torch.Tensor] = torch.empty_strided,
    ) -> Any:
        """Take over a result at capture and return what the captured program must use in its place.

        Fresh tensors are copied into storage that ``empty_strided`` makes, with their strides. A tensor whose storage address
        is in ``kept`` (it lives in one of the break's arguments: the in-place form, a view of an input) *is* its own
        destination, so that later in-place work on it still reaches the argument. A slot that was bound before to an
        equal structure of fresh tensors is used again.

        Raises:
            BreakError: a type that cannot be written back (S2).
        """
        aliases = bool(storages_of(value) & kept)
        if self._reusable and not aliases and self._accepts(value, where):
            copy_output(self.destination, value, where=where)
            return self.destination
        made: dict[int, torch.Tensor] = {}

        def own(part: Any) -> Any:
            if not isinstance(part, torch.Tensor):
                return part
            if part.layout is not torch.strided:
                raise BreakError(
                    f"{where} returned a tensor of layout {part.layout}",
                    rule="S2",
                    remedy="return strided tensors: only these have one storage that a segment can bake",
                )
            if part.numel() and part.untyped_storage().data_ptr() in kept:
                return part.detach()
            if id(part) not in made:
                made[id(part)] = _own_copy(part.detach(), empty_strided)
            return made[id(part)]

        self.destination = map_leaves(value, own)
        self._reusable = not aliases
        return self.destination

    def _accepts(self, value: Any, where: str) -> bool:
        try:
            _pair(self.destination, value, where, [])
        except BreakError:
            return False  # another shape gets another destination; an unknown type is raised when that one is made
        return True


def _own_copy(part: torch.Tensor, empty_strided: Callable[..., torch.Tensor]) -> torch.Tensor:
    stride = part.stride()
    if any(step == 0 and size > 1 for size, step in zip(part.size(), stride, strict=True)):
        stride = torch.empty(part.size(), device="meta").stride()  # expanded: its elements cannot be written one by one
    return empty_strided(part.size(), stride, dtype=part.dtype, device=part.device).copy_(part)
