"""Batch sizes as written on a command line."""

from __future__ import annotations

import pytest

from graphdedup.demo.sizes import MAX_SIZE, USUAL_SIZES, parse_sizes
from graphdedup.errors import SettingsError


def test_usual_is_36_sizes() -> None:
    assert len(USUAL_SIZES) == 36
    assert USUAL_SIZES[:8] == (1, 2, 4, 8, 12, 16, 24, 32)
    assert USUAL_SIZES[-2:] == (248, 256)
    assert parse_sizes("usual") == USUAL_SIZES


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("1", (1,)),
        ("4,2,1", (1, 2, 4)),
        ("1..4,8", (1, 2, 3, 4, 8)),
        ("3..3", (3,)),
        (" 2 , 1 ", (1, 2)),
        ("2,2,1..2", (1, 2)),
        ("1..256", tuple(range(1, 257))),
        ("usual,3", tuple(sorted((*USUAL_SIZES, 3)))),
        (str(MAX_SIZE), (MAX_SIZE,)),
    ],
)
def test_lists_and_ranges(text: str, sizes: tuple[int, ...]) -> None:
    """Sorted, and each size once."""
    assert parse_sizes(text) == sizes


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "empty"),
        ("  ", "empty"),
        (",", "neither a size nor a range"),
        ("1,,2", "neither"),
        ("1,", "neither"),
        ("eight", "neither"),
        ("1.5", "neither"),
        ("1..", "neither"),
        ("..4", "neither"),
        ("1...4", "neither"),
        ("1..2..3", "neither"),
        ("-1", "neither"),
        ("+1", "neither"),
        ("1_0", "neither"),
        ("\u0661", "neither"),
        ("1 2", "neither"),
        ("0", "from 1 to 4096"),
        ("0..4", "from 1 to 4096"),
        ("1..99999999999", "from 1 to 4096"),
        ("9" * 5000, "from 1 to 4096"),
        ("4..1", "backwards"),
    ],
)
def test_what_is_no_list_is_refused_in_one_line(text: str, words: str) -> None:
    with pytest.raises(SettingsError, match=words) as caught:
        parse_sizes(text)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 250
