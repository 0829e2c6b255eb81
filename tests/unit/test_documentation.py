"""What the documentation shows runs as it stands, and what it names exists."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

PAGES = {
    "README.md": "captured 8 graphs, deduped to",
    "docs/simulated-device.md": "12., 12., 12., 12.",
    "docs/breaks.md": "GraphCounts(break_points=2, breaks=2, segments=3, replays=1",
    "docs/captured-forward.md": "padding 25.0% of all rows",
    "docs/observing.md": "10 events, 0 dropped",
    "docs/estimate.md": "device bytes of executables, 256 shapes of 1 segments, modelled",
    "docs/questions.md": "[('structure', 1, 133000), ('exact', 2, 266000)]",
    "docs/fold.md": "the replay is equal to eager, bit for bit: 3 rounds (fresh inputs in each)",
}
"""Pages with examples, and something that each prints."""


@pytest.mark.parametrize("page", PAGES)
def test_every_python_example_runs(page: str, pytestconfig: pytest.Config) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", (pytestconfig.rootpath / page).read_text(), re.S | re.M)
    assert blocks
    for block in blocks:
        done = subprocess.run([sys.executable, "-c", block], capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        assert PAGES[page] in done.stdout + done.stderr


def test_every_link_inside_the_repository_leads_somewhere(pytestconfig: pytest.Config) -> None:
    root = pytestconfig.rootpath
    for page in [root / "README.md", root / "CONTRIBUTING.md", *(root / "docs").glob("*.md"), root / "reports" / "README.md"]:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_every_rule_that_holds_is_cited_by_a_test(pytestconfig: pytest.Config) -> None:
    """docs/invariants.md promises that a search for a rule's number finds its tests."""
    tests = "".join(path.read_text() for path in (pytestconfig.rootpath / "tests").rglob("*.py"))
    rows = re.findall(
        r"^\| ([SDM]\d+) \|.*\| ([^|]+) \|$", (pytestconfig.rootpath / "docs" / "invariants.md").read_text(), re.M
    )
    assert len(rows) == 34
    missing = [
        rule for rule, today in rows if not today.startswith(("no", "not there")) and not re.search(rf"\b{rule}\b", tests)
    ]
    assert missing == []
