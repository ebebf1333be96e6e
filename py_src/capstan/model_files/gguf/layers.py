"""Finds the sizes of each layer of a GGUF file's decoder. In most files all layers have the same sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...errors import UnsupportedModelError
from .families import WHOLE, family_of, require_states
from .gguf_file import GgufFile

__all__ = ["LayerSizes", "head_sizes", "layer_sizes"]


@dataclass(frozen=True)
class LayerSizes:
    """The sizes of one layer."""

    window: int
    """The length of its attention window in positions; -1 for all positions."""
    kv_heads: int
    """Heads of keys and values; 0 without attention."""
    head: int
    """Elements of a head."""
    source: int
    """The index of the layer whose caches it reads. If that is another layer, this layer has no keys and values."""


def layer_sizes(file: GgufFile, heads: int, width: int, layers: int) -> Sequence[LayerSizes]:
    """The sizes of the first `layers` layers, which have `heads` heads of queries each and states of `width` elements
    between them.

    Raises ConfigError for a key that is missing or wrong.
    """
    family = family_of(file)
    windows = family.windows(file, layers)
    kv_heads = heads_of_keys(file, heads, layers)
    head, local = head_sizes(file, heads, width)
    if not family.sizes_by_layer:
        return [LayerSizes(windows[each], kv_heads[each], head, each) for each in range(layers)]
    own = layers - file.integer(file.key("attention.shared_kv_layers"), 0, least=0, most=layers - 1)
    found: list[LayerSizes] = []
    for layer, window in enumerate(windows):
        source = layer if layer < own else source_of(file, windows, own, window)
        found.append(LayerSizes(window, kv_heads[source], head if window == WHOLE else local, source))
    return found


def heads_of_keys(file: GgufFile, heads: int, layers: int) -> Sequence[int]:
    """Heads of keys and values of each layer."""
    key = file.key("attention.head_count_kv")
    count = file.integer(file.key("block_count"))
    found = file.by_layer(key, count, heads, least=0, most=heads)
    family = family_of(file)
    if family.sizes_by_layer:
        if 0 in found:
            raise file.error(key, "an integer from 1 for each layer")
    elif len({each for each in found if each}) != 1:
        raise file.error(key, "the same for all layers with attention")
    elif 0 in found:
        require_states(file)
    if any(heads % each for each in found if each):
        raise file.error(key, f"a divisor of head_count ({heads})")
    return found[:layers]


def head_sizes(file: GgufFile, heads: int, width: int) -> tuple[int, int]:
    """Elements of a head of keys and values, in layers without a window and in layers with one."""
    whole = head_size(file, "", width // heads)
    return whole, head_size(file, "_swa", None) if family_of(file).sizes_by_layer else whole


def head_size(file: GgufFile, suffix: str, default: int | None) -> int:
    found = file.integer(file.key(f"attention.key_length{suffix}"), default)
    file.integer(file.key(f"attention.value_length{suffix}"), found, least=found, most=found)
    return found


def source_of(file: GgufFile, windows: Sequence[int], own: int, window: int) -> int:
    """The last layer with that window before those that share caches. llama.cpp takes the last two layers, which are
    one of each kind in all models.
    """
    kinds = [each == WHOLE for each in windows[max(0, own - 2) : own]]
    if kinds != [False, True]:
        raise UnsupportedModelError(
            f"{file.name}: {file.key('attention.shared_kv_layers')} leaves caches to {own} layers, the last two of "
            "which must be one with a window and one without; use another file of the model"
        )
    return own - 1 if window == WHOLE else own - 2
