"""What an executable costs on the device at hand: many of one graph, for several lengths of graph, bytes by the slope."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from typing import Any, Literal

import torch

import seam
from graphdedup.driver import GraphDriver, driver_for
from graphdedup.errors import SettingsError
from graphdedup.footprint import STEP_BYTES, Span
from graphdedup.report.base import Count, Frozen, Source
from graphdedup.report.text import format_bytes, table

__all__ = ["Calibration", "CalibrationRow", "calibrate", "slope"]

DEFAULT_NODES = (10, 50, 200, 500, 1000)
MAX_NODES = 20_000
MAX_EXECS = 4_096


class CalibrationRow(Frozen):
    """``execs`` executables of ``nodes`` kernels each, all alive, and the bytes that they took together."""

    nodes: Count
    execs: Count
    device_bytes: int
    host_bytes: int


class Calibration(Frozen):
    """What an executable costs: bytes = ``per_exec`` + nodes x ``per_node``, by least squares over the rows."""

    schema_version: Literal[1] = 1
    kind: Literal["graphdedup.calibration"] = "graphdedup.calibration"
    device: str
    driver_version: str
    torch_version: str
    device_source: Source
    host_source: Source
    how: str
    step_bytes: Count
    """Device bytes are read in steps of this size; a row's are right to the step, shared by its executables."""
    rows: tuple[CalibrationRow, ...]
    device_bytes_per_exec: float
    device_bytes_per_node: float
    host_bytes_per_exec: float
    host_bytes_per_node: float

    def to_text(self, color: bool = False) -> str:
        """A table for a terminal, without a trailing newline."""
        title = f"bytes of an exec: {self.device}, driver {self.driver_version}, torch {self.torch_version}"
        cells: list[tuple[str, ...]] = [("nodes", "execs", "device, all", "device, each", "host, each")]
        for row in self.rows:
            each = (row.device_bytes // row.execs, row.host_bytes // row.execs)
            cells.append((f"{row.nodes:,}", f"{row.execs:,}", format_bytes(row.device_bytes), *map(format_bytes, each)))
        device = f"{format_bytes(round(self.device_bytes_per_exec))} + {format_bytes(round(self.device_bytes_per_node))} a node"
        host = f"{format_bytes(round(self.host_bytes_per_exec))} + {format_bytes(round(self.host_bytes_per_node))} a node"
        lines = [f"\x1b[1m{title}\x1b[0m" if color else title, "", *table(cells, left=0), ""]
        lines += table([("device", device, self.device_source.words), ("host", host, self.host_source.words)], left=3)
        return "\n".join([*lines, self.how])


def calibrate(device: torch.device, nodes: Sequence[int] = DEFAULT_NODES, execs: int = 64) -> Calibration:
    """Instantiate ``execs`` executables of chains of each length in ``nodes``, hold them all, and read memory around each lot.

    A driver keeps the memory of destroyed executables and gives it to later ones: measure in a process that has made none,
    on a device that nobody else uses. On the simulated device nothing is measured: the numbers are its model's.

    Raises:
        SettingsError: fewer than two lengths, or a number out of range.
        DriverError: the device's driver cannot be used, or failed.
    """
    lengths = sorted(set(nodes))
    if len(lengths) < 2 or not (lengths[0] >= 1 and lengths[-1] <= MAX_NODES):
        raise SettingsError(
            f"nodes {','.join(map(str, nodes)) or '(none)'}: a slope needs two lengths or more, of 1 to {MAX_NODES:,} nodes.",
            remedy="give lengths such as 10,100,1000.",
        )
    if not 1 <= execs <= MAX_EXECS:
        raise SettingsError(f"execs {execs} is out of range.", remedy=f"give 1 to {MAX_EXECS:,}.")
    backend = seam.default_backend(device.type)
    driver = driver_for(backend)
    measured = driver.exec_bytes(1) is None
    rows = _measure(backend, driver, device, lengths, execs) if measured else _modelled(driver, lengths, execs)
    lines = [slope([(row.nodes, bytes_of / row.execs) for row, bytes_of in pairs]) for pairs in _columns(rows)]
    identity = driver.identity
    return Calibration(
        device=identity.name,
        driver_version=identity.driver_version,
        torch_version=torch.__version__,
        device_source=Source.MEASURED_DEVICE if measured else Source.MODELLED,
        host_source=Source.MEASURED_HOST if measured else Source.MODELLED,
        how=_MEASURED if measured else "modelled: the bytes per node measured on an H200, see docs/memory-model.md",
        step_bytes=STEP_BYTES if measured else 0,
        rows=rows,
        device_bytes_per_exec=lines[0][0],
        device_bytes_per_node=lines[0][1],
        host_bytes_per_exec=lines[1][0],
        host_bytes_per_node=lines[1][1],
    )


_MEASURED = (
    "device: growth of used device memory over each lot, uploads done, less what torch reserved, in steps of 2 MiB; "
    "host: growth of resident memory"
)


def slope(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Intercept and slope of the least-squares line through two or more points of different x."""
    mean_x, mean_y = (sum(point[axis] for point in points) / len(points) for axis in (0, 1))
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    rise = sum((x - mean_x) * (y - mean_y) for x, y in points) / spread
    return mean_y - rise * mean_x, rise


def _columns(rows: Sequence[CalibrationRow]) -> tuple[list[tuple[CalibrationRow, int]], list[tuple[CalibrationRow, int]]]:
    return [(row, row.device_bytes) for row in rows], [(row, row.host_bytes) for row in rows]


def _modelled(driver: GraphDriver, lengths: Sequence[int], execs: int) -> tuple[CalibrationRow, ...]:
    rows = []
    for length in lengths:
        device_bytes, host_bytes = driver.exec_bytes(length) or (0, 0)
        rows.append(CalibrationRow(nodes=length, execs=execs, device_bytes=execs * device_bytes, host_bytes=execs * host_bytes))
    return tuple(rows)


def _measure(
    backend: Any, driver: GraphDriver, device: torch.device, lengths: Sequence[int], execs: int
) -> tuple[CalibrationRow, ...]:
    graphs = [_chain(backend, device, length) for length in (1, *lengths)]
    raws = [driver.raw(graph.segments[0]) for graph in graphs]
    held: list[Any] = []
    rows = []
    try:
        held.append(driver.instantiate(raws[0]))  # what the first one brings along is no executable's
        for raw, length in zip(raws[1:], lengths, strict=True):
            gc.collect()
            driver.synchronize()
            span = Span.begin(device)
            held += [driver.instantiate(raw) for _ in range(execs)]
            driver.synchronize()
            grown = span.end()
            rows.append(
                CalibrationRow(
                    nodes=length, execs=execs, device_bytes=grown.exec_device_bytes or 0, host_bytes=grown.host_rss_bytes
                )
            )
    finally:
        for executable in held:
            driver.destroy(executable)
        for graph in graphs:
            graph.close()
    return tuple(rows)


def _chain(backend: Any, device: torch.device, length: int) -> seam.BreakableGraph:
    """A captured graph of ``length`` kernels in a line."""
    x = torch.zeros(64, device=device)
    x.add_(1)
    graph = seam.BreakableGraph(backend, label=f"{length} kernels")
    with torch.no_grad(), seam.capture(graph, mode="full"):
        for _ in range(length):
            x.add_(1)
    return graph
