"""What an update of an executable carries on this device and driver: measured, never assumed.

:mod:`graphdedup.probe` measures it by small graphs, once for each (device, driver, CUDA, torch). What was not measured is
"unknown", and unknown is treated as not carried: it stays in the key, or forbids sharing where it cannot even be read.
"""

from __future__ import annotations

import enum
from collections.abc import Collection
from functools import cached_property
from typing import Literal

from pydantic import BaseModel, ConfigDict

from graphdedup.driver.attributes import ATTRIBUTES, Effect
from graphdedup.driver.protocol import DeviceIdentity, Reads
from graphdedup.validation import from_json

__all__ = ["AnswerRow", "AttributeRow", "Capabilities", "FactRow", "Outcome"]


class Outcome(enum.StrEnum):
    """What an update does with a difference between the executable and the graph offered."""

    CARRIED = "carried"
    """Taken, and the launch shows the new value."""
    REFUSED = "refused"
    """Refused, and the executable runs what it ran before."""
    STALE = "stale"
    """Taken, and the launch does *not* do what the offered graph does."""
    UNOBSERVED = "unobserved"
    """Taken, but no launch shows whether the old or the new value holds."""
    BROKEN = "broken"
    """Refused, and the executable no longer runs what it ran before."""
    UNKNOWN = "unknown"
    """Could not be tried here."""


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class AnswerRow(_Model):
    """The answer to one question: a pair of small graphs that differ in ``topic``, in this ``way``."""

    topic: str
    way: str
    outcome: Outcome
    verdict: str = ""
    """The update's result by name; empty when it was not tried."""
    detail: str = ""


class AttributeRow(_Model):
    """A launch attribute of kernel nodes. None: could not be told."""

    name: str
    number: int
    readable: bool | None = None
    """Whether the driver tells it of a captured node."""
    settable: bool | None = None
    """Whether the driver takes a kernel with it; where it does not, no kernel has it."""


class FactRow(_Model):
    """Something else about the driver: "yes", "no", "unknown" or a number."""

    name: str
    value: str
    detail: str = ""


ANOTHER_FUNCTION = ", with another function"
BARE = "bare launch after the update"
"""Topic of the questions that leave out what the fold's driver does after an update."""
_FUNCTIONS = (
    "function",
    "function with many registers",
    "function with static shared memory",
    "function above 48 KB",
    "function with printf",
    "function of another module",
    "function of a module loaded later",
)
_SAFE = {Outcome.CARRIED, Outcome.REFUSED}
_TAKEN = {Outcome.CARRIED, Outcome.STALE, Outcome.UNOBSERVED}
_ALONE = ("changed", "changed back", "set", "to one block", "from one block")


class Capabilities(_Model):
    """What may differ between graphs that share an executable (rules D3, D4). Made by ``graphdedup probe``."""

    schema_version: Literal[1] = 1
    kind: Literal["graphdedup.capabilities"] = "graphdedup.capabilities"
    device: str
    compute_capability: tuple[int, int] = (0, 0)
    driver_version: str = ""
    cuda_version: str = ""
    torch_version: str = ""
    source: str
    """Where this is known from, in words."""
    attributes: tuple[AttributeRow, ...] = ()
    answers: tuple[AnswerRow, ...] = ()
    facts: tuple[FactRow, ...] = ()

    @classmethod
    def unknown(cls, identity: DeviceIdentity, why: str) -> Capabilities:
        """Nothing is known: nothing is taken as carried."""
        return cls(
            device=identity.name,
            compute_capability=identity.compute_capability,
            driver_version=identity.driver_version,
            source=f"not measured: {why}",
        )

    def to_json(self, *, indent: int | None = 2) -> str:
        """JSON text that :meth:`from_json` reads back to equal capabilities."""
        return self.model_dump_json(indent=indent)

    @classmethod
    def from_json(cls, text: str | bytes) -> Capabilities:
        """Read :meth:`to_json`.

        Raises:
            ReportError: the text is not the JSON of capabilities; the message says where.
        """
        return from_json(cls, text, called="capabilities", remedy="give the JSON that graphdedup probe --json wrote")

    # Answers

    def outcome(self, topic: str, way: str) -> Outcome:
        """The answer to one question; ``UNKNOWN`` when it was not asked."""
        return self._by_question.get((topic, way), Outcome.UNKNOWN)

    def outcomes(self, topic: str) -> set[Outcome]:
        """The answers to all ways of a topic; ``{UNKNOWN}`` when none was asked."""
        return {row.outcome for row in self.answers if row.topic == topic} or {Outcome.UNKNOWN}

    def fact(self, name: str) -> str:
        """A fact's value, or "unknown"."""
        return next((row.value for row in self.facts if row.name == name), "unknown")

    @cached_property
    def _by_question(self) -> dict[tuple[str, str], Outcome]:
        return {(row.topic, row.way): row.outcome for row in self.answers}

    # What follows for the fold

    @cached_property
    def carries_function(self) -> bool:
        """Whether graphs of other kernel functions may share: each kind of function is carried, or refused without harm."""
        seen = [self.outcomes(topic) for topic in _FUNCTIONS]
        return seen[0] == {Outcome.CARRIED} and all(outcomes <= _SAFE for outcomes in seen)

    @cached_property
    def carries_cluster(self) -> bool:
        """Whether graphs of other cluster dimensions may share, at nodes where their functions differ as well.

        A kernel that sets no cluster dimension counts as one that says (1, 1, 1), see :attr:`mends_unset_cluster`.
        """
        if not self.carries_function:
            return self.carries_cluster_alone
        ways = ("changed", "set", "to one block")
        carried = all(self.outcome("cluster", way + ANOTHER_FUNCTION) is Outcome.CARRIED for way in ways)
        return carried and Outcome.BROKEN not in self.outcomes("cluster")

    @cached_property
    def carries_cluster_alone(self) -> bool:
        """Whether an update carries a cluster dimension where the function stays the same."""
        return all(self.outcome("cluster", way) is Outcome.CARRIED for way in _ALONE)

    @cached_property
    def mends_unset_cluster(self) -> bool:
        """Whether a kernel without a cluster dimension must say (1, 1, 1), because "none" is not carried."""
        ways = ("unset", "unset" + ANOTHER_FUNCTION)
        return not all(self.outcome("cluster", way) is Outcome.CARRIED for way in ways)

    @cached_property
    def hidden(self) -> tuple[str, ...]:
        """Attributes that could change what a kernel computes, that the driver does not tell, and that an update may drop.

        An attribute that the driver takes from nobody, that it refuses to change, or that shows in no launch though a
        kernel would see it, does no harm.
        """
        rows = {row.name: row for row in self.attributes}
        found = []
        for name, attribute in ATTRIBUTES.items():
            row = rows.get(name)
            readable, settable = (row.readable, row.settable) if row is not None else (None, None)
            if attribute.effect is Effect.BYTES and readable is not True and settable is not False:
                harmless = _SAFE | ({Outcome.UNOBSERVED} if name in _VISIBLE else set())
                if not self.outcomes(name) <= harmless:
                    found.append(name)
        return tuple(found)

    def reads_everything(self) -> Reads:
        """Everything that the driver tells of a node, but for parameters."""
        untold = {row.name for row in self.attributes if row.readable is False}
        told = [name for name in ATTRIBUTES if name not in _ALWAYS_READ and name not in untold]
        held = (*self.hidden, *(name for name in told if name not in self.hidden))
        return Reads(attributes=held, geometry=True, memset_extent=True, memcpy_extent=True)

    def reads(self, instantiate_flags: int, *, leave_out: Collection[Effect] = ()) -> Reads:
        """What a walk has to read of each node, because an update is not known to carry it.

        Attributes of the effects in ``leave_out`` are not read, as far as the driver was seen to take each change of them.
        """
        held = list(self.hidden)
        for name in ATTRIBUTES:
            if name in _ALWAYS_READ or (name == "priority" and not instantiate_flags & _USE_NODE_PRIORITY):
                continue  # without that flag node priorities are not used (cuGraphInstantiate)
            row = next((row for row in self.attributes if row.name == name), None)
            if row is not None and row.readable is False:
                continue
            if name in held:
                continue
            topic = "priority under USE_NODE_PRIORITY" if name == "priority" else name
            if ATTRIBUTES[name].effect in leave_out and self.outcomes(topic) <= _TAKEN:
                continue
            harmless = {Outcome.CARRIED} | ({Outcome.UNOBSERVED} if name in _VISIBLE else set())
            if not self.outcomes(topic) <= harmless:
                held.append(name)
        return Reads(
            attributes=tuple(held),
            geometry=not all(self.outcomes(topic) == {Outcome.CARRIED} for topic in _GEOMETRY),
            memset_extent=not all(self.outcomes(topic) == {Outcome.CARRIED} for topic in _MEMSET),
            memcpy_extent=self.outcomes("memcpy size") != {Outcome.CARRIED},
        )


_USE_NODE_PRIORITY = 8
_ALWAYS_READ = {"cooperative", "cluster", "device_updatable"}
_VISIBLE = {"preferred_cluster"}
"""Attributes whose effect a kernel sees: where two kernels of other values see the same, the device does not use them."""
_GEOMETRY = ("grid", "block", "shared memory", "shared memory above 48 KB")
_MEMSET = ("memset width", "memset element size")
