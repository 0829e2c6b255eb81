"""The example of docs/explain.md prints what the page says that it prints."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest


def test_the_example_prints_what_stands_below_it(pytestconfig: pytest.Config) -> None:
    (block,) = re.findall(r"^```python\n(.*?)^```$", (pytestconfig.rootpath / "docs" / "explain.md").read_text(), re.S | re.M)
    done = subprocess.run([sys.executable, "-c", block], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == re.findall(r"^# (.*)$", block, re.M)
