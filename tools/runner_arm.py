"""One arm of measure_runners.py: an example's runner, with or without the fold, measured in a process of its own.

``python tools/runner_arm.py SPEC OUTPUT``: SPEC is a ``Spec`` as JSON, and the ``Arm`` is written to OUTPUT as JSON.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import torch

if not __package__:  # as a script, which finds its own folder only
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import seam
from examples.common import Counted, Runner, counted, load, play
from graphdedup import DedupBackend, FoldPolicy, interpose
from graphdedup.driver import driver_for
from graphdedup.footprint import Span
from graphdedup.interpose import Interposition
from graphdedup.reports_file import write_reports

if TYPE_CHECKING:  # where tools is no package
    from fold_arm import Strict
else:
    from tools.fold_arm import Strict

__all__ = ["Arm", "Spec", "main", "run_arm"]

_UNTIMED_STEPS = 3


class Spec(Strict):
    """What one arm does."""

    example: str
    folded: bool
    rounds: int
    steps: int | None = None
    """How many steps a time is the median of; None: as many as the runner says."""
    small: bool = False
    policy: str = "structure"
    report: str = ""
    """Write the footprint report to this file."""


class Arm(Strict):
    """What one arm measured. ``device_bytes`` and ``host_bytes`` grew over the capture, one replay of each graph included."""

    device: str
    driver_version: str
    torch_version: str
    step_is: str
    captured: int
    execs: int
    kept: int
    """Graphs that keep torch's own executable, which without the fold are all."""
    replay_updates: int
    launches: int
    device_bytes: int | None
    """Used device memory less what torch's allocator reserved: executables, and modules that were loaded meanwhile. None
    where there is no GPU."""
    reserved_bytes: int | None
    """What torch's allocator reserved."""
    host_bytes: int
    """Resident memory of the process: executables, graphs that are kept, and whatever else the capture left there."""
    startup_seconds: float
    step_us: float
    """Median from an idle device to the end of a step."""
    steps: int
    digests: tuple[str, ...]
    """Of the outputs of each round."""


def run_arm(spec: Spec, device: torch.device | None = None) -> Arm:
    """Set a runner up, capture, play the rounds and time the steps, in this process.

    On a GPU run one arm per process: the driver keeps the memory of destroyed executables, so a second arm would find room
    where the first one was.

    Args:
        spec: what to do.
        device: where; None: the current GPU.
    """
    if device is None:
        device = torch.device("cuda", torch.cuda.current_device())
    example = load(spec.example)
    identity = driver_for(seam.default_backend(device.type)).identity
    with ExitStack() as scope:
        count: Counted | None = None
        dedup: Interposition | None = None
        if spec.folded:
            # What an update carries is measured once for a machine, and that is no part of a runner's start-up.
            DedupBackend(seam.default_backend(device.type), FoldPolicy.of(spec.policy), enabled=True)
            dedup = scope.enter_context(interpose(spec.policy))
        else:
            count = scope.enter_context(counted())
        runner = example.make(device, spec.small)
        torch.cuda.synchronize(device)
        span, began = Span.begin(device), time.perf_counter()
        runner.capture()
        torch.cuda.synchronize(device)
        seconds, grown = time.perf_counter() - began, span.end()
        digests = play(runner, spec.rounds)
        before = dedup.stats() if dedup is not None else None
        steps = spec.steps or runner.timed_steps
        step_us = _median_us(runner, steps, lambda: torch.cuda.synchronize(device))
        stats = dedup.stats() if dedup is not None else None
        captured = stats.captured if stats is not None else count.captured if count is not None else 0
        if dedup is not None and spec.report:
            write_reports(dedup, spec.report)
        arm = Arm(
            device=identity.name,
            driver_version=identity.driver_version,
            torch_version=str(torch.__version__),
            step_is=runner.step_is,
            captured=captured,
            execs=stats.execs if stats is not None else captured,
            kept=stats.passed_through if stats is not None else captured,
            replay_updates=stats.replay_updates - before.replay_updates if stats is not None and before is not None else 0,
            launches=stats.launches - before.launches if stats is not None and before is not None else 0,
            device_bytes=grown.exec_device_bytes,
            reserved_bytes=grown.torch_reserved_bytes,
            host_bytes=grown.host_rss_bytes,
            startup_seconds=round(seconds, 3),
            step_us=step_us,
            steps=steps,
            digests=tuple(digests),
        )
        runner.close()
    return arm


def _median_us(runner: Runner, steps: int, settle: Callable[[], None]) -> float:
    """Of the steps' own times where the runner tells them, else of the time to the end of each."""
    times: list[float] = []
    for number in range(_UNTIMED_STEPS + steps):
        settle()
        began = time.perf_counter()
        told = runner.step(number)
        settle()
        times.append(told if told is not None else time.perf_counter() - began)
    return round(statistics.median(times[_UNTIMED_STEPS:]) * 1e6, 1)


def main(arguments: list[str]) -> int:
    """Run the arm that ``arguments`` describe."""
    Path(arguments[1]).write_text(run_arm(Spec.model_validate_json(arguments[0])).model_dump_json(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
