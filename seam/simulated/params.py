"""What a captured node acts on: addresses and numbers, fixed at capture.

Parameters never change once they are made, so a graph and its executables may share them and still hold copies in every
sense that matters. A tensor in the device's memory is kept as an address only: whoever re-uses that memory changes what
a launch reads, as on a GPU. A tensor from elsewhere (weights and inputs made by plain torch) keeps its storage alive,
because a dangling host address could crash the process; this is the one liberty taken.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from .tensors import TensorParam, leaves, map_tensors

__all__ = ["AtenParams", "HandParams", "LaunchInfo", "MemcpyParams", "MemsetParams", "OtherParams", "Params", "Runner"]


class LaunchInfo(NamedTuple):
    """How a hand-made kernel was launched, as the executable holds it at that moment."""

    function: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int
    cluster: tuple[int, int, int]
    attributes: Mapping[str, Any]


Runner = Callable[[LaunchInfo], None]


def _describe(value: Any) -> Any:
    if isinstance(value, TensorParam):
        return value.describe()
    if isinstance(value, (list, tuple)):
        return [_describe(item) for item in value]
    if isinstance(value, dict):
        return {str(name): _describe(item) for name, item in value.items()}
    return repr(value)


class Params:
    """Base of what one node acts on."""

    def bind(self) -> Runner | None:
        """A function that does the node's work, or None where there is none. Inference mode must be on."""
        return None

    def describe(self) -> dict[str, Any]:
        """JSON-able: addresses as integers, dtypes by name, scalars by ``repr``."""
        raise TypeError(f"{type(self).__name__} describes nothing")  # pragma: no cover - every subclass does


@dataclass(frozen=True, eq=False)
class AtenParams(Params):
    """A call of a torch operator. ``outputs`` are the places of what it returns; None where that is nothing new.

    ``seeded``: the operator may touch the random generator, whether or not its result depends on it. ``grad``:
    gradients were enabled at capture, which some kernels look at (oneDNN's LSTM gives other last bits without).
    """

    operator: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outputs: tuple[TensorParam | None, ...] = ()
    seeded: bool = False
    grad: bool = False
    _runner: list[Runner] = field(default_factory=list, repr=False)

    def bind(self) -> Runner:
        """Compute, then copy into the recorded outputs; arguments that are written are written in place."""
        if not self._runner:
            self._runner.append(self._make())
        return self._runner[0]

    def _make(self) -> Runner:
        operator = self.operator
        args = map_tensors(self.args, TensorParam, TensorParam.bind)
        kwargs = map_tensors(self.kwargs, TensorParam, TensorParam.bind)
        # An empty place takes nothing; meta kernels call a few work spaces empty that are not.
        outputs = [None if output is None or 0 in output.size else output.bind() for output in self.outputs]
        if all(output is None for output in outputs):

            def in_place(_: LaunchInfo) -> None:
                operator(*args, **kwargs)

            return in_place
        if len(outputs) == 1 and outputs[0] is not None:
            store = outputs[0].copy_

            def single(_: LaunchInfo) -> None:
                store(next(leaves(operator(*args, **kwargs))))

            return single

        def several(_: LaunchInfo) -> None:
            for output, result in zip(outputs, leaves(operator(*args, **kwargs)), strict=True):
                if output is not None and result is not None:  # some kernels leave a result out that meta promises
                    output.copy_(result)

        return several

    def describe(self) -> dict[str, Any]:
        """The call as it was made."""
        return {
            "operator": str(self.operator),
            "args": _describe(self.args),
            "kwargs": _describe(self.kwargs),
            "outputs": [None if output is None else output.describe() for output in self.outputs],
        }


@dataclass(frozen=True, eq=False)
class HandParams(Params):
    """A kernel in Python: ``call(launch_info, *args)`` writes into the tensors among its arguments."""

    call: Callable[..., None]
    args: tuple[Any, ...]

    def bind(self) -> Runner:
        """The call, with tensors over the recorded addresses."""
        call, args = self.call, map_tensors(self.args, TensorParam, TensorParam.bind)

        def run(info: LaunchInfo) -> None:
            call(info, *args)

        return run

    def describe(self) -> dict[str, Any]:
        """The arguments."""
        return {"args": _describe(self.args)}


@dataclass(frozen=True, eq=False)
class MemcpyParams(Params):
    """A copy of ``size_bytes``; ``direction`` is "d2d", "h2d" or "d2h". ``owners`` keep host-side memory alive."""

    target: int
    source: int
    size_bytes: int
    direction: str = "d2d"
    owners: tuple[Any, ...] = ()

    def bind(self) -> Runner:
        """Move the bytes."""
        target, source, size_bytes, move = self.target, self.source, self.size_bytes, ctypes.memmove

        def run(_: LaunchInfo) -> None:
            move(target, source, size_bytes)

        return run

    def describe(self) -> dict[str, Any]:
        """Addresses, bytes and direction."""
        return {
            "target": self.target,
            "source": self.source,
            "size_bytes": self.size_bytes,
            "direction": self.direction,
        }


@dataclass(frozen=True, eq=False)
class MemsetParams(Params):
    """``height`` rows of ``width_bytes`` bytes, ``pitch_bytes`` apart, of elements of one value. 1-D when height is 1."""

    address: int
    width_bytes: int
    value: int = 0
    height: int = 1
    pitch_bytes: int = 0
    owners: tuple[Any, ...] = ()
    element_bytes: int = 1

    def bind(self) -> Runner:
        """Set the bytes."""
        rows = [self.address + row * self.pitch_bytes for row in range(self.height)]
        element = self.value.to_bytes(self.element_bytes, "little")
        content = element * (self.width_bytes // self.element_bytes)
        move, size_bytes = ctypes.memmove, len(content)

        def run(_: LaunchInfo) -> None:
            for row in rows:
                move(row, content, size_bytes)

        return run

    def describe(self) -> dict[str, Any]:
        """Address, value and extent."""
        return {
            "address": self.address,
            "value": self.value,
            "width_bytes": self.width_bytes,
            "height": self.height,
            "pitch_bytes": self.pitch_bytes,
            "element_bytes": self.element_bytes,
        }


@dataclass(frozen=True, eq=False)
class OtherParams(Params):
    """The rest: host nodes (``callback``), child graphs and conditional bodies (``graph``), events, memory nodes.

    A conditional node runs ``graph`` when ``condition()`` is true. Memory nodes name an address and a size; their
    memory is held by the graph, and a launch does nothing for them. Empty and event nodes only order the others.
    """

    callback: Callable[[], None] | None = None
    graph: Any = None
    condition: Callable[[], bool] | None = None
    address: int = 0
    size_bytes: int = 0
    event: Any = None
    held: torch.Tensor | None = None

    def bind(self) -> Runner | None:
        """The host callback, outside inference mode: it is the caller's own code."""
        if self.callback is None:
            return None
        callback = self.callback

        def run(_: LaunchInfo) -> None:
            with torch.inference_mode(False):
                callback()

        return run

    def describe(self) -> dict[str, Any]:
        """Whatever is set."""
        told: dict[str, Any] = {}
        if self.callback is not None:
            told["callback"] = getattr(self.callback, "__qualname__", repr(self.callback))
        if self.graph is not None:
            told["graph"] = self.graph.describe()
        if self.size_bytes:
            told |= {"address": self.address, "size_bytes": self.size_bytes}
        return told
