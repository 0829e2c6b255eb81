"""Probe: may a capture end and another begin on the same stream, in the middle of a forward?

The breakable seam depends on it: segment, eager work, segment, on one stream and one pool, in ``thread_local`` mode. The
probe captures y = ((x + 1) * 2 + 3), split before the addition of 3, in four ways: with nothing in between, with eager work
that depends on the host (``.item()``), with another thread allocating meanwhile, and with a capture that was invalidated
in between. Each is replayed three times with fresh inputs and compared bit for bit.

Usage: python tools/probe_rebegin.py [--json FILE]. Exit 0: legal; 1: refused or wrong; 2: the probe cannot run here.
A refusal names who refused: "driver" when a CUDA call answered with an error, "probe" when the instrument's own
assumptions do not hold and nothing was learned.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from graphdedup.driver.cuda_calls import driver_branch

ROUNDS = 3
SIZE = 4096


def assumptions() -> dict[str, bool]:
    """What the instrument takes for granted; if one is false its verdict means nothing."""
    stream = torch.cuda.Stream()
    a = torch.full((SIZE,), 5.0, device="cuda")
    b = (a + 1) * 2 + 3
    return {
        "a side stream is not the default stream": stream != torch.cuda.default_stream(),
        "the eager chain at 5 gives 15": bool((b == 15).all()),
        "torch has keep_graph": hasattr(torch.cuda.CUDAGraph(keep_graph=True), "raw_cuda_graph"),
        "no capture is under way": not torch.cuda.is_current_stream_capturing(),
    }


def _nothing(_: torch.Tensor) -> None:
    pass


def _host_dependent(middle: torch.Tensor) -> None:
    if middle.sum().item() != middle.sum().item():  # NaN at capture, when nothing has run: both branches are legal
        torch.zeros(8, device="cuda").sum().item()


def _other_thread(_: torch.Tensor) -> None:
    worker = threading.Thread(target=lambda: torch.empty(1 << 20, device="cuda").fill_(1).sum().item())
    worker.start()
    worker.join()


def _invalidated(_: torch.Tensor) -> None:
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    pool = torch.cuda.graph_pool_handle()
    with torch.cuda.stream(torch.cuda.Stream()):
        graph.capture_begin(pool, capture_error_mode="thread_local")
        try:
            torch.ones(1, device="cuda").item()
        except RuntimeError:
            pass
        else:
            raise AssertionError("a host read inside a capture was not refused")
        try:
            graph.capture_end()
        except RuntimeError:
            torch._C._cuda_endAllocateToPool(torch.cuda.current_device(), pool)
            torch._C._cuda_releasePool(torch.cuda.current_device(), pool)
        # torch's default generator stays in capture mode until a capture ends well.
        good = torch.cuda.CUDAGraph(keep_graph=True)
        good.capture_begin(torch.cuda.graph_pool_handle(), capture_error_mode="thread_local")
        torch.zeros(1, device="cuda")
        good.capture_end()


CASES: dict[str, Callable[[torch.Tensor], None]] = {
    "nothing in between": _nothing,
    "host-dependent eager work": _host_dependent,
    "another thread allocates": _other_thread,
    "an invalidated capture": _invalidated,
}


def run_case(between: Callable[[torch.Tensor], None]) -> dict[str, Any]:
    """Capture two segments around ``between`` on one stream and pool; replay with fresh inputs."""
    stream, pool = torch.cuda.Stream(), torch.cuda.graph_pool_handle()
    x = torch.zeros(SIZE, device="cuda")
    first, second = torch.cuda.CUDAGraph(keep_graph=True), torch.cuda.CUDAGraph(keep_graph=True)
    try:
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            first.capture_begin(pool, capture_error_mode="thread_local")
            middle = (x + 1) * 2
            first.capture_end()
            between(middle)
            second.capture_begin(pool, capture_error_mode="thread_local")
            y = middle + 3
            second.capture_end()
        torch.cuda.synchronize()
    except AssertionError as error:
        return {"refused_by": "probe", "reason": str(error)}
    except RuntimeError as error:
        return {"refused_by": "driver", "reason": str(error).splitlines()[0]}
    mismatches = 0
    for _ in range(ROUNDS):
        x.copy_(torch.randn(SIZE, device="cuda"))
        expected = (x + 1) * 2 + 3
        first.replay()
        between(middle)
        second.replay()
        torch.cuda.synchronize()
        mismatches += not torch.equal(y, expected)
    return {"refused_by": None, "reason": "", "replays": ROUNDS, "mismatches": mismatches}


def main() -> int:
    """Run the probe and print its verdict."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", type=Path, help="also write the result here")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print("probe_rebegin: torch sees no CUDA device; run it on a machine with a GPU", file=sys.stderr)
        return 2
    held = assumptions()
    cases = {name: run_case(between) for name, between in CASES.items()} if all(held.values()) else {}
    refused = {name: case["refused_by"] for name, case in cases.items() if case["refused_by"]}
    wrong = sum(case.get("mismatches", 0) for case in cases.values())
    if not cases or "probe" in refused.values():
        verdict = "not decided: the probe's own assumptions do not hold"
    elif refused:
        verdict = f"refused by the driver: {', '.join(refused)}"
    else:
        verdict = "legal and exact" if not wrong else f"legal but wrong: {wrong} mismatches"
    for name, held_here in held.items():
        print(f"assumption  {name}: {'holds' if held_here else 'DOES NOT HOLD'}")
    for name, case in cases.items():
        outcome = (
            f"refused by the {case['refused_by']}: {case['reason']}"
            if case["refused_by"]
            else f"{case['mismatches']} mismatches in {case['replays']} replays"
        )
        print(f"case        {name}: {outcome}")
    print(f"verdict     {verdict}")
    if arguments.json:
        result = {
            "command": "python tools/probe_rebegin.py",
            "device": torch.cuda.get_device_name(),
            "driver_version": driver_branch()[0],
            "torch_version": torch.__version__,
            "assumptions": held,
            "cases": cases,
            "verdict": verdict,
        }
        arguments.json.write_text(json.dumps(result, indent=2) + "\n")
    if not cases or "probe" in refused.values():
        return 2
    return int(bool(refused or wrong))


if __name__ == "__main__":
    sys.exit(main())
