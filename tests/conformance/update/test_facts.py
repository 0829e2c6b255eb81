"""What else a driver does around updates: the probe's facts, on both devices."""

from __future__ import annotations

import pytest

from graphdedup.probe.bench import Bench
from graphdedup.probe.bench_simulated import SimulatedBench
from graphdedup.probe.measure import FACTS

EXPECTED = {
    "a refused update leaves an error behind": "no",
    "an update is legal while the executable runs": "yes",
    "two launches of one executable overlap": "no",
    "launches of two executables overlap": "yes",
    "nodes are told in creation order": "yes",
    "a disabled node stays disabled": "yes",
    "a graph with memory nodes has two executables": "no",
    "instantiate flags of torch": "1",
}
"""As an H200 with driver 580.159 answered."""
TRIES = 5
"""A busy host may let a launch end before the next call is made; then there was nothing to see."""


def test_every_fact_is_expected() -> None:
    """D3: a fact without an expected answer is a mistake of this file."""
    assert FACTS.keys() == EXPECTED.keys()


@pytest.mark.parametrize("name", EXPECTED)
def test_a_fact_is_as_measured(name: str, bench: Bench, measured: bool) -> None:
    """D5, D10, D11, D13: on the GPU that was measured, and on the simulated device that stands for it."""
    if not measured:
        pytest.skip("the answers are those of compute capability 9.0 with a driver of branch 580")
    if name == "launches of two executables overlap" and isinstance(bench, SimulatedBench):
        pytest.skip("its launches overlap when the host's threads do, which nobody promises")
    seen = [FACTS[name](bench)]
    while seen[-1][0] == "unknown" and len(seen) < TRIES:
        seen.append(FACTS[name](bench))
    assert seen[-1][0] == EXPECTED[name], seen
