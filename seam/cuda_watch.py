"""Lets :mod:`seam.streams` see what ``torch.cuda`` streams and events do.

Three functions of torch are wrapped, once, when the first pool is made, and stay so: a class that changes with every capture
would make every later use of it slower. Outside of capture scopes and breaks they do what they did.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from seam import streams

__all__ = ["watch_streams"]


@functools.cache
def watch_streams() -> None:
    """Wrap ``Event.record`` and ``Event.wait``, by which streams of torch do all of it, and ``torch.cuda.set_stream``."""
    event: Any = torch.cuda.Event
    record, wait, set_stream = event.record, event.wait, torch.cuda.set_stream

    @functools.wraps(record)
    def recorded(self: Any, stream: Any = None) -> None:
        record(self, stream)
        if streams.watching():
            streams.recorded(self, stream if stream is not None else torch.cuda.current_stream())

    @functools.wraps(wait)
    def waits(self: Any, stream: Any = None) -> None:
        if streams.watching() and streams.waits(stream if stream is not None else torch.cuda.current_stream(), self):
            return
        wait(self, stream)

    @functools.wraps(set_stream)
    def made_current(stream: Any) -> None:
        if stream is not None:
            streams.made_current(stream)
        set_stream(stream)

    event.record, event.wait = recorded, waits
    torch.cuda.set_stream = made_current
