"""A tiny captured graph that tells, per device, how torch instantiates and which addresses a random kernel reads.

On torch 2.9 to 2.11 a captured kernel that draws random numbers holds two pointers: to the seed and to the offset that
torch's ``replay()`` fills in. Both belong to the default generator and are the same in every capture as long as one
registered graph lives; the anchor lives for ever. From torch 2.12 they differ from capture to capture, so a draw cannot be
told this way (rule D12).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import torch

from graphdedup.driver.cuda_calls import call
from graphdedup.driver.cuda_raw import raw_calls
from graphdedup.driver.cuda_walk import GraphReader

__all__ = ["Anchor", "anchor_of"]

_anchors: dict[int, Anchor] = {}


@dataclass(frozen=True, slots=True)
class Anchor:
    """``philox_pointers``: the two addresses, as the eight bytes that stand in a kernel's parameters; None when unknown."""

    graph: torch.cuda.CUDAGraph
    target: torch.Tensor
    flags: int
    philox_pointers: tuple[bytes, ...] | None


def anchor_of(device: torch.device, driver: Any) -> Anchor:
    """The anchor of a device; made at the first call, outside of any capture of this thread."""
    if device.index not in _anchors:
        _anchors[device.index] = _make(device, driver)
    return _anchors[device.index]


def _make(device: torch.device, driver: Any) -> Anchor:
    generator = torch.cuda.default_generators[device.index]
    state = generator.get_state()
    stream = torch.cuda.Stream(device)
    target = torch.zeros(1, device=device)
    stream.wait_stream(torch.cuda.current_stream(device))
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.stream(stream):
        target.uniform_()  # loads the kernel, which must not happen inside a capture
        graph.capture_begin(capture_error_mode="thread_local")
        target.uniform_()
        graph.capture_end()
        graph.instantiate()
    stream.synchronize()
    generator.set_state(state)  # the user's own sequence goes on as if nothing had been drawn
    flags = int(call(driver.cuGraphExecGetFlags(driver.CUgraphExec(graph.raw_cuda_graph_exec())), "cuGraphExecGetFlags"))
    per_capture = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 12)
    pointers = None if per_capture else _pointers(graph, target, driver)
    return Anchor(graph, target, flags, pointers)


def _pointers(graph: torch.cuda.CUDAGraph, target: torch.Tensor, driver: Any) -> tuple[bytes, ...] | None:
    found: set[int] = set()
    calls, reader = raw_calls(), GraphReader(driver)
    for handle in calls.nodes(graph.raw_cuda_graph()):
        params = calls.params(handle)
        blocks = reader.parameter_bytes(params) if params is not None else None
        if blocks is None:
            return None
        for block in blocks:
            words = struct.unpack_from(f"<{len(block) // 8}Q", block)
            found.update(word for word in words if _is_device_address(word, driver))
    found.discard(target.data_ptr())
    # Seed and offset, and nothing else: otherwise the kernel is not the one that this was measured with.
    return tuple(struct.pack("<Q", word) for word in sorted(found)) if len(found) == 2 else None


def _is_device_address(word: int, driver: Any) -> bool:
    result = driver.cuPointerGetAttribute(driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE, word)
    return bool(result[0] == 0 and int(result[1]) == 2)  # CU_MEMORYTYPE_DEVICE
