"""What the probe asks of a device: build small graphs, update executables, launch, and show every byte."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from graphdedup.driver.protocol import GraphDriver, UpdateResult
from graphdedup.probe.spec import Arena, GraphSpec

__all__ = ["AUTO_FREE_ON_LAUNCH", "USE_NODE_PRIORITY", "Bench", "Interval", "NotHere"]

AUTO_FREE_ON_LAUNCH, USE_NODE_PRIORITY = 1, 8
"""Instantiate flags."""


class NotHere(Exception):
    """This device, driver or toolkit cannot build or run what was asked; the question stays open ("unknown")."""


class Interval(NamedTuple):
    """One launch of an ``interval`` kernel: the constant it was launched with, and when it ran, in nanoseconds."""

    constant: int
    start_ns: int
    end_ns: int


class Bench(Protocol):
    """Builds :class:`~graphdedup.probe.spec.GraphSpec` on one device. Everything made is freed by :meth:`close`."""

    @property
    def driver(self) -> GraphDriver: ...

    @property
    def arena(self) -> Arena: ...

    def build(self, spec: GraphSpec) -> Any:
        """The raw graph, as ``driver.walk`` takes it.

        Raises:
            NotHere: a node or attribute does not exist here, such as clusters before compute capability 9.0.
        """

    def instantiate(self, raw: Any, flags: int = AUTO_FREE_ON_LAUNCH) -> Any:
        """An executable.

        Raises:
            NotHere: the driver does not instantiate this graph.
        """

    def update(self, executable: Any, raw: Any) -> UpdateResult: ...

    def run(self, executable: Any, seed: int = 0, *, bare: bool = False) -> bytes:
        """Fill the arena from ``seed``, launch, wait, and return every byte of it: buffers, stamps, host, counters.

        ``bare`` launches by the bare call of the driver API, without what the fold's driver does after an update.
        """

    def run_by(self, launch: Callable[[], object], seed: int = 0) -> bytes:
        """The same around a launch of somebody else's, such as a registry's replay, on the bench's stream."""

    def stamp(self, index: int) -> list[int]:
        """A stamp as the last run left it; see :class:`~graphdedup.probe.spec.Arena`."""

    def attribute(self, raw: Any, node: int, name: str) -> tuple[int, ...] | None:
        """A launch attribute of a captured graph's node in creation order, or None where the driver does not tell."""

    def node_order(self, raw: Any) -> list[int]:
        """For each node in the driver's order, its place in creation order."""

    def set_enabled(self, executable: Any, raw: Any, node: int, enabled: bool) -> None:
        """Enable or disable a node of an executable that was made from ``raw``."""

    def launch_beside(self, executables: Sequence[Any], update: tuple[Any, Any] | None = None) -> tuple[list[Interval], bool]:
        """Launch each on a stream of its own, all at once, then update (executable, raw) while they run.

        Returns:
            The intervals that ``interval`` kernels logged, and whether a launch was still running after the update.
        """

    def torch_flags(self) -> int:
        """The flags of torch's own executables."""

    def last_error(self) -> int | None:
        """The runtime's last error, which is consumed; None where it cannot be asked."""

    def destroy(self, executable: Any) -> None: ...

    def discard(self, raw: Any) -> None:
        """Destroy a graph; executables made from it stay."""

    def close(self) -> None: ...
