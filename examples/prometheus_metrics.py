"""Serve the fold's metrics for Prometheus while graphs are captured and replayed.

    python examples/prometheus_metrics.py --port 9400      # then: curl http://127.0.0.1:9400/metrics

It needs ``pip install 'graphdedup[metrics]'``. Without a GPU it runs on the simulated device. Ctrl-C ends it.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Sequence

import torch
from prometheus_client import CollectorRegistry, start_http_server

import graphdedup
import seam
from graphdedup.metrics import Collector

SIZES = (64, 32, 8, 1)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=9400, help="0 takes a free one")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="how long to replay")
    given = parser.parse_args(arguments)

    kind = given.device if given.device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
    backend = graphdedup.DedupBackend(seam.default_backend(kind))
    metrics = CollectorRegistry()
    metrics.register(Collector(backend))
    server, _ = start_http_server(given.port, addr="127.0.0.1", registry=metrics)
    print(f"http://127.0.0.1:{server.server_port}/metrics", flush=True)

    weight = torch.randn(64, 64, device=kind)
    inputs = {size: torch.zeros(size, 64, device=kind) for size in SIZES}
    graphs = {}
    with torch.no_grad(), backend.session("decode"):
        pool = backend.new_pool()
        for size in SIZES:
            (inputs[size] @ weight).relu()  # first launches load modules
            graphs[size] = seam.BreakableGraph(backend, label=f"decode bs={size}")
            with seam.capture(graphs[size], pool=pool):
                (inputs[size] @ weight).relu()
    print("captured", flush=True)

    until = time.monotonic() + given.seconds
    try:
        while time.monotonic() < until:
            graphs[random.choice(SIZES)].replay()
            time.sleep(0.01)
    except KeyboardInterrupt:
        pass
    finally:
        server.shutdown()
        for graph in graphs.values():
            graph.close()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
