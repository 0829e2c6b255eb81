"""One captured graph in GraphML and DOT: what is written is read back, whatever the names hold."""

from __future__ import annotations

import io
import json
import re
import shutil
import subprocess
from typing import Any

import networkx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphdedup import Topology
from graphdedup.graph_formats import FORMATS, to_dot, to_graphml

NASTY = 'gemm<float, "quoted">::operator()(T&&, &lt;)\\n\\ back\\\nnew line\t{a|b} \\'


def read_graphml(text: str) -> networkx.DiGraph:
    return networkx.read_graphml(io.BytesIO(text.encode()))


class Dot:
    """A strict reader of the DOT that is written here: statements of a digraph, each of a known form."""

    TOKEN = re.compile(r'\s*("(?:[^"\\]|\\.)*"|->|[{}\[\];=,]|[A-Za-z_][A-Za-z_0-9]*)', re.S)

    def __init__(self, text: str) -> None:
        self.tokens: list[str] = []
        at = 0
        while text[at:].strip():
            match = self.TOKEN.match(text, at)
            assert match, f"no token at {text[at : at + 40]!r}"
            self.tokens.append(match[1])
            at = match.end()
        self.at = 0
        self.nodes: dict[str, str] = {}
        self.edges: dict[tuple[str, str], str] = {}
        self.clusters: dict[str, list[str]] = {}
        self.label = ""
        assert [self.take(), self.take(), self.take()] == ["digraph", "graphdedup", "{"]
        self.body("")
        assert self.at == len(self.tokens)

    def take(self) -> str:
        self.at += 1
        return self.tokens[self.at - 1]

    def body(self, cluster: str) -> None:
        while (token := self.take()) != "}":
            if token == "subgraph":
                name = self.take()
                assert self.take() == "{"
                self.clusters[name] = []
                self.body(name)
                continue
            if token == "label":
                assert self.take() == "="
                text = self.text(self.take())
                self.label = self.label if cluster else text
            elif token == "node":
                assert self.attributes() == {"shape": "box"}
            elif self.tokens[self.at] == "->":
                self.take()
                target = self.take()
                self.edges[token, target] = self.attributes().get("label", "")
            else:
                assert token not in self.nodes
                self.nodes[token] = self.attributes()["label"]
                if cluster:
                    self.clusters[cluster].append(token)
            assert self.take() == ";"

    def attributes(self) -> dict[str, str]:
        found = {}
        if self.tokens[self.at] == "[":
            self.take()
            name, equals, value = self.take(), self.take(), self.take()
            assert (equals, self.take()) == ("=", "]")
            found[name] = self.text(value) if value.startswith('"') else value
        return found

    @staticmethod
    def text(quoted: str) -> str:
        """What Graphviz shows for a label in quotes."""
        assert "\n" not in quoted
        inner = re.sub(r"\\(.)", lambda match: {"n": "\n"}.get(match[1], match[1]), quoted[1:-1])
        assert not re.search(r"&(?!amp;)", inner), "an entity that was not meant"
        return inner.replace("&amp;", "&")


@pytest.fixture
def graph(make: Any) -> Topology:
    """A kernel of a nasty name, a copy, and a child graph with a child of its own; one edge is programmatic."""
    kernel = {
        "kind": "kernel", "name": NASTY, "grid": (8, 1, 1), "block": (128, 1, 1), "cluster": (2, 1, 1), "function": 2**47 + 1,
        "attributes": {"priority": -1, "mem_sync_domain_map": (0, 1)}, "parameters": {"kernel_params": ["00ff"]},
    }  # fmt: skip
    copy = {"kind": "memcpy", "memory": ("host", "device"), "parameters": {"width_bytes": 4}}
    inner = make.subgraph(["memset", {"kind": "child_graph", "child": make.subgraph(["empty"])}], [(0, 1)])
    nodes = [kernel, copy, {"kind": "child_graph", "child": inner, "unreadable": ("parameters",)}]
    made: Topology = make.topology(nodes, [(0, 1, (1, 0, 1)), (1, 2)], label='decode "bs=8"')
    return made


def test_json_is_the_topology(graph: Topology) -> None:
    assert Topology.from_json(FORMATS["json"](graph)) == graph


def test_graphml_comes_back_through_networkx_with_every_node_edge_and_field(graph: Topology) -> None:
    read = read_graphml(to_graphml(graph))
    assert list(read.nodes) == ["0", "1", "2", "2.0", "2.1", "2.1.0"]
    assert list(read.edges(data=True)) == [
        ("0", "1", {"from_port": 1, "to_port": 0, "type": 1}),
        ("1", "2", {"from_port": 0, "to_port": 0, "type": 0}),
        ("2.0", "2.1", {"from_port": 0, "to_port": 0, "type": 0}),
    ]
    kernel = read.nodes["0"]
    assert (kernel["kind"], kernel["name"], kernel["function"]) == ("kernel", NASTY, 2**47 + 1)
    assert json.loads(kernel["grid"]) == [8, 1, 1]
    assert json.loads(kernel["attributes"]) == {"priority": -1, "mem_sync_domain_map": [0, 1]}
    assert json.loads(kernel["parameters"]) == {"kernel_params": ["00ff"]}
    assert "local_bytes" not in kernel, "what is not known is left out"
    assert (read.nodes["1"]["label"], json.loads(read.nodes["1"]["memory"])) == ("memcpy", ["host", "device"])
    assert (read.nodes["2.0"]["parent"], read.nodes["2.1.0"]["parent"]) == ("2", "2.1")
    assert "parent" not in kernel
    assert read.graph["label"] == 'decode "bs=8"'
    assert (read.graph["device"], read.graph["instantiate_flags"]) == ("H200", 1)


def test_dot_has_every_node_edge_and_child_graph(graph: Topology) -> None:
    dot = Dot(to_dot(graph))
    assert list(dot.nodes) == ["n0", "n1", "n2", "n2_0", "n2_1", "n2_1_0"]
    assert dot.label == 'decode "bs=8"'
    assert dot.edges == {("n0", "n1"): "1, 0, 1", ("n1", "n2"): "", ("n2_0", "n2_1"): ""}
    assert dot.clusters == {"cluster_n2": ["n2_0", "n2_1"], "cluster_n2_1": ["n2_1_0"]}
    assert dot.nodes["n0"].startswith('0: gemm<float, "quoted">::operator()')
    assert dot.nodes["n0"].endswith("\ngrid (8, 1, 1) block (128, 1, 1)")
    assert dot.nodes["n1"] == "1: memcpy\nhost to device"


@settings(max_examples=150, deadline=None)
@given(name=st.text(min_size=1, max_size=60), label=st.text(max_size=20))
def test_no_name_breaks_a_format(name: str, label: str) -> None:
    """Any text: control characters are written as escapes, everything else comes back."""
    topology = Topology.model_validate(
        {
            "device": "d", "driver_version": "1", "instantiate_flags": 1, "label": label, "edges": [],
            "nodes": [{"index": 0, "kind": "memset", "name": name}],
        }
    )  # fmt: skip
    plain = all(char.isprintable() for char in name)
    node = read_graphml(to_graphml(topology)).nodes["0"]
    shown = Dot(to_dot(topology)).nodes["n0"]
    if plain:
        assert node["name"] == name
        assert shown == f"0: {name}"
    assert "\x00" not in shown
    assert "\x1b" not in shown


@pytest.mark.parametrize(
    ("name", "quoted"),
    [
        ('a"b', r'"0: a\"b"'),
        ("a\\", r'"0: a\\"'),
        ('\\"', r'"0: \\\""'),
        ("a\nb", r'"0: a\nb"'),
        ("a\\nb", r'"0: a\\nb"'),
        ("<b>&lt;", '"0: <b>&amp;lt;"'),
        ("a\x00b", r'"0: a\\x00b"'),
    ],
)
def test_dot_escapes_what_graphviz_would_read(make: Any, name: str, quoted: str) -> None:
    """Quotes, backslashes, line ends, entities; and a NUL ends a string of C."""
    text = to_dot(make.topology([{"kind": "memset", "name": name}]))
    assert f"  n0 [label={quoted}];" in text.splitlines()


@pytest.mark.skipif(shutil.which("dot") is None, reason="Graphviz is not installed")
def test_graphviz_reads_it(graph: Topology) -> None:
    done = subprocess.run(["dot", "-Tplain"], input=to_dot(graph), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\nnode ") == 6


def test_an_empty_graph_is_written_too(make: Any) -> None:
    assert len(read_graphml(to_graphml(make.topology([])))) == 0
    assert Dot(to_dot(make.topology([]))).nodes == {}
