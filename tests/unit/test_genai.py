"""capstan.genai does what onnxruntime-genai does: the same calls on both, results and refusals compared.

Intended differences have tests of their own here, and their reasons in docs/genai.md.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime_genai as native
import pytest

from capstan import CapstanError, ConfigError, DeviceUnavailableError, FallbackWarning, OptionError, genai
from capstan.device.device_host import Opening
from capstan.device.model_interface import TapeOptions
from capstan.fallback import fallbacks
from capstan.genai import genai_tensors
from capstan.local.local_host import LocalHost
from tests.unit.genai_cases import (
    ENDS,
    FOLDER,
    PROMPT,
    SAME,
    batch_by,
    generate,
    generator,
    loaded,
    speculative,
    tokenizer,
    turns,
)


def plain(value: Any, near: bool = False) -> Any:
    """Arrays as dtype, shape and numbers; `near` lets others be as far apart as another build of onnxruntime rounds."""
    if isinstance(value, np.ndarray):
        numbers = value.astype("f8")
        return ["array", str(value.dtype), value.shape, pytest.approx(numbers, abs=5e-4, rel=0) if near else numbers]
    if isinstance(value, list | tuple):
        return [plain(item, near) for item in value]
    if isinstance(value, dict):
        return {key: plain(item, near) for key, item in value.items()}
    return value if isinstance(value, str | int | float | bool | Enum) or value is None else type(value).__name__


def outcome(og: Any, case: Callable[[Any], Any], near: bool = False) -> Any:
    try:
        return plain(case(og), near)
    except TypeError:
        return "TypeError"
    except IndexError:
        return "IndexError"
    except RuntimeError:
        return "RuntimeError"


TYPE_ERRORS = ("append_tokens wrong", "rewind_to -1", "add_model_data text")
"""Cases in which one package refuses the value's type, and the other the value, with a RuntimeError."""


@pytest.mark.filterwarnings("ignore::capstan.FallbackWarning")
@pytest.mark.parametrize("name", SAME)
def test_the_same_as_onnxruntime_genai(name: str) -> None:
    expected, found = outcome(native, SAME[name], near=True), outcome(genai, SAME[name])
    if any(part in name for part in TYPE_ERRORS) and expected in ("TypeError", "RuntimeError"):
        assert found in ("TypeError", "RuntimeError")
    else:
        assert found == expected


@pytest.mark.parametrize("tokens", [[1.5], ["5"], [True], np.array([1.5]), [-1], [[1, 2], [3, 4]]])
def test_what_is_no_token_is_refused_where_the_native_package_takes_it(tokens: Any) -> None:
    assert generator(native, tokens).token_count() > 0
    with pytest.raises(CapstanError, match="integers|go from 0|rows of tokens"):
        generator(genai, tokens)


def test_tokens_that_are_no_rows_of_the_batch_are_refused_where_the_native_package_leaves_some_out() -> None:
    assert len(batch_by(native, [5, 6, 7])[0]) == 4
    for tokens in ([5, 6, 7], [[1, 2], [3, 4], [5, 6]]):
        with pytest.raises(CapstanError, match="rows"):
            batch_by(genai, tokens)


def test_a_rewind_to_the_last_token_leaves_no_room_for_two() -> None:
    one = generator(genai)
    generate(one)
    one.rewind_to(31)
    with pytest.raises(CapstanError, match="has 32 tokens; max_length is 32"):
        one.generate_next_token()


def test_stop_strings_and_seeds_of_turns_work_without_dynamic_batching() -> None:
    text = tokenizer(genai).decode([212])
    stopped = turns(genai, lambda turn: turn.set_stop_strings(["nothing", text]))
    assert stopped[-1] == [1, 212, 3, "STOP_STRING", 1, "NONE", [5, 3, 0]]

    def drawing(turn: Any) -> None:
        turn.set_do_sample(True)
        turn.set_seed(7)

    assert turns(genai, drawing) == turns(genai, drawing)


def asked_for(change: Callable[[Any], object], monkeypatch: pytest.MonkeyPatch) -> TapeOptions:
    """How steps of nano-llama are to run after a change of its configuration."""
    asked: list[TapeOptions] = []
    opened = LocalHost.open_model

    async def open_model(self: LocalHost, opening: Opening, device: str) -> Any:
        asked.append(opening.options)
        return await opened(self, opening, "reference")

    monkeypatch.setattr(LocalHost, "open_model", open_model)
    config = genai.Config(FOLDER)
    change(config)
    genai.Model(config)
    monkeypatch.undo()
    return asked[0]


def capture_of(config: Any, value: object, provider: str = "webgpu") -> None:
    config.set_provider_option(provider, "enableGraphCapture", value)


def laid_over(config: Any, value: object) -> None:
    options = {"provider_options": [{"webgpu": {"enableGraphCapture": value}}]}
    config.overlay(json.dumps({"model": {"decoder": {"session_options": options}}}))


@pytest.mark.parametrize("give", [capture_of, laid_over, partial(capture_of, provider="WebGpuExecutionProvider")])
def test_capture_is_what_was_asked_for(give: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    for value, capture in {"0": "off", "1": "tape"}.items():
        found = asked_for(partial(give, value=value), monkeypatch)
        assert (found.capture, "enableGraphCapture" in (found.configured or "")) == (capture, True)
    with pytest.raises(ConfigError, match=r'\.enableGraphCapture: expected "0" or "1", got "on"'):
        asked_for(partial(give, value="on"), monkeypatch)


def test_another_option_leaves_what_the_file_and_an_overlay_say(monkeypatch: pytest.MonkeyPatch) -> None:
    def change(config: Any) -> None:
        laid_over(config, "0")
        config.clear_providers()
        config.set_provider_option("webgpu", "validationMode", "disabled")

    assert asked_for(change, monkeypatch).capture == "off"


def test_what_a_page_does_not_have_is_warned_of() -> None:
    config = genai.Config(FOLDER)
    for action in (
        lambda: config.set_decoder_provider_options_hardware_device_type("webgpu", "NPU"),
        lambda: config.set_decoder_provider_options_hardware_device_id("webgpu", 1),
        lambda: config.set_decoder_provider_options_hardware_vendor_id("webgpu", 1),
        lambda: genai.enable_telemetry_events(),
        lambda: speculative(genai, ngram_size=3, min_adaptive_k=2),
    ):
        with pytest.warns(FallbackWarning):
            action()


@pytest.mark.parametrize(
    "call",
    [
        lambda one: one.set_model_input("x", np.zeros(1)),
        lambda one: one.set_hidden_states(np.zeros(1)),
        lambda one: genai.register_execution_provider_library("x", "/x.so"),
        lambda one: genai.unregister_execution_provider_library("x"),
        lambda one: genai.set_current_gpu_device_id(1),
        lambda one: genai.Images.open_bytes(b""),
        lambda one: genai.Audios.open_bytes(b""),
    ],
)
def test_what_is_refused_says_so(call: Callable[[Any], Any]) -> None:
    with pytest.raises(CapstanError):
        call(generator(genai))


def test_devices_of_the_page() -> None:
    assert genai.get_current_gpu_device_id() == 0
    genai.set_current_gpu_device_id(0)
    assert (genai.is_webgpu_available(), genai.is_qnn_available(), genai.is_openvino_available()) == (False,) * 3
    assert og_capabilities() == (0, 0, 0)


def og_capabilities() -> tuple[int, int, int]:
    found = genai.Engine(loaded(genai)).get_capabilities()
    return found.configured_max_batch_size, found.max_request_length, found.max_scheduled_tokens


@pytest.mark.parametrize(
    ("change", "rows"),
    [
        (lambda turn: None, [2]),
        (lambda turn: turn.set_repetition_penalty(1.3), [1, 1]),
        (lambda turn: (turn.set_do_sample(True), turn.set_seed(5)), [1, 1]),
        (lambda turn: turn.set_guidance("regex", "a+"), [1, 1]),
    ],
    ids=["the same", "another penalty", "a seed", "a grammar"],
)
def test_requests_that_pick_alike_are_rows_of_one_decoder(
    change: Callable[[Any], Any], rows: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = loaded(genai)
    made: list[Any] = []
    row_decoder = model.capstan.row_decoder

    async def noted(*arguments: Any) -> Any:
        made.append(await row_decoder(*arguments))
        return made[-1]

    monkeypatch.setattr(model.capstan, "row_decoder", noted)
    engine = genai.Engine(model)
    buffer = engine.create_event_buffer(2)
    first, second = engine.create_request(), engine.create_request()
    options = genai.TurnOptions(first)
    options.set_max_generated_tokens(2)
    change(options)
    first.begin_turn(PROMPT, options)
    second.begin_turn([5, 6, 7])
    for _ in range(2):
        engine.run(buffer)
    assert [decoder.rows for decoder in made] == rows
    if rows == [2]:
        # The first turn is over; what was computed ahead of it is none of the second's steps.
        steps = [decoder.counters()["steps"] for decoder in made[0].decoders]
        for _ in range(5):
            engine.run(buffer)
        first_steps, second_steps = (decoder.counters()["steps"] for decoder in made[0].decoders)
        assert (first_steps, second_steps) == (steps[0], steps[1] + 5)
    for request in (first, second):
        request.close()


def test_requests_take_turns_in_a_buffer_that_is_too_small_for_all() -> None:
    engine = genai.Engine(loaded(genai))
    buffer = engine.create_event_buffer(2)
    requests = [engine.create_request() for _ in range(3)]
    for request in requests:
        request.begin_turn(PROMPT)
    served = []
    for _ in range(3):
        engine.run(buffer)
        served += [requests.index(buffer[place].request) for place in range(len(buffer))]
    assert served == [0, 1, 2, 0, 1, 2]
    for request in requests:
        request.close()


def folder_with(place: Path, providers: list[dict[str, Any]]) -> str:
    """A folder whose configuration has these providers."""
    for file in Path(FOLDER).iterdir():
        (place / file.name).write_bytes(file.read_bytes())
    config = json.loads((place / "genai_config.json").read_text())
    config["model"]["decoder"]["session_options"]["provider_options"] = providers
    (place / "genai_config.json").write_text(json.dumps(config))
    return str(place)


@pytest.mark.parametrize("names", [[], ["cpu"], ["CPU"], ["CPUExecutionProvider"], ["foo"]])
def test_a_path_is_loaded_onto_the_device_that_its_providers_say(names: list[str], tmp_path: Path) -> None:
    folder = folder_with(tmp_path, [{name: {}} for name in names])
    expected, found = (outcome(og, lambda og: og.Model(folder).device_type) for og in (native, genai))
    assert found == expected
    config = genai.Config(folder)
    config.clear_providers()
    assert genai.Model(config).device_type == "CPU"


def test_a_provider_that_a_page_lacks_is_told(tmp_path: Path) -> None:
    with pytest.warns(FallbackWarning, match="provider_options cuda of .*: a page has 'webgpu' and 'cpu'"):
        assert genai.Model(folder_with(tmp_path, [{"cuda": {}}])).device_type == "CPU"


@pytest.mark.parametrize("names", [["webgpu"], ["cpu", "WebGPU"]])
def test_a_folder_that_names_webgpu_is_loaded_onto_the_cpu_where_there_is_none(
    names: list[str], tmp_path: Path
) -> None:
    folder = folder_with(tmp_path, [{name: {}} for name in names])
    with pytest.warns(FallbackWarning) as warned:
        assert genai.Model(folder).device_type == "CPU"
    assert [str(warning.message) for warning in warned] == [
        f"WebGPU, which {folder}/genai_config.json names as a provider: there is no WebGPU adapter here; the CPU "
        "computes; to get an error instead, load the model with device='webgpu', or name the provider in the script "
        "(og.Config: clear_providers, append_provider('webgpu'))"
    ]
    genai.Model(folder)
    assert [times for what, times in fallbacks().items() if folder in what] == [2]
    config = genai.Config(folder)
    config.clear_providers()
    config.append_provider("webgpu")
    with pytest.raises(OptionError, match="device is 'webgpu'; on CPython it must be"):
        genai.Model(config)


@pytest.mark.parametrize("lacks", ["adapter", "f16"])
def test_a_gpu_that_the_configuration_names_and_that_cannot_run_the_model_falls_back(
    lacks: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked = []
    opened = LocalHost.open_model

    async def has_webgpu(self: LocalHost) -> bool:
        return lacks != "adapter"

    async def open_model(self: LocalHost, opening: Opening, device: str) -> Any:
        asked.append(device)
        if device == "webgpu":
            raise DeviceUnavailableError("the model computes in float16")
        return await opened(self, opening, device)

    monkeypatch.setattr(LocalHost, "has_webgpu", has_webgpu)
    monkeypatch.setattr(LocalHost, "open_model", open_model)
    why = "there is no WebGPU adapter" if lacks == "adapter" else "the model computes in float16"
    with pytest.warns(FallbackWarning, match=f"names as a provider: {why}.*; the CPU computes"):
        genai.Model(folder_with(tmp_path, [{"webgpu": {}}]))
    assert asked == (["cpu"] if lacks == "adapter" else ["webgpu", "cpu"])
    config = genai.Config(FOLDER)
    config.append_provider("webgpu")
    with pytest.raises(DeviceUnavailableError, match="float16"):
        genai.Model(config)


def test_a_model_that_names_webgpu_is_asked_for_there(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    opened = LocalHost.open_model

    async def has_webgpu(self: LocalHost) -> bool:
        return True

    async def open_model(self: LocalHost, opening: Opening, device: str) -> Any:
        asked.append(device)
        return await opened(self, opening, "reference")

    monkeypatch.setattr(LocalHost, "has_webgpu", has_webgpu)
    monkeypatch.setattr(LocalHost, "open_model", open_model)
    genai.Model(FOLDER)
    config = genai.Config(FOLDER)
    config.append_provider("cpu")
    genai.Model(config)
    assert asked == ["webgpu", "cpu"]


TOKENS = ("generate_next_token", "append_next_tokens", "hit_eos", "hit_max_length")
TENSORS = ("model_input_values", "model_output_shapes", "model_output_values", "model_logits")


def logged(og: Any, file: Path, shown: tuple[str, ...] = TOKENS, **options: Any) -> tuple[list[str], str]:
    """The lines of a generation that a function got, and those of another one in a file."""
    lines: list[str] = []
    try:
        og.set_log_options(enabled=True, **dict.fromkeys(shown, True))
        og.set_log_callback(lines.append)
        generate(generator(og, **options), 40)
        og.set_log_options(ansi_tags=False, filename=str(file))
        generate(generator(og, **options), 40)
    finally:
        og.set_log_callback(None)
        og.set_log_options(enabled=False, ansi_tags=True, **dict.fromkeys(shown, False))
    return lines, file.read_text()


@pytest.mark.parametrize("options", [{"max_length": 9}, {"overlay": ENDS}, {"max_length": 7, "temperature": 0.75}])
def test_the_log_is_the_native_packages(options: dict[str, Any], tmp_path: Path) -> None:
    expected, found = (logged(og, tmp_path / og.__name__, **options) for og in (native, genai))
    assert found == expected
    assert len(found[0]) > 8


@pytest.mark.parametrize(
    "options",
    [
        {"max_length": 7},
        {"max_length": 6, "tokens": [[5, 6, 7], [8, 9, 10]], "batch_size": 2},
        {"max_length": 8, "overlay": '{"search": {"past_present_share_buffer": false}}'},
        {"max_length": 15, "tokens": list(range(5, 17))},
    ],
)
def test_lines_of_tensors_are_the_native_packages(options: dict[str, Any], tmp_path: Path) -> None:
    """Numbers of the two differ by rounding at the fifth digit; the rest of the text does not."""
    number = r"-?\d+\.\d+(?:e-\d+)?"
    for shown in ((*TOKENS, *TENSORS), ("model_logits", "model_output_shapes")):
        expected, found = (logged(og, tmp_path / og.__name__, shown, **options) for og in (native, genai))
        for one, other in (("".join(expected[0]), "".join(found[0])), (expected[1], found[1])):
            assert re.sub(number, "#", other.rstrip("\r\n")) == re.sub(number, "#", one.rstrip("\r\n"))
            numbers = [np.array(re.findall(number, text), float) for text in (other, one)]
            np.testing.assert_allclose(numbers[0], numbers[1], rtol=1e-3, atol=1e-4)


def test_a_rewound_sequence_and_beams_are_logged_as_natively(tmp_path: Path) -> None:
    def work(og: Any) -> str:
        lines: list[str] = []
        try:
            og.set_log_options(enabled=True, ansi_tags=False, append_next_tokens=True, model_logits=True)
            og.set_log_options(value_stats=False)
            og.set_log_callback(lines.append)
            one = generator(og)
            for _ in range(2):
                one.get_logits()
                one.generate_next_token()
            one.rewind_to(6)
            one.generate_next_token()
            generate(generator(og, num_beams=2), 2)
        finally:
            og.set_log_callback(None)
            og.set_log_options(enabled=False, ansi_tags=True, append_next_tokens=False, model_logits=False)
            og.set_log_options(value_stats=True)
        return re.sub(r"(-?\d+\.\d\d)\d*", r"\1", "".join(lines))

    assert work(genai) == work(native)


def test_onnxruntimes_log_is_a_step_down_and_a_file_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.warns(FallbackWarning, match="log option ort_lib"):
        genai.set_log_options(ort_lib=True)
    genai.set_log_options(ort_lib=False)
    with pytest.raises(CapstanError, match="filename is .*cannot be written"):
        genai.set_log_options(filename=str(tmp_path))


def test_tensors_tell_their_type_and_bytes() -> None:
    made = genai.Tensor(np.array([[1, 2]], np.int32))
    assert (made.type(), bytes(made.data())) == (6, np.array([1, 2], np.int32).tobytes())


def test_without_numpy_arrays_are_memoryviews(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(genai_tensors, "numpy", None)
    one = generator(genai)
    logits = one.get_logits()
    one.generate_next_token()
    assert (logits.shape, logits.format) == ((1, 1, 512), "f")
    assert [array.tolist() for array in (one.get_next_tokens(), one.get_sequence(0))] == [[333], [*PROMPT, 333]]
    batch = tokenizer(genai).encode_batch(["def f", "a"])
    assert (batch.shape(), batch.as_numpy().tolist()) == ([2, 2], [[299, 268], [67, 2]])
    assert tokenizer(genai).decode_batch(batch) == ["def f", "a"]
    assert tokenizer(genai).encode("").tolist() == []
    assert generate(generator(genai, tokenizer(genai).encode("def fibonacci(n):")), 1)[0].tolist() == [*PROMPT, 333]
