"""Makes cases.json: what other programs read in answers, and how the models' own templates write calls.

Run by hand, with the sources of llama-cpp-python 0.3.36 (whose vendor/llama.cpp has the templates of many models), the
wheel of sglang 0.5.23 unpacked, in an environment with transformers 5.24.0, Jinja2 3.1.6, jsonschema 4.26.0, pydantic
2.14.4, openai, orjson, msgspec and partial-json-parser:

    python tests/answers/make_answers.py LLAMA_CPP JUDGE SGLANG

LLAMA_CPP is the folder of llama.cpp, JUDGE the program of judge.cpp beside this file, linked with llama.cpp's common/,
SGLANG the folder of the unpacked wheel. The templates are not kept: `known_by` has the texts by which each is told.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1] / "py_src"))

from capstan.text.answer_formats import answer_format  # noqa: E402
from capstan.text.call_history import history_for  # noqa: E402

PARAMETERS = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "near": {"type": "array", "items": {"type": "string"}},
        "options": {"type": "object", "properties": {"deep": {"type": "boolean"}}},
        "flag": {"type": "boolean"},
    },
    "required": ["city"],
}
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "weather", "description": "The weather", "parameters": PARAMETERS}},
    {
        "type": "function",
        "function": {"name": "time", "description": "The time", "parameters": {"type": "object", "properties": {}}},
    },
]
ARGUMENTS = {"city": 'R"o\nme', "days": 5, "near": ["a", "it's"], "options": {"deep": True}, "flag": False}
USER = {"role": "user", "content": "How is it?"}
ENDS = ("<|im_end|>", "<|end_of_text|>", "</s>", "<|eot_id|>", "<turn|>", "<｜end▁of▁sentence｜>", "<|tool_response>")

ROME = '{"city": "Rome"}'
BEGIN, END, SEP = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>"
XML = "<tool_call>\n<function=weather>\n<parameter=city>\nRome\n</parameter>\n"
GLM = "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Rome</arg_value>\n"
DAYS = "<arg_key>days</arg_key>\n<arg_value>5</arg_value>\n"
FINAL = "<|start|>assistant<|channel|>final<|message|>"
CASES: tuple[tuple[str, str, str], ...] = (
    ("Qwen-Qwen3-0.6B", "", "Use a and </think> to end."),
    ("Qwen-Qwen3-0.6B", "", "<think>\nhm\n</think>\n\nYes."),
    ("Qwen-Qwen3-0.6B", "", f'Look: <tool_call>\n{{"name": "weather", "arguments": {ROME}}}\n</tool_call>'),
    (
        "Qwen-Qwen3-0.6B",
        "",
        '<tool_call>\n{"name": "weather", "arguments": {"city": "a </tool_call> b"}}\n</tool_call>',
    ),
    ("Qwen-Qwen3-0.6B", "", '<tool_call>\n{"name": "time", "arguments": {}}\n</tool_call>\n' * 2),
    ("Qwen-QwQ-32B", "", f'hm\n</think>\n\n<tool_call>\n{{"name": "weather", "arguments": {ROME}}}\n</tool_call>'),
    ("Qwen3.5-4B", "", f"hm\n</think>\n\n{XML}<parameter=days>\n5\n</parameter>\n</function>\n</tool_call>"),
    ("Qwen3-Coder", "", f'{XML}<parameter=near>\n["a", "b"]\n</parameter>\n</function>\n</tool_call>'),
    ("Qwen3-Coder", "", f"{XML.replace('Rome', 'a </tool_call> b')}</function>\n</tool_call>"),
    ("Qwen3-Coder", "", "<tool_call>\n<function=time>\n</function>\n</tool_call>"),
    ("GLM-4.6", "", f"\n<think>hm</think>\nLook.\n{GLM}{DAYS}</tool_call>"),
    ("GLM-4.7-Flash", "", "hm</think><tool_call>weather<arg_key>city</arg_key><arg_value>Rome</arg_value></tool_call>"),
    ("meta-llama-Llama-3.1-8B-Instruct", "", f'{{"name": "weather", "parameters": {ROME}}}'),
    (
        "mistralai-Mistral-Nemo-Instruct-2407",
        "",
        f'[TOOL_CALLS][{{"name": "weather", "arguments": {ROME}, "id": "abcdef123"}}]',
    ),
    ("Mistral-Small-3.2-24B-Instruct-2506", "MistralDetector", f"[TOOL_CALLS]weather[ARGS]{ROME}"),
    (
        "Mistral-Small-3.2-24B-Instruct-2506",
        "MistralDetector",
        f"[TOOL_CALLS]weather[ARGS]{ROME}[TOOL_CALLS]time[ARGS]{{}}",
    ),
    ("mistralai-Ministral-3-14B-Reasoning-2512", "", f"[THINK]hm[/THINK]So.[TOOL_CALLS]weather[ARGS]{ROME}"),
    (
        "LFM2-8B-A1B",
        "",
        '<|tool_call_start|>[weather(city="R)]o\'me", days=5, near=["a"], flag=True), time()]<|tool_call_end|>',
    ),
    (
        "LFM2-8B-A1B",
        "Lfm2Detector",
        f'<|tool_call_start|>[{{"name": "weather", "arguments": {ROME}}}]<|tool_call_end|>',
    ),
    ("ibm-granite-granite-4.0", "", f'<tool_call>\n{{"name": "weather", "arguments": {ROME}}}\n</tool_call>'),
    ("google-gemma-4-31B-it", "", "<|channel>thought\nhm\n<channel|>Yes."),
    ("google-gemma-4-31B-it", "", "Yes <b>.<|channel>thought\nhm\n<channel|>"),
    (
        "google-gemma-4-31B-it",
        "",
        '<|tool_call>call:weather{city:<|"|>Rome, "x"}<|"|>,days:5,near:[<|"|>a<|"|>],options:{deep:true}}<tool_call|>',
    ),
    (
        "deepseek-ai-DeepSeek-V3.1",
        "",
        f"hm</think>So.<｜tool▁calls▁begin｜>{BEGIN}weather{SEP}{ROME}{END}{BEGIN}time{SEP}{{}}{END}<｜tool▁calls▁end｜>",
    ),
    (
        "llama-cpp-deepseek-r1",
        "",
        f"hm\n</think>\n\n<｜tool▁calls▁begin｜>{BEGIN}function{SEP}weather\n```json\n{ROME}\n```{END}<｜tool▁calls▁end｜>",
    ),
    ("openai-gpt-oss-120b", "", f"<|channel|>analysis<|message|>hm<|end|>{FINAL}Yes."),
    ("openai-gpt-oss-120b", "", "<|channel|>final<|message|>Yes."),
    (
        "openai-gpt-oss-120b",
        "",
        "<|channel|>analysis<|message|>hm<|end|><|start|>assistant"
        f"<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{ROME}",
    ),
    ("openai-gpt-oss-120b", "", f" to=functions.weather<|channel|>commentary json<|message|>{ROME}"),
    (
        "openai-gpt-oss-120b",
        "",
        "<|channel|>commentary<|message|>Look.<|end|>"
        "<|start|>assistant to=functions.time<|channel|>commentary json<|message|>{}",
    ),
)
"""Templates, the detector of sglang that judges where llama.cpp does not read the form, and answers."""


def known_by(template: str) -> str:
    """The texts of a template by which its family is recognised."""
    groups = answer_format(template, frozenset()).known_by
    found = next(group for group in groups if all(text in template for text in group))
    return " ".join([*found, *(["[THINK]"] if "[THINK]" in template else [])])


def judged(template: str, program: str, answer: str) -> dict[str, Any]:
    request = {"template": template, "messages": [USER], "tools": TOOLS, "output": answer}
    done = subprocess.run([program], input=json.dumps(request) + "\n", capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def detected(folder: str, name: str, answer: str) -> dict[str, Any]:
    """The calls that a detector of sglang reads; its request types, which need much else, are put in place here."""
    protocol = types.ModuleType("sglang.srt.entrypoints.openai.protocol")
    protocol.Tool, protocol.ToolChoice = SimpleNamespace, SimpleNamespace  # type: ignore[attr-defined]
    options = types.ModuleType("sglang.srt.environ")
    off = type("Off", (), {"get": lambda self: False})()
    options.envs = type("Options", (), {"__getattr__": lambda self, _: off})()  # type: ignore[attr-defined]
    options.ToolStrictLevel = type("Level", (), {"OFF": 0, "FUNCTION": 1, "PARAMETER": 2})  # type: ignore[attr-defined]
    sys.modules |= {each.__name__: each for each in (protocol, options)}
    for package in ("sglang", "sglang.srt", "sglang.srt.function_call", "sglang.srt.parser"):
        module = types.ModuleType(package)
        module.__path__ = [str(Path(folder, *package.split(".")))]
        sys.modules.setdefault(package, module)
    module_name = name.removesuffix("Detector").lower() + "_detector"
    module = __import__(f"sglang.srt.function_call.{module_name}", fromlist=[name])
    found = getattr(module, name)().detect_and_parse(
        answer,
        [
            SimpleNamespace(type="function", function=SimpleNamespace(strict=False, **tool["function"]))
            for tool in TOOLS
        ],
    )
    calls = [[call.name, json.loads(call.parameters)] for call in found.calls]
    return {"reasoning": "", "answer": found.normal_text.strip(), "calls": calls}


def read_by_others(templates: Path, program: str, sglang: str) -> list[dict[str, Any]]:
    cases = []
    for name, detector, answer in CASES:
        template = (templates / f"{name}.jinja").read_text()
        form = answer_format(template, frozenset())
        told = judged(template, program, answer)
        begun = told.get("prompt", "").rstrip().endswith(form.thinking[0])
        if detector:
            read = detected(sglang, detector, answer)
        else:
            message = told.get("message")
            if message is None:
                raise SystemExit(f"llama.cpp does not read {name}: {answer!r}: {told}")
            calls = [
                [c["function"]["name"], json.loads(c["function"]["arguments"])] for c in message.get("tool_calls", [])
            ]
            read = {
                "reasoning": (message.get("reasoning_content") or "").strip(),
                "answer": (message.get("content") or "").strip(),
            }
            read["calls"] = calls
        about = {"template": name, "known_by": known_by(template), "judge": detector or "llama.cpp", "begun": begun}
        cases.append({**about, "text": answer, **read})
    return cases


def written_by_templates(templates: Path) -> list[dict[str, Any]]:
    """Calls as transformers renders them, from their first mark to the end."""
    from transformers.utils.chat_template_utils import render_jinja_template

    found = []
    for file in sorted(templates.glob("*.jinja")):
        template = file.read_text()
        form = answer_format(template, frozenset())
        if form.calls is None:
            continue

        def render(messages: Sequence[Mapping[str, Any]], template: str = template) -> str:
            given = {"chat_template": template, "bos_token": "<s>", "eos_token": "</s>"}
            return str(render_jinja_template(conversations=[messages], tools=TOOLS, **given)[0][0])

        function = {"name": "weather", "arguments": json.dumps(ARGUMENTS)}
        call = {"id": "call_abc", "type": "function", "function": function}
        asked: list[Mapping[str, Any]] = [USER, {"role": "assistant", "content": "", "tool_calls": [call]}]
        try:
            text = render(history_for(asked, template, form, render))
        except Exception as error:
            print(f"{file.stem}: {error!r}")
            continue
        text = text.split("<｜end▁of▁sentence｜>")[0].rstrip()
        for end in ENDS:
            text = text.removesuffix(end).rstrip()
        marks = (*form.calls.opening, "<|start|>assistant to=", '{"name": "weather"')
        mark = next((mark for mark in marks if mark and mark in text), "{")
        if mark[0] == "{" and "" not in form.calls.opening:
            print(f"{file.stem}: calls that begin otherwise")
            continue
        text = text[text.rindex(mark) :]
        found.append({"template": file.stem, "known_by": known_by(template), "text": text})
    return found


NODE = {
    "type": "object",
    "properties": {"value": {"type": "integer"}, "next": {"anyOf": [{"$ref": "#/$defs/Node"}, {"type": "null"}]}},
    "required": ["value", "next"],
    "additionalProperties": False,
}
PLACE = {
    "type": "object",
    "properties": {"$ref": {"type": "string"}, "size": {"$ref": "#/definitions/size"}},
    "required": ["size"],
    "additionalProperties": False,
}
REFERENCES: tuple[tuple[dict[str, Any], tuple[Any, ...]], ...] = (
    (
        {
            "type": "object",
            "properties": {"name": {"type": "string"}, "parts": {"type": "array", "items": {"$ref": "#"}}},
            "required": ["name"],
            "additionalProperties": False,
        },
        (
            {"name": "a"},
            {"name": "a", "parts": [{"name": "b", "parts": []}]},
            {"name": "a", "parts": [{"parts": []}]},
            {"name": "weather", "parts": [{"name": "weather", "arguments": {"name": "a"}}]},
        ),
    ),
    (
        {
            "type": "object",
            "properties": {"list": {"$ref": "#/$defs/Node"}},
            "required": ["list"],
            "additionalProperties": False,
            "$defs": {"Node": NODE},
        },
        (
            {"list": {"value": 1, "next": None}},
            {"list": {"value": 1, "next": {"value": 2, "next": None}}},
            {"list": {"value": 1, "next": {"value": "2", "next": None}}},
            {"list": {"value": 1}},
        ),
    ),
    (
        {
            "type": "object",
            "properties": {"place": PLACE, "count": {"$ref": "#/definitions/size"}, "word": {"type": "string"}},
            "required": ["place"],
            "additionalProperties": False,
            "definitions": {"size": {"type": "integer", "minimum": 1, "maximum": 9}},
        },
        (
            {"place": {"$ref": "#", "size": 3}, "count": 4, "word": "a"},
            {"place": {"size": 12}},
            {"place": {"size": 3}, "count": 0},
            {"place": {"$ref": 1, "size": 3}},
        ),
    ),
)
"""Schemas of parameters with references, as pydantic, zod and drafts before 2019 write them, and arguments."""


def judged_references() -> list[dict[str, Any]]:
    """Whether arguments fit, by jsonschema."""
    judge = importlib.import_module("jsonschema").Draft202012Validator
    return [
        {"schema": schema, "arguments": each, "fits": judge(schema).is_valid(each)}
        for schema, given in REFERENCES
        for each in given
    ]


def main() -> None:
    llama_cpp, program, sglang = sys.argv[1:]
    templates = Path(llama_cpp) / "models" / "templates"
    content = {
        "tools": TOOLS,
        "arguments": ARGUMENTS,
        "answers": read_by_others(templates, program, sglang),
        "history": written_by_templates(templates),
        "references": judged_references(),
    }
    (HERE / "cases.json").write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n")


if __name__ == "__main__":
    main()
