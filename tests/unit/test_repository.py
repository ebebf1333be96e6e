"""Repositories in Transformers.js layout: what is derived from config.json and the graph, and what is refused."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from capstan import (
    CapstanError,
    ConfigError,
    FallbackWarning,
    Generator,
    GeneratorParams,
    Model,
    ModelFileError,
    OptionError,
    UnsupportedModelError,
    plan,
)
from capstan.graph.onnx_pb2 import ModelProto, TensorProto
from capstan.model_files.session_settings import GraphCapture
from tests import oracle
from tests.repository_layout import lay_out, with_positions

FIXTURES = Path(__file__).parents[1] / "fixtures"
LLAMA = FIXTURES / "nano-llama"
PROMPT = [5, 6, 7, 8, 9]


def load(folder: Path, **options: Any) -> Model:
    return asyncio.run(Model.load(str(folder), device="reference", **options))


def greedy(model: Model, count: int) -> list[int]:
    params = GeneratorParams(model)
    params.set_search_options(do_sample=False, max_length=len(PROMPT) + count)
    with Generator(model, params) as generator:
        generator.append_tokens(PROMPT)
        ids = []
        while not generator.is_done():
            generator.generate_next_token()
            ids.append(generator.get_next_tokens()[0])
        return ids


class TestLoading:
    @pytest.mark.parametrize("parts", [0, 2])
    @pytest.mark.parametrize("name", ["nano-llama", "nano-qwen2", "nano-qwen3", "nano-shape", "nano-mixed"])
    def test_ids_are_those_of_the_genai_folder_of_the_same_weights(self, name: str, parts: int, tmp_path: Path) -> None:
        model = load(lay_out(FIXTURES / name, tmp_path / "repo", parts=parts, config={"bos_token_id": None}))
        assert greedy(model, 24) == oracle.greedy(FIXTURES / name, PROMPT, 24)

    def test_sizes_and_ids_come_from_config_json_and_the_graph(self, tmp_path: Path) -> None:
        model = load(lay_out(LLAMA, tmp_path / "repo"))
        config = model.config
        assert (model.type, config.vocab_size, config.context_length) == ("llama", 512, 512)
        assert (config.bos_token_id, config.eos_token_ids, config.pad_token_id) == (0, (1,), 2)
        decoder = config.decoder
        assert (decoder.num_hidden_layers, decoder.num_attention_heads, decoder.num_key_value_heads) == (2, 4, 2)
        assert (decoder.head_size, decoder.filename) == (16, "onnx/model_q4.onnx")

    def test_the_head_size_is_the_width_divided_unless_said(self, tmp_path: Path) -> None:
        assert load(lay_out(LLAMA, tmp_path / "repo", config={"head_dim": None})).config.decoder.head_size == 16

    def test_session_options_laid_over_say_whether_to_capture(self, tmp_path: Path) -> None:
        folder = lay_out(LLAMA, tmp_path / "repo")

        def capture(value: str) -> GraphCapture | None:
            options = {"provider_options": [{"webgpu": {"enableGraphCapture": value, "zzz": "1"}}]}
            return load(folder, overlay={"model": {"decoder": {"session_options": options}}}).config.decoder.capture

        where = "overlay: model.decoder.session_options.provider_options[0].webgpu.enableGraphCapture"
        with pytest.warns(FallbackWarning, match=r"provider_options\[0\]\.webgpu\.zzz \(unknown to Capstan\)"):
            assert capture("0") == GraphCapture(False, where)
        with pytest.raises(ConfigError, match=f'^{re.escape(where)}: expected "0" or "1", got "off"'):
            capture("off")

    def test_older_names_of_fields_are_understood(self, tmp_path: Path) -> None:
        old = {"n_layer": 2, "n_head": 4, "n_embd": 64, "n_positions": 256}
        new = dict.fromkeys(("num_hidden_layers", "num_attention_heads", "hidden_size", "max_position_embeddings"))
        config = load(lay_out(LLAMA, tmp_path / "repo", config={**new, **old, "head_dim": None})).config
        assert (config.context_length, config.decoder.num_hidden_layers, config.decoder.head_size) == (256, 2, 16)

    def test_generation_config_says_how_to_sample_and_where_to_end(self, tmp_path: Path) -> None:
        generation = {"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "eos_token_id": [7, 8]}
        generation |= {"repetition_penalty": 1.5, "no_repeat_ngram_size": 3, "bad_words_ids": [[5, 6], [9]]}
        model = load(lay_out(LLAMA, tmp_path / "repo", generation=generation))
        search = model.search
        assert (search.do_sample, search.temperature, search.top_k, search.top_p) == (True, 0.6, 20, 0.95)
        assert search.eos_token_ids == (7, 8)
        assert (search.repetition_penalty, search.no_repeat_ngram_size) == (1.5, 3)
        assert search.bad_words_ids == ((5, 6), (9,))

    def test_what_it_says_and_capstan_lacks_is_told(self, tmp_path: Path) -> None:
        folder = lay_out(LLAMA, tmp_path / "repo", generation={"repetition_penalty": 1.1, "num_beams": 4})
        with pytest.warns(FallbackWarning, match=r"num_beams=4 is not implemented; it is left out"):
            load(folder)

    def test_position_ids_are_fed(self, tmp_path: Path) -> None:
        model = load(lay_out(LLAMA, tmp_path / "repo", change=with_positions))
        assert greedy(model, 24) == oracle.greedy(LLAMA, PROMPT, 24)

    def test_other_names_of_the_caches_come_from_the_graph(self, tmp_path: Path) -> None:
        def rename(model: ModelProto) -> None:
            for value in [*model.graph.input, *model.graph.output]:
                value.name = other(value.name)
            for node in model.graph.node:
                for names in (node.input, node.output):
                    for place, name in enumerate(names):
                        names[place] = other(name)

        def other(name: str) -> str:
            return name.replace("past_key_values.", "past.layer").replace("present.", "present_")

        model = load(lay_out(LLAMA, tmp_path / "repo", change=rename))
        assert model.config.decoder.inputs.past_key_names == "past.layer%d.key"
        assert greedy(model, 24) == oracle.greedy(LLAMA, PROMPT, 24)

    def test_a_plan_is_made_of_it(self, tmp_path: Path) -> None:
        def weights(folder: Path) -> int:
            return asyncio.run(plan(str(folder), device="reference")).requirements.weights.bytes

        assert weights(lay_out(LLAMA, tmp_path / "repo", parts=3)) == weights(LLAMA) > 200_000
        assert weights(lay_out(LLAMA, tmp_path / "inside", parts=0)) == weights(LLAMA)


class TestDtypes:
    def test_the_one_asked_for_is_taken(self, tmp_path: Path) -> None:
        folder = lay_out(LLAMA, tmp_path / "repo", suffix="_q4")
        lay_out(FIXTURES / "nano-float", tmp_path / "other", suffix="", parts=1)
        for path in (tmp_path / "other" / "onnx").iterdir():
            path.rename(folder / "onnx" / path.name)
        assert greedy(load(folder, dtype="fp32"), 12) == oracle.greedy(FIXTURES / "nano-float", PROMPT, 12)
        assert greedy(load(folder, dtype="q4"), 12) == oracle.greedy(LLAMA, PROMPT, 12)
        assert load(folder).config.decoder.filename == "onnx/model_q4.onnx"

    @pytest.mark.parametrize("dtype", ["q8", "quantized"])
    def test_quantized_is_another_name_of_q8(self, dtype: str, tmp_path: Path) -> None:
        folder = lay_out(LLAMA, tmp_path / "repo", suffix="_quantized")
        assert load(folder, dtype=dtype).config.decoder.filename == "onnx/model_quantized.onnx"

    def test_an_unknown_one_is_refused_with_those_there_are(self) -> None:
        with pytest.raises(OptionError, match="dtype is 'q5'; it must be one of fp32, fp16, q4, q4f16, q8,"):
            load(LLAMA, dtype="q5")

    def test_a_genai_folder_has_no_dtypes(self) -> None:
        with pytest.raises(OptionError, match=r"dtype is 'q4', but .*genai_config\.json names the only graph"):
            load(LLAMA, dtype="q4")

    def test_one_that_is_not_there_is_refused_with_those_that_are(self, tmp_path: Path) -> None:
        folder = lay_out(LLAMA, tmp_path / "repo", suffix="_q4")
        (folder / "onnx" / "model_int8.onnx").write_bytes(b"")
        with pytest.raises(ModelFileError, match=r"onnx/model_fp16\.onnx does not exist; .* the dtypes are q4, int8$"):
            load(folder, dtype="fp16")


def removed(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).unlink()


def of_three_rows(model: ModelProto) -> None:
    with_positions(model)
    shape = next(value for value in model.graph.input if value.name == "position_ids").type.tensor_type.shape
    shape.dim.add().dim_value = 3


def with_stranger(model: ModelProto) -> None:
    value = model.graph.input.add(name="pixel_values")
    value.type.tensor_type.elem_type = TensorProto.FLOAT
    value.type.tensor_type.shape.dim.add().dim_value = 3
    model.graph.node[0].input.append("pixel_values")


def without_caches(model: ModelProto) -> None:
    for value in model.graph.input:
        value.name = value.name.replace("past_key_values", "cache")


class TestRefusing:
    @pytest.mark.parametrize(
        ("changes", "kind", "said"),
        [
            ({"num_hidden_layers": 3}, ConfigError, r"num_hidden_layers is 3, but the graph has 2 \("),
            ({"num_attention_heads": 8}, ConfigError, r"num_attention_heads is 8, but the graph has 4 \("),
            ({"num_key_value_heads": 4}, ConfigError, r"num_key_value_heads is 4, but the graph has 2 \(.*past_key"),
            ({"vocab_size": 511}, ConfigError, r"vocab_size is 511, but the graph has 512 \(output logits"),
            ({"max_position_embeddings": None}, ConfigError, "max_position_embeddings: missing, expected a positive"),
            ({"max_position_embeddings": "512"}, ConfigError, 'expected a positive integer, got "512"'),
            (
                {"max_position_embeddings": 1 << 40},
                ConfigError,
                "embeddings: expected at most 16777216, got 1099511627776",
            ),
            ({"num_hidden_layers": 10**9}, ConfigError, "num_hidden_layers: expected at most 4096, got 1000000000"),
            ({"num_attention_heads": 2**53 + 1}, ConfigError, "num_attention_heads: expected at most 65536, got"),
            ({"num_key_value_heads": 10**9}, ConfigError, "num_key_value_heads: expected at most 65536, got"),
            ({"head_dim": 2**53 + 1}, ConfigError, "head_dim: expected at most 16777216, got"),
            ({"hidden_size": 2**53 + 1}, ConfigError, "hidden_size: expected at most 16777216, got"),
            ({"hidden_size": "64"}, ConfigError, 'hidden_size: expected a positive integer, got "64"'),
            ({"vocab_size": 10**30}, ConfigError, "vocab_size: expected at most 16777216, got"),
            (
                {"rope_scaling": {"rope_type": "longrope", "original_max_position_embeddings": 10**30}},
                ConfigError,
                "original_max_position_embeddings: expected at most 16777216, got 1000",
            ),
            ({"eos_token_id": 512}, ConfigError, "eos_token_id: expected a token id from 0 to 511"),
            ({"vision_config": {"depth": 2}}, UnsupportedModelError, "vision_config: the model, of type llama, has"),
            (
                {"audio_config": {"depth": 2}},
                UnsupportedModelError,
                "audio_config: the model, of type llama, has an audio",
            ),
            ({"is_encoder_decoder": True}, UnsupportedModelError, "has an encoder; Capstan runs one decoder"),
        ],
    )
    def test_config_json(self, changes: dict[str, Any], kind: type[CapstanError], said: str, tmp_path: Path) -> None:
        folder = lay_out(LLAMA, tmp_path / "repo", config=changes)
        with pytest.raises(kind, match=said) as caught:
            load(folder)
        assert str(folder / "config.json") in str(caught.value)
        assert "\n" not in str(caught.value)

    @pytest.mark.parametrize(
        ("change", "said"),
        [
            (of_three_rows, "position_ids has 3 dimensions, expected 2"),
            (with_stranger, r"input pixel_values \[3\] that Capstan cannot feed"),
            (without_caches, r"no inputs like past_key_values\.%d\.key \(inputs: .*cache\.0\.key"),
        ],
    )
    def test_graphs(self, change: Callable[[ModelProto], None], said: str, tmp_path: Path) -> None:
        with pytest.raises(UnsupportedModelError, match=said):
            load(lay_out(LLAMA, tmp_path / "repo", change=change))

    def test_generation_config(self, tmp_path: Path) -> None:
        folder = lay_out(LLAMA, tmp_path / "repo", generation={"temperature": -1})
        with pytest.raises(OptionError, match="temperature is -1"):
            load(folder)

    def test_without_any_onnx_file_what_is_there_is_told(self, tmp_path: Path) -> None:
        folder = lay_out(LLAMA, tmp_path / "repo", parts=1)
        removed(folder, "onnx/model_q4.onnx", "onnx/model_q4.onnx_data")
        (folder / "model.safetensors").write_bytes(b"")
        with pytest.raises(ModelFileError, match=r"it has no ONNX file, but config\.json, model\.safetensors, token"):
            load(folder)

    def test_graphs_of_another_layout_are_told(self, tmp_path: Path) -> None:
        folder = lay_out(LLAMA, tmp_path / "repo")
        (folder / "onnx" / "model_q4.onnx").rename(folder / "onnx" / "encoder_model.onnx")
        with pytest.raises(ModelFileError, match=r"its ONNX files are onnx/encoder_model\.onnx; use a repository"):
            load(folder)

    def test_a_missing_part_is_named(self, tmp_path: Path) -> None:
        folder = lay_out(LLAMA, tmp_path / "repo", parts=3)
        removed(folder, "onnx/model_q4.onnx_data_1")
        with pytest.raises(ModelFileError, match="model_q4.onnx_data_1"):
            load(folder)

    def test_json_that_is_none_is_refused_with_its_place(self, tmp_path: Path) -> None:
        folder = lay_out(LLAMA, tmp_path / "repo")
        (folder / "config.json").write_text(json.dumps({"model_type": "llama"})[:-1])
        with pytest.raises(ConfigError, match=r"config\.json: line 1, column \d+: not JSON"):
            load(folder)


def test_caches_that_grow_are_run_and_rewound() -> None:
    model = load(FIXTURES / "repositories" / "nano-optimum")
    ids = oracle.greedy(FIXTURES / "nano-float", PROMPT, 24)
    assert greedy(model, 24) == ids
    params = GeneratorParams(model)
    params.set_search_options(do_sample=False, max_length=64)
    with Generator(model, params) as generator:
        generator.append_tokens(PROMPT)
        for length in (12, 7, 2):
            for _ in range(10):
                generator.generate_next_token()
            generator.rewind_to(length)
            again = [*PROMPT, *ids][length:]
            generator.append_tokens(again[:4])
            assert list(generator.get_sequence()) == [*PROMPT, *ids][: length + 4]
            generator.generate_next_token()
            assert generator.get_next_tokens()[0] == [*PROMPT, *ids][length + 4]
