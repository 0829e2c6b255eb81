"""The memory of CUDA graphs: what their nodes name, found through torch's allocator and the driver.

A kernel's parameters are bytes: every aligned word of them that is an address of device memory counts. What a kernel
reaches only through pointers that lie in device memory, and host memory that it writes itself, is not seen.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from graphdedup.driver.cuda_calls import call
from graphdedup.driver.cuda_export import GraphExporter
from graphdedup.driver.memory import Region, Saved, Unverifiable, check_kind, merged
from graphdedup.topology import Node

__all__ = ["CudaGraphMemory", "Named", "named_by", "regions_of"]

PIECE_BYTES = 16 << 20
"""Regions are no larger, so that of a large block only the pieces that a graph wrote are held twice and put back."""
_LOWEST, _HIGHEST = 1 << 16, 1 << 57
"""No device address lies outside, and most of what is no address does."""
_ALIGNED_BYTES = 512
_DEVICE_MEMORY = 2  # CU_MEMORYTYPE_DEVICE


class Named(NamedTuple):
    """What nodes name: words that may be device addresses, and exact ranges of host memory."""

    words: set[int]
    host: set[Region]


def named_by(nodes: Iterable[Node]) -> Named:
    """What nodes name, child graphs included: words of kernel parameters, ends of copies, targets of fills.

    Host memory that is only read is left out: nothing may be put back there.

    Raises:
        Unverifiable: the driver does not tell a node's parameters, or a node could do more than write memory.
    """
    named = Named(set(), set())
    for node in nodes:
        check_kind(node.index, node.kind)
        hidden = {"parameters", "kernel_params"}.intersection(node.unreadable)
        if hidden:
            raise _untold(node, f"the driver does not tell its {hidden.pop()}")
        if node.kind == "kernel":
            for block in node.parameters["kernel_params"]:
                packed = bytes.fromhex(block)
                named.words.update(struct.unpack_from(f"<{len(packed) // 8}Q", packed))
        elif node.kind == "memcpy":
            source, target = node.memory or ("unknown", "unknown")
            if source != "host":  # only read, and what it once was may be something else's by now
                _add_end(named, node, node.parameters["source"], source)
            _add_end(named, node, node.parameters["destination"], target)
        elif node.kind == "memset":
            named.words.add(node.parameters["destination"])
        elif node.child is not None:
            child = named_by(node.child.nodes)
            named.words.update(child.words)
            named.host.update(child.host)
    return named


def _add_end(named: Named, node: Node, address: int, memory: str) -> None:
    if memory == "device":
        named.words.add(address)
    elif memory == "host" and node.parameters["height"] <= 1 and node.parameters["depth"] <= 1:
        named.host.add(Region(address, node.parameters["width_bytes"]))
    else:
        raise _untold(node, f"one end of it lies in {memory} memory, of an extent that is not told")


def _untold(node: Node, why: str) -> Unverifiable:
    return Unverifiable(
        f"the memory of node {node.index} ({node.name or node.kind}) cannot be told: {why}",
        remedy="compare this graph with its eager forward, see graphdedup.check",
    )


class _Span(NamedTuple):
    """A range of torch's allocator."""

    region: Region
    segment: int
    live: bool
    """Whether its bytes mean anything."""


def regions_of(
    words: Iterable[int], segments: Sequence[Mapping[str, Any]], range_of: Callable[[int], Region | None]
) -> list[Region]:
    """The memory that words point into, each range once and in order; named neighbours of one segment are one region.

    In a private pool it is the whole segment: what a graph wrote there may have been freed and cut anew by later captures,
    so that today's blocks do not tell how far it reaches. Elsewhere it is the block, unless that is free: then the next
    allocation of any thread may take it, and nothing of it may be put back.

    Args:
        words: numbers, most of which are no addresses.
        segments: ``torch.cuda.memory_snapshot()``.
        range_of: the allocation around an address that torch's allocator does not have; None where it is none.
    """
    spans = sorted(_spans(segments))
    starts = [span.region.address for span in spans]
    found: set[int] = set()
    others: set[Region] = set()
    for word in words:
        if not _LOWEST <= word < _HIGHEST:
            continue
        at = bisect_right(starts, word) - 1
        if at >= 0 and word < spans[at].region.end:
            if spans[at].live:
                found.add(at)
        elif (other := range_of(word)) is not None:
            others.add(other)
    regions: list[Region] = []
    for at in sorted(found):
        region, segment, _ = spans[at]
        if at - 1 in found and spans[at - 1].segment == segment:
            region = Region(regions[-1].address, region.end - regions.pop().address)
        regions.append(region)
    return sorted([*regions, *others])


def _spans(segments: Sequence[Mapping[str, Any]]) -> Iterator[_Span]:
    for number, segment in enumerate(segments):
        if tuple(segment.get("segment_pool_id", (0, 0))) != (0, 0):
            yield _Span(Region(segment["address"], segment["total_size"]), number, True)
            continue
        for block in segment["blocks"]:
            yield _Span(Region(block["address"], block["size"]), number, block["state"].startswith("active"))


def _pieces(regions: Iterable[Region]) -> Iterator[Region]:
    for region in regions:
        for start in range(region.address, region.end, PIECE_BYTES):
            yield Region(start, min(PIECE_BYTES, region.end - start))


class CudaGraphMemory:
    """Bytes that graphs of one CUDA device reach; see :class:`~graphdedup.driver.memory.GraphMemory`.

    Args:
        driver: ``cuda.bindings.driver``.
        device: the device.
    """

    def __init__(self, driver: Any, device: torch.device) -> None:
        self._driver = driver
        self._device = device

    def regions(self, raw: int) -> tuple[Region, ...]:
        """Blocks and segments of torch's allocator, and other allocations, that nodes name."""
        with torch.cuda.device(self._device):
            nodes, _ = GraphExporter(self._driver).export_nodes(raw)
            named = named_by(nodes)
            try:
                segments = torch.cuda.memory_snapshot()
            except RuntimeError as error:
                raise Unverifiable(
                    f"torch's allocator does not tell its blocks: {str(error).splitlines()[0]}",
                    remedy="verify with the native allocator: unset backend: in PYTORCH_CUDA_ALLOC_CONF",
                ) from error
            spans = regions_of(named.words, segments, self._range_of)
        joined = merged(dict.fromkeys((*spans, *named.host), ()))
        return tuple(_pieces(joined))

    def _range_of(self, address: int) -> Region | None:
        """The allocation of device memory around an address that is not torch's."""
        driver = self._driver
        kind = driver.cuPointerGetAttribute(driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address)
        if kind[0] != 0 or int(kind[1]) != _DEVICE_MEMORY:
            return None
        result = driver.cuMemGetAddressRange(address)
        return Region(int(result[1]), int(result[2])) if result[0] == 0 else None

    def save(self, regions: Iterable[Region]) -> Saved:
        """Hold the bytes in device memory if twice as much is free, else in the host's."""
        regions = tuple(regions)
        saved: Saved = {}
        if not regions:
            return saved
        with self._synchronized():
            buffer = self._buffer(sum(_aligned(region.size_bytes) for region in regions), regions)
            start = 0
            for region in regions:
                saved[region] = held = buffer[start : start + region.size_bytes]
                start += _aligned(region.size_bytes)
                self._copy(held.data_ptr(), region.address, region.size_bytes)
        return saved

    def _buffer(self, size_bytes: int, regions: Sequence[Region]) -> torch.Tensor:
        free_bytes, _ = torch.cuda.mem_get_info(self._device)
        place = self._device if free_bytes >= 2 * size_bytes else torch.device("cpu")
        try:
            buffer = torch.empty(size_bytes, dtype=torch.uint8, device=place)
        except (RuntimeError, MemoryError) as error:  # a GPU out of memory is a RuntimeError
            raise Unverifiable(
                f"there is no room for {size_bytes} bytes in {place.type} memory to hold what a graph reaches",
                remedy="verify with a smaller model or cache, or on a machine with more memory",
            ) from error
        taken = Region(buffer.data_ptr(), size_bytes)
        if any(region.address < taken.end and taken.address < region.end for region in regions):
            raise Unverifiable(
                "torch's allocator hands out memory of the graph itself here", remedy="replay outside of use_mem_pool()"
            )
        return buffer

    def restore(self, saved: Saved) -> None:
        """Write bytes back."""
        with self._synchronized():
            for region, held in saved.items():
                self._copy(region.address, held.data_ptr(), region.size_bytes)

    def differing(self, saved: Saved) -> dict[Region, int]:
        """Compare region by region, where the bytes are held."""
        found: dict[Region, int] = {}
        scratch: dict[str, torch.Tensor] = {}
        largest = max((region.size_bytes for region in saved), default=0)
        with self._synchronized():
            for region, held in saved.items():
                if held.device.type not in scratch:
                    scratch[held.device.type] = torch.empty(largest, dtype=torch.uint8, device=held.device)
                now = scratch[held.device.type][: region.size_bytes]
                self._copy(now.data_ptr(), region.address, region.size_bytes)
                if held.device.type == "cpu":
                    torch.cuda.current_stream(self._device).synchronize()
                count = _differing_bytes(now, held)
                if count:
                    found[region] = count
        return found

    def _copy(self, target: int, source: int, size_bytes: int) -> None:
        """Queue a copy between any two addresses: where each lies, the driver tells by itself."""
        stream = self._driver.CUstream(torch.cuda.current_stream(self._device).cuda_stream)
        call(self._driver.cuMemcpyAsync(target, source, size_bytes, stream), "cuMemcpyAsync")

    @contextmanager
    def _synchronized(self) -> Iterator[None]:
        """Calls on the current stream, done at the end."""
        with torch.cuda.device(self._device):
            yield
            torch.cuda.current_stream(self._device).synchronize()


def _aligned(size_bytes: int) -> int:
    return -(-size_bytes // _ALIGNED_BYTES) * _ALIGNED_BYTES


def _differing_bytes(now: torch.Tensor, held: torch.Tensor) -> int:
    words = now.numel() // 8 * 8
    same_words = torch.equal(now[:words].view(torch.int64), held[:words].view(torch.int64))
    if same_words and torch.equal(now[words:], held[words:]):
        return 0
    return int((now != held).sum())
