"""Observers that the environment asks for: NVTX ranges and a trace."""

from __future__ import annotations

import os

from graphdedup import nvtx, settings, trace

__all__ = ["observe_if_asked"]


def observe_if_asked() -> None:
    """Read ``GRAPHDEDUP_NVTX`` and ``GRAPHDEDUP_TRACE``; each takes effect once in a process, however often it is asked.

    Raises:
        SettingsError: the first is no switch, or the second no file that could be written.
    """
    ranges = settings.switch(settings.NVTX, None, False)
    file = os.environ.get(settings.TRACE)
    if file is not None:
        trace.write_at_exit(file, name=settings.TRACE)
    if ranges:
        nvtx.enable_if_not_given()
