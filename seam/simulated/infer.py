"""What a torch operator would return, found without running it, and what kind of operator it is."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import _disable_current_modes

from .tensors import map_tensors, tensors_in

__all__ = ["Inferred", "Spec", "Traits", "argument", "draws", "infer", "traits_of"]

# Not annotated as views, yet their results share an argument's storage.
_SILENT_VIEWS = frozenset({"_unsafe_view", "unsafe_split", "unsafe_split_with_sizes"})
_ALLOCATIONS = frozenset({"empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided"})
_CACHE_LIMIT = 8192
_NUMBERS = frozenset({int, float, bool})


class Spec(NamedTuple):
    """Shape of a tensor that does not exist yet."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype


class Inferred(NamedTuple):
    """``result``: what the call returns, with a :class:`Spec` for each tensor. ``written``: the written arguments'
    shapes afterwards, which an ``out=`` call may change; empty where they could not be inferred.
    """

    result: Any
    written: tuple[Spec, ...]


@dataclass(frozen=True, slots=True)
class Traits:
    """What the schema of an operator says about it."""

    name: str
    composite: bool
    """Made of other operators, and without a kernel of its own: those are recorded in its place."""
    autocast: bool
    view: bool
    allocates_only: bool
    reads_on_host: bool
    dynamic_shape: bool
    seeded: bool
    has_device: bool
    returns_tensor: bool
    returns_nothing: bool
    written: tuple[tuple[str, int], ...]
    """Name and position of each argument that is written."""
    returns_written: tuple[int | None, ...]
    """For each return: which of ``written`` it is, or None where it is new."""
    arguments: tuple[str, ...]
    defaults: dict[str, Any]


@functools.cache
def traits_of(operator: Any) -> Traits:
    """Read an operator's schema, once."""
    schema, name, tags = operator._schema, operator.overloadpacket.__name__, operator.tags

    def registered(key: str) -> bool:
        return bool(torch._C._dispatch_has_kernel_for_dispatch_key(operator.name(), key))

    written = [(at, arg) for at, arg in enumerate(schema.arguments) if arg.alias_info and arg.alias_info.is_write]
    sets = [arg.alias_info.before_set for _, arg in written]
    returns: list[int | None] = []
    view = name in _SILENT_VIEWS or torch.Tag.inplace_view in tags
    for result in schema.returns:
        alias = result.alias_info
        if alias is None or not alias.is_write:
            returns.append(None)
            view = view or (alias is not None and not written)
        else:
            returns.append(sets.index(alias.before_set) if alias.before_set in sets else 0)
    return Traits(
        name=name,
        composite=registered("CompositeImplicitAutograd") and not registered("CPU"),
        autocast=registered("AutocastCPU"),
        view=view,
        allocates_only=name in _ALLOCATIONS and not written,
        reads_on_host=torch.Tag.data_dependent_output in tags,
        dynamic_shape=torch.Tag.dynamic_output_shape in tags,
        seeded=torch.Tag.nondeterministic_seeded in tags,
        has_device=any(arg.name == "device" for arg in schema.arguments),
        returns_tensor=any("Tensor" in str(result.type) for result in schema.returns),
        returns_nothing=not schema.returns,
        written=tuple((arg.name, at) for at, arg in written),
        returns_written=tuple(returns),
        arguments=tuple(arg.name for arg in schema.arguments),
        defaults={arg.name: arg.default_value for arg in schema.arguments if arg.has_default_value()},
    )


def argument(traits: Traits, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """An argument of a call by its name in the schema; its default, or None, if it was not given."""
    if name in kwargs:
        return kwargs[name]
    if name in traits.arguments and traits.arguments.index(name) < len(args):
        return args[traits.arguments.index(name)]
    return traits.defaults.get(name)


def draws(traits: Traits, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether the result of a call depends on random numbers."""
    if not traits.seeded:
        return False
    for name in ("train", "training"):
        if name in traits.arguments and argument(traits, name, args, kwargs) is False:
            return False
    if "dropout_p" in traits.arguments and argument(traits, "dropout_p", args, kwargs) == 0:
        return False
    return not (traits.name == "native_dropout" and argument(traits, "p", args, kwargs) == 0)


_cache: dict[Any, Inferred] = {}


def infer(operator: Any, traits: Traits, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Inferred:
    """Shapes of what a call returns, and of what it writes.

    Raises:
        NotImplementedError: the operator cannot run on meta tensors and returns something new.
    """
    try:
        key: Any = (operator, _key(args), _key(kwargs), torch.get_default_dtype())
        known = _cache.get(key)
    except TypeError:  # an argument that cannot be hashed, such as a script object
        key = known = None
    if known is None:
        known = _run_on_meta(operator, traits, args, kwargs)
        if key is not None:
            if len(_cache) >= _CACHE_LIMIT:
                _cache.clear()
            _cache[key] = known
    return known


def _key(value: Any) -> Any:
    if type(value) in _NUMBERS:
        return type(value), value  # 1, 1.0 and True are equal, and promote differently
    if isinstance(value, torch.Tensor):
        return value.shape, value.stride(), value.dtype
    if isinstance(value, (list, tuple)):
        return tuple([_key(item) for item in value])
    if isinstance(value, dict):
        return tuple((name, _key(item)) for name, item in value.items())
    hash(value)
    return value


def _to_meta(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")


def _spec(tensor: torch.Tensor) -> Spec:
    return Spec(tuple(tensor.shape), tensor.stride(), tensor.dtype)


def _run_on_meta(operator: Any, traits: Traits, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Inferred:
    import torch._meta_registrations  # many operators have their meta kernel only once this was imported

    with _disable_current_modes(), torch.no_grad():
        meta_args = map_tensors(args, torch.Tensor, _to_meta)
        meta_kwargs = map_tensors(kwargs, torch.Tensor, _to_meta)
        if traits.has_device:
            meta_kwargs["device"] = "meta"
            if meta_kwargs.get("pin_memory") is not None:
                meta_kwargs["pin_memory"] = False
        try:
            result = operator(*meta_args, **meta_kwargs)
        except NotImplementedError:
            if any(which is None for which in traits.returns_written):
                raise
            return Inferred(None, ())
        written: list[Spec] = []
        for name, _ in traits.written:
            written += [_spec(item) for item in tensors_in(argument(traits, name, meta_args, meta_kwargs))]
    return Inferred(map_tensors(result, torch.Tensor, _spec), tuple(written))
