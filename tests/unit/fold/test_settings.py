"""Switches and the fold policy: code over environment over default, and a clear error for everything else."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

import graphdedup
import seam
from graphdedup import DedupBackend, FoldPolicy, SettingsError, Tier, settings

SWITCHES = (settings.DISABLE, settings.VERIFY, settings.SYNC, settings.PROBE, settings.NVTX)


@pytest.fixture(autouse=True)
def logger_as_it_was() -> Iterator[None]:
    logger = logging.getLogger("graphdedup")
    level, handlers = logger.level, list(logger.handlers)
    yield
    logger.setLevel(level)
    logger.handlers[:] = handlers


@pytest.mark.parametrize("name", SWITCHES)
@pytest.mark.parametrize(("text", "on"), [("0", False), ("false", False), ("1", True), ("True", True), (" TRUE ", True)])
@pytest.mark.parametrize("default", [True, False])
def test_a_switch_is_read_strictly_and_code_wins(name: str, text: str, on: bool, default: bool) -> None:
    assert settings.switch(name, None, default, {name: text}) is on
    assert settings.switch(name, not on, default, {name: text}) is not on
    assert settings.switch(name, None, default, {}) is default


@pytest.mark.parametrize("name", SWITCHES)
@pytest.mark.parametrize("text", ["", "yes", "on", "2", "disabled"])
def test_what_is_no_switch_is_an_error_that_lists_them(name: str, text: str) -> None:
    with pytest.raises(SettingsError, match=rf"{name}=.*0, 1, true, false"):
        settings.switch(name, None, True, {name: text})


def test_what_code_gives_must_be_a_switch_too() -> None:
    given: Any = "yes"
    with pytest.raises(SettingsError, match="GRAPHDEDUP_SYNC: 'yes' given in code is no switch"):
        settings.switch(settings.SYNC, given, False)


@pytest.mark.parametrize("name", [settings.DISABLE, settings.VERIFY, settings.SYNC, settings.LOG])
def test_a_backend_refuses_what_it_cannot_read(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "perhaps")
    with pytest.raises(SettingsError, match=f"{name}='perhaps'"):
        DedupBackend(seam.default_backend("cpu"))


@pytest.mark.parametrize(("text", "level"), [("debug", 10), ("INFO", 20), ("Warning", 30), ("error", 40)])
def test_a_log_level_is_one_of_four(text: str, level: int) -> None:
    assert settings.log_level(None, {settings.LOG: text}) == level
    assert settings.log_level("error", {settings.LOG: text}) == 40
    assert settings.log_level(None, {}) is None


def test_an_unknown_log_level_is_an_error_that_lists_them() -> None:
    with pytest.raises(SettingsError, match=r"GRAPHDEDUP_LOG='loud' is no level.*debug, info, warning, error"):
        settings.log_level("loud")


def test_logging_to_stderr_happens_once_however_many_backends_ask(capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(3):
        DedupBackend(seam.default_backend("cpu"), log="info")
    logging.getLogger("graphdedup").info("captured 2 graphs")
    logging.getLogger("graphdedup").debug("not this")
    assert capsys.readouterr().err == "graphdedup INFO: captured 2 graphs\n"


def test_a_tiers_name_stands_for_a_policy() -> None:
    assert FoldPolicy.of("exact") == FoldPolicy(tier=Tier.EXACT)
    assert FoldPolicy.of(None) == FoldPolicy()
    assert DedupBackend(seam.default_backend("cpu"), "function").policy.tier is Tier.FUNCTION


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"tier": "best"}, "tier='best': input should be 'structure', 'function' or 'exact'"),
        ({"placement": "best"}, "placement='best': input should be 'group' or 'position'"),
        ({"concurrent": "best"}, "concurrent='best': input should be 'split' or 'serialise'"),
        ({"max_execs": 0}, "max_execs=0: input should be greater than or equal to 1"),
        ({"exec_budget_bytes": -1}, "exec_budget_bytes=-1: input should be greater than or equal to 1"),
        ({"teir": "exact"}, "teir='exact': extra inputs are not permitted"),
    ],
)
def test_a_policy_that_cannot_be_is_one_clear_error(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingsError) as caught:
        FoldPolicy.parse(**fields)
    assert said in str(caught.value)
    assert "fields are tier, placement, concurrent" in str(caught.value)


@pytest.mark.parametrize("given", ["best", 3])
def test_a_backend_refuses_what_is_no_policy(given: Any) -> None:
    with pytest.raises(SettingsError, match=repr(given)):
        DedupBackend(seam.default_backend("cpu"), given)


def test_verifying_nothing_is_refused() -> None:
    with pytest.raises(SettingsError, match="replays=0 compares nothing"):
        graphdedup.Verify(replays=0)
