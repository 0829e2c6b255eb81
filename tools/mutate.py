"""Prove that the tests can fail: break a rule on purpose, run the tests that guard it, and expect red.

The breaks are the table in ``mutations.py``. Each is applied to a copy of the tree of its own, so that the tree is never
touched and one break cannot leak into the next. A break that cannot be found exactly once, or whose module no longer
imports, proves nothing and counts as a failure of the table; so does a target that selects no test. Before any of it all
targets run once on an unbroken copy: a test that is red anyway proves nothing either.

Usage: python tools/mutate.py [--only S2,D6] [--list] [--jobs N] [--timeout SECONDS] [--json FILE].
Exit 0: every break was noticed; 1: one was not, or could not be tried; 2: the unbroken tests are not green, or bad usage.
"""

from __future__ import annotations

import argparse
import enum
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from mutations import MUTATIONS, Mutation

ROOT = Path(__file__).resolve().parent.parent
LEFT_OUT = shutil.ignore_patterns(".*", "__pycache__", "build", "dist", "*.egg-info", "reports")
PYTEST = ("-x", "-q", "-p", "no:cacheprovider")
NOT_IMPORTED, NOT_THE_COPY = 90, 91

# One process per run: it imports the broken module, makes sure that it is the copy's and not an installed one, and tests.
RUNNER = f"""
import importlib, pathlib, sys
root, modules, *arguments = sys.argv[1:]
for name in filter(None, modules.split(",")):
    try:
        module = importlib.import_module(name)
    except BaseException as error:
        print(f"{{type(error).__name__}}: {{error}}")
        sys.exit({NOT_IMPORTED})
    if pathlib.Path(root) not in pathlib.Path(module.__file__).resolve().parents:
        print(f"{{name}} came from {{module.__file__}}")
        sys.exit({NOT_THE_COPY})
import pytest
sys.exit(int(pytest.main(arguments)))
"""


class Outcome(enum.StrEnum):
    """What became of a break. Only the first is good."""

    RED = "red"
    GREEN = "GREEN"
    NOT_APPLIED = "NOT APPLIED"
    NOT_IMPORTED = "NO IMPORT"
    NOT_RUN = "NOT RUN"


@dataclass(frozen=True, slots=True)
class Result:
    """One break and what became of it; ``noticed_by`` is the first test that failed, or why there is none."""

    rule: str
    breaks: str
    file: str
    outcome: Outcome
    noticed_by: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Run:
    """One run of pytest: its exit status, or None when it ran out of time, and what it printed."""

    status: int | None
    output: str

    @property
    def last_line(self) -> str:
        """The last line that says anything."""
        return next((line.strip() for line in reversed(self.output.splitlines()) if line.strip()), "")

    @property
    def first_failure(self) -> str:
        """The name of the first test that failed, without its folder; empty when pytest named none."""
        lines = [line for line in self.output.splitlines() if line.startswith(("FAILED ", "ERROR "))]
        return lines[0].split()[1].rpartition("/")[2] if lines else ""


@contextmanager
def copied_tree() -> Iterator[Path]:
    """A copy of the tree, without caches and environments, that goes when the context ends."""
    with tempfile.TemporaryDirectory(prefix="mutate-") as folder:
        copy = Path(folder).resolve() / "tree"
        shutil.copytree(ROOT, copy, ignore=LEFT_OUT)
        yield copy


def run_tests(tree: Path, modules: Sequence[str], targets: Sequence[str], timeout_s: float) -> Run:
    """Import ``modules`` from ``tree`` and run ``targets`` there. Out of time, the run and all that it started are ended."""
    environment = os.environ | {"PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-c", RUNNER, str(tree), ",".join(modules), *PYTEST, *targets]
    process = subprocess.Popen(
        command,
        cwd=tree,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,  # a group of its own: tests start processes that would outlive a kill of this one
    )
    try:
        output, _ = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        return Run(None, "")
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    return Run(process.returncode, output)


def module_of(file: str) -> str:
    """The module that a file of the tree is: ``"seam/__init__.py"`` is ``"seam"``. Empty for a file that is none."""
    if not file.endswith(".py"):
        return ""
    return file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def verdict(run: Run) -> tuple[Outcome, str]:
    """What a run on a broken tree shows. Red is a failed test, a crash or a hang; a collection error is not."""
    if run.status is None:
        return Outcome.RED, "(out of time)"
    if run.status < 0:
        return Outcome.RED, f"(killed by signal {-run.status})"
    if run.status == 0:
        return Outcome.GREEN, "nothing"
    if run.status == 1 and run.first_failure:
        return Outcome.RED, run.first_failure
    if run.status in (NOT_IMPORTED, NOT_THE_COPY):
        return Outcome.NOT_IMPORTED, run.last_line
    return Outcome.NOT_RUN, f"pytest exit {run.status}: {run.last_line}"


def try_mutation(mutation: Mutation, timeout_s: float) -> Result:
    """Break a copy of the tree and run the break's targets."""
    began = time.perf_counter()

    def result(outcome: Outcome, noticed_by: str) -> Result:
        seconds = round(time.perf_counter() - began, 2)
        return Result(mutation.rule, mutation.breaks, mutation.file, outcome, noticed_by, seconds)

    with copied_tree() as tree:
        file = tree / mutation.file
        text = file.read_text(encoding="utf-8") if file.is_file() else ""
        found = text.count(mutation.old)
        if found != 1 or mutation.old == mutation.new:
            return result(Outcome.NOT_APPLIED, f"its text was found {found} times in {mutation.file}")
        file.write_text(text.replace(mutation.old, mutation.new), encoding="utf-8")
        return result(*verdict(run_tests(tree, [module_of(mutation.file)], mutation.targets, timeout_s)))


def unbroken(mutations: Sequence[Mutation], timeout_s: float) -> Run:
    """Run every target of ``mutations`` once, together, on an unbroken copy."""
    targets = sorted({target for mutation in mutations for target in mutation.targets})
    modules = sorted({module_of(mutation.file) for mutation in mutations})
    with copied_tree() as tree:
        return run_tests(tree, modules, targets, timeout_s)


def row(result: Result) -> str:
    """One line of the table."""
    return f"{result.rule:<10}  {result.outcome:<11}  {result.breaks:<88}  {result.noticed_by}"


def select(only: str) -> list[Mutation]:
    """The breaks of the rules in a comma-separated list; all of them when it is empty.

    Raises:
        ValueError: a rule without a break; the message lists the rules that have one.
    """
    wanted = {rule.strip() for rule in only.split(",") if rule.strip()}
    known = {mutation.rule for mutation in MUTATIONS}
    if wanted - known:
        raise ValueError(f"no break for {', '.join(sorted(wanted - known))}; there are some for {', '.join(sorted(known))}")
    return [mutation for mutation in MUTATIONS if not wanted or mutation.rule in wanted]


def main() -> int:
    """Try the breaks and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", metavar="RULES", help="comma-separated rules, such as S2,D6")
    parser.add_argument("--list", action="store_true", help="list the breaks and try none")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="how many to try at a time (default: 1)")
    parser.add_argument("--timeout", type=float, default=120.0, metavar="S", help="seconds a run may take (default: 120)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the results here")
    arguments = parser.parse_args()
    try:
        chosen = select(arguments.only)
    except ValueError as error:
        parser.error(str(error))
    if arguments.jobs < 1 or arguments.timeout <= 0:
        parser.error("--jobs and --timeout must be positive")
    if arguments.list:
        for mutation in chosen:
            print(f"{mutation.rule:<10}  {mutation.file:<32}  {mutation.breaks}")
        return 0
    before = unbroken(chosen, max(arguments.timeout, 300.0))
    if before.status != 0:
        state = "ran out of time" if before.status is None else f"pytest exit {before.status}"
        print(f"mutate: the unbroken tests are not green ({state}); mend them first\n{before.output}", file=sys.stderr)
        return 2
    print(f"unbroken: {before.last_line}", flush=True)
    results = []
    with ThreadPoolExecutor(arguments.jobs) as workers:
        for result in workers.map(lambda mutation: try_mutation(mutation, arguments.timeout), chosen):
            print(row(result), flush=True)
            results.append(result)
    good = sum(result.outcome is Outcome.RED for result in results)
    print(f"{good} of {len(results)} breaks were noticed")
    if arguments.json:
        document = {
            "command": "python tools/mutate.py",
            "unbroken": before.last_line,
            "breaks": [asdict(one) for one in results],
        }
        arguments.json.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    return int(good != len(results))


if __name__ == "__main__":
    sys.exit(main())
