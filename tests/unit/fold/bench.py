"""A simulated device with a registry on it, for tests that make their graphs by hand."""

from __future__ import annotations

from typing import Any

import torch

from graphdedup.driver.simulated import SimulatedDriver
from graphdedup.group import Member
from graphdedup.policy import FoldPolicy
from graphdedup.registry import Registry
from seam.backend import SegmentInfo
from seam.simulated import DriverProfile, LaunchInfo, SimulatedDevice, SimulatedGraph

HIDDEN = DriverProfile(uses_preferred_cluster=True, carries_attributes={"preferred_cluster": "stale"})
"""A driver that uses preferred cluster dimensions, does not carry them, and does not tell them."""
WHOLE = DriverProfile(carries_cluster_alone="carried", carries_unset_cluster="carried", freezes_clusters=False)
"""A driver whose updates carry every cluster dimension."""


def write_cluster(info: LaunchInfo, out: torch.Tensor, value: float) -> None:
    out.fill_(value + 100 * info.cluster[0])


class Bench:
    """A simulated device, a registry on it, and graphs of one kernel that writes a number, and its cluster size."""

    def __init__(self, profile: DriverProfile | None = None, **policy: Any) -> None:
        self.device = SimulatedDevice(8 << 20, profile=profile)
        self.driver = SimulatedDriver(self.device)
        self.registry = Registry(self.driver, FoldPolicy(**policy))
        self.outs: dict[int, tuple[torch.Tensor, float]] = {}

    def graph(
        self, value: float, *, name: str = "write", cluster: int = 0, nodes: int = 1, edge: tuple[int, int, int] = (0, 0, 0)
    ) -> tuple[SimulatedGraph, torch.Tensor]:
        out = torch.zeros(2)
        graph = self.device.new_graph()
        for index in range(nodes):
            graph.add_kernel(name, write_cluster, (out, value), cluster=(cluster, 1, 1) if cluster else (0, 0, 0))
            if index:
                graph.add_edge(index - 1, index, data=edge)
        return graph, out

    def fold(self, value: float, *, cluster: int = 0, position: int = 0, **how: Any) -> Member:
        graph, out = self.graph(value, cluster=cluster, **how)
        member = self.registry.fold(graph, SegmentInfo(position, f"value {value}"))
        self.outs[member.id] = out, value + 100 * cluster
        return member

    def check(self, *members: Member) -> None:
        for member in members:
            out, expected = self.outs[member.id]
            out.zero_()
            assert self.registry.replay(member)
            assert out.tolist() == [expected] * 2

    @property
    def execs(self) -> int:
        assert self.registry.exec_count == self.device.live_exec_count
        return self.device.live_exec_count
