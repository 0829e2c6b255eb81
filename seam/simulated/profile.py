"""What the driver of a simulated device carries through an update, and what it says about itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

__all__ = ["Carries", "DriverProfile"]

Carries = Literal["carried", "refused", "stale"]
"""``stale``: the update reports success and the executable keeps its old value, as some drivers were seen to do."""


@dataclass(frozen=True)
class DriverProfile:
    """The behaviour of one driver; the defaults are what an H200 with driver 580.159 was measured to do.

    Attributes:
        carries_function: what happens when a kernel node's function changes.
        carries_cluster: the same for its cluster dimension.
        carries_unset_cluster: what happens when a kernel without a cluster dimension is offered for one that has it. The
            H200 was measured to report success and to keep the old dimension; an explicit (1, 1, 1) is carried.
        carries_preferred_cluster: the same for its preferred cluster dimension.
        readable_preferred_cluster: whether that attribute can be read from a captured node.
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
    carries_unset_cluster: Carries = "stale"
    carries_preferred_cluster: Carries = "carried"
    readable_preferred_cluster: bool = False
    refuse_nth_update: int | None = None
    refuse_pairs: Callable[[Any, Any], bool] | None = None
    sticky_last_error: bool = False

    def __post_init__(self) -> None:
        for field in ("carries_function", "carries_cluster", "carries_unset_cluster", "carries_preferred_cluster"):
            if getattr(self, field) not in ("carried", "refused", "stale"):
                raise ValueError(f"{field} must be 'carried', 'refused' or 'stale', not {getattr(self, field)!r}")
