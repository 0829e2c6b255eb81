"""Reports and captured graphs of an interposition, as files."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from graphdedup.backend import DedupBackend
    from graphdedup.interpose import Interposition

__all__ = ["write_graphs", "write_reports"]

_log = logging.getLogger("graphdedup")


def write_reports(interposition: Interposition, file: str | Path, mark: str = "") -> list[Path]:
    """Write the report of each device that was captured on as JSON.

    Nothing is raised: the program that it tells of is at its end, and whatever it did is to stand. What cannot be written is
    logged.

    Args:
        interposition: what was installed.
        file: where to; with several devices, the further ones have ``.cuda1`` and so on before the suffix.
        mark: put before the suffix as well, such as a process id where several processes write.

    Returns:
        The files that were written.
    """
    return _write(interposition, Path(file), mark, "report", lambda backend: backend.report().to_json() + "\n")


def write_graphs(interposition: Interposition, file: str | Path) -> list[Path]:
    """Write the captured graphs that are alive, of each device in a file of its own, as :func:`write_reports` does."""
    return _write(interposition, Path(file), "", "file of graphs", lambda backend: backend.export().to_json())


def _write(
    interposition: Interposition, file: Path, mark: str, what: str, text_of: Callable[[DedupBackend], str]
) -> list[Path]:
    written: list[Path] = []
    for number, backend in enumerate(interposition.backends):
        marks = [part for part in (mark, f"cuda{number}" if number else "") if part]
        target = file.with_name(".".join([file.stem, *marks]) + file.suffix)
        try:
            target.write_text(text_of(backend), encoding="utf-8")
        except Exception as error:
            _log.warning("no %s was written to %s: %s", what, target, str(error))  # a record must not hold frames
        else:
            written.append(target)
    return written
