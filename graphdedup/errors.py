"""The exceptions of graphdedup.

GraphDedupError
 +-- SettingsError      a switch, size list or policy that cannot be parsed
 +-- DriverError        a driver call failed, or the driver cannot be used here
 |    +-- Unverifiable   (driver.memory) a replay cannot be compared with one by an executable of its own
 +-- ReportError        a report file that is not one, or of an unknown version

Every message names the object, what is wrong with it and the remedy, and the rule (docs/invariants.md) where one applies.
"""

from __future__ import annotations

__all__ = ["DriverError", "GraphDedupError", "ReportError", "SettingsError"]


class GraphDedupError(RuntimeError):
    """Base of every error of graphdedup.

    Args:
        problem: the object by name, and what is wrong with it.
        remedy: what the caller can do about it.
        rule: number of the rule that applies, such as ``"D5"``; empty for plain bad input.
    """

    def __init__(self, problem: str, *, remedy: str, rule: str = "") -> None:
        super().__init__(f"{problem}{f' [rule {rule}]' if rule else ''} Remedy: {remedy}")
        self.problem = problem
        self.rule = rule
        self.remedy = remedy


class SettingsError(GraphDedupError):
    """A switch, size list or policy that cannot be parsed."""


class DriverError(GraphDedupError):
    """A driver call failed, or the driver cannot be used here."""


class ReportError(GraphDedupError):
    """A file that is not a report, or a report of a version that this release cannot read."""
