"""What the driver of a simulated device carries through an update, and what it says about itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

__all__ = ["Carries", "DriverProfile"]

Carries = Literal["carried", "refused", "stale"]
"""``stale``: the update reports success and the executable keeps its old value, as some drivers were seen to do."""


@dataclass(frozen=True)
class DriverProfile:
    """The behaviour of one driver; the defaults are what an H200 with driver 580.159 was measured to do.

    Attributes:
        carries_function: what happens when a kernel node's function changes.
        carries_cluster: the same for its cluster dimension, where the function changes as well, or while the executable was
            never uploaded.
        carries_cluster_alone: the same where the function stays and the executable was uploaded or launched. The H200 was
            measured to report success and to keep the old dimension, whatever else of the kernel changes.
        freezes_clusters: an executable that was launched goes on with the cluster dimensions of that launch, whatever was
            carried, until a kernel has run outside of a graph (``SimulatedDevice.run_kernel``). So the H200 was measured.
        carries_unset_cluster: what happens when a kernel without a cluster dimension is offered for one that has it. The
            H200 was measured to report success and to keep the old dimension; an explicit (1, 1, 1) is carried.
        makes_room: whether an update makes room for the local memory of a function that needs more than any launch before.
            The H200 was measured to report success, and the first launch could compute garbage; here it does nothing.
        carries_unset_carveout: what happens when the preferred shared-memory carveout is no longer set and nothing else of
            the kernel changes. The H200 was measured to keep the old one.
        carries_attributes: the same for other launch attributes, by name; those that are not named are carried.
        uses_preferred_cluster: whether a kernel runs with its preferred cluster dimension; an H200 never did.
        unreadable: launch attributes that the driver does not tell of a captured node.
        unsettable: launch attributes that the driver does not take, so that no kernel has them.
        refuse_nth_update: refuse the update with this number, counted from 1 over the device's life.
        refuse_pairs: called with the graph that the executable reflects (None if it is gone) and the graph offered;
            True refuses the update.
        sticky_last_error: a refusal leaves an error behind, which the thread's next call on the device raises unless
            ``SimulatedDevice.get_last_error`` consumed it.
        driver_branch: major number of the driver.
    """

    name: str = "Simulated H200"
    compute_capability: tuple[int, int] = (9, 0)
    driver_version: str = "580.159"
    driver_branch: int = 580
    carries_function: Carries = "carried"
    carries_cluster: Carries = "carried"
    carries_cluster_alone: Carries = "stale"
    freezes_clusters: bool = True
    carries_unset_cluster: Carries = "stale"
    carries_unset_carveout: Carries = "stale"
    makes_room: bool = False
    carries_attributes: Mapping[str, Carries] = field(
        default_factory=lambda: MappingProxyType({"nvlink_util_centric_scheduling": "refused"}), hash=False
    )
    uses_preferred_cluster: bool = False
    unreadable: frozenset[str] = frozenset(
        {"preferred_cluster", "nvlink_util_centric_scheduling", "portable_cluster_size", "shared_memory_mode"}
    )
    unsettable: frozenset[str] = frozenset({"portable_cluster_size", "shared_memory_mode"})
    refuse_nth_update: int | None = None
    refuse_pairs: Callable[[Any, Any], bool] | None = None
    sticky_last_error: bool = False

    def __post_init__(self) -> None:
        told = {name: getattr(self, name) for name in _CARRIES} | dict(self.carries_attributes)
        for name, value in told.items():
            if value not in ("carried", "refused", "stale"):
                raise ValueError(f"{name} must be 'carried', 'refused' or 'stale', not {value!r}")


_CARRIES = (
    "carries_function",
    "carries_cluster",
    "carries_cluster_alone",
    "carries_unset_cluster",
    "carries_unset_carveout",
)
