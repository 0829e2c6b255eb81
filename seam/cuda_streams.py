"""Which streams graphs were launched on, so that releasing one waits for those and for no other.

``torch.cuda.synchronize`` is no choice: while any stream of the process is being captured it fails, and invalidates that
capture, which may be another thread's.
"""

from __future__ import annotations

import torch

__all__ = ["LaunchStreams"]


class LaunchStreams:
    """The streams of one device that something was launched on."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._handles: set[int] = set()

    def note_current(self) -> int:
        """Note the current stream and return its handle; a fraction of a microsecond, for the replay path."""
        handle: int = torch._C._cuda_getCurrentRawStream(self._device.index)
        self._handles.add(handle)
        return handle

    def wait(self) -> None:
        """Block until what was launched on them has ended. A stream that is being captured now cannot be waited for."""
        for handle in tuple(self._handles):
            stream = (
                torch.cuda.ExternalStream(handle, device=self._device) if handle else torch.cuda.default_stream(self._device)
            )
            with torch.cuda.stream(stream):
                capturing = torch.cuda.is_current_stream_capturing()
            if not capturing:
                stream.synchronize()
                self._handles.discard(handle)
