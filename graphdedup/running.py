"""Run somebody else's program with the fold under ``torch.cuda.CUDAGraph``, as profilers run programs."""

from __future__ import annotations

import logging
import os
import runpy
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from graphdedup import settings
from graphdedup.errors import SettingsError
from graphdedup.interpose import MakeBackend, install, make_backend, uninstall
from graphdedup.policy import FoldPolicy
from graphdedup.reports_file import write_graphs, write_reports

__all__ = ["run_program"]


def run_program(
    target: Sequence[str],
    *,
    module: bool = False,
    policy: FoldPolicy | str | None = None,
    report: Path | None = None,
    graphs: Path | None = None,
    make: MakeBackend = make_backend,
) -> int:
    """Run a script or a module as ``python`` would, interposed; its exit code.

    The environment tells processes that it starts to do the same where they load the plugin of their engine:
    ``GRAPHDEDUP_INTERPOSE``, ``GRAPHDEDUP_POLICY`` and ``GRAPHDEDUP_REPORT``.

    Args:
        target: the script's path, or the module's name, and its arguments.
        module: whether it is a module.
        policy: what may share an executable.
        report: where the report goes when the program is over, also when it failed.
        graphs: where the captured graphs that are still alive go then.
        make: makes backends; for tests.

    Raises:
        SettingsError: there is no such script, or the policy is off.
        KeyboardInterrupt: the program was interrupted. The report was written.
    """
    name = target[0]
    if not module and not Path(name).is_file():
        raise SettingsError(f"there is no script {name}", remedy="name a file, or say -m for a module")
    wanted = FoldPolicy.of(policy)
    if os.environ.get(settings.LOG) is None:
        settings.log_to_stderr(logging.INFO)
    interposition = install(wanted, make_backend=make)
    try:
        with _environment(wanted, report), _arguments(list(target), module):
            run = _Run(name, module)
        interposition.seal()
        wanted_files = (("report", report, write_reports), ("file of graphs", graphs, write_graphs))
        for what, file, write in wanted_files:
            if file is not None and not write(interposition, file) and not interposition.backends:
                sys.stderr.write(f"graphdedup: no {what} was written to {file}: nothing was captured in this process\n")
        return run.exit_code()
    finally:
        uninstall()


class _Run:
    """A program that was run. What it left behind, graphs among it, lives as long as this: the report tells of it."""

    def __init__(self, name: str, module: bool) -> None:
        self._left: Any = None
        self._error: BaseException | None = None
        try:
            if module:
                self._left = runpy.run_module(name, run_name="__main__", alter_sys=True)
            else:
                self._left = runpy.run_path(name, run_name="__main__")
        except BaseException as error:
            self._error = error

    def exit_code(self) -> int:
        """What ``python`` would exit with, after it has said what it would say; interrupts are raised."""
        error = self._error
        if error is None:
            return 0
        if isinstance(error, KeyboardInterrupt):
            raise error
        if not isinstance(error, SystemExit):
            traceback.print_exception(error)
            return 1
        if error.code is None or isinstance(error.code, int):
            return error.code or 0
        sys.stderr.write(f"{error.code}\n")
        return 1


@contextmanager
def _arguments(target: list[str], module: bool) -> Iterator[None]:
    """What ``python`` sets: the program's arguments, and where it looks for modules first."""
    argv, path = sys.argv, list(sys.path)
    sys.argv = target
    sys.path.insert(0, os.getcwd() if module else str(Path(target[0]).resolve().parent))
    try:
        yield
    finally:
        sys.argv, sys.path[:] = argv, path


@contextmanager
def _environment(policy: FoldPolicy, report: Path | None) -> Iterator[None]:
    """For processes that the program starts."""
    wanted = {settings.INTERPOSE: "1", settings.POLICY: policy.to_text()}
    if report is not None:
        wanted[settings.REPORT] = str(report.absolute())
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
