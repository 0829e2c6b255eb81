"""The exceptions of the seam.

SeamError
 +-- CaptureError          a scope that may not open, or that cannot go on
 |    +-- CaptureFailed    the scope ended, and what it captured was dropped
 +-- BreakError            a break whose arguments, result or destination cannot be honoured
 +-- ReplayError           a graph that cannot be replayed in the state it is in

Every message names the object, what is wrong with it, the rule (docs/invariants.md) and the remedy.
"""

from __future__ import annotations

__all__ = ["BreakError", "CaptureError", "CaptureFailed", "ReplayError", "SeamError"]


class SeamError(RuntimeError):
    """Base of every error of the seam.

    Args:
        problem: the object by name, and what is wrong with it.
        rule: number of the rule that was broken, such as ``"S6"``.
        remedy: what the caller can do about it.
    """

    def __init__(self, problem: str, *, rule: str, remedy: str) -> None:
        super().__init__(f"{problem} [rule {rule}] Remedy: {remedy}")
        self.problem = problem
        self.rule = rule
        self.remedy = remedy


class CaptureError(SeamError):
    """A capture scope may not open here, or cannot go on."""


class CaptureFailed(CaptureError):
    """A capture ended with a failure that was caught inside its scope; the first error is the cause."""


class BreakError(SeamError):
    """A break's result or destination cannot be honoured on replay."""


class ReplayError(SeamError):
    """A graph was asked for something that its state does not allow."""
