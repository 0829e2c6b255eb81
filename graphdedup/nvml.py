"""Device memory of this process, from NVML where the ``nvml`` extra is there and NVML sees the process."""

from __future__ import annotations

import importlib
import os
from typing import Any, NamedTuple

import torch

from graphdedup.footprint import STEP_BYTES

__all__ = ["ProcessBytes", "process_bytes"]


class ProcessBytes(NamedTuple):
    """Bytes in use on a device, and in words: whose they are and how they were read."""

    bytes: int
    how: str
    of_process: bool
    """Whether they are this process's alone; else they are the whole device's."""


def process_bytes(device: torch.device) -> ProcessBytes:
    """Device memory that this process uses, by NVML; the whole device's by ``mem_get_info`` where NVML does not tell.

    In most containers NVML lists no processes, or lists them by ids of the host. Then nothing is guessed.
    """
    told = _by_nvml(device)
    if isinstance(told, int):
        return ProcessBytes(told, "NVML, this process alone", True)
    free, total = torch.cuda.mem_get_info(device)
    step = f"steps of {STEP_BYTES // 1024**2} MiB"
    return ProcessBytes(total - free, f"mem_get_info, every process on the device, {step}; {told}", False)


def _by_nvml(device: torch.device) -> int | str:
    """Bytes, or why NVML does not tell."""
    try:
        nvml: Any = importlib.import_module("pynvml")
    except ImportError:
        return "pip install 'graphdedup[nvml]' asks NVML for this process alone"
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return f"NVML cannot be used: {error}"
    try:
        handle = nvml.nvmlDeviceGetHandleByUUID(_uuid(device))
        own = [one for one in nvml.nvmlDeviceGetComputeRunningProcesses(handle) if one.pid == os.getpid()]
    except nvml.NVMLError as error:
        return f"NVML does not tell: {error}"
    finally:
        nvml.nvmlShutdown()
    if not own or any(one.usedGpuMemory is None for one in own):
        return "NVML does not list this process, as in most containers"
    return sum(int(one.usedGpuMemory) for one in own)


def _uuid(device: torch.device) -> str:
    uuid = str(torch.cuda.get_device_properties(device).uuid)
    return uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"
