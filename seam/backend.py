"""What the seam asks of a device: four calls on graphs, and a pool to capture into.

A backend records what one thread sends to the capture stream between ``begin_capture`` and ``end_capture`` and hands
back an opaque handle. Whoever wraps a backend sees every segment come (``end_capture``) and go (``destroy_graph``):
there is no other way to release one (rule S14).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch

__all__ = ["GraphBackend", "Handle", "HostCopy", "Ledger", "Pool", "SegmentInfo"]

Handle = Any
"""A captured segment, opaque to everyone but the backend that made it."""


class HostCopy(NamedTuple):
    """A captured copy between host and device. A backend that can tell has ``host_copies(handle)``, a tuple of these."""

    address: int
    """Where it lies on the host."""
    size_bytes: int
    to_device: bool


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    """Where a segment stands in its graph; a wrapping backend may use it to place and to name executables."""

    position: int = 0
    """Index of the segment within its graph: 0 for the part before the first break."""
    label: str = ""
    """The caller's name for the graph, such as ``"decode bs=8"``; empty when none was given."""
    after: str = ""
    """The break before the segment, ``name (file:line)``; empty for the first one."""

    def __str__(self) -> str:
        return f"{self.label or 'graph'} segment {self.position}"


class Ledger(Protocol):
    """What a pool gave out since the ledger was opened."""

    def empty_strided(
        self, size: Sequence[int], stride: Sequence[int], *, dtype: torch.dtype, device: torch.device
    ) -> torch.Tensor:
        """A tensor on memory of the pool; on ordinary memory where ``device`` is not the pool's."""

    def made_here(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor's storage is a block that the pool gave out since, and that is still taken."""

    def view(self, tensor: torch.Tensor) -> torch.Tensor:
        """The same elements in a tensor that owns no memory. ``made_here`` holds for the tensor."""


@runtime_checkable
class Pool(Protocol):
    """One memory pool and one capture stream, shared by every segment captured into it (rule M1).

    The pool stays usable as long as this object lives, also when no graph of it is left.
    """

    @property
    def stream(self) -> Any:
        """The capture stream."""

    def current_stream(self) -> Any:
        """The calling thread's current stream on the pool's device."""

    def entered(self) -> AbstractContextManager[None]:
        """Make the capture stream current; it first waits for the caller's stream, which waits for it on the way out."""

    def reserved_bytes(self) -> int | None:
        """Bytes that the pool holds on the device, in use or not; None where the allocator does not tell."""

    def check_split(self) -> None:
        """A segment is about to end at a break, which runs at once on what the segment took from the pool.

        Raises:
            CaptureError: a break cannot read that here, since it is memory of the segment's graph alone.
        """

    def ledger(self) -> Ledger | None:
        """What the pool gives out from now on; None where that cannot be told, so that what crosses breaks is held (S5)."""

    def mark(self, earlier: Any = None) -> Any:
        """Mark what was queued on the current stream so far. ``earlier`` is a mark that is not needed any more.

        None on a stream that is being captured: who waits for it would join the capture.
        """

    def follow(self, mark: Any) -> None:
        """Make the current stream wait for what was marked."""

    def poison_free(self) -> None:
        """Set all bits of what the pool holds and nobody uses, on the current stream: for debugging."""


@runtime_checkable
class GraphBackend(Protocol):
    """A device that captures, replays and releases segments. Not thread-safe within one capture."""

    @property
    def name(self) -> str:
        """``"cuda"`` or ``"simulated"``, or the name of the backend that this one wraps."""

    def new_pool(self, stream: Any = None, *, handle: Any = None) -> Pool:
        """Make a pool; ``stream`` is its capture stream, a new one if None.

        ``handle`` is a pool that the device's library made, to capture into; a device that knows none raises CaptureError.
        """

    def begin_capture(
        self,
        pool: Pool,
        *,
        segment: SegmentInfo | None = None,
        capture_error_mode: str = "thread_local",
        generators: Sequence[torch.Generator] = (),
    ) -> None:
        """Begin to record the current thread's work on ``pool.stream``, which is the current stream.

        ``generators`` are those that the work draws from, besides the device's default one.
        """

    def end_capture(self, *, discard: bool = False) -> Handle | None:
        """End the capture and return its handle.

        With ``discard`` the recording is dropped, nothing is returned, and nothing is raised for a capture that the
        device has already invalidated: stream and pool are usable again afterwards (rule S7).
        """

    def replay_graph(self, handle: Handle) -> None:
        """Queue the segment on the current stream."""

    def destroy_graph(self, handle: Handle) -> None:
        """Release the segment. Called exactly once for each handle (rule S14)."""
