"""A kernel that waits for another one, for a bounded time."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch

_SOURCE = b"""
extern "C" __global__ void wait_for(volatile int *flag, volatile int *signal, int *active, int *most, int *out,
                                    int number, long long patience)
{
    // It says that it runs, counts who else does on the same counter, and waits until the flag is up.
    *signal = 1;
    __threadfence_system();
    int now = atomicAdd(active, 1) + 1;
    atomicMax(most, now);
    long long began = clock64();
    int served = 0;
    while (clock64() - began < patience)
        if (*flag) { served = 1; break; }
    atomicSub(active, 1);
    *out = served ? number : -number;
}
"""


@cache
def _function() -> Any:
    from cuda.bindings import driver, nvrtc

    major, minor = torch.cuda.get_device_capability()
    program = nvrtc.nvrtcCreateProgram(_SOURCE, b"wait_for.cu", 0, [], [])[1]
    options = [f"--gpu-architecture=sm_{major}{minor}".encode()]
    assert int(nvrtc.nvrtcCompileProgram(program, len(options), options)[0]) == 0
    image = b" " * nvrtc.nvrtcGetCUBINSize(program)[1]
    nvrtc.nvrtcGetCUBIN(program, image)
    torch.zeros(1, device="cuda")
    error, module = driver.cuModuleLoadData(image)
    assert int(error) == 0
    function = driver.cuModuleGetFunction(module, b"wait_for")[1]
    driver.cuFuncLoad(function)
    return function


WaitFor = Callable[..., None]


@pytest.fixture
def wait_for() -> WaitFor:
    """``wait_for(flag, signal, active, most, out, number, patience)``: int32 tensors, a number, clock cycles."""
    function = int(_function())

    def launch(*tensors_and_numbers: Any) -> None:
        *tensors, number, patience = tensors_and_numbers
        values: list[Any] = [ctypes.c_void_p(tensor.data_ptr()) for tensor in tensors]
        values += [ctypes.c_int(number), ctypes.c_longlong(patience)]
        params = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        lib = ctypes.CDLL("libcuda.so.1")
        assert lib.cuLaunchKernel(ctypes.c_void_p(function), 1, 1, 1, 1, 1, 1, 0, stream, params, None) == 0

    return launch
