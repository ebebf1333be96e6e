"""How one fused kernel is to be made and dispatched."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

__all__ = ["KernelPlan"]


@dataclass(frozen=True)
class KernelPlan:
    """A template of web/src/shaders, its constants, and its workgroups: fixed, or a function of the sequence length."""

    shader: str
    constants: Mapping[str, int | float | bool]
    counts: tuple[int, int, int] | Callable[[int], tuple[int, int, int]]
