"""Where capabilities are kept, and when a device is measured: once, in a process of its own, or not at all."""

from __future__ import annotations

import json
import logging
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import graphdedup
from graphdedup import settings
from graphdedup.capabilities import AnswerRow, Capabilities, Outcome
from graphdedup.driver.protocol import DeviceIdentity
from graphdedup.probe import known, store
from graphdedup.probe.known import capabilities_for, probe_in_child, probe_profile
from seam.simulated import DriverProfile, SimulatedDevice

IDENTITY = DeviceIdentity("cuda", "NVIDIA H200", 3, 7, (9, 0), "580.159.04", 580)
KEY = store.key_of(IDENTITY)
ANSWERS = (AnswerRow(topic="function", way="to it", outcome=Outcome.CARRIED, verdict="SUCCESS"),)
MEASURED = Capabilities(
    device=KEY.device,
    compute_capability=(9, 0),
    driver_version=KEY.driver_version,
    cuda_version=KEY.cuda_version,
    torch_version=KEY.torch_version,
    source="measured on the device",
    answers=ANSWERS,
)
Say = Callable[..., None]


class FakeDriver:
    """As much of a driver as is asked here."""

    def __init__(self, identity: DeviceIdentity = IDENTITY) -> None:
        self.identity = identity


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of the test's own, and a process that knows nothing yet."""
    monkeypatch.setenv(settings.CACHE, str(tmp_path / "cache"))
    monkeypatch.delenv(settings.PROBE, raising=False)
    monkeypatch.setattr(known, "_in_process", {})
    return tmp_path / "cache"


@pytest.fixture
def child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Say:
    """Call it with a shell script: the child process runs that instead of Python. Each start adds a line to "started"."""

    def say(script: str) -> None:
        file = tmp_path / "python"
        file.write_text(f'#!/bin/sh\necho "$@" >> "{tmp_path}/started"\n{script}\n')
        file.chmod(file.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setattr(sys, "executable", str(file))

    return say


def printing(tmp_path: Path, text: str) -> str:
    file = tmp_path / "said"
    file.write_text(text)
    return f'cat "{file}"'


def starts(tmp_path: Path) -> list[str]:
    file = tmp_path / "started"
    return file.read_text().splitlines() if file.exists() else []


@pytest.fixture
def no_child(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is measured in this test."""

    def run(*arguments: Any, **options: Any) -> Any:
        raise AssertionError(f"a child process was started: {arguments}")

    monkeypatch.setattr(subprocess, "run", run)


# The store


def test_the_folder_is_the_one_that_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """GRAPHDEDUP_CACHE wins over XDG_CACHE_HOME, which wins over ~/.cache; an empty one counts as none."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert store.folder() == tmp_path / "cache"
    monkeypatch.setenv(settings.CACHE, "")
    assert store.folder() == tmp_path / "xdg" / "graphdedup"
    monkeypatch.delenv(settings.CACHE)
    assert store.folder() == tmp_path / "xdg" / "graphdedup"
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    assert store.folder() == tmp_path / "home" / ".cache" / "graphdedup"


def test_a_key_has_the_cuda_and_torch_of_this_process() -> None:
    assert tuple(KEY) == ("NVIDIA H200", "580.159.04", torch.version.cuda or "", torch.__version__)


def test_each_key_has_a_file_that_shows_the_device(cache: Path) -> None:
    """D3: device, driver, CUDA and torch each make another file; nothing of a name leads out of the folder."""
    keys = [KEY, *(KEY._replace(**{field: "other/../x"}) for field in KEY._fields)]
    # Fields are not just joined: a word that moves from one to the next is another key.
    keys += [store.Key("a", "b", "", ""), store.Key("a", "", "b", ""), store.Key("ab", "", "", "")]
    paths = [store.path_of(key) for key in keys]
    assert len(set(paths)) == len(keys)
    assert {path.parent for path in paths} == {cache}
    assert paths[0].name.startswith("capabilities-nvidia-h200-")
    assert paths[0].suffix == ".json"


def test_an_older_release_does_not_answer_for_new_questions(monkeypatch: pytest.MonkeyPatch) -> None:
    """D3: what was measured by other questions is measured again."""
    before = store.path_of(KEY)
    monkeypatch.setattr(store, "_PROBE_VERSION", store._PROBE_VERSION + 1)
    assert store.path_of(KEY) != before


def test_what_is_saved_is_loaded_equal(cache: Path) -> None:
    assert store.load(KEY) is None
    assert store.save(KEY, MEASURED) == store.path_of(KEY)
    assert store.load(KEY) == MEASURED
    assert store.load(KEY._replace(torch_version="other")) is None
    assert [path.name for path in cache.iterdir()] == [store.path_of(KEY).name]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"kind": "graphdedup.capabilities"}', "\xff\xfe"])
def test_a_broken_file_is_measured_again_with_a_warning(text: str, cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache.mkdir()
    store.path_of(KEY).write_bytes(text.encode("latin-1"))
    assert store.load(KEY) is None
    (warning,) = [record.getMessage() for record in caplog.records]
    assert str(store.path_of(KEY)) in warning
    assert "measured again" in warning


def test_a_file_that_cannot_be_read_is_measured_again_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    store.path_of(KEY).mkdir(parents=True)
    assert store.load(KEY) is None
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


@pytest.mark.parametrize("field", ["device", "driver_version", "cuda_version", "torch_version"])
def test_a_file_that_says_another_device_is_not_taken(field: str, cache: Path) -> None:
    """D3: the name of a file is a hash; what is in it decides."""
    cache.mkdir()
    store.path_of(KEY).write_text(MEASURED.model_copy(update={field: "another"}).to_json())
    assert store.load(KEY) is None


def test_a_file_without_answers_is_not_taken(cache: Path) -> None:
    """D3: "not measured" is never read back as a measurement."""
    cache.mkdir()
    store.path_of(KEY).write_text(MEASURED.model_copy(update={"answers": ()}).to_json())
    assert store.load(KEY) is None


def test_a_file_appears_whole(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is written under another name in the same folder, then renamed: a reader meets all of it or none."""
    seen: list[tuple[bool, Path, str]] = []
    replace = os.replace

    def watched(source: Any, target: Any) -> None:
        seen.append((Path(target).exists(), Path(source).parent, Path(source).read_text()))
        replace(source, target)

    monkeypatch.setattr(os, "replace", watched)
    store.save(KEY, MEASURED)
    assert [(existed, parent) for existed, parent, _ in seen] == [(False, cache)]
    assert Capabilities.from_json(seen[0][2]) == MEASURED


def test_a_save_that_fails_keeps_what_was_there(
    cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whole or not at all, with one warning, and no half-written file is left."""
    store.save(KEY, MEASURED)

    def full(source: Any, target: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    assert store.save(KEY, MEASURED.model_copy(update={"source": "measured again"})) is None
    assert store.load(KEY) == MEASURED
    assert ["No space left" in record.getMessage() for record in caplog.records] == [True]
    assert [path.name for path in cache.iterdir()] == [store.path_of(KEY).name]


def test_a_folder_that_cannot_be_written_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv(settings.CACHE, str(tmp_path / "file" / "cache"))
    assert store.save(KEY, MEASURED) is None
    (warning,) = [record.getMessage() for record in caplog.records]
    assert "cannot be kept" in warning
    assert str(tmp_path / "file" / "cache") in warning


# Known, or not


@pytest.mark.usefixtures("no_child")
def test_a_cache_hit_measures_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """D3: one probe for each device, driver, CUDA and torch."""
    store.save(KEY, MEASURED)
    assert capabilities_for(FakeDriver()) == MEASURED
    assert capabilities_for(FakeDriver(), probe=False) == MEASURED
    assert caplog.records == []


@pytest.mark.usefixtures("no_child")
@pytest.mark.parametrize("how", ["environment", "argument"])
def test_where_the_probe_is_off_nothing_is_known_and_that_is_said(
    how: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, cache: Path
) -> None:
    """D3: functions and clusters stay in the key; the warning names the switch and the remedy."""
    if how == "environment":
        monkeypatch.setenv(settings.PROBE, "0")
    found = capabilities_for(FakeDriver(), probe=None if how == "environment" else False)
    assert (found.answers, found.carries_function, found.device) == ((), False, "NVIDIA H200")
    (warning,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert warning.startswith("NVIDIA H200: functions and clusters stay in the key")
    assert "GRAPHDEDUP_PROBE" in warning
    assert "graphdedup probe" in warning
    assert not cache.exists()


@pytest.mark.usefixtures("no_child")
def test_where_the_probe_is_off_the_cache_is_read_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(settings.PROBE, "0")
    store.save(KEY, MEASURED)
    assert capabilities_for(FakeDriver()) == MEASURED


@pytest.mark.usefixtures("no_child")
def test_a_driver_of_an_unknown_kind_is_not_measured() -> None:
    found = capabilities_for(FakeDriver(IDENTITY.__class__("strange", "Thing", 0, 0, (0, 0), "", 0)))
    assert found.source == "not measured: there is no probe for a driver of kind 'strange'"


@pytest.mark.usefixtures("no_child")
def test_a_simulated_driver_is_measured_on_a_device_of_its_own(cache: Path) -> None:
    """D3: by its profile; the caller's device counts nothing and its faults do not strike."""
    from graphdedup.driver.simulated import SimulatedDriver

    device = SimulatedDevice(1 << 20, profile=DriverProfile(refuse_nth_update=1, refuse_pairs=lambda held, offered: True))
    found, plain = capabilities_for(SimulatedDriver(device)), probe_profile(DriverProfile())
    assert (found.answers, found.attributes) == (plain.answers, plain.attributes)
    assert found.carries_function
    assert found.source == "measured on the simulated device"
    assert (device.instantiation_count, device.update_count, device.refused_update_count) == (0, 0, 0)
    assert not cache.exists()


# The child process


def test_a_device_is_measured_once_in_a_child_process_and_kept(tmp_path: Path, child: Say, no_warnings: None) -> None:
    """D3: the second time in this process from memory, the first time in the next one from the cache."""
    child(printing(tmp_path, MEASURED.to_json()))
    assert capabilities_for(FakeDriver()) == MEASURED
    assert capabilities_for(FakeDriver()) == MEASURED
    assert starts(tmp_path) == ["-m graphdedup.probe --device-index 3"]
    assert store.load(KEY) == MEASURED
    known._in_process.clear()
    assert capabilities_for(FakeDriver()) == MEASURED
    assert len(starts(tmp_path)) == 1


@pytest.fixture
def no_warnings(caplog: pytest.LogCaptureFixture) -> Any:
    """Nothing goes wrong in this test."""
    yield
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_code_wins_over_the_environment(tmp_path: Path, child: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(settings.PROBE, "0")
    child(printing(tmp_path, MEASURED.to_json()))
    assert capabilities_for(FakeDriver(), probe=True) == MEASURED


def test_what_was_not_measured_because_the_probe_was_off_is_measured_when_it_is_on(tmp_path: Path, child: Say) -> None:
    """D3: ``probe=False`` reads the cache only, for that call; it does not decide for the rest of the process."""
    child(printing(tmp_path, MEASURED.to_json()))
    assert capabilities_for(FakeDriver(), probe=False).answers == ()
    assert capabilities_for(FakeDriver(), probe=True) == MEASURED


def test_the_child_has_the_packages_of_this_process_and_asks_nobody(
    tmp_path: Path, child: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A child that measured in a child of its own would never end."""
    monkeypatch.setattr(sys, "path", ["", "/one", "/two"])
    monkeypatch.setenv("SOMETHING_ELSE", "kept")
    child(f'printf "%s\\n" "$PYTHONPATH" "$GRAPHDEDUP_PROBE" "$SOMETHING_ELSE" > "{tmp_path}/environment"\nexit 1')
    probe_in_child(IDENTITY)
    assert (tmp_path / "environment").read_text().splitlines() == [os.pathsep.join(("/one", "/two")), "0", "kept"]


OTHER_DEVICE = MEASURED.model_copy(update={"device": "NVIDIA H100"}).to_json()
OTHER_DRIVER = MEASURED.model_copy(update={"driver_version": "550.1"}).to_json()


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("exec sleep 60", "the probe did not end within 0.2 s"),
        ("echo first >&2; echo torch sees no CUDA device 3 here >&2; exit 1", "exit code 1: torch sees no CUDA device 3 here"),
        ("exit 3", "the probe failed with exit code 3: it said nothing"),
        ("kill -KILL $$", "the probe failed with exit code -9: it said nothing"),
        ("echo not JSON", "the probe's answer cannot be read (not capabilities: the text"),
        ("exit 0", "the probe's answer cannot be read (not capabilities: the text"),
        (f"cat <<'END'\n{OTHER_DEVICE}\nEND", "the probe saw another device: NVIDIA H100, driver 580.159.04"),
        (f"cat <<'END'\n{OTHER_DRIVER}\nEND", "the probe saw another device: NVIDIA H200, driver 550.1"),
    ],
    ids=["no end", "exit 1", "exit 3 without a word", "killed", "garbage", "nothing", "another device", "another driver"],
)
def test_a_probe_that_fails_is_never_fatal(
    script: str, said: str, tmp_path: Path, child: Say, cache: Path, caplog: pytest.LogCaptureFixture, monkeypatch: Any
) -> None:
    """D3: nothing is known then; why is said once, nothing is kept, and this process does not try again."""
    child(script)
    run = subprocess.run
    timeouts = []

    def impatient(*arguments: Any, timeout: float, **options: Any) -> Any:
        timeouts.append(timeout)
        return run(*arguments, timeout=0.2 if "sleep" in script else timeout, **options)

    found = probe_in_child(IDENTITY, seconds=0.2 if "sleep" in script else 30)
    assert said in found.source
    assert (found.answers, found.device, found.driver_version) == ((), "NVIDIA H200", "580.159.04")
    monkeypatch.setattr(subprocess, "run", impatient)
    found = [capabilities_for(FakeDriver()) for _ in range(3)][-1]
    assert found.answers == ()
    assert timeouts == [known.PROBE_SECONDS]
    assert len(starts(tmp_path)) == 2
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert warnings[0].startswith("NVIDIA H200: functions and clusters stay in the key (not measured: the probe")
    assert not cache.exists()


def test_a_python_that_cannot_be_started_is_never_fatal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "nowhere"))
    assert "the probe could not be started" in probe_in_child(IDENTITY).source


def test_a_cache_that_cannot_be_written_costs_a_warning_only(
    tmp_path: Path, child: Say, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """D3: what was measured is used in this process all the same."""
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv(settings.CACHE, str(tmp_path / "file" / "cache"))
    child(printing(tmp_path, MEASURED.to_json()))
    assert [capabilities_for(FakeDriver()) for _ in range(2)] == [MEASURED] * 2
    assert len(starts(tmp_path)) == 1
    assert ["cannot be kept" in record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_the_probe_says_where_it_keeps_what_it_measures(tmp_path: Path, child: Say, caplog: pytest.LogCaptureFixture) -> None:
    """At INFO, before it starts: a first capture that takes some seconds more has a reason that can be found."""
    child(printing(tmp_path, MEASURED.to_json()))
    with caplog.at_level(logging.INFO, logger="graphdedup"):
        capabilities_for(FakeDriver())
    assert any(str(store.path_of(KEY)) in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize(("text", "on"), [("0", False), ("FALSE", False), ("1", True), (" true ", True)])
def test_the_switch_is_read_strictly(text: str, on: bool) -> None:
    assert settings.switch(settings.PROBE, None, True, {settings.PROBE: text}) is on
    assert settings.switch(settings.PROBE, not on, True, {settings.PROBE: text}) is not on
    assert settings.switch(settings.PROBE, None, True, {}) is True
    with pytest.raises(graphdedup.SettingsError, match=r"GRAPHDEDUP_PROBE='never'.*0, 1, true, false"):
        settings.switch(settings.PROBE, None, True, {settings.PROBE: "never"})


@pytest.mark.usefixtures("no_child")
def test_what_is_no_switch_is_an_error_before_anything_is_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    store.save(KEY, MEASURED)
    monkeypatch.setenv(settings.PROBE, "perhaps")
    with pytest.raises(graphdedup.SettingsError, match="GRAPHDEDUP_PROBE='perhaps'"):
        capabilities_for(FakeDriver())
    assert capabilities_for(FakeDriver(), probe=False) == MEASURED


def test_the_probe_program_says_why_it_cannot_run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Where torch sees no such GPU it exits with 1 and one line, and says nothing on standard output."""
    from graphdedup.probe.__main__ import main

    monkeypatch.setattr(sys, "argv", ["probe", "--device-index", "99"])
    assert main() == 1
    assert capsys.readouterr() == ("", "torch sees no CUDA device 99 here\n")


def test_what_is_kept_is_what_graphdedup_probe_would_show(cache: Path) -> None:
    """The file is plain JSON that :meth:`Capabilities.from_json` reads."""
    store.save(KEY, MEASURED)
    (file,) = cache.iterdir()
    assert json.loads(file.read_text())["answers"][0]["outcome"] == "carried"
    assert Capabilities.from_json(file.read_bytes()) == MEASURED
