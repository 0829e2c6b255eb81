"""Which function runs with which cluster dimension at each node of a group, worked out by hand."""

from __future__ import annotations

import pytest

from graphdedup.clusters import ClusterUse, Use, uses
from graphdedup.driver.protocol import GraphRecord, NodeRecord

NO_CLUSTER, ONE, TWO, FOUR = (0, 0, 0), (1, 1, 1), (2, 1, 1), (4, 1, 1)
F, G, H = 0x7F00_0000_0010, 0x7F00_0000_0020, 2**63 + 5


def use(*nodes: tuple[int, tuple[int, int, int]]) -> tuple[Use, ...]:
    return nodes


def test_a_node_uses_its_function_and_its_cluster() -> None:
    nodes = (
        NodeRecord("kernel", function=F, cluster=TWO),
        NodeRecord("memset"),
        NodeRecord("kernel", (1, 2), function=H, cluster=(1, 2, 1), unreadable=("preferred_cluster",)),
    )
    assert uses(nodes) == ((F, TWO), (0, ONE), (H, (1, 2, 1)))
    assert uses(()) == ()


def test_a_kernel_that_sets_no_cluster_counts_as_one_of_one_block() -> None:
    """D3: that is what it says once it is mended."""
    unset, one = (NodeRecord("kernel", function=F, cluster=cluster) for cluster in (NO_CLUSTER, ONE))
    assert uses((unset,)) == uses((one,)) == ((F, ONE),)


def test_what_runs_inside_a_child_graph_is_no_use_of_its_parent() -> None:
    """D3: clusters of child graphs are in the record, so members of one group have the same ones."""
    child = GraphRecord((NodeRecord("kernel", function=F, cluster=FOUR),), ())
    assert uses((NodeRecord("child_graph", child=child),)) == ((0, ONE),)


@pytest.mark.parametrize(
    ("other", "node"),
    [
        (use((F, TWO), (G, ONE), (0, ONE)), None),  # the same
        (use((G, FOUR), (F, FOUR), (0, ONE)), None),  # other functions, whatever their clusters
        (use((H, TWO), (G, ONE), (0, ONE)), None),
        (use((F, FOUR), (G, ONE), (0, ONE)), 0),
        (use((F, ONE), (G, ONE), (0, ONE)), 0),
        (use((F, TWO), (G, TWO), (0, ONE)), 1),
        (use((H, TWO), (G, TWO), (0, ONE)), 1),
        (use((F, FOUR), (G, TWO), (0, ONE)), 0),  # the first of two
    ],
)
def test_one_function_has_one_cluster_at_one_node(other: tuple[Use, ...], node: int | None) -> None:
    """D3: an update does not carry a cluster dimension where the function stays."""
    assert ClusterUse(use((F, TWO), (G, ONE), (0, ONE))).conflict(other) == node


def test_every_member_counts_not_the_founder_alone() -> None:
    """D3: the executable may hold any member's graph when the next one comes."""
    held = ClusterUse(use((F, TWO), (F, TWO)))
    assert held.conflict(use((G, ONE), (H, ONE))) is None
    held.add(use((G, FOUR), (F, TWO)))
    held.add(use((F, TWO), (H, ONE)))
    assert held.conflict(use((G, ONE), (F, TWO))) == 0
    assert held.conflict(use((F, TWO), (H, TWO))) == 1
    assert held.conflict(use((G, FOUR), (H, ONE))) is None
    assert held.conflict(use((F, TWO), (F, FOUR))) == 1


def test_a_function_may_have_another_cluster_at_another_node() -> None:
    """D3: nodes are updated one by one."""
    held = ClusterUse(use((F, TWO), (G, ONE)))
    held.add(use((H, FOUR), (G, ONE)))
    assert held.conflict(use((G, FOUR), (F, FOUR))) is None
    assert held.conflict(use((G, TWO), (H, ONE))) is None


def test_what_is_only_looked_at_is_not_taken_in() -> None:
    """D1: a graph that the driver refuses leaves no use behind."""
    held = ClusterUse(use((F, TWO)))
    assert held.conflict(use((G, FOUR))) is None
    assert held.conflict(use((G, ONE))) is None
    held.add(use((G, ONE)))
    assert held.conflict(use((G, FOUR))) == 0


def test_it_grows_with_the_functions_not_with_the_members() -> None:
    held = ClusterUse(use((F, TWO), (F, TWO)))
    for function in (F, G, H) * 100:
        held.add(use((function, TWO), (F, TWO)))
    assert len(held._more) == 2


def test_graphs_of_other_lengths_are_a_mistake_of_the_caller() -> None:
    """D2: members of one group have equal records, hence as many nodes."""
    held = ClusterUse(use((F, TWO)))
    for call in (held.conflict, held.add):
        with pytest.raises(ValueError, match=r"shorter|longer"):
            call(use((F, TWO), (G, ONE)))
