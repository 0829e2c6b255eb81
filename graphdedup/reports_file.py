"""Reports of an interposition, as files."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from graphdedup.interpose import Interposition

__all__ = ["write_reports"]

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
    written: list[Path] = []
    for number, backend in enumerate(interposition.backends):
        marks = [part for part in (mark, f"cuda{number}" if number else "") if part]
        target = Path(file)
        target = target.with_name(".".join([target.stem, *marks]) + target.suffix)
        try:
            target.write_text(backend.report().to_json() + "\n", encoding="utf-8")
        except Exception as error:
            _log.warning("no report was written to %s: %s", target, str(error))  # a record must not hold frames
        else:
            written.append(target)
    return written
