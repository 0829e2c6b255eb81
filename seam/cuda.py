"""The seam on CUDA: segments are ``torch.cuda.CUDAGraph(keep_graph=True)``, captured one after the other on one stream.

``torch.cuda.graph`` synchronises, collects garbage and empties caches each time it is entered; a forward with 29
segments cannot afford that between two of them, so ``capture_begin`` and ``capture_end`` are called directly. Nothing is
instantiated at capture: torch does it at the first replay, and a wrapping backend may never need it.
"""

from __future__ import annotations

import logging
import threading
import warnings
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import torch

from seam.backend import Pool, SegmentInfo
from seam.cuda_family import family_of
from seam.cuda_memory import CudaLedger, free_blocks, pool_bytes, pool_id, view_of
from seam.cuda_streams import launch_streams
from seam.cuda_watch import watch_streams
from seam.errors import CaptureError, SeamError

__all__ = ["CudaBackend", "CudaPool", "CudaSegment"]

_log = logging.getLogger("seam")


class CudaPool:
    """A torch graph pool, pinned, with its one capture stream (rule M1).

    torch drops a pool with its last graph, and a later ``capture_begin`` with its id fails an internal assert; blocks are
    tied to a stream, so memory is shared within one stream only. The pin is a small graph that is never instantiated.
    """

    def __init__(self, device: torch.device, stream: torch.cuda.Stream | None = None, handle: Any = None) -> None:
        watch_streams()
        self.device = device
        self._stream = stream or torch.cuda.Stream(device)
        if self._stream == torch.cuda.default_stream(device):
            raise CaptureError(
                "the default stream cannot capture", rule="M1", remedy="pass torch.cuda.Stream(), or leave stream out"
            )
        self.family = family_of(self._stream)
        self._handle = handle  # a torch.cuda.MemPool owns its memory
        self.id: Any = torch.cuda.graph_pool_handle() if handle is None else pool_id(handle)
        self._ids = [self.id]
        with self.entered():
            self._pin = self._capture_small()

    @property
    def stream(self) -> torch.cuda.Stream:
        """The capture stream."""
        return self._stream

    def current_stream(self) -> torch.cuda.Stream:
        """The calling thread's current stream on the pool's device."""
        return torch.cuda.current_stream(self.device)

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Make the capture stream current, with the caller's earlier work done; see :class:`seam.backend.Pool`."""
        caller = torch.cuda.current_stream(self.device)
        caller.synchronize()
        self._stream.wait_stream(caller)
        try:
            with torch.cuda.stream(self._stream):
                yield
        finally:
            caller.wait_stream(self._stream)

    @property
    def ids(self) -> tuple[tuple[int, int], ...]:
        """Its ids in torch's allocator, the current one last."""
        return tuple(self._ids)

    def reserved_bytes(self) -> int | None:
        """Bytes of device memory that torch's allocator holds for this pool, measured; None with ``cudaMallocAsync``.

        From a snapshot of all pools: asked for one, torch (seen with 2.11; pytorch#196366) gives back references to the
        numbers of the id that are not its own, and once these are above 256 the heap is corrupted.
        """
        return pool_bytes(torch.cuda.memory_snapshot(), self._ids) if _tells_pools() else None

    def check_split(self) -> None:
        """With ``cudaMallocAsync`` a graph takes its memory when it runs: at the capture a break would read what is not there.

        Raises:
            CaptureError: the allocator is that one.
        """
        if not _tells_pools():
            raise CaptureError(
                "a break cannot run while the allocator is cudaMallocAsync: what a segment takes is there only once it has run",
                rule="S5",
                remedy="use torch's native allocator, or capture with mode='full'",
            )

    def ledger(self) -> CudaLedger | None:
        """What the pool gives out from now on; None with ``cudaMallocAsync``, which does not tell."""
        return CudaLedger(self.device, self._ids, self) if _tells_pools() else None

    def mark(self, earlier: torch.cuda.Event | None = None) -> torch.cuda.Event | None:
        """An event behind what was queued on the current stream; None if that is being captured."""
        with torch.cuda.device(self.device):
            if torch.cuda.is_current_stream_capturing():
                return None
            event = earlier or torch.cuda.Event()
            event.record()
        return event

    def follow(self, mark: torch.cuda.Event) -> None:
        """Make the current stream wait for the event."""
        torch.cuda.current_stream(self.device).wait_event(mark)

    def poison_free(self) -> None:
        """Set all bits of what the pool holds and nobody uses. It reads the whole allocator: for debugging.

        Raises:
            CaptureError: the allocator is ``cudaMallocAsync``.
        """
        if not _tells_pools():
            raise CaptureError(
                "check_crossing='poison': the allocator cudaMallocAsync does not tell what is free",
                rule="M2",
                remedy="use torch's native allocator, or check_crossing='nan'",
            )
        for address, size_bytes in free_blocks(torch.cuda.memory_snapshot(), self._ids):
            view_of(address, size_bytes, self.device).fill_(255)

    def _capture_small(self) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph(keep_graph=True)
        graph.capture_begin(self.id, capture_error_mode="thread_local")
        try:
            torch.zeros(1, device=self.device)
        finally:
            graph.capture_end()
        return graph

    def recover(self) -> None:
        """Bring allocators and generator back after a capture that the device invalidated.

        torch leaves them in capture mode then. The allocator of device memory can be told that the capture is over; the one
        of pinned host memory cannot (seen with torch 2.11), and refuses the pool's id for ever. So the pool goes on under
        another id; graphs that were captured before keep the memory of theirs. The default generator refuses eager draws
        until a capture ends well: the new pin is one.
        """
        with suppress(Exception):
            torch._C._cuda_endAllocateToPool(self.device.index, self.id)
            torch._C._cuda_releasePool(self.device.index, self.id)
        self.id = torch.cuda.graph_pool_handle()
        self._ids.append(self.id)
        self._pin = self._capture_small()


def _tells_pools() -> bool:
    """Whether torch's allocator has pools that it can be asked about."""
    return torch.cuda.get_allocator_backend() == "native"


_by_handle: weakref.WeakValueDictionary[tuple[int, tuple[int, int]], CudaPool] = weakref.WeakValueDictionary()
_by_handle_lock = threading.Lock()


class CudaSegment:
    """One captured segment. Keeps its pool alive. ``generators`` may be drawn from besides the device's default one."""

    __slots__ = ("generators", "graph", "info", "pool")

    def __init__(
        self, graph: torch.cuda.CUDAGraph, pool: CudaPool, info: SegmentInfo, generators: tuple[torch.Generator, ...] = ()
    ) -> None:
        self.graph: torch.cuda.CUDAGraph | None = graph
        self.pool: CudaPool | None = pool
        self.info = info
        self.generators = generators
        pool.family.joined()


class _Open(threading.local):
    graph: torch.cuda.CUDAGraph | None = None
    pool: CudaPool | None = None
    info: SegmentInfo = SegmentInfo()
    generators: tuple[torch.Generator, ...] = ()
    error_mode: str = ""


class _Captures:
    """Captures under way in the process, and what waits for their end: destroying any graph invalidates them all."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a finalizer that the collector runs in here may come back through defer()
        self._open_count = 0
        self._waiting: list[CudaSegment] = []

    def began(self) -> None:
        with self._lock:
            self._open_count += 1

    def ended(self) -> list[CudaSegment]:
        with self._lock:
            self._open_count -= 1
            if self._open_count:
                return []
            due, self._waiting = self._waiting, []
            return due

    def defer(self, segment: CudaSegment) -> bool:
        with self._lock:
            if self._open_count:
                self._waiting.append(segment)
            return bool(self._open_count)


_captures = _Captures()


_ANY_THREAD = "in mode 'global' a call of any thread can do that: say capture_error_mode='thread_local'; or "
_OWN_THREAD = (
    "move work that synchronises, reads data on the host or leaves a forked stream unjoined into a function marked with "
    "@seam.eager_break, and warm the forward up before the capture"
)


class CudaBackend:
    """Capture and replay on one CUDA device.

    Args:
        device: a CUDA device or its index; the current one if None.

    Raises:
        SeamError: torch sees no CUDA device.
    """

    name = "cuda"

    def __init__(self, device: torch.device | int | str | None = None) -> None:
        if not torch.cuda.is_available():
            raise SeamError(
                "CudaBackend: torch sees no CUDA device",
                rule="M1",
                remedy="use seam.simulated.SimulatedBackend(), or install a CUDA build of torch on a machine with a GPU",
            )
        index = device if isinstance(device, int) else torch.device(device or "cuda").index
        self.device = torch.device("cuda", torch.cuda.current_device() if index is None else index)
        self._open = _Open()
        self.launches = launch_streams(self.device)
        """Streams that hold launches of this backend's graphs; whoever launches them otherwise notes it here."""

    def new_pool(self, stream: torch.cuda.Stream | None = None, *, handle: Any = None) -> CudaPool:
        """Make a pinned pool with a capture stream of its own, or with the side stream given.

        Args:
            stream: the capture stream.
            handle: a pool of torch's to capture into, that others may use as well: a ``torch.cuda.MemPool``, which is kept
                alive, or what ``torch.cuda.graph_pool_handle()`` or a graph's ``pool()`` returned. There is one pool for it in
                a process, as long as it lives, with one capture stream.

        Raises:
            CaptureError: ``handle`` is none; or its pool has another capture stream; or ``stream`` is the default one.
        """
        if handle is None:
            return CudaPool(self.device, stream)
        key = self.device.index, pool_id(handle)
        with _by_handle_lock:
            found = _by_handle.get(key)
            if found is None:
                found = _by_handle[key] = CudaPool(self.device, stream, handle)
            elif stream is not None and stream != found.stream:
                raise CaptureError(
                    f"pool {key[1]} is captured into on another stream",
                    rule="M1",
                    remedy="leave stream out: every segment of a pool is captured on the pool's own stream",
                )
        return found

    def begin_capture(
        self,
        pool: Pool,
        *,
        segment: SegmentInfo | None = None,
        capture_error_mode: str = "thread_local",
        generators: Sequence[torch.Generator] = (),
    ) -> None:
        """Begin a capture on the current stream, which is ``pool.stream``; see :class:`seam.backend.GraphBackend`."""
        info = segment or SegmentInfo()
        if not isinstance(pool, CudaPool):
            raise CaptureError(f"{info}: {type(pool).__name__} is no CUDA pool", rule="M1", remedy="use a pool of this backend")
        if self._open.graph is not None:
            raise CaptureError(f"{info}: this thread is capturing already", rule="S6", remedy="end that capture first")
        graph = torch.cuda.CUDAGraph(keep_graph=True)
        for generator in generators:
            graph.register_generator_state(generator)
        _captures.began()
        try:
            graph.capture_begin(pool.id, capture_error_mode=capture_error_mode)
        except BaseException:
            with suppress(Exception):
                pool.recover()
            self._destroy_due()
            raise
        self._open.graph, self._open.pool, self._open.info = graph, pool, info
        self._open.generators, self._open.error_mode = tuple(generators), capture_error_mode

    def end_capture(self, *, discard: bool = False) -> CudaSegment | None:
        """End this thread's capture; see :class:`seam.backend.GraphBackend`.

        Raises:
            CaptureError: the device had invalidated the capture. Stream and pool can capture again.
        """
        graph, pool, info = self._open.graph, self._open.pool, self._open.info
        if graph is None or pool is None:
            raise CaptureError("this thread is not capturing", rule="S6", remedy="call begin_capture first")
        self._open.graph = self._open.pool = None
        try:
            with warnings.catch_warnings():
                # Two breaks in a row leave a segment without work: nothing to warn about.
                warnings.filterwarnings("ignore", message="The CUDA Graph is empty")
                graph.capture_end()
        except Exception as error:
            pool.recover()
            if discard:
                return None
            raise CaptureError(
                f"{info}: the device invalidated the capture, which was in mode {self._open.error_mode!r}: "
                f"{str(error).splitlines()[0]}",
                rule="S12" if self._open.error_mode == "global" else "S7",
                remedy=(_ANY_THREAD if self._open.error_mode == "global" else "") + _OWN_THREAD,
            ) from error
        finally:
            self._destroy_due()
        if discard:
            pool.family.joined()
            pool.family.leave(graph)
            return None
        return CudaSegment(graph, pool, info, self._open.generators)

    def replay_graph(self, handle: CudaSegment) -> None:
        """Queue the segment on the current stream: torch's own replay."""
        graph = _graph_of(handle)
        self.launches.note_current()
        graph.replay()

    def destroy_graph(self, handle: CudaSegment) -> None:
        """Release graph and executable once the device is done with them; put off while any capture is under way."""
        _graph_of(handle)
        if not _captures.defer(handle):
            self._destroy(handle)

    def _destroy_due(self) -> None:
        for segment in _captures.ended():
            self._destroy(segment)

    def _destroy(self, segment: CudaSegment) -> None:
        graph, pool, segment.graph, segment.pool = segment.graph, segment.pool, None, None
        if graph is not None and pool is not None:
            # reset() gives the pool's memory back at once, also under a launch that still runs.
            self.launches.wait()
            pool.family.leave(graph)


def _graph_of(handle: CudaSegment) -> torch.cuda.CUDAGraph:
    if handle.graph is None:
        raise SeamError(
            f"{handle.info} was destroyed already",
            rule="S14",
            remedy="destroy each handle once and do not use it after",
        )
    return handle.graph
