"""Executables: copies of a graph's nodes, bound to addresses and run in order."""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from .errors import SimulatedDeviceError
from .graph import PhiloxCell, SimulatedGraph, SimulatedNode, Structure
from .params import AtenParams, LaunchInfo, OtherParams, Params

if TYPE_CHECKING:
    from .device import SimulatedDevice
    from .streams import Stream

__all__ = ["Program", "SimulatedExec"]

_ids = itertools.count(1)


class Program:
    """Nodes of one graph at one moment. Never changed: an update makes a new one and swaps it in whole."""

    def __init__(
        self,
        nodes: tuple[SimulatedNode, ...],
        structure: Structure,
        children: dict[int, Program],
        cell: PhiloxCell,
        draws: bool,
    ) -> None:
        self.nodes = nodes
        self.structure = structure
        self.children = children
        self.cell = cell
        self.draws = draws
        self.seeded: bool = any(isinstance(node.params, AtenParams) and node.params.seeded for node in nodes) or any(
            child.seeded for child in children.values()
        )
        self.local_bytes: int = max(
            (*(node.local_bytes for node in nodes), *(child.local_bytes for child in children.values())), default=0
        )
        self._steps: list[tuple[int, Callable[[Any], None], Any]] | None = None

    def with_clusters_of(self, shown: Program) -> Program:
        """The same program, launched with the cluster dimensions of another one with as many nodes."""
        nodes = tuple(
            new if new.clusters == old.clusters else replace(new, cluster=old.cluster, required_cluster=old.required_cluster)
            for new, old in zip(self.nodes, shown.nodes, strict=True)
        )
        children = {index: child.with_clusters_of(shown.children[index]) for index, child in self.children.items()}
        same = nodes == self.nodes and all(child is self.children[index] for index, child in children.items())
        return self if same else Program(nodes, self.structure, children, self.cell, self.draws)

    @classmethod
    def of(cls, graph: SimulatedGraph) -> Program:
        """Copy a graph, children included."""
        children = {
            index: cls.of(node.params.graph)
            for index, node in enumerate(graph.nodes)
            if isinstance(node.params, OtherParams) and node.params.graph is not None
        }
        return cls(graph.nodes, graph.structure(), children, graph.cell, graph.draws)

    def bind(self) -> list[tuple[int, Callable[[Any], None], Any]]:
        """(node, function, its argument) in running order. Inference mode must be on."""
        if self._steps is None:
            steps: list[tuple[int, Callable[[Any], None], Any]] = []
            grad: bool | None = None
            for index in self.structure.order:
                node = self.nodes[index]
                if isinstance(node.params, AtenParams) and node.params.grad is not grad:
                    grad = node.params.grad
                    steps.append((index, torch._C._set_grad_enabled, grad))
                if index in self.children:
                    steps.append((index, _run_child(self.children[index], node.params), None))
                    grad = None
                    continue
                runner = node.params.bind()
                if runner is not None:
                    info = LaunchInfo(node.function, node.grid, node.block, node.shared_bytes, node.clusters, node.attributes)
                    steps.append((index, runner, info))
            self._steps = steps
        return self._steps

    def run(self, disabled: frozenset[int], local_bytes: int) -> None:
        """Do the work of every node that is not disabled and needs no more local memory. Inference mode must be on.

        Raises:
            SimulatedDeviceError: a node failed; what ran before it has been done.
        """
        index = -1
        try:
            left_out = disabled
            if local_bytes < self.local_bytes:
                left_out |= {at for at, node in enumerate(self.nodes) if node.local_bytes > local_bytes}
            for index, runner, argument in self.bind():
                if index not in left_out:
                    runner(local_bytes if index in self.children else argument)
        except SimulatedDeviceError:
            raise
        except Exception as error:
            node = self.nodes[index]
            raise SimulatedDeviceError(
                f"node {index} ({node.function or node.kind}) failed on launch: {type(error).__name__}: {error}",
                rule="S5",
                remedy="look for an input out of range, or for storage that was freed and taken by another capture",
            ) from error


def _run_child(child: Program, params: Params) -> Callable[[Any], None]:
    condition = params.condition if isinstance(params, OtherParams) else None

    def run(local_bytes: int) -> None:
        if condition is None or condition():
            child.run(frozenset(), local_bytes)

    return run


class SimulatedExec:
    """An executable graph: its own copy of every parameter. Made by ``SimulatedDevice.instantiate``."""

    def __init__(self, device: SimulatedDevice, graph: SimulatedGraph, flags: int) -> None:
        self.device = device
        self.flags = flags
        self.id = next(_ids)
        self.program = Program.of(graph)
        """What it holds by the updates that it took."""
        self.shown = self.program
        """What a launch runs: the same, but for what the driver does not really carry."""
        self.local_bytes = self.program.local_bytes
        """Local memory that its own launches have room for, because it was instantiated so."""
        self.launched_at: int | None = None
        """How many kernels had run outside of graphs at the last launch."""
        self.destroyed = False
        self.uploaded = False
        self.disabled: frozenset[int] = frozenset()
        """Nodes that a launch leaves out, by their index in the graph that this was instantiated from."""
        # One executable never overlaps itself. Re-entrant, because a host callback may do anything.
        self.running = threading.RLock()
        self.running_on: Stream | None = None
        """The stream of the launch that is under way."""
        self.made_from = weakref.ref(graph)
        self._reflects = weakref.ref(graph)

    def __repr__(self) -> str:
        return f"<SimulatedExec {self.id}: {len(self.program.nodes)} nodes>"

    @property
    def nodes(self) -> tuple[SimulatedNode, ...]:
        """Nodes as a launch would run them now, in the order of the graph that this was instantiated from."""
        return self.shown.nodes

    @property
    def reflects(self) -> SimulatedGraph | None:
        """The graph whose parameters it holds, or None when that is gone."""
        return self._reflects()

    @contextmanager
    def on_stream(self, stream: Stream) -> Iterator[None]:
        """A launch on this stream is under way. ``running`` is held."""
        before, self.running_on = self.running_on, stream
        try:
            yield
        finally:
            self.running_on = before

    def swap(self, program: Program, graph: SimulatedGraph) -> None:
        """Hold another program from the next launch on; one that runs goes on with the old one."""
        frozen = self.device.profile.freezes_clusters and self.launched_at == self.device.kernel_count
        self.shown = program.with_clusters_of(self.shown) if frozen else program
        self.program, self._reflects = program, weakref.ref(graph)

    def thaw(self) -> Program:
        """The program to launch now; cluster dimensions are taken anew where kernels have run since the last launch."""
        if self.launched_at != self.device.kernel_count:
            self.shown, self.launched_at = self.program, self.device.kernel_count
        return self.shown
