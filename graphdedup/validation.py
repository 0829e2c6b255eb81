"""Reading our own JSON back: one clear error in place of pydantic's."""

from __future__ import annotations

from typing import TypeVar

from pydantic import BaseModel, ValidationError

from graphdedup.errors import ReportError

__all__ = ["from_json"]

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
