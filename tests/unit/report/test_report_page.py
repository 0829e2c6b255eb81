"""The HTML page in a real headless browser, with the network off. Left out where there is no chromium or no playwright."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from graphdedup.report import DemoResult, FootprintReport, ModeResult
from graphdedup.report.text import format_bytes

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed (the dev extra has it)")
pytest.importorskip("plotly", reason="plotly is not installed (the html extra has it)")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
if CHROMIUM is None:
    pytest.skip("no chromium on the path", allow_module_level=True)

OPTIONS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
HOSTILE = '</script><img src=x onerror="window.ran=1"><b>&amp;'


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=OPTIONS)
        yield opened
        opened.close()


@pytest.fixture
def visit(browser: Any, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Opens the page of a report. At the end: no console message, no error, no request but the page itself."""
    said: list[str] = []
    unwatched: list[str] = []
    contexts = []

    def open_page(report: FootprintReport | DemoResult, *, watched: bool = True) -> Any:
        file = tmp_path / "page.html"
        file.write_text(report.to_html(), encoding="utf-8", newline="\n")
        contexts.append(browser.new_context(offline=True))
        page = contexts[-1].new_page()
        note = said.append if watched else unwatched.append
        page.on("console", lambda message: note(f"console: {message.text}"))
        page.on("pageerror", lambda error: note(f"error: {error}"))
        page.on("request", lambda request: request.url == file.as_uri() or note(f"request: {request.url}"))
        page.goto(file.as_uri())
        page.wait_for_selector("html[data-ready=yes]", state="attached")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert said == []


def rows(page: Any, table: str = "graphs") -> list[list[str]]:
    """The cells of a table's rows, as they are in the document."""
    found: list[list[str]] = page.eval_on_selector_all(
        f"#{table} tbody tr", "rows => rows.map(row => [...row.cells].map(cell => cell.textContent))"
    )
    return found


def tile(page: Any, field: str) -> str:
    return str(page.text_content(f'[data-field="{field}"] .value'))


def test_m5_the_figures_on_the_page_are_those_of_the_json(
    visit: Callable[..., Any], grouped: Callable[..., FootprintReport]
) -> None:
    report = grouped(5)
    page = visit(report)
    assert page.text_content("h1") == "5 captured graphs, 2 execs"
    assert tile(page, "exec_device") == format_bytes(2_250_000) == "2.2 MB", "halves go to the even digit, as in the text"
    assert tile(page, "plain_device") == "15.0 KB"
    assert tile(page, "nodes") == "15"
    assert page.text_content('[data-field="exec_device"] .note') == "modelled peak 1.4 GB"
    figures = {row[0]: row[1:] for row in rows(page, "figures")}
    assert figures["execs, device"] == ["2.2 MB", "1.4 GB", "modelled", "live execs x a table"]
    assert figures["pool"] == ["4.1 KB", "-", "measured on the host", "reserved"]
    assert rows(page, "pools") == [["1", "5", "4.1 KB", "1.0 KB", "-", "measured on the host"]]
    assert rows(page, "nodes") == [["15", "kernel", "gemm"]]
    assert rows(page, "refusals") == [["3", "refused", "an example"]]
    assert rows(page, "alone") == [["decode bs=3 segment 0 (graph 5)", "node 1 differs"]]
    assert rows(page)[1] == ["decode bs=1 segment 1", "decode", "1", "2", "0", "4", "1", "2", "0", "2.0 KB", ""]


def test_the_charts_hold_what_the_graphs_cost(visit: Callable[..., Any], grouped: Callable[..., FootprintReport]) -> None:
    """Labels 1 to 3 have graphs 1 and 2, 3 and 4, 5: of 3, 7 and 5 KB; the execs are of graph 1 and graph 5."""
    page = visit(grouped(5))
    bars = page.evaluate("document.getElementById('ladder').data.map(trace => trace.y)")
    assert bars == [[3.0, 7.0, 5.0], [1.0, 0.0, 5.0]]
    held = page.evaluate("(({labels, values}) => ({labels, values}))(document.getElementById('tree').data[0])")
    tree = dict(zip(held["labels"], held["values"], strict=True))
    assert (tree["all graphs"], tree["pool 1"], tree["decode"], tree["group 0"], tree["on their own"]) == (15, 15, 15, 10, 5)
    replays = page.evaluate("document.getElementById('updates').data.map(trace => trace.x)")
    assert replays == [[4, 8], [1, 2]], "of graph 5 and of the group: launched as it was, updated first"


def test_graphs_are_searched_filtered_and_sorted(visit: Callable[..., Any], grouped: Callable[..., FootprintReport]) -> None:
    page = visit(grouped(200, alone=20))
    assert (len(rows(page)), page.text_content("[role=status]")) == (50, "1 to 50 of 200")
    page.click("text=next")
    assert rows(page)[0][0] == "decode bs=26 segment 0"
    page.click("#graphs th >> text=nodes")
    assert [row[3] for row in rows(page)[:3]] == ["200", "199", "198"], "numbers from the largest, on the first page"
    page.click("#graphs th >> text=nodes")
    assert [row[3] for row in rows(page)[:3]] == ["1", "2", "3"]
    page.click("#graphs th >> text=graph")
    assert [row[0] for row in rows(page)[18:20]] == ["decode bs=10 segment 0", "decode bs=10 segment 1"], "9 before 10"
    assert page.get_attribute("#graphs th:first-child", "aria-sort") == "ascending"
    page.fill("input[type=search]", "DIFFERS node 20")
    assert [row[0] for row in rows(page)] == ["decode bs=100 segment 1"]
    page.fill("input[type=search]", "no such graph")
    assert (rows(page), page.text_content("[role=status]")) == ([], "none")
    page.fill("input[type=search]", "")
    page.select_option("select", "alone")
    assert page.text_content("[role=status]") == "1 to 20 of 20"


def test_hostile_text_is_shown_and_does_not_run(visit: Callable[..., Any], grouped: Callable[..., FootprintReport]) -> None:
    page = visit(grouped(5, text=HOSTILE))
    assert rows(page)[0][0] == f"decode bs=1{HOSTILE} segment 0"
    assert rows(page, "nodes")[0][2] == f"gemm{HOSTILE}"
    assert HOSTILE in page.text_content("#glance")
    assert page.evaluate("window.ran") is None
    assert page.evaluate("document.querySelectorAll('img, #page script, #page b, #page a').length") == 0
    assert "<b>" in page.evaluate("document.querySelector('#ladder').textContent + document.querySelector('#tree').textContent")


def test_what_gets_into_the_page_by_another_way_does_not_run_either(
    visit: Callable[..., Any], grouped: Callable[..., FootprintReport]
) -> None:
    """The policy stops a handler that stands in markup, an image and a request."""
    page = visit(grouped(5), watched=False)
    blocked = page.evaluate(
        """() => new Promise(done => {
            const blocked = new Set();
            document.addEventListener("securitypolicyviolation", event => {
                blocked.add(event.effectiveDirective);
                if (blocked.size === 3) done([...blocked].sort());
            });
            setTimeout(() => done([...blocked].sort()), 5000);
            document.body.insertAdjacentHTML("beforeend", '<img src="http://example.org/x" onerror="window.ran=1">');
            fetch("http://example.org/").catch(() => 0);
        })"""
    )
    assert blocked == ["connect-src", "img-src", "script-src-attr"]
    assert page.evaluate("window.ran") is None


def test_five_thousand_graphs_are_searched_and_sorted(
    visit: Callable[..., Any], grouped: Callable[..., FootprintReport], capsys: pytest.CaptureFixture[str]
) -> None:
    page = visit(grouped(5_000, alone=1_000))
    took = {}
    for name, act in {
        "search": lambda: page.fill("input[type=search]", "bs=2499"),
        "all again": lambda: page.fill("input[type=search]", ""),
        "sort": lambda: page.click("#graphs th >> text=nodes"),
    }.items():
        began = time.perf_counter()
        act()
        took[name] = time.perf_counter() - began
        if name == "search":
            assert [row[0] for row in rows(page)] == ["decode bs=2499 segment 0", "decode bs=2499 segment 1"]
    assert [row[3] for row in rows(page)[:2]] == ["5,000", "4,999"]
    with capsys.disabled():
        print("\n5,000 graphs: " + ", ".join(f"{name} {seconds:.2f} s" for name, seconds in took.items()))


def test_a_demo_has_a_page(
    visit: Callable[..., Any], mode_result: Callable[..., ModeResult], demo_result: Callable[..., DemoResult]
) -> None:
    full = mode_result(
        unfolded_captured=256, unfolded_compared=768, unfolded_mismatches=0, unfolded_exec_device_bytes=362_000_000
    )
    page = visit(demo_result(full=full, breakable=mode_result(captured=1044, execs=29)))
    assert page.text_content("h1") == "1,300 captured graphs, 31 execs"
    assert tile(page, "full.exec_device_bytes") == "2.1 MB"
    table = {row[0]: row[1:] for row in rows(page, "demo")}
    assert table["captured graphs"] == ["256", "1,044"]
    assert table["without folding: exec bytes, device"] == ["362.0 MB", "-"]
    assert page.evaluate("document.getElementById('ladder').data.map(trace => trace.y)") == [[362.0], [2.097152]]


def test_a_report_without_graphs_has_a_page(visit: Callable[..., Any], footprint: Callable[..., FootprintReport]) -> None:
    """As of a file of the first schema."""
    page = visit(footprint())
    assert page.text_content("h1") == "1,044 captured graphs, 29 execs"
    assert page.query_selector("#graphs") is None
