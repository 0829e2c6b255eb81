"""Reading our own files back: one clear error, whatever is wrong with them."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from graphdedup.errors import ReportError

__all__ = ["from_json", "read_bytes"]

_M = TypeVar("_M", bound=BaseModel)


def from_json(model: type[_M], text: str | bytes, *, called: str, remedy: str) -> _M:
    """``text`` as an instance of ``model``; ``called`` says in words what it should be.

    Raises:
        ReportError: it is not; the message names the first field that is wrong.
    """
    try:
        return model.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the text"
        raise ReportError(f"not {called}: {where}: {first['msg']}", remedy=remedy) from None


def read_bytes(path: str | Path, *, most_bytes: int, called: str, remedy: str) -> bytes:
    """The content of a file of at most ``most_bytes``; ``called`` says in words what it should be.

    Raises:
        ReportError: it is missing, no regular file, larger, or cannot be read; one line that names it.
    """
    file = Path(path)
    try:
        if not file.exists():
            raise ReportError(f"{path}: no such file.", remedy=remedy)
        if not file.is_file():
            raise ReportError(f"{path}: not a regular file.", remedy=remedy)
        size_bytes = file.stat().st_size
        if size_bytes > most_bytes:
            problem = f"{path}: {size_bytes:,} bytes, more than the {most_bytes:,} that {called} may have."
            raise ReportError(problem, remedy=remedy)
        return file.read_bytes()
    except (OSError, ValueError) as error:  # ValueError: no path at all
        raise ReportError(f"{path}: cannot be read: {getattr(error, 'strerror', '') or error}.", remedy=remedy) from error
