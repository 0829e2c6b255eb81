"""Parameters of the nodes that are no kernels, checked as they are made."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from .params import MemcpyParams, MemsetParams, OtherParams, Params
from .tensors import TensorParam

if TYPE_CHECKING:
    from .device import SimulatedDevice

__all__ = ["KINDS", "node_params"]

KINDS = frozenset(
    {
        "kernel",
        "memcpy",
        "memset",
        "empty",
        "host",
        "child_graph",
        "mem_alloc",
        "mem_free",
        "conditional",
        "event_record",
        "event_wait",
    }
)


def node_params(
    device: SimulatedDevice,
    kind: str,
    *,
    target: torch.Tensor | None,
    source: torch.Tensor | None,
    size_bytes: int | None,
    direction: str,
    value: int,
    height: int,
    pitch_bytes: int,
    element_bytes: int,
    callback: Callable[[], None] | None,
    graph: Any,
    condition: Callable[[], bool] | None,
    event: Any,
) -> Params:
    """Parameters of one node; see ``SimulatedGraph.add_node``.

    Raises:
        ValueError: an unknown kind, a missing argument, or one out of range.
    """
    if kind == "memcpy" and target is not None and source is not None:
        return _memcpy(device, target, source, size_bytes, direction)
    if kind == "memset" and target is not None:
        return _memset(device, target, size_bytes, value, height, pitch_bytes, element_bytes)
    if kind == "host" and callback is not None:
        return OtherParams(callback=callback)
    if kind == "child_graph" and graph is not None:
        return OtherParams(graph=graph)
    if kind == "conditional" and graph is not None and condition is not None:
        return OtherParams(graph=graph, condition=condition)
    if kind == "mem_alloc" and size_bytes is not None:
        held = device.memory.place((size_bytes,), (1,), torch.uint8, pool=device.graph_pool, stream=0)
        return OtherParams(address=held.data_ptr(), size_bytes=size_bytes, held=held)
    if kind == "mem_free" and target is not None:
        return OtherParams(address=target.data_ptr(), size_bytes=target.untyped_storage().nbytes())
    if kind in ("empty", "event_record", "event_wait"):
        return OtherParams(event=event)
    if kind in KINDS:
        raise ValueError(f"a {kind} node lacks arguments; see SimulatedGraph.add_node")
    raise ValueError(f"no node kind {kind!r}; there are {', '.join(sorted(KINDS))}")


def _memcpy(
    device: SimulatedDevice, target: torch.Tensor, source: torch.Tensor, size_bytes: int | None, direction: str
) -> MemcpyParams:
    to, origin = TensorParam(target, device.memory), TensorParam(source, device.memory)
    count = size_bytes if size_bytes is not None else to.span_bytes
    if direction not in ("d2d", "h2d", "d2h"):
        raise ValueError(f"direction must be 'd2d', 'h2d' or 'd2h', not {direction!r}")
    if not 0 <= count <= min(to.span_bytes, origin.span_bytes):
        raise ValueError(f"memcpy of {count} bytes from {origin.span_bytes} to {to.span_bytes}")
    owners = tuple(owner for owner in (to.owner, origin.owner) if owner is not None)
    return MemcpyParams(to.address, origin.address, count, direction, owners)


def _memset(
    device: SimulatedDevice,
    target: torch.Tensor,
    size_bytes: int | None,
    value: int,
    height: int,
    pitch_bytes: int,
    element_bytes: int,
) -> MemsetParams:
    to = TensorParam(target, device.memory)
    count = size_bytes if size_bytes is not None else to.span_bytes
    if element_bytes not in (1, 2, 4):
        raise ValueError(f"elements of a memset have 1, 2 or 4 bytes, not {element_bytes}")
    if not 0 <= value < 256**element_bytes:
        raise ValueError(
            f"a memset of elements of {element_bytes} bytes: value must be 0 to {256**element_bytes - 1}, not {value}"
        )
    if count % element_bytes:
        raise ValueError(f"memset of {count} bytes in elements of {element_bytes}")
    if count < 0 or height < 1 or (height > 1 and pitch_bytes < count):
        raise ValueError(f"memset of {height} rows of {count} bytes, {pitch_bytes} apart")
    if pitch_bytes * (height - 1) + count > to.span_bytes:
        raise ValueError(f"memset of {height} rows of {count} bytes, {pitch_bytes} apart, in {to.span_bytes} bytes")
    owners = () if to.owner is None else (to.owner,)
    return MemsetParams(to.address, count, value, height, pitch_bytes, owners, element_bytes)
