"""Verified replays: a graph runs on the shared executable and on one of its own, and the bytes that both wrote are compared.

The shared one goes first. What it does may hang on what ran on the device before it, and the executable of its own, whose
bytes the caller gets in any case, must not mend that.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from graphdedup.driver.memory import GraphMemory, Region, Saved, Unverifiable
from graphdedup.errors import DriverError

__all__ = ["Mismatch", "Verifier"]

_log = logging.getLogger("graphdedup")
_MOST_NAMED = 4


@dataclass(frozen=True, slots=True)
class Mismatch:
    """How the shared executable went wrong. The caller's memory holds what the graph's own executable wrote."""

    regions: tuple[Region, ...]
    """Regions that hold other bytes; none when the shared executable failed altogether."""
    differing_bytes: int
    where: str
    """In words: how many bytes, at which addresses; or the error."""

    def __str__(self) -> str:
        return self.where


class Verifier:
    """Compares replays. One serves every graph of a device, from any thread.

    While a comparison runs nobody else may write what the graph reaches. What the graph reaches only through pointers that
    lie in memory is neither compared nor put back between the two runs.

    Args:
        memory: the bytes of the device that the graphs run on.
        replays: how many replays of each graph are to be compared; kept for whoever calls :meth:`compare`.
        fresh_inputs: changes inputs in place; each comparison is then repeated on what it wrote, and memory that the graph
            reaches is put back. It must leave other memory as it is, and may replay nothing.

    Attributes:
        compared_count: replays that were compared.
        skipped_count: replays that could not be, see :meth:`compare`.
    """

    def __init__(self, memory: GraphMemory, *, replays: int = 3, fresh_inputs: Callable[[], object] | None = None) -> None:
        self.memory = memory
        self.replays = replays
        self.fresh_inputs = fresh_inputs
        self.compared_count = 0
        self.skipped_count = 0
        self._told: set[str] = set()

    def compare(self, raw: Any, own: Callable[[], None], shared: Callable[[], None]) -> Mismatch | None:
        """Do one replay of a captured graph, by both executables; afterwards memory is as ``own`` alone leaves it.

        Both read the same seed and offset of random numbers if these are set before the call, or by ``shared`` outside of
        the memory that the graph names. A replay that cannot be compared is done by ``own`` alone, and logged: where the
        graph runs code of the host, for one, or there is no room to hold its memory.

        Args:
            raw: the captured graph, as the driver knows it.
            own: launches the executable of its own, on the current stream; called last, and again with fresh
                inputs and after a mismatch, which tells whether the graph is deterministic at all.
            shared: the same with the shared executable; called first. An error of it is a mismatch.

        Returns:
            None when both wrote the same bytes, or could not be compared.

        Raises:
            Exception: what ``own`` raised, memory being as it was before the call; or what it or ``fresh_inputs`` raised
                afterwards, memory being as the replay left it.
        """
        try:
            before = self.memory.save(self.memory.regions(raw))
        except DriverError as error:
            self._skip(error)
            own()
            return None
        try:
            mismatch = self._run_both(before, own, shared)
        except Unverifiable as error:  # there was no room for what the shared one wrote
            self._skip(error)
            own()
            return None
        self.compared_count += 1
        if mismatch is None and self.fresh_inputs is not None:
            try:
                mismatch = self._run_both_afresh(before, own, shared, self.fresh_inputs)
            except Unverifiable as error:
                self._skip(error)
        return mismatch

    def _run_both(self, before: Saved, own: Callable[[], None], shared: Callable[[], None]) -> Mismatch | None:
        """Run both from the same bytes; what differs is what ``own`` wrote in the end."""
        failure = ""
        by_shared: Saved = {}
        try:
            try:
                shared()
            except Exception as error:
                failure = f"the shared executable failed: {type(error).__name__}: {error}"
            else:
                by_shared = self.memory.save(self.memory.differing(before))
        finally:
            self._put_back(before)
        try:
            own()
        except BaseException:
            self._put_back(before)
            raise
        if failure:
            return Mismatch((), 0, failure)
        wrong = self.memory.differing(before | by_shared)
        return _mismatch(wrong, len(by_shared), self._unsteady(before, wrong, own)) if wrong else None

    def _unsteady(self, before: Saved, wrong: Mapping[Region, int], own: Callable[[], None]) -> int:
        """In how many of these regions ``own`` does not repeat its bytes either, as with kernels that add in any order."""
        try:
            by_own = before | self.memory.save(self.memory.differing(before))
        except Unverifiable:
            return 0
        try:
            self._put_back(before)
            own()
            return sum(region in wrong for region in self.memory.differing(by_own))
        finally:
            self._put_back(by_own)

    def _run_both_afresh(
        self, before: Saved, own: Callable[[], None], shared: Callable[[], None], fresh_inputs: Callable[[], object]
    ) -> Mismatch | None:
        """The same on fresh inputs; afterwards memory is what the caller's own inputs gave."""
        seen = before | self.memory.save(self.memory.differing(before))
        try:
            self._put_back(before)
            fresh_inputs()
            inputs = self.memory.save(self.memory.differing(before))
            mismatch = self._run_both(before | inputs, own, shared)
        finally:
            self._put_back(seen)
        if mismatch is None:
            return None
        return Mismatch(mismatch.regions, mismatch.differing_bytes, f"with fresh inputs, {mismatch.where}")

    def _put_back(self, state: Saved) -> None:
        self.memory.restore({region: state[region] for region in self.memory.differing(state)})

    def _skip(self, error: DriverError) -> None:
        self.skipped_count += 1
        if error.problem not in self._told:
            self._told.add(error.problem)
            _log.warning("a replay is done without a comparison: %s", error)


def _mismatch(wrong: Mapping[Region, int], written: int, unsteady: int) -> Mismatch:
    differing = sum(wrong.values())
    named = [f"{count} of {region.size_bytes} at {region.address:#x}" for region, count in wrong.items()]
    more = f" and {len(named) - _MOST_NAMED} more" if len(named) > _MOST_NAMED else ""
    regions = f"{len(wrong)} {'region' if len(wrong) == 1 else 'regions'}"
    where = (
        f"{differing} {'byte differs' if differing == 1 else 'bytes differ'} in {regions} "
        f"({', '.join(named[:_MOST_NAMED])}{more}); the shared executable changed {written}"
    )
    if unsteady:
        where += f"; in {unsteady} of them its own executable does not repeat its bytes either: the graph is not deterministic"
    return Mismatch(tuple(Region(*region) for region in wrong), differing, where)
