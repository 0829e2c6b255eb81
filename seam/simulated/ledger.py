"""What a simulated pool gave out since a moment."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .memory import DeviceMemory
from .tensors import TensorParam

__all__ = ["SimulatedLedger"]


class SimulatedLedger:
    """See :class:`seam.backend.Ledger`. Blocks are numbered as they are taken."""

    def __init__(self, memory: DeviceMemory, pool: int, stream: int) -> None:
        self._memory = memory
        self._pool = pool
        self._stream = stream
        self._before = memory.taken_count

    def empty_strided(
        self, size: Sequence[int], stride: Sequence[int], *, dtype: torch.dtype, device: torch.device
    ) -> torch.Tensor:
        """A tensor on memory of the pool; on ordinary memory where ``device`` is not the CPU."""
        if device.type != "cpu":
            return torch.empty_strided(size, stride, dtype=dtype, device=device)
        return self._memory.place(size, stride, dtype, pool=self._pool, stream=self._stream)

    def made_here(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor's storage is a block of the pool that was taken since."""
        taken = self._memory.taken(tensor.untyped_storage().data_ptr()) if tensor.device.type == "cpu" else None
        return taken is not None and taken[0] == self._pool and taken[1] > self._before

    def view(self, tensor: torch.Tensor) -> torch.Tensor:
        """The same elements, owning no memory."""
        self._memory.note_view(tensor.untyped_storage().data_ptr())
        with torch.inference_mode(tensor.is_inference()):
            return TensorParam(tensor, self._memory).view()
