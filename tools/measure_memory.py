"""Measure what a captured ladder adds in memory for activations and for what crosses breaks, against its largest shape alone.

Arms, each in a process of its own on a GPU: ``largest`` captures the largest shape; ``ladder`` all shapes; ``held`` all
shapes with everything that crosses a break, and every output, held for each shape; ``peer`` all shapes by
``breakable-cuda-graphs``, whose attention writes in place, where it is installed. ``ladder`` also predicts its memory
beforehand from two smaller shapes. It and ``peer`` are replayed in shuffled rounds on fresh inputs and compared with eager
bit for bit, while the allocator hands out what is free, and a second ladder is captured into the same pool in between.

Usage: python tools/measure_memory.py [--device cuda|cpu] [--workload decode,prefill] [--sizes LIST] [--layers N] [--rounds N]
[--json FILE]. Exit 0: what ran was exact; 1: a replay differed or an arm failed; 2: nothing can be measured here. The simulated
device's pool is measured as well; it rounds and splits as its own allocator does, which is not a GPU's.
"""

from __future__ import annotations

import argparse
import importlib.util
import random
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

if not __package__:  # as a script, which finds its own folder only
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import seam
from graphdedup import DedupBackend
from graphdedup.demo import parse_sizes
from graphdedup.driver import driver_for
from graphdedup.errors import GraphDedupError, SettingsError
from seam.cuda_memory import pool_bytes
from seam.errors import SeamError

if TYPE_CHECKING:  # where tools is no package
    from fold_arm import Strict
    from fold_workloads import settle
    from memory_peer import PeerLadder
    from memory_workloads import WORKLOADS, Forward
else:
    from tools.fold_arm import Strict
    from tools.fold_workloads import settle
    from tools.memory_peer import PeerLadder
    from tools.memory_workloads import WORKLOADS, Forward

__all__ = ["Arm", "Result", "Spec", "main", "run_arm"]

ARMS = ("largest", "ladder", "held", "peer")
_PEER = "breakable_cuda_graphs"


class Spec(Strict):
    """What one arm does."""

    device: str
    workload: str
    arm: str
    sizes: tuple[int, ...]
    layers: int
    rounds: int


class Arm(Strict):
    """What one arm measured."""

    workload: str
    arm: str
    shapes: int = 0
    graphs: int = 0
    execs: int = 0
    added_bytes: int = 0
    """What all allocator pools reserve after the capture and one replay of each shape, over what they did before it."""
    pool_bytes: int | None = 0
    held_bytes: int = 0
    shared_bytes_largest: int = 0
    """What crosses the breaks of the largest shape in memory that others use too."""
    plan: tuple[tuple[str, int, int | None], ...] = ()
    """Rows of the memory plan: name, predicted and measured bytes."""
    compared: int = 0
    mismatches: int = 0
    capture_seconds: float = 0.0
    failed: str = ""
    skipped: str = ""
    """Why it was not run, through no fault of the arm."""


class Result(Strict):
    """What ``--json`` writes."""

    command: str
    device: str
    driver_version: str
    torch_version: str
    models: Mapping[str, str]
    arms: tuple[Arm, ...]


def run_arm(spec: Spec) -> Arm:
    """Capture, measure, and compare where the arm is a whole ladder that may be replayed in any order."""
    if spec.arm == "peer":
        return _run_peer(spec)
    work = WORKLOADS[spec.workload]
    device = torch.device(spec.device)
    config = work.config(spec.device).model_copy(update={"layers": spec.layers})
    sizes = spec.sizes if spec.arm != "largest" else spec.sizes[-1:]
    backend = DedupBackend(seam.default_backend(spec.device), enabled=True)
    with torch.no_grad():
        forward = work.make(config, device, sizes[-1])
        pool = backend.new_pool()
        if spec.arm == "held":
            pool.ledger = lambda: None  # type: ignore[method-assign]
        captured = _captured(forward, sizes, work.inputs, backend, pool, shares=spec.arm != "held", layers=spec.layers)
        with pool.entered():
            for size in sizes:  # libraries take their memory
                forward(**captured.inputs.views(size))
        plan = captured.plan() if spec.arm == "ladder" and len(sizes) > 1 else None
        before, began = _reserved(backend, device), time.perf_counter()
        captured.capture()
        for size in sizes:
            captured.graph(size).replay()
        settle(device)
        seconds = time.perf_counter() - began
        report = captured.report()
        added = _reserved(backend, device) - before + (report.held_bytes if device.type == "cpu" else 0)
        execs = backend.stats().execs
        compared = mismatches = 0
        if spec.arm == "ladder":

            def second(others: Sequence[int]) -> seam.CapturedForward:
                made = _captured(forward, others, work.inputs, backend, pool, shares=True, layers=spec.layers)
                return made.capture()

            compared, mismatches = _compare(captured, forward, spec, second)
        arm = Arm(
            workload=spec.workload,
            arm=spec.arm,
            shapes=len(sizes),
            graphs=sum(row.segments for row in report.rows),
            execs=execs,
            added_bytes=added,
            pool_bytes=report.pool_bytes,
            held_bytes=report.held_bytes,
            shared_bytes_largest=captured.graph(sizes[-1]).crossing.shared_bytes,
            plan=tuple((row.name, row.predicted_bytes, row.measured_bytes) for row in report.plan.rows)
            if plan is not None and report.plan is not None
            else (),
            compared=compared,
            mismatches=mismatches,
            capture_seconds=round(seconds, 3),
        )
        captured.close()
    return arm


@torch.no_grad()
def _run_peer(spec: Spec) -> Arm:
    """The same with ``breakable-cuda-graphs``."""
    if spec.device != "cuda" or importlib.util.find_spec(_PEER) is None:
        return Arm(workload=spec.workload, arm=spec.arm, skipped="needs a GPU and the package breakable-cuda-graphs")
    work, device = WORKLOADS[spec.workload], torch.device(spec.device)
    config = work.config(spec.device).model_copy(update={"layers": spec.layers})
    forward = work.make(config, device, spec.sizes[-1])
    ladder = PeerLadder(forward, spec.sizes, work.inputs, device)
    ladder.warm_up()
    before, began = _reserved_on(device), time.perf_counter()
    ladder.capture()
    for graph in ladder.graphs.values():
        graph.replay()
    settle(device)
    seconds = time.perf_counter() - began
    added = _reserved_on(device) - before
    held = pool_bytes(torch.cuda.memory_snapshot(), [ladder.pool])
    segments = ladder.segments

    def second(others: Sequence[int]) -> PeerLadder:
        return PeerLadder(forward, others, work.inputs, device, beside=ladder).capture()

    compared, mismatches = _compare(ladder, forward, spec, second)
    ladder.close()
    return Arm(
        workload=spec.workload,
        arm=spec.arm,
        shapes=len(spec.sizes),
        graphs=segments,
        execs=segments,
        added_bytes=added,
        pool_bytes=held,
        compared=compared,
        mismatches=mismatches,
        capture_seconds=round(seconds, 3),
    )


def _captured(
    forward: Forward, sizes: Sequence[int], inputs: Any, backend: DedupBackend, pool: seam.Pool, *, shares: bool, layers: int
) -> seam.CapturedForward:
    return seam.CapturedForward(
        forward,
        sizes,
        inputs,
        config={"decode": "breakable"},
        backend=backend,
        pool=pool,
        share_outputs=shares,
        expect_breaks={"decode": layers},
        label="ladder",
    )


def _compare(
    captured: Callable[..., Any],
    forward: Forward,
    spec: Spec,
    capture_second: Callable[[Sequence[int]], seam.CapturedForward | PeerLadder],
) -> tuple[int, int]:
    """Shuffled rounds; before the second one a ladder of other shapes is captured into the same pool."""
    work, device = WORKLOADS[spec.workload], torch.device(spec.device)
    config = work.config(spec.device)
    generator = torch.Generator().manual_seed(1)
    compared = mismatches = 0
    second: seam.CapturedForward | PeerLadder | None = None
    for turn in range(spec.rounds):
        if turn == 1:
            second = capture_second(sorted({max(1, size - 1) for size in spec.sizes[-3:]}))
        forward.start()
        churn = [torch.full((1 << 20,), float("nan"), device=device) for _ in range(8)]
        for size in random.Random(turn).sample(spec.sizes, len(spec.sizes)):
            live = {name: value.to(device) for name, value in work.fresh(config, size, generator).items()}
            replayed = captured(**live).clone()
            expected = forward(**live)
            compared += 1
            mismatches += not torch.equal(replayed, expected)
        del churn
    if second is not None:
        second.close()
    return compared, mismatches


def _reserved(backend: DedupBackend, device: torch.device) -> int:
    """Bytes that allocators hold on the device for anyone, with what is cached given back."""
    if device.type == "cuda":
        return _reserved_on(device)
    inner: Any = backend.inner
    return int(inner.device.memory.total_reserved_bytes())


def _reserved_on(device: torch.device) -> int:
    settle(device)
    torch.cuda.empty_cache()
    return torch.cuda.memory_reserved(device)


def _one_process(spec: Spec) -> Arm:
    """Run one arm in a process of its own, whose memory nobody used before."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as executor:
        try:
            return executor.submit(run_arm, spec).result()
        except (BrokenProcessPool, GraphDedupError, SeamError, RuntimeError) as error:
            return Arm(workload=spec.workload, arm=spec.arm, failed=f"{type(error).__name__}: {error}"[:400])


def _parsed(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    default = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", choices=("cuda", "cpu"), default=default, help="default: cuda where there is one")
    parser.add_argument("--workload", default=",".join(WORKLOADS), help=f"of {', '.join(WORKLOADS)} (default: all)")
    parser.add_argument("--arm", default=",".join(ARMS), help=f"of {', '.join(ARMS)} (default: all)")
    parser.add_argument("--sizes", help="shapes: 1,2,4 or 1..256 or usual (default: the workload's own)")
    parser.add_argument("--layers", type=int, help="another number of layers than the model has")
    parser.add_argument("--rounds", type=int, default=3, help="how often each shape is compared (default: 3)")
    parser.add_argument("--json", type=Path, help="also write the result here")
    return parser.parse_args(arguments)


def _specs(options: argparse.Namespace) -> list[Spec]:
    """One for each arm.

    Raises:
        SettingsError: an option is off.
    """
    for what, known in (("workload", tuple(WORKLOADS)), ("arm", ARMS)):
        for name in getattr(options, what).split(","):
            if name not in known:
                raise SettingsError(f"--{what} {name!r} is unknown.", remedy=f"use one of {', '.join(known)}.")
    for name in ("layers", "rounds"):
        if getattr(options, name) is not None and not 1 <= getattr(options, name) <= 1024:
            raise SettingsError(f"--{name} {getattr(options, name)} is out of range.", remedy="use 1 to 1024.")
    return [
        Spec(
            device=options.device,
            workload=workload,
            arm=arm,
            sizes=parse_sizes(options.sizes) if options.sizes else WORKLOADS[workload].sizes,
            layers=options.layers or WORKLOADS[workload].config(options.device).layers,
            rounds=options.rounds,
        )
        for workload in dict.fromkeys(options.workload.split(","))
        for arm in dict.fromkeys(options.arm.split(","))
    ]


_COLUMNS = "{:<9} {:<8} {:>7} {:>7} {:>6} {:>10} {:>10} {:>10} {:>12} {:>15} {:>10}"
_HEAD = (
    "workload",
    "arm",
    "shapes",
    "graphs",
    "execs",
    "added MB",
    "pool MB",
    "held MB",
    "of largest",
    "wrong/compared",
    "capture s",
)


def _line(arm: Arm, largest: int | None) -> str:
    if arm.skipped:
        return f"{arm.workload:<9} {arm.arm:<8} not run: {arm.skipped}"
    if arm.failed:
        return f"{arm.workload:<9} {arm.arm:<8} failed: {arm.failed}"
    taken = (arm.added_bytes, arm.pool_bytes, arm.held_bytes)
    megabytes = ["-" if count is None else f"{count / 1e6:.2f}" for count in taken]
    ratio = f"{arm.added_bytes / largest:.2f}x" if largest else "-"
    wrong = f"{arm.mismatches}/{arm.compared}"
    return _COLUMNS.format(
        arm.workload, arm.arm, arm.shapes, arm.graphs, arm.execs, *megabytes, ratio, wrong, f"{arm.capture_seconds:.2f}"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the arms and print their table; the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = _parsed(given)
    try:
        specs = _specs(options)
        identity = driver_for(seam.default_backend(options.device)).identity
    except (GraphDedupError, SeamError, ImportError) as problem:
        print(f"measure_memory: cannot run here: {problem}", file=sys.stderr)
        return 2
    result = Result(
        command=shlex.join(["python", "tools/measure_memory.py", *given]),
        device=identity.name,
        driver_version=identity.driver_version,
        torch_version=str(torch.__version__),
        models={spec.workload: WORKLOADS[spec.workload].config(options.device).name for spec in specs},
        arms=(),
    )
    print(_COLUMNS.format(*_HEAD), flush=True)
    largest: dict[str, int] = {}
    for spec in specs:
        arm = _one_process(spec) if spec.device == "cuda" else run_arm(spec)
        if arm.arm == "largest":
            largest[arm.workload] = arm.added_bytes
        print(_line(arm, largest.get(arm.workload)), flush=True)
        result = result.model_copy(update={"arms": (*result.arms, arm)})
        if options.json is not None:
            options.json.write_text(result.model_dump_json(indent=2) + "\n", encoding="utf-8")
    for arm in result.arms:
        if arm.plan:
            print(f"\n{arm.workload}: predicted and measured bytes")
            for name, predicted, measured in arm.plan:
                off = f"{(predicted - measured) / measured:+.1%}" if measured else "-"
                print(f"  {name:<16} {predicted:>16,} {measured if measured is not None else '-':>16,} {off:>8}")
    return int(any(arm.failed or arm.mismatches for arm in result.arms))


if __name__ == "__main__":
    sys.exit(main())
