"""Caches in parts of some heads: onnxruntime on the CPU computes the same numbers over them as over whole ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from capstan import graph
from capstan.graph.graph_passes import rewritten
from capstan.graph.onnx_pb2 import ModelProto
from capstan.graph.rewriting import Rewriting
from capstan.graph.split_caches import parts_that_fit
from capstan.loading.folder import with_caches
from capstan.model_files.genai_config_file import parse_genai_config
from tests.unit.graph_runs import session_of, weights_of

FIXTURES = Path(__file__).parents[1] / "fixtures"
PROMPT, ROOM, HEADS, HEAD = [5, 6, 300, 7, 511, 128], 256, 2, 16
LARGEST = HEADS * HEAD * 4 * ROOM - 1
"""One less than the bytes of a cache."""


def made(name: str, largest: int, room: int = ROOM, bits: str | None = None) -> tuple[ModelProto, Rewriting]:
    """The graph of decode steps and its facts."""
    folder = FIXTURES / name
    config = parse_genai_config((folder / "genai_config.json").read_bytes())
    facts = Rewriting(with_caches(config, {"kv_cache_dtype": bits}), largest=largest, room=room)
    model = rewritten(graph.parse((folder / "model.onnx").read_bytes()), "webgpu", facts)
    return rewritten(model, "decode", facts), facts


def run(name: str, model: ModelProto, facts: Rewriting) -> list[Any]:
    """The logits, and each layer's keys and values with the heads of all parts behind one another."""
    data = (FIXTURES / name / "model.onnx.data").read_bytes()
    session, feeds = session_of(model), weights_of(facts.weights, data)
    about = facts.about
    feeds |= {"input_ids": np.array([PROMPT], np.int64), "attention_mask": np.ones((1, len(PROMPT)), np.int64)}
    feeds |= {pair.past: np.zeros(pair.dims(1, 0), np.float32) for pair in about.cache}
    if about.position_ids:
        feeds[about.position_ids] = np.arange(len(PROMPT))[None]
    read = {value.name for value in session.get_inputs()}
    feeds = {each: value for each, value in feeds.items() if each in read}
    logits, *caches = session.run([about.logits, *(pair.present for pair in about.cache)], feeds)
    layers: dict[tuple[int, str], list[Any]] = {}
    for pair, cache in zip(about.cache, caches, strict=True):
        layers.setdefault((pair.layer, pair.kind), []).append(cache)
    return [logits, *(np.concatenate(parts, axis=1) for _, parts in sorted(layers.items()))]


@pytest.mark.parametrize("name", ["nano-llama", "nano-qwen3", "nano-apart", "nano-float"])
def test_caches_in_parts_give_the_same_logits_and_caches(name: str, no_running_loop: None) -> None:
    whole, parted = made(name, 0), made(name, LARGEST)
    assert {pair.heads for pair in whole[1].about.cache} == {HEADS}
    assert {pair.heads for pair in parted[1].about.cache} == {1}
    assert len(parted[1].about.cache) == 2 * len(whole[1].about.cache)
    told = [(each.bytes, each.parts) for each in parted[1].cache_parts]
    assert told == [(LARGEST + 1, 2)] * len(whole[1].about.cache)
    for one, other in zip(run(name, *whole), run(name, *parted), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(("largest", "room"), [(LARGEST + 1, ROOM), (LARGEST // 4, 0)])
def test_caches_that_a_binding_holds_and_those_of_no_told_length_stay_whole(largest: int, room: int) -> None:
    _, facts = made("nano-llama", largest, room)
    assert {pair.heads for pair in facts.about.cache} == {HEADS}
    assert facts.cache_parts == ()


def test_smaller_elements_make_fewer_parts() -> None:
    assert made("nano-llama", LARGEST, bits="int8")[1].cache_parts == ()
    _, facts = made("nano-llama", (4 + HEAD) * ROOM, bits="int8")
    assert {(pair.heads, pair.head_size) for pair in facts.about.cache} == {(1, 5)}


def test_attention_with_something_for_each_head_keeps_whole_caches() -> None:
    config = parse_genai_config((FIXTURES / "nano-llama/genai_config.json").read_bytes())
    model = graph.parse((FIXTURES / "nano-llama/model.onnx").read_bytes())
    node = next(each for each in model.graph.node if each.op_type == "GroupQueryAttention")
    node.input.extend([""] * (11 - len(node.input)))
    node.input.append("sinks")
    facts = Rewriting(config, largest=LARGEST, room=ROOM)
    model = rewritten(model, "webgpu", facts)
    assert facts.cache_parts == ()
    rewritten(model, "decode", facts)
    assert facts.about.whole == f"node {node.name} reads an input with values for each head"


def test_parts_are_the_fewest_of_one_size() -> None:
    found = [parts_that_fit(heads, 10, largest) for heads, largest in ((8, 80), (8, 79), (8, 39), (6, 39), (8, 9))]
    assert found == [1, 2, 4, 2, 0]
