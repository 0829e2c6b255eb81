"""The fold plan: which graphs share an executable; its digest is equal in every process that captured and folded alike."""

from __future__ import annotations

from collections.abc import Iterable

import xxhash

from graphdedup.group import Group, Member

__all__ = ["plan_digest"]


def plan_digest(members: Iterable[Member]) -> str:
    """32 hexadecimal digits over the live members in their order of capture: what each is, and whose executable it shares.

    No address, handle or count of replays is in it. Ranks of a job that launch collectives in their graphs can compare
    it: where it is equal they fold alike.
    """
    digest = xxhash.xxh3_128()
    numbers: dict[Group, int] = {}
    for member in sorted(members, key=lambda member: member.id):
        group = -1 if member.group is None else numbers.setdefault(member.group, len(numbers))
        fields = (member.session, member.segment.label, member.segment.position, member.shape, group)
        digest.update(repr(fields).encode())
    return digest.hexdigest()
