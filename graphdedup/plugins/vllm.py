"""The plugin for vLLM: entry point group ``vllm.general_plugins``, loaded in every process of the engine.

vLLM captures one graph for each batch size, and with piecewise compilation one for each size and piece; it finds
``torch.cuda.CUDAGraph`` when it captures. A pass that only profiles memory captures too, and throws those graphs away again:
they leave the fold as they came.
"""

from __future__ import annotations

from graphdedup.plugins.environment import install_if_asked

__all__ = ["register"]


def register() -> None:
    """What vLLM calls. See :func:`graphdedup.plugins.environment.install_if_asked`."""
    install_if_asked()
