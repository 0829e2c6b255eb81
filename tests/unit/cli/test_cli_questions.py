"""``graphdedup whatif``, ``export``, and ``report`` of several files, end to end; and what each says of a bad file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import networkx
import pytest

from graphdedup import Topology, cli, graphs_file
from graphdedup.report import DemoResult, FootprintReport, reading
from tests.unit.report.conftest import demo_result, footprint, mode_result

__all__ = ["demo_result", "footprint", "mode_result"]
DEMO = ["demo", "--device", "cpu", "--model", "tiny", "--mode", "breakable", "--sizes", "200,8,2", "--layers", "2"]


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Run the command; it must refuse in one line. Returns that line."""
    assert cli.main(list(arguments)) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("graphdedup: error: ")
    assert err.count("\n") == 1
    assert "Remedy: " in err
    return err


@pytest.fixture(scope="module")
def captured(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The graphs and the result of a demo."""
    folder = tmp_path_factory.mktemp("captured")
    graphs, result = folder / "graphs.json", folder / "demo.json"
    assert cli.main([*DEMO, "--graphs", str(graphs), "--json", str(result)]) == 0
    return graphs, result


@pytest.fixture
def graphs(captured: tuple[Path, Path]) -> Path:
    return captured[0]


# demo


def test_the_demo_writes_the_footprint_of_its_one_mode(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """After the last replay: three sizes of three segments, replayed once at first and three times in rounds."""
    file = tmp_path / "footprint.json"
    assert cli.main([*DEMO, "--report", str(file)]) == 0
    report = FootprintReport.from_json(file.read_text())
    assert (report.captured, report.launches) == (9, 9 * (1 + 3))
    members = {(member.label, member.segment) for group in report.group_rows for member in group.members}
    assert members == {(f"decode bs={size}", segment) for size in (200, 8, 2) for segment in range(3)}
    capsys.readouterr()
    told = refused(capsys, "demo", "--device", "cpu", "--report", str(file))
    assert "--report writes the report of one mode" in told


# whatif


def test_the_demo_gives_the_execs_that_whatif_predicts(captured: tuple[Path, Path], tmp_path: Path) -> None:
    """In each tier, from one file of captured graphs."""
    file = tmp_path / "whatif.json"
    assert cli.main(["whatif", str(captured[0]), "--json", str(file)]) == 0
    predictions = json.loads(file.read_text())["predictions"]
    assert [row["tier"] for row in predictions] == ["structure", "function", "exact"]
    for row in predictions:
        result = tmp_path / f"{row['tier']}.json"
        assert cli.main([*DEMO, "--tier", row["tier"], "--json", str(result)]) == 0
        mode = DemoResult.from_json(result.read_text()).modes["breakable"]
        assert row["execs"] == mode.execs
        assert (row["exec_device"]["bytes"], row["exec_device"]["source"]) == (mode.exec_device_bytes, "modelled")


def test_whatif_prints_one_tier_or_all_of_them(graphs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["whatif", str(graphs)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[3].split() == ["each", "its", "own", "structure", "function", "exact"]
    arguments = ["--tier", "exact", "--placement", "position", "--execs-per-group", "2", "--max-execs", "3"]
    assert cli.main(["whatif", str(graphs), *arguments]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[3].split() == ["each", "its", "own", "exact"]
    assert "placement position, 2 execs for a group that has as many graphs, at most 3 execs" in out
    assert next(line for line in out.splitlines() if line.startswith("execs ")).split() == ["execs", "9", "3"]


# export


@pytest.mark.parametrize("style", ["json", "graphml", "dot"])
def test_export_writes_one_graph_to_stdout_or_a_file(
    style: str, graphs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["export", str(graphs), "bs=8 segment 1", "--format", style]) == 0
    out = capsys.readouterr().out
    file = tmp_path / f"graph.{style}"
    assert cli.main(["export", str(graphs), "bs=8 segment 1", "--format", style, "--output", str(file)]) == 0
    assert capsys.readouterr().out == ""
    assert file.read_text() == out
    held = graphs_file.GraphsFile.read(graphs).find("bs=8 segment 1").topology
    if style == "json":
        assert Topology.from_json(out) == held
    elif style == "graphml":
        read = networkx.read_graphml(file)
        assert (len(read), read.number_of_edges()) == (len(held.nodes), len(held.edges))
    else:
        assert out.count(" -> ") == len(held.edges)


# report of several files


@pytest.fixture
def written(tmp_path: Path, footprint: Callable[..., Any], demo_result: Callable[..., Any]) -> Callable[..., str]:
    def write(name: str, **changes: Any) -> str:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text((demo_result() if changes.pop("demo", False) else footprint(**changes)).to_json())
        return str(path)

    return write


def test_two_reports_are_compared(written: Callable[..., str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Files of one name are told apart by their folders."""
    left, right = written("a/r.json", execs=9), written("b/r.json", execs=4)
    file = tmp_path / "difference.json"
    assert cli.main(["report", left, right, "--json", str(file)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("graphdedup report: a/r.json against b/r.json\nsame environment\n")
    assert "execs  9  4  -5" in out.splitlines()
    assert json.loads(file.read_text())["kind"] == "graphdedup.difference"


def test_a_result_of_the_demo_is_compared_with_itself(captured: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["report", str(captured[1]), str(captured[1])]) == 0
    out = capsys.readouterr().out
    assert "same environment" in out
    assert "all counters are equal" in out


def test_more_reports_or_ranks_are_merged(
    written: Callable[..., str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [written(f"r{rank}.json", plan_digest=digest * 32) for rank, digest in enumerate("aba")]
    assert cli.main(["report", *files]) == 0
    assert "the fold plans DIFFER: rank 1 (bbbbbbbb) is not as ranks 0, 2" in capsys.readouterr().out
    file = tmp_path / "ranks.json"
    assert cli.main(["report", "--ranks", files[0], files[2], "--json", str(file)]) == 0
    assert "the fold plans of all 2 ranks agree" in capsys.readouterr().out
    assert json.loads(file.read_text())["kind"] == "graphdedup.ranks"


# Bad input


def test_bad_options_are_refused_in_one_line(
    graphs: Path, written: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    file, one = str(graphs), written("one.json")
    for arguments, said in (
        (["whatif", file, "--tier", "loose"], "--tier 'loose' is unknown. Remedy: use one of structure, function, exact."),
        (["whatif", file, "--placement", "here"], "--placement 'here' is unknown. Remedy: use one of group, position."),
        (["whatif", file, "--execs-per-group", "0"], "--execs-per-group 0 is out of range. Remedy: give 1 to 1024."),
        (["whatif", file, "--max-execs", "0"], "--max-execs 0 is out of range"),
        (["whatif"], "Missing argument"),
        (["export", file], "Missing argument"),
        (["export", file, "bs=8", "--format", "png"], "--format 'png' is unknown. Remedy: use one of json, graphml, dot."),
        (["export", file, "nothing"], "'nothing' is no graph of the file"),
        (["export", file, "bs=8"], "'bs=8' is several graphs of the file"),
        (["export", file, "1", "-o", "no/such/folder/g"], "--output no/such/folder/g: No such file or directory."),
        (["report", one, "--ranks"], "--ranks merges the reports of several ranks"),
        (["report", one, "--json", "x.json"], "--json writes a comparison"),
    ):
        assert said in refused(capsys, *arguments)


def test_reports_of_two_kinds_are_refused_in_one_line(written: Callable[..., str], capsys: pytest.CaptureFixture[str]) -> None:
    one, other = written("one.json"), written("demo.json", demo=True)
    assert "one.json is of kind graphdedup.footprint, demo.json of kind graphdedup.demo" in refused(
        capsys, "report", one, other
    )
    assert "they cannot be compared" in refused(capsys, "report", one, one, other)


def test_files_that_are_none_are_refused_in_one_line(
    graphs: Path,
    written: Callable[..., str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Malformed, truncated, foreign, of another time, not text, a folder, not there, huge."""
    good = written("good.json")
    bad = tmp_path / "bad.json"
    graph_text, report_text = graphs.read_text(), Path(good).read_text()
    deep = "[" * 100_000
    for text in ("", "{", "[]", "null", "captured 36 graphs", deep, '{"kind": "somebody.else", "schema_version": 1}', "\x00"):
        bad.write_text(text)
        for arguments in (
            ["whatif", str(bad)],
            ["export", str(bad), "1"],
            ["report", good, str(bad)],
            ["report", str(bad), good],
        ):
            assert "bad.json: " in refused(capsys, *arguments)
    bad.write_text(graph_text[: len(graph_text) // 2])
    for arguments in (["whatif", str(bad)], ["export", str(bad), "1"]):
        assert "EOF" in refused(capsys, *arguments)
    bad.write_text(report_text[: len(report_text) // 2])
    assert "not JSON" in refused(capsys, "report", good, good, str(bad))
    for document, newer in ((graph_text, ["whatif", str(bad)]), (report_text, ["report", good, str(bad)])):
        bad.write_text(json.dumps(json.loads(document) | {"schema_version": 99}))
        assert "schema_version" in refused(capsys, *newer)
    bad.write_bytes(b"\xff\xfe\x00")
    for arguments in (["whatif", str(bad)], ["report", good, str(bad)]):
        assert "bad.json: " in refused(capsys, *arguments)
    assert "not a regular file" in refused(capsys, "whatif", str(tmp_path))
    assert "no such file" in refused(capsys, "report", good, str(tmp_path / "gone.json"))
    monkeypatch.setattr(graphs_file, "MAX_GRAPHS_BYTES", 100)
    monkeypatch.setattr(reading, "MAX_REPORT_BYTES", 100)
    assert "more than the 100 that such a file may have" in refused(capsys, "whatif", str(graphs))
    assert "more than the 100 that a report may have" in refused(capsys, "report", good, good)


def test_a_file_of_hostile_numbers_is_answered_and_not_a_traceback(
    graphs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Numbers that no driver gives: a graph that cannot be read keeps an executable of its own."""
    document = json.loads(graphs.read_text())
    nodes = document["graphs"][0]["topology"]["nodes"]
    kernel = next(node for node in nodes if node["kind"] == "kernel")
    kernel["local_bytes"] = 2**80
    bad = tmp_path / "bad.json"
    bad.write_text(json.dumps(document))
    assert cli.main(["whatif", str(bad), "--tier", "structure"]) == 0
    assert "passed through, e.g. graph" in capsys.readouterr().out
