"""Defines the formats of answers of each family of models: the marks around reasoning, and how calls of tools are
written.

A format is recognised by the chat template's text, else by the vocabulary. `docs/tools.md` lists the families.
"""

from __future__ import annotations

import re
from collections.abc import Set
from dataclasses import dataclass, replace

from .call_forms import (
    CallForm,
    Parameters,
    deepseek,
    function_block,
    gemma,
    gemma_text,
    json_in,
    mistral,
    plain_text,
    python_calls,
    python_text,
    tool_call_block,
    whole_answer,
)

__all__ = ["ANY_MODEL", "FORMATS", "AnswerFormat", "answer_format"]


@dataclass(frozen=True)
class AnswerFormat:
    """The form of a family's answers."""

    name: str
    known_by: tuple[tuple[str, ...], ...]
    """Groups of texts in the family's chat templates: a template with all texts of one group is of the family."""
    calls: CallForm | None
    not_known_by: tuple[str, ...] = ()
    """Texts that are in none of the family's templates."""
    thinking: tuple[str, str] = ("<think>", "</think>")
    """The marks around reasoning."""
    thinks_anywhere: bool = False
    """Whether reasoning may also come after other text."""
    channels: bool = False
    """Whether an answer is a series of messages in channels, as in gpt-oss."""

    def is_known_by(self, template: str) -> bool:
        if any(text in template for text in self.not_known_by):
            return False
        return any(all(text in template for text in group) for group in self.known_by)

    @property
    def thinking_marks(self) -> tuple[str, ...]:
        """The marks around reasoning, and around messages in channels."""
        return (*self.thinking, *CHANNEL_MARKS * self.channels)

    @property
    def marks(self) -> tuple[str, ...]:
        """The marks that the text must keep, even if they are special tokens."""
        inner = () if self.calls is None else (*self.calls.opening, *self.calls.before, *self.calls.after)
        pieces = (*self.thinking_marks, *inner, '<|"|>', "[CALL_ID]", "<|/tool_call|>")
        return tuple(piece for piece in pieces if piece)


CHANNEL_MARKS = ("<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>")

JSON_CALL = '{"name": "NAME", "arguments": '
TOOL_CALL = {"<tool_call>": tool_call_block}

HERMES = CallForm(TOOL_CALL, ("<tool_call>", "\n" + JSON_CALL), ("}\n", "</tool_call>"))
QWEN_XML = CallForm(
    {**TOOL_CALL, "<function=": function_block},
    ("<tool_call>", "\n<function=NAME>\n"),
    ("</function>\n", "</tool_call>"),
    Parameters("<parameter=NAME>\n", "\n</parameter>\n", "", "", plain_text),
)
GLM = CallForm(
    TOOL_CALL,
    ("<tool_call>", "NAME\n"),
    ("</tool_call>",),
    Parameters("<arg_key>NAME</arg_key>\n<arg_value>", "</arg_value>\n", "", "", plain_text),
)
LLAMA = CallForm({"": whole_answer, "<|python_tag|>": whole_answer}, ('{"name": "NAME", "parameters": ',), ("}",))
ANY_MODEL = CallForm({"": whole_answer}, (JSON_CALL,), ("}",))
"""The format for models without a known form; a grammar makes them write it."""
MISTRAL = {"[TOOL_CALLS]": mistral}
MISTRAL_LIST = CallForm(MISTRAL, ("[TOOL_CALLS]", "[" + JSON_CALL), ("}]",))
MISTRAL_NAMED = CallForm(MISTRAL, ("[TOOL_CALLS]", "NAME", "[ARGS]"))
LFM2 = CallForm(
    {"<|tool_call_start|>": python_calls},
    ("<|tool_call_start|>", "[NAME("),
    (")]", "<|tool_call_end|>"),
    Parameters("NAME=", "", ", ", None, python_text, ("True", "False")),
)
LISTED = json_in("<|/tool_call|>", "<|end_of_tool_call|>", optional=True)
GRANITE = CallForm({"<|tool_call|>": LISTED}, ("<|tool_call|>", "[" + JSON_CALL), ("}]",))
PHI = CallForm(
    {"<|tool_call|>": LISTED, "functools": LISTED}, ("<|tool_call|>", "[" + JSON_CALL), ("}]", "<|/tool_call|>")
)
GEMMA = CallForm(
    {"<|tool_call>": gemma},
    ("<|tool_call>", "call:NAME{"),
    ("}", "<tool_call|>"),
    Parameters("NAME:", "", ",", '<|"|>', gemma_text),
)
DEEPSEEK_MARKS = ("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>")
DEEPSEEK_ENDS = ("<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>")
DEEPSEEK = {DEEPSEEK_MARKS[0]: deepseek}
DEEPSEEK_V3 = CallForm(
    DEEPSEEK, (*DEEPSEEK_MARKS, "function", "<｜tool▁sep｜>", "NAME\n```json\n"), ("\n```", *DEEPSEEK_ENDS)
)
DEEPSEEK_V31 = CallForm(DEEPSEEK, (*DEEPSEEK_MARKS, "NAME", "<｜tool▁sep｜>"), DEEPSEEK_ENDS)
HARMONY = CallForm({}, ("<|channel|>", "commentary to=functions.NAME ", "<|constrain|>", "json", "<|message|>"))

FORMATS = (
    AnswerFormat(
        "gpt-oss",
        (("<|channel|>analysis",),),
        HARMONY,
        thinking=("<|channel|>analysis<|message|>", "<|end|>"),
        channels=True,
    ),
    AnswerFormat(
        "Gemma 4",
        (("<|channel>thought",), ("<|tool_call>",)),
        GEMMA,
        thinking=("<|channel>thought", "<channel|>"),
        thinks_anywhere=True,
    ),
    AnswerFormat("DeepSeek V3 and R1", (("<｜tool▁sep｜>", "```json"),), DEEPSEEK_V3),
    AnswerFormat("DeepSeek V3.1", (("<｜tool▁sep｜>",),), DEEPSEEK_V31),
    AnswerFormat("Mistral, with arguments apart", (("[ARGS]",),), MISTRAL_NAMED),
    AnswerFormat("Mistral", (("[TOOL_CALLS]",), ("[THINK]",), ("[AVAILABLE_TOOLS]",)), MISTRAL_LIST),
    AnswerFormat("GLM", (("<tool_call>", "<arg_key>"),), GLM),
    AnswerFormat("Qwen 3.5 and Qwen3-Coder", (("<tool_call>", "<function="),), QWEN_XML),
    AnswerFormat("LFM2", (("<|tool_list_start|>",), ("<|tool_call_start|>",)), LFM2),
    AnswerFormat("Granite 3", (("<|tool_call|>", "<|start_of_role|>"),), GRANITE),
    AnswerFormat("Phi-4-mini", (("<|tool|>",), ("<|/tool_call|>",)), PHI),
    # Other families have these marks around calls of other forms.
    AnswerFormat("Hermes and Qwen", (("<tool_call>",),), HERMES, not_known_by=("<tool_calls>", "minimax")),
    AnswerFormat("Llama 3", (('{"name": function name, "parameters": ',),), LLAMA),
)
"""The formats; the first one that fits a template is used."""
BRACKETS = ("[THINK]", "[/THINK]")
"""Mistral's marks around reasoning, if the template or the vocabulary has them."""
PLAIN = AnswerFormat("plain", (), None)
"""The format for templates of unknown families, whose calls stay text."""


def answer_format(template: str, tokens: Set[str]) -> AnswerFormat:
    """The format of a model, by its chat template and the added tokens of its vocabulary. A template of an unknown
    family that takes tools gets the format whose calls begin with a token of the vocabulary.
    """
    found = next((each for each in FORMATS if each.is_known_by(template)), None)
    if found is None and re.search(r"\btools\b", template):
        found = next((each for each in FORMATS if each.calls and not tokens.isdisjoint(each.calls.opening)), None)
    brackets = "[THINK]" in template or ("[THINK]" in tokens and "<think>" not in template)
    return replace(found or PLAIN, thinking=BRACKETS) if brackets else found or PLAIN
