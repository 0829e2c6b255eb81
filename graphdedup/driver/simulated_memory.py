"""The memory of graphs on the simulated device: the storages that their tensors lie in, byte by byte."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator
from typing import Any

from graphdedup.driver.memory import Region, Saved, check_kind, merged
from seam.simulated import SimulatedDevice, SimulatedGraph, SimulatedNode
from seam.simulated.params import AtenParams, HandParams, MemcpyParams, MemsetParams
from seam.simulated.tensors import TensorParam, tensors_in

__all__ = ["SimulatedGraphMemory"]

_Span = tuple[Region, tuple[Any, ...]]
"""A region and what keeps it alive: nothing for the device's own block, which lives as long as the device."""


class _Kept(Region):
    """A region that keeps its memory alive."""

    owners: tuple[Any, ...]


class SimulatedGraphMemory:
    """Bytes of one simulated device; see :class:`~graphdedup.driver.memory.GraphMemory`.

    A launch is done when it returns, so there is no stream to wait for.
    """

    def __init__(self, device: SimulatedDevice) -> None:
        self._device = device

    def regions(self, raw: SimulatedGraph) -> tuple[Region, ...]:
        """The storages of all tensors that nodes name, in the device's memory or outside, and ranges of copies and fills."""
        spans: dict[Region, tuple[Any, ...]] = {}
        for region, owners in _spans(raw):
            spans[region] = spans.get(region, ()) + owners
        return tuple(_kept(self._device, region, owners) for region, owners in merged(spans).items())

    def save(self, regions: Iterable[Region]) -> Saved:
        """Hold the bytes."""
        return {region: _read(region) for region in regions}

    def restore(self, saved: Saved) -> None:
        """Write bytes back."""
        for region, held in saved.items():
            ctypes.memmove(region.address, held, region.size_bytes)

    def differing(self, saved: Saved) -> dict[Region, int]:
        """Compare with the bytes now."""
        now = ((region, _read(region), held) for region, held in saved.items())
        return {region: _differing_bytes(bytes_now, held) for region, bytes_now, held in now if bytes_now != held}


def _kept(device: SimulatedDevice, region: Region, owners: tuple[Any, ...]) -> Region:
    kept = _Kept(*region)
    kept.owners = (device, *owners)
    return kept


def _read(region: Region) -> bytes:
    return ctypes.string_at(region.address, region.size_bytes)


def _differing_bytes(one: bytes, other: bytes) -> int:
    mixed = int.from_bytes(one, "little") ^ int.from_bytes(other, "little")
    return len(one) - mixed.to_bytes(len(one), "little").count(0)


def _spans(graph: SimulatedGraph) -> Iterator[_Span]:
    for index, node in enumerate(graph.nodes):
        check_kind(index, node.kind)
        yield from _spans_of(node)


def _spans_of(node: SimulatedNode) -> Iterator[_Span]:
    params = node.params
    if isinstance(params, AtenParams):
        yield from _storages((params.args, params.kwargs, params.outputs))
    elif isinstance(params, HandParams):
        yield from _storages(params.args)
    elif isinstance(params, MemcpyParams):
        yield Region(params.target, params.size_bytes), params.owners
        yield Region(params.source, params.size_bytes), params.owners
    elif isinstance(params, MemsetParams):
        size_bytes = params.pitch_bytes * (params.height - 1) + params.width_bytes
        yield Region(params.address, size_bytes), params.owners
    elif (child := getattr(params, "graph", None)) is not None:
        yield from _spans(child)


def _storages(arguments: Any) -> Iterator[_Span]:
    for param in tensors_in(arguments, TensorParam):
        if param.owner is None:
            yield Region(param.storage_address, param.storage_bytes), ()
        else:  # a storage that was resized since lies elsewhere now, and that is what a launch uses
            yield Region(param.owner.data_ptr(), param.owner.nbytes()), (param.owner,)
