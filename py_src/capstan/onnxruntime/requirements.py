"""Computes the memory that a session takes: an estimate from the graph before a run, and the exact size after a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from ..device.device_interface import TensorSpec
from ..device.element_types import byte_count
from ..errors import BindingError
from ..memory import PoolItem, PoolSize, ledger, round_up
from .checks import check_dims, known

if TYPE_CHECKING:
    from ..graph import Activations

__all__ = ["SessionRequirements", "session_requirements"]

Dims = tuple[int, ...]
Shapes = Mapping[str, Sequence[int]]
SIZE = 16
"""Sizes are rounded up to a multiple of this number of bytes."""


@dataclass(frozen=True)
class SessionRequirements:
    """The bytes that a session and one of its runs take on a device."""

    device: str
    weights: PoolSize
    """The model's external data (on WebGPU the shared part); other initializers are part of scratch."""
    scratch: PoolSize
    """Memory that onnxruntime allocates for itself, which takes no buffers for it."""
    io: PoolSize
    """Inexact if `unknown` names outputs."""
    items: tuple[PoolItem, ...]
    """Weights, then 'input NAME' and 'output NAME'; a buffer of `bytes` bytes is large enough for each."""
    unknown: tuple[str, ...]
    """Outputs whose shape for these inputs neither the graph nor the last run gives."""

    @property
    def total(self) -> PoolSize:
        return self.weights + self.scratch + self.io


@dataclass(frozen=True)
class Ran:
    """The shapes of a run."""

    inputs: Mapping[str, Dims]
    outputs: Mapping[str, Dims]


def session_requirements(
    device: str,
    owner: str,
    inputs: Mapping[str, TensorSpec],
    outputs: Mapping[str, TensorSpec],
    weights: Sequence[PoolItem],
    activations: Activations | None,
    shapes: Shapes,
    ran: Ran | None,
    alignment: int,
) -> SessionRequirements:
    """The requirements for inputs of these shapes; inputs without free dimensions may be left out. `ran` are the shapes
    of the last run, `owner` is the session's name in the ledger. Raises BindingError for an input that the model does
    not have, and for a missing or unfitting shape.
    """
    given = input_dims(inputs, shapes)
    sizes = {
        name: size
        for spec in inputs.values()
        for name, size in zip(spec.dims, given[spec.name], strict=True)
        if isinstance(name, str) and name != "?"
    }
    last = ran.outputs if ran is not None and dict(ran.inputs) == given else {}
    found: dict[str, Dims] = {}
    for name, spec in outputs.items():
        dims = last.get(name) or tuple(size if isinstance(size, int) else sizes.get(size, -1) for size in spec.dims)
        if -1 not in dims:
            found[name] = dims

    def item(name: str, dtype: str, dims: Dims) -> PoolItem:
        size = max(SIZE, round_up(byte_count(dtype, dims), SIZE))
        return PoolItem(name, "io", size, alignment, True)

    io = [item(f"input {name}", inputs[name].dtype, dims) for name, dims in given.items()]
    io += [item(f"output {name}", outputs[name].dtype, dims) for name, dims in found.items()]
    unknown = tuple(name for name in outputs if name not in found)
    if ran is not None and dict(ran.inputs) == given and device == "webgpu":
        scratch = PoolSize(ledger().bytes(category="scratch", owner=owner))
    else:
        longest = max((prod(dims) for dims in given.values()), default=1)
        scratch = PoolSize(activations.peak_of(lambda name: sizes.get(name, longest)) if activations else 0, False)
    return SessionRequirements(
        device,
        PoolSize(sum(weight.bytes for weight in weights)),
        scratch,
        PoolSize(sum(each.bytes for each in io), exact=not unknown),
        (*weights, *io),
        unknown,
    )


def input_dims(inputs: Mapping[str, TensorSpec], shapes: Shapes) -> dict[str, Dims]:
    """A shape for every input."""
    found: dict[str, Dims] = {}
    for name in shapes:
        known("input", inputs, name)
    for name, spec in inputs.items():
        fixed = [size for size in spec.dims if isinstance(size, int)]
        dims = shapes.get(name, fixed if len(fixed) == len(spec.dims) else None)
        if dims is None:
            free = [size for size in spec.dims if isinstance(size, str)]
            raise BindingError(
                f"input {name!r} has free dimensions {free} in {list(spec.dims)}; give its shape: "
                f"query_memory_requirements({{{name!r}: [...]}})"
            )
        if any(size < 0 for size in dims):
            raise BindingError(f"input {name!r} has shape {list(dims)}; sizes are integers of at least 0")
        check_dims("input", spec, dims)
        found[name] = tuple(dims)
    return found
