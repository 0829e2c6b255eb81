"""A check of what crosses a break, for debugging: it names the break that read or returned what nobody computed."""

from __future__ import annotations

import enum
from typing import Any

import torch

from seam.errors import BreakError, CaptureError
from seam.slot import tensors_in

__all__ = ["CrossingCheck"]


class CrossingCheck(enum.StrEnum):
    """What is looked for in tensors that cross a break, at each replay. It waits for the device every time."""

    NAN = "nan"
    """NaN in tensors of floating point or complex numbers."""
    POISON = "poison"
    """Elements of any type all of whose bits are set: what a poisoned allocator leaves in memory that holds nothing. An
    integer -1 looks the same."""

    @classmethod
    def parse(cls, value: CrossingCheck | str | None) -> CrossingCheck | None:
        """Read a check strictly; None is none.

        Raises:
            CaptureError: the value is no check; the message lists them.
        """
        try:
            return None if value is None else cls(value)
        except ValueError:
            checks = ", ".join(repr(check.value) for check in cls)
            raise CaptureError(f"check_crossing {value!r} is unknown", rule="S5", remedy=f"use one of {checks}") from None

    def look(self, value: Any, where: str) -> None:
        """Look through the tensors of a value.

        Raises:
            BreakError: one of them holds what is looked for; the message says which and how many elements.
        """
        for name, tensor in tensors_in(value):
            found = self._count(tensor)
            if found:
                what = "NaN" if self is CrossingCheck.NAN else "poison"
                raise BreakError(
                    f"{where}{name} holds {what} in {found} of {tensor.numel()} elements "
                    f"({tensor.dtype} {tuple(tensor.shape)} on {tensor.device})",
                    rule="S5",
                    remedy="look at what wrote it: the segment before the break for an argument, the break itself for a result",
                )

    def _count(self, tensor: torch.Tensor) -> int:
        if self is CrossingCheck.NAN:
            return int(tensor.isnan().sum()) if tensor.is_floating_point() or tensor.is_complex() else 0
        if tensor.layout is not torch.strided or not tensor.numel() or tensor.dtype is torch.bool:
            return 0
        size = tensor.element_size()
        packed = tensor.detach().resolve_conj().resolve_neg().contiguous().view(-1).view(torch.uint8).view(-1, size)
        return int((packed == 255).all(dim=1).sum())
