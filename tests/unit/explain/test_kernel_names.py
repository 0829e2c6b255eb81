"""Names of kernels for people."""

from __future__ import annotations

import pytest
import torch

from graphdedup.explain import demangle
from graphdedup.kernel_names import in_words, side_by_side

MANGLED = "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_11FillFunctorIfEESt5arrayIPcLm1EEEEviT0_T1_"
NAME = "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, std::array<char*, 1ul> >"
FULL = f"{NAME}(int, at::native::FillFunctor<float>, std::array<char*, 1ul>)"


@pytest.fixture(autouse=True)
def fresh() -> None:
    """Names are kept once they are worked out."""
    demangle.cache_clear()
    in_words.cache_clear()


def test_a_mangled_name_is_demangled_and_any_other_is_left_alone() -> None:
    assert demangle(MANGLED) == FULL
    for name in ("nvjet_tst_64x8_64x16_4x1_v_bz_TNT", "triton_poi_fused_0", "_Z", "_Znonsense", ""):
        assert demangle(name) == name


def test_without_a_demangler_names_stay_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch may be built without, and its own may refuse a name."""

    def refuse(name: str) -> str:
        raise TypeError(name)

    monkeypatch.setattr(torch._C, "_demangle", refuse)
    assert demangle(MANGLED) == MANGLED
    monkeypatch.delattr(torch._C, "_demangle")
    demangle.cache_clear()
    assert demangle(MANGLED) == MANGLED


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("gemm", "gemm"),
        ("void copy<float>(float*, int)", "void copy<float>(float*, int)"),
        (f"void copy<float>({', '.join(['float*'] * 20)})", "void copy<float>"),
        (MANGLED, "void at::native::vectorized_elementwise_kernel<...>"),
        (
            f"void at::(anonymous namespace)::softmax<{'float, ' * 12}5>(float*)",
            "void at::(anonymous namespace)::softmax<...>",
        ),
        (f"void apply<f(int)::{{lambda(float)#1}}, {'x' * 80}>(int)", "void apply<...>"),
        (f"void T::operator<({'int, ' * 20}int)", "void T::operator<"),
        ("k" * 200, "k" * 117 + "..."),
    ],
)
def test_a_long_name_loses_its_arguments_then_its_templates(name: str, told: str) -> None:
    assert in_words(name) == told


def test_what_two_names_differ_in_is_not_left_out() -> None:
    left, right = (f"void gemm<{'float, ' * 30}{tile}>(int)" for tile in (64, 128))
    assert side_by_side(left, right) == (
        "..." + left[left.index("64") - 40 :],
        "..." + right[right.index("128") - 40 :],
    )
    assert side_by_side(MANGLED, "gemm") == ("void at::native::vectorized_elementwise_kernel<...>", "gemm")
    assert side_by_side(MANGLED, MANGLED) == (in_words(MANGLED), in_words(MANGLED))
