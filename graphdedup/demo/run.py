"""Run the arms of a demo, each where it must run, and put their results side by side."""

from __future__ import annotations

import codecs
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

from pydantic import ValidationError

from graphdedup.demo.arm import MIN_ROUNDS, ArmResult, ArmSpec, run_arm
from graphdedup.demo.model import ModelConfig
from graphdedup.errors import GraphDedupError
from graphdedup.report import DemoModel, DemoResult, ModeResult, Source
from graphdedup.signature import Tier

__all__ = ["DemoRequest", "logging_to_stderr", "run_apart", "run_demo"]

ModeName = Literal["full", "breakable"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoRequest:
    """What a demo run does. ``command`` is kept in the result, so that it names what made it."""

    device: Literal["cpu", "cuda"]
    config: ModelConfig
    sizes: tuple[int, ...]
    modes: tuple[ModeName, ...] = ("full", "breakable")
    rounds: int = MIN_ROUNDS
    seed: int = 0
    tier: Tier = Tier.STRUCTURE
    graphs: str = ""
    """Write the captured graphs to this file; with one mode only."""
    report: str = ""
    """Write the footprint report to this file; with one mode only."""
    compare: bool = False
    """Capture once more without folding, in a process of its own."""
    progress: bool = False
    verbose: bool = False
    command: str = ""


def run_demo(request: DemoRequest) -> DemoResult:
    """Capture, fold, replay and compare in each mode.

    Raises:
        GraphDedupError: the device cannot be used, or an arm's process failed.
        SeamError: a capture or a replay was refused.
    """
    modes: dict[ModeName, ModeResult] = {}
    last: ArmResult | None = None
    for mode in request.modes:
        spec = ArmSpec(
            device=request.device,
            mode=mode,
            folded=True,
            config=request.config,
            sizes=request.sizes,
            rounds=request.rounds,
            seed=request.seed,
            tier=request.tier,
            graphs=request.graphs,
            report=request.report,
            progress=request.progress,
            verbose=request.verbose,
        )
        # On a GPU every arm needs a fresh driver (see run_arm). The simulated device keeps nothing.
        last = run_apart(spec) if request.device == "cuda" else run_arm(spec)
        unfolded = run_apart(spec.model_copy(update={"folded": False, "graphs": "", "report": ""})) if request.compare else None
        modes[mode] = _mode_result(spec, last, unfolded)
    if last is None:
        raise ValueError("a demo needs at least one mode")
    config = request.config.model_dump(exclude={"rope_base"})
    return DemoResult(
        device=last.device,
        driver_version=last.driver_version,
        torch_version=last.torch_version,
        command=request.command,
        seed=request.seed,
        tier=request.tier.value,
        model=DemoModel(**config, parameters=last.parameters),
        modes=modes,
    )


def run_apart(spec: ArmSpec) -> ArmResult:
    """Run one arm in a process of its own; its stderr passes through.

    Raises:
        GraphDedupError: the process failed; the message has the last lines of its stderr.
    """
    with tempfile.TemporaryDirectory(prefix="graphdedup-") as folder:
        output = Path(folder) / "arm.json"
        command = [sys.executable, "-m", "graphdedup.demo", spec.model_dump_json(), str(output)]
        environment = {
            **os.environ,
            # The same packages as here, also where this one is not installed but found by path.
            "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),
            "COLUMNS": str(shutil.get_terminal_size().columns),
        }
        with subprocess.Popen(command, stderr=subprocess.PIPE, env=environment) as process:
            try:
                tail = _pass_through(process.stderr) if process.stderr else ""
                code = process.wait()
            except BaseException:
                process.kill()
                raise
        words = f"the {spec.mode} arm{'' if spec.folded else ' without folding'}"
        if code != 0:
            ended = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
            raise GraphDedupError(
                f"{words} {ended}: {_last_lines(tail) or 'it left no message'}.",
                remedy="mend the cause, or use a smaller --model, fewer --layers or fewer --sizes.",
            )
        try:
            return ArmResult.model_validate_json(output.read_bytes())
        except (OSError, ValidationError) as error:
            raise GraphDedupError(
                f"{words} ended without a result.", remedy="run it again with --verbose and report what it prints."
            ) from error


@contextmanager
def logging_to_stderr(level: int) -> Iterator[None]:
    """Send the log of graphdedup and of the seam to stderr while the context is open, from ``level`` up."""
    handler = logging.StreamHandler()
    plain = "%(message)s" if level >= logging.INFO else "%(asctime)s %(name)s %(levelname)s %(message)s"
    handler.setFormatter(logging.Formatter(plain))
    loggers = [logging.getLogger("graphdedup"), logging.getLogger("seam")]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.addHandler(handler)
        logger.setLevel(level)
    try:
        yield
    finally:
        for logger, old in zip(loggers, before, strict=True):
            logger.removeHandler(handler)
            logger.setLevel(old)


def _mode_result(spec: ArmSpec, folded: ArmResult, unfolded: ArmResult | None) -> ModeResult:
    modelled = folded.exec_device.source is Source.MODELLED
    return ModeResult(
        captured=folded.captured,
        execs=folded.execs,
        peak_execs=folded.peak_execs,
        groups=folded.groups,
        nodes=folded.nodes,
        segments_per_graph=folded.segments_per_graph,
        sizes=tuple(sorted(set(spec.sizes))),
        rounds=spec.rounds,
        compared=folded.compared,
        mismatches=folded.mismatches,
        updates=folded.updates,
        launches=folded.launches,
        refused=folded.refused,
        unfolded=folded.unfolded,
        passed_through=folded.passed_through,
        refusals=folded.refusals,
        bytes_source="modelled" if modelled else "measured",
        bytes_how=_both(folded.exec_device.how, folded.exec_host.how),
        exec_device_bytes=folded.exec_device.bytes,
        exec_host_bytes=folded.exec_host.bytes,
        pool_bytes=folded.pool_bytes,
        capture_seconds=folded.capture_seconds,
        fold_seconds=folded.fold_seconds,
        unfolded_captured=unfolded.captured if unfolded else None,
        unfolded_compared=unfolded.compared if unfolded else None,
        unfolded_mismatches=unfolded.mismatches if unfolded else None,
        unfolded_exec_device_bytes=unfolded.exec_device.bytes if unfolded else None,
        unfolded_exec_host_bytes=unfolded.exec_host.bytes if unfolded else None,
        # Without folding a graph is instantiated by its first replay, so that belongs to the start-up time.
        unfolded_seconds=unfolded.capture_seconds + unfolded.first_replay_seconds if unfolded else None,
    )


def _both(device: str, host: str) -> str:
    return device if device == host else f"device: {device}; host: {host}"


def _pass_through(stream: IO[bytes]) -> str:
    """Copy ``stream`` to stderr as it comes, so that a progress bar moves; returns its last few thousand characters."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    tail = ""
    while chunk := os.read(stream.fileno(), 65536):
        text = decoder.decode(chunk)
        sys.stderr.write(text)
        sys.stderr.flush()
        tail = (tail + text)[-4000:]
    return tail


def _last_lines(tail: str, count: int = 3) -> str:
    """The last lines that say something, in one line and without terminal control sequences."""
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", tail)
    lines = [line.strip() for line in plain.splitlines() if line.strip()]
    return " | ".join(lines[-count:]).rstrip(".")
