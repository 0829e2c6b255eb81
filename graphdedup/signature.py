"""From a captured graph to the key under which it may share an executable. Nothing else decides "same".

The record is a string of ordered, length-prefixed fields; the key is its xxh3_128. A key only proposes: the registry
compares the record's bytes (rule D2), and then the driver disposes (rule D1).
"""

from __future__ import annotations

import enum
import struct
from typing import NamedTuple

import xxhash

from graphdedup.capabilities import Capabilities
from graphdedup.driver.attributes import Effect
from graphdedup.driver.protocol import DeviceIdentity, GraphRecord, NodeRecord, Reads

__all__ = ["Tier", "forbids_sharing", "key", "reads", "record_bytes", "shape_digest"]

_VERSION = 3


class Tier(enum.StrEnum):
    """How much of a graph is in its key (rule D4)."""

    STRUCTURE = "structure"
    """Node kinds, edges, and what an update cannot carry here. Grid, block, shared memory, parameters are not in it."""
    FUNCTION = "function"
    """Also the kernel function and cluster dimension of each node, carried or not, and attributes that cost time alone."""
    EXACT = "exact"
    """Also grid, block, shared memory, sizes of copies and memsets, and every attribute that the driver tells: what is left
    to an update are parameters, that is addresses and numbers."""


def reads(capabilities: Capabilities, instantiate_flags: int, tier: Tier) -> Reads:
    """What a walk has to read of each node for a record of this tier.

    In the default tier attributes that change nothing but time are left to the update, carried or not: folding then stays
    exact, and where a driver forgets one (cluster scheduling policy, on an H200) the cost is time at most.
    """
    if tier is Tier.EXACT:
        return capabilities.reads_everything()
    return capabilities.reads(instantiate_flags, leave_out=(Effect.TIME,) if tier is Tier.STRUCTURE else ())


def _field(data: bytes) -> bytes:
    return struct.pack("<I", len(data)) + data


def _numbers(*values: int) -> bytes:
    return _field(struct.pack(f"<{len(values)}q", *values))


def _text(value: str) -> bytes:
    return _field(value.encode())


class _Held(NamedTuple):
    """Which parts of a node are in the record here."""

    functions: bool
    clusters: bool


def _node(node: NodeRecord, held: _Held) -> bytes:
    parts = [_text(node.kind), _numbers(*node.fixed), _text("\0".join(node.unreadable))]
    # A handle is an address, hence unsigned; its low 63 bits are packed and the sign kept apart.
    parts.append(_numbers(node.function >> 63, node.function & (2**63 - 1)) if held.functions else _field(b""))
    parts.append(_numbers(*node.cluster) if held.clusters else _field(b""))
    parts.append(_graph(node.child, held._replace(clusters=True)) if node.child is not None else b"")
    return _field(b"".join(parts))


def _graph(record: GraphRecord, held: _Held) -> bytes:
    cache: dict[NodeRecord, bytes] = {}
    nodes = bytearray()
    for node in record.nodes:
        packed = cache.get(node)
        if packed is None:
            packed = cache[node] = _node(node, held)
        nodes += packed
    edges = b"".join(struct.pack("<qq3q", edge.source, edge.target, *edge.data) for edge in record.edges)
    return _numbers(len(record.nodes), len(record.edges)) + _field(bytes(nodes)) + _field(edges)


def record_bytes(
    record: GraphRecord,
    identity: DeviceIdentity,
    instantiate_flags: int,
    capabilities: Capabilities,
    tier: Tier = Tier.STRUCTURE,
) -> bytes:
    """Everything that must be equal before two graphs are tried on one executable (rules D3, D4).

    ``record`` was walked with :func:`reads` of the same tier. Nodes and edges are written in the order that it
    has: the driver pairs nodes by it, so sorting them would make graphs equal that it refuses.
    """
    held = _Held(
        functions=tier is not Tier.STRUCTURE or not capabilities.carries_function,
        clusters=tier is not Tier.STRUCTURE or not capabilities.carries_cluster,
    )
    major, minor = identity.compute_capability
    head = (
        _numbers(_VERSION, identity.ordinal, major, minor, instantiate_flags, *held)
        + _text(identity.kind)
        + _text(f"{identity.context:x}")
        + _text(tier.value)
    )
    return head + _graph(record, held)


def key(record: bytes) -> str:
    """The xxh3_128 of a record, as 32 hexadecimal digits."""
    return xxhash.xxh3_128_hexdigest(record)


def shape_digest(record: GraphRecord) -> str:
    """A digest of node kinds and edges alone: equal in every process, since no handle or address is in it."""
    digest = xxhash.xxh3_128()
    for node in record.nodes:
        digest.update(node.kind.encode() + b"\0")
        if node.child is not None:
            digest.update(shape_digest(node.child).encode())
    for edge in record.edges:
        digest.update(struct.pack("<qq3q", edge.source, edge.target, *edge.data))
    return digest.hexdigest()


def forbids_sharing(record: GraphRecord) -> str:
    """Why this graph may not share an executable, or an empty string (rule D3)."""
    for index, node in enumerate(record.nodes):
        if node.unreadable:
            return f"node {index} ({node.kind}): {', '.join(node.unreadable)} cannot be read and could be in use"
        if node.child is not None and (reason := forbids_sharing(node.child)):
            return f"node {index} (child graph): {reason}"
    return ""
