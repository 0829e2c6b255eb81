"""What may share an executable, how many executables there may be, and what happens when one is busy: one frozen model."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from graphdedup.errors import SettingsError
from graphdedup.placement import Placement
from graphdedup.signature import Tier

__all__ = ["Concurrent", "FoldPolicy", "Verify"]


class Concurrent(enum.StrEnum):
    """What a replay does when the executable that it would use still runs on another stream (rule D10)."""

    SPLIT = "split"
    """The group gets a second executable, which stays for the next time: graphs that could run side by side do."""
    SERIALISE = "serialise"
    """It waits, on the device. Graphs of one group that wait for each other would then wait for ever: use split."""


class FoldPolicy(BaseModel):
    """How graphs fold. Backends of one device with equal policies share one registry, and so their executables.

    ``max_execs`` and ``exec_budget_bytes`` bound the executables of the fold. Over a bound the one that was launched least
    recently goes, and comes back by an instantiation when one of its graphs is replayed. Bytes are modelled from node
    counts: no driver tells what one executable takes. A bound gives way to executables that are being launched.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    tier: Tier = Tier.STRUCTURE
    """How much of a graph must be equal (rule D4)."""
    placement: Placement = Placement.GROUP
    """Which of the graphs that could share an executable do."""
    concurrent: Concurrent = Concurrent.SPLIT
    max_execs: int | None = Field(default=None, ge=1)
    exec_budget_bytes: int | None = Field(default=None, ge=1)
    refresh_after: int | None = Field(default=None, ge=1)
    """After so many replays of one graph in a row on an executable that was updated, it is instantiated anew from that graph:
    an updated one runs longer on the device than a new one. For steady batch sizes; each time costs an instantiation."""
    draws_vouched: bool = False
    """The caller vouches that no captured graph draws random numbers. It saves the step that advances them, where torch
    (2.12 and newer) does not tell whether a graph draws (rule D12)."""

    @classmethod
    def of(cls, given: FoldPolicy | Tier | str | None) -> FoldPolicy:
        """A policy from itself, the name of a tier, text such as ``tier=exact,max_execs=8``, or the default from None.

        Raises:
            SettingsError: the name is no tier, or the text names no field or no value of one.
        """
        if isinstance(given, FoldPolicy):
            return given
        if given is None:
            return cls()
        if not isinstance(given, str):
            raise SettingsError(f"policy={given!r} is no policy", remedy="give a FoldPolicy or the name of a tier")
        if "=" not in given:
            return cls.parse(tier=given)
        fields: dict[str, object] = {}
        for item in given.split(","):
            name, equals, value = (part.strip() for part in item.partition("="))
            if not equals or name in fields:
                raise SettingsError(
                    f"fold policy: {item.strip()!r} is no field=value, or names a field again",
                    remedy="write tier=function,placement=position",
                )
            fields[name] = value
        return cls.parse(**fields)

    def to_text(self) -> str:
        """Text that :meth:`of` reads: the fields that are not as by default."""
        changed = self.model_dump(mode="json", exclude_defaults=True)
        return ",".join(f"{name}={str(value).lower()}" for name, value in changed.items()) or f"tier={self.tier.value}"

    @classmethod
    def parse(cls, **fields: object) -> FoldPolicy:
        """A policy from its fields; names of enumerations may be strings.

        Raises:
            SettingsError: a field is unknown or its value is; the message says which.
        """
        try:
            return cls.model_validate(fields)
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False)[0]
            field = ".".join(str(part) for part in first["loc"])
            raise SettingsError(
                f"fold policy: {field}={first['input']!r}: {first['msg'].lower()}",
                remedy=f"fields are {', '.join(cls.model_fields)}; see graphdedup.FoldPolicy",
            ) from error


@dataclass(frozen=True, slots=True)
class Verify:
    """How replays are verified: each graph's first ``replays`` also run on an executable of its own, and the bytes that
    both wrote are compared. Where they differ the graph is un-folded and the caller gets what its own executable wrote.

    ``fresh_inputs`` changes the inputs in place; with it each comparison is repeated on other inputs, and memory is then put
    back. Slow, and as much memory again as the graphs can reach: for a test run, not for production.
    """

    replays: int = 3
    fresh_inputs: Callable[[], None] | None = None

    def __post_init__(self) -> None:
        if self.replays < 1:
            raise SettingsError(f"verify: replays={self.replays} compares nothing", remedy="give at least 1")
