"""The simulated device: the graph calls of a driver, on the CPU, running real torch operators."""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from .errors import SimulatedDeviceError
from .graph import SimulatedGraph, SimulatedNode
from .memory import DeviceMemory
from .profile import DriverProfile
from .program import SimulatedExec
from .streams import current_stream
from .update import SimulatedUpdateResult, plan_update

__all__ = ["AUTO_FREE_ON_LAUNCH", "SimulatedDevice"]

AUTO_FREE_ON_LAUNCH = 1
"""The instantiate flag that torch uses."""
_ALL_FLAGS = 1 | 2 | 4 | 8
_FIRST_ROOM_BYTES = 512
"""Local memory that there is room for from the start: enough for a printf, too little for a kernel that needs 4 KB."""
_contexts = itertools.count(1)


class SimulatedDevice:
    """A device of its own: one block of memory, one driver profile, its counters. Every call is thread-safe.

    Args:
        memory_bytes: size of the block; pages are committed when they are first used.
        poison: fill memory that holds nothing with 0xFF, so that reading it shows.
        profile: what its driver carries through an update; the H200 of driver 580.159 by default.

    Attributes:
        live_exec_count: executables that are not destroyed; ``peak_exec_count`` is the most there were at once.
        update_count: updates that were taken; ``refused_update_count`` are the others.
        instantiation_count, launch_count, destroy_count: calls that succeeded so far.
        local_bytes: local memory a thread that there is room for; it grows with what is launched.
        kernel_count: kernels that ran outside of graphs, as far as the device was told by :meth:`run_kernel`.
    """

    def __init__(self, memory_bytes: int = 512 << 20, *, poison: bool = True, profile: DriverProfile | None = None) -> None:
        self.memory = DeviceMemory(memory_bytes, poison=poison)
        self.profile = profile if profile is not None else DriverProfile()
        self.context = next(_contexts)
        self.live_exec_count = 0
        self.peak_exec_count = 0
        self.instantiation_count = 0
        self.update_count = 0
        self.refused_update_count = 0
        self.launch_count = 0
        self.destroy_count = 0
        self.kernel_count = 0
        self.local_bytes = _FIRST_ROOM_BYTES
        self._pool_ids = itertools.count(1)
        self.graph_pool = 0
        """Pool of the memory nodes."""
        self._offered = 0
        self._lock = threading.RLock()
        self._thread = threading.local()

    def __repr__(self) -> str:
        return f"<SimulatedDevice {self.context}: {self.profile.name}, {self.memory.size_bytes} bytes>"

    def new_pool_id(self) -> int:
        """A number for a pool that no other pool of this device has."""
        return next(self._pool_ids)

    def new_graph(self, label: str = "") -> SimulatedGraph:
        """An empty graph, to be built by hand."""
        return SimulatedGraph(self, label=label)

    def instantiate(self, graph: SimulatedGraph, flags: int = AUTO_FREE_ON_LAUNCH) -> SimulatedExec:
        """Make an executable with its own copy of the graph's parameters.

        Raises:
            SimulatedDeviceError: the graph was destroyed, is another device's, has a cycle, or has memory nodes and an
                executable already; or a sticky error was pending.
        """
        self._raise_pending()
        if flags & ~_ALL_FLAGS:
            raise ValueError(f"unknown instantiate flags {flags:#x}; known are 1, 2, 4 and 8")
        with self._lock:
            if graph.device is not self:
                raise _invalid(f"{graph!r} belongs to another device", "instantiate it on its own device")
            if graph.has_memory_nodes and graph.live_execs:
                raise _invalid(f"{graph!r} has memory nodes and an executable already", "destroy that one first", rule="D11")
            executable = SimulatedExec(self, graph, flags)
            graph.live_execs += 1
            self.instantiation_count += 1
            self.live_exec_count += 1
            self.peak_exec_count = max(self.peak_exec_count, self.live_exec_count)
            return executable

    def update(self, executable: SimulatedExec, graph: SimulatedGraph) -> SimulatedUpdateResult:
        """Re-point an executable at another graph. All checks come first: a refusal changes nothing.

        An earlier launch that still runs, in another thread, goes on with what it had.

        Raises:
            SimulatedDeviceError: the executable or the graph was destroyed; or a sticky error was pending.
        """
        self._raise_pending()
        with self._lock:
            self._own(executable)
            self._offered += 1
            outcome = self._refused_by_profile(executable, graph)
            if outcome is None:
                held, uploaded = executable.program, executable.uploaded
                planned = plan_update(held, graph, executable.flags, self.profile, uploaded=uploaded)
                if not isinstance(planned, SimulatedUpdateResult):
                    executable.swap(planned, graph)
                    if self.profile.makes_room:
                        self.local_bytes = max(self.local_bytes, planned.local_bytes)
                    self.update_count += 1
                    return SimulatedUpdateResult("SUCCESS")
                outcome = planned
            self.refused_update_count += 1
            if self.profile.sticky_last_error:
                self._thread.pending = _invalid(
                    f"an update of {executable!r} was refused earlier ({outcome.verdict})",
                    "consume it with get_last_error() right after a refusal",
                    rule="D13",
                )
            return outcome

    def _refused_by_profile(self, executable: SimulatedExec, graph: SimulatedGraph) -> SimulatedUpdateResult | None:
        if self.profile.refuse_nth_update == self._offered:
            return SimulatedUpdateResult("PARAMETERS_CHANGED", None, f"the profile refuses update {self._offered}")
        if self.profile.refuse_pairs is not None and self.profile.refuse_pairs(executable.reflects, graph):
            return SimulatedUpdateResult("PARAMETERS_CHANGED", None, "the profile refuses this pair of graphs")
        return None

    def upload(self, executable: SimulatedExec) -> None:
        """Bind addresses now, ahead of the next launch."""
        self._raise_pending()
        with self._lock:
            self._own(executable)
            executable.uploaded = True
        with _bare_torch():
            executable.shown.bind()

    def launch(self, executable: SimulatedExec, *, prologue: bool = False) -> None:
        """Run every node, and return when all is done.

        Random numbers come from the cell of the graph that the executable reflects, as it stands, and the caller's
        generator stays where it is: each launch repeats them. With ``prologue`` the call does what torch's own replay
        does: the cell takes the state of the default generator, which afterwards has advanced by all that was drawn.

        Raises:
            SimulatedDeviceError: the executable was destroyed, the current stream is being captured, or a node failed;
                or a sticky error was pending.
        """
        self._raise_pending()
        with self._lock:
            self._own(executable)
            capture = current_stream()._capture
            if capture is not None:
                problem = f"{executable!r} was launched on a stream that is being captured"
                raise capture.invalidate(_invalid(problem, "launch it outside", "S6"))
            self.launch_count += 1
            executable.uploaded = True
        with executable.running, executable.on_stream(current_stream()), _bare_torch():
            program, disabled = executable.thaw(), executable.disabled
            room = max(self.local_bytes, executable.local_bytes)
            self.local_bytes = max(self.local_bytes, program.local_bytes)  # which comes too late for this launch
            if not program.seeded:
                program.run(disabled, room)
            elif prologue:
                program.cell.state = torch.get_rng_state()
                program.run(disabled, room)
            else:
                with _generator_at(program.cell.state):
                    program.run(disabled, room)

    def run_kernel(self) -> None:
        """A kernel ran outside of any graph. It computes nothing, but some drivers then see updated cluster dimensions.

        Torch code outside of captures runs on the CPU and is not seen by the device, so this has to be said.
        """
        with self._lock:
            self.kernel_count += 1

    def destroy(self, executable: SimulatedExec) -> None:
        """Free an executable; a launch of it that runs in another thread goes on to its end.

        Raises:
            SimulatedDeviceError: it was destroyed before, or a sticky error was pending.
        """
        self._raise_pending()
        with self._lock:
            self._own(executable)
            executable.destroyed = True
            graph = executable.made_from()
            if graph is not None:
                graph.live_execs -= 1
            self.destroy_count += 1
            self.live_exec_count -= 1

    def get_last_error(self) -> SimulatedDeviceError | None:
        """The error that this thread's last refused update left behind, if any; it is consumed."""
        error: SimulatedDeviceError | None = getattr(self._thread, "pending", None)
        self._thread.pending = None
        return error

    def set_enabled(self, executable: SimulatedExec, node: int, enabled: bool) -> None:
        """Have launches leave a node out, or do it again. An update does not change this.

        Raises:
            SimulatedDeviceError: the node is no kernel, memcpy or memset of the executable; or it was destroyed.
        """
        self._raise_pending()
        with self._lock:
            self._own(executable)
            nodes = executable.program.nodes
            if not 0 <= node < len(nodes) or nodes[node].kind not in ("kernel", "memcpy", "memset"):
                raise _invalid(f"node {node} of {executable!r} cannot be disabled", "name a kernel, memcpy or memset node")
            executable.disabled = executable.disabled - {node} if enabled else executable.disabled | {node}

    def unreadable_attributes(self, node: SimulatedNode) -> tuple[str, ...]:
        """Names of attributes that the driver would not tell, and that this kernel could use."""
        if node.kind != "kernel":
            return ()
        possible = self.profile.unreadable - self.profile.unsettable
        return tuple(sorted(possible if any(node.clusters) else possible - {"preferred_cluster"}))

    def read_attributes(self, node: SimulatedNode) -> dict[str, Any]:
        """The attributes of a kernel node that the driver tells."""
        return {name: value for name, value in node.attributes.items() if name not in self.profile.unreadable}

    def _own(self, executable: SimulatedExec) -> None:
        if not isinstance(executable, SimulatedExec):
            raise _invalid(f"{executable!r} is no executable", "instantiate the graph first")
        if executable.device is not self:
            raise _invalid(f"{executable!r} belongs to another device", "use it on its own device")
        if executable.destroyed:
            raise _invalid(f"{executable!r} was destroyed", "use an executable only before it is destroyed, once")

    def _raise_pending(self) -> None:
        error = self.get_last_error()
        if error is not None:
            raise error


def _invalid(problem: str, remedy: str, rule: str = "S14") -> SimulatedDeviceError:
    return SimulatedDeviceError(problem, rule=rule, remedy=remedy)


@contextmanager
def _bare_torch() -> Iterator[None]:
    """Whatever modes the caller is in, a launch runs the recorded operators and nothing else, as a GPU would."""
    with ExitStack() as scope:
        if torch._C._len_torch_dispatch_stack():
            scope.enter_context(_disable_current_modes())
        scope.enter_context(torch._C.DisableTorchFunction())
        scope.enter_context(torch._C._DisableAutocast())
        scope.enter_context(torch.inference_mode())
        yield


@contextmanager
def _generator_at(state: torch.Tensor) -> Iterator[None]:
    before = torch.get_rng_state()
    torch.set_rng_state(state)
    try:
        yield
    finally:
        torch.set_rng_state(before)


def release_pool_with(owner: Any, device: SimulatedDevice, pool: int) -> None:
    """Return the space of ``pool`` to the device when ``owner`` dies and no tensor of the pool is left."""
    weakref.finalize(owner, device.memory.drop_pool, pool).atexit = False
