"""The demo: a small transformer captured at many batch sizes, folded, replayed and compared bit for bit with eager."""

from __future__ import annotations

from graphdedup.demo.model import PRESETS, ModelConfig
from graphdedup.demo.run import DemoRequest, run_demo
from graphdedup.demo.sizes import USUAL_SIZES, parse_sizes

__all__ = ["PRESETS", "USUAL_SIZES", "DemoRequest", "ModelConfig", "parse_sizes", "run_demo"]
