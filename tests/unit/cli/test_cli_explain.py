"""``graphdedup explain``: why two captured graphs of a file fold or do not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from graphdedup import cli
from graphdedup.graphs_file import ExportedGraph, GraphsFile
from graphdedup.probe.known import probe_profile
from graphdedup.topology import Topology
from seam.simulated import DriverProfile, SimulatedDevice


def topology(rows: int, local_bytes: int) -> Topology:
    """Two kernels on the simulated device, exported by its driver."""
    from graphdedup.driver.simulated import SimulatedDriver

    device = SimulatedDevice(1 << 20)
    graph = device.new_graph()
    first = graph.add_kernel("gemm", lambda *_: None, grid=(rows, 1, 1))
    graph.add_kernel("sort", lambda *_: None, after=(first,), local_bytes=local_bytes)
    return SimulatedDriver(device).topology(graph)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    graphs = (
        ExportedGraph(index=0, label="bs=1", group=0, topology=topology(1, 0)),
        ExportedGraph(index=1, label="bs=2", group=0, topology=topology(2, 0)),
        ExportedGraph(index=2, label="bs=64", group=1, topology=topology(64, 4096)),
    )
    profile = DriverProfile()
    made = GraphsFile(
        device=profile.name,
        driver_version=profile.driver_version,
        tier="structure",
        capabilities=probe_profile(profile),
        graphs=graphs,
    )
    path = tmp_path / "graphs.json"
    path.write_text(made.to_json())
    return path


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Run the command; it must refuse in one line. Returns that line."""
    assert cli.main(["explain", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("graphdedup: error: ")
    assert err.count("\n") == 1
    assert "Remedy: " in err
    return err


def test_it_says_why_two_graphs_do_not_fold(capsys: pytest.CaptureFixture[str], file: Path) -> None:
    assert cli.main(["explain", str(file), "bs=1", "2"]) == 0
    assert capsys.readouterr() == (
        "graph 0 (bs=1) and graph 2 (bs=64) do not fold: "
        "node 1 (sort): local memory 0 bytes a thread against 4096 bytes a thread\n",
        "",
    )


def test_it_says_what_an_update_carries_where_they_do(capsys: pytest.CaptureFixture[str], file: Path) -> None:
    assert cli.main(["explain", str(file), "0", "1"]) == 0
    assert capsys.readouterr().out == (
        "graph 0 (bs=1) and graph 1 (bs=2) fold on the same exec, that of group 0: "
        "1 node differs in grid, which an update carries\n"
    )


def test_one_graph_is_compared_with_the_nearest_group(capsys: pytest.CaptureFixture[str], file: Path) -> None:
    assert cli.main(["explain", str(file), "bs=64"]) == 0
    assert capsys.readouterr().out.startswith("graph 2 (bs=64) and graph 0 (bs=1) do not fold: node 1 (sort)")


def test_json_has_the_fields_apart(capsys: pytest.CaptureFixture[str], file: Path) -> None:
    assert cli.main(["explain", str(file), "0", "2", "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["left"], document["right"], document["folds"], document["known_by"]) == (0, 2, False, "fields")
    told = document["explanation"]
    assert (told["where"], told["field"], told["left"]) == ("node 1", "local memory", "0 bytes a thread")


def test_bad_input_is_exit_2_and_one_line(capsys: pytest.CaptureFixture[str], file: Path, tmp_path: Path) -> None:
    foreign = tmp_path / "foreign.json"
    foreign.write_text('{"kind": "graphdedup.demo", "schema_version": 1}')
    text = tmp_path / "text.json"
    text.write_text("captured 36 graphs")
    assert "no such file" in refused(capsys, str(tmp_path / "missing.json"), "0", "1")
    assert "not a regular file" in refused(capsys, str(tmp_path), "0", "1")
    assert "kind: Input should be 'graphdedup.graphs'" in refused(capsys, str(foreign), "0", "1")
    assert "not a file of captured graphs" in refused(capsys, str(text), "0", "1")
    assert "'7' is no graph of the file" in refused(capsys, str(file), "7", "1")
    assert "'bs=' is several graphs of the file. Remedy: use one of 0 (bs=1)" in refused(capsys, str(file), "0", "bs=")
    assert "graph 0 (bs=1) is named twice" in refused(capsys, str(file), "0", "bs=1")
    assert "--format 'html' is unknown" in refused(capsys, str(file), "0", "1", "--format", "html")
    assert "Missing argument" in refused(capsys, str(file))
    assert "extra" in refused(capsys, str(file), "0", "1", "extra")
