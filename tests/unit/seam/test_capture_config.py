"""Which phase is captured how: parsed strictly."""

from __future__ import annotations

from typing import Any

import pytest

from seam import CaptureConfig, CaptureError, Mode


def test_decode_is_captured_whole_and_prefill_with_breaks() -> None:
    config = CaptureConfig.parse(None)
    assert (config.mode("decode"), config.mode("prefill")) == (Mode.FULL, Mode.BREAKABLE)
    assert str(config) == "decode=full,prefill=breakable"
    assert config == CaptureConfig()


@pytest.mark.parametrize(
    ("value", "modes"),
    [
        ("decode=breakable", {"decode": "breakable", "prefill": "breakable"}),
        (" decode = tc_piecewise , prefill=disabled ", {"decode": "tc_piecewise", "prefill": "disabled"}),
        ({"draft": "full"}, {"decode": "full", "prefill": "breakable", "draft": "full"}),
        ({"prefill": Mode.FULL}, {"decode": "full", "prefill": "full"}),
        (CaptureConfig.parse("draft=full"), {"decode": "full", "prefill": "breakable", "draft": "full"}),
    ],
)
def test_what_is_named_wins_over_the_defaults(value: Any, modes: dict[str, str]) -> None:
    assert CaptureConfig.parse(value).modes == modes
    assert CaptureConfig.parse(str(CaptureConfig.parse(value))) == CaptureConfig.parse(value)


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("", "'' is no phase=mode"),
        ("decode", "'decode' is no phase=mode"),
        ("decode=full,", "'' is no phase=mode"),
        ("decode=whole", "mode 'whole' is unknown.*'full', 'breakable', 'tc_piecewise', 'disabled'"),
        ("decode=FULL", "mode 'FULL' is unknown"),
        ("decode=full,decode=full", "'decode' is named twice"),
        ("=full", "phase '' is no name"),
        ({"de code": "full"}, "phase 'de code' is no name"),
        ({7: "full"}, "phase 7 is no name"),
    ],
)
def test_what_is_no_config_is_refused(value: Any, problem: str) -> None:
    with pytest.raises(CaptureError, match=problem):
        CaptureConfig.parse(value)


def test_a_phase_without_a_mode_is_an_error_that_says_how_to_name_it() -> None:
    with pytest.raises(CaptureError, match=r"phase 'draft' has no mode.*add draft=full, or name one of decode, prefill"):
        CaptureConfig().mode("draft")
