"""Two nodes side by side: the fields in which they differ, in words, and which of them must be equal to share an executable."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from graphdedup import signature
from graphdedup.capabilities import Capabilities
from graphdedup.driver.attributes import ATTRIBUTES, Effect
from graphdedup.driver.protocol import Reads
from graphdedup.errors import SettingsError
from graphdedup.kernel_names import side_by_side
from graphdedup.signature import Tier
from graphdedup.topology import FOLDABLE_KINDS, Node

__all__ = ["FieldDifference", "Held", "costs_time_only", "differences", "first_difference", "forbids_sharing", "rank"]

Dim3 = tuple[int, int, int]
_NO_CLUSTER = (0, 0, 0)
_ONE = (1, 1, 1)
_ALWAYS_READ = ("cooperative", "cluster", "parameters", "local memory")
_COPY_EXTENT = {"width_bytes": "copy width", "height": "copy height", "depth": "copy depth"}
_MEMSET_EXTENT = {
    "height": "memset height",
    "width_bytes": "memset width",
    "element_bytes": "memset element size",
    "pitch_bytes": "memset pitch",
}


class FieldDifference(NamedTuple):
    """A field in which two nodes differ, with both values in words."""

    field: str
    left: str
    right: str


@dataclass(frozen=True, slots=True)
class Held:
    """What must be equal between graphs that share an executable, as the key and the fold hold it (rules D3, D4).

    Kinds, edges, cooperative launch, local memory, kinds of copies and the extent of memsets of several rows always are.
    """

    functions: bool
    """Kernel functions."""
    clusters: bool
    """Cluster dimensions, whatever the functions."""
    clusters_of_a_function: bool
    """Cluster dimensions at nodes where the function is the same."""
    reads: Reads
    """What else is read of each node: attributes, sizes of launches, copies and memsets."""

    @classmethod
    def of(cls, tier: str, capabilities: Capabilities, instantiate_flags: int) -> Held:
        """What a fold of this tier holds on a device of these capabilities.

        Raises:
            SettingsError: there is no such tier.
        """
        try:
            known = Tier(tier)
        except ValueError:
            remedy = f"use one of {', '.join(Tier)}"
            raise SettingsError(f"tier {tier!r} is unknown.", remedy=remedy) from None
        everything = known is not Tier.STRUCTURE
        return cls(
            functions=everything or not capabilities.carries_function,
            clusters=everything or not capabilities.carries_cluster,
            clusters_of_a_function=not capabilities.carries_cluster_alone,
            reads=signature.reads(capabilities, instantiate_flags, known),
        )


def first_difference(left: Node, right: Node, held: Held | None = None) -> FieldDifference | None:
    """The first field in which two nodes differ; None: there is none. Child graphs are not looked into.

    With ``held`` only fields that must be equal count; without it any does, in the order kind, kernel function, cluster
    dimension, cooperative launch, local memory, attributes, grid, block, shared memory, copies and memsets, parameters.
    """
    return next(differences(left, right, held), None)


def differences(left: Node, right: Node, held: Held | None = None) -> Iterator[FieldDifference]:
    """All of them, in that order. Nodes of two kinds differ in their kind alone."""
    if left == right:
        return
    if left.kind != right.kind:
        yield FieldDifference("kind", left.kind, right.kind)
        return
    if left.context != right.context:
        yield FieldDifference("context", *(str(node.context or "the device's own") for node in (left, right)))
    if left.kind == "kernel":
        yield from _kernel(left, right, held)
    elif left.kind == "memcpy":
        yield from _memcpy(left, right, held)
    elif left.kind == "memset":
        yield from _memset(left, right, held)
    if held is None:
        extents = {"memcpy": _COPY_EXTENT, "memset": _MEMSET_EXTENT | {"value": ""}}.get(left.kind, {})
        yield from _parameters(left.parameters, right.parameters, extents)


def forbids_sharing(node: Node, held: Held) -> str:
    """Why a graph with this node gets an executable of its own, or an empty string (rules D3, D11)."""
    if node.kind not in FOLDABLE_KINDS:
        return f"graphs with a node of kind {node.kind} are passed through (rule D11)"
    updatable = node.attributes.get("device_updatable", 0)
    if updatable[0] if isinstance(updatable, tuple) else updatable:
        return "graphs with a device-updatable kernel are passed through (rule D11)"
    clustered = any(_cluster(node)) or "cluster" in node.unreadable
    asked = [
        name
        for name in held.reads.attributes
        if ATTRIBUTES[name].effect is Effect.BYTES and (clustered or not ATTRIBUTES[name].needs_clusters)
    ]
    hidden = [name for name in (*_ALWAYS_READ, *asked) if name in node.unreadable]
    return f"{', '.join(map(_spaced, hidden))} cannot be read and could be in use (rule D3)" if hidden else ""


def costs_time_only(field: str) -> bool:
    """Whether a field is a launch attribute that changes nothing but time."""
    return field in _TIME_ONLY


# Kernels


def _kernel(left: Node, right: Node, held: Held | None) -> Iterator[FieldDifference]:
    same_function = left.name == right.name and (left.function == right.function or None in (left.function, right.function))
    if not same_function and (held is None or held.functions):
        names = side_by_side(left.name, right.name)
        if names[0] == names[1]:
            names = names[0], "another function of this name"
        yield FieldDifference("kernel function", *names)
    if _clusters_differ(_cluster(left), _cluster(right), same_function, held):
        one, other = (str(each) if any(each) else "none" for each in (_cluster(left), _cluster(right)))
        yield FieldDifference("cluster dimension", one, other)
    cooperative = [bool(node.attributes.get("cooperative", 0)) for node in (left, right)]
    if cooperative[0] != cooperative[1]:
        yield FieldDifference("cooperative launch", *("yes" if each else "no" for each in cooperative))
    if left.local_bytes != right.local_bytes and None not in (left.local_bytes, right.local_bytes):
        yield FieldDifference("local memory", f"{left.local_bytes} bytes a thread", f"{right.local_bytes} bytes a thread")
    yield from _attributes(left, right, held)
    if held is None or held.reads.geometry:
        if left.grid != right.grid:
            yield FieldDifference("grid", str(left.grid), str(right.grid))
        if left.block != right.block:
            yield FieldDifference("block", str(left.block), str(right.block))
        if left.shared_bytes != right.shared_bytes:
            yield FieldDifference("shared memory", f"{left.shared_bytes} bytes", f"{right.shared_bytes} bytes")


def _cluster(node: Node) -> Dim3:
    """The cluster dimension of a launch; zeros: none."""
    if node.cluster is not None and any(node.cluster):
        return node.cluster
    return node.required_cluster or _NO_CLUSTER


def _clusters_differ(left: Dim3, right: Dim3, same_function: bool, held: Held | None) -> bool:
    if held is None or held.clusters:
        return left != right
    if not (held.clusters_of_a_function and same_function):
        return False
    # Among graphs that share, a kernel that sets none is made to say (1, 1, 1).
    return (left if any(left) else _ONE) != (right if any(right) else _ONE)


def _attributes(left: Node, right: Node, held: Held | None) -> Iterator[FieldDifference]:
    told = left.attributes.keys() | right.attributes.keys()
    known = [name for name in ATTRIBUTES if name in told]
    names = held.reads.attributes if held is not None else (*known, *sorted(told - ATTRIBUTES.keys()))
    for name in names:
        if name == "cooperative" or name in left.unreadable or name in right.unreadable:
            continue
        one, other = _attribute(left, name), _attribute(right, name)
        if one != other:
            yield FieldDifference(_spaced(name), str(one), str(other))


def _attribute(node: Node, name: str) -> Any:
    """A kernel without clusters says nothing by an attribute that only clusters use."""
    usable = name not in ATTRIBUTES or not ATTRIBUTES[name].needs_clusters or any(_cluster(node))
    return node.attributes.get(name, 0) if usable else 0


def _spaced(name: str) -> str:
    return name.replace("_", " ")


def rank(field: str) -> int:
    """Where a field stands in the order of :func:`first_difference`."""
    return _ORDER.index(field) if field in _ORDER else _ORDER.index("grid")


_TIME_ONLY = {_spaced(name) for name, attribute in ATTRIBUTES.items() if attribute.effect is Effect.TIME}


_ORDER = (
    "kind",
    "context",
    "kernel function",
    "cluster dimension",
    "cooperative launch",
    "local memory",
    *map(_spaced, ATTRIBUTES),
    "grid",
    "block",
    "shared memory",
    "copy kind",
    *_COPY_EXTENT.values(),
    *_MEMSET_EXTENT.values(),
    "memset value",
    "parameters",
)

# Copies, memsets, parameters


def _memcpy(left: Node, right: Node, held: Held | None) -> Iterator[FieldDifference]:
    if left.memory is not None and right.memory is not None and left.memory != right.memory:
        yield FieldDifference("copy kind", " to ".join(left.memory), " to ".join(right.memory))
    if held is None or held.reads.memcpy_extent:
        yield from _extent(left, right, _COPY_EXTENT)


def _memset(left: Node, right: Node, held: Held | None) -> Iterator[FieldDifference]:
    rows = max(_rows(left), _rows(right))
    if held is None or rows > 1:
        yield from _extent(left, right, _MEMSET_EXTENT)
    elif held.reads.memset_extent:
        yield from _extent(left, right, {key: _MEMSET_EXTENT[key] for key in ("width_bytes", "element_bytes")})
    if held is None and left.parameters.get("value") != right.parameters.get("value"):
        yield FieldDifference("memset value", str(left.parameters.get("value")), str(right.parameters.get("value")))


def _rows(node: Node) -> int:
    height = node.parameters.get("height", 1)
    return height if isinstance(height, int) else 1


def _extent(left: Node, right: Node, fields: Mapping[str, str]) -> Iterator[FieldDifference]:
    for key, field in fields.items():
        one, other = left.parameters.get(key), right.parameters.get(key)
        if one != other:
            yield FieldDifference(field, str(one), str(other))


def _parameters(left: Mapping[str, Any], right: Mapping[str, Any], but_for: Mapping[str, str]) -> Iterator[FieldDifference]:
    """The first one that differs: together they are one field."""
    for key in (*left, *(key for key in right if key not in left)):
        one, other = left.get(key), right.get(key)
        if one == other or key in but_for:
            continue
        place = key
        if isinstance(one, list) and isinstance(other, list):
            unequal = (at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
            at = next(unequal, min(len(one), len(other)))
            place = f"{key}[{at}]"
            one, other = (each[at] if at < len(each) else None for each in (one, other))
        yield FieldDifference("parameters", f"{place} {_value(one)}", f"{place} {_value(other)}")
        return


def _value(value: Any) -> str:
    text = "none" if value is None else str(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
