"""Each example, small: with the fold under it every result has the same bits, and it holds fewer executables."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.gpu

ROOT = Path(__file__).resolve().parents[2]
FOLDS = {"ladder", "nano_runner", "graphed_callables", "breakable_peer", "transformers_batching", "reduce_overhead"}


@pytest.mark.parametrize("name", sorted(FOLDS))
def test_an_example_computes_the_same_with_fewer_executables(name: str) -> None:
    command = [sys.executable, "-m", f"examples.{name}", "--small"]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    if ran.returncode == 2 and "this example needs" in ran.stderr:
        pytest.skip(ran.stderr.strip())
    assert ran.returncode == 0, (ran.stdout + ran.stderr)[-3000:]
    words = ran.stdout.split()  # captured N graphs, deduped to M execs; 0 of R results differ
    at = words.index("captured")
    captured, execs, results = int(words[at + 1]), int(words[at + 5]), int(words[at + 9])
    assert results >= 6
    assert execs < captured
