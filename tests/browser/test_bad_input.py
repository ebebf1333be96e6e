"""Bad input is refused with an error of our own tree that names value, limit and remedy, and nothing is left behind."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from capstan_host.testing.harness import Harness, generate_request
from tests import oracle
from tests.browser.model_variants import LLAMA, Variants, through_float16
from tests.browser.page_scripts import PageScripts
from tests.repository_layout import lay_out

pytestmark = pytest.mark.own_page

PROMPT = [5, 6, 7, 8, 9]
GONE = "404 (Not Found)"
"""The browser reports a missing file by itself."""


SLOW = {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False}
DEEP = '{"model": ' * 10_000 + "1" + "}" * 10_000


def make(variants: Variants, what: str) -> str:
    """The broken model folder of that name."""
    if what in variants.site.models:
        return what
    match what:
        case "no-folder":
            return what
        case "no-config":
            return variants.without(what, "genai_config.json")
        case "no-graph":
            return variants.without(what, "model.onnx")
        case "no-weights":
            return variants.without(what, "model.onnx.data")
        case "no-tokenizer":
            return variants.without(what, "tokenizer.json")
        case "no-json":
            return variants.text(what, "genai_config.json", '{"model": {\n  "type": "llama",,\n}}')
        case "deep-config":
            return variants.text(what, "genai_config.json", DEEP)
        case "deep-tokenizer":
            return variants.text(what, "tokenizer.json", DEEP)
        case "slow-tokenizer" | "odd-tokenizer":
            content = json.loads((LLAMA / "tokenizer.json").read_text())
            content["pre_tokenizer"] = SLOW if what == "slow-tokenizer" else {"type": "UnicodeScripts"}
            return variants.text(what, "tokenizer.json", json.dumps(content))
        case "deep-shards":
            return variants.text(what, "model.onnx.data.shards.json", DEEP)
        case "wrong-field":
            return variants.config(what, model__decoder__head_size="16")
        case "missing-field":
            return variants.config(what, model__vocab_size=None)
        case "wrong-search":
            return variants.config(what, search__temperature=-1)
        case "other-type":
            return variants.config(what, model__type="parakeet_tdt")
        case "more-layers":
            return variants.config(what, model__decoder__num_hidden_layers=3)
        case "short-weights":
            return variants.cut(what, "model.onnx.data", -1000)
        case "short-graph":
            return variants.cut(what, "model.onnx", 5000)
        case "pointer":
            return variants.text(what, "model.onnx", "version https://git-lfs.github.com/spec/v1\noid sha256:00\n")
        case "half":
            return variants.graph(what, through_float16)
        case _:
            raise AssertionError(what)


FOLDERS = {
    "no-folder": ("ModelFileError", ["no-folder/genai_config.json", "404"]),
    "no-config": ("ModelFileError", ["no-config/genai_config.json", "404", "check the model's address"]),
    "no-graph": ("ModelFileError", ["no-graph/model.onnx", "404"]),
    "no-weights": ("ModelFileError", ["no-weights/model.onnx.data", "404"]),
    "no-tokenizer": ("ModelFileError", ["no-tokenizer/tokenizer.json is missing", "copy the tokenizer"]),
    "no-json": ("ConfigError", ["genai_config.json", "line 2, column 19", "not JSON"]),
    "deep-config": ("ConfigError", ["genai_config.json: it is nested more than 64 levels deep"]),
    "deep-shards": ("ModelFileError", ["model.onnx.data.shards.json: it is nested more than 64 levels deep"]),
    "wrong-field": ("ConfigError", ["model.decoder.head_size", '"16"']),
    "missing-field": ("ConfigError", ["model.vocab_size"]),
    "wrong-search": ("OptionError", ["temperature is -1", "at least 0"]),
    "other-type": ("UnsupportedModelError", ["model.type", '"parakeet_tdt" has an encoder', "llama"]),
    "more-layers": ("UnsupportedModelError", ["past_key_values.2.key", "3 layers"]),
    "short-weights": (
        "ModelFileError",
        ["model.onnx.data: 230680 bytes", "up to byte 231680", "copy the file"],
    ),
    "short-graph": ("ModelFileError", ["model.onnx: its 5000 bytes are not an ONNX model"]),
    "pointer": ("ModelFileError", ["Git LFS pointer", "git lfs pull"]),
    "half": ("DeviceUnavailableError", ["float16", "shader-f16", "use_webgpu_fp32=true"]),
}
CASES = [(what, device) for what in FOLDERS for device in ("webgpu", "wasm") if (what, device) != ("half", "wasm")]


def refuse(harness: Harness, scripts: PageScripts, model: str, kind: str, parts: list[str], **options: Any) -> None:
    """A generate request that is refused so, leaves no buffer, and is followed by one that works."""
    error = harness.error(model, **options)
    assert error.type == kind, error
    for part in parts:
        assert part in error.message, error.message
    assert "\n" not in error.message
    kept = scripts.run("refusals", "left")
    good = harness.generate("nano-llama", prompt_ids=PROMPT, max_new_tokens=4, device="wasm")
    assert good["token_ids"] == oracle.greedy(LLAMA, PROMPT, 4)
    assert kept["buffers"] == []
    assert kept["devices"] <= 1, "the one that the next model gets"


@pytest.mark.one_in(6)
@pytest.mark.parametrize(("what", "device"), CASES)
def test_a_broken_model_folder_is_refused(
    what: str, device: str, variants: Variants, harness: Harness, scripts: PageScripts
) -> None:
    kind, parts = FOLDERS[what]
    scripts.expect(GONE)
    refuse(harness, scripts, make(variants, what), kind, parts, prompt_ids=PROMPT, max_new_tokens=4, device=device)


def test_a_file_is_told_from_its_folder(harness: Harness, scripts: PageScripts) -> None:
    scripts.expect(GONE)
    error = harness.error("nano-llama/model.onnx", prompt_ids=PROMPT, device="wasm")
    assert error.type == "ModelFileError"
    assert error.message.endswith("; model.onnx is a file: give the folder that it is in"), error.message


@pytest.mark.parametrize(
    ("what", "kind", "message"),
    [
        ("deep-tokenizer", "ConfigError", "tokenizer.json: it is nested more than 64 levels deep"),
        (
            "slow-tokenizer",
            "ConfigError",
            "tokenizer.json: pre_tokenizer.pattern.Regex: '(a+)+$' may take exponential time",
        ),
        ("odd-tokenizer", "UnsupportedModelError", 'tokenizer.json: pre_tokenizer: type is "UnicodeScripts", and the'),
    ],
)
def test_such_a_tokenizer_is_refused_and_the_page_goes_on(
    what: str, kind: str, message: str, variants: Variants, harness: Harness
) -> None:
    broken = make(variants, what)
    error = harness.error(broken, prompt_ids=PROMPT, max_new_tokens=4, device="wasm")
    assert (error.type, message in error.message) == (kind, True), error.message
    good = harness.generate("nano-llama", prompt_ids=PROMPT, max_new_tokens=4, device="wasm")
    assert good["token_ids"] == oracle.greedy(LLAMA, PROMPT, 4)


HUGE = {
    "num_hidden_layers": (10**9, "at most 4096"),
    "num_attention_heads": (2**53 + 1, "at most 65536"),
    "num_key_value_heads": (10**9, "at most 65536"),
    "head_size": (2**53 + 1, "at most 16777216"),
    "hidden_size": (2**60, "at most 16777216"),
    "context_length": (2**53 + 1, "at most 16777216"),
    "vocab_size": (10**30, "at most 16777216"),
}
REPOSITORYS = {"head_size": "head_dim", "context_length": "max_position_embeddings"}
"""Names of config.json."""


@pytest.mark.one_in(3)
@pytest.mark.parametrize("what", HUGE)
def test_counts_beyond_all_limits_are_refused_before_anything_is_counted_out(
    what: str, variants: Variants, harness: Harness, scripts: PageScripts
) -> None:
    """In genai_config.json, and in config.json of a repository; within the time of a request that fails at once."""
    scripts.expect(GONE)
    value, limit = HUGE[what]
    place = "model__" if what in ("context_length", "vocab_size") else "model__decoder__"
    in_genai = variants.config(f"huge-{what}", **{place + what: value})
    key = REPOSITORYS.get(what, what)
    in_repository = f"huge-repository-{what}"
    variants.site.models[in_repository] = lay_out(LLAMA, variants.place / in_repository, config={key: value})
    for model, file, name in ((in_genai, "genai_config.json", what), (in_repository, "config.json", key)):
        whole = generate_request(
            model, prompt_ids=PROMPT, device="wasm", dtype="q4" if model == in_repository else None
        )
        plan = {"kind": "plan", **{field: whole[field] for field in ("model", "dtype", "device")}}
        for request in (whole, plan):
            reply = harness.reply(request)
            assert not reply["ok"]
            error = reply["error"]
            assert error["type"] == "ConfigError", error["traceback"]
            said = rf"{file}: [a-z_.]*{name}: expected {limit}, got {value}; "
            assert re.search(said, error["message"]), error["message"]
    good = harness.generate("nano-llama", prompt_ids=PROMPT, max_new_tokens=4, device="wasm")
    assert good["token_ids"] == oracle.greedy(LLAMA, PROMPT, 4)


REQUESTS: dict[str, tuple[dict[str, Any], str, list[str]]] = {
    "empty_prompt": ({"prompt": ""}, "PromptError", ["the prompt is empty", "at least one token"]),
    "no_prompt_ids": ({"prompt_ids": []}, "PromptError", ["the prompt is empty"]),
    "long_prompt": ({"prompt_ids": [5] * 512}, "PromptError", ["512 tokens", "context_length is 512", "shorten"]),
    "unknown_id": ({"prompt_ids": [5, 512]}, "PromptError", ["token 1 is 512", "0 to 511"]),
    "max_length_below_the_prompt": (
        {"prompt_ids": [5] * 9, "search": {"max_length": 8}},
        "PromptError",
        ["9 tokens; max_length is 8"],
    ),
    "no_new_tokens": ({"max_new_tokens": 0}, "OptionError", ["max_new_tokens is 0", "at least 1"]),
    "temperature": ({"search": {"temperature": -1}}, "OptionError", ["temperature is -1", "at least 0"]),
    "top_p": ({"search": {"top_p": 1.5}}, "OptionError", ["top_p is 1.5", "from 0 to 1"]),
    "top_k": ({"search": {"top_k": -1}}, "OptionError", ["top_k is -1"]),
    "seed": ({"search": {"random_seed": -2}}, "OptionError", ["random_seed is -2"]),
    "wrong_type": ({"search": {"do_sample": "yes"}}, "OptionError", ["do_sample is 'yes'", "True or False"]),
    "unknown_option": ({"search": {"temprature": 1.0}}, "OptionError", ["temprature", "temperature"]),
    "not_implemented": ({"search": {"num_beams": 4}}, "OptionError", ["num_beams", "4", "beam search"]),
    "max_length": ({"search": {"max_length": 513}}, "OptionError", ["513", "context_length", "512"]),
    "run_ahead": ({"run_ahead": 65}, "OptionError", ["run_ahead is 65", "from 1 to 64"]),
    "no_run_ahead": ({"run_ahead": 0}, "OptionError", ["run_ahead is 0"]),
    "device": ({"device": "cuda"}, "OptionError", ["'cuda'", "'webgpu', 'wasm', 'auto' or null"]),
    "capture": ({"capture": "video"}, "OptionError", ["'video'", "'tape', 'ort', 'off'"]),
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("what", REQUESTS)
def test_a_bad_request_is_refused(what: str, harness: Harness, scripts: PageScripts) -> None:
    options, kind, parts = REQUESTS[what]
    request = {"prompt_ids": None if "prompt" in options else PROMPT, "device": "wasm", **options}
    refuse(harness, scripts, "nano-llama", kind, parts, **request)


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (
            {},
            "a request's kind is None; it must be one of load, generate, chat, exec, models, memory, operations, plan, "
            "alternatives, score, tokenizer, load_embedder, embed, load_reranker, rerank, load_transcriber, "
            "transcribe, listen, load_voice, speak, end_session, "
            "save_session, restore_session, open_session, saved_sessions, trace or cancel",
        ),
        ({"kind": "talk"}, "a request's kind is 'talk'; it must be"),
        ({"kind": "plan", "model": {"type": "llama"}}, 'a model\'s path is {"type":"llama"}, but must be a URL'),
        ({"kind": "memory", "which": None}, "'which' is not a field of the request 'memory'; it has kind"),
        (
            {"kind": "chat", "model": "x", "messages": []},
            "dtype, device, capture, run_ahead, max_new_tokens, search, max_length: missing",
        ),
        ({"kind": "models", "action": "list"}, "which: missing in the request 'models'; null is"),
        (
            {"kind": "models", "action": "purge", "which": None},
            "action is 'purge'; it must be 'list', 'evict' or 'verify'",
        ),
        (
            {"kind": "generate", "model": "x", "prompt": "y"},
            "dtype, device, capture, run_ahead, max_new_tokens, search, prompt_ids: missing",
        ),
    ],
)
def test_a_request_that_the_protocol_has_not_is_refused(
    request_: dict[str, Any], message: str, harness: Harness
) -> None:
    reply = harness.reply(request_)
    assert (reply["ok"], reply["error"]["type"]) == (False, "OptionError")
    assert reply["error"]["message"].startswith(message)


LOAD = """
import sys, capstan
try:
    await capstan.Model.load(eval(sys.argv[1]))
except capstan.CapstanError as error:
    print(type(error).__name__, error)
"""


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("path", "said"),
    [
        (
            "3",
            "OptionError a model's path is 3, but must be a URL, a FileSystemDirectoryHandle, a File or an array",
        ),
        ("None", "OptionError a model's path is undefined, but must be"),
        ("['a.onnx']", "OptionError a model's path is ['a.onnx'], but must be"),
        ("__import__('js').Array.of(3)", "OptionError a model's path is 3, but must be"),
        ("'https://127.0.0.1:1/m/'", "ModelFileError https://127.0.0.1:1/m/genai_config.json cannot be fetched ("),
    ],
)
def test_what_is_no_model_folder_is_refused(path: str, said: str, harness: Harness, scripts: PageScripts) -> None:
    scripts.expect(r"net::ERR_")
    done = harness.exec(LOAD, [], [path])
    assert (done.status, done.stderr) == (0, "")
    assert done.stdout.startswith(said)


def test_without_webgpu_it_cannot_be_had_and_auto_takes_wasm(scripts: PageScripts) -> None:
    found = scripts.run("refusals", "without_webgpu", "nano-llama", model="nano-llama")
    assert found["webgpu"].startswith(
        'DeviceUnavailableError: the device "webgpu" was requested, but this browser has no WebGPU; '
    )
    assert 'use the device "auto" or "wasm"' in found["webgpu"]
    assert found["auto"] == "wasm"
    assert found["folder"] == "CPU"
    [[kind, warning]] = found["warned"]
    assert kind == "FallbackWarning"
    assert "/nano-llama/genai_config.json names as a provider: there is no WebGPU adapter here; the CPU co" in warning
    assert found["named"] == found["webgpu"].removeprefix("DeviceUnavailableError: ")


def test_an_html_page_in_place_of_a_file_is_no_file(harness: Harness) -> None:
    """As hosts of single-page applications answer for every address."""
    page = {"content_type": "text/html; charset=utf-8", "body": "<!DOCTYPE html><title>App</title>"}
    folder, optional = "**/models/nano-llama/", ["tokenizer_config.json", "chat_template.jinja"]
    for name in optional:
        harness.page.route(folder + name, lambda route: route.fulfill(**page))
    try:
        assert len(harness.generate("nano-llama", prompt_ids=PROMPT, max_new_tokens=2, device="wasm")["token_ids"]) == 2
        harness.page.route(f"{folder}model.onnx", lambda route: route.fulfill(**page))
        error = harness.error("nano-llama", prompt_ids=PROMPT, device="wasm", capture="off")
        assert error.type == "ModelFileError"
        assert "nano-llama/model.onnx: the server answers with an HTML page" in error.message
    finally:
        harness.page.unroute_all()


def test_auto_takes_wasm_on_a_software_adapter(harness: Harness, scripts: PageScripts) -> None:
    found = harness.generate("nano-llama", prompt_ids=PROMPT, max_new_tokens=4, device="auto")
    assert found["device"] == "wasm"
    threads = min(harness.evaluate("() => navigator.hardwareConcurrency"), 4)
    assert found["adapter"] == f"cpu (wasm, {threads} thread{'' if threads == 1 else 's'})"
    assert found["token_ids"] == oracle.greedy(LLAMA, PROMPT, 4)


def test_blocking_calls_wait_where_they_can_and_name_their_async_twins_where_not(scripts: PageScripts) -> None:
    found = scripts.run("refusals", "blocking", "nano-llama", model="nano-llama")
    wanted = oracle.greedy(LLAMA, PROMPT, 7)
    assert found["ids"] == wanted[:6]
    for name, twin in {
        "model": "await Model.load('/models/nano-llama/')",
        "token": "await generate_next_token_async()",
        "logits": "await get_logits_async()",
        "close": "await aclose()",
        "close model": "await model.aclose()",
    }.items():
        assert found[name].startswith("AsyncRequiredError: "), name
        assert found[name].endswith(f"use `{twin}`"), found[name]
    assert found["after"] == wanted[6:]


@pytest.mark.extended
def test_a_closed_model_leaves_no_buffers(scripts: PageScripts) -> None:
    found = scripts.run("refusals", "leak", "nano-llama", model="nano-llama")
    assert found["before"] == []
    assert found["alive"] > 20
    assert found["after"] == []


@pytest.mark.extended
def test_a_cache_larger_than_the_adapter_binds_is_refused_and_a_smaller_one_works(
    variants: Variants, scripts: PageScripts
) -> None:
    name = variants.config("wide-context", model__context_length=2**24, search__max_length=2**24)
    found = scripts.run("refusals", "too_large", name, model=name)
    error = found["error"]
    assert error.startswith(
        "OutOfMemoryError: kv past_key_values.0.key takes 2147483648 bytes with batch_size 1 and max"
    )
    assert "bytes in one binding" in error
    longest, *others = (int(number) for number in re.findall(r"at most (\d+)", error))
    assert 2**20 < longest < 2**24
    assert others == [2**24, 2**24]
    assert found["same"], "buffers are left"
    assert found["ids"] == oracle.greedy(LLAMA, PROMPT, 15)
    assert found["note"] is None
