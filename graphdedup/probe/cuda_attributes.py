"""How a kernel node is given a launch attribute, and how it is read back."""

from __future__ import annotations

import ctypes
from typing import Any

from graphdedup.driver.attributes import ATTRIBUTES, VALUE_BYTES, pack, unpack
from graphdedup.probe.bench import NotHere

__all__ = ["launch_into_graph", "read", "write"]


def write(lib: Any, node: int, name: str, numbers: tuple[int, ...]) -> int:
    """Set an attribute of a kernel node; the driver's result."""
    value = ctypes.create_string_buffer(pack(name, numbers), VALUE_BYTES)
    return int(lib.cuGraphKernelNodeSetAttribute(ctypes.c_void_p(node), ATTRIBUTES[name].number, ctypes.byref(value)))


def read(lib: Any, node: int, name: str) -> tuple[int, ...] | None:
    """An attribute's fields, or None where the driver does not tell."""
    held = ctypes.create_string_buffer(VALUE_BYTES)
    if lib.cuGraphKernelNodeGetAttribute(ctypes.c_void_p(node), ATTRIBUTES[name].number, ctypes.byref(held)) != 0:
        return None
    return unpack(name, held.raw)


class _Attribute(ctypes.Structure):
    """CUlaunchAttribute."""

    _fields_ = (("id", ctypes.c_int), ("pad", ctypes.c_char * 4), ("value", ctypes.c_char * VALUE_BYTES))


class _Config(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("attribute_count", ctypes.c_uint),
    )


def launch_into_graph(
    lib: Any,
    graph: int,
    stream: int,
    function: int,
    grid: tuple[int, int, int],
    block: tuple[int, int, int],
    shared_bytes: int,
    kernel_params: int,
    attributes: dict[str, tuple[int, ...]],
) -> None:
    """Add a kernel node as a captured launch makes it, for attributes that the driver takes at a launch only.

    Raises:
        NotHere: the driver refuses the launch, or the capture.
    """
    array = (_Attribute * max(1, len(attributes)))()
    for place, (name, numbers) in enumerate(attributes.items()):
        array[place].id = ATTRIBUTES[name].number
        ctypes.memmove(ctypes.addressof(array[place]) + _Attribute.value.offset, pack(name, numbers), VALUE_BYTES)
    config = _Config((ctypes.c_uint * 3)(*grid), (ctypes.c_uint * 3)(*block), shared_bytes, stream, array, len(attributes))
    thread_local = 1
    begun = lib.cuStreamBeginCaptureToGraph(
        ctypes.c_void_p(stream), ctypes.c_void_p(graph), None, None, ctypes.c_size_t(0), thread_local
    )
    if begun != 0:
        raise NotHere(f"cuStreamBeginCaptureToGraph answers {begun}")
    launched = lib.cuLaunchKernelEx(ctypes.byref(config), ctypes.c_void_p(function), ctypes.c_void_p(kernel_params), None)
    captured = ctypes.c_void_p()
    ended = lib.cuStreamEndCapture(ctypes.c_void_p(stream), ctypes.byref(captured))
    if launched != 0 or ended != 0:
        names = ", ".join(f"{name}={numbers}" for name, numbers in attributes.items())
        raise NotHere(f"a launch with {names} is refused ({launched or ended})")
