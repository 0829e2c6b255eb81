"""``python -m graphdedup.demo SPEC OUTPUT``: one arm in a process of its own.

:func:`graphdedup.demo.run.run_apart` starts it. SPEC is an ``ArmSpec`` as JSON, and the ``ArmResult`` is written to
OUTPUT as JSON. Errors that graphdedup or the seam foresee are one line on stderr and exit code 1.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import torch

from graphdedup.demo.arm import ArmSpec, run_arm
from graphdedup.demo.run import logging_to_stderr
from graphdedup.errors import GraphDedupError
from seam.errors import SeamError


def main(arguments: list[str]) -> int:
    """Run the arm that ``arguments`` describe; the exit code."""
    if len(arguments) != 2:
        sys.stderr.write("usage: python -m graphdedup.demo SPEC OUTPUT (started by graphdedup demo)\n")
        return 2
    spec = ArmSpec.model_validate_json(arguments[0])
    # The line that says what a session folded to is of interest where something is folded.
    level = logging.DEBUG if spec.verbose else logging.INFO if spec.folded else logging.WARNING
    try:
        with logging_to_stderr(level):
            result = run_arm(spec)
    except (GraphDedupError, SeamError, torch.OutOfMemoryError) as error:
        sys.stderr.write(f"{' '.join(str(error).split())}\n")
        return 1
    Path(arguments[1]).write_text(result.model_dump_json(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
