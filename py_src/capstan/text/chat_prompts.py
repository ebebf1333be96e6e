"""Makes the prompts of conversations, with the chat template and transformers' values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from ..errors import CapstanError, ConfigError, OptionError
from .answer_formats import AnswerFormat
from .call_history import history_for

__all__ = ["ChatTemplates", "template_options", "templates_of_files"]

THINKING = ("enable_thinking", "thinking")
"""Variables of chat templates: Qwen's and SmolLM3's, Granite's and DeepSeek's."""
SPECIAL_TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token", "mask_token")
OWN = ("messages", "tools", "add_generation_prompt", "continue_final_message", "template_str")
"""Arguments of a prompt that are not passed to its template as variables of the caller."""
PROBE = "probe"
END = "\U0003f000 "
"""Stands after a message that an answer continues; a template that trims messages removes the space."""
MAIN = "chat_template.jinja"
MORE = "additional_chat_templates/"


class ChatTemplates:
    """The chat templates of a model by name; a template without a name is called default."""

    def __init__(self, config: Mapping[str, Any], given: Mapping[str, str] | None) -> None:
        """`config` is the content of tokenizer_config.json; `given` templates replace the templates in it. Raises
        ConfigError.
        """
        found = of_config(config) if given is None else given
        # An empty template means that there is none.
        self._named = {name: text for name, text in found.items() if text}
        tokens = {name: token_text(config.get(name)) for name in SPECIAL_TOKENS}
        self._tokens = {name: text for name, text in tokens.items() if text is not None}

    def __bool__(self) -> bool:
        return bool(self._named)

    @property
    def texts(self) -> str:
        """The texts of all templates."""
        return "\n".join(self._named.values())

    @property
    def default(self) -> str | None:
        return self._named.get("default")

    def choose(self, template: str | None, tools: object) -> str:
        """The template of that name, or else the text itself; for None the template named tool_use if there are tools,
        else default. Raises ConfigError if there is none.
        """
        if template:
            return self._named.get(template, template)
        name = "tool_use" if tools is not None and "tool_use" in self._named else "default"
        if name in self._named:
            return self._named[name]
        where = "tokenizer_config.json: chat_template"
        if self._named:
            names = ", ".join(sorted(self._named))
            raise ConfigError(
                f"{where}: the templates are {names}, without one named default; name one of them as template_str"
            )
        raise ConfigError(f"{where}: missing; pass template_str, or encode plain text")

    def render(
        self,
        template: str,
        messages: Iterable[Mapping[str, Any]],
        form: AnswerFormat,
        tools: Sequence[Mapping[str, Any]] | None,
        add_generation_prompt: bool,
        thinking: bool | None,
        variables: Mapping[str, Any],
        continues: bool = False,
    ) -> str:
        """The text of a template. `form` is the model's form of calls of tools; `variables` are those besides the usual
        ones. With `continues` the text ends with that of the last message.

        Raises ConfigError if it cannot be rendered, OptionError for unknown variables, and for a last message that no
        answer continues.
        """
        try:
            from .chat_template import render, variables_of  # noqa: PLC0415  (jinja2 takes long to import)
        except ImportError as error:
            raise CapstanError(
                f"chat templates need Jinja2, which cannot be imported ({error}); install jinja2, or encode plain text"
            ) from error
        parts_alone = takes_parts_alone(template)
        told = [*messages]
        if continues:
            told[-1:] = [continued(told[-1] if told else {})]
        values: dict[str, Any] = {
            **self._tokens,
            "messages": [as_templates_take(each, parts_alone) for each in told],
            "add_generation_prompt": add_generation_prompt and not continues,
            "tools": tools,
            "documents": None,
        }
        try:
            if variables or thinking is not None:
                values |= asked_for(thinking, variables, variables_of(template))
            given = {**values, "add_generation_prompt": False}
            values["messages"] = history_for(
                values["messages"], template, form, lambda described: render(template, {**given, "messages": described})
            )
            text = render(template, values)
        except OptionError:
            raise
        except Exception as error:
            raise ConfigError(
                f"tokenizer_config.json: chat_template: cannot be rendered ({error}); pass template_str"
            ) from error
        return up_to_end(text) if continues else text


def continued(message: Mapping[str, Any]) -> dict[str, Any]:
    """The last message with END after its text. Raises OptionError if it is not the assistant's, or has no text."""
    content: Any = message.get("content")
    last = content[-1] if isinstance(content, list | tuple) and content else {"type": "text", "text": content}
    text = last.get("text") if isinstance(last, Mapping) else None
    if message.get("role") != "assistant" or not isinstance(text, str) or message.get("tool_calls"):
        raise OptionError(
            f"continue_final_message: the last message has the role {message.get('role')!r} and the keys "
            f"{', '.join(message) or 'none'}; it must be the assistant's, have a text and no tool_calls"
        )
    if isinstance(content, str):
        return {**message, "content": content + END}
    return {**message, "content": [*content[:-1], {**last, "text": text + END}]}


def up_to_end(text: str) -> str:
    """A rendered text up to END. Raises ConfigError if the template left it out."""
    before, end, after = text.rpartition(END.rstrip())
    if not end:
        raise ConfigError(
            "tokenizer_config.json: chat_template: does not show the whole last message, so that no answer continues "
            "it; pass template_str, or leave continue_final_message out"
        )
    # As transformers does where a template trims messages.
    return before if after.startswith(" ") else before.rstrip()


def as_templates_take(message: Mapping[str, Any], parts_alone: bool) -> dict[str, Any]:
    """A message without keys whose value is None: callers of OpenAI's API write these for omitted fields, and templates
    would print them. With `parts_alone`, for a template that takes no text as content, a text is put in a list of
    parts.
    """
    found = {key: value for key, value in message.items() if value is not None}
    if parts_alone and isinstance(found.get("content"), str):
        found["content"] = [{"type": "text", "text": found["content"]}]
    return found


@lru_cache(maxsize=4)
def takes_parts_alone(template: str) -> bool:
    """Whether a template that knows pictures writes only the texts of content parts (SmolVLM's), and ignores a content
    that is a text."""
    from .chat_template import render  # noqa: PLC0415  (jinja2 takes long to import)

    def writes(content: Any) -> bool:
        messages = [{"role": "user", "content": content}]
        try:
            return PROBE in render(template, {"messages": messages, "add_generation_prompt": False})
        except Exception:
            return False

    return "image" in template and not writes(PROBE) and writes([{"type": "text", "text": PROBE}])


def asked_for(thinking: bool | None, variables: Mapping[str, Any], known: Iterable[str]) -> dict[str, Any]:
    """The values of a template's own variables, `known`. Raises OptionError."""
    unknown = [name for name in variables if name not in known]
    if unknown:
        others = ", ".join(sorted({*known} - {*OWN, *SPECIAL_TOKENS})) or "none"
        raise OptionError(f"{', '.join(unknown)}: the chat template has no such variable; its variables are: {others}")
    if thinking is None:
        return dict(variables)
    if not {*THINKING} & {*known}:
        raise OptionError(
            f"thinking is {thinking}, but the chat template has none of the variables {', '.join(THINKING)}: "
            "leave thinking out"
        )
    twice = [name for name in THINKING if name in variables]
    if twice:
        raise OptionError(f"thinking and {twice[0]} have the same meaning; give one of them")
    return {**variables, **dict.fromkeys(THINKING, thinking)}


def template_options(asked: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of Tokenizer.apply_chat_template besides the messages, from a request or a job with `tools`,
    `thinking`, `continue_final_message` and `chat_template_kwargs`. Raises OptionError.
    """
    options = {"tools": asked.get("tools") or None, "thinking": asked.get("thinking")}
    if asked.get("continue_final_message"):
        options["continue_final_message"] = True
    variables = asked.get("chat_template_kwargs") or {}
    for name in variables:
        if name in OWN or options.get(name) is not None:
            raise OptionError(f"chat_template_kwargs has {name}, which is a separate option; leave it out there")
    return {**options, **variables}


def templates_of_files(files: Mapping[str, str]) -> dict[str, str] | None:
    """The chat templates that are files of a folder, by their names; None if there are none."""
    found = {"default": files[MAIN]} if MAIN in files else {}
    names = [name for name in files if name.startswith(MORE)]
    found |= {name.removeprefix(MORE).removesuffix(".jinja"): files[name] for name in names}
    return found or None


def of_config(config: Mapping[str, Any]) -> dict[str, str]:
    """The chat templates in tokenizer_config.json: a string, or a list of several. Raises ConfigError."""
    found = config.get("chat_template")
    where, remedy = "tokenizer_config.json: chat_template", "correct it"
    if isinstance(found, list):
        for place, each in enumerate(found):
            fields = [each.get(name) for name in ("name", "template")] if isinstance(each, Mapping) else [None]
            if not all(isinstance(field, str) for field in fields):
                raise ConfigError(f"{where}[{place}]: expected an object with the strings name and template; {remedy}")
        return {each["name"]: each["template"] for each in found}
    if found is not None and not isinstance(found, str):
        raise ConfigError(f"{where}: expected a string, got {type(found).__name__}; {remedy}")
    return {} if found is None else {"default": found}


def token_text(token: object) -> str | None:
    """A special token of tokenizer_config.json: a string, or an object with the string as `content`."""
    if isinstance(token, Mapping):
        token = token.get("content")
    return token if isinstance(token, str) else None
