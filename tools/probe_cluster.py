"""Probe: does an update of an executable carry the cluster dimension of a kernel, also when the new graph sets none?

Two kernels compiled at run time write the cluster size that they see. For every pair (cluster before, cluster after) with
the same and with another function, an executable made from the first graph is updated with the second, launched, and the
number that the kernel wrote is compared with what it must be. "unset" is a kernel node without the attribute, as every
plain launch makes it; 1, 2, 4 and 8 are set explicitly.

Usage: python tools/probe_cluster.py [--json FILE]. Exit 0: measured, whatever came out; 2: the probe cannot run here.
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
import json
import sys
from pathlib import Path
from typing import Any

import torch

from graphdedup.driver.cuda_calls import bindings, call, driver_branch, update_exec

SOURCE = b"""
__device__ unsigned seen() { unsigned size; asm("mov.u32 %0, %cluster_nctaid.x;" : "=r"(size)); return size; }
extern "C" __global__ void size(unsigned* out) { if (!threadIdx.x && !blockIdx.x) out[0] = seen(); }
extern "C" __global__ void size_plus_1000(unsigned* out) { if (!threadIdx.x && !blockIdx.x) out[0] = seen() + 1000; }
"""
FUNCTIONS = {"size": 0, "size_plus_1000": 1000}
CLUSTERS = (None, 1, 2, 4, 8)
BLOCKS = 8


def compile_functions(driver: Any) -> dict[str, Any]:
    """The two kernels, for the current device."""
    from cuda.bindings import nvrtc

    major, minor = torch.cuda.get_device_capability()
    program = call(nvrtc.nvrtcCreateProgram(SOURCE, b"probe.cu", 0, [], []), "nvrtcCreateProgram")
    call(nvrtc.nvrtcCompileProgram(program, 1, [f"--gpu-architecture=sm_{major}{minor}".encode()]), "nvrtcCompileProgram")
    size = call(nvrtc.nvrtcGetCUBINSize(program), "nvrtcGetCUBINSize")
    cubin = b" " * size
    call(nvrtc.nvrtcGetCUBIN(program, cubin), "nvrtcGetCUBIN")
    module = call(driver.cuModuleLoadData(cubin), "cuModuleLoadData")
    return {name: call(driver.cuModuleGetFunction(module, name.encode()), "cuModuleGetFunction") for name in FUNCTIONS}


def make_graph(driver: Any, function: Any, out: torch.Tensor, cluster: int | None) -> Any:
    """A graph of one kernel node; ``cluster`` None leaves the attribute unset."""
    graph = call(driver.cuGraphCreate(0), "cuGraphCreate")
    params = driver.CUDA_KERNEL_NODE_PARAMS()
    params.func = function
    params.gridDimX, params.gridDimY, params.gridDimZ = BLOCKS, 1, 1
    params.blockDimX, params.blockDimY, params.blockDimZ = 32, 1, 1
    params.kernelParams = ((out.data_ptr(),), (ctypes.c_void_p,))
    node = call(driver.cuGraphAddKernelNode(graph, None, 0, params), "cuGraphAddKernelNode")
    if cluster is not None:
        value = driver.CUkernelNodeAttrValue()
        value.clusterDim.x, value.clusterDim.y, value.clusterDim.z = cluster, 1, 1
        attribute = driver.CUkernelNodeAttrID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        call(driver.cuGraphKernelNodeSetAttribute(node, attribute, value), "cuGraphKernelNodeSetAttribute")
    return graph


def measure(driver: Any) -> list[dict[str, Any]]:
    """One row for each pair of functions and clusters: what the update said, and what the kernel then saw."""
    functions = compile_functions(driver)
    out = torch.zeros(1, dtype=torch.int32, device="cuda")
    stream = driver.CUstream(torch.cuda.current_stream().cuda_stream)
    rows = []
    for (before, after), (old, new) in itertools.product(
        itertools.product(CLUSTERS, CLUSTERS), itertools.product(FUNCTIONS, FUNCTIONS)
    ):
        if (before, old) == (after, new):
            continue
        first, second = (make_graph(driver, functions[f], out, c) for f, c in ((old, before), (new, after)))
        executable = call(driver.cuGraphInstantiate(first, 0), "cuGraphInstantiate")
        result, _, _ = update_exec(int(executable), int(second))
        call(driver.cuGraphLaunch(executable, stream), "cuGraphLaunch")
        torch.cuda.synchronize()
        expected = (after or 1) + FUNCTIONS[new]
        seen = int(out.item())
        verdict = "carried" if seen == expected else "stale"
        rows.append(
            {
                "from": "unset" if before is None else before,
                "to": "unset" if after is None else after,
                "other_function": old != new,
                "update": str(result.verdict),
                "seen": seen,
                "expected": expected,
                "verdict": verdict if result.accepted else "refused",
            }
        )
        call(driver.cuGraphExecDestroy(executable), "cuGraphExecDestroy")
        for graph in (first, second):
            call(driver.cuGraphDestroy(graph), "cuGraphDestroy")
    return rows


def main() -> int:
    """Run the probe and print its table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", type=Path, help="also write the result here")
    arguments = parser.parse_args()
    if not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] < 9:
        print("probe_cluster: needs a CUDA device of compute capability 9.0 or newer", file=sys.stderr)
        return 2
    torch.zeros(1, device="cuda")
    rows = measure(bindings())
    print(f"{'from':>6} {'to':>6}  same function  other function")
    for before, after in itertools.product(CLUSTERS, CLUSTERS):
        names = ["unset" if value is None else value for value in (before, after)]
        cells = {
            other: {row["verdict"] for row in rows if [row["from"], row["to"], row["other_function"]] == [*names, other]}
            for other in (False, True)
        }
        shown = [" and ".join(sorted(cells[other])) or "-" for other in (False, True)]
        print(f"{names[0]!s:>6} {names[1]!s:>6}  {shown[0]:<13}  {shown[1]}")
    counts = {verdict: sum(row["verdict"] == verdict for row in rows) for verdict in ("carried", "stale", "refused")}
    print(f"verdicts    {counts}")
    if arguments.json:
        result = {
            "command": "python tools/probe_cluster.py",
            "device": torch.cuda.get_device_name(),
            "driver_version": driver_branch()[0],
            "torch_version": torch.__version__,
            "counts": counts,
            "pairs": rows,
        }
        arguments.json.write_text(json.dumps(result, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
