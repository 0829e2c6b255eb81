"""One graph of a pool at a time (rule M1).

All graphs of a pool work in the same memory: two of them at once write over each other. So a replay or a capture takes the
pool's turn and is refused where somebody else has it, another thread or an outer replay; and a replay on another stream than
the one before it is made to wait for that one on the device, and for nothing that was queued on its stream later.
"""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Any

from seam.errors import SeamError

if TYPE_CHECKING:
    from seam.backend import Pool
    from seam.graph import BreakableGraph

__all__ = ["Turn", "turn_of"]


class Turn:
    """Who works in a pool's memory.

    Attributes:
        last: the graph that was replayed last, if it is alive.
    """

    def __init__(self) -> None:
        self.last: weakref.ref[BreakableGraph] | None = None
        self._lock = threading.Lock()
        self._thread = 0
        self._doing = ("", "")
        self._stream: Any = None
        self._mark: Any = None

    def take(self, doing: str, label: str, error: type[SeamError]) -> None:
        """From now on the pool's memory is the caller's alone, until it calls :meth:`give_back`.

        Args:
            doing: what the caller is about to do, such as ``"replayed"``.
            label: of the caller's graph.
            error: raised where somebody else has the turn.
        """
        if not self._lock.acquire(blocking=False):
            raise self._refused(doing, label, error)
        self._thread, self._doing = threading.get_ident(), (label, doing)

    def give_back(self, pool: Pool) -> None:
        """The pool's memory is free for the next one, once what the caller queued has run."""
        try:
            self._stream, self._mark = pool.current_stream(), pool.mark(self._mark)
        finally:
            self._lock.release()

    def follow(self, pool: Pool) -> None:
        """Make the current stream wait for what worked in the pool before."""
        if self._mark is not None and self._stream != pool.current_stream():
            pool.follow(self._mark)

    def _refused(self, doing: str, label: str, error: type[SeamError]) -> SeamError:
        holder = " is ".join(self._doing)
        if self._thread == threading.get_ident():
            return error(
                f"{label} cannot be {doing} inside a break while {holder} in the same pool",
                rule="S5",
                remedy="capture one of the two into a pool of its own",
            )
        return error(
            f"{label} cannot be {doing} while another thread works in its pool: {holder}",
            rule="M1",
            remedy="replay the graphs of a pool one after the other, or capture them into pools of their own",
        )


_turns: weakref.WeakKeyDictionary[Any, Turn] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def turn_of(pool: Pool) -> Turn:
    """The turn of a pool."""
    with _lock:
        found = _turns.get(pool)
        if found is None:
            found = _turns[pool] = Turn()
        return found
