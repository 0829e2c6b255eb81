"""Measure folding over workloads and tiers: how many executables, their cost, whether replays are exact, how long they take.

For each workload (tools/fold_workloads.py) and tier one arm: every batch size is captured and folded, then replayed in shuffled
rounds on fresh inputs, and compared in every bit. On a GPU each arm is a process of its own: the driver keeps the memory of
destroyed executables, so a second arm would find room where the first one was. The simulated device's bytes are modelled, and
its times say nothing about a GPU.

Usage: python tools/measure_fold.py [--device cuda|cpu] [--workload NAME,...] [--tier NAME,...] [--sizes 1..256|usual]
[--rounds N] [--json FILE]. Exit 0: what ran was exact (a workload that cannot run here says so); 1: a replay differed, or an
arm failed; 2: nothing can be measured here. FILE is written anew after each arm: a run that is cut short leaves what it had.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING

import torch

if not __package__:  # as a script, which finds its own folder only
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import seam
from graphdedup.demo import PRESETS, parse_sizes
from graphdedup.driver import driver_for
from graphdedup.errors import GraphDedupError, SettingsError
from graphdedup.placement import Placement
from graphdedup.signature import Tier
from seam.errors import SeamError

if TYPE_CHECKING:  # where tools is no package
    from fold_arm import Row, Spec, Strict, run_arm
    from fold_workloads import WORKLOADS
else:
    from tools.fold_arm import Row, Spec, Strict, run_arm
    from tools.fold_workloads import WORKLOADS

__all__ = ["Result", "main"]

_MAX_SEED = 2**62
_COLUMNS = (
    ("workload", 12),
    ("tier", 10),
    ("graphs", 7),
    ("execs", 6),
    ("groups", 7),
    ("kept", 5),
    ("nodes/graph", 12),
    ("wrong/compared", 15),
    ("updates", 8),
    ("exec MB", 8),
    ("own MB", 8),
    ("pool MB", 8),
    ("capture s", 10),
    ("fold s", 7),
)
_TIMES = (
    ("workload", 12),
    ("tier", 10),
    ("bs", 5),
    ("own us", 10),
    ("steady us", 10),
    ("updates", 8),
    ("alternating us", 15),
    ("updates", 8),
    ("with bs", 8),
)


class Result(Strict):
    """What ``--json`` writes."""

    command: str
    device: str
    driver_version: str
    torch_version: str
    model: str
    sizes: tuple[int, ...]
    rounds: int
    replays: int
    seed: int
    rows: tuple[Row, ...]


def _line(columns: Sequence[tuple[str, int]], values: Sequence[object]) -> str:
    """Words to the left, numbers to the right."""
    cells = zip(columns, values, strict=True)
    return " ".join(
        f"{value!s:<{width}}" if name in ("workload", "tier") else f"{value!s:>{width}}" for (name, width), value in cells
    )


def _row_line(row: Row) -> str:
    measured = row.measured
    if measured is None:
        return f"{row.workload:<12} {row.tier:<10} {row.outcome}: {row.reason}"
    return _line(
        _COLUMNS,
        (
            row.workload,
            row.tier,
            measured.captured,
            measured.execs,
            measured.groups,
            measured.kept,
            f"{measured.nodes / measured.captured:.1f}",
            f"{measured.mismatches}/{measured.compared}",
            measured.updates,
            _megabytes(measured.exec_device_bytes),
            _megabytes(measured.own_exec_device_bytes),
            _megabytes(measured.pool_bytes),
            f"{measured.capture_seconds:.2f}",
            f"{measured.fold_seconds:.2f}",
        ),
    )


def _megabytes(count: int | None) -> str:
    return "-" if count is None else f"{count / 1e6:.1f}"


def _time_lines(rows: Sequence[Row]) -> Iterator[str]:
    for row in rows:
        for timing in row.measured.timings if row.measured else ():
            alternating: tuple[object, ...] = ("-", "-", "-")
            if timing.alternating_us is not None:
                alternating = (timing.alternating_us, timing.alternating_update_count, timing.partner)
            steady = (timing.own_us, timing.steady_us, timing.steady_update_count)
            yield _line(_TIMES, (row.workload, row.tier, timing.size, *steady, *alternating))


def _names(what: str, text: str, known: Sequence[str]) -> list[str]:
    """The items of a list on the command line.

    Raises:
        SettingsError: one of them is unknown.
    """
    names = list(dict.fromkeys(text.split(",")))
    for name in names:
        if name not in known:
            raise SettingsError(f"--{what} {name!r} is unknown.", remedy=f"use one of {', '.join(known)}.")
    return names


def _parsed(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    default = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", choices=("cuda", "cpu"), default=default, help="default: cuda where there is one")
    parser.add_argument("--workload", default=",".join(WORKLOADS), help=f"of {', '.join(WORKLOADS)} (default: all)")
    parser.add_argument("--tier", default="structure", help=f"of {', '.join(Tier)} (default: structure)")
    parser.add_argument("--placement", choices=tuple(Placement), default="group", help="default: group")
    parser.add_argument("--refresh-after", type=int, help="replays in a row that make an updated exec new (default: never)")
    parser.add_argument("--sizes", default="usual", help="batch sizes: 1,2,4 or 1..256 or usual (default)")
    parser.add_argument("--layers", type=int, help="another number of layers than the model has")
    parser.add_argument("--compiled-layers", type=int, default=4, help="layers of the compiled workload (default: 4)")
    parser.add_argument("--rounds", type=int, default=3, help="how often each size is compared (default: 3)")
    parser.add_argument("--replays", type=int, default=50, help="replays that a time is the median of (default: 50)")
    parser.add_argument("--seed", type=int, default=0, help="seed of weights, inputs, order and draws (default: 0)")
    parser.add_argument("--json", type=Path, help="also write the result here")
    return parser.parse_args(arguments)


def _specs(options: argparse.Namespace) -> list[Spec]:
    """One for each arm, in the order in which they run.

    Raises:
        SettingsError: an option is off.
    """
    config = PRESETS["0.6b" if options.device == "cuda" else "tiny"]
    for name in ("layers", "compiled_layers", "rounds", "replays", "refresh_after"):
        if getattr(options, name) is not None and not 1 <= getattr(options, name) <= 1024:
            raise SettingsError(
                f"--{name.replace('_', '-')} {getattr(options, name)} is out of range.", remedy="use 1 to 1024."
            )
    if not 0 <= options.seed <= _MAX_SEED:
        raise SettingsError(f"--seed {options.seed} is out of range.", remedy=f"use 0 to {_MAX_SEED}.")
    return [
        Spec(
            device=options.device,
            workload=workload,
            tier=tier,
            placement=options.placement,
            refresh_after=options.refresh_after,
            config=config.with_layers(options.compiled_layers if workload == "compiled" else options.layers or config.layers),
            sizes=parse_sizes(options.sizes),
            rounds=options.rounds,
            replays=options.replays,
            seed=options.seed,
        )
        for workload in _names("workload", options.workload, tuple(WORKLOADS))
        for tier in _names("tier", options.tier, tuple(Tier))
    ]


def _one_process(spec: Spec) -> Row:
    """Run one arm in a process of its own, whose memory nobody used before."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        try:
            return pool.submit(run_arm, spec).result()
        except BrokenProcessPool as error:
            reason = f"its process ended without a result: {error}"
            return Row(workload=spec.workload, tier=spec.tier, placement=spec.placement, outcome="failed", reason=reason)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the arms and print their table; the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = _parsed(given)
    try:
        specs = _specs(options)
        identity = driver_for(seam.default_backend(options.device)).identity
        result = Result(
            command=shlex.join(["python", "tools/measure_fold.py", *given]),
            device=identity.name,
            driver_version=identity.driver_version,
            torch_version=str(torch.__version__),
            model=specs[0].config.name,
            sizes=specs[0].sizes,
            rounds=options.rounds,
            replays=options.replays,
            seed=options.seed,
            rows=(),
        )
        _write(result, options.json)
    except (GraphDedupError, SeamError, ImportError, OSError) as problem:
        print(f"measure_fold: cannot run here: {problem}", file=sys.stderr)
        return 2
    print(_line(_COLUMNS, [name for name, _ in _COLUMNS]), flush=True)
    for spec in specs:
        row = _one_process(spec) if spec.device == "cuda" else run_arm(spec)
        print(_row_line(row), flush=True)
        result = result.model_copy(update={"rows": (*result.rows, row)})
        _write(result, options.json)
    print("", _line(_TIMES, [name for name, _ in _TIMES]), *_time_lines(result.rows), sep="\n")
    return int(any(row.outcome == "failed" or (row.measured and row.measured.mismatches) for row in result.rows))


def _write(result: Result, file: Path | None) -> None:
    if file is not None:
        file.write_text(result.model_dump_json(indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
