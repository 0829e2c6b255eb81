"""The bench on a simulated device: the same small graphs, the same arithmetic, the same bytes."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from graphdedup.driver.protocol import UpdateResult
from graphdedup.driver.simulated import SimulatedDriver
from graphdedup.probe.bench import AUTO_FREE_ON_LAUNCH, Interval, NotHere
from graphdedup.probe.contents import counters, device_bytes, host_bytes
from graphdedup.probe.spec import (
    DEEP_WORDS,
    FUNCTIONS,
    STAMP_WORDS,
    Arena,
    Child,
    Empty,
    EventRecord,
    EventWait,
    GraphSpec,
    Host,
    Kernel,
    MemAlloc,
    Memcpy,
    Memset,
    NodeSpec,
)
from seam.simulated import Event, LaunchInfo, SimulatedDevice, SimulatedDeviceError, SimulatedExec, SimulatedGraph

__all__ = ["SimulatedBench"]

_INTERVAL_SECONDS = 0.004
_LOCAL_BYTES = {"deep": 4 * DEEP_WORDS, "says": 16}
_SHARED_BYTES_PER_UNIT = 228 << 10
"""Shared memory of one multiprocessor of an H200; a block takes 1 KB more than it asks for."""


class SimulatedBench:
    """See :class:`~graphdedup.probe.bench.Bench`."""

    def __init__(self, device: SimulatedDevice | None = None, arena: Arena | None = None) -> None:
        self.arena = arena or Arena()
        self.device = device or SimulatedDevice(16 << 20)
        self.driver = SimulatedDriver(self.device)
        sizes = self.arena
        stamps = 4 * STAMP_WORDS * sizes.stamp_count
        self._memory = torch.zeros(sizes.buffer_count * sizes.buffer_bytes + stamps, dtype=torch.uint8)
        self._host = torch.zeros(sizes.host_buffer_count * sizes.buffer_bytes, dtype=torch.uint8)
        self._counters = [0] * sizes.counter_count
        self._events: dict[int, Event] = {}
        self._log: list[Interval] = []
        self._executables: set[SimulatedExec] = set()
        self._graphs: dict[int, SimulatedGraph] = {}

    # Building

    def build(self, spec: GraphSpec) -> SimulatedGraph:
        """A graph made node by node; see :meth:`Bench.build`."""
        graph = self._graph(spec)
        self._graphs[id(graph)] = graph
        return graph

    def _graph(self, spec: GraphSpec) -> SimulatedGraph:
        graph = self.device.new_graph()
        for node in spec.nodes:
            self._add(graph, node)
        for source, target, data in spec.edges:
            try:
                graph.add_edge(source, target, data)
            except ValueError as error:
                raise NotHere(str(error)) from error
        return graph

    def _add(self, graph: SimulatedGraph, node: NodeSpec) -> None:
        match node:
            case Kernel():
                self._add_kernel(graph, node)
            case Memcpy():
                source = self._host_buffer(node.source) if node.direction == "h2d" else self._buffer(node.source)
                target = self._host_buffer(node.target) if node.direction == "d2h" else self._buffer(node.target)
                graph.add_node("memcpy", target=target, source=source, size_bytes=node.size_bytes, direction=node.direction)
            case Memset():
                graph.add_node(
                    "memset",
                    target=self._buffer(node.target),
                    value=node.value,
                    element_bytes=node.element_bytes,
                    size_bytes=node.width * node.element_bytes,
                    height=node.height,
                    pitch_bytes=node.pitch_bytes,
                )
            case Host():
                graph.add_node("host", callback=self._callback(node))
            case Child():
                graph.add_node("child_graph", graph=self._graph(node.graph))
            case Empty():
                graph.add_node("empty")
            case EventRecord():
                graph.add_node("event_record", event=self._event(node.event))
            case EventWait():
                graph.add_node("event_wait", event=self._event(node.event))
            case MemAlloc():
                graph.add_node("mem_alloc", size_bytes=node.size_bytes)

    def _add_kernel(self, graph: SimulatedGraph, node: Kernel) -> None:
        unknown = self.device.profile.unsettable.intersection(node.attributes)
        if unknown:
            raise NotHere(f"a launch with {', '.join(sorted(unknown))} is refused")
        attributes = {name: value for name, value in node.attributes.items() if name != "cluster"}
        plain = {name: value[0] if len(value) == 1 else value for name, value in attributes.items()}
        cluster = node.attributes.get("cluster", (0, 0, 0))
        graph.add_kernel(
            node.function,
            self._launch,
            (
                self._buffer(node.target).view(torch.int32),
                self._buffer(node.source).view(torch.int32),
                self._stamp(node.stamp),
                node.words,
                _signed(node.constant),
            ),
            grid=node.grid,
            block=node.block,
            shared_bytes=node.shared_bytes,
            cluster=(cluster[0], cluster[1], cluster[2]),
            required_cluster=(2, 1, 1) if node.function == "paired" else (0, 0, 0),
            local_bytes=_LOCAL_BYTES.get(node.function, 0),
            attributes=plain,
        )

    def _buffer(self, index: int) -> torch.Tensor:
        return self._memory[index * self.arena.buffer_bytes : (index + 1) * self.arena.buffer_bytes]

    def _host_buffer(self, index: int) -> torch.Tensor:
        return self._host[index * self.arena.buffer_bytes : (index + 1) * self.arena.buffer_bytes]

    def _stamp(self, index: int) -> torch.Tensor:
        start = self.arena.buffer_count * self.arena.buffer_bytes
        return self._memory[start:].view(torch.int32)[index * STAMP_WORDS : (index + 1) * STAMP_WORDS]

    def _event(self, index: int) -> Event:
        return self._events.setdefault(index, Event())

    def _callback(self, node: Host) -> Any:
        counts, index, step = self._counters, node.counter, 1 if node.function == "post" else -1

        def call() -> None:
            counts[index] = max(0, counts[index] + step)

        return call

    # The kernels

    def _launch(
        self,
        info: LaunchInfo,
        target: torch.Tensor,
        source: torch.Tensor,
        stamp: torch.Tensor,
        words: int,
        constant: int,
    ) -> None:
        """What the CUDA source of the same name computes and stamps."""
        if info.function == "interval":
            self._interval(constant)
            return
        place, given = target[:words], source[:words]
        if info.function == "multiply":
            place.copy_(given * constant + torch.arange(words, dtype=torch.int32))
        elif info.function == "xor":
            place.copy_(given ^ constant)
        elif info.function == "mix":
            place.copy_(place * 3 + given + constant)
        elif info.function != "crowd":
            place.copy_(given + constant)
        preferred = info.attributes.get("preferred_cluster") if self.device.profile.uses_preferred_cluster else None
        cluster = torch.tensor(preferred or info.cluster, dtype=torch.int32).clamp(min=1)
        stamp[8:11] = torch.maximum(stamp[8:11], cluster)
        seen = [FUNCTIONS.index(info.function), *info.grid, *info.block, info.shared_bytes]
        stamp[:8] = torch.tensor(seen, dtype=torch.int32)
        stamp[11:13] = torch.tensor([int(info.attributes["cooperative"] != 0), constant], dtype=torch.int32)
        if info.function == "crowd":
            stamp[13] = _at_once(info)

    def _interval(self, constant: int) -> None:
        start = time.monotonic_ns()
        time.sleep(_INTERVAL_SECONDS)
        self._log.append(Interval(constant, start, time.monotonic_ns()))

    # Running

    def instantiate(self, raw: SimulatedGraph, flags: int = AUTO_FREE_ON_LAUNCH) -> SimulatedExec:
        """An executable; see :meth:`Bench.instantiate`."""
        try:
            executable = self.device.instantiate(raw, flags)
        except SimulatedDeviceError as error:
            raise NotHere(f"the device does not instantiate the graph: {error.problem}") from error
        self._executables.add(executable)
        return executable

    def update(self, executable: SimulatedExec, raw: SimulatedGraph) -> UpdateResult:
        """The device's answer, with the refused node."""
        return self.driver.update(executable, raw)

    def run(self, executable: SimulatedExec, seed: int = 0, *, bare: bool = False) -> bytes:
        """Fill, launch, read; see :meth:`Bench.run`."""
        return self.run_by(lambda: self.device.launch(executable) if bare else self.driver.launch(executable), seed)

    def run_by(self, launch: Callable[[], object], seed: int = 0) -> bytes:
        """Fill, launch, read; see :meth:`Bench.run_by`."""
        self._fill(seed)
        launch()
        return _bytes(self._memory) + _bytes(self._host) + bytes(self._counters)

    def _fill(self, seed: int) -> None:
        ctypes.memmove(self._memory.data_ptr(), device_bytes(self.arena, seed), self._memory.numel())
        ctypes.memmove(self._host.data_ptr(), host_bytes(self.arena, seed), self._host.numel())
        self._counters[:] = counters(self.arena, seed)

    def stamp(self, index: int) -> list[int]:
        """A stamp's words."""
        return [word & 0xFFFFFFFF for word in self._stamp(index).tolist()]

    def launch_beside(
        self, executables: Sequence[SimulatedExec], update: tuple[SimulatedExec, SimulatedGraph] | None = None
    ) -> tuple[list[Interval], bool]:
        """Launch in threads of their own, because a launch is done when it returns; see :meth:`Bench.launch_beside`."""
        self._log.clear()
        threads = [threading.Thread(target=self.driver.launch, args=(executable,)) for executable in executables]
        for thread in threads:
            thread.start()
        time.sleep(_INTERVAL_SECONDS / 4)  # let them begin, as work queued on a stream would
        if update is not None and not (result := self.update(*update)).accepted:
            for thread in threads:
                thread.join()
            raise NotHere(f"the update was refused: {result.verdict}")
        running = any(thread.is_alive() for thread in threads)
        for thread in threads:
            thread.join()
        return list(self._log), running

    # Asking

    def attribute(self, raw: SimulatedGraph, node: int, name: str) -> tuple[int, ...] | None:
        """What the device tells of a node's attribute; zeros where it is not set."""
        if name in self.device.profile.unreadable:
            return None
        held = raw.nodes[node]
        value = held.cluster if name == "cluster" else held.attributes.get(name, 0)
        return tuple(value) if isinstance(value, tuple) else (int(value),)

    def node_order(self, raw: SimulatedGraph) -> list[int]:
        """Creation places in the device's order, which are the same."""
        return list(range(len(raw.nodes)))

    def set_enabled(self, executable: SimulatedExec, raw: SimulatedGraph, node: int, enabled: bool) -> None:
        """Enable or disable a node of an executable."""
        self.device.set_enabled(executable, node, enabled)

    def torch_flags(self) -> int:
        """The flags of the driver's own executables."""
        return self.driver.instantiate_flags

    def last_error(self) -> int | None:
        """910 where a refusal left an error behind; it is consumed."""
        return 0 if self.device.get_last_error() is None else 910

    # Leaving

    def destroy(self, executable: SimulatedExec) -> None:
        """Destroy an executable."""
        self._executables.discard(executable)
        self.device.destroy(executable)

    def discard(self, raw: SimulatedGraph) -> None:
        """Destroy a graph."""
        self._graphs.pop(id(raw)).destroy()

    def close(self) -> None:
        """Free everything that was made."""
        for executable in tuple(self._executables):
            self.destroy(executable)
        for graph in tuple(self._graphs.values()):
            self.discard(graph)


def _at_once(info: LaunchInfo) -> int:
    """Blocks that one multiprocessor holds, by the shared memory that the carveout leaves."""
    share = info.attributes.get("shared_memory_carveout", 100)
    block_bytes = info.shared_bytes + 1024
    return max(1, int(_SHARED_BYTES_PER_UNIT * share / 100) // block_bytes)


def _signed(number: int) -> int:
    return (number + 2**31) % 2**32 - 2**31


def _bytes(tensor: torch.Tensor) -> bytes:
    return ctypes.string_at(tensor.data_ptr(), tensor.numel())
