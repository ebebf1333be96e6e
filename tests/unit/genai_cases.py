"""Calls of onnxruntime-genai's names, for its module and for capstan.genai alike: `SAME[name](module)`."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime_genai as native

__all__ = [
    *("ENDS", "FOLDER", "PROMPT", "SAME"),
    *("batch_by", "generate", "generator", "loaded", "params", "speculative", "tokenizer", "turns"),
]

ROOT = Path(__file__).parents[2]
FOLDER = str(ROOT / "tests/fixtures/nano-llama")
LORA = str(ROOT / "tests/fixtures/nano-lora")
TEMPLATE = (
    "{% for m in messages %}<{{m.role}}>{{m.content}}{% endfor %}"
    "{% if tools %}T{{tools}}{% endif %}{% if add_generation_prompt %}<a>{% endif %}"
)
TOOLS = '[{"type": "function", "function": {"parameters": {"b": 1, "a": "<"}, "name": "f"}}]'
TOOL = {
    "name": "get_weather",
    "description": "the weather 'now'",
    "parameters": {
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "where", "enum": ["Rome", "Oslo"]},
            "days": {"type": ["null", "integer"], "default": 3},
            "any": {"anyOf": [{"type": "string"}]},
            "none": {"type": ["null"]},
        },
        "required": ["city"],
        "additionalProperties": False,
    },
}
FORMS = [
    [{"type": "function", "function": TOOL}],
    [{"type": "tool", **TOOL}, {"type": "tool"}],
    [{"name": "exit", "parameters": {"now": {"type": "bool", "default": True, "values": ["a", 1.5]}}}],
    [{"type": "function", "function": {"name": "exit"}}],
    [],
]
"""Tools as OpenAI has them, the same without `function`, and as Phi-4 has them."""
PHI = (
    "{% for m in messages %}<|{{m.role}}|>{% if 'tools' in m and m['tools'] is not none %}"
    "{{ m['content'] + '<|tool|>' + m['tools'] + '<|/tool|>' }}{% else %}{{ m['content'] }}{% endif %}{% endfor %}"
)
HERMES = (
    "{% if tools %}{% for tool in tools %}{{ tool | tojson }}{% endfor %}{% endif %}"
    "{% for m in messages %}{{m.role}}{{m.content}}{% endfor %}"
)
HI = '[{"role": "user", "content": "hi"}]'
PROMPT = [299, 310, 10, 80, 281]
MANY_ENDS = json.dumps({"model": {"eos_token_id": [*range(440, 470), 472]}})
ENDS = '{"model": {"eos_token_id": 472}}'
"""An overlay that ends the greedy answer to PROMPT at its sixth token."""


@cache
def loaded(og: Any, overlay: str = "", folder: str = FOLDER) -> Any:
    config = og.Config(folder)
    if overlay:
        config.overlay(overlay)
    config.clear_providers()
    return og.Model(config)


def tokenizer(og: Any) -> Any:
    return og.Tokenizer(loaded(og))


def params(og: Any, overlay: str = "", **options: Any) -> Any:
    made = og.GeneratorParams(loaded(og, overlay))
    made.set_search_options(**options)
    return made


def generator(og: Any, tokens: Any = PROMPT, overlay: str = "", **options: Any) -> Any:
    made = og.Generator(loaded(og, overlay), params(og, overlay, **({"max_length": 32} | options)))
    if tokens is not None:
        made.append_tokens(tokens)
    return made


def asked(tools: Any) -> str:
    """Messages as the examples of the native package have them, with tools in the first one."""
    system = {"role": "system", "content": "You 'help' {people: 'all'}.", "tools": json.dumps(tools)}
    return json.dumps([system, {"role": "user", "content": "what's 'up', 'it' said"}])


def adapters(og: Any) -> Any:
    made = og.Adapters(loaded(og, folder=LORA))
    for name in ("first", "second"):
        made.load(f"{LORA}/{name}.onnx_adapter", name)
    return made


def adapted(og: Any, then: Callable[[Any, Any], Any] = lambda *_: None) -> Any:
    """The tokens of a generator with an adapter, the result of another action, and its tokens with a second adapter."""
    made = adapters(og)
    one = og.Generator(loaded(og, folder=LORA), og.GeneratorParams(loaded(og, folder=LORA)))
    one.set_active_adapter(made, "first")
    one.append_tokens(PROMPT)
    found = generate(one, 6)
    then(made, one)
    one.set_active_adapter(made, "second")
    return [found, generate(one, 6), one.get_sequence(0)]


def generate(one: Any, count: int = 100) -> Any:
    """At most so many tokens; what is at hand then."""
    for _ in range(count):
        if one.is_done():
            break
        one.generate_next_token()
    return one.get_sequence(0), one.get_next_tokens(), one.token_count(), one.is_done()


def speculative(og: Any, **options: Any) -> Any:
    """The options of speculation after these, and that a generator takes them."""
    made = params(og)
    made.set_speculative_options(**options)
    og.Generator(loaded(og), made)
    return made.get_speculative_options()


def speculating(og: Any, **options: Any) -> bool:
    """Whether a generator that speculates takes these search options."""
    made = params(og, **({"max_length": 32} | options))
    made.set_speculative_options(ngram_size=2)
    og.Generator(loaded(og), made)
    return True


def drawn(og: Any, **options: Any) -> list[int]:
    return list(generate(generator(og, do_sample=True, random_seed=1, **options), 8)[0])


def turns(og: Any, *settings: Callable[[Any], None], overlay: str = "", limit: int = 40) -> list[Any]:
    """A request with a turn for each setting; all events."""
    engine = og.Engine(loaded(og, overlay))
    buffer = engine.create_event_buffer(4)
    options = og.RequestOptions()
    options.set_max_session_tokens(limit)
    request = engine.create_request(options=options)
    found: list[Any] = [engine.has_pending_requests(), len(buffer), engine.max_draft_tokens_per_proposal()]
    for setting in settings:
        turn = og.TurnOptions(request)
        setting(turn)
        found.append(request.begin_turn(np.array(PROMPT, np.int32), turn))
        while engine.has_pending_requests():
            assert engine.run(buffer) is buffer
            found += [told(buffer[place]) for place in range(len(buffer))]
            assert all(buffer[place].request is request for place in range(len(buffer)))
    return found


def told(event: Any) -> list[Any]:
    usage = event.usage
    counts = [usage.prompt_tokens, usage.generated_tokens, usage.cached_prompt_tokens]
    last = [event.finish_reason.name, event.matched_stop_string_index, event.error_code.name]
    return [event.turn_id, event.token, int(event.flags), *last, counts]


def turn_with(og: Any, name: str, value: Any) -> list[Any]:
    def setting(turn: Any) -> None:
        turn.set_max_generated_tokens(2)
        getattr(turn, name)(value)

    return turns(og, setting)


def answered(og: Any, tokens: Any) -> Any:
    return generate(generator(og, tokens), 3)


def zeros(og: Any, kind: str) -> Any:
    return og.Tensor(np.zeros((2, 0, 3), kind)).as_numpy()


TEXTS = ["def fibonacci(n):", "class A", "import os"]


def batch(og: Any, count: int = 12, rows: int = 3, **options: Any) -> Any:
    """A batch of texts, padded by encode_batch: the sequences, and what was generated last."""
    one = generator(og, None, **({"batch_size": 3} | options))
    one.append_tokens(tokenizer(og).encode_batch(TEXTS))
    shown = [one.get_logits().shape, one.token_count()]
    generate(one, count)
    found = [one.get_sequence(row) for row in range(rows)]
    return [*shown, found, one.get_next_tokens(), one.is_done()]


def batch_by(og: Any, tokens: Any) -> Any:
    one = generator(og, None, batch_size=2)
    one.append_tokens(tokens)
    generate(one, 3)
    return one.get_sequence(0), one.get_sequence(1), one.get_next_tokens()


def beams(og: Any, **options: Any) -> Any:
    one = generator(og, **options)
    return [generate(one, 12), *(one.get_sequence(row) for row in range(options.get("num_return_sequences", 1)))]


def nothing(turn: Any) -> None: ...


def at_least_eight(turn: Any) -> None:
    turn.set_min_generated_tokens(8)
    turn.set_max_generated_tokens(9)


def forgotten(turn: Any) -> None:
    turn.set_repetition_penalty(1.5)
    turn.reset()


def short(turn: Any) -> None:
    turn.set_max_generated_tokens(3)


def two_requests(og: Any) -> list[Any]:
    """Two requests side by side, one of them cancelled."""
    engine = og.Engine(loaded(og, '{"engine": {"static_batching": {"max_batch_size": 4}}}' if og is native else ""))
    buffer = engine.create_event_buffer(4)
    first, second = engine.create_request(), engine.create_request()
    one = og.TurnOptions(first)
    one.set_max_generated_tokens(3)
    begun = [first.begin_turn(PROMPT, one), second.begin_turn([5, 6, 7, 8, 9])]
    found: list[Any] = []
    for run in range(6):
        engine.run(buffer)
        found += [(buffer[k].request is first, *told(buffer[k])) for k in range(len(buffer))]
        if run == 3:
            found.append([second.cancel_turn(begun[1]), second.cancel_turn(begun[1]), second.cancel_turn(7)])
    first.close()
    first.close()
    return [*found, engine.has_pending_requests(), begun]


def rewound_turns(og: Any) -> list[Any]:
    engine = og.Engine(loaded(og))
    buffer = engine.create_event_buffer(1)
    request = engine.create_request()
    found: list[Any] = []
    for prompt in (PROMPT, [7], None, [7]):
        if prompt is None:
            request.rewind_to_start_of_turn(2)
            continue
        turn = og.TurnOptions(request)
        turn.set_max_generated_tokens(2)
        found.append(request.begin_turn(prompt, turn))
        while engine.has_pending_requests():
            found.append(engine.run(buffer)[0].token)
    return found


def overlaid(og: Any, text: str) -> Any:
    options = params(og, text).get_search_options()
    return generate(generator(og, overlay=text, max_length=options["max_length"]), 3)[0], options


def logits_first(og: Any) -> Any:
    """The results of get_logits and get_input before and after a token."""
    one = generator(og)
    found = [one.get_logits(), one.get_next_tokens(), one.get_input("input_ids"), one.get_input("attention_mask")]
    one.generate_next_token()
    return [*found, one.get_next_tokens(), one.get_logits(), one.get_input("input_ids"), one.token_count()]


def forced(og: Any, shape: tuple[int, ...], kind: Any = np.float32) -> Any:
    one = generator(og)
    one.get_logits()
    values = np.full(512, -10, kind)
    values[7] = 5
    one.set_logits(values.reshape(shape))
    return generate(one, 3)


def rewound(og: Any, length: int, tokens: Any = None) -> Any:
    one = generator(og)
    before = generate(one)
    one.rewind_to(length)
    found = [before, one.token_count(), one.is_done()]
    if tokens is not None:
        one.append_tokens(tokens)
    else:
        found.append(one.get_next_tokens())
    return [*found, generate(one, 5)]


def behind_the_end(og: Any) -> Any:
    """Tokens asked for after an end-of-sequence token."""
    one = generator(og, overlay=ENDS)
    ended = generate(one)
    one.generate_next_token()
    return ended, one.get_next_tokens(), one.token_count(), one.is_done(), one.get_sequence(0)


def named(og: Any) -> Any:
    found = og.NamedTensors()
    found["a"] = np.array([[1, 2]], np.int32)
    found["b"] = og.Tensor(np.array([1.5], np.float32))
    del found["nothing"]
    told = [sorted(found.keys()), len(found), "a" in found, "c" in found, found["a"].as_numpy(), found["b"].as_numpy()]
    del found["a"]
    return [*told, found.keys()]


def decoded_batch(og: Any) -> Any:
    return tokenizer(og).decode_batch(og.Tensor(np.array([PROMPT, PROMPT[::-1]], np.int32)))


def token_ids(og: Any) -> Any:
    return [tokenizer(og).to_token_id(text) for text in ("a", "nothing at all", "", "def")]


def streamed(og: Any) -> list[str]:
    stream = tokenizer(og).create_stream()
    return [stream.decode(token) for token in [*PROMPT, np.int32(333), 344]]


def copied(og: Any) -> Any:
    values = np.arange(6, dtype=np.int64).reshape(2, 3)
    made = og.Tensor(values.T.copy())
    values[:] = 0
    made.as_numpy()[:] = 9
    return made.as_numpy(), made.shape()


def changed(og: Any, **options: Any) -> Any:
    return params(og, **options).get_search_options()


def terminated(og: Any, value: str) -> Any:
    one = generator(og)
    one.set_runtime_option("terminate_session", value)
    return generate(one, 2)


def from_memory(og: Any) -> Any:
    config = og.Config(FOLDER)
    config.clear_providers()
    graph, another = (Path(FOLDER) / "model.onnx").read_bytes(), b"1"  # the native package keeps no copy of its own
    config.add_model_data("model.onnx", graph)
    config.add_model_data("another", another)
    config.remove_model_data("another")
    return og.Model(config).type


def provided(og: Any, *names: str) -> Any:
    config = og.Config(FOLDER)
    config.clear_providers()
    for name in names:
        config.append_provider(name)
    return og.Model(config).device_type


def hardware(og: Any) -> None:
    config = og.Config(FOLDER)
    for what in ("device_type", "device_id", "vendor_id"):
        getattr(config, f"clear_decoder_provider_options_hardware_{what}")("cpu")


def members(kind: Any) -> list[Any]:
    return sorted(kind.__members__.items())


def guided(og: Any, kind: str) -> Any:
    made = params(og)
    made.set_guidance(kind, "a+")
    return made


def unused(one: Any) -> Any:
    return one.get_next_tokens(), one.get_sequence(0), one.token_count(), one.is_done()


def appended_after_eos(og: Any) -> Any:
    one = generator(og, overlay=ENDS)
    generate(one)
    one.append_tokens([5, 6])
    return one.is_done(), generate(one, 4)


SAME: dict[str, Callable[[Any], Any]] = {
    "Model.type": lambda og: (loaded(og).type, loaded(og).device_type),
    "Model()": lambda og: og.Model(None),
    "Model() of a path": lambda og: og.Model(Path(FOLDER)),
    "Model() of nothing": lambda og: og.Model("/nothing"),
    "Model.create_multimodal_processor": lambda og: loaded(og).create_multimodal_processor(),
    "Model.create_streaming_processor": lambda og: loaded(og).create_streaming_processor(),
    "Config()": lambda og: og.Config(5),
    "Config.append_provider": lambda og: provided(og, "CPU"),
    "Config.append_provider cpu": lambda og: provided(og, "cpu"),
    "Config.append_provider unknown": lambda og: provided(og, "xyz"),
    "Config.append_provider cuda": lambda og: provided(og, "cuda"),
    "Config.set_provider_option": lambda og: og.Config(FOLDER).set_provider_option("webgpu", "a", "b"),
    "Config.clear_decoder_provider_options": hardware,
    "Config.add_model_data": from_memory,
    "Config.add_model_data text": lambda og: og.Config(FOLDER).add_model_data("model.onnx", "text"),
    "Config.remove_model_data": lambda og: og.Config(FOLDER).remove_model_data("nothing"),
    "Config.from_package_ep": lambda og: og.Config.from_package_ep(FOLDER, ""),
    "Config.overlay max_length": lambda og: overlaid(og, '{"search": {"max_length": 20, "top_k": 5}}'),
    "Config.overlay penalty": lambda og: overlaid(og, '{"search": {"repetition_penalty": 1.5}}'),
    "Config.overlay buffer": lambda og: overlaid(og, '{"search": {"past_present_share_buffer": false}}'),
    "Config.overlay top_p": lambda og: overlaid(og, '{"search": {"top_p": 0.0, "temperature": 0.0}}'),
    "Config.overlay many eos": lambda og: generate(generator(og, overlay=MANY_ENDS)),
    "Config.overlay eos": lambda og: generate(generator(og, overlay=ENDS)),
    "Config.overlay null": lambda og: overlaid(og, "null"),
    "Config.overlay other": lambda og: overlaid(og, '{"other": 1}'),
    "Config.overlay text": lambda og: og.Config(FOLDER).overlay("{"),
    "Config.overlay array": lambda og: og.Config(FOLDER).overlay("[]"),
    "Config.overlay kind": lambda og: overlaid(og, '{"search": {"top_k": "x"}}'),
    "Config.overlay fraction": lambda og: overlaid(og, '{"search": {"top_k": 1.5}}'),
    "Config.overlay unknown": lambda og: overlaid(og, '{"search": {"zzz": 1}}'),
    "Config.overlay long": lambda og: overlaid(og, '{"search": {"max_length": 2000}}'),
    "Tokenizer.encode": lambda og: tokenizer(og).encode("def fibonacci(n):"),
    "Tokenizer.encode ''": lambda og: tokenizer(og).encode(""),
    "Tokenizer.encode 5": lambda og: tokenizer(og).encode(5),
    "Tokenizer.encode surrogate": lambda og: tokenizer(og).encode("\ud800"),
    "Tokenizer() of a path": lambda og: og.Tokenizer(FOLDER).encode("def f"),
    "Tokenizer() of a Config": lambda og: og.Tokenizer(og.Config(FOLDER)).encode("def f"),
    "Tokenizer() of nothing": lambda og: og.Tokenizer("/nothing"),
    "Tokenizer() of None": lambda og: og.Tokenizer(None),
    "Tokenizer.encode_batch": lambda og: tokenizer(og).encode_batch(["def fibonacci", "a", ""]).as_numpy(),
    "Tokenizer.encode_batch shape": lambda og: tokenizer(og).encode_batch([""]).shape(),
    "Tokenizer.encode_batch []": lambda og: tokenizer(og).encode_batch([]),
    "Tokenizer.encode_batch text": lambda og: tokenizer(og).encode_batch("abc"),
    "Tokenizer.decode": lambda og: tokenizer(og).decode(PROMPT),
    "Tokenizer.decode array": lambda og: tokenizer(og).decode(np.array(PROMPT, np.int32)),
    "Tokenizer.decode rows": lambda og: tokenizer(og).decode([PROMPT]),
    "Tokenizer.decode number": lambda og: tokenizer(og).decode(299),
    "Tokenizer.decode []": lambda og: tokenizer(og).decode([]),
    "Tokenizer.decode half a character": lambda og: tokenizer(og).decode(tokenizer(og).encode("é")[:1]),
    "Tokenizer.decode_batch": decoded_batch,
    "Tokenizer.decode_batch array": lambda og: tokenizer(og).decode_batch(np.array([PROMPT])),
    "Tokenizer.decode_batch row": lambda og: tokenizer(og).decode_batch(og.Tensor(np.array(PROMPT))),
    "Tokenizer.to_token_id": token_ids,
    "Tokenizer.bos_token_id": lambda og: tokenizer(og).bos_token_id,
    "Tokenizer.eos_token_ids": lambda og: tokenizer(og).eos_token_ids,
    "Tokenizer.pad_token_id": lambda og: tokenizer(og).pad_token_id,
    "Tokenizer.bot_token_id": lambda og: tokenizer(og).bot_token_id,
    "Tokenizer.eot_token_id": lambda og: tokenizer(og).eot_token_id,
    "Tokenizer.bor_token_id": lambda og: tokenizer(og).bor_token_id,
    "Tokenizer.eor_token_id": lambda og: tokenizer(og).eor_token_id,
    "Tokenizer.update_options unknown": lambda og: tokenizer(og).update_options(foo="x"),
    "Tokenizer.apply_chat_template": lambda og: tokenizer(og).apply_chat_template(HI, template_str=TEMPLATE),
    "Tokenizer.apply_chat_template tools": lambda og: [
        tokenizer(og).apply_chat_template(HI, template_str=TEMPLATE, tools=tools, add_generation_prompt=False)
        for tools in (None, "", "[]", '[{"type": "function"}]', TOOLS)
    ],
    "Tokenizer.apply_chat_template functions": lambda og: [
        tokenizer(og).apply_chat_template(HI, template_str=template, tools=TOOLS)
        for template in (
            "{% for tool in tools %}{{ tool|tojson }}{% endfor %}",
            "{{ tools | tojson }}",
            "{% for tool in tools %}{{ tool.function.name }}{% endfor %}",
            "{% for one in tools %}{{ one | tojson }}{% endfor %}",
        )
    ],
    "Tokenizer.apply_chat_template forms of tools": lambda og: [
        tokenizer(og).apply_chat_template(HI, template_str=template, tools=json.dumps(tools))
        for tools in FORMS
        for template in (TEMPLATE, PHI, HERMES)
    ],
    "Tokenizer.apply_chat_template tools in a message": lambda og: [
        tokenizer(og).apply_chat_template(asked(tools), template_str=template, tools=other)
        for tools in FORMS
        for template in (PHI, HERMES, "{{ messages[0].tools | length }}{{ messages[0].tools is string }}")
        for other in ("", json.dumps(FORMS[0]))
    ],
    "Tokenizer.apply_chat_template no tools in a message": lambda og: tokenizer(og).apply_chat_template(
        '[{"role": "system", "content": "S", "tools": ""}]', template_str=PHI
    ),
    "Tokenizer.apply_chat_template of no JSON": lambda og: tokenizer(og).apply_chat_template(
        "{", template_str=TEMPLATE
    ),
    "Tokenizer.apply_chat_template wrong tools": lambda og: tokenizer(og).apply_chat_template(
        HI, template_str=TEMPLATE, tools="{"
    ),
    "Tokenizer.apply_chat_template none": lambda og: tokenizer(og).apply_chat_template(HI),
    "Tokenizer.apply_chat_template position": lambda og: tokenizer(og).apply_chat_template(HI, TEMPLATE),
    "Tokenizer.apply_chat_template list": lambda og: tokenizer(og).apply_chat_template([], template_str=TEMPLATE),
    "Tokenizer.apply_chat_template wrong": lambda og: tokenizer(og).apply_chat_template(HI, template_str="{% for %}"),
    "TokenizerStream.decode": streamed,
    "TokenizerStream.decode 5.0": lambda og: tokenizer(og).create_stream().decode(5.0),
    "TokenizerStream()": lambda og: og.TokenizerStream(),
    "GeneratorParams()": lambda og: og.GeneratorParams(None),
    "GeneratorParams.get_search_options": lambda og: changed(og),
    "GeneratorParams.get_speculative_options": lambda og: params(og).get_speculative_options(),
    "GeneratorParams.set_search_options position": lambda og: params(og).set_search_options({"top_k": 1}),
    **{
        f"GeneratorParams.set_search_options {name}={value!r}": partial(changed, **{name: value})
        for name, value in [
            *(("temperature", value) for value in (0, 0.7, -1, "x", True, None)),
            *(("top_p", value) for value in (0.0, 1.5, -0.1, 2)),
            *(("top_k", value) for value in (5.0, 5.5, -1, 0, True, "5", None)),
            *(("chunk_size", value) for value in (0, -1, 2.5, 64)),
            *(("max_length", value) for value in (10.0, 10.5, 0, -1, 100000)),
            *(("batch_size", value) for value in (0, 2.0)),
            *(("do_sample", value) for value in (True, 1, "true", 0.0)),
            *(("early_stopping", value) for value in (False, 1)),
            *(("random_seed", value) for value in (-5, 1.5)),
            *(("past_present_share_buffer", value) for value in (False, 1)),
            *(("repetition_penalty", 1.1), ("min_length", 5.0), ("num_beams", 2), ("length_penalty", 0.5)),
            *(("foo", 1), ("max_new_tokens", 3), ("eos_token_id", 5)),
        ]
    },
    "GeneratorParams.set_speculative_options": lambda og: params(og).set_speculative_options(max_draft_tokens=2),
    "GeneratorParams.set_speculative_options unknown": lambda og: params(og).set_speculative_options(foo=2),
    **{
        f"GeneratorParams.set_speculative_options {name}={value!r}": partial(speculative, **{name: value})
        for name, value in [
            *(("ngram_size", value) for value in (0, 1, 2, 16, 17, -1, 2.5, 3.0, True, "2")),
            *(("max_draft_tokens", value) for value in (0, 1, 16.0, 17, False)),
            *(("min_adaptive_k", value) for value in (0, 1, 4, 16, 17, -1)),
            *(("cooldown", value) for value in (True, 1)),
            *(("ngram_chained_lookup", value) for value in (False, True, 1)),
        ]
    },
    **{
        f"Generator() speculating {name}={value!r}": partial(speculating, **{name: value})
        for name, value in [
            *(("num_beams", 2), ("batch_size", 2), ("repetition_penalty", 1.2), ("min_length", 10)),
            *(("no_repeat_ngram_size", 2), ("do_sample", True)),
        ]
    },
    "GeneratorParams.set_guidance unknown": lambda og: og.Generator(loaded(og), guided(og, "foo")),
    "Generator()": lambda og: og.Generator(loaded(og)),
    "Generator() by name": lambda og: og.Generator(model=loaded(og), params=params(og)),
    "Generator() unused": lambda og: unused(generator(og, None)),
    **{
        f"Generator() {options}": lambda og, options=options: generator(og, None, **options)  # type: ignore[misc]
        for options in ({"max_length": 1000}, {"max_length": 0}, {"batch_size": 0}, {"num_return_sequences": 0})
    },
    **{
        f"Generator() drawing {options}": partial(generator, tokens=None, do_sample=True, **options)
        for options in ({"top_p": 1.5}, {"top_p": -0.1}, {"top_k": -1})
    },
    "Generator.generate_next_token": lambda og: generate(generator(og)),
    "Generator.generate_next_token temperature 0": lambda og: drawn(og, temperature=0),
    "Generator.generate_next_token top_k 1": lambda og: drawn(og, top_k=1),
    "Generator.generate_next_token chunk_size": lambda og: generate(generator(og, chunk_size=2)),
    "Generator.generate_next_token at the end": lambda og: generator(og, [5] * 32).generate_next_token(),
    "Generator.is_done of a full prompt": lambda og: generator(og, [5] * 32).is_done(),
    "Generator.generate_next_token after eos": behind_the_end,
    "Generator.append_tokens after eos": lambda og: appended_after_eos(og),
    **{
        f"Generator.append_tokens {tokens!r}": partial(answered, tokens=tokens)
        for tokens in (5, [5], [[5, 6, 7]], np.array([5, 6]), np.array([[5, 6]], np.int64), (5, 6), [np.int64(5)])
    },
    **{
        f"Generator.append_tokens wrong {tokens!r:.20}": partial(generator, tokens=tokens)
        for tokens in ([], "abc", b"ab", [[1, 2], [3]], [2**40], [99999], [1] * 33, np.array([], np.int32))
    },
    "Generator.append_tokens None": lambda og: generator(og, None).append_tokens(None),
    "Generator.append_tokens of a Tensor": lambda og: generate(
        generator(og, og.Tensor(np.array([PROMPT], np.int32))), 3
    ),
    "Generator.append_tokens of a batch": lambda og: answered(og, tokenizer(og).encode_batch(["def f(n)"])),
    "Generator, batch": batch,
    "Generator, batch that ends": partial(batch, overlay=ENDS, count=40),
    "Generator, batch of a list": partial(batch_by, tokens=[[5, 6, 7], [8, 9, 10]]),
    "Generator, batch of an array": partial(batch_by, tokens=np.array([[5, 6, 7], [8, 9, 10]], np.int32)),
    "Generator, batch in one list": partial(batch_by, tokens=[5, 6, 7, 8, 9, 10]),
    "Generator, beams": partial(beams, num_beams=3),
    "Generator, beams returned": partial(beams, num_beams=3, num_return_sequences=2, length_penalty=0.5),
    "Generator, too many sequences": partial(beams, num_beams=2, num_return_sequences=3),
    "Generator.get_logits": logits_first,
    "Generator.set_logits": lambda og: [forced(og, shape) for shape in ((512,), (1, 512), (1, 1, 512))],
    "Generator.set_logits float64": lambda og: forced(og, (512,), np.float64),
    "Generator.set_logits short": lambda og: generator(og).set_logits(np.zeros(5, np.float32)),
    "Generator.get_output": lambda og: generator(og).get_output("logits")[:, -1],
    "Generator.get_output unknown": lambda og: generator(og).get_output("nothing"),
    "Generator.get_input unknown": lambda og: generator(og).get_input("nothing"),
    **{f"Generator.rewind_to {length}": partial(rewound, length=length) for length in (4, 5, 20, 30, 32)},
    **{f"Generator.rewind_to {length}, append": partial(rewound, length=length, tokens=[3]) for length in (0, 4, 20)},
    "Generator.rewind_to 0": lambda og: rewound(og, 0),
    "Generator.rewind_to 33": lambda og: rewound(og, 33),
    "Generator.rewind_to -1": lambda og: rewound(og, -1),
    "Generator.rewind_to 3.0": lambda og: rewound(og, 3.0),  # type: ignore[arg-type]
    "Generator.snapshot_state": lambda og: generator(og).snapshot_state(),
    "Generator.set_runtime_option": lambda og: terminated(og, "0"),
    "Generator.set_runtime_option 1": lambda og: terminated(og, "1"),
    "Generator.set_runtime_option x": lambda og: terminated(og, "x"),
    "Generator.set_inputs": lambda og: generator(og, None).set_inputs(og.NamedTensors()),
    "Generator.set_active_adapter": lambda og: generator(og).set_active_adapter(og.Adapters(loaded(og)), "x"),
    "Generator.get_speculative_stats": lambda og: generator(og).get_speculative_stats(),
    "Adapters.load": lambda og: og.Adapters(loaded(og)).load("/nothing", "a"),
    "Adapters.unload": lambda og: og.Adapters(loaded(og)).unload("a"),
    "Adapters": adapted,
    "Adapters.load twice": lambda og: [adapters(og).load(f"{LORA}/first.onnx_adapter", "first")],
    "Adapters.load of another file": lambda og: og.Adapters(loaded(og, folder=LORA)).load(f"{LORA}/model.onnx", "a"),
    "Adapters.load 5": lambda og: adapters(og).load(5, "a"),
    "Adapters()": lambda og: og.Adapters(),
    "Adapters(None)": lambda og: og.Adapters(None),
    "Adapters.unload in use": lambda og: adapted(og, lambda made, _: made.unload("first")),
    "Adapters.unload twice": lambda og: [made.unload("second") for made in [adapters(og)] * 2],
    "Generator.set_active_adapter unknown": lambda og: adapted(og, lambda made, one: one.set_active_adapter(made, "x")),
    "Generator.set_active_adapter None": lambda og: generator(og).set_active_adapter(None, "x"),
    "Generator.set_active_adapter of others": lambda og: adapted(
        og, lambda _, one: one.set_active_adapter(adapters(og), "first")
    ),
    "Tensor": copied,
    **{
        f"Tensor of {kind}": partial(zeros, kind=kind)
        for kind in (
            "float16",
            "float64",
            "int8",
            "uint8",
            "int16",
            "uint16",
            "uint32",
            "uint64",
            "bool",
            "complex64",
            "U3",
        )
    },
    "Tensor of a list": lambda og: og.Tensor([1]),
    "Tensor of a number": lambda og: og.Tensor(np.array(5)).shape(),
    "NamedTensors": named,
    "NamedTensors.__getitem__": lambda og: og.NamedTensors()["a"],
    "NamedTensors.__setitem__": lambda og: og.NamedTensors().__setitem__("a", [1]),
    "Images()": lambda og: og.Images(),
    "Audios()": lambda og: og.Audios(),
    "Images.open": lambda og: og.Images.open("/nothing"),
    "Audios.open": lambda og: og.Audios.open("/nothing"),
    "MultiModalProcessor()": lambda og: og.MultiModalProcessor(),
    "StreamingProcessor()": lambda og: og.StreamingProcessor(loaded(og)),
    "MtpGenerator()": lambda og: og.MtpGenerator(loaded(og), loaded(og), params(og)),
    "disable_telemetry_events": lambda og: og.disable_telemetry_events(),
    "set_log_options": lambda og: og.set_log_options(enabled=False, filename=""),
    "set_log_options unknown": lambda og: og.set_log_options(foo=False),
    "set_log_options 1": lambda og: og.set_log_options(enabled=1),
    "set_log_callback": lambda og: og.set_log_callback(None),
    "set_log_callback 5": lambda og: og.set_log_callback(5),
    "is_cuda_available": lambda og: (og.is_cuda_available(), og.is_dml_available()),
    "Engine": lambda og: turns(og, nothing),
    "Engine, turns that are cut": lambda og: turns(og, short, short),
    "Engine, turns that end": lambda og: turns(og, nothing, short, overlay=ENDS),
    "Engine, sessions that end": lambda og: turns(og, nothing, limit=8),
    "Engine, sessions that are full": lambda og: turns(og, nothing, limit=5),
    "Engine, min_generated_tokens": lambda og: turns(og, at_least_eight, overlay=ENDS),
    "Engine, repetition_penalty": lambda og: turns(og, lambda turn: turn.set_repetition_penalty(1.5)),
    "Engine, reset": lambda og: turns(og, forgotten),
    **{
        f"TurnOptions.{name}({value})": partial(turn_with, name=name, value=value)
        for name, value in [
            *(("set_temperature", 0.0), ("set_temperature", -1.0), ("set_top_p", 2.0), ("set_top_k", -1)),
            *(("set_top_k", 1), ("set_repetition_penalty", 0.0), ("set_do_sample", False), ("set_seed", -1)),
            *(("set_stop_strings", [""]), ("set_stop_strings", []), ("set_stop_strings", "abc")),
            *(("set_max_generated_tokens", -1), ("set_min_generated_tokens", -1), ("set_no_repeat_ngram_size", 0)),
        ]
    },
    "TurnOptions()": lambda og: og.TurnOptions(),
    "Request()": lambda og: og.Request(),
    "Request.begin_turn []": lambda og: og.Engine(loaded(og)).create_request().begin_turn([]),
    "Request.cancel_turn": lambda og: og.Engine(loaded(og)).create_request().cancel_turn(1),
    "Request.rewind_to_start_of_turn": rewound_turns,
    "Request.set_draft_tokens": lambda og: og.Engine(loaded(og)).create_request().set_draft_tokens([1]),
    "Engine, two requests": two_requests,
    "Engine.run None": lambda og: og.Engine(loaded(og)).run(None),
    "Engine.get_speculative_stats": lambda og: og.Engine(loaded(og)).get_speculative_stats(),
    "EngineEventBuffer": lambda og: og.Engine(loaded(og)).create_event_buffer(2)[0],
    "RequestOptions": lambda og: og.RequestOptions().set_max_session_tokens(-1),
    "FinishReason": lambda og: [
        (name, int(member), member.name, str(member)) for name, member in members(og.FinishReason)
    ],
    "Engine, another's buffer": lambda og: og.Engine(loaded(og)).run(og.Engine(loaded(og)).create_event_buffer(1)),
    "EngineErrorCode": lambda og: [(name, int(member), str(member)) for name, member in members(og.EngineErrorCode)],
    "EngineEventFlags": lambda og: [(name, int(member), member.value) for name, member in members(og.EngineEventFlags)],
    "EngineEventFlags or": lambda og: int(og.EngineEventFlags.TOKEN | og.EngineEventFlags.FAILED),
    "EngineEventFlags and": lambda og: int(og.EngineEventFlags.TOKEN & og.EngineEventFlags.FAILED),
    "__version__": lambda og: og.__version__,
}
