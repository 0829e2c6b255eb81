"""What an update carries and refuses. A refusal changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from seam.simulated import (
    DriverProfile,
    LaunchInfo,
    SimulatedBackend,
    SimulatedDevice,
    SimulatedDeviceError,
    SimulatedExec,
    SimulatedGraph,
    SimulatedSegment,
    Stream,
    stream,
)

Build = Callable[[SimulatedGraph], Any]


def record(backend: SimulatedBackend, function: Callable[..., Any], *args: Any) -> tuple[SimulatedSegment, Any]:
    pool = backend.new_pool()
    with pool.entered():
        backend.begin_capture(pool)
        try:
            result = function(*args)
        except BaseException:
            backend.end_capture(discard=True)
            raise
        segment = backend.end_capture()
    assert segment is not None
    return segment, result


def offer(first: Build, second: Build, *, flags: int = 1, **profile: Any) -> tuple[SimulatedExec, Any]:
    """An executable of ``first``, and what it answered to ``second``. A refusal must have left it as it was."""
    device = SimulatedDevice(1 << 20, profile=DriverProfile(**profile))
    graphs = []
    for build in (first, second):
        graph = device.new_graph()
        build(graph)
        graphs.append(graph)
    executable = device.instantiate(graphs[0], flags)
    before = [node.describe() for node in executable.nodes]
    result = device.update(executable, graphs[1])
    if not result.accepted:
        assert [node.describe() for node in executable.nodes] == before
        assert executable.reflects is graphs[0]
    assert device.update_count == int(result.accepted)
    assert device.refused_update_count == int(not result.accepted)
    return executable, result


def note(info: LaunchInfo, out: torch.Tensor) -> None:
    """A kernel whose result is the cluster that it was launched with, and its grid."""
    out.copy_(torch.tensor([*info.cluster, info.grid[0]]))


def note_negative(info: LaunchInfo, out: torch.Tensor) -> None:
    out.copy_(-torch.tensor([*info.cluster, info.grid[0]]))


def kernel(out: torch.Tensor, **options: Any) -> Build:
    name, call = options.pop("name", "note"), options.pop("call", note)
    return lambda graph: graph.add_kernel(name, call, (out,), **options)


def out4() -> torch.Tensor:
    return torch.zeros(4, dtype=torch.int64)


def launch(executable: SimulatedExec) -> None:
    executable.device.launch(executable)


def test_another_batch_size_is_carried_function_cluster_and_all() -> None:
    backend, w = SimulatedBackend(), torch.randn(16, 16)
    inputs = {rows: torch.randn(rows, 16) for rows in (1, 16, 64, 300)}
    captured = {rows: record(backend, lambda x: (x @ w).relu().sum(0), x) for rows, x in inputs.items()}
    executable = backend.device.instantiate(captured[1][0].graph)
    for rows in (64, 1, 300, 16):
        segment, y = captured[rows]
        assert backend.device.update(executable, segment.graph).accepted
        backend.device.run_kernel()  # without it the launch would have the clusters of the one before
        backend.device.launch(executable)
        assert executable.nodes == segment.graph.nodes
        assert torch.equal(y, (inputs[rows] @ w).relu().sum(0))
    assert len({segment.graph.nodes[0].function for segment, _ in captured.values()}) == 4


@pytest.mark.parametrize("before", [(0, 0, 0), (1, 1, 1), (2, 1, 1), (4, 1, 1)])
@pytest.mark.parametrize("after", [(0, 0, 0), (1, 1, 1), (2, 1, 1), (4, 1, 1)])
def test_a_cluster_dimension_is_carried_unless_none_is_set(before: Any, after: Any) -> None:
    """Measured on an H200: a kernel that sets none keeps that of the kernel before it, and the driver says success."""
    out = out4()
    executable, result = offer(kernel(out, cluster=before), kernel(out, cluster=after, grid=(8, 1, 1)))
    assert result.accepted
    launch(executable)
    assert out.tolist() == [*(after if any(after) else before), 8]


@pytest.mark.parametrize(("name", "seen"), [("note", (0, 0, 0)), ("other", (2, 1, 1))])
def test_an_uploaded_executable_takes_a_cluster_only_with_another_function(name: str, seen: Any) -> None:
    """Measured on an H200: success, and where the function stays the old dimension stays, whatever else changes."""
    device, out = SimulatedDevice(1 << 20), out4()
    plain, clustered = device.new_graph(), device.new_graph()
    kernel(out)(plain)
    kernel(out, name=name, cluster=(2, 1, 1), grid=(8, 1, 1))(clustered)
    executable = device.instantiate(plain)
    device.upload(executable)
    assert device.update(executable, clustered).accepted
    launch(executable)
    assert out.tolist() == [*seen, 8]


def test_clusters_stay_frozen_until_a_kernel_runs_outside_of_graphs() -> None:
    """Measured on an H200: bare launches after an update have the clusters of the launch before, but its other numbers."""
    device, out = SimulatedDevice(1 << 20), out4()
    graphs = []
    for name, size in (("two", 2), ("four", 4), ("eight", 8)):
        graphs.append(device.new_graph())
        kernel(out, name=name, cluster=(size, 1, 1), grid=(size, 1, 1))(graphs[-1])
    executable = device.instantiate(graphs[0])
    launch(executable)
    for graph, grid in ((graphs[1], 4), (graphs[2], 8)):
        assert device.update(executable, graph).accepted
        launch(executable)
        assert out.tolist() == [2, 1, 1, grid]
    device.run_kernel()
    launch(executable)
    assert out.tolist() == [8, 1, 1, 8]
    device.run_kernel()  # before the update it does as well
    assert device.update(executable, graphs[1]).accepted
    launch(executable)
    assert out.tolist() == [4, 1, 1, 4]


def test_a_driver_that_freezes_nothing_shows_every_cluster_at_once() -> None:
    device = SimulatedDevice(1 << 20, profile=DriverProfile(freezes_clusters=False))
    out, graphs = out4(), []
    for name, size in (("two", 2), ("four", 4)):
        graphs.append(device.new_graph())
        kernel(out, name=name, cluster=(size, 1, 1))(graphs[-1])
    executable = device.instantiate(graphs[0])
    for graph, size in ((graphs[1], 4), (graphs[0], 2)):
        launch(executable)
        assert device.update(executable, graph).accepted
        launch(executable)
        assert out.tolist() == [size, 1, 1, 1]


def test_clusters_in_a_child_graph_freeze_as_well() -> None:
    device, out, graphs = SimulatedDevice(1 << 20), out4(), []
    for name, size in (("two", 2), ("four", 4)):
        inner = device.new_graph()
        kernel(out, name=name, cluster=(size, 1, 1))(inner)
        graphs.append(device.new_graph())
        graphs[-1].add_node("child_graph", graph=inner)
    executable = device.instantiate(graphs[0])
    launch(executable)
    assert device.update(executable, graphs[1]).accepted
    launch(executable)
    assert out.tolist() == [2, 1, 1, 1]
    device.run_kernel()
    launch(executable)
    assert out.tolist() == [4, 1, 1, 1]


def test_a_launch_has_the_cluster_that_its_function_was_compiled_for() -> None:
    device, out = SimulatedDevice(1 << 20), out4()
    graph = device.new_graph()
    kernel(out, required_cluster=(2, 1, 1))(graph)
    assert graph.nodes[0].cluster == (0, 0, 0)
    assert graph.nodes[0].clusters == (2, 1, 1)
    launch(device.instantiate(graph))
    assert out.tolist() == [2, 1, 1, 1]


@pytest.mark.parametrize(("makes_room", "ran"), [(False, False), (True, True)])
def test_an_update_makes_no_room_for_local_memory(makes_room: bool, ran: bool) -> None:
    """Measured on an H200: success, and a first launch that can be garbage. Here it writes nothing, the second is right."""
    device = SimulatedDevice(1 << 20, profile=DriverProfile(makes_room=makes_room))
    out, plain, deep = out4(), device.new_graph(), device.new_graph()
    kernel(out)(plain)
    kernel(out, name="deep", grid=(8, 1, 1), local_bytes=4096)(deep)
    executable = device.instantiate(plain)
    device.destroy(device.instantiate(deep))  # makes no room either
    assert device.update(executable, deep).accepted
    out.fill_(-1)
    launch(executable)
    assert out.tolist() == ([0, 0, 0, 8] if ran else [-1] * 4)
    launch(executable)
    assert out.tolist() == [0, 0, 0, 8]


def test_an_executable_has_room_for_what_it_was_instantiated_from() -> None:
    device, out = SimulatedDevice(1 << 20), out4()
    deep = device.new_graph()
    kernel(out, name="deep", grid=(8, 1, 1), local_bytes=4096)(deep)
    launch(device.instantiate(deep))
    assert out.tolist() == [0, 0, 0, 8]
    assert device.local_bytes == 4096


def test_a_disabled_node_stays_disabled_through_an_update() -> None:
    device, out = SimulatedDevice(1 << 20), out4()
    first, second = device.new_graph(), device.new_graph()
    kernel(out)(first)
    kernel(out, grid=(2, 1, 1))(second)
    executable = device.instantiate(first)
    device.set_enabled(executable, 0, False)
    assert device.update(executable, second).accepted
    out.fill_(-1)
    launch(executable)
    assert out.tolist() == [-1] * 4
    device.set_enabled(executable, 0, True)
    launch(executable)
    assert out.tolist() == [0, 0, 0, 2]
    with pytest.raises(SimulatedDeviceError, match="cannot be disabled"):
        device.set_enabled(executable, 1, False)


def test_a_carveout_that_is_no_longer_set_stays_where_nothing_else_changes() -> None:
    """Measured on an H200."""
    carved = {"shared_memory_carveout": 50}
    executable, result = offer(kernel(out := out4(), attributes=carved), kernel(out))
    assert result.accepted
    assert executable.nodes[0].attributes["shared_memory_carveout"] == 50
    executable, result = offer(kernel(out, attributes=carved), kernel(out, grid=(2, 1, 1)))
    assert result.accepted
    assert "shared_memory_carveout" not in executable.nodes[0].attributes
    executable, _ = offer(kernel(out, attributes=carved), kernel(out), carries_unset_carveout="carried")
    assert "shared_memory_carveout" not in executable.nodes[0].attributes


@pytest.mark.parametrize(
    ("carries", "verdict", "held"),
    [("carried", "SUCCESS", None), ("refused", "ATTRIBUTES_CHANGED", 1), ("stale", "SUCCESS", 1)],
)
def test_any_attribute_by_the_profile(carries: str, verdict: str, held: int | None) -> None:
    executable, result = offer(
        kernel(out := out4(), attributes={"mem_sync_domain": 1}), kernel(out), carries_attributes={"mem_sync_domain": carries}
    )
    assert result.verdict == verdict
    assert executable.nodes[0].attributes.get("mem_sync_domain") == held


@pytest.mark.parametrize(("element_bytes", "value"), [(1, 0xAB), (2, 0x0102), (4, 0x01020304)])
def test_a_memset_has_elements_of_one_two_or_four_bytes(element_bytes: int, value: int) -> None:
    device, out = SimulatedDevice(1 << 20), torch.zeros(8, dtype=torch.uint8)
    graph = device.new_graph()
    graph.add_node("memset", target=out, size_bytes=4, value=value, element_bytes=element_bytes)
    launch(device.instantiate(graph))
    assert out.tolist() == [*(list(value.to_bytes(element_bytes, "little")) * (4 // element_bytes)), 0, 0, 0, 0]
    for wrong, words in (
        ({"element_bytes": 3}, "1, 2 or 4"),
        ({"value": 256}, "0 to 255"),
        ({"size_bytes": 3, "element_bytes": 2}, "3 bytes"),
    ):
        with pytest.raises(ValueError, match=words):
            graph.add_node("memset", target=out, **wrong)


def test_a_driver_that_forgets_the_cluster_reports_success_and_launches_the_old_one() -> None:
    out = out4()
    executable, result = offer(
        kernel(out, cluster=(2, 1, 1)), kernel(out, cluster=(4, 1, 1), grid=(8, 1, 1)), carries_cluster="stale"
    )
    assert result.accepted
    launch(executable)
    assert out.tolist() == [2, 1, 1, 8]


def test_a_driver_that_refuses_another_cluster_still_launches_the_old_one() -> None:
    out = out4()
    executable, result = offer(
        kernel(out, cluster=(2, 1, 1)), kernel(out, cluster=(4, 1, 1), grid=(8, 1, 1)), carries_cluster="refused"
    )
    assert (result.verdict, result.node) == ("ATTRIBUTES_CHANGED", 0)
    launch(executable)
    assert out.tolist() == [2, 1, 1, 1]


@pytest.mark.parametrize(
    ("carries", "verdict", "seen"),
    [("carried", "SUCCESS", 4), ("refused", "ATTRIBUTES_CHANGED", 2), ("stale", "SUCCESS", 2)],
)
def test_a_preferred_cluster_dimension(carries: str, verdict: str, seen: int) -> None:
    out = torch.zeros(1, dtype=torch.int64)

    def preferred(info: LaunchInfo, out: torch.Tensor) -> None:
        out.fill_(info.attributes["preferred_cluster"][0])

    builds = [kernel(out, call=preferred, cluster=(1, 1, 1), attributes={"preferred_cluster": (size, 1, 1)}) for size in (2, 4)]
    executable, result = offer(builds[0], builds[1], carries_attributes={"preferred_cluster": carries})
    assert result.verdict == verdict
    launch(executable)
    assert out.item() == seen


@pytest.mark.parametrize(
    ("carries", "verdict", "seen"),
    [("carried", "SUCCESS", -7), ("refused", "FUNCTION_CHANGED", 1), ("stale", "SUCCESS", 7)],
)
def test_another_function(carries: str, verdict: str, seen: int) -> None:
    out = out4()
    executable, result = offer(
        kernel(out), kernel(out, name="negative", call=note_negative, grid=(7, 1, 1)), carries_function=carries
    )
    assert result.verdict == verdict
    launch(executable)
    assert out[3].item() == seen


def test_a_stale_function_of_captured_code_runs_the_old_operator() -> None:
    backend = SimulatedBackend(SimulatedDevice(1 << 20, profile=DriverProfile(carries_function="stale")))
    x = torch.tensor([1.0, 4.0])
    first, _ = record(backend, lambda: x.sqrt())
    second, y = record(backend, lambda: x.neg())
    executable = backend.device.instantiate(first.graph)
    assert backend.device.update(executable, second.graph).accepted
    backend.device.launch(executable)
    assert y.tolist() == [1.0, 2.0]


@pytest.mark.parametrize(
    ("flags", "verdict"), [(0, "SUCCESS"), (1, "SUCCESS"), (8, "ATTRIBUTES_CHANGED"), (9, "ATTRIBUTES_CHANGED")]
)
def test_priority_counts_only_under_its_flag(flags: int, verdict: str) -> None:
    out = out4()
    builds = [kernel(out, attributes={"priority": priority}) for priority in (0, -1)]
    assert offer(*builds, flags=flags)[1].verdict == verdict


@pytest.mark.parametrize(
    ("attributes", "verdict"),
    [({"cooperative": 1}, "ATTRIBUTES_CHANGED"), ({"device_updatable": 1}, "NOT_SUPPORTED"), ({"other": 3}, "SUCCESS")],
)
def test_attributes(attributes: dict[str, int], verdict: str) -> None:
    out = out4()
    plain, special = kernel(out), kernel(out, attributes=attributes)
    assert offer(plain, special)[1].verdict == verdict
    assert offer(special, plain)[1].verdict == verdict


def test_a_context_is_never_changed() -> None:
    out = out4()
    assert offer(kernel(out), kernel(out, context=99))[1].verdict == "UNSUPPORTED_FUNCTION_CHANGE"
    memset = [lambda graph, c=c: graph.add_node("memset", target=out, context=c) for c in (None, 99)]
    assert offer(memset[0], memset[1])[1].verdict == "PARAMETERS_CHANGED"


def test_a_graph_of_another_device_is_refused() -> None:
    out = out4()
    device, other = SimulatedDevice(1 << 20), SimulatedDevice(1 << 20)
    ours, theirs = device.new_graph(), other.new_graph()
    kernel(out)(ours)
    kernel(out)(theirs)
    assert not device.update(device.instantiate(ours), theirs).accepted
    with pytest.raises(SimulatedDeviceError, match="another device"):
        device.instantiate(theirs)


@pytest.mark.parametrize("sizes", [(256, 4096), (4096, 65536), (65536, 256)])
def test_a_flat_memset_of_another_size_is_carried(sizes: tuple[int, int]) -> None:
    out = torch.full((65536,), 7, dtype=torch.uint8)
    first, second = (lambda graph, n=n: graph.add_node("memset", target=out, size_bytes=n, value=1) for n in sizes)
    executable, result = offer(first, second)
    assert result.accepted
    launch(executable)
    assert (out == 1).sum().item() == sizes[1]


def test_a_memset_in_rows_carries_address_and_value_only() -> None:
    out = torch.zeros(64, dtype=torch.uint8)

    def rows(offset: int, value: int, height: int, width: int) -> Build:
        return lambda graph: graph.add_node(
            "memset", target=out[offset:], value=value, height=height, size_bytes=width, pitch_bytes=8
        )

    executable, result = offer(rows(0, 1, 2, 4), rows(16, 3, 2, 4))
    assert result.accepted
    launch(executable)
    assert out.nonzero().flatten().tolist() == [16, 17, 18, 19, 24, 25, 26, 27]
    for other in (rows(0, 1, 3, 4), rows(0, 1, 2, 5), rows(0, 1, 1, 4)):
        assert offer(rows(0, 1, 2, 4), other)[1].verdict == "PARAMETERS_CHANGED"
        assert offer(other, rows(0, 1, 2, 4))[1].verdict == "PARAMETERS_CHANGED"


def test_a_copy_carries_its_size_but_not_its_direction() -> None:
    source, target = torch.arange(8, dtype=torch.uint8), torch.zeros(8, dtype=torch.uint8)

    def copy(count: int, direction: str = "d2d") -> Build:
        return lambda graph: graph.add_node("memcpy", target=target, source=source, size_bytes=count, direction=direction)

    executable, result = offer(copy(2), copy(5))
    assert result.accepted
    launch(executable)
    assert target.tolist() == [0, 1, 2, 3, 4, 0, 0, 0]
    for one in ("d2d", "h2d", "d2h"):
        for two in ("d2d", "h2d", "d2h"):
            verdict = offer(copy(2, one), copy(2, two))[1].verdict
            assert verdict == ("SUCCESS" if one == two else "PARAMETERS_CHANGED")


def test_a_kernel_does_not_become_a_memset() -> None:
    out = out4()
    result = offer(kernel(out), lambda graph: graph.add_node("memset", target=out))[1]
    assert (result.verdict, result.node) == ("NODE_TYPE_CHANGED", 0)


def test_host_nodes_and_events_are_carried() -> None:
    calls: list[str] = []
    first = lambda graph: graph.add_node("host", callback=lambda: calls.append("first"))  # noqa: E731
    second = lambda graph: graph.add_node("host", callback=lambda: calls.append("second"))  # noqa: E731
    executable, result = offer(first, second)
    assert result.accepted
    launch(executable)
    assert calls == ["second"]
    for kind in ("empty", "event_record", "event_wait"):
        assert offer(lambda graph, k=kind: graph.add_node(k), lambda graph, k=kind: graph.add_node(k))[1].accepted


def test_memory_and_conditional_nodes_are_not_supported() -> None:
    builds: list[Build] = [
        lambda graph: graph.add_node("mem_alloc", size_bytes=64),
        lambda graph: graph.add_node("mem_free", target=torch.zeros(4)),
        lambda graph: graph.add_node("conditional", graph=graph.device.new_graph(), condition=lambda: True),
    ]
    for build in builds:
        assert offer(build, build)[1].verdict == "NOT_SUPPORTED"


def child(*inner: Build) -> Build:
    def build(graph: SimulatedGraph) -> None:
        body = graph.device.new_graph()
        for add in inner:
            add(body)
        graph.add_node("child_graph", graph=body)

    return build


def test_child_graphs_follow_the_rules_of_their_nodes() -> None:
    out = out4()
    executable, result = offer(child(kernel(out)), child(kernel(out, grid=(5, 1, 1))))
    assert result.accepted
    launch(executable)
    assert out[3].item() == 5
    memset = lambda graph: graph.add_node("memset", target=out)  # noqa: E731
    result = offer(child(kernel(out)), child(memset))[1]
    assert (result.verdict, result.node) == ("NODE_TYPE_CHANGED", 0)
    assert "child graph, node 0" in result.detail
    assert offer(child(kernel(out)), child(kernel(out), kernel(out)))[1].verdict == "TOPOLOGY_CHANGED"


def test_edge_data_is_topology_both_ways() -> None:
    def chain(data: tuple[int, int, int]) -> Build:
        def build(graph: SimulatedGraph) -> None:
            kernel(out4())(graph)
            kernel(out4())(graph)
            graph.add_edge(0, 1, data)

        return build

    assert offer(chain((1, 0, 1)), chain((1, 0, 1)))[1].accepted
    assert offer(chain((0, 0, 0)), chain((1, 0, 1)))[1].verdict == "TOPOLOGY_CHANGED"
    assert offer(chain((1, 0, 1)), chain((0, 0, 0)))[1].verdict == "TOPOLOGY_CHANGED"


@pytest.mark.parametrize("count", [0, 1, 3])
def test_another_number_of_nodes_is_topology(count: int) -> None:
    def build(graph: SimulatedGraph, count: int) -> None:
        for _ in range(count):
            graph.add_node("empty")

    result = offer(lambda graph: build(graph, 2), lambda graph: build(graph, count))[1]
    assert result.verdict == "TOPOLOGY_CHANGED"


def branches(backend: SimulatedBackend, x: torch.Tensor, main_count: int, side_count: int, *, main_first: bool) -> Any:
    """Two branches of additions, joined by a subtraction; ``main_first`` says which is captured first."""
    side = Stream()
    pool = backend.new_pool()
    with pool.entered():
        backend.begin_capture(pool)
        side.wait_stream(pool.stream)
        results = {}
        for on_main in (main_first, not main_first):
            with stream(None if on_main else side):
                y = x
                for _ in range(main_count if on_main else side_count):
                    y = y + (10.0 if on_main else 1.0)
                results[on_main] = y
        pool.stream.wait_stream(side)
        joined = results[True] - results[False]
        return backend.end_capture(), joined, results


def test_branches_captured_in_swapped_order_are_taken_and_right() -> None:
    backend, x, other = SimulatedBackend(), torch.ones(2), torch.full((2,), 5.0)
    first, _, keep = branches(backend, x, 2, 3, main_first=True)
    second, y, kept = branches(backend, other, 2, 3, main_first=False)
    executable = backend.device.instantiate(first.graph)
    assert backend.device.update(executable, second.graph).accepted
    backend.device.launch(executable)
    assert y.tolist() == [25.0 - 8.0] * 2
    assert (keep[True].isnan().all(), kept[True].tolist()) == (True, [25.0] * 2)


def test_mirrored_branches_are_another_topology() -> None:
    backend, x = SimulatedBackend(), torch.ones(2)
    first, _, _ = branches(backend, x, 3, 2, main_first=True)
    second, _, _ = branches(backend, x, 2, 3, main_first=True)
    executable = backend.device.instantiate(first.graph)
    assert backend.device.update(executable, second.graph).verdict == "TOPOLOGY_CHANGED"


def test_edges_that_share_a_source_do_not_pair_with_edges_that_do_not() -> None:
    def diamond(shared: bool) -> Build:
        def build(graph: SimulatedGraph) -> None:
            for _ in range(5):
                graph.add_node("empty")
            # Two middle nodes on one root or on a root each; a root is left over, so that the counts agree.
            for source, target in [(0, 2), (0 if shared else 1, 3), (2, 4), (3, 4), (1 if shared else 0, 4)]:
                graph.add_edge(source, target)

        return build

    assert offer(diamond(True), diamond(True))[1].accepted
    assert offer(diamond(True), diamond(False))[1].verdict == "TOPOLOGY_CHANGED"


def test_a_refusal_at_the_second_node_leaves_the_first_as_it_was() -> None:
    first_out, second_out = out4(), out4()

    def build(graph: SimulatedGraph, grid: int, kind: str) -> None:
        kernel(first_out, grid=(grid, 1, 1))(graph)
        if kind == "kernel":
            kernel(second_out, grid=(grid, 1, 1))(graph)
        else:
            graph.add_node("memset", target=second_out)
        graph.add_edge(0, 1)

    executable, result = offer(lambda graph: build(graph, 3, "kernel"), lambda graph: build(graph, 4, "memset"))
    assert (result.verdict, result.node) == ("NODE_TYPE_CHANGED", 1)
    launch(executable)
    assert (first_out[3].item(), second_out[3].item()) == (3, 3)


def test_the_nth_update_is_refused_and_only_that_one() -> None:
    device = SimulatedDevice(1 << 20, profile=DriverProfile(refuse_nth_update=2))
    graph = device.new_graph()
    kernel(out4())(graph)
    executable = device.instantiate(graph)
    assert [device.update(executable, graph).accepted for _ in range(3)] == [True, False, True]


def test_a_pair_may_be_refused_in_one_direction_only() -> None:
    profile = DriverProfile(refuse_pairs=lambda held, offered: (held.label, offered.label) == ("A", "B"))
    device = SimulatedDevice(1 << 20, profile=profile)
    a, b = device.new_graph("A"), device.new_graph("B")
    kernel(out4())(a)
    kernel(out4())(b)
    executable = device.instantiate(a)
    assert device.update(executable, b).verdict == "PARAMETERS_CHANGED"
    executable = device.instantiate(b)
    assert device.update(executable, a).accepted
    assert not device.update(executable, b).accepted


def test_a_sticky_error_hits_the_next_call_unless_it_is_consumed() -> None:
    device = SimulatedDevice(1 << 20, profile=DriverProfile(refuse_nth_update=2, sticky_last_error=True))
    graph = device.new_graph()
    kernel(out4())(graph)
    executable = device.instantiate(graph)
    assert device.update(executable, graph).accepted
    assert device.get_last_error() is None
    assert not device.update(executable, graph).accepted
    with pytest.raises(SimulatedDeviceError, match=r"refused earlier.*get_last_error"):
        device.launch(executable)
    device.launch(executable)

    device = SimulatedDevice(1 << 20, profile=DriverProfile(refuse_nth_update=1, sticky_last_error=True))
    graph = device.new_graph()
    kernel(out4())(graph)
    executable = device.instantiate(graph)
    assert not device.update(executable, graph).accepted
    assert isinstance(device.get_last_error(), SimulatedDeviceError)
    device.launch(executable)


def test_what_the_driver_does_not_tell_is_named_where_a_kernel_could_use_it() -> None:
    for unreadable, told, untold in (
        (frozenset({"preferred_cluster"}), False, ("preferred_cluster",)),
        (frozenset(), True, ()),
    ):
        device = SimulatedDevice(1 << 20, profile=DriverProfile(unreadable=unreadable))
        graph = device.new_graph()
        kernel(out4(), cluster=(2, 1, 1), attributes={"preferred_cluster": (4, 1, 1)})(graph)
        kernel(out4())(graph)
        graph.add_node("empty")
        clustered, plain, empty = graph.nodes
        assert device.unreadable_attributes(clustered) == untold
        assert device.unreadable_attributes(plain) == device.unreadable_attributes(empty) == ()
        assert ("preferred_cluster" in device.read_attributes(clustered)) is told


def test_a_profile_is_checked() -> None:
    with pytest.raises(ValueError, match="carries_cluster"):
        DriverProfile(carries_cluster="maybe")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="mem_sync_domain must be"):
        DriverProfile(carries_attributes={"mem_sync_domain": "maybe"})  # type: ignore[dict-item]
