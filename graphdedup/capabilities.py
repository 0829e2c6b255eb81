"""What an update of an executable carries on this device and driver; what is not known is taken as not carried.

The figures behind :data:`HOPPER_580` were measured on an H200 with driver 580.159: an update carried another kernel
function and another cluster dimension every time, with one exception. A kernel *without* a cluster dimension keeps that of
the kernel before it, and the driver says "success" (``tools/probe_cluster.py``; cuBLAS mixes both kinds). The registry
therefore has such kernels say (1, 1, 1), which is carried. No other device is trusted with clusters.
"""

from __future__ import annotations

from dataclasses import dataclass

from graphdedup.driver.protocol import DeviceIdentity

__all__ = ["CONSERVATIVE", "HOPPER_580", "Capabilities", "for_device"]


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What may differ between graphs that share an executable, because an update carries it (rules D3, D4)."""

    carries_function: bool
    carries_cluster: bool
    trusts_unreadable: bool
    """Whether launch attributes that cannot be read, and that a kernel could use, are known to do no harm."""
    source: str
    """Where this is known from, in words."""


HOPPER_580 = Capabilities(
    carries_function=True,
    carries_cluster=True,
    trusts_unreadable=True,
    source="measured on an H200 with driver 580.159; trusted for compute capability 9.0 and driver 580 or newer",
)
CONSERVATIVE = Capabilities(
    carries_function=False,
    carries_cluster=False,
    trusts_unreadable=False,
    source="not measured for this device and driver: functions and cluster dimensions stay in the key",
)


def for_device(identity: DeviceIdentity) -> Capabilities:
    """The capabilities to assume for a device, CUDA or simulated."""
    trusted = identity.compute_capability == (9, 0) and identity.driver_branch >= 580
    return HOPPER_580 if trusted else CONSERVATIVE
