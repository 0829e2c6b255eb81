"""One registry for each device and policy, sessions by name, and the digest of the fold plan."""

from __future__ import annotations

import gc
import logging
import subprocess
import sys
import weakref

import pytest
import torch

import seam
from graphdedup import DedupBackend, FoldPolicy, GraphDedupError, snapshot
from graphdedup.capabilities import Capabilities
from graphdedup.plan import plan_digest
from graphdedup.session import LATEST, EndedSessions, SealedSession
from graphdedup.stats import SessionStats
from seam.backend import SegmentInfo
from seam.simulated import SimulatedBackend, SimulatedDevice, Stream
from seam.simulated import stream as on_stream
from tests.unit.fold.bench import Bench


def capture(backend: DedupBackend, size: int, steps: int = 1, label: str = "") -> seam.BreakableGraph:
    x = torch.zeros(size)
    graph = seam.BreakableGraph(backend, label=label)
    with seam.capture(graph):
        for _ in range(steps):
            x = x + 1
    return graph


def test_backends_of_one_device_share_executables_and_counters() -> None:
    """Decode and draft, each with a runner of its own, fold onto one executable; the last one to close frees it."""
    device = SimulatedDevice(8 << 20)
    decode, draft = (DedupBackend(SimulatedBackend(device), enabled=True) for _ in range(2))
    assert decode.registry is draft.registry
    with decode.session("decode"):
        graphs = [capture(decode, size) for size in (8, 4)]
    with draft.session("draft"):
        graphs += [capture(draft, size, steps) for size, steps in ((2, 1), (2, 2))]
    assert device.live_exec_count == decode.stats().execs == 2
    assert decode.stats() == draft.stats()
    assert draft.stats().sessions == (SessionStats("decode", 2, 1), SessionStats("draft", 2, 2))
    assert [(row.name, row.captured, row.execs) for row in decode.report().sessions] == [("decode", 2, 1), ("draft", 2, 2)]
    for graph in graphs[:3]:
        graph.close()
    assert draft.stats().sessions == (SessionStats("draft", 1, 1),)
    graphs[3].close()
    assert device.live_exec_count == 0


def test_another_policy_or_another_device_is_another_registry() -> None:
    device = SimulatedDevice(8 << 20)
    first = DedupBackend(SimulatedBackend(device), enabled=True)
    others = [
        DedupBackend(SimulatedBackend(device), "exact", enabled=True),
        DedupBackend(SimulatedBackend(device), FoldPolicy(max_execs=3), enabled=True),
        DedupBackend(SimulatedBackend(SimulatedDevice(8 << 20)), enabled=True),
    ]
    registries = {id(backend.registry) for backend in (first, *others)}
    assert len(registries) == 4
    assert DedupBackend(SimulatedBackend(device), FoldPolicy(), enabled=True).registry is first.registry


def test_a_registry_goes_with_the_last_backend_and_graph() -> None:
    device = SimulatedDevice(8 << 20)
    backend = DedupBackend(SimulatedBackend(device), enabled=True)
    graph = capture(backend, 4)
    kept = weakref.ref(backend.registry)  # type: ignore[arg-type]
    del backend
    gc.collect()
    assert kept() is not None, "the graph uses it"
    graph.close()
    del graph
    gc.collect()
    assert kept() is None


PLAN = """
import torch, seam
from graphdedup import DedupBackend
from seam.simulated import SimulatedBackend, SimulatedDevice

padding = [bytearray({padding}) for _ in range(3)]  # other addresses than in the process next door
backend = DedupBackend(SimulatedBackend(SimulatedDevice({memory} << 20)), "{tier}", enabled=True)
with backend.session("decode"):
    graphs = []
    for size in (100_000, 4):
        x = torch.zeros(size)
        graph = seam.BreakableGraph(backend, label=f"bs={{size}}")
        with seam.capture(graph):
            y = x {operator} 1
        graphs.append(graph)
print(backend.plan_digest())
"""


def digest(padding: int = 0, memory: int = 8, tier: str = "structure", operator: str = "+") -> str:
    code = PLAN.format(padding=padding, memory=memory, tier=tier, operator=operator)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120).stdout.strip()


def test_the_digest_of_a_plan_is_equal_in_every_process_that_folds_alike() -> None:
    """Addresses and handles differ between the processes; another tier makes two executables of two sizes, not one."""
    same = digest()
    assert len(same) == 32
    assert digest(padding=12345, memory=16) == same
    assert digest(tier="exact") != same


def test_the_digest_tells_what_was_captured_and_what_is_alive() -> None:
    backend = DedupBackend(SimulatedBackend(SimulatedDevice(8 << 20)), enabled=True)
    graphs = [capture(backend, 4, label="a"), capture(backend, 2, label="b")]
    both = backend.plan_digest()
    for _ in range(3):
        for graph in graphs:
            graph.replay()
    assert backend.plan_digest() == both, "replays are no part of the plan"
    graphs[1].close()
    one = backend.plan_digest()
    assert one != both
    again = capture(backend, 64, label="b")
    assert backend.plan_digest() == both, "what an address or a size is does not matter"
    again.close()
    longer = capture(backend, 2, steps=2, label="b")
    assert backend.plan_digest() not in (both, one)
    for graph in (graphs[0], longer):
        graph.close()


def test_switched_off_there_is_no_plan() -> None:
    with pytest.raises(GraphDedupError, match=r"switched off: there is no plan.*D14.*GRAPHDEDUP_DISABLE"):
        DedupBackend(SimulatedBackend(SimulatedDevice(8 << 20)), enabled=False).plan_digest()


def test_backends_that_know_other_things_of_a_device_do_not_share() -> None:
    """D3: graphs that are equal by one measure may not be by the other."""
    device = SimulatedDevice(8 << 20)
    first = DedupBackend(SimulatedBackend(device), enabled=True)
    assert first.registry is not None
    unknown = Capabilities.unknown(first.registry.driver.identity, "for a test")
    second, third = (DedupBackend(SimulatedBackend(device), enabled=True, capabilities=unknown) for _ in range(2))
    assert second.registry is third.registry is not first.registry


def test_a_session_counts_the_executables_that_its_graphs_run_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two where a group was replayed on two streams at once."""
    bench = Bench()
    members = []
    for value in (1, 2):
        graph, out = bench.graph(value)
        members.append(bench.registry.fold(graph, SegmentInfo(), session="decode"))
        bench.outs[members[-1].id] = out, value
    assert snapshot.stats(bench.registry).sessions == (SessionStats("decode", 2, 1),)
    with on_stream(Stream()):
        bench.check(members[0])
    handle = members[0].group.executables[0].handle  # type: ignore[union-attr]
    monkeypatch.setattr(bench.driver, "runs_elsewhere", lambda executable, stream: executable is handle)
    with on_stream(Stream()):
        bench.check(members[1])
    assert snapshot.stats(bench.registry).sessions == (SessionStats("decode", 2, 2),)


def test_a_session_that_captured_nothing_leaves_no_trace(caplog: pytest.LogCaptureFixture) -> None:
    backend = DedupBackend(SimulatedBackend(SimulatedDevice(8 << 20)), enabled=True)
    with caplog.at_level(logging.INFO, logger="graphdedup"), backend.session("decode"):
        pass
    assert caplog.records == []
    assert backend.report().sessions == ()


def test_of_many_ended_sessions_the_latest_are_kept_and_all_are_counted() -> None:
    ended = EndedSessions()
    for number in range(LATEST + 44):
        ended.add(SealedSession(f"burst {number}", 1, 1, None if number % 2 else 3))
    assert [session.name for session in ended.latest] == [f"burst {number}" for number in range(44, LATEST + 44)]
    assert ended.totals == (300, 150 * 3)


def test_all_that_a_graph_is_called_and_is_counts_in_the_digest() -> None:
    """With one graph there is one group, so nothing else tells these plans apart."""

    def plan(nodes: int = 1, position: int = 0, label: str = "a", session: str = "") -> str:
        bench = Bench()
        bench.registry.fold(bench.graph(1, nodes=nodes)[0], SegmentInfo(position, label), session=session)
        return plan_digest(bench.registry.members.values())

    plans = [plan(), plan(nodes=2), plan(position=1), plan(label="b"), plan(session="decode")]
    assert len(set(plans)) == len(plans)
    assert plan() == plans[0]
