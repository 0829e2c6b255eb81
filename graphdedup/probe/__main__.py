"""``python -m graphdedup.probe``: measure one CUDA device and write the capabilities to standard output as JSON."""

from __future__ import annotations

import argparse
import sys

import torch

from graphdedup.errors import DriverError
from graphdedup.probe.bench import NotHere
from graphdedup.probe.bench_cuda import CudaBench
from graphdedup.probe.measure import measure
from graphdedup.probe.questions import ARENA


def main() -> int:
    """Exit 0: measured; 1: the probe cannot run here, and the last line on stderr says why."""
    parser = argparse.ArgumentParser(prog="python -m graphdedup.probe", description=__doc__)
    parser.add_argument("--device-index", type=int, default=0, help="as torch counts the visible devices")
    arguments = parser.parse_args()
    if not torch.cuda.is_available() or not 0 <= arguments.device_index < torch.cuda.device_count():
        print(f"torch sees no CUDA device {arguments.device_index} here", file=sys.stderr)
        return 1
    device = torch.device("cuda", arguments.device_index)
    torch.cuda.set_device(device)
    try:
        bench = CudaBench(device, ARENA)
    except (NotHere, DriverError) as problem:
        print(" ".join(str(problem).split()), file=sys.stderr)
        return 1
    try:
        print(measure(bench, source="measured on the device").to_json())
    finally:
        bench.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
