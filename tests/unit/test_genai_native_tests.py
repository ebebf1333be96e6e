"""The checks of onnxruntime-genai's own tests of text models, run against both packages.

NATIVE_TESTS has those tests by name, each with the one of ours that checks the same, or why there is none.
"""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import onnxruntime
import onnxruntime_genai as native
import pytest

from capstan import CapstanError, fallback, genai
from tests.unit import test_genai, test_genai_configs, test_genai_outputs, test_seeing
from tests.unit.genai_cases import FOLDER, PROMPT, SAME, loaded

ROOT = Path(__file__).parents[2]
TEXTS = ["This is a test.", "Rats are awesome pets!", "The quick brown fox jumps over the lazy dog."]
ROWS = np.array([[0, 0, 0, 52], [0, 0, 195, 311]], np.int32)

pytestmark = pytest.mark.filterwarnings("ignore::capstan.FallbackWarning")


@pytest.fixture(params=[native, genai], ids=["native", "capstan"])
def og(request: pytest.FixtureRequest) -> ModuleType:
    module: ModuleType = request.param
    return module


def generator(og: Any, model: Any, **options: Any) -> Any:
    params = og.GeneratorParams(model)
    params.set_search_options(do_sample=False, **options)
    return og.Generator(model, params)


def finished(one: Any) -> Any:
    while not one.is_done():
        one.generate_next_token()
    return one


def bundled(og: Any) -> Any:
    config = og.Config(str(ROOT / "models/bundled"))
    config.clear_providers()
    return og.Model(config)


def changed_graph(folder: Path, change: Any) -> Any:
    """nano-llama's folder with another graph; `change` takes the graph and the node of its logits."""
    shutil.copytree(FOLDER, folder)
    model = onnx.load(str(folder / "model.onnx"), load_external_data=False)
    change(model.graph, next(node for node in model.graph.node if node.output[0] == "logits"))
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    return folder


def opened(og: Any, folder: Path) -> Any:
    config = og.Config(str(folder))
    config.clear_providers()
    return og.Model(config)


def test_a_configuration_takes_providers_and_options_that_nobody_has(og: Any) -> None:
    config = og.Config(FOLDER)
    config.clear_providers()
    config.append_provider("cuda")
    config.clear_providers()
    config.set_provider_option("cuda", "infinite_clock", "1")
    config.set_provider_option("quantum", "break_universe", "true")
    config.append_provider("slide rule")
    with pytest.raises(RuntimeError):
        og.Model(config)


def test_named_tensors_are_listed_read_and_deleted(og: Any) -> None:
    tensors = og.NamedTensors()
    tensors["ids"] = ROWS
    tensors["values"] = og.Tensor(np.full((2, 2), 0.5, np.float32))
    assert sorted(tensors.keys()) == ["ids", "values"]
    for name in tensors.keys():  # noqa: SIM118  # not a dict
        assert name in tensors
        assert tensors[name].as_numpy().shape[0] == 2
        del tensors[name]
    assert len(tensors) == 0


def test_logits_that_are_read_and_written_back_change_no_greedy_batch(og: Any) -> None:
    plain = finished(start(og, 2, ROWS))
    written = start(og, 2, ROWS)
    while not written.is_done():
        logits = written.get_logits()
        written.set_logits(logits)
        written.set_logits(logits)
        written.generate_next_token()
    for row, ids in enumerate([[0, 0, 0, 52, 404, 404, 404], [0, 0, 195, 311]]):
        assert plain.get_sequence(row).tolist() == written.get_sequence(row).tolist()
        assert plain.get_sequence(row).tolist()[: len(ids)] == ids


def start(og: Any, rows: int, tokens: Any) -> Any:
    one = generator(og, loaded(og), max_length=10, batch_size=rows)
    one.append_tokens(tokens)
    return one


def test_a_rewound_sequence_goes_on_to_the_same_end(og: Any) -> None:
    one = finished(start(og, 1, ROWS[1:]))
    whole = one.get_sequence(0).tolist()
    one.rewind_to(3)
    one.append_tokens(np.array([whole[3:5]], np.int32))
    assert finished(one).get_sequence(0).tolist() == whole


def test_a_batch_is_rewound_to_its_start_and_takes_other_prompts(og: Any) -> None:
    prompts = np.array([[0, 0, 0, 52], [0, 0, 195, 311], [64, 65, 66, 67]], np.int32)
    others = prompts[::-1].copy()
    one = finished(start(og, 3, prompts))
    before = [one.get_sequence(row).tolist() for row in range(3)]
    one.rewind_to(0)
    one.append_tokens(others)
    assert [finished(one).get_sequence(row).tolist() for row in range(3)] == before[::-1]


@pytest.mark.parametrize("batch", [True, False])
def test_texts_are_encoded_and_decoded(og: Any, batch: bool) -> None:
    tokenizer = og.Tokenizer(bundled(og))
    if batch:
        assert [text.strip() for text in tokenizer.decode_batch(tokenizer.encode_batch(TEXTS))] == TEXTS
    else:
        assert [tokenizer.decode(tokenizer.encode(text)) for text in TEXTS] == TEXTS


def test_a_stream_gives_the_text_token_by_token(og: Any) -> None:
    tokenizer = og.Tokenizer(bundled(og))
    stream = tokenizer.create_stream()
    for text in TEXTS:
        assert "".join(stream.decode(token) for token in tokenizer.encode(text)) == text


@pytest.mark.parametrize("texts", [TEXTS, TEXTS[:1]], ids=["a batch", "one"])
def test_texts_are_completed(og: Any, texts: list[str]) -> None:
    model = bundled(og)
    tokenizer = og.Tokenizer(model)
    tokens = tokenizer.encode_batch(texts)
    one = generator(og, model, max_length=tokens.shape()[1] + 6, batch_size=len(texts))
    one.append_tokens(tokens)
    finished(one)
    for row, text in enumerate(texts):
        assert tokenizer.decode(one.get_sequence(row)).startswith(text)
    assert len(one.get_sequence(0)) <= tokens.shape()[1] + 6


def test_logging_is_turned_on_and_off(og: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fallback, "counted", Counter())
    og.set_log_options(enabled=True, generate_next_token=True)
    og.set_log_options(enabled=False, generate_next_token=False)


def test_a_model_tells_its_type_and_device(og: Any) -> None:
    model = loaded(og)
    assert (model.type, model.device_type) == ("llama", "CPU")


def test_logits_of_a_prompt_and_of_the_token_behind_it() -> None:
    """Two tokens are generated: the last run was over the first of them."""
    shown = []
    for og in (native, genai):
        one = start(og, 2, ROWS)
        prompt = one.get_output("logits")
        one.generate_next_token()
        one.generate_next_token()
        shown.append([prompt, one.get_output("logits")])
    assert [logits.shape for logits in shown[1]] == [(2, 4, 512), (2, 1, 512)]
    for expected, found in zip(*shown, strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-3)


@pytest.mark.parametrize("name", ["num_logits_to_keep", "onnx::Neg_67"])
def test_an_input_for_the_number_of_logits_is_fed(og: Any, name: str, tmp_path: Path) -> None:
    model = opened(og, changed_graph(tmp_path / "model", lambda graph, node: add_input(graph, node, name)))
    one = generator(og, model, max_length=10)
    one.append_tokens(PROMPT)
    assert finished(one).get_sequence(0).tolist() == [*PROMPT, 333, 344, 212, 351, 421]


def test_an_input_that_nobody_feeds_is_refused_by_name(og: Any, tmp_path: Path) -> None:
    folder = changed_graph(tmp_path / "model", lambda graph, node: add_input(graph, node, "abcde"))
    with pytest.raises(RuntimeError, match="abcde"):
        generator(og, opened(og, folder), max_length=10).append_tokens(PROMPT)


def add_input(graph: Any, node: Any, name: str) -> None:
    """The same number more in every logit, so that the greedy tokens stay."""
    node.output[0] = "few"
    graph.input.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.INT64, []))
    graph.node.append(onnx.helper.make_node("Cast", [name], ["number"], to=onnx.TensorProto.FLOAT))
    graph.node.append(onnx.helper.make_node("Add", ["number", "few"], ["logits"]))


@pytest.mark.parametrize("picks", [0, 2])
def test_hidden_states_of_the_last_run(picks: int, tmp_path: Path) -> None:
    def add_output(graph: Any, node: Any) -> None:
        graph.output.append(
            onnx.helper.make_tensor_value_info("hidden_states", onnx.TensorProto.FLOAT, ["batch", "tokens", 64])
        )
        graph.node.append(onnx.helper.make_node("Identity", [node.input[0]], ["hidden_states"]))

    folder = changed_graph(tmp_path / "model", add_output)
    shown = []
    for og in (native, genai):
        one = generator(og, opened(og, folder), max_length=10, batch_size=2)
        one.append_tokens(ROWS)
        for _ in range(picks):
            one.generate_next_token()
        shown.append(one.get_output("hidden_states"))
        with pytest.raises(RuntimeError, match="other"):
            one.get_output("other")
    assert (shown[1].dtype, shown[1].shape) == (shown[0].dtype, shown[0].shape)
    np.testing.assert_allclose(shown[1], shown[0], atol=1e-4)


def test_an_output_without_a_row_for_each_token_is_not_shown(tmp_path: Path) -> None:
    def add_output(graph: Any, node: Any) -> None:
        graph.output.append(onnx.helper.make_tensor_value_info("sizes", onnx.TensorProto.INT64, [3]))
        graph.node.append(onnx.helper.make_node("Shape", [node.input[0]], ["sizes"]))

    one = generator(genai, opened(genai, changed_graph(tmp_path / "model", add_output)), max_length=10)
    one.append_tokens(PROMPT)
    with pytest.raises(CapstanError, match=r"sizes.*\[3\] after 5 tokens; only outputs with a row for each"):
        one.get_output("sizes")


def test_an_input_that_has_a_default_and_is_no_factor_keeps_it(tmp_path: Path) -> None:
    """The native package takes values for it from adapters only."""
    bias = np.zeros(512, np.float32)

    def add_bias(graph: Any, node: Any) -> None:
        node.output[0] = "few"
        graph.initializer.append(onnx.numpy_helper.from_array(bias, "bias"))
        graph.input.append(onnx.helper.make_tensor_value_info("bias", onnx.TensorProto.FLOAT, [512]))
        graph.node.append(onnx.helper.make_node("Add", ["few", "bias"], ["logits"]))

    folder = changed_graph(tmp_path / "model", add_bias)
    adapter = onnxruntime.AdapterFormat()
    adapter.set_adapter_version(1)
    adapter.set_model_version(1)
    adapter.set_parameters({"bias": onnxruntime.OrtValue.ortvalue_from_numpy(bias)})
    adapter.export_adapter(str(tmp_path / "bias.onnx_adapter"))
    for og in (native, genai):
        model = opened(og, folder)
        one = generator(og, model, max_length=10)
        one.append_tokens(PROMPT)
        assert finished(one).get_sequence(0).tolist() == [*PROMPT, 333, 344, 212, 351, 421]
        adapters = og.Adapters(model)
        if og is native:
            adapters.load(str(tmp_path / "bias.onnx_adapter"), "bias")
        else:
            with pytest.raises(
                CapstanError,
                match=r"adapter 'bias' .* a tensor bias float32 \[512\]; that input .* is not a factor",
            ):
                adapters.load(str(tmp_path / "bias.onnx_adapter"), "bias")


def test_an_overlay_changes_what_generators_start_from(og: Any) -> None:
    model = loaded(og, '{"search": {"max_length": 100}}')
    assert og.GeneratorParams(model).get_search_options()["max_length"] == 100


def test_options_of_a_tokenizer_change_what_it_does(og: Any) -> None:
    tokenizer = og.Tokenizer(loaded(og))
    tokenizer.update_options(add_special_tokens="false", skip_special_tokens="true")
    assert len(tokenizer.encode(TEXTS[0])) > 0
    assert isinstance(tokenizer.to_token_id("a"), int)


def test_each_row_has_its_next_token(og: Any) -> None:
    one = start(og, 2, ROWS)
    one.generate_next_token()
    assert one.get_next_tokens().shape == (2,)
    assert one.get_input("input_ids").shape == (2, 4)


def test_a_prompt_in_pieces_is_a_prompt(og: Any) -> None:
    prompt = [2, 3, 4, 5, 6]
    whole, pieces = (generator(og, loaded(og), max_length=12, **options) for options in ({}, {"chunk_size": 2}))
    for one in (whole, pieces):
        one.append_tokens(prompt)
    assert finished(whole).get_sequence(0).tolist() == finished(pieces).get_sequence(0).tolist()


NATIVE_TESTS = {
    "test_config": "test_a_configuration_takes_providers_and_options_that_nobody_has",
    "test_NamedTensors": "test_named_tensors_are_listed_read_and_deleted",
    "test_greedy_search": "test_logits_that_are_read_and_written_back_change_no_greedy_batch",
    "test_rewind": "test_a_rewound_sequence_goes_on_to_the_same_end",
    "test_rewind_cuda": "test_a_batch_is_rewound_to_its_start_and_takes_other_prompts",
    "test_tokenizer_encode_decode": "test_texts_are_encoded_and_decoded",
    "test_tokenizer_stream": "test_a_stream_gives_the_text_token_by_token",
    "test_batching": "test_texts_are_completed",
    "test_e2e": "test_texts_are_completed",
    "test_generates_text": "test_texts_are_completed",
    "test_logging": "test_logging_is_turned_on_and_off",
    "test_model_device_type": "test_a_model_tells_its_type_and_device",
    "test_model_type_property": "test_a_model_tells_its_type_and_device",
    "test_get_output": "test_logits_of_a_prompt_and_of_the_token_behind_it",
    "test_preset_extra_inputs": "test_an_input_for_the_number_of_logits_is_fed",
    "test_config_overlay": "test_an_overlay_changes_what_generators_start_from",
    "test_config_decoder_provider_options": "Config.clear_decoder_provider_options",
    "test_tokenizer_update_options": "test_options_of_a_tokenizer_change_what_it_does",
    "test_tokenizer_to_token_id": "Tokenizer.to_token_id",
    "test_generator_params_set_guidance": "GeneratorParams.set_guidance unknown",
    "test_generator_get_input": "test_tensors_of_the_last_run",
    "test_generator_set_inputs": "Generator.set_inputs",
    "test_generator_get_next_tokens": "test_each_row_has_its_next_token",
    "test_named_tensors_complete_api": "NamedTensors",
    "test_tensor_complete_api": "Tensor",
    "test_engine_complete_api": "Engine",
    "test_request_complete_api": "Engine, two requests",
    "test_device_availability_functions": "is_cuda_available",
    "test_gpu_device_functions": "test_devices_of_the_page",
    "test_execution_provider_library_functions": "test_what_is_refused_says_so",
    "test_multimodal_prefill_chunking_matches_unchunked_generation": "test_a_prompt_in_pieces_is_a_prompt",
    "test_hidden_states": "test_hidden_states_of_the_last_run",
    "test_generator_set_model_input": "none: it replaces an input that is fed; the native package fails, too",
    "test_pipeline_model": "none: a decoder in several files is refused by name",
    "test_adapters": "test_an_input_that_has_a_default_and_is_no_factor_keeps_it",
    "test_adapters_unload": "none: it is skipped where there is no adapter of Phi-2",
    "test_vision_preprocessing": "test_texts_and_tensors_are_the_native_packages",
    "test_vision_preprocessing_load_image_from_bytes": "test_texts_and_tensors_are_the_native_packages",
    "test_vision_preprocessing_multiple_images": "test_the_vision_graph_runs_once_for_each_picture_that_differs",
    "test_multimodal_processor_call": "test_texts_and_tensors_are_the_native_packages",
    "test_audio_preprocessing": "none: speech models are refused by name",
    "test_audio_preprocessing_multiple_audios": "none: speech models are refused by name",
    "test_audios_open_bytes": "none: speech models are refused by name",
}
"""Its published Python tests of generating text: the test of ours that checks the same, or why there is none."""


def test_the_table_names_tests_that_there_are() -> None:
    ours = {
        **SAME,
        **vars(test_genai),
        **vars(test_genai_outputs),
        **vars(test_genai_configs),
        **vars(test_seeing),
        **globals(),
    }
    for name, said in NATIVE_TESTS.items():
        assert said in ours or said.startswith("none: "), f"{name}: there is no test {said}"
