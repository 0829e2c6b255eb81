"""Launch figures of a captured operator: the function it would run on a GPU, and how.

Matrix products get a tile and a cluster by the number of rows, as cuBLAS chooses them on Hopper: graphs of two batch
sizes then differ in function and cluster, though nothing else tells them apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from math import prod
from typing import Any

from .tensors import TensorParam

__all__ = ["function_id", "launch_figures"]

_PRODUCTS = {"mm", "addmm", "bmm", "baddbmm", "_scaled_mm", "convolution", "_int_mm", "mv", "addmv"}
_TILES: tuple[tuple[int, tuple[int, int], tuple[int, int, int]], ...] = (
    (8, (64, 8), (4, 1, 1)),
    (16, (64, 16), (2, 1, 1)),
    (32, (64, 32), (2, 1, 1)),
    (64, (64, 64), (1, 2, 1)),
    (128, (128, 64), (2, 1, 1)),
    (256, (128, 128), (1, 2, 1)),
)
_LARGEST_TILE = ((128, 256), (2, 1, 1))
_THREADS = 128
_ELEMENTS_PER_BLOCK = 512


def function_id(name: str) -> int:
    """A number that is the same for the same function name in every process; never 0."""
    return int.from_bytes(blake2b(name.encode(), digest_size=7).digest(), "big") | 1


def launch_figures(operator: Any, written: Sequence[TensorParam]) -> dict[str, Any]:
    """Function, grid, block, shared memory and cluster of a call that writes ``written``."""
    packet = operator.overloadpacket.__name__
    namespace = operator.namespace
    overload = operator._overloadname
    output = written[0] if written else None
    name = f"{namespace}::{packet}" + ("" if overload == "default" else f".{overload}")
    if output is not None:
        name += f"<{str(output.dtype).removeprefix('torch.')}>"
    elements = prod(output.size) if output is not None else 1
    figures: dict[str, Any] = {"block": (_THREADS, 1, 1), "shared_bytes": 0, "cluster": (0, 0, 0)}
    if packet in _PRODUCTS and output is not None:
        columns = output.size[1] if packet == "convolution" else output.size[-1] if len(output.size) > 1 else 1
        rows = max(1, elements // max(1, columns))
        if packet in ("bmm", "baddbmm"):
            rows = output.size[-2]
        tile, figures["cluster"] = next(((tile, cluster) for limit, tile, cluster in _TILES if rows <= limit), _LARGEST_TILE)
        name += f"[{tile[0]}x{tile[1]}]"
        figures["shared_bytes"] = 2 * 64 * sum(tile) * output.dtype.itemsize
        blocks = max(1, -(-elements // (tile[0] * tile[1])))
    else:
        blocks = max(1, -(-elements // _ELEMENTS_PER_BLOCK))
    # As on a GPU, the grid is a multiple of the cluster in every direction.
    across, down = max(1, figures["cluster"][0]), max(1, figures["cluster"][1])
    grid = (-(-blocks // (across * down)) * across, down, 1)
    return figures | {"function": name, "grid": grid}
