"""The torch modes that a break body ran under at capture, so that it runs under the same ones at replay."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass

import torch

__all__ = ["TorchModes"]


@dataclass(frozen=True, slots=True)
class TorchModes:
    """Grad, inference and autocast modes of one moment. A body captured under ``inference_mode`` writes into inference
    tensors, which torch forbids outside that mode."""

    grad: bool
    inference: bool
    autocast: tuple[tuple[str, torch.dtype], ...]

    @classmethod
    def current(cls) -> TorchModes:
        """The modes of the calling thread now."""
        autocast = tuple((kind, torch.get_autocast_dtype(kind)) for kind in ("cuda", "cpu") if torch.is_autocast_enabled(kind))
        return cls(torch.is_grad_enabled(), torch.is_inference_mode_enabled(), autocast)

    def entered(self) -> ExitStack:
        """A context in which these modes hold."""
        stack = ExitStack()
        stack.enter_context(torch.inference_mode(self.inference))
        stack.enter_context(torch.set_grad_enabled(self.grad))
        for kind in ("cuda", "cpu"):
            dtype = dict(self.autocast).get(kind)
            if dtype is not None or torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, dtype=dtype, enabled=dtype is not None))
        return stack
