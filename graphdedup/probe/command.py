"""What ``graphdedup probe`` does: use what is known of a device or measure it, and say where it is kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from graphdedup.capabilities import Capabilities
from graphdedup.driver.cuda_calls import driver_branch
from graphdedup.driver.protocol import DeviceIdentity
from graphdedup.errors import DriverError, SettingsError
from graphdedup.probe import known, store
from graphdedup.probe.table import to_text
from seam.simulated import DriverProfile

__all__ = ["Probed", "identity_of", "probe_device"]


@dataclass(frozen=True, slots=True)
class Probed:
    """Capabilities, and in words where they are kept."""

    capabilities: Capabilities
    kept: str

    def to_text(self, *, color: bool = False) -> str:
        """The table, and below it where it is kept."""
        return f"{to_text(self.capabilities, color=color)}\n\n{self.kept}"

    def to_json(self) -> str:
        """The capabilities alone, as ``DedupBackend(capabilities=Capabilities.from_json(...))`` takes them."""
        return self.capabilities.to_json()


def probe_device(kind: Literal["cpu", "cuda"], *, index: int = 0, refresh: bool = False) -> Probed:
    """What an update carries on a device: the simulated one is always measured, a CUDA device when nothing is kept of it.

    Whoever calls this asks for a measurement, so ``GRAPHDEDUP_PROBE`` does not forbid it.

    Args:
        kind: which sort of device.
        index: which of them, as torch counts the visible ones.
        refresh: measure also where something is kept. It is replaced only by a measurement that succeeded.

    Raises:
        SettingsError: there is no device of this index.
        DriverError: nothing could be measured; the message says why.
    """
    count = torch.cuda.device_count() if kind == "cuda" else 1
    if not 0 <= index < count:
        remedy = "give 0." if count == 1 else f"give 0 to {count - 1}."
        raise SettingsError(f"--device-index {index} is out of range.", remedy=remedy)
    if kind == "cpu":
        return Probed(known.probe_profile(DriverProfile()), "not kept: the simulated device is measured by every process")
    identity = identity_of(index)
    key = store.key_of(identity)
    if not refresh and (found := store.load(key)) is not None:
        return Probed(found, f"kept in {store.path_of(key)}; --refresh measures again")
    found = known.probe_in_child(identity)
    if not found.answers:
        raise DriverError(
            f"{identity.name}: {found.source}.",
            remedy=f"run python -m graphdedup.probe --device-index {index} to see all that it says; "
            "until the device is measured, functions and clusters stay in the key.",
        )
    path = store.save(key, found)
    return Probed(found, f"not kept: {store.folder()} cannot be written" if path is None else f"kept in {path}")


def identity_of(index: int) -> DeviceIdentity:
    """A CUDA device, as the key of what is kept needs it. No context is made: all work is the child process's."""
    version, branch = driver_branch()
    return DeviceIdentity(
        kind="cuda",
        name=torch.cuda.get_device_name(index),
        ordinal=index,
        context=0,
        compute_capability=torch.cuda.get_device_capability(index),
        driver_version=version,
        driver_branch=branch,
    )
