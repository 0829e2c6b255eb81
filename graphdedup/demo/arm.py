"""One arm of the demo: capture every batch size once, fold it or not, replay it and compare with the eager forward."""

from __future__ import annotations

import logging
import random
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

import seam
from graphdedup.backend import DedupBackend
from graphdedup.demo.model import DecoderModel, KVCache, ModelConfig
from graphdedup.driver import GraphDriver, driver_for
from graphdedup.footprint import Span, modelled_exec_bytes
from graphdedup.policy import FoldPolicy
from graphdedup.report import Figure, RefusalRow, Source
from graphdedup.signature import Tier

__all__ = ["MIN_ROUNDS", "ArmResult", "ArmSpec", "run_arm"]

MIN_ROUNDS = 3
"""Fewer replays of a size would not show what a replay of another size in between leaves behind."""

SMALL_HIDDEN = 256
"""On the CPU a model of at most this hidden size runs on one thread."""

_log = logging.getLogger("graphdedup.demo")


class ArmSpec(BaseModel):
    """What one arm does; it travels to another process as JSON."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    device: Literal["cpu", "cuda"]
    mode: Literal["full", "breakable"]
    folded: bool
    config: ModelConfig
    sizes: tuple[Annotated[int, Field(ge=1)], ...] = Field(min_length=1)
    rounds: int = Field(default=MIN_ROUNDS, ge=MIN_ROUNDS)
    seed: int = Field(default=0, ge=0)
    tier: Tier = Tier.STRUCTURE
    graphs: str = ""
    """Write the captured graphs to this file."""
    report: str = ""
    """Write the footprint report to this file, after the last replay."""
    progress: bool = False
    """Show a progress bar on stderr."""
    verbose: bool = False


class ArmResult(BaseModel):
    """What one arm measured. ``capture_seconds`` is the loop over all sizes, folding included; ``first_replay_seconds``
    one replay of each size after it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    device: str
    driver_version: str
    torch_version: str
    parameters: int
    captured: int
    execs: int
    peak_execs: int
    groups: int
    nodes: int
    segments_per_graph: int
    compared: int
    mismatches: int
    updates: int
    launches: int
    refused: int
    unfolded: int
    passed_through: int
    refusals: tuple[RefusalRow, ...]
    exec_device: Figure
    exec_host: Figure
    pool_bytes: int | None
    capture_seconds: float
    first_replay_seconds: float
    fold_seconds: float


@dataclass(slots=True)
class _Captured:
    """One batch size: its graph, and the logits that each replay leaves behind."""

    graph: seam.BreakableGraph
    logits: Tensor


class _Inputs:
    """Tokens and positions for the largest batch, static; a smaller batch reads the first rows."""

    def __init__(self, config: ModelConfig, max_batch: int, device: torch.device, seed: int) -> None:
        self._config = config
        self._generator = torch.Generator().manual_seed(seed)
        self.tokens = torch.zeros(max_batch, dtype=torch.int64, device=device)
        self.positions = torch.zeros(max_batch, dtype=torch.int64, device=device)

    def of(self, batch: int) -> tuple[Tensor, Tensor]:
        return self.tokens[:batch], self.positions[:batch]

    def refresh(self, batch: int) -> None:
        """Other random tokens and positions for the first ``batch`` rows."""
        self.tokens[:batch].copy_(torch.randint(self._config.vocab, (batch,), generator=self._generator))
        self.positions[:batch].copy_(torch.randint(self._config.max_seq, (batch,), generator=self._generator))


def run_arm(spec: ArmSpec) -> ArmResult:
    """Capture every size of ``spec``, replay each ``rounds`` times in shuffled order, and compare bit for bit.

    On a GPU run one arm per process: the driver keeps the memory of destroyed executables, so a second arm would find
    room where the first one was and measure nothing.

    Raises:
        GraphDedupError: the device's driver cannot be used, or failed.
        SeamError: a capture or a replay was refused.
    """
    device = torch.device("cuda", torch.cuda.current_device()) if spec.device == "cuda" else torch.device("cpu")
    inner = _inner_backend(device)
    driver = driver_for(inner)
    # The model draws no random numbers; some releases of torch cannot tell, and every replay would advance them in vain.
    backend = DedupBackend(inner, FoldPolicy(tier=spec.tier, draws_vouched=True), enabled=spec.folded, driver=driver)
    # Kernels of a small model are shorter than the wait for other threads, by far so on a machine with other work.
    one_thread = device.type == "cpu" and spec.config.hidden <= SMALL_HIDDEN
    with torch.no_grad(), _threads(1 if one_thread else torch.get_num_threads()):
        arm = _Arm(spec, device, backend, driver)
        try:
            return arm.run()
        finally:
            arm.close()


class _Arm:
    def __init__(
        self,
        spec: ArmSpec,
        device: torch.device,
        backend: DedupBackend,
        driver: GraphDriver,
    ) -> None:
        self.spec = spec
        self.device = device
        self.backend = backend
        self.driver = driver
        self.pool = backend.new_pool()
        self.captured: dict[int, _Captured] = {}
        # Largest first: every smaller capture then fits into blocks that the pool already holds.
        self.sizes = sorted(set(spec.sizes), reverse=True)
        self.model = DecoderModel(spec.config, device=device, seed=spec.seed)
        self.cache = KVCache(spec.config, self.sizes[0], device)
        self.inputs = _Inputs(spec.config, self.sizes[0], device, spec.seed + 1)
        self.cache.fill(spec.seed + 2)
        self.inputs.refresh(self.sizes[0])

    def run(self) -> ArmResult:
        self._warm_up()
        span = Span.begin(self.device)
        began = time.perf_counter()
        self._capture_all()
        _settle(self.device)
        capture_seconds = time.perf_counter() - began
        replay_span = Span.begin(self.device)
        began = time.perf_counter()
        for one in self.captured.values():
            one.graph.replay()
        _settle(self.device)
        first_replay_seconds = time.perf_counter() - began
        replay_reading, reading = replay_span.end(), span.end()
        pool_bytes = self.pool.reserved_bytes()
        exec_device, exec_host = self._exec_bytes(reading.exec_device_bytes, replay_reading.host_rss_bytes)

        if self.spec.graphs:
            Path(self.spec.graphs).write_text(self.backend.export().to_json(), encoding="utf-8")

        # Captured attention has run on tensors that held nothing yet, and left that in the cache.
        self.cache.fill(self.spec.seed + 2)
        mismatches = self._compare_all()
        if self.spec.report:
            Path(self.spec.report).write_text(self.backend.report().to_json() + "\n", encoding="utf-8")
        stats, identity, folded = self.backend.stats(), self.driver.identity, self.spec.folded
        return ArmResult(
            device=identity.name,
            driver_version=identity.driver_version,
            torch_version=torch.__version__,
            parameters=sum(parameter.numel() for parameter in self.model.parameters()),
            captured=stats.captured,
            execs=stats.execs,
            peak_execs=stats.peak_execs,
            groups=stats.groups,
            nodes=stats.nodes,
            segments_per_graph=len(self.captured[self.sizes[0]].graph.segments),
            compared=self.spec.rounds * len(self.sizes),
            mismatches=mismatches,
            updates=stats.updates,
            launches=stats.launches,
            refused=stats.refused,
            unfolded=stats.unfolded,
            passed_through=stats.passed_through,
            refusals=self.backend.report().refusals if folded else (),
            exec_device=exec_device,
            exec_host=exec_host,
            pool_bytes=pool_bytes,
            capture_seconds=capture_seconds,
            first_replay_seconds=first_replay_seconds,
            fold_seconds=stats.walk_seconds + stats.fold_seconds + stats.instantiate_seconds,
        )

    def close(self) -> None:
        """Release every graph: all together, since graphs of one stream share library workspaces."""
        _settle(self.device)
        for one in self.captured.values():
            one.graph.close()

    def _warm_up(self) -> None:
        """Run every size once, so that modules and library workspaces are loaded before anything is measured."""
        with self.pool.entered():
            for size in self.sizes:
                self.model(*self.inputs.of(size), self.cache)
        _settle(self.device)

    def _capture_all(self) -> None:
        words = f"{self.spec.mode}{'' if self.spec.folded else ', not folded'}"
        with (
            self.backend.session("decode"),
            _progress(f"capturing ({words})", len(self.sizes), self.spec.progress) as advance,
        ):
            for size in self.sizes:
                graph = seam.BreakableGraph(self.backend, label=f"decode bs={size}")
                with seam.capture(graph, pool=self.pool, mode=self.spec.mode, expect_breaks=self.spec.config.layers):
                    logits = self.model(*self.inputs.of(size), self.cache)
                self.captured[size] = _Captured(graph, logits)
                advance()

    def _compare_all(self) -> int:
        """Replay every size in each round; the number of replays that differ from eager in any bit."""
        shuffler = random.Random(self.spec.seed)
        order = list(self.sizes)
        mismatches = 0
        with _progress(f"replaying ({self.spec.mode})", self.spec.rounds * len(order), self.spec.progress) as advance:
            for round_number in range(self.spec.rounds):
                shuffler.shuffle(order)
                for size in order:
                    wrong = self._compare(size)
                    if wrong:
                        level = logging.DEBUG if mismatches else logging.WARNING  # the first one stands for all
                        mismatches += 1
                        _log.log(level, "decode bs=%d, round %d: %s not as eager", size, round_number, ", ".join(wrong))
                    advance()
        return mismatches

    def _compare(self, size: int) -> list[str]:
        """Replay one size on fresh inputs; names of what differs from eager."""
        self.inputs.refresh(size)
        tokens, positions = self.inputs.of(size)
        self.cache.write(positions, float("nan"), float("nan"))
        logits = self.model(tokens, positions, self.cache)
        keys, values = self.cache.written(positions)

        # Whatever the replay should write is spoiled first: work that was not done cannot pass for work done.
        self.cache.write(positions, float("nan"), float("nan"))
        one = self.captured[size]
        one.logits.fill_(float("nan"))
        one.graph.replay()
        replayed_keys, replayed_values = self.cache.written(positions)
        pairs = {
            "logits": (logits, one.logits),
            "keys": (keys, replayed_keys),
            "values": (values, replayed_values),
        }
        wrong = [name for name, (expected, got) in pairs.items() if not _same_bits(expected, got)]
        if wrong:
            self.cache.write(positions, keys, values)  # so that one wrong replay does not spoil the next comparison
        return wrong

    def _exec_bytes(self, device_bytes: int | None, replay_rss_bytes: int) -> tuple[Figure, Figure]:
        """Device and host bytes of the executables alive now, each with its source (rules M3, M4)."""
        if self.device.type == "cpu":
            return self._modelled_bytes()
        device = Figure(
            bytes=device_bytes,
            source=Source.MEASURED_DEVICE,
            how="growth of used device memory less the allocator's, around all captures and one replay of each",
        )
        if self.spec.folded:
            return device, self.backend.report().exec_host
        host = Figure(
            bytes=replay_rss_bytes,
            source=Source.MEASURED_HOST,
            how="growth of resident memory while every graph was instantiated by its first replay",
        )
        return device, host

    def _modelled_bytes(self) -> tuple[Figure, Figure]:
        if self.spec.folded:
            report = self.backend.report()
            return report.exec_device, report.exec_host
        segments = [handle for one in self.captured.values() for handle in one.graph.segments]
        pairs = [modelled_exec_bytes(len(self.driver.walk(self.driver.raw(handle.inner)).nodes)) for handle in segments]
        how = "one exec per captured graph x the bytes per node measured on an H200"
        return (
            Figure(bytes=sum(device for device, _ in pairs), source=Source.MODELLED, how=how),
            Figure(bytes=sum(host for _, host in pairs), source=Source.MODELLED, how=how),
        )


def _inner_backend(device: torch.device) -> Any:
    if device.type == "cuda":
        from seam.cuda import CudaBackend

        return CudaBackend()
    from seam.simulated import SimulatedBackend

    return SimulatedBackend()


def _settle(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """Let torch use ``count`` CPU threads while the context is open."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _same_bits(expected: Tensor, got: Tensor) -> bool:
    """Equal in every bit: NaN equals the same NaN, and 0.0 differs from -0.0."""
    integers = {2: torch.int16, 4: torch.int32}[expected.element_size()]
    if expected.shape != got.shape or expected.dtype != got.dtype:
        return False
    return torch.equal(expected.contiguous().view(integers), got.contiguous().view(integers))


@contextmanager
def _progress(words: str, total: int, shown: bool) -> Iterator[Callable[[], None]]:
    """A progress bar on stderr, where one is wanted and rich is installed; what it yields counts one step."""
    if shown:
        try:
            from rich.console import Console
            from rich.progress import Progress
        except ModuleNotFoundError:
            shown = False
    if not shown:
        yield lambda: None
        return
    # Forced: in a process of its own an arm writes to a pipe, and its parent passes that on to the terminal.
    with Progress(console=Console(file=sys.stderr, force_terminal=True), transient=True) as bar:
        task = bar.add_task(words, total=total)
        yield lambda: bar.advance(task)
