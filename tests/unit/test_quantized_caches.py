"""The pass that gives a graph's caches the shape of quantized ones, and what it refuses."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from capstan.errors import OptionError, UnsupportedModelError
from capstan.graph import parse
from capstan.graph.carried import CachePair, cache_pairs
from capstan.graph.onnx_pb2 import ModelProto
from capstan.graph.quantized_caches import fewer_bits, quantized_caches, with_bits
from capstan.loading.folder import with_caches
from capstan.loading.load_options import CacheOptions, rows
from capstan.loading.opening import source_of
from capstan.model_files.genai_config import KV_CACHE_BITS, GenaiConfig
from capstan.model_files.genai_config_file import parse_genai_config

FIXTURES = Path(__file__).parents[1] / "fixtures"
CONTEXT = 512
WINDOW = 24
"""The positions that the first layer of nano-gemma3 looks back."""


def opened(name: str) -> tuple[ModelProto, GenaiConfig]:
    folder = FIXTURES / name
    config = parse_genai_config((folder / "genai_config.json").read_bytes(), str(folder))
    return parse((folder / "model.onnx").read_bytes(), "model.onnx"), config


def pairs_of(model: ModelProto, config: GenaiConfig) -> tuple[CachePair, ...]:
    return cache_pairs(config.decoder, model.graph)


@pytest.mark.parametrize(("bits", "elements"), [(8, 5), (4, 3)])
def test_rows_have_a_scale_and_the_packed_elements(bits: int, elements: int) -> None:
    """Heads of 16 elements in float32: 1 + 16 * bits / 32 of them."""
    model, config = opened("nano-llama")
    before = pairs_of(model, config)
    assert {pair.head_size for pair in before} == {16}
    after = pairs_of(quantized_caches(model, before, bits, CONTEXT), config)
    assert {pair.head_size for pair in after} == {elements}
    assert [replace(pair, head_size=16) for pair in after] == list(before)
    assert pairs_of(model, config) == before, "the model itself is unchanged"


@pytest.mark.parametrize(
    ("head_size", "bits", "message"),
    [(80, 4, "heads of 80 elements, not a power of two from 8 on"), (6, 8, "heads of 6 elements, not a multiple of 4")],
)
def test_heads_of_other_sizes_are_refused(head_size: int, bits: int, message: str) -> None:
    model, config = opened("nano-llama")
    pairs = [replace(pair, head_size=head_size) for pair in pairs_of(model, config)]
    with pytest.raises(
        UnsupportedModelError, match=f"int{bits} cannot be used: .* has {message}; load the model without"
    ):
        quantized_caches(model, pairs, bits, CONTEXT)


def test_caches_that_attention_does_not_write_are_refused() -> None:
    model, config = opened("nano-llama")
    for node in model.graph.node:
        if node.op_type == "GroupQueryAttention":
            node.op_type = "Attention"
    with pytest.raises(UnsupportedModelError, match="needs GroupQueryAttention, which does not write present.0.key"):
        quantized_caches(model, pairs_of(model, config), 8, CONTEXT)


def test_soft_caps_are_refused() -> None:
    model, config = opened("nano-gemma2")
    with pytest.raises(UnsupportedModelError, match="int8 cannot be used with soft caps"):
        quantized_caches(model, pairs_of(model, config), 8, CONTEXT)


def test_windows_shorter_than_sequences_are_refused() -> None:
    model, config = opened("nano-gemma3")
    pairs = pairs_of(model, config)
    told = f"int4 cannot be used with attention that looks back {WINDOW} positions and a context_length of {CONTEXT} "
    with pytest.raises(UnsupportedModelError, match=told):
        quantized_caches(model, pairs, 4, CONTEXT)
    assert fewer_bits(model, pairs, 0, 32, WINDOW + 1) == ()
    assert fewer_bits(model, pairs, 0, 32, WINDOW) == (8, 4)
    assert len(pairs_of(quantized_caches(model, pairs, 4, WINDOW), config)) == len(pairs)


@pytest.mark.parametrize(
    ("name", "head_size", "expected"),
    [("nano-llama", 16, (8, 4)), ("nano-llama", 80, (8,)), ("nano-llama", 6, ()), ("nano-gemma2", 0, ())],
)
def test_the_bits_that_caches_could_have_are_told(name: str, head_size: int, expected: tuple[int, ...]) -> None:
    model, config = opened(name)
    pairs = [replace(pair, head_size=head_size or pair.head_size) for pair in pairs_of(model, config)]
    assert fewer_bits(model, pairs, 0, 32, CONTEXT) == expected


def test_caches_of_8_bits_could_have_4() -> None:
    model, config = opened("nano-llama")
    floats = pairs_of(model, config)
    eight, four = (pairs_of(quantized_caches(model, floats, bits, CONTEXT), config) for bits in (8, 4))
    assert fewer_bits(model, eight, 8, 32, CONTEXT) == (4,)
    assert fewer_bits(model, four, 4, 32, CONTEXT) == ()
    assert with_bits(eight, 8, 4, 32) == four
    assert with_bits(floats, 0, 8, 32) == eight
    assert with_bits(four, 4, 0, 32) == floats


def test_a_caller_says_the_type_of_the_caches() -> None:
    _, config = opened("nano-llama")
    bits = [with_caches(config, {"kv_cache_dtype": each}).decoder.kv_cache_bits for each in ("int8", "int4", "float")]
    assert bits == [8, 4, 0]
    assert with_caches(config, {"kv_cache_dtype": None}) is with_caches(config, {}) is config
    with pytest.raises(
        OptionError, match="kv_cache_dtype is 'q4_0'; it must be one of 'float', 'int8', 'int4', or None"
    ):
        source_of("/m/", {"kv_cache_dtype": "q4_0"})
    assert rows(CacheOptions)["kv_cache_dtype"].choices == tuple(KV_CACHE_BITS)
