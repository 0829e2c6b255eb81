"""The file of captured graphs: read back, looked up, and asked about two of its graphs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from graphdedup import graphs_file
from graphdedup.capabilities import Capabilities
from graphdedup.errors import GraphDedupError, ReportError, SettingsError
from graphdedup.graphs_file import Answer, ExportedGraph, GraphsFile

GEMM = {"kind": "kernel", "name": "gemm", "grid": (8, 1, 1)}
RELU = {"kind": "kernel", "name": "relu", "grid": (4, 1, 1), "local_bytes": 0}
DEEP = RELU | {"local_bytes": 4096}


@pytest.fixture
def file(make: Any, h200: Capabilities) -> GraphsFile:
    """Two graphs that share, one that differs, one that was refused, one passed through, one on its own."""
    plain, wide = make.chain([GEMM, RELU]), make.chain([GEMM | {"grid": (16, 1, 1)}, RELU])
    deep = make.chain([GEMM, DEEP])
    passed = "node 0 is of kind mem_alloc (rule D11)"
    graphs = (
        ExportedGraph(index=0, label="decode bs=1 segment 0", session="decode", group=0, topology=plain),
        ExportedGraph(index=1, label="decode bs=2 segment 0", session="decode", group=0, topology=wide),
        ExportedGraph(index=2, label="decode bs=16 segment 0", session="decode", group=1, topology=deep),
        ExportedGraph(index=3, label="refused", group=2, refusals=("PARAMETERS_CHANGED at node 1 (relu)",), topology=plain),
        ExportedGraph(index=4, label="sampled", reason=passed, topology=make.chain(["mem_alloc", RELU])),
        ExportedGraph(index=5, label="alone", group=3, reason="un-folded at replay: ERROR", topology=plain),
        ExportedGraph(index=9, group=4, topology=plain),
    )
    return GraphsFile(device="H200", driver_version="580.159", tier="structure", capabilities=h200, graphs=graphs)


# JSON


def test_a_file_comes_back_from_json_equal(file: GraphsFile) -> None:
    """Compact: defaults are left out, but for what tells the kind of file."""
    text = file.to_json()
    assert GraphsFile.from_json(text) == GraphsFile.from_json(text.encode()) == file
    document = json.loads(text)
    assert (document["schema_version"], document["kind"]) == (1, "graphdedup.graphs")
    assert document["graphs"][6] == {
        "index": 9,
        "group": 4,
        "topology": {
            "device": "H200",
            "driver_version": "580.159",
            "instantiate_flags": 1,
            "nodes": [
                {"index": 0, "kind": "kernel", "name": "gemm", "grid": [8, 1, 1]},
                {"index": 1, "kind": "kernel", "name": "relu", "grid": [4, 1, 1], "local_bytes": 0},
            ],
            "edges": [{"source": 0, "target": 1}],
        },
    }


def test_a_file_of_full_json_is_read_too(file: GraphsFile) -> None:
    """Somebody else may have written it."""
    assert GraphsFile.from_json(file.model_dump_json()) == file


def test_hundreds_of_graphs_come_back(make: Any, h200: Capabilities) -> None:
    """64 graphs of 300 nodes."""
    topology = make.chain([GEMM | {"parameters": {"kernel_params": ["00" * 8] * 6}}] * 300)
    graphs = tuple(ExportedGraph(index=index, label=f"bs={index}", group=index % 4, topology=topology) for index in range(64))
    file = GraphsFile(device="H200", tier="structure", capabilities=h200, graphs=graphs)
    back = GraphsFile.from_json(file.to_json())
    assert back == file
    assert back.explain("bs=63").startswith("graph 63 (bs=63) and graph 0 (bs=0) could fold (no node differs)")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"kind": "graphdedup.demo"}, "kind: Input should be 'graphdedup.graphs'"),
        ({"schema_version": 2}, "schema_version: Input should be 1"),
        ({"tier": None}, "tier: Input should be a valid string"),
        ({"surprise": 1}, "surprise: Extra inputs are not permitted"),
        ({"graphs": [{"index": 0}]}, "graphs.0.topology: Field required"),
    ],
)
def test_what_is_no_such_file_is_refused_with_the_place(
    file: GraphsFile, tmp_path: Path, change: dict[str, Any], said: str
) -> None:
    path = tmp_path / "graphs.json"
    path.write_text(json.dumps(json.loads(file.to_json()) | change))
    with pytest.raises(ReportError) as caught:
        GraphsFile.read(path)
    assert caught.value.problem == f"{path}: not a file of captured graphs: {said}."


def test_two_graphs_of_one_index_are_refused(file: GraphsFile) -> None:
    document = json.loads(file.to_json())
    document["graphs"][1]["index"] = 0
    with pytest.raises(ReportError, match="two graphs have the same index"):
        GraphsFile.from_json(json.dumps(document))


def test_a_file_that_cannot_be_read_is_one_line(file: GraphsFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "graphs.json"
    with pytest.raises(ReportError, match="no such file"):
        GraphsFile.read(path)
    with pytest.raises(ReportError, match="not a regular file"):
        GraphsFile.read(tmp_path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ReportError, match="not a file of captured graphs"):
        GraphsFile.read(path)
    path.write_text(file.to_json())
    monkeypatch.setattr(graphs_file, "MAX_GRAPHS_BYTES", 100)
    with pytest.raises(ReportError, match="more than the 100 that such a file may have"):
        GraphsFile.read(path)
    monkeypatch.undo()
    assert GraphsFile.read(str(path)) == file

    def unreadable(_: Path) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", unreadable)
    with pytest.raises(ReportError, match="cannot be read: Permission denied"):
        GraphsFile.read(path)


# Looking up


@pytest.mark.parametrize(
    ("name", "index"),
    [("0", 0), (" 9 ", 9), ("refused", 3), ("decode bs=16 segment 0", 2), ("bs=16", 2), ("bs=2", 1), ("samp", 4)],
)
def test_a_graph_is_found_by_index_label_or_part_of_a_label(file: GraphsFile, name: str, index: int) -> None:
    assert file.find(name).index == index


def test_a_whole_label_goes_before_a_part_of_another(make: Any, h200: Capabilities) -> None:
    graphs = tuple(ExportedGraph(index=at, label=label, topology=make.chain([])) for at, label in enumerate(("bs=1", "bs=16")))
    file = GraphsFile(device="H200", tier="structure", capabilities=h200, graphs=graphs)
    assert file.find("bs=1").index == 0


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("prefill", "'prefill' is no graph of the file. Remedy: use one of 0 (decode bs=1 segment 0), 1 (decode bs=2"),
        ("7", "'7' is no graph of the file"),
        ("", "'' is no graph of the file"),
        ("decode", "'decode' is several graphs of the file. Remedy: use one of 0 (decode bs=1 segment 0), 1 (decode bs=2 "),
    ],
)
def test_a_graph_that_is_not_found_or_not_alone_lists_candidates(file: GraphsFile, name: str, said: str) -> None:
    with pytest.raises(GraphDedupError) as caught:
        file.find(name)
    assert said in str(caught.value)
    assert str(caught.value).endswith(("5 (alone), 9.", "2 (decode bs=16 segment 0)."))


def test_a_long_list_of_candidates_is_cut(make: Any, h200: Capabilities) -> None:
    graphs = tuple(ExportedGraph(index=at, topology=make.chain([])) for at in range(12))
    file = GraphsFile(device="H200", tier="structure", capabilities=h200, graphs=graphs)
    with pytest.raises(GraphDedupError, match="0, 1, 2, 3, 4, 5, 6, 7 and 4 more"):
        file.find("x")
    with pytest.raises(GraphDedupError, match="holds no graphs"):
        file.model_copy(update={"graphs": ()}).find("0")


# Two graphs


def test_graphs_of_one_group_run_on_the_same_exec(file: GraphsFile) -> None:
    answer = file.answer("0", "1")
    assert answer.text == (
        "graph 0 (decode bs=1 segment 0) and graph 1 (decode bs=2 segment 0) fold on the same exec, that of group 0: "
        "1 node differs in grid, which an update carries"
    )
    assert (answer.folds, answer.known_by) == (True, "group")


def test_a_graph_that_was_passed_through_gives_its_reason(file: GraphsFile) -> None:
    answer = file.answer("sampled", "0")
    assert answer.text == (
        "graph 4 (sampled) and graph 0 (decode bs=1 segment 0) do not fold\n"
        "  graph 4 (sampled) is passed through: node 0 is of kind mem_alloc (rule D11)"
    )
    assert (answer.folds, answer.known_by) == (False, "reason")


def test_a_refusal_on_record_goes_before_the_fields(file: GraphsFile) -> None:
    """D5: what the driver said is kept, and the fields stand beside it."""
    answer = file.answer("0", "refused")
    assert answer.text == (
        "graph 0 (decode bs=1 segment 0) and graph 3 (refused) do not fold\n"
        "  graph 3 (refused) was refused: PARAMETERS_CHANGED at node 1 (relu)\n"
        "  by their fields: nothing that an update does not carry"
    )
    assert answer.known_by == "refusal"
    assert file.explain("refused", "2").splitlines()[-1] == (
        "  by their fields: node 1 (relu): local memory 0 bytes a thread against 4096 bytes a thread"
    )


def test_a_graph_that_lost_its_group_gives_its_reason(file: GraphsFile) -> None:
    assert file.explain("alone", "0").splitlines()[1] == "  graph 5 (alone) is on its own: un-folded at replay: ERROR"


def test_otherwise_the_first_difference_is_told(file: GraphsFile) -> None:
    answer = file.answer("1", "2")
    assert answer.text == (
        "graph 1 (decode bs=2 segment 0) and graph 2 (decode bs=16 segment 0) do not fold: "
        "node 1 (relu): local memory 0 bytes a thread against 4096 bytes a thread"
    )
    assert (answer.folds, answer.known_by) == (False, "fields")
    assert answer.explanation is not None
    assert (answer.explanation.node, answer.explanation.field) == (1, "local memory")


def test_equal_graphs_in_two_groups_are_said_to_be_kept_apart(file: GraphsFile) -> None:
    """A policy places them by position, or the one group had no members left when the other was founded."""
    answer = file.answer("0", "9")
    assert answer.text == (
        "graph 0 (decode bs=1 segment 0) and graph 9 could fold (no node differs), but are in groups 0 and 4: "
        "kept apart by placement, or captured when the other's group could not be joined"
    )
    assert not answer.folds


def test_the_tier_of_the_file_decides(file: GraphsFile) -> None:
    """D4: in the exact tier a grid keeps graphs apart; a tier that is none is an error."""
    exact = file.model_copy(update={"tier": "exact"})
    apart = exact.graphs[1].model_copy(update={"group": 7})
    exact = exact.model_copy(update={"graphs": (exact.graphs[0], apart)})
    assert exact.explain("0", "1").endswith("do not fold: node 0 (gemm): grid (8, 1, 1) against (16, 1, 1)")
    with pytest.raises(SettingsError, match="tier 'loose' is unknown"):
        file.model_copy(update={"tier": "loose"}).answer("0", "1")


def test_one_graph_alone_is_compared_with_the_nearest_of_another_group(file: GraphsFile) -> None:
    """Each group is looked at once; the graph's own group is not."""
    assert file.answer("2").right == 0
    assert file.answer("0").right == 3
    assert file.answer("sampled").right in (0, 2)
    only = file.model_copy(update={"graphs": file.graphs[:2]})
    answer = only.answer("0")
    assert answer.text == "graph 0 (decode bs=1 segment 0) has no other group to be compared with"
    assert (answer.right, answer.folds, answer.known_by) == (None, False, "nothing")


def test_a_graph_is_not_compared_with_itself(file: GraphsFile) -> None:
    with pytest.raises(GraphDedupError, match=r"graph 3 \(refused\) is named twice"):
        file.answer("3", "refused")


def test_an_answer_is_data(file: GraphsFile) -> None:
    answer = file.answer("1", "2")
    assert Answer.model_validate_json(answer.to_json()) == answer
    assert json.loads(answer.to_json())["kind"] == "graphdedup.explanation"
