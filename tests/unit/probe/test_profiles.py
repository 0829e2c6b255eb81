"""Drivers that differ in what an update carries: the probe tells them apart, and every fold is exact on each of them."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

import seam
from graphdedup import DedupBackend
from graphdedup.capabilities import Capabilities, Outcome
from graphdedup.driver.simulated import SimulatedDriver
from graphdedup.group import Member
from graphdedup.probe.bench_simulated import SimulatedBench
from graphdedup.probe.known import capabilities_for, probe_profile
from graphdedup.probe.spec import Arena, GraphSpec, Kernel, line
from graphdedup.registry import Registry
from seam.backend import SegmentInfo
from seam.simulated import DriverProfile, LaunchInfo, SimulatedBackend, SimulatedDevice, SimulatedNode

MEASURED = DriverProfile()
STALE = DriverProfile(carries_cluster="stale")
REFUSED = DriverProfile(carries_cluster="refused")
WHOLE = DriverProfile(carries_cluster_alone="carried", carries_unset_cluster="carried", freezes_clusters=False)
HIDDEN = DriverProfile(uses_preferred_cluster=True, carries_attributes={"preferred_cluster": "stale"})
ONE_BLOCK = (1, 1, 1)


# Captures through the seam


ROWS = (1, 8, 12, 16, 40, 64, 100, 300)
"""On the simulated device products of these many rows run five functions: 8, 16, 64, 128 and more rows to a tile, with clusters
of 4, 2, (1, 2), 2 and 2 blocks."""


WEIGHT = torch.randn(16, 16, generator=torch.Generator().manual_seed(5))


def product(x: torch.Tensor) -> torch.Tensor:
    return x @ WEIGHT


def thrice(x: torch.Tensor) -> torch.Tensor:
    return x * 3


class Captured:
    """A captured relu of something."""

    def __init__(
        self, backend: DedupBackend, pool: seam.Pool, rows: int, first: Callable[[torch.Tensor], torch.Tensor]
    ) -> None:
        self.first = first
        self.x = torch.zeros(rows, 16)
        self.graph = seam.BreakableGraph(backend, label=f"{rows} rows")
        with seam.capture(self.graph, pool=pool):
            self.y = self.compute(self.x)

    def compute(self, x: torch.Tensor) -> torch.Tensor:
        return self.first(x).relu()

    def check(self, generator: torch.Generator) -> None:
        """Fresh inputs: the output is that of eager torch, and the launch had the functions and clusters of this graph."""
        self.x.copy_(torch.randn(self.x.shape, generator=generator))
        self.y.fill_(-1)
        self.graph.replay()
        assert torch.equal(self.y, self.compute(self.x))
        member = self.graph.segments[0].member
        assert launched(member.group.executables[0].handle.nodes) == launched(member.raw.nodes)


def launched(nodes: tuple[SimulatedNode, ...]) -> list[tuple[str, tuple[int, int, int]]]:
    return [(node.function, node.clusters if any(node.clusters) else ONE_BLOCK) for node in nodes]


@pytest.mark.parametrize(
    ("profile", "execs"),
    [
        (MEASURED, 1),
        (WHOLE, 1),
        (STALE, 4),  # by cluster: 4, 2, (1, 2), none
        (REFUSED, 4),
        (DriverProfile(carries_unset_cluster="refused"), 1),
        (DriverProfile(carries_function="refused"), 6),  # by function
        # The probe sees a stale launch where the preferred cluster changes with the function, and cannot tell which it was:
        # none of the eight graphs with clusters may share.
        (DriverProfile(carries_function="stale"), 9),
        (DriverProfile(makes_room=True, sticky_last_error=True), 1),
    ],
    ids=["as measured", "whole", "stale", "refused", "unset refused", "function refused", "function stale", "otherwise"],
)
def test_the_same_captures_fold_as_far_as_the_driver_carries(profile: DriverProfile, execs: int) -> None:
    """D1, D3, D4: products of several batch sizes differ in function and cluster; three rounds in shuffled order are exact."""
    device = SimulatedDevice(64 << 20, profile=profile)
    dedup = DedupBackend(SimulatedBackend(device), enabled=True)
    pool = dedup.new_pool()
    captured = [Captured(dedup, pool, rows, product) for rows in ROWS]
    captured.append(Captured(dedup, pool, 5, thrice))
    assert len({one.graph.segments[0].member.raw.nodes[0].function for one in captured}) == 6
    generator, shuffled = torch.Generator().manual_seed(3), random.Random(3)
    for _ in range(3):
        for one in shuffled.sample(captured, len(captured)):
            one.check(generator)
    stats = dedup.stats()
    assert (stats.captured, stats.execs, device.live_exec_count) == (9, execs, execs)
    assert (stats.refused, stats.unfolded, stats.passed_through) == (0, 0, 0)
    for one in captured:
        one.graph.close()
    assert device.live_exec_count == 0


# One kernel after another


class Fold:
    """A bench with a profile, a registry that asked what is known of it, and members that are replayed and compared."""

    def __init__(self, profile: DriverProfile, capabilities: Capabilities | None = None) -> None:
        self.bench = SimulatedBench(SimulatedDevice(8 << 20, profile=profile), Arena())
        self.registry = Registry(self.bench.driver, capabilities=capabilities)
        self.members: list[tuple[Member, GraphSpec]] = []

    def add(self, *specs: GraphSpec) -> list[Member]:
        members = [self.registry.fold(self.bench.build(spec), SegmentInfo(0, str(place))) for place, spec in enumerate(specs)]
        self.members += zip(members, specs, strict=True)
        return members

    def wrong(self) -> int:
        """Replays in three shuffled rounds that were not those of an executable of its own."""
        shuffled, seen = random.Random(9), []
        for seed in (1, 2, 3):
            for member, spec in shuffled.sample(self.members, len(self.members)):
                seen.append((spec, seed, self.bench.run_by(partial(self.registry.replay, member), seed)))
        return sum(found != self.own(spec, seed) for spec, seed, found in seen)

    def own(self, spec: GraphSpec, seed: int) -> bytes:
        raw = self.bench.build(spec)
        executable = self.bench.instantiate(raw)
        try:
            return self.bench.run(executable, seed)
        finally:
            self.bench.destroy(executable)
            self.bench.discard(raw)

    @property
    def execs(self) -> int:
        assert self.registry.exec_count == self.bench.device.live_exec_count
        return self.registry.exec_count


def clustered(count: int | None, function: str = "add") -> GraphSpec:
    kernel = Kernel(function)
    return line(kernel if count is None else kernel.with_attributes(cluster=(count, 1, 1)))


@pytest.mark.parametrize(
    ("profile", "execs", "refused"),
    [
        (MEASURED, 3, 0),  # 2, 4, and 1 with unset
        (WHOLE, 1, 0),
        (STALE, 4, 0),  # 2, 4, 1, unset
        (REFUSED, 4, 0),
        (DriverProfile(carries_cluster_alone="refused"), 4, 1),  # 1 for unset is offered, and refused as well
        (DriverProfile(carries_cluster_alone="carried"), 1, 0),
        (DriverProfile(carries_cluster_alone="carried", freezes_clusters=False), 1, 0),
    ],
    ids=["as measured", "whole", "stale", "refused", "alone refused", "alone carried", "alone carried, not frozen"],
)
def test_one_function_with_several_clusters(profile: DriverProfile, execs: int, refused: int) -> None:
    """D3: they share where a cluster dimension is carried though the function stays; each launch is right on every driver."""
    fold = Fold(profile)
    fold.add(*(clustered(count) for count in (2, 4, None, 1, 2, 4)))
    assert fold.wrong() == 0
    assert fold.execs == execs
    assert fold.registry.counters.refused == refused


@pytest.mark.parametrize(("profile", "mended"), [(MEASURED, True), (WHOLE, False)], ids=["as measured", "whole"])
def test_a_graph_is_changed_only_where_the_driver_needs_it(profile: DriverProfile, mended: bool) -> None:
    """D3: a kernel that sets no cluster dimension says (1, 1, 1) where "none" is not carried."""
    fold = Fold(profile)
    plain, _ = fold.add(clustered(None), clustered(4, "xor"))
    assert fold.wrong() == 0
    assert fold.execs == 1
    assert plain.raw.nodes[0].cluster == (ONE_BLOCK if mended else (0, 0, 0))


def test_a_driver_that_is_taken_for_another_is_wrong() -> None:
    """D3: what these tests would see if the probe told a lie."""
    fold = Fold(STALE, probe_profile(MEASURED))
    fold.add(clustered(2), clustered(4, "xor"))
    assert fold.execs == 1
    assert fold.wrong() > 0
    fold = Fold(MEASURED, probe_profile(WHOLE))
    fold.add(clustered(2), clustered(4))
    assert fold.execs == 1
    assert fold.wrong() > 0


# Attributes


def write_domain(info: LaunchInfo, out: torch.Tensor) -> None:
    out.fill_(10 + info.attributes.get("mem_sync_domain", 0))


class Domains:
    """Graphs of one kernel that writes the memory domain that it was launched with."""

    def __init__(self, profile: DriverProfile, change: Callable[[Capabilities], Capabilities] = lambda known: known) -> None:
        self.device = SimulatedDevice(1 << 20, profile=profile)
        driver = SimulatedDriver(self.device)
        self.registry = Registry(driver, capabilities=change(capabilities_for(driver)))
        self.members: list[tuple[Member, torch.Tensor, float]] = []

    def add(self, domain: int) -> Member:
        out, graph = torch.zeros(2), self.device.new_graph()
        graph.add_kernel("write_domain", write_domain, (out,), attributes={"mem_sync_domain": domain})
        self.members.append((self.registry.fold(graph, SegmentInfo()), out, 10.0 + domain))
        return self.members[-1][0]

    def wrong(self) -> int:
        count = 0
        for seed in (1, 2, 3):
            for member, out, expected in random.Random(seed).sample(self.members, len(self.members)):
                out.zero_()
                assert self.registry.replay(member)
                count += out.tolist() != [expected] * 2
        return count


@pytest.mark.parametrize("carries", ["stale", "refused", "carried"])
def test_an_attribute_that_can_be_read_keeps_graphs_apart_unless_it_is_seen_to_be_carried(carries: Any) -> None:
    """D3: no kernel of the probe sees its memory domain, so graphs of equal ones share and others are not offered."""
    domains = Domains(DriverProfile(carries_attributes={"mem_sync_domain": carries}))
    members = [domains.add(domain) for domain in (0, 1, 0, 1)]
    assert domains.wrong() == 0
    assert domains.device.live_exec_count == domains.registry.exec_count == 2
    assert members[0].group is members[2].group is not members[1].group
    assert domains.registry.counters.refused == 0


def test_a_stale_attribute_that_is_taken_as_carried_is_wrong() -> None:
    """D3: what the test above would see if the attribute were not in the record."""

    def believe(known: Capabilities) -> Capabilities:
        told = [
            row.model_copy(update={"outcome": Outcome.CARRIED}) if row.topic == "mem_sync_domain" else row
            for row in known.answers
        ]
        return Capabilities(**known.model_dump(exclude={"answers"}), answers=tuple(told))

    domains = Domains(DriverProfile(carries_attributes={"mem_sync_domain": "stale"}), believe)
    for domain in (0, 1, 0, 1):
        domains.add(domain)
    assert domains.registry.exec_count == 1
    assert domains.wrong() > 0


@pytest.mark.parametrize(("carries", "execs", "refused"), [("stale", 3, 0), ("refused", 2, 1)])
def test_an_attribute_that_cannot_be_read_is_refused_or_forbids_sharing(carries: Any, execs: int, refused: int) -> None:
    """D3, D5: every kernel could use a memory domain, so where it may be dropped no two graphs share."""
    profile = DriverProfile(
        unreadable=MEASURED.unreadable | {"mem_sync_domain"}, carries_attributes={"mem_sync_domain": carries}
    )
    domains = Domains(profile)
    members = [domains.add(domain) for domain in (0, 1, 0)]
    assert domains.wrong() == 0
    assert domains.device.live_exec_count == domains.registry.exec_count == execs
    assert domains.registry.counters.refused == refused
    if carries == "stale":
        reason = "a node (kernel): mem_sync_domain cannot be read and could be in use"
        assert domains.registry.alone.counts == {reason: 3}
        assert all("mem_sync_domain cannot be read" in member.reason for member in members)


def preferring(count: int | None, function: str = "add", cluster: int | None = 2) -> GraphSpec:
    values: dict[str, tuple[int, ...]] = {}
    if cluster is not None:
        values["cluster"] = (cluster, 1, 1)
    if count is not None:
        values["preferred_cluster"] = (count, 1, 1)
    return line(Kernel(function, grid=(64, 1, 1)).with_attributes(**values))


def test_a_preferred_cluster_that_is_used_and_dropped_forbids_sharing_of_clustered_kernels_only() -> None:
    """D3: sglang#37657: the reason names node and attribute; what sets no cluster dimension cannot have a preferred one."""
    fold = Fold(HIDDEN)
    hidden = fold.add(preferring(4), preferring(8), preferring(None), preferring(4))
    plain = fold.add(clustered(None), clustered(None, "xor"), clustered(None, "mix"))
    assert fold.wrong() == 0
    assert fold.execs == len(hidden) + 1
    assert plain[0].group is plain[1].group is plain[2].group
    reason = "a node (kernel): preferred_cluster cannot be read and could be in use"
    assert fold.registry.alone.counts == {reason: len(hidden)}
    assert [member.reason for member in hidden] == [reason.replace("a node", "node 0")] * len(hidden)
    assert [member.reason for member in plain] == [""] * 3


def test_a_function_compiled_for_clusters_could_have_a_preferred_one_as_well() -> None:
    """D3: no attribute of its node tells that it has clusters."""
    fold = Fold(HIDDEN)
    fold.add(line(Kernel("paired")), line(Kernel("paired")), line(Kernel()))
    assert fold.wrong() == 0
    assert fold.execs == 3


@pytest.mark.parametrize(
    ("profile", "execs"),
    [
        (DriverProfile(), 1),  # not used
        (DriverProfile(uses_preferred_cluster=True, carries_attributes={}), 1),
        (DriverProfile(uses_preferred_cluster=True, carries_attributes={"preferred_cluster": "refused"}), 3),
        (replace(HIDDEN, unreadable=frozenset()), 3),
    ],
    ids=["not used", "carried", "refused", "stale but readable"],
)
def test_a_preferred_cluster_that_does_no_harm_does_not_forbid_sharing(profile: DriverProfile, execs: int) -> None:
    """D3, D5: by what it is, two graphs of equal ones share: 4, 8 and none."""
    fold = Fold(profile)
    first, *_, last = fold.add(preferring(4), preferring(8), preferring(None), preferring(4))
    assert fold.wrong() == 0
    assert fold.execs == execs
    assert first.group is last.group
    assert not any("cannot be read" in reason for reason in fold.registry.alone.counts)
