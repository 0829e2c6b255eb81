"""Executables: copies of a graph's nodes, bound to addresses and run in order."""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from .errors import SimulatedDeviceError
from .graph import PhiloxCell, SimulatedGraph, SimulatedNode, Structure
from .params import AtenParams, LaunchInfo, OtherParams, Params

if TYPE_CHECKING:
    from .device import SimulatedDevice

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
        self._steps: list[tuple[int, Callable[[Any], None], Any]] | None = None

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
                    info = LaunchInfo(node.function, node.grid, node.block, node.shared_bytes, node.cluster, node.attributes)
                    steps.append((index, runner, info))
            self._steps = steps
        return self._steps

    def run(self) -> None:
        """Do the work of every node. Inference mode must be on.

        Raises:
            SimulatedDeviceError: a node failed; what ran before it has been done.
        """
        index = -1
        try:
            for index, runner, argument in self.bind():  # noqa: B007 - the handler names the node that failed
                runner(argument)
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

    def run(_: Any) -> None:
        if condition is None or condition():
            child.run()

    return run


class SimulatedExec:
    """An executable graph: its own copy of every parameter. Made by ``SimulatedDevice.instantiate``."""

    def __init__(self, device: SimulatedDevice, graph: SimulatedGraph, flags: int) -> None:
        self.device = device
        self.flags = flags
        self.id = next(_ids)
        self.program = Program.of(graph)
        self.destroyed = False
        # One executable never overlaps itself. Re-entrant, because a host callback may do anything.
        self.running = threading.RLock()
        self.made_from = weakref.ref(graph)
        self._reflects = weakref.ref(graph)

    def __repr__(self) -> str:
        return f"<SimulatedExec {self.id}: {len(self.program.nodes)} nodes>"

    @property
    def nodes(self) -> tuple[SimulatedNode, ...]:
        """Nodes as a launch would run them now, in the order of the graph that this was instantiated from."""
        return self.program.nodes

    @property
    def reflects(self) -> SimulatedGraph | None:
        """The graph whose parameters it holds, or None when that is gone."""
        return self._reflects()

    def swap(self, program: Program, graph: SimulatedGraph) -> None:
        """Hold another program from the next launch on; one that runs goes on with the old one."""
        self.program, self._reflects = program, weakref.ref(graph)
