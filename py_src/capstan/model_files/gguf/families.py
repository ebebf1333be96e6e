"""The families of models in GGUF files, by the name that a file gives its architecture.

`FAMILIES` tells for each its type in genai_config.json, and in which its layers differ from llama's. Metadata are read
by the same keys for all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import sqrt

from ...errors import UnsupportedModelError
from .header import GgufFile

__all__ = ["FAMILIES", "Family", "family_of"]


def no_window(file: GgufFile, layer: int) -> int:
    return -1


def one_layer_in_two(file: GgufFile, layer: int) -> int:
    return -1 if layer % 2 else file.integer("gemma2.attention.sliding_window")


def five_layers_in_six(file: GgufFile, layer: int) -> int:
    return -1 if layer % 6 == 5 else file.integer("gemma3.attention.sliding_window")


def all_layers(file: GgufFile, layer: int) -> int:
    return file.integer("phi3.attention.sliding_window", -1, least=-1)


def gemma_scale(largest: int) -> Callable[[GgufFile, int], float]:
    """The scale of queries: by the head size but for the largest model, which has so many layers."""

    def scale(file: GgufFile, head_size: int) -> float:
        front = file.architecture
        if file.integer(f"{front}.block_count") != largest:
            return 1 / sqrt(head_size)
        return sqrt(file.integer(f"{front}.attention.head_count") / file.integer(f"{front}.embedding_length"))

    return scale


def width_root(file: GgufFile) -> float:
    return sqrt(file.integer(f"{file.architecture}.embedding_length"))


@dataclass(frozen=True)
class Family:
    """A family, and how its layers differ from llama's."""

    type: str
    """The type that genai_config.json gives its models."""
    neighbours: bool = False
    """Whether rotary embedding turns neighbours, so that the rows of q and k have the halves of a head in turn."""
    gelu: bool = False
    """Whether the gate is GELU in place of SiLU."""
    sandwich: bool = False
    """Whether there are norms behind attention and behind the MLP, too."""
    embedding_scale: Callable[[GgufFile], float] = lambda file: 1.0
    residual_scale: Callable[[GgufFile], float] = lambda file: 1.0
    logits_scale: Callable[[GgufFile], float] = lambda file: 1.0
    attention_scale: Callable[[GgufFile, int], float] = lambda file, head_size: 1 / sqrt(head_size)
    window: Callable[[GgufFile, int], int] = no_window
    """The positions that a layer attends to; -1 for all."""
    local_base: float | None = None
    """The base of rotary frequencies in layers with a window, if it is another one."""
    soft_caps: bool = False
    joined: bool = False
    """Whether one tensor has q, k and v, and another one gate and up."""


FAMILIES: Mapping[str, Family] = {
    "llama": Family("llama", neighbours=True),
    "qwen2": Family("qwen2"),
    "qwen3": Family("qwen3"),
    "gemma2": Family(
        "gemma2",
        gelu=True,
        sandwich=True,
        embedding_scale=width_root,
        attention_scale=gemma_scale(46),
        window=one_layer_in_two,
        soft_caps=True,
    ),
    "gemma3": Family(
        "gemma3_text",
        gelu=True,
        sandwich=True,
        embedding_scale=width_root,
        attention_scale=gemma_scale(62),
        window=five_layers_in_six,
        local_base=10000.0,
    ),
    "phi3": Family("phi3", window=all_layers, joined=True),
    "granite": Family(
        "granite",
        neighbours=True,
        embedding_scale=lambda file: file.real("granite.embedding_scale", 1.0),
        residual_scale=lambda file: file.real("granite.residual_scale", 1.0),
        logits_scale=lambda file: 1 / file.real("granite.logit_scale", 1.0),
        attention_scale=lambda file, head_size: file.real("granite.attention.scale", 1 / sqrt(head_size)),
    ),
}


def family_of(file: GgufFile) -> Family:
    """The file's family. Raises UnsupportedModelError."""
    found = FAMILIES.get(file.architecture)
    if found is None:
        known = ", ".join(FAMILIES)
        raise UnsupportedModelError(
            f"{file.name}: architecture {file.architecture!r} is unknown to Capstan; take a GGUF file of {known}, "
            "or an ONNX export of the model"
        )
    return found
