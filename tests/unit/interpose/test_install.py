"""Where the class stands, since when, and for how long; the log line; threads; the switch."""

from __future__ import annotations

import logging
import threading
from typing import Any

import pytest
import torch

import graphdedup
from graphdedup import FoldPolicy, GraphDedupError, SettingsError, install, interpose, uninstall
from graphdedup.interpose import installed
from seam.simulated import SimulatedDevice
from tests.unit.interpose.test_graph_class import Run, check


@pytest.fixture
def version() -> str:
    """One torch is enough here."""
    return "2.11"


def test_both_names_of_the_class_are_replaced_and_put_back(plain: Any, maker: Any) -> None:
    with interpose(make_backend=maker):
        assert torch.cuda.CUDAGraph is torch.cuda.graphs.CUDAGraph is not plain
    assert torch.cuda.CUDAGraph is torch.cuda.graphs.CUDAGraph is plain


def test_install_is_idempotent_and_counts(plain: Any, maker: Any) -> None:
    """The same interposition, and torch's class again with the last uninstall; one more does nothing."""
    first = install("function", make_backend=maker)
    there = torch.cuda.CUDAGraph
    assert install(FoldPolicy.parse(tier="function"), make_backend=maker) is first is installed()
    with interpose("function", make_backend=maker) as inner:
        assert inner is first
        assert torch.cuda.CUDAGraph is there
    uninstall()
    assert torch.cuda.CUDAGraph is there
    uninstall()
    assert torch.cuda.CUDAGraph is plain
    uninstall()
    assert torch.cuda.CUDAGraph is plain
    assert installed() is None


def test_what_a_backend_captures_while_it_is_made_is_torchs_own(plain: Any, maker: Any) -> None:
    """A driver captures a graph to learn how torch instantiates, under the class that is installed by then."""
    makings: list[torch.device] = []

    def capturing(device: torch.device, policy: FoldPolicy) -> Any:
        makings.append(device)
        own = Run(1, factor=5, keep_graph=True)
        own.graph.instantiate()
        check([own])
        own.graph.reset()
        return maker(device, policy)

    with interpose(make_backend=capturing) as found:
        runs = [Run(4), Run(2, factor=3)]
        check(runs)
        assert len(makings) == 1
        assert (found.stats().captured, found.stats().passed_through) == (2, 0)
        for run in runs:
            run.graph.reset()


def test_another_policy_is_refused_while_one_is_installed(plain: Any, maker: Any) -> None:
    with interpose(make_backend=maker):
        with pytest.raises(GraphDedupError, match=r"another policy is installed.*uninstall"):
            install("exact", make_backend=maker)
        with pytest.raises(SettingsError):
            install("no tier", make_backend=maker)
    with interpose("exact", make_backend=maker) as found:
        runs = [Run(4), Run(2, factor=3)]
        check(runs)
        assert found.stats().captured == 2
        for run in runs:
            run.graph.reset()


def test_an_error_inside_puts_torchs_class_back(plain: Any, maker: Any) -> None:
    with pytest.raises(KeyError), interpose(make_backend=maker):
        raise KeyError
    assert torch.cuda.CUDAGraph is plain


def test_a_class_that_somebody_else_put_there_stays(
    plain: Any, maker: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Other:
        pass

    install(make_backend=maker)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Other)
    uninstall()
    assert torch.cuda.CUDAGraph is Other
    assert torch.cuda.graphs.CUDAGraph is plain
    assert "was replaced by somebody else" in caplog.text


@pytest.mark.parametrize("value", ["1", "true"])
def test_with_the_switch_off_torchs_class_stays(
    value: str, plain: Any, maker: Any, monkeypatch: pytest.MonkeyPatch, device: SimulatedDevice
) -> None:
    """D14."""
    monkeypatch.setenv("GRAPHDEDUP_DISABLE", value)
    with interpose(make_backend=maker) as found:
        assert torch.cuda.CUDAGraph is plain
        run = Run(4)
        check([run])
        assert found.stats() == graphdedup.Stats(captured=0, execs=0, peak_execs=0)
        with pytest.raises(GraphDedupError, match="nothing was captured under interposition"):
            found.report()
        run.graph.reset()


def test_nothing_of_a_device_is_touched_before_a_capture(plain: Any) -> None:
    def fails(*_: Any) -> Any:
        raise AssertionError("it made a backend")

    with interpose(make_backend=fails) as found:
        torch.cuda.CUDAGraph()
        assert found.backends == ()


def test_a_backend_that_cannot_be_made_leaves_the_runner_alone(plain: Any, caplog: pytest.LogCaptureFixture) -> None:
    asked: list[Any] = []

    def fails(*given: Any) -> Any:
        asked.append(given)
        raise graphdedup.DriverError("no cuda.bindings", remedy="pip install 'graphdedup[cuda]'")

    with interpose(make_backend=fails) as found:
        runs = [Run(8), Run(4)]
        check(runs)
        assert found.stats().captured == 0
        for run in runs:
            run.graph.reset()
    assert len(asked) == 1, "it is tried once"
    assert "are not folded: no cuda.bindings" in caplog.text


def test_the_log_line_comes_once_for_a_burst(
    plain: Any, maker: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Captures and replays may take turns in it. It ends with the first replay after a pause, or with the report."""
    now = [100.0]
    monkeypatch.setattr("graphdedup.session.time.monotonic", lambda: now[0])
    caplog.set_level(logging.INFO, logger="graphdedup")

    def lines() -> list[str]:
        return [record.message for record in caplog.records if record.message.startswith("captured")]

    with interpose(make_backend=maker) as found:
        runs = []
        for size in (8, 4, 2):
            runs.append(Run(size))
            check(runs)
            now[0] += 1
        assert lines() == []
        now[0] += 1
        check(runs)
        check(runs)
        assert lines() == ["captured 3 graphs, deduped to 1 execs (tests)"]
        runs.append(Run(1))
        found.report()
        assert lines()[1:] == ["captured 1 graphs, deduped to 1 execs (tests)"]
        runs.append(Run(16))
    assert lines()[2:] == ["captured 1 graphs, deduped to 1 execs (tests)"], "uninstall ends what is open"
    text = found.report().to_text()
    assert "tests" in text
    for run in runs:
        run.graph.reset()


def test_graphs_are_named_by_where_they_were_captured(plain: Any, maker: Any) -> None:
    with interpose(make_backend=maker) as found:
        run = Run(4)
        label = found.backend().export().graphs[0].topology.label
        assert label.startswith("graph 1 (")
        assert "test_graph_class.py:" in label
        run.graph.reset()


def test_two_threads_capture_on_two_streams(plain: Any, maker: Any) -> None:
    failures: list[BaseException] = []
    barrier = threading.Barrier(2, timeout=60)

    def work(found: Any) -> None:
        try:
            for size in (8, 4, 2):
                barrier.wait()
                run = Run(size)
                check([run])
                run.graph.reset()
        except BaseException as error:
            failures.append(error)
            barrier.abort()

    with interpose(make_backend=maker) as found:
        threads = [threading.Thread(target=work, args=(found,)) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        assert failures == []
        assert found.stats().captured == 6


def test_threads_that_install_and_uninstall_agree(plain: Any, maker: Any) -> None:
    failures: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(50):
                with interpose(make_backend=maker):
                    assert torch.cuda.CUDAGraph is not plain
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []
    assert torch.cuda.CUDAGraph is plain
