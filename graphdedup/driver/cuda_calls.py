"""The CUDA driver API as the fold uses it: ``cuda.bindings``, checked, plus the one call whose result it drops."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

from graphdedup.driver.protocol import UpdateResult, Verdict
from graphdedup.errors import DriverError

__all__ = ["bindings", "call", "driver_branch", "libcuda", "update_exec"]


def bindings() -> Any:
    """``cuda.bindings.driver``.

    Raises:
        DriverError: the ``cuda`` extra is missing, or its version lacks a call that is needed.
    """
    try:
        from cuda.bindings import driver
    except ImportError as error:
        raise DriverError(
            f"cuda.bindings cannot be imported ({error})",
            remedy="pip install 'graphdedup[cuda]' (cuda-bindings >= 12.9)",
        ) from error
    missing = [name for name in _NEEDED if not hasattr(driver, name)]
    if missing:
        raise DriverError(
            f"cuda.bindings lacks {', '.join(missing)}",
            remedy="install the cuda-bindings of the CUDA major version that torch was built with, 12.9 or newer",
        )
    return driver


_NEEDED = (
    "cuFuncGetParamInfo",
    "cuFuncGetName",
    "cuFuncLoad",
    "cuGraphInstantiate",
    "cuGraphExecGetFlags",
    "cuGraphUpload",
    "cuGraphExecDestroy",
    "cuGraphKernelNodeSetAttribute",
)


def call(result: tuple[Any, ...], what: str) -> Any:
    """The value of a binding's ``(error, value)`` result.

    Raises:
        DriverError: the error is not success; the message names the call and the error.
    """
    if result[0] != 0:
        raise DriverError(
            f"{what} failed: {getattr(result[0], 'name', result[0])}",
            remedy="see the CUDA driver API reference for this result; GRAPHDEDUP_DISABLE=1 leaves every graph to torch",
        )
    return result[1] if len(result) == 2 else result[1:]


class _UpdateInfo(ctypes.Structure):
    """CUgraphExecUpdateResultInfo."""

    _fields_ = (
        ("result", ctypes.c_int),
        ("error_node", ctypes.c_void_p),
        ("error_from_node", ctypes.c_void_p),
    )


_VERDICTS = (
    Verdict.SUCCESS,
    Verdict.ERROR,
    Verdict.TOPOLOGY_CHANGED,
    Verdict.NODE_TYPE_CHANGED,
    Verdict.FUNCTION_CHANGED,
    Verdict.PARAMETERS_CHANGED,
    Verdict.NOT_SUPPORTED,
    Verdict.UNSUPPORTED_FUNCTION_CHANGE,
    Verdict.ATTRIBUTES_CHANGED,
)
_UPDATE_FAILURE = 910  # CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE
_NOT_SUPPORTED = 801  # what an update with the graph of another executable with memory nodes was seen to answer


@cache
def libcuda() -> Any:
    """The driver library itself, for the calls that do not go through ``cuda.bindings``."""
    return ctypes.CDLL("libcuda.so.1")


def update_exec(executable: int, graph: int) -> tuple[UpdateResult, int, int]:
    """``cuGraphExecUpdate`` through ctypes: the binding answers ``(error, None)`` on a refusal and loses the reason.

    Returns:
        The verdict without a node index, the refused node of ``graph`` and its counterpart in the executable's source
        (0: none).

    Raises:
        DriverError: any failure other than a refusal.
    """
    info = _UpdateInfo()
    code = libcuda().cuGraphExecUpdate_v2(ctypes.c_void_p(executable), ctypes.c_void_p(graph), ctypes.byref(info))
    if code == 0:
        return UpdateResult(Verdict.SUCCESS), 0, 0
    if code == _NOT_SUPPORTED:
        return UpdateResult(Verdict.NOT_SUPPORTED), 0, 0
    if code != _UPDATE_FAILURE:
        call((code,), "cuGraphExecUpdate")
    known = 0 < info.result < len(_VERDICTS)
    return (
        UpdateResult(_VERDICTS[info.result] if known else Verdict.ERROR),
        info.error_node or 0,
        info.error_from_node or 0,
    )


def driver_branch() -> tuple[str, int]:
    """The installed driver as ``("580.159.03", 580)``, by NVML; ``("unknown", 0)`` where it does not tell."""
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
        text = ctypes.create_string_buffer(96)
        if nvml.nvmlInit_v2() != 0:
            return "unknown", 0
        try:
            if nvml.nvmlSystemGetDriverVersion(text, len(text)) != 0:
                return "unknown", 0
        finally:
            nvml.nvmlShutdown()
        version = text.value.decode()
        return version, int(version.split(".")[0])
    except (OSError, ValueError, AttributeError):
        return "unknown", 0
