"""A forward captured at a ladder of shapes, for each phase of an engine: pad a live batch to the next shape, and replay."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Literal

import torch

from seam import settings
from seam.backend import GraphBackend, Pool
from seam.breaks import eager_break, name_of
from seam.buffers import Input, OutputBuffers, StaticInputs, live_rows
from seam.capture import capture
from seam.crossing import CrossingCheck
from seam.errors import CaptureError, ReplayError
from seam.forward_report import ForwardReport, ShapeRow
from seam.graph import BreakableGraph
from seam.mode import CaptureConfig, Mode
from seam.piecewise import Piecewise, piecewise
from seam.plan import MemoryPlan, PhaseSamples, Sample, predict, sample_shapes

__all__ = ["CapturedForward"]


@dataclass(slots=True)
class _Shape:
    """One rung of a ladder."""

    graph: BreakableGraph
    outputs: Any
    calls: int = 0
    live_rows: int = 0


@dataclass(slots=True)
class _Phase:
    """One ladder and what was captured of it."""

    name: str
    ladder: tuple[int, ...]
    mode: Mode
    function: Callable[..., Any]
    outputs: OutputBuffers = field(default_factory=OutputBuffers)
    shapes: dict[int, _Shape] = field(default_factory=dict)
    each: list[int | None] = field(default_factory=list)
    uncaptured_calls: int = 0
    refused_calls: int = 0


class CapturedForward:
    """One forward with one graph for each phase and shape.

    ``forward`` is called with the inputs by name, as slices of static buffers, once or more to warm up and once to be captured;
    a replay computes it for a live batch that was copied there. What it returns is written to buffers that all shapes of a
    phase share, so a result holds until the next call of that phase. Calls come one after the other: it is not for two threads
    at once.

    Args:
        forward: called as ``forward(**inputs)``; its tensors may be in any structure that a break may return.
        ladder: the sizes to capture for each phase, or for the phase ``decode`` if it is a sequence.
        inputs: the inputs by name; None in a shape is the size of the batch.
        config: which phase is captured how; see :meth:`seam.CaptureConfig.parse`. Where no backend is given and there is no
            GPU, nothing is captured.
        backend: where to capture, such as ``graphdedup.DedupBackend(seam.default_backend())``.
        pool: the pool to capture into; a new one if None.
        warmup_count: how often the forward runs at each shape before the capture; the first run sizes the output buffers.
        beyond: what a batch gets that is larger than every shape: ``"refuse"`` raises, ``"eager"`` calls the forward itself.
        expect_breaks: for each phase how many breaks, or which, each capture has to meet; see :func:`seam.capture`.
        break_at: functions to break at that are not marked.
        barrier_fn: see :func:`seam.capture`.
        check_crossing: see :func:`seam.capture`.
        compiler: the backend of ``torch.compile`` in mode ``tc_piecewise``; ``"inductor"``, or ``"eager"`` on the simulated
            device, which sees no compiled code.
        share_outputs: whether the shapes of a phase share output buffers. Otherwise each graph returns its own tensors, which
            hold until another graph of the pool is replayed.
        eager: for debugging: the whole forward is one break, so nothing but copies is captured.
        label: a name for messages and reports; the forward's if empty.

    Raises:
        CaptureError: an argument is off.
    """

    def __init__(
        self,
        forward: Callable[..., Any],
        ladder: Mapping[str, Sequence[int]] | Sequence[int],
        inputs: Mapping[str, Input],
        *,
        config: CaptureConfig | Mapping[str, Mode | str] | str | None = None,
        backend: GraphBackend | None = None,
        pool: Pool | None = None,
        warmup_count: int = 2,
        beyond: Literal["refuse", "eager"] = "refuse",
        expect_breaks: Mapping[str, int | Sequence[str]] | None = None,
        break_at: Sequence[Any] = (),
        barrier_fn: Callable[[], object] | None = None,
        check_crossing: CrossingCheck | str | None = None,
        compiler: str | Callable[..., Any] | None = None,
        share_outputs: bool = True,
        eager: bool = False,
        label: str = "",
    ) -> None:
        self.label = label or name_of(forward)
        self.config = CaptureConfig.parse(config)
        if beyond not in ("refuse", "eager"):
            raise self._refused(f"beyond={beyond!r} is unknown", "use 'refuse' or 'eager'")
        if not isinstance(warmup_count, int) or warmup_count < 1:
            raise self._refused(f"warmup_count={warmup_count!r} is no count", "use 1 or more")
        ladders = dict(ladder) if isinstance(ladder, Mapping) else {"decode": ladder}
        self._forward = forward
        self._warmup_count = warmup_count
        self._beyond = beyond
        self._share_outputs = share_outputs
        self._eager = eager
        self._how: dict[str, Any] = {"break_at": break_at, "barrier_fn": barrier_fn, "check_crossing": check_crossing}
        self._expected = dict(expect_breaks or {})
        nowhere = backend is None and not torch.cuda.is_available()
        self.backend = _default(backend)
        self._pool = pool
        self._plan: MemoryPlan | None = None
        device = _device_of(self.backend)
        self._phases = {
            name: self._phase(name, sizes, Mode.DISABLED if nowhere else self.config.mode(name), compiler)
            for name, sizes in ladders.items()
        }
        for name in self._expected:
            self._of(name)
        self.inputs = StaticInputs(inputs, max(phase.ladder[-1] for phase in self._phases.values()), device)

    def _phase(self, name: str, sizes: Sequence[int], mode: Mode, compiler: str | Callable[..., Any] | None) -> _Phase:
        ladder = tuple(sorted(set(sizes)))
        if not ladder or any(not isinstance(size, int) or isinstance(size, bool) or size < 1 for size in ladder):
            raise self._refused(f"the ladder of {name} is {list(sizes)}", "give sizes of 1 or more")
        function = self._forward
        if mode is Mode.TC_PIECEWISE and not self._eager:
            inner = compiler or ("inductor" if self.backend.name == "cuda" else "eager")
            function = piecewise(self._forward, inner=inner)
        elif self._eager:
            function = eager_break(name="the whole forward")(self._forward)
        return _Phase(name, ladder, mode, function)

    def __enter__(self) -> CapturedForward:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    # Capturing

    @torch.no_grad()
    def capture(self) -> CapturedForward:
        """Capture every shape that is not captured, the largest first, and return this.

        Raises:
            CaptureError: as :func:`seam.capture` does; or a shape returns more rows than the largest one. Shapes that were
                captured before stay.
        """
        for phase in self._phases.values():
            if phase.mode is Mode.DISABLED or settings.disabled():
                continue
            try:
                with self._session(phase.name):
                    for shape in reversed(phase.ladder):
                        if shape not in phase.shapes:
                            phase.shapes[shape] = self._capture(phase, shape, self._own_pool(), phase.outputs)
            finally:
                phase.each = phase.outputs.rows_each()
        return self

    def plan(self, samples: Mapping[str, tuple[int, int]] | None = None) -> MemoryPlan:
        """Predict what all shapes will take, from captures of two of the smaller ones, which are dropped again.

        Pool and outputs are taken to grow with the shape as from one sample to the other; what grows otherwise, such as scores
        of every token with every other one, is not. :meth:`report` shows the prediction beside what was measured then.

        Args:
            samples: for each phase the two shapes of its ladder to capture; by default those nearest to an eighth and a quarter
                of the largest one.

        Raises:
            CaptureError: a sample is no shape of its ladder, or the allocator does not tell what a pool holds; or as
                :meth:`capture` does.
        """
        if self._own_pool().reserved_bytes() is None:
            raise self._refused("the allocator does not tell what a pool holds", "plan with torch's native allocator")
        chosen = dict(samples or {})
        for name, shapes in chosen.items():
            if len(shapes) != 2 or not set(shapes) <= set(self._of(name).ladder):
                raise self._refused(f"samples {shapes} of {name} are no two shapes of its ladder", "name two of its shapes")
        found = {
            phase.name: self._sample(phase, sorted(chosen.get(phase.name) or sample_shapes(phase.ladder)))
            for phase in self._phases.values()
            if phase.mode is not Mode.DISABLED and not settings.disabled()
        }
        self._plan = predict(self.label, self.inputs.bytes, found)
        return self._plan

    @torch.no_grad()
    def _sample(self, phase: _Phase, shapes: Sequence[int]) -> PhaseSamples:
        taken: list[tuple[Sample, _Shape]] = []
        before = self._exec_bytes()
        try:
            for shape in shapes:
                outputs = OutputBuffers()
                pool = self.backend.new_pool(self._own_pool().stream)  # a library may keep memory for each stream
                with self._session(f"{phase.name} plan"):
                    held = self._capture(phase, shape, pool, outputs)
                now = self._exec_bytes()
                sample = Sample(
                    shape=shape,
                    pool_bytes=pool.reserved_bytes() or 0,
                    output_bytes=outputs.bytes,
                    held_bytes=held.graph.crossing.held_bytes,
                    exec_bytes=None if now is None or before is None else now - before,
                )
                taken.append((sample, held))
        finally:
            for _, held in taken:
                held.graph.close()
        (low, _), (high, _) = taken
        return PhaseSamples(phase.ladder, (low, high), self._share_outputs)

    def _own_pool(self) -> Pool:
        if self._pool is None:
            self._pool = self.backend.new_pool()
        return self._pool

    def _exec_bytes(self) -> int | None:
        tell: Callable[[], int | None] | None = getattr(self.backend, "modelled_exec_bytes", None)
        return tell() if tell is not None else None

    def _capture(self, phase: _Phase, shape: int, pool: Pool, buffers: OutputBuffers) -> _Shape:
        inputs = self.inputs.views(shape)
        where = f"{self.label} {phase.name} bs={shape}"
        if isinstance(phase.function, Piecewise):
            _mark_dynamic(inputs, self.inputs.inputs)

        def warm_up() -> None:
            for _ in range(self._warmup_count):
                buffers.size_for(phase.function(**inputs), where)

        graph = BreakableGraph(self.backend, label=where)
        mode = Mode.BREAKABLE if self._eager else phase.mode
        expected = None if self._eager else self._expected.get(phase.name)
        try:
            with (
                capture(graph, pool, mode=mode, warmup=warm_up, expect_breaks=expected, **self._how),
                self._only_compiled(phase),
            ):
                outputs = phase.function(**inputs)
                if self._share_outputs:
                    outputs = buffers.keep(outputs, shape, where)
        except BaseException:
            graph.close()
            raise
        return _Shape(graph, outputs)

    def _only_compiled(self, phase: _Phase) -> AbstractContextManager[None]:
        """On a GPU a capture cannot hold a compilation. Nor does the simulated device need one: it sees no compiled code."""
        if isinstance(phase.function, Piecewise) and self.backend.name == "cuda":
            return phase.function.only_compiled()
        return nullcontext()

    @contextmanager
    def _session(self, name: str) -> Iterator[None]:
        """A wrapping backend may put the captures of a phase under one name."""
        session = getattr(self.backend, "session", None)
        with ExitStack() as contexts:
            if session is not None:
                contexts.enter_context(session(name))
            yield

    # Replaying

    def __call__(self, phase: str | None = None, /, **live: torch.Tensor) -> Any:
        """The forward of a live batch: copied in place, padded to the next shape, replayed.

        In a phase that is not captured (mode ``disabled``, or ``SEAM_DISABLE``) the forward itself is called.

        Args:
            phase: which ladder; may be left out if there is one.
            live: the inputs by name.

        Returns:
            What the forward returns, of the live rows only. It holds until the next call.

        Raises:
            ReplayError: an input does not agree with its buffer, the batch is empty or larger than every shape, or the shape
                is not captured yet. Nothing was copied.
        """
        of = self._of(phase)
        where = f"{self.label} {of.name}"
        size = self.inputs.live_size(live, where)
        if of.mode is Mode.DISABLED or settings.disabled():
            of.uncaptured_calls += 1
            return self._forward(**live)
        if size < 1:
            raise ReplayError(f"{where}: the batch is empty", rule="S4", remedy="skip the call")
        at = bisect_left(of.ladder, size)
        if at == len(of.ladder):
            return self._beyond_all(of, size, live, where)
        shape = of.ladder[at]
        held = of.shapes.get(shape)
        if held is None:
            raise ReplayError(f"{where} bs={shape} is not captured", rule="S7", remedy="call .capture() first")
        self.inputs.write(live, size, shape)
        held.graph.replay()
        held.calls += 1
        held.live_rows += size
        return live_rows(held.outputs, of.each, size) if self._share_outputs else held.outputs

    def _beyond_all(self, of: _Phase, size: int, live: Mapping[str, torch.Tensor], where: str) -> Any:
        if self._beyond == "eager":
            of.uncaptured_calls += 1
            return self._forward(**live)
        of.refused_calls += 1
        raise ReplayError(
            f"{where}: a batch of {size} is larger than every shape, up to {of.ladder[-1]}",
            rule="S4",
            remedy="split the batch, add a shape to the ladder, or say beyond='eager'",
        )

    def shape_for(self, size: int, phase: str | None = None) -> int | None:
        """The shape that a batch of this size is padded to; None if it is larger than every one."""
        ladder = self._of(phase).ladder
        at = bisect_left(ladder, size)
        return ladder[at] if at < len(ladder) else None

    def graph(self, shape: int, phase: str | None = None) -> BreakableGraph:
        """The graph of a shape.

        Raises:
            ReplayError: it is not captured.
        """
        of = self._of(phase)
        if shape not in of.shapes:
            raise ReplayError(f"{self.label} {of.name} bs={shape} is not captured", rule="S7", remedy="call .capture() first")
        return of.shapes[shape].graph

    # Telling

    def report(self) -> ForwardReport:
        """What was captured, how often it was replayed, how much of that was padding, and what it holds."""
        rows = [
            ShapeRow(
                phase=phase.name,
                shape=shape,
                mode=phase.mode.value,
                segments=held.graph.counts.segments,
                breaks=held.graph.counts.breaks,
                calls=held.calls,
                live_rows=held.live_rows,
                padded_rows=held.calls * shape - held.live_rows,
            )
            for phase in self._phases.values()
            for shape, held in sorted(phase.shapes.items())
        ]
        input_bytes = self.inputs.bytes
        output_bytes = sum(phase.outputs.bytes for phase in self._phases.values())
        pool_bytes = self._pool.reserved_bytes() if self._pool is not None else 0
        crossing = [held.graph.crossing for phase in self._phases.values() for held in phase.shapes.values()]
        held_bytes = sum(cost.held_bytes for cost in crossing)
        plan = self._plan
        if plan is not None and rows:
            measured = {"inputs": input_bytes, "outputs": output_bytes, "pool": pool_bytes, "held for breaks": held_bytes}
            plan = plan.measured(measured | {"execs": self._exec_bytes()})
        return ForwardReport(
            label=self.label,
            config=",".join(f"{phase.name}={phase.mode}" for phase in self._phases.values()),
            rows=tuple(rows),
            uncaptured_calls={phase.name: phase.uncaptured_calls for phase in self._phases.values()},
            refused_calls={phase.name: phase.refused_calls for phase in self._phases.values()},
            input_bytes=input_bytes,
            output_bytes=output_bytes,
            pool_bytes=pool_bytes,
            held_bytes=held_bytes,
            plan=plan,
        )

    def close(self) -> None:
        """Release every graph; the object can capture again."""
        for phase in self._phases.values():
            while phase.shapes:
                _, held = phase.shapes.popitem()
                held.graph.close()

    def _of(self, phase: str | None) -> _Phase:
        if phase is None and len(self._phases) == 1:
            return next(iter(self._phases.values()))
        try:
            return self._phases[phase or ""]
        except KeyError:
            raise self._refused(f"there is no phase {phase!r}", f"name one of {', '.join(self._phases)}") from None

    def _refused(self, problem: str, remedy: str) -> CaptureError:
        return CaptureError(f"{self.label}: {problem}", rule="S9", remedy=remedy)


def _mark_dynamic(inputs: Mapping[str, torch.Tensor], kinds: Mapping[str, Input]) -> None:
    """One compilation serves every size but one, which is always a constant to the compiler."""
    for name, tensor in inputs.items():
        for dim, size in enumerate(kinds[name].shape):
            if size is None and tensor.shape[dim] > 1:
                torch._dynamo.mark_dynamic(tensor, dim)


def _default(backend: GraphBackend | None) -> GraphBackend:
    if backend is not None:
        return backend
    from seam import default_backend

    return default_backend()


def _device_of(backend: Any) -> torch.device:
    """Where a backend's tensors live, through those that it wraps."""
    while not isinstance(getattr(backend, "device", None), torch.device) and hasattr(backend, "inner"):
        backend = backend.inner
    device = getattr(backend, "device", None)
    return device if isinstance(device, torch.device) else torch.device("cpu")
