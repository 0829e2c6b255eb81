"""Chains of updates and launches of one executable: which function each launch runs, in clusters of how many blocks.

Measured on an NVIDIA H200 with driver 580.159. A chain is told in words: "f2" is a graph of one kernel with function f and
clusters of two blocks, "g" one of function g that sets no cluster dimension, "g1" one that says (1, 1, 1). The first word is
what the executable is made of, others like it are updates; "launch" and "upload" say themselves, "kernel" runs a kernel
outside of graphs.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from graphdedup.probe.bench import Bench
from graphdedup.probe.bench_simulated import SimulatedBench
from graphdedup.probe.spec import FUNCTIONS, GraphSpec, Kernel, line

NAMES = {"f": "add", "g": "xor"}


@pytest.fixture(autouse=True)
def of_the_measured_kind(measured: bool) -> None:
    """What an update leaves behind is a fact of one kind of device and driver."""
    if not measured:
        pytest.skip("measured on compute capability 9.0 with a driver of branch 580")


def graph(word: str) -> GraphSpec:
    kernel = Kernel(NAMES[word[0]])
    return line(kernel.with_attributes(cluster=(int(word[1:]), 1, 1)) if word[1:] else kernel)


def play(bench: Bench, chain: str, *, bare: bool) -> str:
    """What the launches of a chain showed, in the same words; a launch without clusters shows one block."""
    words = chain.split()
    raws: dict[str, Any] = {word: bench.build(graph(word)) for word in words if word[0] in NAMES}
    executable = bench.instantiate(raws[words[0]])
    letters = {FUNCTIONS.index(name): letter for letter, name in NAMES.items()}
    shown = []
    try:
        for seed, word in enumerate(words[1:]):
            if word == "launch":
                bench.run(executable, seed, bare=bare)
                stamp = bench.stamp(0)
                assert stamp[9:11] == [1, 1]
                shown.append(f"{letters[stamp[0]]}{stamp[8]}")
            elif word == "upload":
                bench.run_by(lambda: bench.driver.upload(executable))
            elif word == "kernel":
                run_a_kernel(bench)
            else:
                assert bench.update(executable, raws[word]).accepted
    finally:
        bench.destroy(executable)
        for raw in raws.values():
            bench.discard(raw)
    return " ".join(shown)


def run_a_kernel(bench: Bench) -> None:
    """Outside of any graph."""
    if isinstance(bench, SimulatedBench):
        bench.device.run_kernel()
        return
    torch.ones(64, device="cuda").add_(1)
    torch.cuda.synchronize()


@pytest.mark.parametrize(
    ("chain", "shown"),
    [
        ("f2 launch g4 launch", "f2 g2"),
        ("f2 launch g4 f4 launch", "f2 f2"),
        ("f launch g2 launch", "f1 g1"),
        ("f1 launch g4 launch", "f1 g1"),
        ("f4 launch g1 launch", "f4 g4"),
        ("f2 launch g4 launch f4 launch g8 launch", "f2 g2 f2 g2"),
        ("f2 launch launch g4 launch launch", "f2 f2 g2 g2"),
    ],
)
def test_a_bare_launch_freezes_the_clusters_whatever_updates_follow(chain: str, shown: str, bench: Bench) -> None:
    """D3: the function is that of the last update, the cluster dimension that of the first launch."""
    assert play(bench, chain, bare=True) == shown


@pytest.mark.parametrize("chain", ["f2 launch g4 kernel launch", "f2 launch kernel g4 launch"])
def test_a_kernel_outside_of_graphs_thaws_them(chain: str, bench: Bench) -> None:
    """D1: whether it runs before the update or after it; this is why the fold's driver runs one."""
    assert play(bench, chain, bare=True) == "f2 g4"


def test_a_kernel_outside_of_graphs_mends_no_cluster_of_the_same_function(bench: Bench) -> None:
    """D3: that one was lost in the update, so within a group one function has one cluster dimension."""
    assert play(bench, "f2 launch f4 kernel launch", bare=True) == "f2 f2"


@pytest.mark.parametrize("bare", [True, False], ids=["bare", "by the fold's driver"])
@pytest.mark.parametrize("other", ["f", "g"], ids=["same function", "another function"])
@pytest.mark.parametrize("after", ["1", "2", "4"])
@pytest.mark.parametrize("before", ["", "1", "2", "4"])
def test_a_fresh_executable_takes_every_cluster(before: str, after: str, other: str, bare: bool, bench: Bench) -> None:
    """D3: before the first upload the function does not matter."""
    assert play(bench, f"f{before} {other}{after} launch", bare=bare) == f"{other}{after}"


@pytest.mark.parametrize("bare", [True, False], ids=["bare", "by the fold's driver"])
@pytest.mark.parametrize("other", ["f", "g"], ids=["same function", "another function"])
@pytest.mark.parametrize("before", ["1", "2", "4"])
def test_not_even_a_fresh_executable_unsets_a_cluster(before: str, other: str, bare: bool, bench: Bench) -> None:
    """D3: a kernel that sets no cluster dimension inherits that of the kernel in whose place it comes."""
    assert play(bench, f"f{before} {other} launch", bare=bare) == f"{other}{before}"


@pytest.mark.parametrize("bare", [True, False], ids=["bare", "by the fold's driver"])
@pytest.mark.parametrize(
    ("chain", "shown"),
    [
        ("f2 upload f4 launch", "f2"),
        ("f4 upload f1 launch", "f4"),
        ("f2 upload g4 launch", "g4"),
        ("f upload g2 launch", "g2"),
        ("f2 upload g launch", "g2"),
        ("f2 upload f4 g4 f2 launch", "f2"),
        ("f2 upload g4 f2 launch", "f2"),
    ],
)
def test_an_uploaded_executable_takes_a_cluster_with_another_function_only(
    chain: str, shown: str, bare: bool, bench: Bench
) -> None:
    """D3: an upload is enough for a cluster dimension to stay with its function; executables of the fold are uploaded."""
    assert play(bench, chain, bare=bare) == shown


@pytest.mark.parametrize(
    ("chain", "shown"),
    [
        ("f2 launch g4 launch f2 launch g4 launch", "f2 g4 f2 g4"),
        ("f launch g4 launch", "f1 g4"),
        ("f1 launch g4 launch f1 launch", "f1 g4 f1"),
        ("f4 launch g1 launch f4 launch", "f4 g1 f4"),
        ("f2 launch launch g4 launch launch f2 launch launch", "f2 f2 g4 g4 f2 f2"),
    ],
)
def test_with_a_kernel_before_the_launch_clusters_follow_the_function(chain: str, shown: str, bench: Bench) -> None:
    """D1, D3: the fold's driver carries them both ways, again and again."""
    assert play(bench, chain, bare=False) == shown


@pytest.mark.parametrize(
    ("chain", "shown"),
    [
        ("f2 launch f4 launch", "f2 f2"),
        ("f4 launch f2 launch f4 launch", "f4 f4 f4"),
        ("f1 launch f2 launch", "f1 f1"),
        ("f launch f2 launch", "f1 f1"),
    ],
)
def test_the_same_function_keeps_its_cluster_all_the_same(chain: str, shown: str, bench: Bench) -> None:
    """D3: the driver says success and the launch shows the old value, with a kernel in between or not."""
    assert play(bench, chain, bare=False) == play(bench, chain, bare=True) == shown


@pytest.mark.parametrize(
    ("chain", "shown"),
    [
        ("f2 launch g launch", "f2 g2"),
        ("f2 launch g1 launch", "f2 g1"),
        ("f launch g4 launch f launch", "f1 g4 f4"),
        ("f launch g4 launch f1 launch", "f1 g4 f1"),
    ],
)
def test_no_cluster_is_inherited_and_one_block_is_not(chain: str, shown: str, bench: Bench) -> None:
    """D3: why the fold has a kernel say (1, 1, 1) where a sibling sets a cluster dimension."""
    assert play(bench, chain, bare=False) == shown
