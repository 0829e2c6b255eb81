"""The workloads that measure_fold.py folds: the demo's model, captured in the ways in which engines capture theirs.

``full`` is one graph per batch size; ``breakable`` is split at attention; ``compiled`` has Inductor's kernels; ``two-streams``
forks a side stream in every layer; ``sampling`` draws random numbers, for dropout and for the next token; ``piecewise`` is
split at attention with Inductor's kernels in between.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._dynamo.exc import TorchDynamoException

import seam
from graphdedup.backend import DedupBackend
from graphdedup.demo.model import DecoderModel, KVCache, ModelConfig
from graphdedup.errors import GraphDedupError
from graphdedup.footprint import Span

__all__ = ["WORKLOADS", "Against", "Captures", "ForkedLinear", "Kind", "NotRun", "Step", "Workload", "settle"]

Step = Callable[[Tensor, Tensor, KVCache], tuple[Tensor, ...]]
"""One decode step: tokens, positions and cache in, what a replay leaves behind out."""

_DROPPED = 0.1


class NotRun(GraphDedupError):
    """The workload cannot be run here, through no fault of the fold."""


class Against(enum.StrEnum):
    """What a folded replay must equal in every bit."""

    EAGER = "eager"
    """The forward itself."""
    OWN = "own exec"
    """A capture of the same forward that is not folded: compiled and forked forwards need not equal another run of theirs
    on other memory, such as another workspace of cuBLAS, but a graph equals itself."""
    SEEDED = "own exec, same seed"
    """The same, each from the same seed on: what is drawn, and how far the generator has advanced, are compared as well."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One workload. ``prepare`` may change the model, and returns the step to capture."""

    prepare: Callable[[DecoderModel, torch.device], Step]
    mode: Literal["full", "breakable", "tc_piecewise"] = "full"
    against: Against = Against.EAGER
    draws: bool = False
    """Whether its graphs draw random numbers."""


class Workload:
    """A decode step at many batch sizes, on static inputs and a static cache: what is captured, and what it works on.

    Raises:
        NotRun: the kind cannot be run on this device.
    """

    def __init__(self, kind: Kind, config: ModelConfig, sizes: Sequence[int], device: torch.device, seed: int) -> None:
        self.kind = kind
        self.layers = config.layers
        self.device = device
        self.sizes = tuple(sorted(set(sizes), reverse=True))
        """Largest first: every smaller capture then fits into blocks that the pool already holds."""
        model = DecoderModel(config, device=device, seed=seed)
        self._step = kind.prepare(model, device)
        self._config = config
        self._cache = KVCache(config, self.sizes[0], device)
        self._generator = torch.Generator()
        tokens, positions = (torch.zeros(self.sizes[0], dtype=torch.int64, device=device) for _ in range(2))
        # The same tensors at every call: what is marked dynamic for the compiler stays marked.
        self._inputs = {size: (tokens[:size], positions[:size]) for size in self.sizes}
        self.start(seed)

    def start(self, seed: int) -> None:
        """Cache and inputs as they are at the beginning, by ``seed`` alone. Default generators are left alone."""
        self._cache.fill(seed)
        self._generator.manual_seed(seed)
        self.refresh(self.sizes[0])

    def forward(self, size: int) -> tuple[Tensor, ...]:
        """The step for the first ``size`` rows of the inputs."""
        return self._step(*self._inputs[size], self._cache)

    def refresh(self, size: int) -> None:
        """Other random tokens and positions for the first ``size`` rows."""
        for target, end in zip(self._inputs[size], (self._config.vocab, self._config.max_seq), strict=True):
            target.copy_(torch.randint(end, (size,), generator=self._generator))

    def state(self, size: int) -> tuple[Tensor, Tensor]:
        """Copies of the keys and values at the positions that a step of ``size`` rows writes."""
        return self._cache.written(self._inputs[size][1])

    def spoil(self, size: int) -> None:
        """Overwrite those, so that work that was not done cannot pass for work done."""
        self._cache.write(self._inputs[size][1], float("nan"), float("nan"))

    def mend(self, size: int, keys: Tensor, values: Tensor) -> None:
        """Put back what :meth:`state` returned, so that one wrong replay does not spoil the next comparison."""
        self._cache.write(self._inputs[size][1], keys, values)


class Captures:
    """Graphs of a workload on one backend, with a pool of their own."""

    def __init__(self, work: Workload, backend: DedupBackend, name: str) -> None:
        self.work = work
        self.backend = backend
        self.name = name
        self.pool = backend.new_pool()
        self.graphs: dict[int, seam.BreakableGraph] = {}
        self.outputs: dict[int, tuple[Tensor, ...]] = {}
        self.warm_up_seconds = self.capture_seconds = self.first_replay_seconds = 0.0
        self.exec_device_bytes: int | None = None

    def take(self, sizes: Sequence[int]) -> None:
        """Capture ``sizes`` and replay each once."""
        work, device = self.work, self.work.device
        began = time.perf_counter()
        with self.pool.entered():
            for size in sizes:
                work.forward(size)
        settle(device)
        self.warm_up_seconds = time.perf_counter() - began
        span, began = Span.begin(device), time.perf_counter()
        with self.backend.session(self.name):
            for size in sizes:
                self.graphs[size] = seam.BreakableGraph(self.backend, label=f"{self.name} bs={size}")
                expected = None if work.kind.mode == "full" else work.layers
                with seam.capture(self.graphs[size], pool=self.pool, mode=work.kind.mode, expect_breaks=expected):
                    outputs = work.forward(size)
                self.outputs[size] = outputs
        settle(device)
        self.capture_seconds = time.perf_counter() - began
        began = time.perf_counter()
        for graph in self.graphs.values():
            graph.replay()
        settle(device)
        self.first_replay_seconds = time.perf_counter() - began
        self.exec_device_bytes = span.end().exec_device_bytes

    def replayed(self, size: int) -> tuple[Tensor, ...]:
        """Replay into spoiled outputs and state; copies of what it left there, the state last."""
        self.work.spoil(size)
        for output in self.outputs[size]:
            output.fill_(float("nan") if output.is_floating_point() else -1)
        self.graphs[size].replay()
        return *(output.clone() for output in self.outputs[size]), *self.work.state(size)

    def close(self) -> None:
        """Release all graphs together: graphs of one stream share library workspaces."""
        settle(self.work.device)
        for graph in self.graphs.values():
            graph.close()


def settle(device: torch.device) -> None:
    """Wait for the device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


class ForkedLinear(nn.Module):
    """A linear layer whose second half of outputs is computed on a side stream, forked and joined by events.

    Args:
        linear: the layer that it replaces; it has no bias.
        streams: ``torch.cuda``, or :mod:`seam.simulated` on the CPU.
        side: a stream of ``streams``.
    """

    def __init__(self, linear: nn.Linear, streams: Any, side: Any) -> None:
        super().__init__()
        self.halves = linear.weight.chunk(2)
        self.streams = streams
        self.side = side

    def forward(self, x: Tensor) -> Tensor:
        first, second = self.halves
        main = self.streams.current_stream()
        self.side.wait_event(main.record_event())
        with self.streams.stream(self.side):
            right = F.linear(x, second)
            done = self.side.record_event()
        left = F.linear(x, first)
        main.wait_event(done)
        # The side stream may take the memory of `right` again at its next fork, which comes after this.
        return torch.cat((left, right), dim=-1)


def _plain(model: DecoderModel, device: torch.device) -> Step:
    return lambda tokens, positions, cache: (model(tokens, positions, cache),)


def _two_streams(model: DecoderModel, device: torch.device) -> Step:
    """The two halves of every layer's gated MLP run side by side."""
    streams: Any = torch.cuda
    if device.type == "cpu":
        import seam.simulated as streams
    side = streams.Stream()
    for layer in model.layers:
        layer.gate_up = ForkedLinear(_linear(layer.gate_up), streams, side)
    return _plain(model, device)


def _sampling(model: DecoderModel, device: torch.device) -> Step:
    """Dropout on what each layer adds, and a token for each row drawn from the logits by exponential noise."""
    for layer in model.layers:
        layer.o = nn.Sequential(_linear(layer.o), nn.Dropout(_DROPPED))
        layer.down = nn.Sequential(_linear(layer.down), nn.Dropout(_DROPPED))

    def step(tokens: Tensor, positions: Tensor, cache: KVCache) -> tuple[Tensor, ...]:
        logits: Tensor = model(tokens, positions, cache)
        probabilities = torch.softmax(logits, dim=-1, dtype=torch.float32)
        noise = torch.empty_like(probabilities).exponential_()
        return logits, (probabilities / noise).argmax(dim=-1)

    return step


def _compiled(model: DecoderModel, device: torch.device) -> Step:
    """Inductor's kernels, without its own graphs: compiled for any batch, and once more for a batch of one."""
    if device.type == "cpu":
        raise NotRun(
            "compiled code on the CPU bypasses torch's dispatcher, and the simulated device would record nothing of it.",
            remedy="run this workload with --device cuda.",
        )
    return _compiled_step(torch.compile(model, fullgraph=True))


def _piecewise(model: DecoderModel, device: torch.device) -> Step:
    """Inductor's kernels between the breaks; on the CPU, where the simulated device sees none, the pieces as they are."""
    return _compiled_step(seam.piecewise(model, inner="inductor" if device.type == "cuda" else "eager"))


def _compiled_step(compiled: Callable[..., Any]) -> Step:
    def step(tokens: Tensor, positions: Tensor, cache: KVCache) -> tuple[Tensor, ...]:
        if tokens.shape[0] > 1:  # a size of one is always a constant
            torch._dynamo.mark_dynamic(tokens, 0)
            torch._dynamo.mark_dynamic(positions, 0)
        try:
            return (compiled(tokens, positions, cache),)
        except TorchDynamoException as error:
            raise NotRun(
                f"{type(error).__name__}: {' '.join(str(error).split())[:200]}.",
                remedy="install triton and a C compiler.",
            ) from error

    return step


def _linear(layer: Tensor | nn.Module) -> nn.Linear:
    """``layer``, which is a linear one."""
    if not isinstance(layer, nn.Linear):
        raise TypeError(f"{type(layer).__name__} is no linear layer")
    return layer


WORKLOADS: Mapping[str, Kind] = MappingProxyType(
    {
        "full": Kind(_plain),
        "breakable": Kind(_plain, mode="breakable"),
        "compiled": Kind(_compiled, against=Against.OWN),
        "two-streams": Kind(_two_streams, against=Against.OWN),
        "piecewise": Kind(_piecewise, mode="tc_piecewise", against=Against.OWN),
        "sampling": Kind(_sampling, against=Against.SEEDED, draws=True),
    }
)
"""The workloads by name."""
