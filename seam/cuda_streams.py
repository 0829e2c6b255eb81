"""Which streams graphs were launched on, so that releasing one waits for those and for no other.

``torch.cuda.synchronize`` is no choice: while any stream of the process is being captured it fails, and invalidates that
capture, which may be another thread's.
"""

from __future__ import annotations

from functools import cache

import torch

__all__ = ["LaunchStreams", "launch_streams"]


class LaunchStreams:
    """The streams of one device that something was launched on."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._handles: set[int] = set()

    def current(self) -> int:
        """The handle of the current stream; a fraction of a microsecond, for the replay path."""
        handle: int = torch._C._cuda_getCurrentRawStream(self._device.index)
        return handle

    def note_current(self) -> int:
        """Note the current stream and return its handle."""
        handle = self.current()
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


@cache
def _of_index(index: int) -> LaunchStreams:
    return LaunchStreams(torch.device("cuda", index))


def launch_streams(device: torch.device) -> LaunchStreams:
    """The streams of a device: one object in a process, since executables may be shared between backends."""
    return _of_index(device.index)
