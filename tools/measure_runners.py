"""Measure the runners of examples/ as they are and with the fold under them.

Each arm, a runner plain or folded, is a process of its own: it captures, replays in shuffled rounds, and is timed. The results
of both arms are compared by a digest of every byte.

Usage: python tools/measure_runners.py [--only NAME,...] [--small] [--rounds N] [--steps N] [--json FILE] [--report FILE].
``--report`` writes the footprint report of the last folded runner. Exit 0: what ran was equal (a runner whose package is
missing says so); 1: results differed, or an arm failed; 2: nothing can be measured here.
"""

from __future__ import annotations

import argparse
import importlib
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from multiprocessing import get_context
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch
import xxhash

if not __package__:  # as a script, which finds its own folder only
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from examples.common import NeedsPackage, Options, counted
from graphdedup import interpose
from graphdedup.footprint import Span
from graphdedup.report import FootprintReport

if TYPE_CHECKING:  # where tools is no package
    from fold_arm import Strict
    from fold_workloads import settle
else:
    from tools.fold_arm import Strict
    from tools.fold_workloads import settle

__all__ = ["RUNNERS", "Arm", "Result", "Spec", "digest", "main", "run_arm", "table"]

RUNNERS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "ladder": ("examples.ladder", "Ladder"),
        "nano_runner": ("examples.nano_runner", "NanoRunner"),
        "reduce_overhead": ("examples.reduce_overhead", "ReduceOverhead"),
        "graphed_callables": ("examples.graphed_callables", "GraphedCallables"),
        "transformers_batching": ("examples.transformers_batching", "TransformersBatching"),
        "breakable_peer": ("examples.breakable_peer", "BreakablePeer"),
    }
)
"""Module and class by name."""


class Spec(Strict):
    """What one arm does."""

    name: str
    folded: bool
    small: bool = False
    rounds: int = 3
    steps: int = 50


class Arm(Strict):
    """What one arm measured. Bytes are of executables, and of what the driver loads while they are made."""

    name: str
    folded: bool
    captured: int = 0
    execs: int = 0
    passed_through: int = 0
    device_bytes: int | None = None
    host_bytes: int | None = None
    capture_seconds: float = 0.0
    step_us: float = 0.0
    digests: tuple[str, ...] = ()
    """One for each round, over every byte of its results."""
    report: str = ""
    """The footprint report as JSON; of a folded arm."""
    skipped: str = ""
    failed: str = ""


class Result(Strict):
    """What ``--json`` writes. ``equal`` has, by runner, whether both arms gave the same bytes in every round."""

    command: str
    device: str
    driver_version: str
    torch_version: str
    arms: tuple[Arm, ...]
    equal: Mapping[str, bool]


def digest(results: Iterable[torch.Tensor]) -> str:
    """xxh3_128 of shapes, types and bytes, in hexadecimal digits."""
    held = xxhash.xxh3_128()
    for one in results:
        held.update(f"{one.dtype} {tuple(one.shape)};".encode())
        held.update(one.detach().contiguous().cpu().view(torch.uint8).numpy().tobytes() if one.numel() else b"")
    return held.hexdigest()


def run_arm(spec: Spec) -> Arm:
    """Capture, compare by digest, time."""
    module, name = RUNNERS[spec.name]
    device = torch.device("cuda", torch.cuda.current_device())
    with ExitStack() as contexts:
        found = contexts.enter_context(interpose()) if spec.folded else None
        seen = contexts.enter_context(counted())
        try:
            runner = getattr(importlib.import_module(module), name)(Options(small=spec.small))
        except NeedsPackage as missing:
            return Arm(name=spec.name, folded=spec.folded, skipped=str(missing))
        settle(device)
        span, began = Span.begin(device), time.perf_counter()
        runner.capture()
        first = digest(runner.round(0))
        settle(device)
        capture_seconds, grown = time.perf_counter() - began, span.end()
        captured = len(seen)
        rounds = [first, *(digest(runner.round(turn)) for turn in range(1, spec.rounds))]
        step_us = _timed(runner.step, spec.steps)
        stats = found.stats() if found is not None else None
        report: FootprintReport | None = found.report() if found is not None and found.backends else None
        arm = Arm(
            name=spec.name,
            folded=spec.folded,
            captured=captured if stats is None else stats.captured,
            execs=captured if stats is None else stats.execs,
            passed_through=0 if stats is None else stats.passed_through,
            device_bytes=grown.exec_device_bytes,
            host_bytes=grown.host_rss_bytes,
            capture_seconds=round(capture_seconds, 3),
            step_us=round(step_us, 1),
            digests=tuple(rounds),
            report="" if report is None else report.to_json(),
        )
        runner.close()
    return arm


def _timed(step: Callable[[], None], steps: int) -> float:
    """Median microseconds from an idle device to the end of a step."""
    taken = []
    for _ in range(steps):
        torch.cuda.synchronize()
        began = time.perf_counter()
        step()
        torch.cuda.synchronize()
        taken.append((time.perf_counter() - began) * 1e6)
    return statistics.median(taken[len(taken) // 5 :])


def _one_process(spec: Spec) -> Arm:
    """Run one arm in a process of its own; an arm that fails says how."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as executor:
        try:
            return executor.submit(run_arm, spec).result()
        except (BrokenProcessPool, Exception) as error:
            return Arm(name=spec.name, folded=spec.folded, failed=f"{type(error).__name__}: {error}"[-400:])


_COLUMNS = "{:<22} {:<7} {:>8} {:>6} {:>8} {:>10} {:>9} {:>10} {:>11} {:>7}"


def table(arms: Sequence[Arm], equal: Mapping[str, bool]) -> list[str]:
    """One line for each arm; whether the results are equal stands beside the folded one."""
    lines = [
        _COLUMNS.format("runner", "arm", "captured", "execs", "passed", "device MB", "host MB", "capture s", "step us", "equal")
    ]
    for arm in arms:
        which = "folded" if arm.folded else "plain"
        if arm.skipped or arm.failed:
            what = f"not run: {arm.skipped}" if arm.skipped else f"failed: {' '.join(arm.failed.split())}"
            lines.append(f"{arm.name:<22} {which:<7} {what}")
            continue
        told = {True: "yes", False: "NO", None: ""}[equal.get(arm.name) if arm.folded else None]
        lines.append(
            _COLUMNS.format(
                arm.name,
                which,
                arm.captured,
                arm.execs,
                arm.passed_through,
                _megabytes(arm.device_bytes),
                _megabytes(arm.host_bytes),
                f"{arm.capture_seconds:.2f}",
                f"{arm.step_us:.1f}",
                told,
            ).rstrip()
        )
    return lines


def _megabytes(count: int | None) -> str:
    return "-" if count is None else f"{count / 1e6:.1f}"


def _equal(arms: Sequence[Arm]) -> dict[str, bool]:
    """By runner of which both arms ran."""
    ran = {(arm.name, arm.folded): arm.digests for arm in arms if arm.digests}
    names = dict.fromkeys(name for name, _ in ran)
    return {name: ran[name, False] == ran[name, True] for name in names if {(name, False), (name, True)} <= set(ran)}


def _parsed(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", default=",".join(RUNNERS), help=f"of {', '.join(RUNNERS)} (default: all)")
    parser.add_argument("--small", action="store_true", help="fewer and smaller graphs")
    parser.add_argument("--rounds", type=int, default=3, help="how often everything is compared (default: 3)")
    parser.add_argument("--steps", type=int, default=50, help="steps that a time is the median of (default: 50)")
    parser.add_argument("--json", type=Path, help="also write the result here")
    parser.add_argument("--report", type=Path, help="write the footprint report of the last folded runner here")
    options = parser.parse_args(arguments)
    for name in options.only.split(","):
        if name not in RUNNERS:
            parser.error(f"--only {name!r} is unknown; use of {', '.join(RUNNERS)}")
    for name in ("rounds", "steps"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} {getattr(options, name)}; use 1 or more")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the arms and print their table; the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = _parsed(given)
    if not torch.cuda.is_available():
        print("measure_runners: the examples capture CUDA graphs: a GPU is needed", file=sys.stderr)
        return 2
    from graphdedup.driver import driver_for
    from seam import default_backend

    identity: Any = driver_for(default_backend("cuda")).identity
    arms: list[Arm] = []
    for name in options.only.split(","):
        for folded in (False, True):
            spec = Spec(name=name, folded=folded, small=options.small, rounds=options.rounds, steps=options.steps)
            arms.append(_one_process(spec))
            print("\n".join(table(arms, _equal(arms))[-1:]), flush=True)
            if options.report is not None and arms[-1].report:
                options.report.write_text(arms[-1].report + "\n", encoding="utf-8")
            if options.json is not None:
                result = Result(
                    command=shlex.join(["python", "tools/measure_runners.py", *given]),
                    device=identity.name,
                    driver_version=identity.driver_version,
                    torch_version=str(torch.__version__),
                    arms=tuple(arm.model_copy(update={"report": ""}) for arm in arms),
                    equal=_equal(arms),
                )
                options.json.write_text(result.model_dump_json(indent=2) + "\n", encoding="utf-8")
    equal = _equal(arms)
    print("\n" + "\n".join(table(arms, equal)))
    return int(any(arm.failed for arm in arms) or not all(equal.values()))


if __name__ == "__main__":
    sys.exit(main())
