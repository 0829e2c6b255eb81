"""Launch attributes of kernel nodes: names, numbers, how their values are packed, and what they can change."""

from __future__ import annotations

import enum
import struct
from typing import NamedTuple

__all__ = ["ATTRIBUTES", "VALUE_BYTES", "Attribute", "Effect", "pack", "unpack"]

VALUE_BYTES = 64
"""Size of ``CUlaunchAttributeValue``."""


class Effect(enum.StrEnum):
    """What a launch attribute can change, by the CUDA driver API reference (``CUlaunchAttributeID``)."""

    BYTES = "bytes"
    """What a kernel computes, or what it sees of others."""
    LEGALITY = "legality"
    """Whether the driver takes the launch at all."""
    TIME = "time"
    """Scheduling and caching only."""


class Attribute(NamedTuple):
    """``number`` is the ``CUlaunchAttributeID``; ``form`` packs the fields of a value (see :mod:`struct`)."""

    number: int
    form: str
    effect: Effect
    needs_clusters: bool = False
    """Whether only a kernel with a cluster dimension can use it."""


ATTRIBUTES = {
    # address, bytes, hit ratio, property of hits, property of misses
    "access_policy_window": Attribute(1, "QQfii", Effect.TIME),
    "cooperative": Attribute(2, "i", Effect.BYTES),
    "cluster": Attribute(4, "3I", Effect.BYTES),
    "cluster_scheduling_policy": Attribute(5, "i", Effect.TIME, needs_clusters=True),
    "priority": Attribute(8, "i", Effect.TIME),
    "mem_sync_domain_map": Attribute(9, "2B", Effect.BYTES),
    "mem_sync_domain": Attribute(10, "i", Effect.BYTES),
    "preferred_cluster": Attribute(11, "3I", Effect.BYTES, needs_clusters=True),
    "device_updatable": Attribute(13, "i4xQ", Effect.BYTES),
    "shared_memory_carveout": Attribute(14, "i", Effect.TIME),
    "nvlink_util_centric_scheduling": Attribute(16, "i", Effect.TIME),
    "portable_cluster_size": Attribute(17, "i", Effect.LEGALITY, needs_clusters=True),
    "shared_memory_mode": Attribute(18, "i", Effect.LEGALITY),
}
"""What a kernel node can have. Others of ``CUlaunchAttributeID`` become edges or events when they are captured."""


def pack(name: str, numbers: tuple[int, ...]) -> bytes:
    """A value of :data:`VALUE_BYTES` bytes."""
    return struct.pack(f"={ATTRIBUTES[name].form}", *numbers).ljust(VALUE_BYTES, b"\0")


def unpack(name: str, value: bytes) -> tuple[int, ...]:
    """The fields of a value, as whole numbers."""
    return tuple(int(number) for number in struct.unpack_from(f"={ATTRIBUTES[name].form}", value))
