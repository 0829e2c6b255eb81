"""What executables cost: measured over a whole span (rule M4), or modelled where there is no device to measure."""

from __future__ import annotations

import os
from bisect import bisect_left
from dataclasses import dataclass

import torch

__all__ = ["STEP_BYTES", "Span", "SpanReading", "host_peak_bytes", "host_rss_bytes", "modelled_exec_bytes"]

STEP_BYTES = 2 * 1024 * 1024
"""``cuMemGetInfo`` moves in steps of this size."""

# (nodes, device bytes, host bytes) of one executable on an H200, driver 580.159, chains of kernels; docs/memory-model.md.
_MEASURED = (
    (10, 133_000, 76_000),
    (50, 230_000, 308_000),
    (500, 1_372_000, 2_917_000),
    (2_000, 5_222_000, 11_506_000),
)


def modelled_exec_bytes(node_count: int) -> tuple[int, int]:
    """(device, host) bytes that an executable of ``node_count`` nodes would take on an H200: a model, not a measurement.

    Between the measured sizes it interpolates; beyond them it goes on with the last slope. Below ten nodes the cost is
    taken to be that of ten, the smallest that was measured.
    """
    counts = [row[0] for row in _MEASURED]
    if node_count <= counts[0]:
        return _MEASURED[0][1:]
    right = min(bisect_left(counts, node_count), len(counts) - 1)
    (n0, d0, h0), (n1, d1, h1) = _MEASURED[right - 1], _MEASURED[right]
    part = (node_count - n0) / (n1 - n0)
    return round(d0 + part * (d1 - d0)), round(h0 + part * (h1 - h0))


def host_rss_bytes() -> int:
    """Resident bytes of this process; 0 where the system does not tell."""
    try:
        with open("/proc/self/statm") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def host_peak_bytes() -> int | None:
    """The most resident bytes this process ever had; None where the system does not tell."""
    try:
        with open("/proc/self/status") as status:
            lines = [line.split() for line in status if line.startswith("VmHWM:")]
        return int(lines[0][1]) * 1024
    except (OSError, ValueError, IndexError):
        return None


@dataclass(frozen=True, slots=True)
class SpanReading:
    """What grew over a span.

    ``exec_device_bytes`` is used device memory less what torch's allocator reserved, so it is what the driver took: for
    executables, and for modules loaded in the span (warm up first). None without a GPU. ``cuMemGetInfo`` moves in steps
    of 2 MB and sees every process on the device.
    """

    exec_device_bytes: int | None
    device_used_bytes: int | None
    torch_reserved_bytes: int | None
    host_rss_bytes: int


@dataclass(frozen=True, slots=True)
class Span:
    """A span over which memory is measured: ``Span.begin(device)``, the work, ``.end()``.

    Neither end synchronises; let the device finish first where uploads are still queued.
    """

    device: torch.device
    used_bytes: int | None
    reserved_bytes: int | None
    rss_bytes: int

    @classmethod
    def begin(cls, device: torch.device) -> Span:
        """Read memory now. ``device`` of type ``"cpu"`` reads the host alone."""
        return cls(device, *_device_bytes(device), host_rss_bytes())

    def end(self) -> SpanReading:
        """What grew since :meth:`begin`."""
        return self.until(Span.begin(self.device))

    def until(self, later: Span) -> SpanReading:
        """What grew from :meth:`begin` to the begin of another span."""
        rss = later.rss_bytes - self.rss_bytes
        used, reserved = later.used_bytes, later.reserved_bytes
        if used is None or reserved is None or self.used_bytes is None or self.reserved_bytes is None:
            return SpanReading(None, None, None, rss)
        used_growth, reserved_growth = used - self.used_bytes, reserved - self.reserved_bytes
        return SpanReading(used_growth - reserved_growth, used_growth, reserved_growth, rss)


def _device_bytes(device: torch.device) -> tuple[int | None, int | None]:
    if device.type != "cuda":
        return None, None
    free, total = torch.cuda.mem_get_info(device)
    return total - free, torch.cuda.memory_reserved(device)
