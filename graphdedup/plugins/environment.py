"""Interposition by environment: what every plugin does."""

from __future__ import annotations

import atexit
import os
import threading

from graphdedup import settings

__all__ = ["install_if_asked"]

_lock = threading.Lock()
_done = False


def install_if_asked() -> bool:
    """Install under ``torch.cuda.CUDAGraph`` if ``GRAPHDEDUP_INTERPOSE`` says so; once in a process, however often it is asked.

    ``GRAPHDEDUP_POLICY`` is the policy, such as ``tier=function,placement=position``. With ``GRAPHDEDUP_REPORT=FILE`` each
    process writes its report at exit, to ``FILE`` with its process id in the name.

    Returns:
        Whether it is installed by this function.

    Raises:
        SettingsError: a switch or the policy is off.
    """
    global _done
    if not settings.switch(settings.INTERPOSE, None, False):
        return False
    with _lock:
        if _done:
            return True
        from graphdedup.interpose import install
        from graphdedup.reports_file import write_reports

        interposition = install(os.environ.get(settings.POLICY) or None)
        file = os.environ.get(settings.REPORT)
        if file:
            atexit.register(write_reports, interposition, file, str(os.getpid()))
        _done = True
        return True
