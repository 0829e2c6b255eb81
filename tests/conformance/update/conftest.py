"""Benches on both devices, and what is known of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from graphdedup.capabilities import Capabilities
from graphdedup.probe.bench import Bench
from graphdedup.probe.bench_simulated import SimulatedBench
from graphdedup.probe.known import probe_in_child, probe_profile
from graphdedup.probe.questions import ARENA


@pytest.fixture(scope="module", params=["simulated", pytest.param("cuda", marks=pytest.mark.gpu)])
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    """A bench of each kind, one for all tests of a file: the kernels are compiled once. Nothing may be left when it closes."""
    if request.param == "simulated":
        simulated = SimulatedBench(arena=ARENA)
        yield simulated
        simulated.close()
        assert simulated.device.live_exec_count == 0, "an executable was left behind"
        return
    from graphdedup.probe.bench_cuda import CudaBench

    made = CudaBench(arena=ARENA)
    yield made
    made.close()


@pytest.fixture(scope="module")
def capabilities(bench: Bench) -> Capabilities:
    """What was measured of the bench's driver: on another simulated device, or in another process."""
    found = probe_profile(bench.device.profile) if isinstance(bench, SimulatedBench) else _probed(bench)
    assert found.answers, found.source
    return found


@pytest.fixture(scope="module")
def measured(bench: Bench) -> bool:
    """Whether the device is of the kind that the expectations were measured on: an H200 with a driver of branch 580."""
    identity = bench.driver.identity
    return (identity.compute_capability, identity.driver_branch) == ((9, 0), 580)


_known: dict[int, Capabilities] = {}


def _probed(bench: Bench) -> Capabilities:
    """One child process for all files."""
    identity = bench.driver.identity
    if identity.ordinal not in _known:
        _known[identity.ordinal] = probe_in_child(identity)
    return _known[identity.ordinal]
