"""Two graphs side by side: do they fold, and the first difference in words."""

from __future__ import annotations

from typing import Any

import pytest

from graphdedup.capabilities import Capabilities
from graphdedup.errors import GraphDedupError
from graphdedup.explain import Explanation, Held, explain, explain_refusal, nearest
from graphdedup.topology import Node, Topology

FILL = "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_11FillFunctorIfEESt5arrayIPcLm1EEEEviT0_T1_"
FILL_WORDS = "void at::native::vectorized_elementwise_kernel<...>"


def kernel(name: str = "gemm", **fields: Any) -> dict[str, Any]:
    return {"kind": "kernel", "name": name, "grid": (1, 1, 1), "cluster": (0, 0, 0), **fields}


@pytest.fixture
def held(h200: Capabilities) -> Held:
    return Held.of("structure", h200, 1)


@pytest.fixture
def function(h200: Capabilities) -> Held:
    return Held.of("function", h200, 1)


# They fold


def test_graphs_fold_and_what_an_update_carries_is_counted(make: Any, held: Held) -> None:
    """In the order of the fields, whatever the order of the nodes."""
    one = make.chain([kernel(), kernel("relu"), kernel("relu"), "memset"])
    other = make.chain(
        [
            kernel(parameters={"kernel_params": ["01"]}),
            kernel("silu", grid=(2, 1, 1)),
            kernel("relu", grid=(3, 1, 1), parameters={"kernel_params": ["02"]}),
            {"kind": "memset", "parameters": {"value": 3}},
        ]
    )
    told = explain(one, other, held)
    assert told.folds
    assert told.carried == {"kernel function": 1, "grid": 2, "memset value": 1, "parameters": 2}
    assert told.to_text() == (
        "fold: 1 node differs in kernel function, 2 in grid, 1 in memset value, 2 in parameters, which an update carries"
    )
    assert explain(one, one, held).to_text() == "fold: no node differs"


def test_many_fields_are_cut_and_time_is_named(make: Any, held: Held) -> None:
    """D4: in the default tier an attribute that changes nothing but time may differ, carried or not."""
    one = make.chain([kernel(block=(1, 1, 1), shared_bytes=0, attributes={"priority": 0})] * 2)
    busy = kernel(
        "relu",
        grid=(2, 1, 1),
        block=(2, 1, 1),
        shared_bytes=16,
        attributes={"priority": -1, "shared_memory_carveout": 50},
        parameters={"kernel_params": ["01"]},
    )
    assert explain(one, make.chain([busy] * 2), held).to_text() == (
        "fold: 2 nodes differ in kernel function, 2 in priority, 2 in shared memory carveout, 2 in grid, 2 in block, "
        "2 in shared memory, and in 1 more field, which an update carries, or which change nothing but time"
    )


# They do not


def test_the_first_difference_names_the_node_its_kernel_and_both_values(make: Any, function: Held) -> None:
    one = make.chain([kernel(), kernel(FILL, cluster=(2, 1, 1)), kernel(FILL)])
    other = make.chain([kernel(grid=(9, 1, 1)), kernel(FILL, cluster=(1, 1, 1)), kernel("relu")])
    told = explain(one, other, function)
    assert told.to_text() == f"do not fold: node 1 ({FILL_WORDS}): cluster dimension (2, 1, 1) against (1, 1, 1)"
    assert (told.where, told.node, told.kernel) == ("node 1", 1, FILL_WORDS)
    assert (told.field, told.left, told.right) == ("cluster dimension", "(2, 1, 1)", "(1, 1, 1)")


def test_another_function_is_named_on_both_sides(make: Any, function: Held) -> None:
    told = explain(make.chain([kernel(FILL)]), make.chain([kernel("gemm")]), function)
    assert told.reason == f"node 0 ({FILL_WORDS} against gemm): kernel function {FILL_WORDS} against gemm"


@pytest.mark.parametrize(
    ("field", "left", "right"),
    [
        ("device", "H200", "H100"),
        ("driver_version", "580.159", "575.1"),
        ("instantiate_flags", 1, 9),
    ],
)
def test_graphs_of_two_devices_are_not_looked_into(make: Any, held: Held, field: str, left: Any, right: Any) -> None:
    """D3."""
    told = explain(make.chain(["kernel"]), make.chain(["memset"], **{field: right}), held)
    assert told.where == "device"
    assert told.to_text() == f"do not fold: {field.replace('_', ' ')} {left} against {right}"


def test_what_forbids_sharing_is_said_after_all_differences(make: Any, held: Held) -> None:
    """D3, D11: also where the two graphs are equal."""
    one = make.chain([kernel(unreadable=("local memory",)), kernel()])
    told = explain(one, make.chain([kernel(), kernel()]), held)
    assert told.to_text() == "do not fold: node 0 (gemm): local memory cannot be read and could be in use (rule D3)"
    assert (told.field, told.right) == ("sharing", "may share")
    assert explain(one, make.chain([kernel(), "memset"]), held).field == "kind"
    freed = make.chain(["mem_alloc", "mem_free"])
    assert explain(freed, freed, held).reason == (
        "node 0 (mem_alloc): graphs with a node of kind mem_alloc are passed through (rule D11)"
    )


# Structure


def test_another_kind_at_the_same_place(make: Any, held: Held) -> None:
    told = explain(make.chain(["kernel", "memset", "kernel"]), make.chain(["kernel", "memcpy", "kernel"]), held)
    assert told.to_text() == "do not fold: node 1 (memset against memcpy): kind memset against memcpy"


def test_a_node_too_many_has_no_counterpart(make: Any, held: Held) -> None:
    """The first one at which the graphs part, if it is of the kind that is left over."""
    short = make.chain(["kernel", "memset", "kernel", "kernel"])
    long = make.chain(["kernel", "memset", "memset", "kernel", "kernel"])
    told = explain(long, short, held)
    assert told.to_text() == "do not fold: 5 nodes against 4; node 2 (memset) of the first graph has no counterpart"
    assert (told.where, told.node, told.left, told.right) == ("node count", 2, "5", "4")
    assert explain(short, long, held).reason == "4 nodes against 5; node 2 (memset) of the second graph has no counterpart"


def test_a_node_that_waits_for_others_has_no_counterpart(make: Any, held: Held) -> None:
    diamond = make.topology(["kernel"] * 4, [(0, 1), (0, 2), (1, 3), (2, 3)])
    loose = make.topology(["kernel"] * 4, [(0, 1), (0, 2), (2, 3)])
    told = explain(diamond, loose, held)
    assert told.to_text() == (
        "do not fold: node 3 (kernel) of the first graph has no counterpart: "
        "in the first it waits for nodes 1 and 2, in the second for node 2"
    )
    assert (told.where, told.node, told.field) == ("structure", 3, "dependencies")
    assert (told.left, told.right) == ("waits for nodes 1 and 2", "waits for node 2")
    alone = explain(loose, make.topology(["kernel"] * 4, [(0, 1), (0, 2)]), held)
    assert alone.reason.endswith("in the first it waits for node 2, in the second for none")


def test_many_dependencies_are_counted(make: Any, held: Held) -> None:
    fan = make.topology(["kernel"] * 10, [(source, 9) for source in range(9)])
    told = explain(fan, make.topology(["kernel"] * 10, [(source, 9) for source in range(8)]), held)
    assert told.left == "waits for nodes 0, 1, 2, 3, 4, 5 and 3 more"


def test_the_data_of_an_edge(make: Any, held: Held) -> None:
    """D3: a programmatic edge is no plain one."""
    plain = make.topology(["kernel"] * 3, [(0, 1), (1, 2)])
    told = explain(plain, make.topology(["kernel"] * 3, [(0, 1), (1, 2, (1, 0, 1))]), held)
    assert told.to_text() == "do not fold: edge 1 -> 2: from port, to port and type (0, 0, 0) against (1, 0, 1)"
    assert (told.where, told.left, told.right) == ("edge 1 -> 2", "(0, 0, 0)", "(1, 0, 1)")


@pytest.mark.parametrize(
    ("other", "node"),
    [
        ((["kernel", "memset", "memcpy", "kernel"], [(0, 1), (0, 2), (1, 3), (2, 3)]), 1),
        ((["kernel", "memcpy", "memset", "kernel"], [(0, 1), (0, 2), (2, 3), (1, 3)]), 3),
    ],
    ids=["nodes", "dependencies"],
)
def test_the_same_graph_recorded_in_another_order(make: Any, held: Held, other: Any, node: int) -> None:
    """D3: a driver pairs nodes by order, so it is another graph for an update."""
    one = make.topology(["kernel", "memcpy", "memset", "kernel"], [(0, 1), (0, 2), (1, 3), (2, 3)])
    told = explain(one, make.topology(*other), held)
    assert told.to_text() == (
        f"do not fold: the same graph up to isomorphism, recorded in another order from node {node} on: "
        "the driver pairs nodes by order (rule D3)"
    )
    assert (told.where, told.same_graph_other_order, told.by_refinement) == ("structure", True, False)


def test_edges_may_be_listed_in_any_order_of_their_targets(make: Any, held: Held) -> None:
    """An update looks at each node's own dependencies."""
    edges = [(0, 1), (0, 2), (1, 3), (2, 3)]
    one, other = make.topology(["kernel"] * 4, edges), make.topology(["kernel"] * 4, [edges[1], edges[2], edges[0], edges[3]])
    assert explain(one, other, held).folds


# Large graphs


def test_chains_of_two_thousand_nodes(make: Any, held: Held) -> None:
    """Nothing recurses along them, and the node is found wherever it stands."""
    kernels = ["kernel"] * 2000
    assert explain(make.chain(kernels), make.chain(kernels), held).folds
    middle = explain(make.chain([*kernels[:1000], "memset", *kernels[1001:]]), make.chain(kernels), held)
    assert (middle.where, middle.field) == ("node 1000", "kind")
    early, late = (make.chain([*kernels[:at], "memset", *kernels[at + 1 :]]) for at in (500, 700))
    assert explain(early, late, held).where == "node 500"
    assert explain(make.chain(kernels), make.chain(kernels[1:]), held).where == "node count"
    backwards = make.topology(kernels, [(index + 1, index) for index in range(1999)])
    told = explain(make.chain(kernels), backwards, held)
    assert (told.same_graph_other_order, told.by_refinement, told.node) == (True, False, 0)


def test_a_fan_of_three_hundred_is_no_trouble(make: Any, held: Held) -> None:
    """All of its leaves are alike: what is symmetric is taken apart, not tried out."""
    root_first = make.topology(["kernel"] * 301, [(0, leaf) for leaf in range(1, 301)])
    root_last = make.topology(["kernel"] * 301, [(300, leaf) for leaf in range(300)])
    told = explain(root_first, root_last, held)
    assert (told.same_graph_other_order, told.by_refinement) == (True, False)
    narrower = make.topology(["kernel"] * 301, [(0, leaf) for leaf in range(1, 300)])
    told = explain(root_first, narrower, held)
    assert (told.same_graph_other_order, told.node) == (False, 300)


def test_three_hundred_branches_of_two_joined_again(make: Any, held: Held) -> None:
    def branches(order: range) -> Topology:
        forks = [(0, 1 + at) for at in range(300)]
        steps = [(1 + at, 301 + order[at]) for at in range(300)]
        joins = [(301 + at, 601) for at in range(300)]
        made: Topology = make.topology(["kernel"] * 602, [*forks, *steps, *joins])
        return made

    told = explain(branches(range(300)), branches(range(299, -1, -1)), held)
    assert (told.same_graph_other_order, told.by_refinement, told.node) == (True, False, 301)


def test_where_symmetry_does_not_come_apart_it_says_so(make: Any, held: Held) -> None:
    """Every node of a layer waits for all of the layer before: no proof is tried that could take for ever."""
    layers = [(source, target) for source in range(40) for target in range(40, 80)]
    swapped = [(source, target) for source in range(40, 80) for target in range(40)]
    told = explain(make.topology(["kernel"] * 80, layers), make.topology(["kernel"] * 80, swapped), held)
    assert told.by_refinement
    assert told.reason.startswith("the same graph as far as refinement tells, recorded in another order from node 0 on")


def test_graphs_of_the_same_surroundings_everywhere_may_be_two(make: Any, held: Held) -> None:
    """Two diamonds, and one ring of eight that looks like a diamond from each of its nodes."""
    nodes = ["kernel", "memset", "memcpy", "host"] * 2
    diamonds = [(0, 1), (0, 2), (1, 3), (2, 3), (4, 5), (4, 6), (5, 7), (6, 7)]
    ring = [(0, 1), (0, 2), (1, 3), (2, 7), (4, 5), (4, 6), (5, 7), (6, 3)]
    for one, other in ((diamonds, ring), (ring, diamonds)):
        told = explain(make.topology(nodes, one), make.topology(nodes, other), held)
        assert told.to_text() == ("do not fold: not the same graph, though every node of the one is like a node of the other")
        assert (told.where, told.node, told.same_graph_other_order) == ("structure", None, False)


def test_a_difference_in_order_does_not_hide_another_kind(make: Any, held: Held) -> None:
    """The graphs part at node 1, and what has no counterpart stands at node 3."""
    one = make.topology(["kernel", "memcpy", "memset", "host"], [(0, 1), (0, 2), (0, 3)])
    other = make.topology(["kernel", "memset", "memcpy", "empty"], [(0, 1), (0, 2), (0, 3)])
    assert explain(one, other, held).reason == "node 3 (host against empty): kind host against empty"
    more = make.topology(["kernel", "memset", "memcpy", "memset"], [(0, 1), (0, 2), (0, 3)])
    kinds = make.topology(["kernel", "memcpy", "memset", "memcpy"], [(0, 1), (0, 2), (0, 3)])
    assert explain(more, kinds, held).where == "node 1"
    long = make.topology(["kernel", "memset", "memcpy", "memset", "memset"])
    assert explain(long, make.topology(["kernel", "memcpy", "memset", "memset"]), held).reason == (
        "5 nodes against 4; node 1 (memset) of the first graph has no counterpart"
    )
    assert explain(make.topology(["memset", "host", "memset"]), make.topology(["host", "memset"]), held).node == 0
    late = make.topology(["host", "memset", "memset", "memset"])
    assert explain(late, make.topology(["memset", "host", "memset"]), held).node == 3


def test_a_cycle_in_a_foreign_file_is_compared_all_the_same(make: Any, held: Held) -> None:
    ring = make.topology(["kernel", "kernel", "memset"], [(0, 1), (1, 2), (2, 0)])
    assert explain(ring, ring, held).folds
    turned = make.topology(["memset", "kernel", "kernel"], [(0, 1), (1, 2), (2, 0)])
    assert explain(ring, turned, held).same_graph_other_order
    assert explain(ring, make.chain(["kernel", "kernel", "memset"]), held).where == "structure"


def test_graphs_without_nodes(make: Any, held: Held) -> None:
    assert explain(make.chain([]), make.chain([]), held).folds
    assert explain(make.chain([]), make.chain(["kernel"]), held).reason == (
        "0 nodes against 1; node 0 (kernel) of the second graph has no counterpart"
    )


# Child graphs


def test_child_graphs_are_looked_into(make: Any, held: Held) -> None:
    def parent(*nodes: Any) -> Topology:
        made: Topology = make.chain(["kernel", {"kind": "child_graph", "child": make.subgraph(nodes)}])
        return made

    plain = parent(kernel(), kernel())
    assert explain(plain, parent(kernel(), kernel(grid=(2, 1, 1))), held).carried == {"grid": 1}
    assert explain(plain, parent(kernel()), held).to_text() == (
        "do not fold: node 1, child graph: 2 nodes against 1; node 1 (gemm) of the first graph has no counterpart"
    )
    told = explain(plain, parent(kernel(), kernel(local_bytes=8)), held)
    assert told.folds  # what one side does not tell is no difference
    told = explain(parent(kernel(local_bytes=4)), parent(kernel(local_bytes=8)), held)
    assert told.to_text() == (
        "do not fold: node 1, child graph, node 0 (gemm): local memory 4 bytes a thread against 8 bytes a thread"
    )
    assert (told.where, told.node) == ("node 1, child graph, node 0", 0)


def test_inside_a_child_graph_clusters_are_held(make: Any, held: Held) -> None:
    """D3: with another function they are carried, but nobody says (1, 1, 1) there."""
    one, other = kernel(), kernel("relu", cluster=(2, 1, 1))
    assert explain(make.chain([one]), make.chain([other]), held).folds
    left, right = (make.chain([{"kind": "child_graph", "child": make.subgraph([node])}]) for node in (one, other))
    assert explain(left, right, held).field == "cluster dimension"


def test_a_child_graph_in_another_order_is_seen_from_outside(make: Any, held: Held) -> None:
    """And two parents whose children differ are not the same graph in another order."""
    first, second, third = (
        {"kind": "child_graph", "child": make.subgraph(*graph)}
        for graph in (
            (["kernel", "memset"], [(0, 1)]),
            (["memset", "kernel"], [(1, 0)]),
            (["memset", "kernel"], [(0, 1)]),
        )
    )
    told = explain(make.chain([first]), make.chain([second]), held)
    assert told.reason.startswith("node 0, child graph: the same graph up to isomorphism, recorded in another order")
    assert told.where == "node 0, child graph, structure"
    assert explain(make.topology(["kernel", first]), make.topology([second, "kernel"]), held).same_graph_other_order
    assert not explain(make.topology(["kernel", first]), make.topology([third, "kernel"]), held).same_graph_other_order


# JSON, refusals, likeness


def test_an_explanation_is_data(make: Any, held: Held) -> None:
    told = explain(make.chain(["kernel"]), make.chain(["memset"]), held)
    assert Explanation.model_validate_json(told.model_dump_json()) == told


def test_a_refusal_in_one_line() -> None:
    """D5: the result by name, the node, the kernels of both sides, and the first difference."""
    one = Node(index=3, kind="kernel", name=FILL, cluster=(2, 1, 1), grid=(1, 1, 1))
    other = Node(index=3, kind="kernel", name=FILL, cluster=(4, 1, 1), grid=(9, 1, 1))
    assert explain_refusal("PARAMETERS_CHANGED", 3, one, other) == (
        f"PARAMETERS_CHANGED at node 3 ({FILL_WORDS}): cluster dimension (2, 1, 1) against (4, 1, 1)"
    )
    named = explain_refusal("NODE_TYPE_CHANGED", 3, one, Node(index=3, kind="memset"))
    assert named == f"NODE_TYPE_CHANGED at node 3 ({FILL_WORDS} against memset): kind kernel against memset"
    assert explain_refusal("ERROR", 3, one, one) == (f"ERROR at node 3 ({FILL_WORDS}): no field that the driver tells differs")
    assert explain_refusal("PARAMETERS_CHANGED", 3, None, other) == f"PARAMETERS_CHANGED at node 3 ({FILL_WORDS})"
    assert explain_refusal("TOPOLOGY_CHANGED", None, None, None) == "TOPOLOGY_CHANGED"


def test_the_nearest_graph_has_the_same_counts_and_differs_last(make: Any) -> None:
    one = make.chain([kernel("a"), kernel("b"), kernel("c")])
    early, late = make.chain([kernel("x"), kernel("b"), kernel("c")]), make.chain([kernel("a"), kernel("b"), kernel("x")])
    longer = make.chain([kernel("a"), kernel("b"), kernel("c"), kernel("d")])
    much_longer = make.chain([kernel("a"), kernel("b"), kernel("c")] + [kernel("d")] * 3)
    assert nearest(one, [longer, early, late]) == 2
    assert nearest(one, [much_longer, longer]) == 1
    assert nearest(one, [early, early]) == 0
    with pytest.raises(GraphDedupError, match="no graph to compare with"):
        nearest(one, [])


def test_what_makes_a_graph_near_can_be_said(make: Any, held: Held) -> None:
    """Where functions are carried, another function is no difference; a child graph is looked into."""
    one = make.chain([kernel("a"), kernel("b")])
    renamed, wider = make.chain([kernel("x"), kernel("b")]), make.chain([kernel("a"), kernel("b", local_bytes=9)])
    assert nearest(one, [wider, renamed]) == 0
    assert nearest(make.chain([kernel("a"), kernel("b", local_bytes=4)]), [wider, renamed], held) == 1
    children = [
        make.chain([{"kind": "child_graph", "child": make.subgraph([kernel("a", local_bytes=size)])}, kernel()])
        for size in (1, 2, 1)
    ]
    assert nearest(children[0], children[1:]) == 1
