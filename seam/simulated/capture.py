"""One open capture: the graph it builds, the streams that are part of it, and whether it is still valid."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from .errors import SimulatedDeviceError
from .graph import SimulatedGraph

if TYPE_CHECKING:
    import torch

    from .device import SimulatedDevice
    from .infer import Spec
    from .streams import Stream

__all__ = ["Capture"]


class Capture:
    """What one thread records on ``origin`` and on the streams forked from it.

    ``tails`` holds, for each stream of the capture, the nodes that its next node waits for.
    """

    def __init__(self, device: SimulatedDevice, pool: int, origin: Stream, label: str) -> None:
        self.device = device
        self.pool = pool
        self.origin = origin
        self.thread = threading.get_ident()
        self.graph = SimulatedGraph(device, label=label)
        self.tails: dict[Stream, tuple[int, ...]] = {origin: ()}
        self.open = True
        self.error: SimulatedDeviceError | None = None
        origin._capture = self

    def invalidate(self, error: SimulatedDeviceError) -> SimulatedDeviceError:
        """The capture cannot succeed any more; the first reason is kept. Returns ``error``, to be raised."""
        if self.open and self.error is None:
            self.error = error
        return error

    def check(self) -> None:
        """Raise when the capture is invalid already."""
        if self.error is not None:
            raise SimulatedDeviceError(
                f"the capture on {self.origin.name} was invalidated before: {self.error.problem}",
                rule="S7",
                remedy="end it with discard=True, and capture again without the call that failed",
            ) from self.error

    def join(self, stream: Stream, deps: tuple[int, ...]) -> None:
        """``stream`` waits for captured work, and so becomes part of the capture."""
        stream._capture = self
        self.tails[stream] = deps

    def merge(self, stream: Stream, deps: tuple[int, ...]) -> None:
        """``stream``, part of the capture, waits for more of it."""
        here = self.tails[stream]
        self.tails[stream] = here + tuple(dep for dep in deps if dep not in here)

    def place(self, spec: Spec, stream: Stream) -> torch.Tensor:
        """Memory for a tensor that the capture makes on ``stream``."""
        return self.device.memory.place(spec.size, spec.stride, spec.dtype, pool=self.pool, stream=stream.id)

    def add_call(self, stream: Stream, *call: Any, **options: Any) -> None:
        """Record an operator call at the end of ``stream``."""
        self.tails[stream] = (self.graph.add_call(*call, after=self.tails[stream], priority=stream.priority, **options),)

    def add_node(self, stream: Stream, kind: str, **options: Any) -> None:
        """Record a node that is not a kernel at the end of ``stream``."""
        self.tails[stream] = (self.graph.add_node(kind, after=self.tails[stream], **options),)

    def close(self) -> SimulatedDeviceError | None:
        """End the capture, whatever its state: the streams are free again. Returns why it failed, or None."""
        self.open = False
        for stream in self.tails:
            stream._capture = None
        return self.error or self._unjoined()

    def _unjoined(self) -> SimulatedDeviceError | None:
        before: dict[int, list[int]] = {}
        for source, target, _ in self.graph.edges:
            before.setdefault(target, []).append(source)
        reached, todo = set(), list(self.tails[self.origin])
        while todo:
            node = todo.pop()
            if node not in reached:
                reached.add(node)
                todo += before.get(node, [])
        lost = [stream.name for stream, deps in self.tails.items() if not reached.issuperset(deps)]
        if not lost:
            return None
        return SimulatedDeviceError(
            f"{', '.join(lost)} was forked from {self.origin.name} during the capture and never joined",
            rule="S8",
            remedy="let the capture stream wait_stream() for it before the capture ends",
        )
