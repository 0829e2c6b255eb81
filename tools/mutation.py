"""One deliberate break of the code, as ``mutate.py`` tries it."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Mutation"]


class Mutation(NamedTuple):
    """One deliberate break: ``old`` becomes ``new`` in ``file``, and one of ``targets`` has to fail."""

    rule: str
    breaks: str
    file: str
    old: str
    new: str
    targets: tuple[str, ...]
