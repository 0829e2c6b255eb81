"""Batch sizes, as one writes them on a command line."""

from __future__ import annotations

from graphdedup.errors import SettingsError

__all__ = ["MAX_SIZE", "USUAL_SIZES", "parse_sizes"]

USUAL_SIZES = (1, 2, 4, *range(8, 17, 4), *range(24, 257, 8))
"""What inference engines capture by default: 1, 2, 4, 8, 12, 16, then every 8 to 256. 36 sizes."""

MAX_SIZE = 4096
"""The largest batch size; also bounds how many sizes a list can name."""

_REMEDY = "write --sizes as 1,2,4 or 1..256 or a mix such as 1..4,8, or usual."


def parse_sizes(text: str) -> tuple[int, ...]:
    """Read ``"1,2,4"``, ``"1..256"``, ``"1..4,8"`` or ``"usual"``. The sizes come back sorted, each of them once.

    Raises:
        SettingsError: the list is empty or malformed, or a size is not within 1 to ``MAX_SIZE``.
    """
    if not text.strip():
        raise SettingsError("the size list is empty.", remedy=_REMEDY)
    sizes: set[int] = set()
    for item in (part.strip() for part in text.split(",")):
        if item == "usual":
            sizes.update(USUAL_SIZES)
            continue
        first, dots, last = item.partition("..")
        low = _size(first, item, text)
        high = _size(last, item, text) if dots else low
        if low > high:
            raise SettingsError(f"size list {_shown(text)}: the range {_shown(item)} runs backwards.", remedy=_REMEDY)
        sizes.update(range(low, high + 1))
    return tuple(sorted(sizes))


def _size(digits: str, item: str, text: str) -> int:
    """One number of the list; plain ASCII digits only, so that ``1_0``, ``+1`` and ``1e3`` are refused."""
    if not (digits.isascii() and digits.isdigit()):
        raise SettingsError(f"size list {_shown(text)}: {_shown(item)} is neither a size nor a range.", remedy=_REMEDY)
    # Compared by length first: int() refuses numbers of thousands of digits with an error of its own.
    value = int(digits) if len(digits) <= len(str(MAX_SIZE)) else MAX_SIZE + 1
    if not 1 <= value <= MAX_SIZE:
        raise SettingsError(f"size list {_shown(text)}: sizes go from 1 to {MAX_SIZE}.", remedy=_REMEDY)
    return value


def _shown(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:37]}...")
