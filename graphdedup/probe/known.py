"""What is known of a driver: from the cache, or measured now in a process of its own, or nothing.

A probe makes small graphs, waits for them, and needs local memory on the device that its process keeps. None of that belongs
into a process that is about to capture, so it runs in a child process, once for each (device, driver, CUDA, torch).
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache

from graphdedup import settings
from graphdedup.capabilities import Capabilities
from graphdedup.driver.protocol import DeviceIdentity, GraphDriver
from graphdedup.errors import ReportError
from graphdedup.probe import store
from graphdedup.probe.bench_simulated import SimulatedBench
from graphdedup.probe.measure import measure
from graphdedup.probe.spec import Arena
from seam.simulated import DriverProfile, SimulatedDevice

__all__ = ["PROBE_SECONDS", "capabilities_for", "probe_in_child", "probe_profile"]

_log = logging.getLogger("graphdedup")
PROBE_SECONDS = 120
"""After so long a child process is ended, and nothing is known."""
_in_process: dict[store.Key, Capabilities] = {}


def capabilities_for(driver: GraphDriver, *, probe: bool | None = None) -> Capabilities:
    """What an update carries on the driver's device. What cannot be told is unknown, and no failure.

    Args:
        driver: the driver; the simulated one is measured at once, on a device of its own.
        probe: False reads the cache only; None asks ``GRAPHDEDUP_PROBE``.

    Raises:
        SettingsError: the environment switch holds something that is no switch.
    """
    allowed = settings.switch(settings.PROBE, probe, True)
    identity = driver.identity
    profile = getattr(driver, "profile", None)
    if isinstance(profile, DriverProfile):
        return probe_profile(profile)
    if identity.kind != "cuda":
        return Capabilities.unknown(identity, f"there is no probe for a driver of kind {identity.kind!r}")
    key = store.key_of(identity)
    found = _in_process.get(key) or store.load(key)
    if found is None:
        if not allowed:
            found = Capabilities.unknown(identity, f"{settings.PROBE} is off and the cache has nothing; run graphdedup probe")
            _log.warning("%s: functions and clusters stay in the key (%s)", identity.name, found.source)
            return found  # not for the next call, which may be allowed to measure
        found = _measured_or_unknown(identity, key)
    _in_process[key] = found
    return found


def _measured_or_unknown(identity: DeviceIdentity, key: store.Key) -> Capabilities:
    where = store.path_of(key)
    _log.info("measuring what an update carries on %s, once; kept in %s", identity.name, where)
    found = probe_in_child(identity)
    if found.answers:
        store.save(key, found)
    else:
        _log.warning("%s: functions and clusters stay in the key (%s)", identity.name, found.source)
    return found


def probe_in_child(identity: DeviceIdentity, *, seconds: float = PROBE_SECONDS) -> Capabilities:
    """Measure a CUDA device in a child process. Never fails: ``source`` says why nothing is known."""
    command = [sys.executable, "-m", "graphdedup.probe", "--device-index", str(identity.ordinal)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=seconds, env=_environment(os.environ), check=False
        )
    except subprocess.TimeoutExpired:
        return Capabilities.unknown(identity, f"the probe did not end within {seconds:g} s")
    except OSError as error:
        return Capabilities.unknown(identity, f"the probe could not be started ({error})")
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        return Capabilities.unknown(identity, f"the probe failed with exit code {done.returncode}: {last}")
    try:
        found = Capabilities.from_json(done.stdout)
    except ReportError as error:
        return Capabilities.unknown(identity, f"the probe's answer cannot be read ({error.problem})")
    if (found.device, found.driver_version) != (identity.name, identity.driver_version):
        return Capabilities.unknown(identity, f"the probe saw another device: {found.device}, driver {found.driver_version}")
    return found


def _environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The same packages as here; and no child asks for a probe again."""
    path = os.pathsep.join(entry for entry in sys.path if entry)
    return dict(environment) | {"PYTHONPATH": path, settings.PROBE: "0"}


@lru_cache(maxsize=64)
def probe_profile(profile: DriverProfile) -> Capabilities:
    """Measure a simulated driver, on a device of its own: counters and faults of the caller's device are left alone."""
    plain = replace(profile, refuse_nth_update=None, refuse_pairs=None)
    device = SimulatedDevice(4 << 20, profile=plain)
    bench = SimulatedBench(device, Arena(buffer_bytes=8192))
    try:
        return measure(bench, source="measured on the simulated device")
    finally:
        bench.close()
