"""Computes the rotary embedding of a GGUF file's layers as llama.cpp does in ggml_rope_ext.

Pair i of a head's first `rope.dimension_count` elements turns by base ** (-2i / dimensions) from each position to the
next, divided by its factor in a tensor of the file, if there is one. Linear scaling, the default without
`rope.scaling.type`, also divides by `rope.scaling.factor`. Yarn divides slow pairs fully, pairs between slow and fast
ones partly, and enlarges cosines and sines. `rope.scaling.attn_factor` multiplies cosines and sines in any case.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor, isfinite, log, pi

from ...errors import ConfigError, ModelFileError, UnsupportedModelError
from ...model_files.gguf.families import Family
from ...model_files.gguf.gguf_file import GgufFile
from ..attention_writer import Rotary

__all__ = ["SMALL_TENSORS", "Rotations"]

DIVISORS = "rope_freqs.weight"
SHORT, LONG = "rope_factors_short.weight", "rope_factors_long.weight"
SMALL_TENSORS = (DIVISORS, SHORT, LONG)
"""The tensors whose bytes a graph needs: divisors of rotary frequencies; long ropes have one for short and one for long
sequences.
"""
MOST_BYTES = 1 << 16
"""The most bytes of such a tensor."""
KINDS = ("none", "linear", "yarn", "longrope")
FAST, SLOW = 32.0, 1.0
"""Numbers of turns within the original length: yarn does not change pairs that turn at least FAST times, and fully
slows pairs that turn at most SLOW times.
"""
FASTEST = 1e30
"""The largest angle between two positions, since graphs compute in float32."""


@dataclass(frozen=True)
class Rotations:
    """The rotary embedding of a file's layers."""

    file: GgufFile
    family: Family
    whole_dimensions: int
    local_dimensions: int
    """The number of a head's first elements that are rotated, in layers without a window and in layers with one."""
    kind: str
    base: float
    factor: float
    local: tuple[float, float]
    """The base and the factor of layers with a window."""
    original: int
    """The context length before any scaling."""
    attention: float
    """The factor of cosines and sines besides that of yarn."""

    @classmethod
    def of(cls, file: GgufFile, family: Family, head_size: int, local_size: int) -> Rotations:
        """The rotary embedding of heads of those sizes, in layers without a window and in those with one. Raises
        ConfigError for wrong values, UnsupportedModelError for unsupported sizes.
        """
        dimensions = local = turned(file, family, "", head_size, head_size)
        if family.sizes_by_layer:
            local = turned(file, family, "_swa", dimensions, local_size)
        kind = file.text(file.key("rope.scaling.type"), "linear")
        if kind not in KINDS:
            raise file.error(file.key("rope.scaling.type"), f"one of {', '.join(KINDS)}")
        context = file.integer(file.key("context_length"))
        base, factor = file.real(file.key("rope.freq_base"), 10000.0, above=1.0), factor_of(file, kind)
        return cls(
            file,
            family,
            dimensions,
            local,
            kind,
            base,
            1.0 if kind == "none" else factor,
            family.local_rotation(file, base, factor) if family.local_rotation is not None else (base, factor),
            file.integer(file.key("rope.scaling.original_context_length"), context),
            file.real(file.key("rope.scaling.attn_factor"), 1.0, above=0.0),
        )

    def dimensions(self, local: bool) -> int:
        return self.local_dimensions if local else self.whole_dimensions

    def rotary(self, local: bool, divisors: Sequence[float]) -> Rotary:
        """The rotary embedding of the layers with a window, or of the others."""
        base, own = self.local if local else (self.base, self.factor)
        half = self.dimensions(local) // 2
        plain = [base ** (-pair / half) / divisor for pair, divisor in enumerate(divisors)]
        scale = self.attention
        if self.kind == "yarn":
            shares = self.yarn_shares(base, 2 * half)
            turns = [each * (share + (1 - share) / own) for each, share in zip(plain, shares, strict=True)]
            scale *= 1 + 0.1 * log(own)
        else:
            turns = [each / own for each in plain]
        if not all(each <= FASTEST for each in turns) or not (isfinite(scale) and 0 < scale < FASTEST):
            raise ConfigError(
                f"{self.file.name}: the metadata below {self.file.key('rope')} make rotary angles or their scale "
                f"greater than {FASTEST:g}; convert the model again"
            )
        return Rotary(tuple(turns), scale)

    def yarn_shares(self, base: float, dimensions: int) -> list[float]:
        """For each pair, the share (0 to 1) by which it turns as without yarn."""

        def pair_of(turns: float) -> float:
            return dimensions * log(self.original / (turns * 2 * pi)) / (2 * log(base))

        low, high = max(0, floor(pair_of(FAST))), min(dimensions - 1, ceil(pair_of(SLOW)))
        slowed = ((pair - low) / max(0.001, high - low) for pair in range(dimensions // 2))
        return [1 - min(1.0, max(0.0, each)) for each in slowed]

    def divisor_names(self, local: bool) -> tuple[str, ...]:
        """The names of the tensors that divide frequencies: for short and long sequences, or one for all; most files
        have none.
        """
        if self.family.whole_divisors:
            return () if local else (DIVISORS,)
        if not self.family.divisors:
            return ()
        names = (SHORT, LONG) if self.file.architecture == "phi3" or self.kind == "longrope" else (DIVISORS,)
        found = tuple(name for name in names if name in self.file.tensors)
        if len(found) == 1 and len(names) == 2:
            missing = next(name for name in names if name not in found)
            raise ModelFileError(
                f"{self.file.name}: tensor {missing} is missing beside {found[0]}; copy the file again"
            )
        return found

    def divisors(self, name: str, small: Mapping[str, bytes]) -> list[float]:
        """The factors in a tensor. Raises ModelFileError unless all are finite numbers above 0."""
        half = self.whole_dimensions // 2
        held = small.get(name, b"")
        if len(held) != 4 * half:
            raise ModelFileError(
                f"{self.file.name}: {len(held)} bytes of {name}, expected {4 * half}; copy the file again"
            )
        found = list(struct.unpack(f"<{half}f", held))
        for place, each in enumerate(found):
            if not (isfinite(each) and each > 1 / FASTEST):
                raise ModelFileError(
                    f"{self.file.name}: element {place} of {name} is {each:g}, expected a finite number above 0; copy "
                    "or convert the file again"
                )
        return found


def turned(file: GgufFile, family: Family, suffix: str, default: int, head_size: int) -> int:
    """The number of a head's elements that are rotated."""
    key = file.key(f"rope.dimension_count{suffix}")
    found = file.integer(key, default, most=head_size)
    if found % 2 or (family.neighbours and found != head_size):
        raise UnsupportedModelError(
            f"{file.name}: {key} is {found}; only {head_size if family.neighbours else 'an even number'} is supported "
            f"in a model of {file.architecture} with heads of {head_size}: use an ONNX export of the model"
        )
    return found


def factor_of(file: GgufFile, kind: str) -> float:
    """The factor of linear scaling and yarn, under its present name or its old one; 0 means no factor."""
    key, old = file.key("rope.scaling.factor"), file.key("rope.scale_linear")
    file.value(old)
    if key not in file.metadata and old in file.metadata:
        key = old
    found = file.real(key, 1.0) or 1.0
    if found < (1 if kind == "yarn" else 0):
        raise file.error(key, "a finite number above 0, with yarn from 1 on")
    return found
