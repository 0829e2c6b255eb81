"""What the examples share: the shape of a runner, and the loop that runs one with and without the fold.

A runner captures with torch's own class. That its graphs fold is decided around it, by ``graphdedup.interpose()``.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import importlib
import importlib.util
import inspect
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol, cast

import torch
import xxhash
from torch import Tensor

import graphdedup

__all__ = ["NAMES", "Counted", "Example", "Runner", "cannot_run", "counted", "digest", "load", "main", "play"]

NAMES = ("ladder", "transformers_batching", "reduce_overhead", "graphed_callables", "nano_runner", "breakable_peer")
"""The examples, by the names of their files."""

MIN_ROUNDS = 3
"""Fewer replays of a graph would not show what a replay of another one in between leaves behind."""


class Runner(Protocol):
    """Something that captures CUDA graphs and replays them. To make one sets up its model and runs it once without graphs."""

    step_is: str
    """What one step is, in words."""
    timed_steps: int
    """How many steps a time is the median of."""

    def capture(self) -> None:
        """Capture every graph, and replay each once."""

    def round(self, number: int) -> Iterator[Tensor]:
        """Every graph in an order of its own on fresh inputs, both by ``number`` alone; each output is read before the next."""

    def step(self, number: int) -> float | None:
        """Something short that replays; graphs take turns. Returns its seconds where the runner times it, else None."""

    def close(self) -> None:
        """Release the graphs."""


@dataclass(frozen=True)
class Example:
    """A runner, and what it needs."""

    name: str
    make: Callable[[torch.device, bool], Runner]
    """Takes the device and whether it should be small, as for a test."""
    needs: tuple[str, ...] = ()
    """Packages beside torch, by the names under which they are imported."""


def load(name: str) -> Example:
    """The example of that name."""
    return cast(Example, importlib.import_module(f"examples.{name}").EXAMPLE)


def cannot_run(example: Example, device: torch.device) -> str:
    """Why the example cannot run here; empty if it can."""
    missing = [package for package in example.needs if importlib.util.find_spec(package) is None]
    if missing:
        return f"needs the package {' and '.join(missing)}, which is not installed"
    if device.type != "cuda":
        return f"CUDA graphs need a GPU, and the device is {device}"
    if not torch.cuda.is_available():
        return "CUDA graphs need a GPU, and torch sees none here"
    return ""


def digest(tensors: Iterable[Tensor]) -> str:
    """A hash of the bytes of tensors, their types and their shapes, in order: equal only if every bit is."""
    hashed = xxhash.xxh3_128()
    for tensor in tensors:
        held = tensor.detach().cpu().contiguous()
        hashed.update(f"{held.dtype} {tuple(held.shape)};".encode())
        hashed.update(ctypes.string_at(held.data_ptr(), held.numel() * held.element_size()))
    return hashed.hexdigest()


def play(runner: Runner, rounds: int) -> list[str]:
    """The digest of each round."""
    return [digest(runner.round(number)) for number in range(rounds)]


@dataclass
class Counted:
    """How many graphs were captured."""

    captured: int = 0


@contextmanager
def counted() -> Iterator[Counted]:
    """Count the captures of torch's own class, each of which makes one executable."""
    found = Counted()
    own: Any = torch.cuda.CUDAGraph
    original = own.capture_end

    def capture_end(self: Any) -> None:
        original(self)
        found.captured += 1

    own.capture_end = capture_end
    try:
        yield found
    finally:
        own.capture_end = original


def _run(example: Example, device: torch.device, small: bool, rounds: int) -> tuple[list[str], float, Runner]:
    runner = example.make(device, small)
    torch.cuda.synchronize(device)
    began = time.perf_counter()
    runner.capture()
    torch.cuda.synchronize(device)
    seconds = time.perf_counter() - began
    return play(runner, rounds), seconds, runner


def _released(runner: Runner) -> None:
    torch.cuda.synchronize()
    runner.close()
    gc.collect()


def main(example: Example, arguments: Sequence[str] | None = None) -> int:
    """Run an example without the fold and with it, compare, and say so; the exit code.

    0: every round gave the same bits; 1: one did not; 2: the example cannot run here, and one line says why.
    """
    parser = argparse.ArgumentParser(prog=f"examples/{example.name}.py", description=inspect.getdoc(example.make))
    parser.add_argument("--device", default="cuda", help="a GPU, such as cuda or cuda:1 (default: cuda)")
    parser.add_argument("--rounds", type=int, default=MIN_ROUNDS, help=f"at least {MIN_ROUNDS} (default)")
    parser.add_argument("--small", action="store_true", help="fewer and smaller graphs")
    parser.add_argument("--plain", action="store_true", help="run it once and without a word of the fold, as its user would")
    options = parser.parse_args(arguments)
    if options.rounds < MIN_ROUNDS:
        parser.error(f"--rounds {options.rounds} is less than {MIN_ROUNDS}")
    try:
        device = torch.device(options.device)
    except RuntimeError:
        parser.error(f"--device {options.device} is no device of torch's")
    problem = cannot_run(example, device)
    if problem:
        print(f"{example.name}: {problem}", file=sys.stderr)
        return 2
    with torch.cuda.device(device) if device.index is not None else nullcontext():
        return _compared(example, torch.device("cuda", torch.cuda.current_device()), options)


def _compared(example: Example, device: torch.device, options: argparse.Namespace) -> int:
    with counted() as count:
        own, seconds, runner = _run(example, device, options.small, options.rounds)
        _released(runner)
    print(f"{example.name}: captured {count.captured} graphs in {seconds:.2f} s")
    if options.plain:
        return 0
    with graphdedup.interpose() as dedup:
        folded, seconds, runner = _run(example, device, options.small, options.rounds)
        stats = dedup.stats()
        _released(runner)
    print(f"{example.name}: captured {stats.captured} graphs, deduped to {stats.execs} execs in {seconds:.2f} s")
    equal = sum(a == b for a, b in zip(own, folded, strict=True))
    print(f"{example.name}: {equal} of {len(own)} rounds gave the same bits with and without the fold")
    return int(equal != len(own))
