"""Words of others in our text: labels, kernel names and reasons come from files, and may hold anything."""

from __future__ import annotations

import re

__all__ = ["field_words", "one_line", "signed"]


def one_line(text: str) -> str:
    """``text`` with everything that does not print, such as line ends and terminal control sequences, written as escapes."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def signed(value: int) -> str:
    """A change: ``"+1,200"``, ``"-3"``, ``"0"``."""
    return f"{value:+,}" if value else "0"


def field_words(name: str) -> str:
    """The name of a row in words: ``"full: peak_execs"`` as ``"full: peak execs"``. What somebody named stays as it is."""
    return one_line(re.sub(r"(?:^|(?<=: ))[a-z0-9_]+$", lambda field: field[0].replace("_", " "), name))
