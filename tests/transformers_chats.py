"""Conversations by transformers: the ids of two turns, for tokenizers that treat a text's beginning in their own ways,
and the prompts of templates by name, of keys without a value, of a template's own variables and of continued answers.

The answers are in fixtures/transformers_chats.json. These commands wrote them:

    python3 -m venv VENV && VENV/bin/pip install transformers==5.24.0 tokenizers==0.23.3
    VENV/bin/python -m tests.transformers_chats
"""

from __future__ import annotations

import json
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

__all__ = ["CALLS", "CONTINUED", "TEMPLATES", "TOKENIZERS", "answered", "answers", "asked"]

ANSWERS = Path(__file__).with_name("fixtures") / "transformers_chats.json"
LETTERS = "HiGodaywhtsenuSINT[]/.,!?"
MERGED = ("▁G", "▁Go", "oo", "▁d", "ay", "▁day", "▁w", "▁H", "▁Hi", "IN", "ST", "INST", "[INST", "▁[", "▁[INST", "▁[/")
BYTE_MERGES = tuple(token.replace("▁", "Ġ") for token in MERGED)
SPECIAL = ("<unk>", "<s>", "</s>")


def bpe(space: str, merged: tuple[str, ...], extra: tuple[str, ...], **parts: Any) -> dict[str, Any]:
    """A BPE tokenizer.json over a few letters."""
    tokens = [*SPECIAL, *extra, *dict.fromkeys((space, *LETTERS)), *merged]
    vocabulary = {token: place for place, token in enumerate(tokens)}

    def halves(token: str) -> list[str]:
        cut = next(cut for cut in range(len(token) - 1, 0, -1) if {token[:cut], token[cut:]} <= vocabulary.keys())
        return [token[:cut], token[cut:]]

    model = {"type": "BPE", "unk_token": "<unk>", "fuse_unk": True, "byte_fallback": bool(extra)}
    added = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0",
        "added_tokens": [{"id": place, "content": token, **added} for place, token in enumerate(SPECIAL)],
        "normalizer": None,
        "pre_tokenizer": None,
        "post_processor": None,
        **parts,
        "model": {**model, "vocab": vocabulary, "merges": [halves(token) for token in merged]},
    }


def prepending() -> dict[str, Any]:
    """As Llama 2's and Mistral's: a normalizer puts a space before a text."""
    steps = [{"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]
    back = [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        *({"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}),
    ]
    return bpe(
        "▁",
        MERGED,
        tuple(f"<0x{byte:02X}>" for byte in (0x0A, 0x0D)),
        normalizer={"type": "Sequence", "normalizers": steps},
        decoder={"type": "Sequence", "decoders": back},
    )


def metaspace(scheme: str, split: bool) -> dict[str, Any]:
    part = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": split}
    return bpe("▁", MERGED, ("<0x0A>", "<0x0D>"), pre_tokenizer=part, decoder=part)


def byte_level(prefix: bool) -> dict[str, Any]:
    part = {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": True, "use_regex": True}
    return bpe("Ġ", BYTE_MERGES, (), pre_tokenizer=part, decoder=part)


TOKENIZERS = {
    "prepend": prepending(),
    **{
        f"metaspace {scheme}{' split' * split}": metaspace(scheme, split)
        for scheme in ("first", "always", "never")
        for split in (False, True)
    },
    **{f"byte level{' with a prefix' * prefix}": byte_level(prefix) for prefix in (False, True)},
}
EACH = "{%% for m in messages %%}{%% if m.role == 'user' %%}%s{%% else %%}%s{%% endif %%}{%% endfor %%}"
TEMPLATES = {
    "Mistral's": "{{ bos_token }}" + EACH % ("{{ '[INST] ' + m.content + ' [/INST]' }}", "{{ m.content + eos_token }}"),
    "Mistral's with a trim": "{{ bos_token }}"
    + EACH % ("[INST] {{ m.content }} [/INST]", "{{ ' ' + m.content | trim + eos_token }}"),
    "Llama 2's": EACH
    % (
        "{{ bos_token + '[INST] ' + m.content.strip() + ' [/INST]' }}",
        "{{ ' ' + m.content.strip() + ' ' + eos_token }}",
    ),
}
ASKED = ("Hi, who is it?", "So, what day?")
ANSWER = "Good day, Hi!"
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}
USER = {"role": "user", "content": "Hi"}
CALLED = {"type": "function", "id": "1", "function": {"name": "weather", "arguments": {"city": "Köln"}}}
SHOWN = (
    "{% for m in messages %}{{ m.role }}:{{ m.content }}:{{ m.get('content', 'none') }}:{{ m.content is none }}:"
    "{{ 'tool_calls' in m }}:{{ m.tool_calls | tojson if m.tool_calls }}:{{ m.name is defined }};{% endfor %}"
)
NAMED = [{"name": name, "template": f"{name} {{{{ tools is none }}}}"} for name in ("default", "tool_use", "rag")]
ONLY_TOOLS = [each for each in NAMED if each["name"] != "default"]
OPTIONS = "{{ enable_thinking }} {{ reasoning_effort | d('no') }} {{ (budget or 0) + 1 }} {{ bos_token }}"


def call(template: Any, *messages: Any, tools: Any = None, files: Any = (), **variables: Any) -> dict[str, Any]:
    """A call of apply_chat_template; `template` is tokenizer_config.json's, `files` are templates by their names."""
    given = {"messages": list(messages or [USER]), "tools": tools, **variables}
    return {"template": template, "files": dict(files), "given": given}


JINJA = {"chat_template.jinja": "the file {{ tools is none }}"}
MORE = {f"additional_chat_templates/{name}.jinja": f"{name} of a file" for name in ("tool_use", "rag")}
CALLS = [
    *(call(NAMED, tools=tools) for tools in (None, [], [TOOL])),
    *(call(ONLY_TOOLS, tools=tools) for tools in (None, [TOOL])),
    *(call(NAMED, tools=[TOOL], chat_template=name) for name in ("rag", "default", "tool_use", "{{ 1 }}")),
    *(call(NAMED, tools=tools, files=JINJA) for tools in (None, [TOOL])),
    *(call(None, tools=tools, files={**JINJA, **MORE}) for tools in (None, [TOOL])),
    *(call(NAMED[0]["template"], tools=tools, files=MORE) for tools in (None, [TOOL])),
    call(None, files={**JINJA, **MORE}, chat_template="rag"),
    call(SHOWN, USER, {"role": "assistant", "content": None, "tool_calls": [CALLED], "name": None}),
    call(SHOWN, {"role": "assistant", "content": "", "tool_calls": None}, {"role": "user", "content": ""}),
    call("{{ messages[0].content + '|' }}", {"role": "assistant", "content": None, "tool_calls": [CALLED]}),
    call(
        "{{ messages[0].tool_calls[0].function | tojson }}", {"role": "assistant", "tool_calls": [CALLED | {"x": None}]}
    ),
    call(OPTIONS),
    call(OPTIONS, enable_thinking=False, reasoning_effort="low", budget=3),
    call(OPTIONS, enable_thinking=True, bos_token="<b>"),
]


CHATML = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
TRIMMED = CHATML.replace("m.content", "m.content | trim")
PARTS = CHATML.replace("{{ m.content }}", "{% for part in m.content %}{{ part.text }}{% endfor %}")
SAID = [USER, {"role": "assistant", "content": "Good day, "}]
IN_PARTS = [{"role": each["role"], "content": [{"type": "text", "text": each["content"]}]} for each in SAID]
CONTINUED = [
    *(call(template, *SAID) for template in (*TEMPLATES.values(), CHATML, TRIMMED)),
    *(call(CHATML, USER, {"role": "assistant", "content": text}) for text in ("", "<think>\nHm", "Good <|im_end|>")),
    call(PARTS, *IN_PARTS),
    call("{{ messages[0].content }}", *SAID),
]
"""Calls whose answer continues the last message."""


def asked(given: dict[str, Any]) -> tuple[list[Any], list[Any] | None, str | None, dict[str, Any]]:
    """The messages, tools, template and variables of a call."""
    rest = dict(given)
    return rest.pop("messages"), rest.pop("tools"), rest.pop("chat_template", None), rest


@cache
def answers() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(ANSWERS.read_text())
    return found


def answered() -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Each call with transformers' answer to it: its text, or that it is an error."""
    return [*zip(CALLS, answers()["calls"], strict=True)]


def two_turns(content: dict[str, Any], template: str) -> dict[str, Any]:
    """The ids of a prompt, those of an answer to it with its text, and those of the next prompt."""
    tokenizer = loaded(content, template, {})

    def prompt(*messages: tuple[str, str]) -> list[int]:
        told = [{"role": role, "content": text} for role, text in messages]
        return list(tokenizer.apply_chat_template(told, add_generation_prompt=True, return_dict=False))

    first = prompt(("user", ASKED[0]))
    whole = prompt(("user", ASKED[0]), ("assistant", f" {ANSWER}"))
    assert whole[: len(first)] == first
    end = len(whole) - 1 - whole[::-1].index(SPECIAL.index("</s>"))
    shown = tokenizer.decode(first, skip_special_tokens=True)
    said = tokenizer.decode(whole[:end], skip_special_tokens=True).removeprefix(shown)
    second = prompt(("user", ASKED[0]), ("assistant", said), ("user", ASKED[1]))
    return {"first": first, "answer": whole[len(first) : end], "said": said, "second": second}


def loaded(content: dict[str, Any], template: Any, files: dict[str, str]) -> Any:
    """transformers' tokenizer of a folder with these files."""
    from transformers import PreTrainedTokenizerFast

    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
    }
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "tokenizer.json").write_text(json.dumps(content))
        (folder / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": template}))
        for path, text in files.items():
            (folder / path).parent.mkdir(exist_ok=True)
            (folder / path).write_text(text)
        return PreTrainedTokenizerFast.from_pretrained(folder)


def rendered(template: Any, files: dict[str, str], given: dict[str, Any], continues: bool = False) -> dict[str, Any]:
    try:
        messages, tools, named, variables = asked(given)
        tokenizer = loaded(TOKENIZERS["prepend"], template, files)
        way = "continue_final_message" if continues else "add_generation_prompt"
        options = {"tokenize": False, way: True, "chat_template": named}
        return {"text": tokenizer.apply_chat_template(messages, tools=tools, **options, **variables)}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"[:100]}


def main() -> None:
    import tokenizers
    import transformers

    found = {
        "versions": {"transformers": transformers.__version__, "tokenizers": tokenizers.__version__},
        "turns": {
            tokenizer: {name: two_turns(content, template) for name, template in TEMPLATES.items()}
            for tokenizer, content in TOKENIZERS.items()
        },
        "calls": [rendered(**each) for each in CALLS],
        "continued": [rendered(**each, continues=True) for each in CONTINUED],
    }
    ANSWERS.write_text(json.dumps(found, ensure_ascii=False, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
