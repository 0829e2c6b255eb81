"""What a fold of exported graphs predicts is what a live one does, in every tier and placement."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings

import seam
from graphdedup import DedupBackend, FoldPolicy, GraphDedupError, GraphsFile, Placement, ReportError, SettingsError, Tier
from graphdedup.capabilities import Capabilities
from graphdedup.demo.model import PRESETS, DecoderModel, KVCache
from graphdedup.driver.simulated import SimulatedDriver
from graphdedup.export import graphs_file
from graphdedup.footprint import modelled_exec_bytes
from graphdedup.graphs_file import ExportedGraph
from graphdedup.probe.bench_simulated import SimulatedBench
from graphdedup.probe.known import probe_profile
from graphdedup.registry import Registry
from graphdedup.report import Source
from graphdedup.whatif import Prediction, what_if
from seam.backend import SegmentInfo
from seam.simulated import DriverProfile, SimulatedBackend, SimulatedDevice, Stream, current_stream
from seam.simulated import stream as on_stream
from tests.unit.fold.bench import Bench
from tests.unit.fold.test_registry_concurrency import Threads, Waiting
from tools.fuzz_graphs import ARENA, Family, families

POLICIES = [FoldPolicy(tier=tier, placement=placement) for tier, placement in product(Tier, Placement)]


def predict(file: GraphsFile, policy: FoldPolicy, **more: Any) -> Prediction:
    told = what_if(file, tiers=[policy.tier], placement=policy.placement, max_execs=policy.max_execs, **more)
    return told.predictions[0]


# Workloads: each captures with a backend, and returns its graphs


def decode(backend: DedupBackend, mode: seam.Mode | str) -> Iterator[seam.BreakableGraph]:
    """The demo's model at six sizes; the largest ones run other kernels for their products."""
    config, sizes = PRESETS["tiny"].with_layers(2), (200, 136, 64, 8, 2, 1)
    model, cache = DecoderModel(config, device=torch.device("cpu"), seed=0), KVCache(config, sizes[0], torch.device("cpu"))
    tokens, positions = (torch.zeros(sizes[0], dtype=torch.int64) for _ in range(2))
    pool = backend.new_pool()
    with torch.no_grad():
        for size in sizes:
            graph = seam.BreakableGraph(backend, label=f"decode bs={size}")
            with seam.capture(graph, pool=pool, mode=mode):
                model(tokens[:size], positions[:size], cache)
            yield graph


def two_streams(backend: DedupBackend) -> Iterator[seam.BreakableGraph]:
    """Half of the work on a side stream over a break, and small sizes with other work there."""
    for size in (4096, 32, 8, 4):
        x, side = torch.zeros(size), Stream()
        graph = seam.BreakableGraph(backend, label=f"streams n={size}")
        with seam.capture(graph):
            main = torch.relu(x)
            side.wait_stream(current_stream())
            with on_stream(side):
                other = x * 2 if size > 8 else (x * 2).sort().values
            main = clipped(main + 1)
            current_stream().wait_stream(side)
            (main + other).sum()
        yield graph


@seam.eager_break
def clipped(x: torch.Tensor) -> torch.Tensor:
    return x.clamp(max=1)


def drawing(backend: DedupBackend) -> Iterator[seam.BreakableGraph]:
    for size in (4096, 8):
        x = torch.zeros(size)
        graph = seam.BreakableGraph(backend, label=f"dropout n={size}")
        with seam.capture(graph):
            torch.nn.functional.dropout(x + 1, 0.5)
        yield graph


WORKLOADS: dict[str, Callable[[DedupBackend], Iterator[seam.BreakableGraph]]] = {
    "demo, full": lambda backend: decode(backend, "full"),
    "demo, breakable": lambda backend: decode(backend, "breakable"),
    "two streams": two_streams,
    "draws": drawing,
}


@pytest.mark.parametrize("workload", WORKLOADS)
def test_predicted_execs_are_those_of_a_live_backend(workload: str) -> None:
    """Whatever policy the graphs were captured with, for every other one; and so are its bytes."""
    live: dict[FoldPolicy, tuple[int, int]] = {}
    files = []
    for policy in POLICIES:
        backend = DedupBackend(SimulatedBackend(), policy)
        graphs = list(WORKLOADS[workload](backend))
        captured = backend.stats()
        report = backend.report()
        live[policy] = captured.execs, report.exec_device.bytes or 0
        files.append(GraphsFile.from_json(backend.export().to_json()))
        for graph in graphs:
            graph.replay()
        assert backend.stats().execs == captured.execs
        files.append(backend.export())
        for graph in graphs:
            graph.close()
    for file, policy in product(files, POLICIES):
        told = predict(file, policy)
        assert (told.execs, told.exec_device.bytes) == live[policy], policy
    assert len({execs for execs, _ in live.values()}) > 1, "the policies differ on this workload"


PROFILES = {
    "H200": DriverProfile(),
    "functions are refused": DriverProfile(carries_function="refused"),
    "clusters are carried": DriverProfile(carries_cluster_alone="carried", carries_unset_cluster="carried"),
    "preferred clusters are hidden": DriverProfile(
        uses_preferred_cluster=True,
        carries_attributes={"preferred_cluster": "stale"},
        unreadable=frozenset({"preferred_cluster"}),
    ),
}


@pytest.mark.parametrize("name", PROFILES)
def test_predicted_groups_are_those_of_a_live_registry_on_drawn_families_of_graphs(name: str) -> None:
    """With clusters, attributes, child graphs, copies and memsets, on several drivers; D3, D4, D11.

    Where a driver refused for what it does not tell, only the file of that very policy knows.
    """
    profile = PROFILES[name]
    capabilities = probe_profile(profile)
    seen = set()

    @settings(
        max_examples=40,
        derandomize=True,
        database=None,
        deadline=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    @given(families(preferred_clusters=profile.uses_preferred_cluster))
    def look(family: Family) -> None:
        expected: dict[FoldPolicy, tuple[int, int]] = {}
        files, refused = {}, 0
        for policy in POLICIES:
            bench = SimulatedBench(SimulatedDevice(4 << 20, profile=profile), ARENA)
            registry = Registry(bench.driver, policy, capabilities=capabilities)
            members = [
                registry.fold(bench.build(spec), SegmentInfo(number % 2, "graph")) for number, spec in enumerate(family.specs)
            ]
            expected[policy] = registry.exec_count + registry.passed_through_count, len(registry.groups())
            files[policy] = graphs_file(registry)
            refused += registry.counters.refused
            seen.add((policy.tier, expected[policy][0] < len(members)))
            for member in members:
                registry.release(member)
            bench.close()
        for recorded, policy in product(POLICIES, POLICIES):
            if recorded == policy or not refused:
                told = predict(files[recorded], policy)
                assert (told.execs, told.groups) == expected[policy], (recorded, policy)

    look()
    assert {(tier, folded) for tier in Tier for folded in (True, False)} <= seen


def test_a_cluster_that_the_fold_had_a_graph_say_is_not_in_its_export() -> None:
    """D3: the second graph of a group is made to say (1, 1, 1) where the first one has clusters; it was captured without."""
    device = SimulatedDevice(1 << 20)
    registry = Registry(SimulatedDriver(device), capabilities=probe_profile(device.profile))
    clusters = ((2, 1, 1), (0, 0, 0), (0, 0, 0))
    members = []
    for number, cluster in enumerate(clusters):
        graph = device.new_graph()
        graph.add_kernel("gemm" if any(cluster) else "relu", lambda *_: None, grid=(8, 1, 1), cluster=cluster)
        members.append(registry.fold(graph, SegmentInfo(0, f"graph {number}")))
    assert len(registry.groups()) == 1
    assert members[1].raw.nodes[0].cluster == (1, 1, 1)
    file = graphs_file(registry)
    assert [graph.topology.nodes[0].cluster for graph in file.graphs] == list(clusters)
    assert [row.execs for row in what_if(file).predictions] == [1, 2, 2]


@pytest.mark.parametrize(("streams", "execs"), [(1, 1), (2, 2), (3, 3), (5, 3)])
def test_a_group_has_an_exec_for_each_stream_that_its_graphs_run_on_at_once(streams: int, execs: int) -> None:
    """D10: three graphs of one group, live in threads that wait for each other; a graph never overlaps itself."""
    bench = Bench()
    waiting = Waiting(bench, 3)
    threads = Threads()
    for number in range(min(streams, 3)):
        threads.start(lambda number=number: waiting.replay(number), Stream())  # type: ignore[misc]
        assert waiting.begun[number].wait(30)
    for event in waiting.go:
        event.set()
    threads.join()
    assert bench.execs == execs
    file = graphs_file(bench.registry)
    assert predict(file, FoldPolicy(), execs_per_group=streams).execs == execs
    for member in waiting.members:
        bench.registry.release(member)


def test_a_bound_on_execs_holds_as_in_a_registry() -> None:
    backend = DedupBackend(SimulatedBackend(), FoldPolicy(tier=Tier.EXACT, max_execs=3))
    graphs = list(decode(backend, "breakable"))
    assert backend.stats().execs == 3
    file = backend.export()
    assert predict(file, FoldPolicy(tier=Tier.EXACT, max_execs=3)).execs == 3
    assert predict(file, FoldPolicy(tier=Tier.EXACT)).execs > 3
    assert predict(file, FoldPolicy(tier=Tier.EXACT, max_execs=3), execs_per_group=2).execs == 3
    for graph in graphs:
        graph.close()


# What is on record


def test_what_the_driver_refused_is_refused_again_and_no_more() -> None:
    """D5: nothing in two graphs of one key says why a driver refuses; the file does."""
    profile = DriverProfile(
        refuse_pairs=lambda old, new: (old.nodes[0].function == "odd") is not (new.nodes[0].function == "odd")
    )
    device = SimulatedDevice(1 << 20, profile=profile)
    registry = Registry(SimulatedDriver(device), capabilities=probe_profile(DriverProfile()))
    for number, function in enumerate(("gemm", "gemm", "odd", "relu", "odd")):
        graph = device.new_graph()
        graph.add_kernel(function, lambda *_: None)
        registry.fold(graph, SegmentInfo(0, f"graph {number}"))
    assert (len(registry.groups()), registry.counters.refused) == (2, 2)
    told = what_if(graphs_file(registry))
    assert [(row.execs, row.refused) for row in told.predictions] == [(2, 2), (3, 0), (3, 0)]
    assert told.predictions[0].splits[0].field == "refused"
    assert "updates refused, as on record" in told.to_text()
    assert [row.execs for row in what_if(graphs_file(registry), placement="position").predictions] == [2, 3, 3]


def test_a_graph_that_was_passed_through_or_lost_its_group_stays_so(make: Any, h200: Capabilities) -> None:
    """Why it kept its own executable is not always in the graph, as with random numbers that cannot be advanced (D12)."""
    topology = make.chain(["kernel", "kernel"])
    graphs = (
        ExportedGraph(index=1, label="a segment 0", position=0, group=0, topology=topology),
        ExportedGraph(index=2, label="b segment 0", position=0, group=0, topology=topology),
        ExportedGraph(index=3, label="draws segment 0", position=0, reason="it may draw (rule D12)", topology=topology),
        ExportedGraph(
            index=4, label="c segment 0", position=0, group=1, reason="un-folded at replay: ERROR", topology=topology
        ),
        ExportedGraph(index=5, label="memory segment 0", position=0, topology=make.chain(["mem_alloc"])),
    )
    file = GraphsFile(device="H200", driver_version="580.159", tier="structure", capabilities=h200, graphs=graphs)
    told = predict(file, FoldPolicy())
    assert (told.captured, told.groups, told.execs, told.passed_through, told.largest_group) == (5, 2, 4, 2, 2)
    rows = {row.field: (row.groups, row.example) for row in told.splits}
    assert rows["passed through"] == (2, "graph 3 (draws segment 0): it may draw (rule D12)")
    assert rows["on its own"] == (1, "graph 4 (c segment 0): un-folded at replay: ERROR")


def test_a_reason_that_the_fold_gave_is_worked_out_anew(make: Any) -> None:
    """D3: what cannot be read keeps graphs apart in the tier that reads it, and that tier alone: here the exact one."""
    capabilities = probe_profile(DriverProfile(unreadable=frozenset()))
    hidden = {"kind": "kernel", "name": "gemm", "cluster": (2, 1, 1), "unreadable": ("preferred_cluster",)}
    why = "node 0 (kernel): preferred_cluster cannot be read and could be in use"
    graphs = tuple(ExportedGraph(index=index, group=index, reason=why, topology=make.topology([hidden])) for index in range(3))
    file = GraphsFile(device="H200", driver_version="580.159", tier="exact", capabilities=capabilities, graphs=graphs)
    told = what_if(file, tiers=["structure", "exact"]).predictions
    assert [row.execs for row in told] == [1, 3]
    assert [(row.field, row.groups, row.example) for row in told[1].splits] == [("on its own", 3, f"graph 0: {why}")]


def test_what_only_clusters_use_does_not_set_kernels_without_clusters_apart(make: Any, h200: Capabilities) -> None:
    """D3: not even in the exact tier."""
    graphs = tuple(
        ExportedGraph(
            index=index,
            topology=make.topology(
                [{"kind": "kernel", "attributes": {"cluster_scheduling_policy": index}, "cluster": cluster}]
            ),
            group=index,
        )
        for index, cluster in enumerate([(0, 0, 0)] * 2 + [(2, 1, 1)] * 2)
    )
    file = GraphsFile(device="H200", driver_version="580.159", tier="exact", capabilities=h200, graphs=graphs)
    assert what_if(file, tiers=["exact"]).predictions[0].groups == 3


def test_graphs_that_the_fold_kept_apart_by_their_clusters_are_placed_anew(h200: Capabilities) -> None:
    """D3: the second graph runs a function with another cluster dimension; the third could join either of the two."""
    device = SimulatedDevice(1 << 20)
    registry = Registry(SimulatedDriver(device), capabilities=h200)
    for number, (function, width) in enumerate((("gemm", 2), ("gemm", 4), ("other", 2))):
        graph = device.new_graph()
        graph.add_kernel(function, lambda *_: None, grid=(8, 1, 1), cluster=(width, 1, 1))
        registry.fold(graph, SegmentInfo(min(number, 1), "graph"))
    assert sorted(len(group.members) for group in registry.groups()) == [1, 2]
    file = graphs_file(registry)
    assert file.graphs[1].refusals
    by_position = predict(file, FoldPolicy(placement=Placement.POSITION))
    assert (by_position.execs, by_position.largest_group) == (2, 2)


# Figures and words


def test_bytes_are_modelled_for_each_exec_and_say_so(make: Any, h200: Capabilities) -> None:
    """M3: two chains of 50 nodes and one of 10, by the table: 230,000 and 133,000 bytes on the device."""
    chains = [make.chain(["kernel"] * length) for length in (50, 50, 10)]
    graphs = tuple(ExportedGraph(index=index, group=0, topology=topology) for index, topology in enumerate(chains))
    file = GraphsFile(device="H200", driver_version="580.159", tier="structure", capabilities=h200, graphs=graphs)
    told = what_if(file, tiers=["structure"])
    assert told.plain_device.bytes == 2 * 230_000 + 133_000
    assert told.predictions[0].exec_device.bytes == 230_000 + 133_000
    assert told.predictions[0].exec_host.bytes == sum(modelled_exec_bytes(count)[1] for count in (50, 10))
    for figure in (told.plain_device, told.plain_host, told.predictions[0].exec_device, told.predictions[0].exec_host):
        assert figure.source is Source.MODELLED
    assert told.predictions[0].splits[0].example.startswith("graph 2 and graph 0: 10 nodes against 50; node ")


def test_the_text_has_a_column_for_each_tier_and_hostile_names_do_not_reach_the_terminal(make: Any, h200: Capabilities) -> None:
    names = ("\x1b[2J\x1b]0;owned\x07", "b\nc")
    graphs = tuple(
        ExportedGraph(index=index, label=name, group=index, topology=make.topology([{"kind": "kernel", "name": name}]))
        for index, name in enumerate(names)
    )
    file = GraphsFile(device="H200", driver_version="580.159", tier="function", capabilities=h200, graphs=graphs)
    text = what_if(file).to_text()
    rows = {line[:26].strip(): line[26:].split() for line in text.splitlines()}
    assert rows["execs"] == ["2", "1", "2", "2"]
    assert "\x1b" not in text
    assert "graph 1 (b\\nc)" in text
    assert "2 captured graphs, 2 nodes; recorded in 2 groups with tier function, placement group" in text
    colored = what_if(file).to_text(color=True)
    assert colored.count("\x1b") == 2 * 3  # the title, and the headings of two tiers
    assert colored.replace("\x1b[1m", "").replace("\x1b[0m", "") == text


# Bad input


def test_what_cannot_be_predicted_is_refused(make: Any, h200: Capabilities) -> None:
    graph = ExportedGraph(index=0, label="old", group=0, topology=make.chain(["kernel"]))
    file = GraphsFile(device="H200", driver_version="580.159", tier="structure", capabilities=h200, graphs=(graph,))
    with pytest.raises(ReportError, match=r"graph 0 \(old\) does not say its position"):
        what_if(file, placement="position")
    with pytest.raises(ReportError, match="holds no graphs"):
        what_if(file.model_copy(update={"graphs": ()}))
    with pytest.raises(ReportError, match=r"graph 0 \(old\) is of H200, driver 580.159, flags 1; the file is of H100"):
        what_if(file.model_copy(update={"device": "H100"}))
    with pytest.raises(SettingsError, match="tier"):
        what_if(file, tiers=["loose"])
    with pytest.raises(SettingsError, match="placement"):
        what_if(file, placement="nowhere")
    with pytest.raises(SettingsError, match="max_execs"):
        what_if(file, max_execs=0)
    for number in (0, 1025):
        with pytest.raises(GraphDedupError, match=f"execs_per_group={number} is out of range"):
            what_if(file, execs_per_group=number)


def test_a_node_without_the_numbers_of_its_kind_keeps_its_graph_apart(make: Any, h200: Capabilities) -> None:
    """A file of somebody else's: nothing is taken for zero."""
    graph = ExportedGraph(index=0, group=0, topology=make.topology([{"kind": "memset", "parameters": {"height": "tall"}}]))
    file = GraphsFile(device="H200", driver_version="580.159", tier="structure", capabilities=h200, graphs=(graph,))
    told = predict(file, FoldPolicy())
    assert told.passed_through == 1
    assert "the graph cannot be read: node 0 (memset): height is 'tall', not a whole number" in told.splits[0].example
