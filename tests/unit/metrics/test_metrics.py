"""Prometheus metrics: the counters as they are, cheap, with few labels; and what becomes of sources that go."""

from __future__ import annotations

import gc
import importlib
import logging
import os
import re
import signal
import subprocess
import sys
import threading
import urllib.request
from typing import Any

import pytest
import torch
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

import seam
from graphdedup import DedupBackend, FoldPolicy, GraphDedupError, SessionStats, SettingsError, Stats
from graphdedup.footprint import modelled_exec_bytes
from graphdedup.interpose import Interposition
from graphdedup.metrics import OTHER_SESSIONS, Collector
from seam.simulated import SimulatedBackend, SimulatedDevice
from tests.unit.fold.bench import Bench

COUNTERS = {
    "captured_graphs": "captured",
    "launches": "launches",
    "updates": "updates",
    "replay_updates": "replay_updates",
    "refused_updates": "refused",
    "unfolded_graphs": "unfolded",
    "splits": "splits",
    "evictions": "evictions",
    "refreshes": "refreshes",
    "verified_replays": "verified",
    "mismatches": "mismatches",
    "walk_seconds": "walk_seconds",
    "fold_seconds": "fold_seconds",
    "instantiate_seconds": "instantiate_seconds",
}
GAUGES = {
    "execs": "execs",
    "peak_execs": "peak_execs",
    "groups": "groups",
    "nodes": "nodes",
    "opaque_nodes": "opaque_nodes",
    "passed_through_graphs": "passed_through",
}


def fold(device: SimulatedDevice | None = None, **how: Any) -> DedupBackend:
    return DedupBackend(SimulatedBackend(device or SimulatedDevice(8 << 20)), **{"enabled": True, **how})


def capture(backend: DedupBackend, size: int, session: str = "decode") -> seam.BreakableGraph:
    x = torch.zeros(size)
    graph = seam.BreakableGraph(backend)
    with backend.session(session), seam.capture(graph):
        x + 1
    return graph


def scrape(*collectors: Collector) -> dict[tuple[str, ...], float]:
    """What a scrape tells: (sample, device, session) to value."""
    registry = CollectorRegistry()
    for collector in collectors:
        registry.register(collector)
    return parsed(generate_latest(registry).decode())


def parsed(text: str) -> dict[tuple[str, ...], float]:
    told: dict[tuple[str, ...], float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = tuple(sample.labels[name] for name in ("device", "session") if name in sample.labels)
            assert set(sample.labels) <= {"device", "session"}
            assert (sample.name, *labels) not in told, "a series stands there twice"
            told[(sample.name, *labels)] = sample.value
    return told


def distinct(**change: Any) -> Stats:
    """Counters that are all different."""
    numbers: dict[str, Any] = {name: 10 + index for index, name in enumerate((*COUNTERS.values(), *GAUGES.values()))}
    return Stats(**numbers | {"sessions": (SessionStats("decode", 40, 3), SessionStats("prefill", 2, 1))} | change)


def test_every_counter_and_gauge_has_the_value_of_its_field() -> None:
    collector = Collector()
    collector.add(distinct, device="cuda:3")
    told, stats = scrape(collector), distinct()
    expected = {(f"graphdedup_{name}_total", "cuda:3"): getattr(stats, of) for name, of in COUNTERS.items()}
    expected |= {(f"graphdedup_{name}", "cuda:3"): getattr(stats, of) for name, of in GAUGES.items()}
    expected |= {
        ("graphdedup_graphs", "cuda:3"): 42,
        ("graphdedup_session_graphs", "cuda:3", "decode"): 40,
        ("graphdedup_session_execs", "cuda:3", "decode"): 3,
        ("graphdedup_session_graphs", "cuda:3", "prefill"): 2,
        ("graphdedup_session_execs", "cuda:3", "prefill"): 1,
    }
    assert told == expected


def test_a_live_backend_tells_what_it_does() -> None:
    backend = fold()
    collector = Collector(backend)
    graphs = [capture(backend, size) for size in (8, 4)]
    for graph in graphs * 2:
        graph.replay()
    told = scrape(collector)
    device = "simulated:0"
    assert told["graphdedup_captured_graphs_total", device] == told["graphdedup_graphs", device] == 2
    assert told["graphdedup_execs", device] == 1
    assert told["graphdedup_launches_total", device] == 4
    assert told["graphdedup_replay_updates_total", device] == 4
    assert told["graphdedup_session_graphs", device, "decode"] == 2
    assert told["graphdedup_exec_device_modelled_bytes", device] == modelled_exec_bytes(1)[0]
    assert not any(name[0] == "graphdedup_exec_device_measured_bytes" for name in told), "nothing is measured here"
    for graph in graphs:
        graph.close()
    told = scrape(collector)
    assert (told["graphdedup_graphs", device], told["graphdedup_execs", device]) == (0, 0)
    assert told["graphdedup_captured_graphs_total", device] == 2, "a counter never falls"
    assert told["graphdedup_exec_device_modelled_bytes", device] == 0


def test_with_the_fold_switched_off_graphs_are_told_all_the_same() -> None:
    backend = fold(enabled=False)
    graph = capture(backend, 4)
    told = scrape(Collector(backend))
    assert (told["graphdedup_graphs", "simulated:0"], told["graphdedup_passed_through_graphs", "simulated:0"]) == (1, 1)
    assert not any("bytes" in name[0] for name in told)
    graph.close()


def test_backends_of_one_registry_count_once_and_policies_of_one_device_are_summed() -> None:
    device = SimulatedDevice(8 << 20)
    first, second = fold(device), fold(device)
    assert first.registry is second.registry
    other = fold(device, policy=FoldPolicy(tier="exact"))
    graphs = [capture(backend, 4) for backend in (first, second, other)]
    told = scrape(Collector(first, second, other, first))
    assert told["graphdedup_captured_graphs_total", "simulated:0"] == 3
    assert told["graphdedup_execs", "simulated:0"] == 2
    assert told["graphdedup_session_graphs", "simulated:0", "decode"] == 3
    assert told["graphdedup_exec_device_modelled_bytes", "simulated:0"] == 2 * modelled_exec_bytes(1)[0]
    for graph in graphs:
        graph.close()


def test_session_names_without_end_stay_few_series() -> None:
    many = tuple(SessionStats(f"request {number}", number, 1) for number in range(1, 101))
    collector = Collector(lambda: distinct(sessions=many), max_sessions=2)
    told = {name[2]: value for name, value in scrape(collector).items() if name[0] == "graphdedup_session_graphs"}
    assert told == {"request 100": 100, "request 99": 99, OTHER_SESSIONS: sum(range(1, 99))}
    execs = {name[2]: value for name, value in scrape(collector).items() if name[0] == "graphdedup_session_execs"}
    assert execs == {"request 100": 1, "request 99": 1, OTHER_SESSIONS: 98}


def test_an_interposition_is_told_by_device_and_is_empty_before_a_capture() -> None:
    made = Interposition(FoldPolicy())
    collector = Collector(made)
    assert scrape(collector) == {}
    backend = fold()
    made._backends[0] = backend
    graph = capture(backend, 4)
    assert scrape(collector)["graphdedup_captured_graphs_total", "simulated:0"] == 1
    graph.close()


def test_a_backend_that_is_gone_takes_its_series_with_it() -> None:
    backend = fold()
    collector = Collector(backend)
    capture(backend, 4).close()
    assert scrape(collector)
    del backend
    gc.collect()
    assert scrape(collector) == {}


def test_a_source_that_fails_is_left_out_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> Stats:
        raise OSError("no counters today")

    def no_stats() -> Any:
        return 3

    collector = Collector(broken, no_stats)
    collector.add(distinct, device="other")
    with caplog.at_level(logging.WARNING, "graphdedup"):
        for _ in range(3):
            assert {name[1] for name in scrape(collector)} == {"other"}
    assert [record.getMessage() for record in caplog.records] == [
        "metrics of one source are left out: OSError: no counters today",
        "metrics of one source are left out: TypeError: int is no Stats",
    ]


def test_registering_twice_is_refused_and_unregistering_lets_it_in_again() -> None:
    backend = fold()
    collector, registry = Collector(backend), CollectorRegistry()
    registry.register(collector)
    for again in (collector, Collector(backend)):
        with pytest.raises(ValueError, match="Duplicated timeseries"):
            registry.register(again)
    assert parsed(generate_latest(registry).decode())["graphdedup_execs", "simulated:0"] == 0
    CollectorRegistry().register(collector)  # another registry is another matter
    registry.unregister(collector)
    assert generate_latest(registry) == b""
    registry.register(collector)


def test_a_registry_asks_no_source_when_it_registers_one() -> None:
    asked: list[int] = []

    def source() -> Stats:
        asked.append(1)
        return distinct()

    collector = Collector(source)
    registry = CollectorRegistry()
    registry.register(collector)
    assert [family.samples for family in collector.describe() if family.samples] == []
    assert asked == []
    generate_latest(registry)
    assert asked == [1]


def test_a_scrape_touches_no_device_and_waits_for_no_capture_or_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    """The locks that folding, a replay and its executable hold are held elsewhere, and every call of the driver fails."""
    bench = Bench()
    member = bench.fold(1)
    assert member.group is not None
    backend = fold()
    backend.registry = bench.registry

    class Untouchable:
        identity = bench.driver.identity

        def __getattr__(self, name: str) -> Any:
            raise AssertionError(f"the driver's {name} was asked for")

    held = [bench.registry._folding, member.lock, member.group.executables[0].lock, bench.registry._execs._making]
    ready, done = threading.Event(), threading.Event()

    def hold() -> None:
        for lock in held:
            lock.acquire()
        ready.set()
        done.wait(300)
        for lock in held:
            lock.release()

    holder = threading.Thread(target=hold)
    holder.start()
    assert ready.wait(60)
    told: list[Any] = []
    with monkeypatch.context() as patch:
        patch.setattr(bench.registry, "driver", Untouchable())
        scraping = threading.Thread(target=lambda: told.append(scrape(Collector(backend))), daemon=True)
        scraping.start()
        scraping.join(30)
    waited = scraping.is_alive()
    done.set()
    holder.join()
    assert not waited, "it waited for a lock"
    assert told
    assert told[0]["graphdedup_captured_graphs_total", "simulated:0"] == 1


@pytest.mark.parametrize(("arguments", "said"), [((3,), "int tells no counters"), ((), "max_sessions=-1 is negative")])
def test_what_is_no_source_is_refused(arguments: tuple[Any, ...], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        Collector(*arguments, max_sessions=-1 if not arguments else 1)


def test_without_the_extra_one_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Importing the module works; making a collector does not."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "prometheus_client"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    import graphdedup.metrics

    importlib.reload(graphdedup.metrics)
    with pytest.raises(GraphDedupError, match=r"needs prometheus-client Remedy: pip install 'graphdedup\[metrics\]'"):
        graphdedup.metrics.Collector()


def test_the_example_serves_the_metrics_on_this_host_alone(pytestconfig: pytest.Config) -> None:
    example = pytestconfig.rootpath / "examples" / "prometheus_metrics.py"
    process = subprocess.Popen(
        [sys.executable, str(example), "--port", "0", "--device", "cpu", "--seconds", "120"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(pytestconfig.rootpath)},
    )
    assert process.stdout is not None
    try:
        url = process.stdout.readline().strip()
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/metrics", url), process.communicate(timeout=60)
        assert process.stdout.readline() == "captured\n"
        first = parsed(urllib.request.urlopen(url, timeout=30).read().decode())
        assert first["graphdedup_captured_graphs_total", "simulated:0"] == 4
        assert first["graphdedup_execs", "simulated:0"] == 1
        assert first["graphdedup_session_graphs", "simulated:0", "decode"] == 4
        launches = ("graphdedup_launches_total", "simulated:0")
        later = first
        for _ in range(200):
            later = parsed(urllib.request.urlopen(url, timeout=30).read().decode())
            if later[launches] > first[launches]:
                break
        assert later[launches] > first[launches], "it counts on"
    finally:
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, "")
