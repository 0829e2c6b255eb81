"""Write docs/what-an-update-carries.md from the measurements in reports/*-probe.json.

The words are here, the tables are graphdedup.probe.table's. The page is a pure function of the reports, so it can be checked.

Usage: python tools/make_carries_page.py [--check]. Exit 0: written, or current; 1: with --check, the page is not what would be
written; 2: there is no report, or one that cannot be read.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from graphdedup.capabilities import Capabilities
from graphdedup.errors import ReportError
from graphdedup.probe.table import to_markdown

ROOT = Path(__file__).resolve().parent.parent
PAGE = "docs/what-an-update-carries.md"
REPORTS = "reports/*-probe.json"
COMMAND = "python tools/make_carries_page.py"

INTRODUCTION = """\
# What an update carries

`cudaGraphExecUpdate` re-points an executable at another graph. Which differences between the two graphs it takes, and
whether the next launch then does what the new graph does, depends on the device and the driver, and CUDA's documentation
does not tell all of it. So it is measured. For each difference there is a pair of small graphs: an executable of the first
is launched, offered the second and launched again, and what it wrote is compared, byte by byte, with what an executable of
the second graph writes. What the fold holds in its key on a device follows from the answers of that device (rules D3 and D4
in [the rules](invariants.md)).

The tables below are made from {reports}.

An application needs none of these commands: a `DedupBackend` measures a device that it does not know, once
([switches](switches.md)).

```
graphdedup probe                                           # what an update carries on your device; measures it if need be
graphdedup probe --refresh --json reports/NAME-probe.json  # measures it again, for this page
{command}                          # writes this page
```

| word | the update |
| --- | --- |
| carried | is taken, and the launch shows the new value |
| refused | is refused, and the executable runs what it ran before; after the colon stands what the driver calls it |
| **stale** | is taken, reported as a success, and the launch does *not* do what the new graph does |
| unobserved | is taken, but no launch shows whether the old or the new value holds |
| **broken** | is refused, and the executable no longer runs what it ran before |
| unknown | could not be tried here; the fold treats it as not carried |

Differences behind *with another function* change the kernel function in the same update. All updates and launches are those
of graphdedup's own driver, with what it does to make an update whole; *bare launch after the update* leaves that out.

## What matters most

All of it was measured on one NVIDIA H200 with driver 580.159.04 and torch 2.11.

**An update that was taken is not whole by itself.** An executable that was launched, updated and launched again, with no
kernel outside of graphs in between, still shows the cluster dimensions of its first launch, though the update was reported
as a success. A kernel that runs after the earlier launch has ended makes the update whole: the CUDA driver of graphdedup
runs a kernel of nothing between an update and the next launch, behind the earlier one (`graphdedup/driver/cuda_settle.py`).
What the questions answer with and without it stands below.

**Even then a cluster dimension is carried only together with another function.** Where the function stays the same, the old
dimension stays once the executable was uploaded. So within a group one function has one cluster dimension at each node
(`graphdedup/clusters.py`). The functions of cuBLAS have fixed clusters and keep to that by themselves.

**"No cluster dimension" is not carried.** A kernel that sets none keeps the one before. So it is made to say (1, 1, 1),
which means the same and is carried.

**An update does not make room for local memory.** The first launch of a function that needs more than the executable was
instantiated with can compute garbage; whether it does is left to chance. So the local memory of a function is always in the
key.

**A cluster dimension that a function was compiled for is not told by the node.** Where the source says `__cluster_dims__`,
it is read from the function.

**The list of all edges of a graph does not show the order of a node's dependencies**, and by that order updates pair nodes.
So it is read at each node that waits for several.
"""


def page(root: Path = ROOT) -> str:
    """The whole page.

    Raises:
        ReportError: there is no report under ``root``, or one that is not the JSON of capabilities.
    """
    files = sorted(root.glob(REPORTS))
    if not files:
        raise ReportError(f"there is no {REPORTS}", remedy="graphdedup probe --device cuda --json reports/NAME-probe.json")
    columns = []
    for file in files:
        try:
            columns.append(Capabilities.from_json(file.read_bytes()))
        except ReportError as error:
            raise ReportError(f"{file.name}: {error.problem}", remedy=error.remedy) from None
    links = ", ".join(f"[reports/{file.name}](../reports/{file.name})" for file in files)
    return f"{INTRODUCTION.format(command=COMMAND, reports=links)}\n{to_markdown(columns)}\n"


def main(arguments: Sequence[str] | None = None, *, root: Path = ROOT) -> int:
    """Write the page under ``root``, or check it; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when the page is not current")
    check = parser.parse_args(arguments).check
    try:
        wanted = page(root)
    except ReportError as error:
        print(error, file=sys.stderr)
        return 2
    file = root / PAGE
    if not check:
        file.write_text(wanted, encoding="utf-8")
    elif not file.exists() or file.read_text(encoding="utf-8") != wanted:
        print(f"{PAGE} is not current: run {COMMAND}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
