"""A page's requests are read on CPython as in the page: whole ones are taken, others are refused with a reason."""

from __future__ import annotations

import json
from typing import Any

import pytest

from buildtools.option_types import STAGES, page_options, search_options
from buildtools.wire import request_types
from capstan.errors import OptionError
from capstan.page.read_request import REQUESTS, fields_of, read_request
from capstan.stages.search import STAGE_OPTIONS

MODEL = {"model": "/models/nano/"}
MODEL_OPTIONS = {"run_ahead": 1, "recoveries": 0, "stall_timeout": 1.5, "adapter": "/a.onnx_adapter", "prefix_cache": 0}
MODEL_OPTIONS |= {"dtype": "q4", "device": "auto", "capture": "off"}
MODEL_OPTIONS |= {"disable_file_mapped_weights": True, "kv_cache_dtype": "int8", "draft_model": "/models/small/"}
MODEL_OPTIONS |= {"embedding_tables": "disk"}
RUN_OPTIONS = {
    **MODEL_OPTIONS,
    "max_new_tokens": 5,
    "search": {"top_k": 3},
    "guidance": {"type": "regex", "data": "a*", "enable_ff_tokens": True},
    "speculation": {"ngram_size": 3, "max_draft_tokens": 4},
    "logits_processor": "shorter",
    "log_probabilities": 3,
    "timeline": True,
}
TALK_OPTIONS = {**RUN_OPTIONS, "max_length": 9, "session": "session 1"}
MESSAGES = [{"role": "user", "content": "hello", "name": "Ann"}]
TOOLS = [{"type": "function", "function": {"name": "add"}}]
KWARGS = {"reasoning_effort": "low", "budget": 3, "dates": [None, {"day": 1.5}]}
HUB = {"repository": "a/b", "hub": "https://hub.test", "revision": None, "token": "secret"}
LEAST: dict[str, dict[str, Any]] = {
    "load": MODEL,
    "generate": {**MODEL, "prompt": "x", "prompt_ids": None},
    "chat": {**MODEL, "messages": MESSAGES},
    "exec": {
        "source": "1",
        "filename": "a.py",
        "argv": ["a.py"],
        "models": {"m": "/m/", "h": HUB},
        "files": {"x": "/x"},
    },
    "models": {"action": "list", "which": None},
    "memory": {},
    "operations": MODEL,
    "plan": {"model": HUB},
    "alternatives": {**MODEL, "prompt": None, "answer": [1, 2], "count": 8},
    "score": {**MODEL, "sequences": [{}]},
    "tokenizer": {**MODEL, "action": "encode"},
    "load_embedder": {"model": HUB, "pooling": "cls"},
    "embed": {"texts": ["a"]},
    "load_reranker": {"model": HUB},
    "rerank": {"query": "a", "documents": ["b"]},
    "load_transcriber": {"model": HUB},
    "transcribe": {},
    "listen": {"live": 1, "action": "begin"},
    "load_voice": {"model": HUB},
    "speak": {"text": "a"},
    "end_session": {"session": "session 1"},
    "save_session": {"session": "session 1", "id": "a", "messages": MESSAGES, "budget": 9, "bits": 8},
    "restore_session": {**MODEL, "id": "a"},
    "open_session": {**MODEL, "url": "/a.state", "messages": MESSAGES},
    "saved_sessions": {"action": "list", "id": None},
    "trace": {"action": "start"},
}
"""The fields that each request must have, by its kind."""
MOST: dict[str, dict[str, Any]] = {
    "load": TALK_OPTIONS,
    "generate": {**RUN_OPTIONS, "as_message": True, "system": "s", "images": ["data:,"], "begun": [1]},
    "chat": {
        **TALK_OPTIONS,
        "tools": TOOLS,
        "thinking": True,
        "called": ["add"],
        "call_optional": True,
        "most_calls": 1,
        "chat_template_kwargs": KWARGS,
        "continue_final_message": False,
        "begun": [1],
        "keep": "talk",
    },
    "operations": MODEL_OPTIONS,
    "alternatives": {
        **TALK_OPTIONS,
        "messages": MESSAGES,
        "tools": TOOLS,
        "thinking": False,
        "chat_template_kwargs": KWARGS,
        "continue_final_message": False,
    },
    "score": {**MODEL_OPTIONS, "max_length": 9, "token_texts": True},
    "tokenizer": {
        **MODEL_OPTIONS,
        "text": "a",
        "ids": [1],
        "messages": MESSAGES,
        "tools": TOOLS,
        "thinking": True,
        "chat_template_kwargs": KWARGS,
        "continue_final_message": False,
        "add_generation_prompt": False,
    },
    "load_embedder": {"dtype": "q4", "device": "auto", "disable_file_mapped_weights": True},
    "load_reranker": {"dtype": "q4", "device": "auto", "disable_file_mapped_weights": True},
    "rerank": {"instruction": "i"},
    "load_transcriber": {"dtype": "q4", "device": "auto", "disable_file_mapped_weights": True},
    "transcribe": {"file": "/a.wav", "language": "de", "task": "translate", "timestamps": True},
    "listen": {"language": "de", "task": "translate", "silence": 0.3, "threshold": 0.6, "interval": 2},
    "load_voice": {"dtype": "q4", "device": "auto", "disable_file_mapped_weights": True},
    "speak": {"voice": "af_heart", "speed": 1.5, "phonemes": True},
    "plan": {
        "dtype": "q4",
        "device": "wasm",
        "kv_cache_dtype": "int4",
        "embedding_tables": "disk",
        "draft_model": "/models/small/",
    },
    "restore_session": TALK_OPTIONS,
    "open_session": {
        **TALK_OPTIONS,
        "tools": TOOLS,
        "thinking": True,
        "called": ["add"],
        "call_optional": True,
        "most_calls": 1,
        "chat_template_kwargs": KWARGS,
        "continue_final_message": False,
    },
}
"""The fields that it may have besides."""
KINDS = list(LEAST)


def whole(kind: str) -> dict[str, Any]:
    return {"kind": kind, **LEAST[kind], **MOST.get(kind, {})}


def error(request: object) -> str:
    with pytest.raises(OptionError) as caught:
        read_request(json.dumps(request))
    return str(caught.value)


@pytest.mark.parametrize("kind", KINDS)
def test_a_request_is_taken_with_all_its_fields_and_with_those_that_it_must_have(kind: str) -> None:
    least = {"kind": kind, **LEAST[kind]}
    assert list(REQUESTS) == KINDS
    assert whole(kind).keys() == fields_of(REQUESTS[kind]).keys()
    assert read_request(json.dumps(least)) == least
    assert read_request(json.dumps(whole(kind))) == whole(kind)
    for name in MOST.get(kind, {}):
        assert read_request(json.dumps({**least, name: None})) == {**least, name: None}


WORDS = {
    **dict.fromkeys(("source", "filename", "query", "id", "url"), "a string"),
    **dict.fromkeys(("dtype", "prompt", "which", "adapter", "system", "logits_processor"), "a string or null"),
    "live": "a whole number",
    **dict.fromkeys(("silence", "threshold", "interval", "speed"), "a number or null"),
    **dict.fromkeys(("file", "instruction", "keep", "language", "voice"), "a string or null"),
    **dict.fromkeys(("timestamps", "phonemes"), "true or false or null"),
    "task": "'transcribe', 'translate' or null",
    **dict.fromkeys(
        ("run_ahead", "max_new_tokens", "max_length", "most_calls", "recoveries", "prefix_cache", "log_probabilities"),
        "a whole number or null",
    ),
    **dict.fromkeys(
        (
            "as_message",
            "timeline",
            "disable_file_mapped_weights",
            "thinking",
            "token_texts",
            "add_generation_prompt",
            "continue_final_message",
            "call_optional",
        ),
        "true or false or null",
    ),
    **dict.fromkeys(("models", "files"), "an object"),
    **dict.fromkeys(("search", "guidance", "speculation", "chat_template_kwargs"), "an object or null"),
    "model": "a string or an object",
    "draft_model": "a string, an object or null",
    "device": "'webgpu', 'wasm', 'auto' or null",
    "capture": "'tape', 'ort', 'off' or null",
    "stall_timeout": "a number or null",
    **dict.fromkeys(("count", "budget", "bits"), "a whole number"),
    "text": "a string or null",
    "pooling": "'mean', 'cls', 'last' or null",
    "kv_cache_dtype": "'float', 'int8', 'int4' or null",
    "embedding_tables": "'memory', 'disk' or null",
}
"""A message's words for the type of each field."""
ITEMS = {
    **dict.fromkeys(("messages", "tools", "sequences"), "an object"),
    **dict.fromkeys(("prompt_ids", "begun", "answer", "ids"), "a whole number"),
    **dict.fromkeys(("argv", "texts", "documents", "called", "images"), "a string"),
}
"""Words for the items of an array."""
OF_A_KIND = {
    ("end_session", "session"): "a string",
    ("speak", "text"): "a string",
    ("tokenizer", "action"): "'encode', 'decode' or 'template'",
    ("trace", "action"): "'start' or 'stop'",
    ("models", "action"): "'list', 'evict' or 'verify'",
    ("listen", "action"): "'begin', 'hear', 'end' or 'drop'",
    ("saved_sessions", "action"): "'list' or 'delete'",
    ("save_session", "session"): "a string",
    ("saved_sessions", "id"): "a string or null",
}


@pytest.mark.parametrize("kind", KINDS)
def test_each_field_of_another_type_is_refused(kind: str) -> None:
    """No field takes an array in an array."""
    for name in whole(kind).keys() - {"kind"}:
        told = error({**whole(kind), name: [[]]})
        words = OF_A_KIND.get((kind, name)) or {"session": "a string or null", **WORDS}.get(name)
        place, value = (name, "[[]]") if words else (f"{name}[0]", "[]")
        assert told == f"{place} is {value}; it must be {words or ITEMS[name]}"


@pytest.mark.parametrize("kind", KINDS)
def test_each_missing_field_is_told(kind: str) -> None:
    for name in LEAST[kind]:
        request = whole(kind)
        del request[name]
        assert error(request) == f"{name}: missing in the request {kind!r}; give null to leave a value open"


@pytest.mark.parametrize(
    ("request_", "told"),
    [
        ([], "request: [], expected an object"),
        (
            {"kind": "walk"},
            f"a request's kind is 'walk'; it must be one of {', '.join(KINDS)} or cancel",
        ),
        ({**whole("chat"), "max_new_tokens": True}, "max_new_tokens is True; it must be a whole number or null"),
        ({**whole("chat"), "max_new_tokens": 1.5}, "max_new_tokens is 1.5; it must be a whole number or null"),
        ({**whole("chat"), "max_new_tokens": 0}, "max_new_tokens is 0; it must be at least 1"),
        ({**whole("chat"), "run_ahead": 65}, "run_ahead is 65; it must be from 1 to 64"),
        ({**whole("chat"), "recoveries": -1}, "recoveries is -1; it must be at least 0"),
        ({**whole("chat"), "timeline": 1}, "timeline is 1; it must be true or false or null"),
        ({**whole("chat"), "device": "gpu"}, "device is 'gpu'; it must be 'webgpu', 'wasm', 'auto' or null"),
        ({**whole("chat"), "messages": None}, "messages is None; it must be an array"),
        ({**whole("generate"), "prompt_ids": [1, True]}, "prompt_ids[1] is True; it must be a whole number"),
        ({**whole("exec"), "files": {"a": 1}}, "files.a is 1; it must be a string"),
        ({**whole("exec"), "models": {"a": 1}}, "models.a is 1; it must be a string or an object"),
    ],
)
def test_another_request_is_refused(request_: object, told: str) -> None:
    assert error(request_) == told


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        (
            {"guidance": {"type": "json", "data": "{}"}},
            "guidance.type is 'json'; it must be 'json_schema', 'regex', 'lark_grammar' or 'ebnf'",
        ),
        ({"guidance": {"type": "regex", "data": 1}}, "guidance.data is 1; it must be a string"),
        ({"guidance": {"type": "regex"}}, "guidance.data: missing in guidance; give null to leave a value open"),
        ({"speculation": {"ngram_size": "3"}}, "speculation.ngram_size is '3'; it must be a whole number"),
        (
            {"speculation": {"ngram": 3}},
            "'speculation.ngram' is not a field of speculation; did you mean speculation.ngram_size? It has "
            "ngram_size, max_draft_tokens",
        ),
        ({"model": {**HUB, "revision": 3}}, "model.revision is 3; it must be a string or null"),
        (
            {"model": {"repository": "a/b", "hub": "h"}},
            "model.revision, model.token: missing in model; give null to leave",
        ),
    ],
)
def test_objects_inside_a_request_are_checked_too(changed: dict[str, Any], told: str) -> None:
    assert error({**whole("chat"), **changed}).startswith(told)


@pytest.mark.parametrize("kind", KINDS)
def test_an_unknown_field_is_refused_with_the_nearest_one(kind: str) -> None:
    known = ", ".join(fields_of(REQUESTS[kind]))
    assert (
        error({**whole(kind), "kin": 1})
        == f"'kin' is not a field of the request {kind!r}; did you mean kind? It has {known}"
    )
    assert error({**whole(kind), "?": 1}) == f"'?' is not a field of the request {kind!r}; it has {known}"


def test_a_misspelt_token_is_not_shown() -> None:
    model = {"repository": "a/b", "hub": "h", "revision": None, "token": None, "tokn": "secret"}
    told = error({**whole("plan"), "model": model})
    assert told.startswith("'model.tokn' is not a field of model; did you mean model.token?")
    assert "secret" not in told


def test_the_types_of_a_page_are_those_of_the_table() -> None:
    table = '''
class Model(TypedDict):
    model: ModelFolder
    """One line."""
    ids: NotRequired[list[int] | None]

class Load(Model):
    """Loads it."""

    kind: Literal["load", "unload"]
    search: dict[str, Any]

Request = Load | Model
'''
    wanted = """
export interface Model {
  /** One line. */
  model: ModelFolder;
  ids?: number[] | null;
}

/** Loads it. */
export interface Load extends Model {
  kind: "load" | "unload";
  search: Record<string, unknown>;
}

export type Request = Load | Model;
"""
    assert request_types(table).endswith(wanted)


def test_an_option_of_a_model_is_a_row_from_which_its_types_and_checks_come() -> None:
    table = '''
class OneOptions(TypedDict, total=False):
    """One."""

    few_bits: Annotated[str | None, Row(choices=("a", "b"), help="h")]
    """Which."""

class PageOptions(OneOptions, total=False):
    no_store: Annotated[bool, Row(default=False)]

class LoadOptions(PageOptions, total=False):
    passes: Annotated[Collection[str] | None, Row()]
'''
    wanted = """
/** One. */
export interface ModelOneOptions {
  /** Which. */
  fewBits?: "a" | "b";
}

export const ONE_KINDS = { fewBits: oneOf("a", "b") };

export interface ModelPageOptions extends ModelOneOptions {
  noStore?: boolean;
}

export const PAGE_KINDS = { ...ONE_KINDS, noStore: flag };
"""
    assert page_options(table).endswith(wanted)
    asked = """
/** One. */
export interface OneOptions {
  /** Which. */
  few_bits?: "a" | "b" | null;
}

export interface PageOptions extends OneOptions {
  no_store?: boolean | null;
}
"""
    assert request_types("", table).endswith(asked)


def test_an_option_of_a_run_is_a_row_and_a_class_says_who_takes_it() -> None:
    table = """
class TemplateOptions(TypedDict, total=False):
    my_tools: list[Tool] | None
    day: Annotated[int | None, Row(least=1)]
    extra: dict[str, Any] | None

class TalkOptions(TypedDict, total=False):
    session: str | None
"""
    wanted = """change that file.

import { fields, listOf, number, object, plain } from "./kinds";

export interface TemplateOptions {
  myTools?: readonly object[];
  day?: number;
  extra?: Record<string, unknown>;
}

export const TEMPLATE_KINDS = { myTools: listOf("objects", object), day: number, extra: fields({}, { others: plain }) };
"""
    assert page_options(table, prefix="").endswith(wanted)
    asked = """
export interface TemplateOptions {
  my_tools?: Tool[] | null;
  day?: number | null;
  extra?: Record<string, unknown> | null;
}

export interface TalkOptions {
  session?: string | null;
}
"""
    assert request_types("", table).endswith(asked)


def test_a_search_option_that_pages_have_comes_from_its_stage() -> None:
    stage = """
class TopA(StageOptions):
    options: ClassVar[tuple[Option, ...]] = (
        Option.real("top_a", "from 0 to 1", read, help="at least A", metavar="A", drawing=True, stated=True, page=True),
        Option.integer("random_seed", 0, help="draw with N", flag="seed", drawing=True, page=True),
        Option.integer("hidden", 0, help="of the command line"),
    )
"""
    wanted = """
/** The options of a run. */
export interface SearchOptions {
  /** At least `topA`. */
  topA?: number;
  /** Draw with `seed`. */
  seed?: number;
}

/** The parameters of completions; other servers of OpenAI's API have those that are not OpenAI's. */
export interface SearchParams {
  /** At least `top_a`. */
  top_a?: number | null;
  /** Draw with `seed`. */
  seed?: number | null;
}

/** The way in which a model's tokens are picked, by Python's names. */
export interface Picking {
  do_sample: boolean;
  top_a: number;
}

/** Python's names of the options. */
export const SEARCH_NAMES = { topA: "top_a", seed: "random_seed" } as const;

/** The options of the parameters. */
export const SEARCH_PARAMS = { top_a: "topA", seed: "seed" } as const;

/** A run with one of these is sampled. */
export const DRAWING = ["topA"] as const;
"""
    assert search_options("", stage).endswith(wanted)


def test_the_generated_search_options_are_those_of_the_stages() -> None:
    texts = [path.read_text(encoding="utf-8") for path in sorted(STAGES.glob("*.py"))]
    [written] = [line for line in search_options(*texts).splitlines() if "SEARCH_NAMES" in line]
    for option in STAGE_OPTIONS:
        assert (f': "{option.name}"' in written) is option.page, option.name
        assert not option.page or option.help
