"""Reads a GGUF file's header: its metadata, with checked readers, and the places of its tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from math import isfinite
from typing import Any, TypeAlias

from ...errors import ConfigError

__all__ = ["BLOCKS", "CONVERT", "MOST_ELEMENTS", "OTHER_TYPES", "GgmlType", "GgufFile", "GgufTensor", "Value"]

MOST_ELEMENTS = 1 << 24
"""The most elements of an array, and the default limit of integers."""
MOST_REAL = 3.4e38
"""The largest real, since graphs have float32."""
CONVERT = "convert the model again with llama.cpp's convert_hf_to_gguf.py"

Value: TypeAlias = "int | float | bool | str | tuple[Any, ...]"
"""A value of the metadata; an array is a tuple."""


class GgmlType(IntEnum):
    """The type of a tensor's elements, by its number in the file."""

    F32 = 0
    F16 = 1
    Q4_0 = 2
    Q4_1 = 3
    Q5_0 = 6
    Q5_1 = 7
    Q8_0 = 8
    Q2_K = 10
    Q3_K = 11
    Q4_K = 12
    Q5_K = 13
    Q6_K = 14
    IQ4_NL = 20
    IQ4_XS = 23
    BF16 = 30
    MXFP4 = 39

    @property
    def block(self) -> tuple[int, int]:
        """(elements, bytes) of a block, which lies along the innermost dimension."""
        return BLOCKS[self]


BLOCKS: Mapping[GgmlType, tuple[int, int]] = {
    GgmlType.F32: (1, 4),
    GgmlType.F16: (1, 2),
    GgmlType.Q4_0: (32, 18),
    GgmlType.Q4_1: (32, 20),
    GgmlType.Q5_0: (32, 22),
    GgmlType.Q5_1: (32, 24),
    GgmlType.Q8_0: (32, 34),
    GgmlType.Q2_K: (256, 84),
    GgmlType.Q3_K: (256, 110),
    GgmlType.Q4_K: (256, 144),
    GgmlType.Q5_K: (256, 176),
    GgmlType.Q6_K: (256, 210),
    GgmlType.IQ4_NL: (32, 18),
    GgmlType.IQ4_XS: (256, 136),
    GgmlType.BF16: (1, 2),
    GgmlType.MXFP4: (32, 17),
}

OTHER_TYPES = {
    kind: name
    for first, names in {
        9: "Q8_1",
        15: "Q8_K IQ2_XXS IQ2_XS IQ3_XXS IQ1_S",
        21: "IQ3_S IQ2_S",
        24: "I8 I16 I32 I64 F64 IQ1_M",
        34: "TQ1_0 TQ2_0",
    }.items()
    for kind, name in enumerate(names.split(), first)
}
"""Types of ggml that Capstan does not read."""


@dataclass(frozen=True)
class GgufTensor:
    """A tensor and the place of its data."""

    name: str
    dims: tuple[int, ...]
    """Outermost first, as in numpy."""
    type: GgmlType
    offset: int
    """The first byte of its data in the file."""
    length: int
    """Bytes of its data."""
    shard: int = 0
    """The index of its file, in a model of several files."""


@dataclass(frozen=True)
class GgufFile:
    """A header. The readers of the metadata raise ConfigError with the key, the expected and the found value."""

    name: str
    """The name of the file in errors."""
    version: int
    metadata: Mapping[str, Value]
    tensors: Mapping[str, GgufTensor]
    data: int
    """The byte of the file at which the tensors' data begin."""
    _asked: set[str] = field(default_factory=set, repr=False, compare=False)
    """The keys that were read."""

    @property
    def architecture(self) -> str:
        """The family of the model; the metadata's keys begin with it."""
        return self.text("general.architecture")

    def key(self, name: str) -> str:
        """The key of that name below the architecture's."""
        return f"{self.architecture}.{name}"

    def unread(self) -> list[str]:
        """The names of the keys below the architecture's that were not read."""
        front = self.key("")
        return [key.removeprefix(front) for key in self.metadata if key.startswith(front) and key not in self._asked]

    def error(self, key: str, expected: str, remedy: str = CONVERT) -> ConfigError:
        if key not in self.metadata:
            return ConfigError(f"{self.name}: metadata {key} is missing, expected {expected}; {remedy}")
        shown = repr(self.metadata[key])
        shown = shown if len(shown) <= 60 else shown[:57] + "..."
        return ConfigError(f"{self.name}: metadata {key}: expected {expected}, got {shown}; {remedy}")

    def value(self, key: str, default: Any = None) -> Any:
        """A value of any type."""
        self._asked.add(key)
        return self.metadata.get(key, default)

    def integer(self, key: str, default: int | None = None, least: int = 1, most: int = MOST_ELEMENTS) -> int:
        """An integer from `least` to `most`; required without a default."""
        value = self.value(key, default)
        if type(value) is not int or not least <= value <= most:
            raise self.error(key, f"an integer from {least} to {most}")
        return value

    def by_layer(
        self, key: str, layers: int, default: int | None = None, least: int = 1, most: int = MOST_ELEMENTS
    ) -> tuple[int, ...]:
        """An integer from `least` to `most` for each of `layers` layers; most files have one number for all layers."""
        value = self.value(key, default)
        described = value if isinstance(value, tuple) else (value,) * layers
        if len(described) != layers or not all(type(each) is int and least <= each <= most for each in described):
            raise self.error(key, f"an integer from {least} to {most}, or {layers} of them, one for each layer")
        return described

    def of_layers(self, key: str, layers: int, default: int | None = None, most: int = MOST_ELEMENTS) -> int:
        """An integer from 1 on that is the same for each of `layers` layers."""
        found = set(self.by_layer(key, layers, default, most=most))
        if len(found) > 1:
            raise self.error(key, "the same for all layers")
        return found.pop()

    def real(self, key: str, default: float | None = None, above: float | None = None) -> float:
        """A finite number, greater than `above`; required without a default."""
        value = self.value(key, default)
        known = type(value) in (int, float) and isfinite(value) and abs(value) <= MOST_REAL
        if not known or (above is not None and value <= above):
            raise self.error(key, "a finite number" if above is None else f"a finite number above {above:g}")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        value = self.value(key, default)
        if type(value) is not bool:
            raise self.error(key, "true or false")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        """A non-empty string; required without a default."""
        value = self.value(key, default)
        if not isinstance(value, str) or not value:
            raise self.error(key, "a non-empty string")
        return value

    def strings(self, key: str) -> tuple[str, ...]:
        """An array of strings."""
        value = self.value(key)
        if not isinstance(value, tuple) or set(map(type, value)) - {str}:
            raise self.error(key, "an array of strings")
        return value

    def numbers(self, key: str, kind: type[int] | type[float]) -> tuple[Any, ...]:
        """An array of integers or of reals."""
        value = self.value(key)
        if not isinstance(value, tuple) or set(map(type, value)) - {kind}:
            raise self.error(key, f"an array of {'integers' if kind is int else 'reals'}")
        return value
