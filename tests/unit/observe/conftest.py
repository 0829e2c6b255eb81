"""Nobody watches when a test begins, and nobody when it ends."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from graphdedup.events import watching


@pytest.fixture(autouse=True)
def nobody_watches() -> Iterator[None]:
    assert watching.observers == ()
    yield
    left, watching.observers = watching.observers, ()
    assert left == (), "an observer was left behind"
