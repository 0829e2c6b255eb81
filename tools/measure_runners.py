"""Measure the examples with and without the fold: graphs, executables, bytes, start-up, step time, equality in every bit.

For each example (examples/) two arms, each in a process of its own: the driver keeps the memory of destroyed executables, so a
second arm in one process would find room where the first one was. Both arms play the same rounds on equal inputs, and the bytes
of every output are compared by their hashes.

Usage: python tools/measure_runners.py [--only NAME,...] [--rounds N] [--steps N] [--policy P] [--small] [--json FILE]
[--report FILE]. Exit 0: what ran was equal (an example whose package is missing says so); 1: outputs differ, or an arm failed;
2: nothing can be measured here. FILE is written anew after each example: a run that is cut short leaves what it had.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch
from pydantic import ValidationError

if not __package__:  # as a script, which finds its own folder only
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from examples.common import MIN_ROUNDS, NAMES, cannot_run, load
from graphdedup import FoldPolicy
from graphdedup.errors import SettingsError

if TYPE_CHECKING:  # where tools is no package
    from fold_arm import Strict
    from runner_arm import Arm, Spec
else:
    from tools.fold_arm import Strict
    from tools.runner_arm import Arm, Spec

__all__ = ["ArmFailed", "Result", "Row", "main", "run_apart"]

_PATIENCE_SECONDS = 180
_KEPT_CHARACTERS = 400


class Row(Strict):
    """One example: what its arms measured, or why they did not."""

    example: str
    outcome: Literal["measured", "not run", "failed"]
    reason: str = ""
    plain: Arm | None = None
    folded: Arm | None = None
    equal_rounds: int | None = None
    """Rounds in which both arms put out the same bytes."""


class Result(Strict):
    """What ``--json`` writes."""

    command: str
    device: str
    driver_version: str
    torch_version: str
    rounds: int
    policy: str
    small: bool
    rows: tuple[Row, ...]


class ArmFailed(Exception):
    """An arm that left no result, with the end of what it said."""


def run_apart(spec: Spec) -> Arm:
    """Run one arm in a process of its own.

    Raises:
        ArmFailed: it failed, or took too long.
    """
    with tempfile.TemporaryDirectory(prefix="graphdedup-") as folder:
        output = Path(folder) / "arm.json"
        command = [sys.executable, str(Path(__file__).with_name("runner_arm.py")), spec.model_dump_json(), str(output)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, errors="replace", timeout=_PATIENCE_SECONDS, env=environment
            )
        except subprocess.TimeoutExpired as error:
            raise ArmFailed(f"it took longer than {_PATIENCE_SECONDS} s") from error
        if done.returncode != 0:
            ended = f"killed by signal {-done.returncode}: " if done.returncode < 0 else ""
            raise ArmFailed(ended + (done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}"))
        try:
            return Arm.model_validate_json(output.read_bytes())
        except (OSError, ValidationError) as error:
            raise ArmFailed(f"it ended without a result: {error}") from error


def measured(spec: Spec, run: Callable[[Spec], Arm]) -> Row:
    """Both arms of one example. ``spec`` is the folded one's."""
    missing = cannot_run(load(spec.example), torch.device("cuda"))
    if missing:
        return Row(example=spec.example, outcome="not run", reason=missing)
    arms: dict[bool, Arm] = {}
    for folded in (False, True):
        words = "folded" if folded else "plain"
        try:
            arms[folded] = run(spec.model_copy(update={"folded": folded, "report": spec.report if folded else ""}))
        except ArmFailed as error:
            reason = f"the {words} arm: {str(error)[-_KEPT_CHARACTERS:]}"
            return Row(example=spec.example, outcome="failed", reason=reason, plain=arms.get(False))
    plain, fold = arms[False], arms[True]
    equal = sum(a == b for a, b in zip(plain.digests, fold.digests, strict=True))
    return Row(example=spec.example, outcome="measured", plain=plain, folded=fold, equal_rounds=equal)


_COLUMNS = (
    ("example", 21),
    ("graphs", 6),
    ("execs", 5),
    ("device MB", 15),
    ("host MB", 15),
    ("start-up s", 12),
    ("step us", 19),
    ("equal", 5),
)
"""Two numbers in a column: without the fold / with it."""


def _line(values: Sequence[object]) -> str:
    """The name to the left, numbers to the right."""
    cells = zip(_COLUMNS, values, strict=True)
    return " ".join(f"{value!s:<{width}}" if name == "example" else f"{value!s:>{width}}" for (name, width), value in cells)


def _row_line(row: Row) -> str:
    plain, folded = row.plain, row.folded
    if plain is None or folded is None or row.equal_rounds is None:
        return f"{row.example:<21} {row.outcome}: {' '.join(row.reason.split())}"
    return _line(
        (
            row.example,
            folded.captured,
            folded.execs,
            f"{_megabytes(plain.device_bytes)} / {_megabytes(folded.device_bytes)}",
            f"{_megabytes(plain.host_bytes)} / {_megabytes(folded.host_bytes)}",
            f"{plain.startup_seconds:.2f} / {folded.startup_seconds:.2f}",
            f"{plain.step_us:.1f} / {folded.step_us:.1f}",
            f"{row.equal_rounds}/{len(folded.digests)}",
        )
    )


def _megabytes(count: int | None) -> str:
    return "-" if count is None else f"{count / 1e6:.1f}"


def _parsed(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", default=",".join(NAMES), help=f"of {', '.join(NAMES)} (default: all)")
    parser.add_argument("--rounds", type=int, default=MIN_ROUNDS, help=f"rounds that are compared (default: {MIN_ROUNDS})")
    parser.add_argument("--steps", type=int, help="steps that a time is the median of (default: the example's own)")
    parser.add_argument("--policy", default="structure", help="what may share an executable (default: structure)")
    parser.add_argument("--small", action="store_true", help="fewer and smaller graphs")
    parser.add_argument("--json", type=Path, help="also write the result here")
    parser.add_argument("--report", type=Path, help="write the footprint report of the first example here")
    return parser.parse_args(arguments)


def _specs(options: argparse.Namespace) -> list[Spec]:
    """One for each example.

    Raises:
        SettingsError: an option is off.
    """
    names = list(dict.fromkeys(options.only.split(",")))
    for name in names:
        if name not in NAMES:
            raise SettingsError(f"--only {name!r} is unknown.", remedy=f"use one of {', '.join(NAMES)}.")
    if not MIN_ROUNDS <= options.rounds <= 1024:
        raise SettingsError(f"--rounds {options.rounds} is out of range.", remedy=f"use {MIN_ROUNDS} to 1024.")
    if options.steps is not None and not 1 <= options.steps <= 1_000_000:
        raise SettingsError(f"--steps {options.steps} is out of range.", remedy="use 1 to 1000000.")
    FoldPolicy.of(options.policy)
    return [
        Spec(
            example=name,
            folded=True,
            rounds=options.rounds,
            steps=options.steps,
            small=options.small,
            policy=options.policy,
            report=str(options.report) if options.report is not None and name == names[0] else "",
        )
        for name in names
    ]


def main(arguments: Sequence[str] | None = None, *, run: Callable[[Spec], Arm] = run_apart) -> int:
    """Run the arms and print their table; the exit code. ``run`` runs one arm; for tests."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = _parsed(given)
    try:
        specs = _specs(options)
        if not torch.cuda.is_available():
            raise SettingsError("CUDA graphs need a GPU, and torch sees none here.", remedy="run this where there is one.")
        result = Result(
            command=shlex.join(["python", "tools/measure_runners.py", *given]),
            device="",
            driver_version="",
            torch_version=str(torch.__version__),
            rounds=options.rounds,
            policy=options.policy,
            small=options.small,
            rows=(),
        )
        _write(result, options.json)
    except (SettingsError, OSError) as problem:
        print(f"measure_runners: cannot run here: {problem}", file=sys.stderr)
        return 2
    print(_line([name for name, _ in _COLUMNS]), flush=True)
    for spec in specs:
        row = measured(spec, run)
        print(_row_line(row), flush=True)
        arm = row.plain or row.folded
        seen = {"device": arm.device, "driver_version": arm.driver_version} if arm is not None else {}
        result = result.model_copy(update={**seen, "rows": (*result.rows, row)})
        _write(result, options.json)
    print("two numbers: without the fold / with it")
    return int(any(row.outcome == "failed" or row.equal_rounds not in (None, result.rounds) for row in result.rows))


def _write(result: Result, file: Path | None) -> None:
    if file is not None:
        file.write_text(result.model_dump_json(indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
