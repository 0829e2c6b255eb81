"""The bindings of the driver API: what is missing is one clear error, at construction."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from graphdedup import DriverError
from graphdedup.driver import cuda_calls
from graphdedup.driver.cuda_calls import bindings, call


def install(monkeypatch: pytest.MonkeyPatch, driver: Any) -> None:
    package, module = ModuleType("cuda"), ModuleType("cuda.bindings")
    module.driver = driver  # type: ignore[attr-defined]
    for name, held in (("cuda", package), ("cuda.bindings", module), ("cuda.bindings.driver", driver)):
        monkeypatch.setitem(sys.modules, name, held)


def test_bindings_of_another_cuda_that_lack_a_call_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as those of an older CUDA major version: every call that is missing, and what to install."""
    names = set(cuda_calls._NEEDED) - {"cuFuncGetParamInfo", "cuFuncLoad"}
    install(monkeypatch, SimpleNamespace(**dict.fromkeys(names)))
    with pytest.raises(DriverError, match=r"cuda\.bindings lacks cuFuncGetParamInfo, cuFuncLoad Remedy: .*12\.9 or newer"):
        bindings()


def test_bindings_that_cannot_be_imported_name_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    with pytest.raises(DriverError, match=r"cannot be imported .*graphdedup\[cuda\]"):
        bindings()


def test_whole_bindings_are_taken_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = SimpleNamespace(**dict.fromkeys(cuda_calls._NEEDED))
    install(monkeypatch, driver)
    assert bindings() is driver


def test_a_result_is_unpacked_and_an_error_names_the_call() -> None:
    assert call((0,), "cuInit") == ()
    assert call((0, 7), "cuDeviceGet") == 7
    assert call((0, 7, 8), "cuMemGetInfo") == (7, 8)
    with pytest.raises(DriverError, match=r"cuInit failed: NO_DEVICE .*GRAPHDEDUP_DISABLE=1"):
        call((Code(),), "cuInit")


class Code(int):
    name = "NO_DEVICE"

    def __new__(cls) -> Code:
        return super().__new__(cls, 100)
