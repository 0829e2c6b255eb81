"""One arm of measure_fold.py: a workload at every size on one tier, captured, folded, compared in every bit and timed."""

from __future__ import annotations

import random
import statistics
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

import seam
from graphdedup import DedupBackend, FoldPolicy, FootprintReport, Stats
from graphdedup.demo import ModelConfig
from graphdedup.errors import GraphDedupError
from seam.errors import SeamError

if TYPE_CHECKING:  # where tools is no package
    from fold_workloads import WORKLOADS, Against, Captures, NotRun, Workload, settle
else:
    from tools.fold_workloads import WORKLOADS, Against, Captures, NotRun, Workload, settle

__all__ = ["Measured", "Row", "Spec", "Strict", "Timing", "run_arm"]

_TIMED_SIZES = 4
_TRIED_PARTNERS = 8
_RESEED_EVERY, _DRAW_EVERY = 5, 3


class Strict(BaseModel):
    """Base of what is written as JSON."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Spec(Strict):
    """What one arm does."""

    device: Literal["cpu", "cuda"]
    workload: str
    tier: str
    placement: str = "group"
    refresh_after: int | None = None
    config: ModelConfig
    sizes: tuple[int, ...] = Field(min_length=1)
    rounds: int = Field(default=3, ge=1)
    replays: int = Field(default=50, ge=1)
    seed: int = Field(default=0, ge=0)


class Timing(Strict):
    """Median microseconds from an idle device to the end of one replay; host work, such as an update, counts.

    ``steady``: the same size again. ``alternating``: ``partner`` was replayed in between, the nearest size that costs this one
    an update; None if no near one does. The counts are updates per replay.
    """

    size: int
    own_us: float
    """On executables of its own."""
    steady_us: float
    steady_update_count: float
    partner: int | None
    alternating_us: float | None
    alternating_update_count: float | None


class Measured(Strict):
    """What an arm measured. Counts and times of folding are those at the end of the comparison, before any timing."""

    layers: int
    captured: int
    execs: int
    peak_execs: int
    groups: int
    kept: int
    """Graphs that keep torch's own executable."""
    nodes: int
    """Of all graphs together."""
    compared_with: Against
    compared: int
    mismatches: int
    updates: int
    replay_updates: int
    """The part of them that a replay needed; the others were tried when a graph was folded."""
    launches: int
    refused: int
    unfolded: int
    refusals: dict[str, int]
    exec_device_bytes: int | None
    """On a GPU measured around all captures and one replay of each; else modelled; None where neither can be had."""
    exec_bytes_source: str
    own_exec_device_bytes: int | None
    """The same for executables that are not folded, measured in the same process after it; None where not all sizes were."""
    pool_bytes: int | None
    warm_up_seconds: float
    """The first run of every size, compilation included."""
    capture_seconds: float
    """The loop over all sizes, folding included."""
    fold_seconds: float
    first_replay_seconds: float
    timings: tuple[Timing, ...]


class Row(Strict):
    """One arm: what it measured, or why it did not."""

    workload: str
    tier: str
    placement: str
    outcome: Literal["measured", "not run", "failed"]
    reason: str = ""
    measured: Measured | None = None


class _Arm:
    """One workload, folded, and beside it as many of its sizes as are needed not folded."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.kind = WORKLOADS[spec.workload]
        self.device = torch.device("cuda", torch.cuda.current_device()) if spec.device == "cuda" else torch.device("cpu")
        self.work = Workload(self.kind, spec.config, spec.sizes, self.device, spec.seed)
        self.sizes = self.work.sizes
        last = len(self.sizes) - 1
        self.timed_sizes = sorted({self.sizes[round(at * last / (_TIMED_SIZES - 1))] for at in range(_TIMED_SIZES)})
        policy = FoldPolicy.parse(
            tier=spec.tier,
            placement=spec.placement,
            refresh_after=spec.refresh_after,
            draws_vouched=not self.kind.draws,
        )
        self.backend = DedupBackend(seam.default_backend(spec.device), policy=policy, enabled=True, verify=False, sync=False)
        self.folded = Captures(self.work, self.backend, spec.workload)
        self.own = Captures(self.work, DedupBackend(seam.default_backend(spec.device), enabled=False), "not folded")

    def run(self) -> Measured:
        self.folded.take(self.sizes)
        self.own.take(self.timed_sizes[::-1] if self.kind.against is Against.EAGER else self.sizes)
        # Attention between segments has run on tensors that held nothing yet, and left that in the cache.
        self.work.start(self.spec.seed)
        compared, mismatches = self._compare_draws() if self.kind.against is Against.SEEDED else self._compare()
        stats, report = self.backend.stats(), self.backend.report()
        return Measured(
            layers=self.spec.config.layers,
            captured=stats.captured,
            execs=stats.execs,
            peak_execs=stats.peak_execs,
            groups=stats.groups,
            kept=stats.passed_through,
            nodes=stats.nodes,
            compared_with=self.kind.against,
            compared=compared,
            mismatches=mismatches,
            updates=stats.updates,
            replay_updates=stats.replay_updates,
            launches=stats.launches,
            refused=stats.refused,
            unfolded=stats.unfolded,
            refusals={row.reason: row.count for row in report.refusals},
            exec_device_bytes=self._exec_device_bytes(stats, report),
            exec_bytes_source=report.exec_device.source.value,
            own_exec_device_bytes=self.own.exec_device_bytes if len(self.own.graphs) == len(self.sizes) else None,
            pool_bytes=self.folded.pool.reserved_bytes(),
            warm_up_seconds=self.folded.warm_up_seconds,
            capture_seconds=self.folded.capture_seconds,
            fold_seconds=stats.walk_seconds + stats.fold_seconds + stats.instantiate_seconds,
            first_replay_seconds=self.folded.first_replay_seconds,
            timings=tuple(self._timing(size) for size in self.timed_sizes),
        )

    def _exec_device_bytes(self, stats: Stats, report: FootprintReport) -> int | None:
        if self.device.type == "cuda":
            return self.folded.exec_device_bytes
        return None if stats.passed_through else report.exec_device.bytes  # the model knows the fold's executables only

    def close(self) -> None:
        self.folded.close()
        self.own.close()

    def _orders(self) -> Iterator[list[int]]:
        """All sizes in an order of its own for each round."""
        shuffler = random.Random(self.spec.seed)
        for _ in range(self.spec.rounds):
            yield shuffler.sample(self.sizes, len(self.sizes))

    def _compare(self) -> tuple[int, int]:
        """Each size in each round against the forward itself or a replay that is not folded: (compared, mismatches)."""
        compared = mismatches = 0
        for order in self._orders():
            for size in order:
                self.work.refresh(size)
                if self.kind.against is Against.EAGER:
                    self.work.spoil(size)
                    right = (*self.work.forward(size), *self.work.state(size))
                else:
                    right = self.own.replayed(size)
                compared += 1
                if not _same_bits(right, self.folded.replayed(size)):
                    mismatches += 1
                    self.work.mend(size, right[-2], right[-1])
        return compared, mismatches

    def _compare_draws(self) -> tuple[int, int]:
        """Whole rounds, not folded and folded, each from the same seed and state on: (compared, mismatches)."""
        compared = mismatches = 0
        for number, order in enumerate(self._orders()):
            seed = self.spec.seed + 1000 * (number + 1)
            right = list(self._played(self.own, order, seed))
            for expected, got in zip(right, self._played(self.folded, order, seed), strict=True):
                compared += 1
                mismatches += not _same_bits(expected, got)
        return compared, mismatches

    def _played(self, captures: Captures, order: Sequence[int], seed: int) -> Iterator[tuple[Tensor, ...]]:
        """Replay each size twice in a row; now and then eager draws or a new seed come in between."""
        self.work.start(seed)
        torch.manual_seed(seed)
        for at, size in enumerate(order):
            if at % _RESEED_EVERY == _RESEED_EVERY - 1:
                torch.manual_seed(seed + at)
            for _ in range(2):  # the second one needs no update, and has to draw other numbers
                self.work.refresh(size)
                left = captures.replayed(size)
                if at % _DRAW_EVERY == 0:
                    left = (*left, torch.rand(5, device=self.device))
                yield left

    def _timing(self, size: int) -> Timing:
        def folded() -> None:
            self.folded.graphs[size].replay()

        def nothing() -> None:
            pass

        folded()
        own_us, _ = self._median_us(self.own.graphs[size].replay, nothing)
        steady_us, steady_updates = self._median_us(folded, nothing)
        partner, alternating_us, alternating_updates = self._partner(size), None, None
        if partner is not None:
            alternating_us, alternating_updates = self._median_us(folded, self.folded.graphs[partner].replay)
        return Timing(
            size=size,
            own_us=own_us,
            steady_us=steady_us,
            steady_update_count=steady_updates,
            partner=partner,
            alternating_us=alternating_us,
            alternating_update_count=alternating_updates,
        )

    def _partner(self, size: int) -> int | None:
        """The nearest size whose replay costs this one an update."""
        others = sorted(set(self.sizes) - {size}, key=lambda other: (abs(other - size), other))
        for other in others[:_TRIED_PARTNERS]:
            self.folded.graphs[other].replay()
            before = self.backend.stats().updates
            self.folded.graphs[size].replay()
            if self.backend.stats().updates > before:
                return other
        return None

    def _median_us(self, replay: Callable[[], None], before: Callable[[], None]) -> tuple[float, float]:
        """Median time of ``replay`` after ``before``, which is not timed, and the updates that one replay took."""
        times: list[float] = []
        updates = 0
        for _ in range(self.spec.replays):
            before()
            settle(self.device)
            counted = self.backend.stats().updates
            times.append(_timed_us(self.device, replay))
            updates += self.backend.stats().updates - counted
        return round(statistics.median(times), 1), updates / self.spec.replays


def run_arm(spec: Spec) -> Row:
    """Run one arm here. Whatever goes wrong becomes a row that says so, and a traceback on stderr."""
    row = partial(Row, workload=spec.workload, tier=spec.tier, placement=spec.placement)
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]), _one_thread(spec):
            arm = _Arm(spec)
            try:
                measured = arm.run()
            finally:
                arm.close()
        return row(outcome="measured", measured=measured)
    except NotRun as error:
        return row(outcome="not run", reason=str(error))
    except Exception as error:
        traceback.print_exc()
        known = isinstance(error, GraphDedupError | SeamError)
        reason = str(error) if known else f"{type(error).__name__}: {error}"
        return row(outcome="failed", reason=" ".join(reason.split())[:500])


@contextmanager
def _one_thread(spec: Spec) -> Iterator[None]:
    """Kernels of a small model on the CPU are shorter than the wait for other threads."""
    before = torch.get_num_threads()
    if spec.device == "cpu":
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _timed_us(device: torch.device, replay: Callable[[], None]) -> float:
    """From an idle device to the end of the replay: by events on a GPU, by the clock elsewhere."""
    if device.type != "cuda":
        began = time.perf_counter()
        replay()
        return (time.perf_counter() - began) * 1e6
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    replay()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) * 1e3


def _same_bits(expected: Sequence[Tensor], got: Sequence[Tensor]) -> bool:
    """Equal in every bit: NaN equals the same NaN, and 0.0 differs from -0.0."""
    return all(
        right.dtype == left.dtype
        and right.shape == left.shape
        and torch.equal(right.contiguous().view(torch.uint8), left.contiguous().view(torch.uint8))
        for right, left in zip(expected, got, strict=True)
    )
