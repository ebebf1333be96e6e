"""genai_config.json: what is read from the fixtures, and what a broken file is told."""

from __future__ import annotations

import copy
import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest

from capstan.errors import ConfigError, UnsupportedModelError
from capstan.model_files.genai_config import GenaiConfig
from capstan.model_files.genai_config_file import parse_genai_config
from capstan.model_files.model_types import REFUSED_TYPES, SUPPORTED_TYPES
from capstan.model_files.session_settings import GraphCapture

FIXTURES = Path(__file__).parents[1] / "fixtures"
GOOD: dict[str, Any] = json.loads((FIXTURES / "nano-llama" / "genai_config.json").read_text())


def changed(path: str, value: Any) -> str:
    """The good file with one field set, or removed if the value is ...; a path is a.b.c."""
    tree = copy.deepcopy(GOOD)
    *parents, last = path.split(".")
    section = tree
    for name in parents:
        section = section.setdefault(name, {})
    if value is ...:
        del section[last]
    else:
        section[last] = value
    return json.dumps(tree)


@pytest.mark.parametrize("folder", sorted(path.parent for path in FIXTURES.glob("*/genai_config.json")))
def test_every_fixture_is_read(folder: Path) -> None:
    config = parse_genai_config((folder / "genai_config.json").read_bytes())
    decoder = config.decoder
    assert (config.vocab_size, config.context_length) == (512, 512)
    heads, kv_heads, size = (2, 1, 32) if folder.name == "nano-phi4" else (4, 2, 16)
    assert (decoder.num_hidden_layers, decoder.num_attention_heads, decoder.num_key_value_heads) == (2, heads, kv_heads)
    assert (decoder.head_size, decoder.hidden_size, decoder.filename) == (size, 64, "model.onnx")
    assert decoder.inputs.past_key_names == "past_key_values.%d.key"
    assert decoder.outputs.present_value_names == "present.%d.value"
    assert config.search["max_length"] == 512


def test_special_tokens_are_one_id_or_several_or_none() -> None:
    config = parse_genai_config(json.dumps(GOOD))
    assert (config.bos_token_id, config.eos_token_ids, config.pad_token_id) == (0, (1,), 2)
    assert parse_genai_config(changed("model.eos_token_id", [7, 5, 7])).eos_token_ids == (7, 5)
    assert parse_genai_config(changed("model.bos_token_id", None)).bos_token_id is None
    assert parse_genai_config(changed("model.pad_token_id", 0)).pad_token_id == 0


def test_padding_ends_a_model_that_has_no_end_and_token_0_pads_where_nothing_does() -> None:
    assert parse_genai_config(changed("model.eos_token_id", ...)).eos_token_ids == (2,)
    assert parse_genai_config(changed("model.eos_token_id", [])).eos_token_ids == (2,)
    assert parse_genai_config(changed("model.pad_token_id", None)).pad_token_id == 0


@pytest.mark.parametrize("value", [-1, 512])
def test_a_bos_or_pad_token_that_the_vocabulary_does_not_have_is_told(value: int) -> None:
    config = parse_genai_config(changed("model.bos_token_id", value))
    assert (config.bos_token_id, config.no_tokens) == (None, (f"bos_token_id {value}",))
    config = parse_genai_config(changed("model.pad_token_id", value))
    assert (config.pad_token_id, config.no_tokens) == (0, (f"pad_token_id {value}",))


def test_an_end_is_needed_where_padding_is_no_token() -> None:
    file = json.loads(changed("model.pad_token_id", -1))
    del file["model"]["eos_token_id"]
    with pytest.raises(ConfigError, match="model.eos_token_id: missing, expected a token id from 0 to 511"):
        parse_genai_config(json.dumps(file))


def test_whole_numbers_may_be_written_as_floats() -> None:
    config = parse_genai_config(changed("model.decoder.head_size", 16.0))
    assert (config.decoder.head_size, type(config.decoder.head_size)) == (16, int)
    assert parse_genai_config(changed("model.eos_token_id", [1.0])).eos_token_ids == (1,)


@pytest.mark.parametrize("path", ["model.encoder", "model.vision", "model.embedding", "model.decoder.pipeline"])
def test_an_empty_section_says_nothing(path: str) -> None:
    assert parse_genai_config(changed(path, {})) == parse_genai_config(json.dumps(GOOD))


@pytest.mark.parametrize(("filename", "folder"), [("model.onnx", ""), ("onnx/q4/model.onnx", "onnx/q4/")])
def test_data_files_are_beside_the_graph(filename: str, folder: str) -> None:
    assert parse_genai_config(changed("model.decoder.filename", filename)).decoder.folder == folder


def test_tensor_names_are_those_of_the_file_or_the_usual_ones() -> None:
    config = parse_genai_config(changed("model.decoder.inputs.past_key_names", "cache_k_%d"))
    assert config.decoder.inputs.past_key_names == "cache_k_%d"
    assert (
        parse_genai_config(changed("model.decoder.inputs", ...)).decoder == parse_genai_config(json.dumps(GOOD)).decoder
    )


def test_what_was_read_cannot_be_changed() -> None:
    config = parse_genai_config(json.dumps(GOOD))
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.vocab_size = 1  # type: ignore[misc]
    with pytest.raises(TypeError):
        config.search["top_k"] = 1  # type: ignore[index]


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("model", ..., "genai_config.json: model: missing, expected an object"),
        ("model", [], r"genai_config.json: model: expected an object, got \[\]"),
        ("model.type", 3, "genai_config.json: model.type: expected a non-empty string, got 3"),
        ("model.vocab_size", 0, "genai_config.json: model.vocab_size: expected a positive integer, got 0"),
        ("model.vocab_size", True, "model.vocab_size: expected a positive integer, got true"),
        ("model.context_length", "512", 'model.context_length: expected a positive integer, got "512"'),
        ("model.context_length", ..., "model.context_length: missing, expected a positive integer"),
        (
            "model.eos_token_id",
            512,
            "model.eos_token_id: expected a token id from 0 to 511, or an array of them, got 512",
        ),
        ("model.eos_token_id", [1, "x"], r'model.eos_token_id: expected a token id .*, got \[1, "x"\]'),
        ("model.bos_token_id", 1.5, "model.bos_token_id: expected a token id from 0 to 511, got 1.5"),
        ("model.pad_token_id", 1.5, "model.pad_token_id: expected a token id from 0 to 511, got 1.5"),
        ("model.decoder", "x", 'model.decoder: expected an object, got "x"'),
        (
            "model.decoder.num_hidden_layers",
            "two",
            'model.decoder.num_hidden_layers: expected a positive integer, got "two"',
        ),
        ("model.decoder.num_hidden_layers", 10**9, "num_hidden_layers: expected at most 4096, got 1000000000"),
        ("model.decoder.num_attention_heads", 2**53 + 1, "num_attention_heads: expected at most 65536, got 9007"),
        ("model.decoder.num_key_value_heads", 10**9, "num_key_value_heads: expected at most 65536, got 1000000000"),
        ("model.decoder.head_size", 2**53 + 1, "head_size: expected at most 16777216, got 9007199254740993"),
        ("model.decoder.hidden_size", 2**60, "hidden_size: expected at most 16777216, got"),
        ("model.vocab_size", 10**30, "vocab_size: expected at most 16777216, got 1000"),
        ("model.context_length", 1 << 40, "model.context_length: expected at most 16777216, got"),
        ("model.decoder.head_size", 16.5, "model.decoder.head_size: expected a positive integer, got 16.5"),
        (
            "model.decoder.num_key_value_heads",
            3,
            r"num_key_value_heads: expected a divisor of num_attention_heads \(4\), got 3",
        ),
        ("model.decoder.filename", "../x.onnx", "model.decoder.filename: expected a file below the model's folder"),
        ("model.decoder.filename", "/etc/x", "model.decoder.filename: expected a file below the model's folder"),
        ("model.decoder.filename", "https://x/y", "model.decoder.filename: expected a file below the model's folder"),
        ("model.decoder.inputs", 1, "model.decoder.inputs: expected an object, got 1"),
        (
            "model.decoder.inputs.past_key_names",
            "key",
            'past_key_names: expected a name with one "%d" for the layer, got "key"',
        ),
        (
            "model.decoder.inputs.past_key_names",
            "key.%d.%d",
            'past_key_names: expected a name with one "%d" for the layer, got "key.%d.%d"',
        ),
        (
            "model.decoder.outputs.logits",
            "",
            'model.decoder.outputs.logits: expected a non-empty string, got ""',
        ),
        ("model.decoder.session_options", [], "model.decoder.session_options: expected an object"),
        ("search", 5, "genai_config.json: search: expected an object, got 5"),
    ],
)
def test_a_wrong_field_is_named_by_its_path(path: str, value: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        parse_genai_config(changed(path, value))
    assert "export the model again" in str(caught.value), "the message gives no remedy"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b'{"model": {\n  "type": llama}}', "m.json: line 2, column 11: not JSON"),
        (b"", "m.json: line 1, column 1: not JSON"),
        (b"\xff\xfe{", "m.json: byte 0 is not UTF-8"),
        (b"3", "m.json: expected an object, got a number"),
        (b"null", "m.json: expected an object, got null"),
        (b"[" * 100000, "m.json: it is nested more than 64 levels deep"),
        (b'{"a": ' * 70 + b"1" + b"}" * 70, "m.json: it is nested more than 64 levels deep"),
        (b'{"a": %s}' % (b"9" * 5000), "m.json: it has an integer of thousands of digits"),
    ],
)
def test_what_is_not_json_is_told_where(data: bytes, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_genai_config(data, "m.json")


def test_a_byte_order_mark_is_no_harm() -> None:
    assert isinstance(parse_genai_config(b"\xef\xbb\xbf" + json.dumps(GOOD).encode()), GenaiConfig)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("model.type", "parakeet_tdt", 'model.type: "parakeet_tdt" has an encoder; Capstan runs .* llama, .* whisper'),
        ("model.type", "gpt2", 'model.type: "gpt2" has keys and values in one cache; Capstan runs'),
        ("model.type", "phi3v", 'model.type: "phi3v" has a vision model .* export .* as a model of type "phi3"'),
        ("model.type", "new", 'model.type: "new" is not a known type; Capstan runs .*; .* write "decoder"'),
        (
            "model.encoder",
            {"filename": "x"},
            "model.encoder: the model, of type llama, has an encoder; Capstan runs decoders",
        ),
        ("model.vision", {"filename": "x"}, "model.vision: the model, of type llama, has a vision model"),
        (
            "model.embedding",
            {"filename": "x"},
            "model.embedding: the model, of type llama, has a separate embedding model",
        ),
        ("model.decoder.pipeline", [{}], "model.decoder.pipeline: the decoder is in several files"),
        ("model.decoder.sliding_window", {"slide_key_value_cache": True}, "slide_key_value_cache: the cache slides"),
        (
            "model.decoder.inputs.inputs_embeds",
            "inputs_embeds",
            "inputs.inputs_embeds: Capstan does not feed this input",
        ),
        ("model.decoder.inputs.block_table", "block_table", "inputs.block_table: Capstan does not feed this input"),
    ],
)
def test_what_is_no_plain_decoder_is_refused(path: str, value: Any, message: str) -> None:
    with pytest.raises(UnsupportedModelError, match=message):
        parse_genai_config(changed(path, value))
    assert parse_genai_config(changed("model.decoder.sliding_window", {"slide_key_value_cache": False}))


# onnxruntime-genai 0.18.0 makes a model of a nano-llama with these names in its genai_config.json, and of no other text
# decoder's; "decoder-pipeline" aside, which is one in several files.
GENAI_TYPES = """
    chatglm decoder ernie4_5 gemma gemma2 gemma3_text gemma3_vl_text gemma4_text gpt2 gptoss granite granitemoehybrid
    hunyuandensev1 internlm2 lfm2 lfm2_audio_text lfm2_moe lfm2_vl_text llama mistral mistral3_text nemotron olmo phi
    phi3 phi3small phimoe qwen2 qwen2_5_vl_text qwen3 qwen3_5_moe_text qwen3_5_text qwen3_vl_text smollm3
"""


def test_every_decoder_type_of_genai_is_taken_or_has_its_reason() -> None:
    assert not set(SUPPORTED_TYPES) & set(REFUSED_TYPES)
    for name in GENAI_TYPES.split():
        if name in REFUSED_TYPES:
            with pytest.raises(UnsupportedModelError, match=f'"{name}" has {REFUSED_TYPES[name]}; Capstan runs'):
                parse_genai_config(changed("model.type", name))
        else:
            assert parse_genai_config(changed("model.type", name)).model_type == name


def test_session_options_that_mean_nothing_here_are_listed_by_their_paths() -> None:
    webgpu = {"b": "2", "storageBufferCacheMode": "bucket", "validationMode": "basic"}
    options = {"log_id": "x", "made_up": 1, "provider_options": [{"cuda": {"a": "1"}}, {"WebGPU": webgpu}]}
    config = parse_genai_config(changed("model.decoder.session_options", options))
    section = "model.decoder.session_options"
    assert config.decoder.unused_options == (
        f"{section}.made_up (unknown to Capstan)",
        f"{section}.provider_options[1].WebGPU.b (unknown to Capstan)",
        f"{section}.provider_options[1].WebGPU.storageBufferCacheMode (Capstan plans buffers itself)",
    )
    assert parse_genai_config(json.dumps(GOOD)).decoder.unused_options == ()


def test_the_length_at_which_long_rope_begins_is_read() -> None:
    path = "model.decoder.session_options"
    for value in ("4096", 4096):
        options = {"provider_options": [{"webgpu": {"multiRotaryCacheConcatOffset": value}}]}
        assert parse_genai_config(changed(path, options)).decoder.long_rope_from == 4096
    assert parse_genai_config(json.dumps(GOOD)).decoder.long_rope_from == 0
    options = {"provider_options": [{"webgpu": {"multiRotaryCacheConcatOffset": "-1"}}]}
    with pytest.raises(ConfigError, match=r"webgpu.multiRotaryCacheConcatOffset: expected a number of positions, got"):
        parse_genai_config(changed(path, options))
    with pytest.raises(ConfigError, match=r"session_options.provider_options: expected an array of objects"):
        parse_genai_config(changed(path, {"provider_options": {"webgpu": {}}}))


def test_the_accuracy_of_products_by_quantized_weights_is_read() -> None:
    path, option = "model.decoder.session_options", "session.qdq_matmulnbits_accuracy_level"
    for value in (4, "4"):
        decoder = parse_genai_config(changed(path, {option: value})).decoder
        assert (decoder.qdq_accuracy, decoder.unused_options) == (4, ())
    assert parse_genai_config(json.dumps(GOOD)).decoder.qdq_accuracy == 0
    with pytest.raises(ConfigError, match=rf"{option}: expected a level from 0 to 4, got"):
        parse_genai_config(changed(path, {option: "5"}))


def with_options(*sections: dict[str, Any]) -> str:
    return changed("model.decoder.session_options", {"provider_options": list(sections)})


def test_whether_to_capture_is_read_from_the_last_of_webgpus_options() -> None:
    where = "genai_config.json: model.decoder.session_options.provider_options"
    off, on = {"webgpu": {"enableGraphCapture": "0"}}, {"WebGPU": {"enableGraphCapture": "1"}}
    long_name = GraphCapture(True, f"{where}[0].WebGpuExecutionProvider.enableGraphCapture")
    for sections, wanted in [
        ([off], GraphCapture(False, f"{where}[0].webgpu.enableGraphCapture")),
        ([off, {"webgpu": {"validationMode": "basic"}}], GraphCapture(False, f"{where}[0].webgpu.enableGraphCapture")),
        ([{"WebGpuExecutionProvider": {"enableGraphCapture": "1"}}], long_name),
        ([off, on], GraphCapture(True, f"{where}[1].WebGPU.enableGraphCapture")),
        ([{"cuda": {"enableGraphCapture": "0"}}], None),
        ([], None),
    ]:
        assert parse_genai_config(with_options(*sections)).decoder.capture == wanted


@pytest.mark.parametrize("value", ["", "2", "true", "01", 0, 1, True, None, ["1"]])
def test_what_is_neither_capture_nor_none_is_refused_with_its_path(value: Any) -> None:
    path = r"session_options\.provider_options\[1\]\.webgpu\.enableGraphCapture"
    message = (
        rf'{path}: expected "0" or "1", got {re.escape(json.dumps(value))}; set it to one of these, or leave it out'
    )
    with pytest.raises(ConfigError, match=message):
        parse_genai_config(with_options({"cuda": {}}, {"webgpu": {"enableGraphCapture": value}}))


def test_of_the_store_the_last_option_given_counts() -> None:
    on, off = ({"webgpu": {"disable_file_mapped_weights": value}} for value in "10")
    cases: list[tuple[list[dict[str, Any]], bool]] = [
        ([on, off], False),
        ([off, on], True),
        ([on, {"webgpu": {}}], True),
    ]
    for sections, left_out in cases:
        found = parse_genai_config(with_options(*sections)).decoder.disable_file_mapped_weights
        assert found is left_out, sections
