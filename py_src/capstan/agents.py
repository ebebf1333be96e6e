"""Answers with tools: a model calls functions until it has an answer, and each call has limits.

A grammar holds each call to the parameters of its tool, in the form of the model's family. Results of calls are data:
control tokens in them have no effect. Tools of MCP servers are for pages (docs/agents.md).
"""

from __future__ import annotations

import asyncio
import inspect
import json
import math
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from .errors import OptionError
from .generation.answer import AnswerStream, forced_call
from .generation.generator import Generator
from .generation.generator_params import GeneratorParams
from .model import Model
from .signatures import check_arguments
from .text.call_forms import json_text
from .text.messages import read_messages
from .text.stream import StoppingStream
from .tokenizer import Tokenizer

__all__ = ["Agent", "AgentCall", "AgentStep", "AgentTool"]

Message = Mapping[str, Any]
MOST_TOOLS = 128


@dataclass(frozen=True)
class AgentTool:
    """A function that the model may call. `parameters` is the JSON schema of an object, and `execute` gets the
    arguments by name. Its result is a text, a value of JSON, or an awaitable of one.
    """

    name: str
    execute: Callable[..., Any]
    description: str = ""
    parameters: Mapping[str, Any] = field(
        default_factory=lambda: {"type": "object", "properties": {}, "additionalProperties": False}
    )
    read_only: bool = False
    """Whether calls change nothing, and so need no confirmation."""


@dataclass(frozen=True)
class AgentCall:
    """A call, and how it ended."""

    id: str
    name: str
    arguments: Mapping[str, Any]
    outcome: Literal["returned", "failed", "refused"]
    result: str
    """The result as the model reads it."""
    seconds: float


@dataclass(frozen=True)
class AgentStep:
    """An answer of the model, and the calls that it made."""

    step: int
    """From 1."""
    asked: Sequence[Message]
    """The messages that the model had not answered before: the user's, or results of calls."""
    text: str
    """The answer without reasoning and calls."""
    reasoning: str
    finish_reason: str
    """The reason for its end: 'stop', 'length', 'tool_calls', 'time'."""
    calls: Sequence[AgentCall]
    seconds: float
    messages: Sequence[Message]
    """The whole conversation until now, without the instructions: add a message, and give it to the next run."""


Confirm = Callable[[AgentTool, Mapping[str, Any]], bool | Awaitable[bool]]


class Agent:
    """A model with tools. `async for step in agent.run(text)` gives each answer with its calls; leave the loop, or
    cancel the task, to end the run. Load the model with `prefix_cache`, so that a step runs it only on new tokens.
    """

    def __init__(
        self,
        model: Model,
        tools: Sequence[AgentTool] = (),
        *,
        confirm: Confirm | None = None,
        instructions: str | None = None,
        tool_choice: Literal["auto", "required"] = "auto",
        max_steps: int = 8,
        max_new_tokens: int | None = None,
        tool_timeout: float = 30,
        max_result_bytes: int = 16_384,
        **search: Any,
    ) -> None:
        """`confirm(tool, arguments)` says whether a call may be made; it is needed unless all tools are read-only.
        `instructions` is the system message. With `tool_choice` 'required' the first answer of a run has to be a call.
        `max_steps` are answers of a run, `max_new_tokens` tokens of an answer, `tool_timeout` seconds of a call that
        awaits, `max_result_bytes` bytes of a result that the model reads. `search` are options of
        `GeneratorParams.set_search_options`.

        Raises OptionError for two tools of one name, for one that needs `confirm`, for limits out of range.
        """
        if len(tools) > MOST_TOOLS:
            raise OptionError(f"there are {len(tools)} tools; an agent has at most {MOST_TOOLS}: leave some out")
        limits = {"max_steps": max_steps, "max_result_bytes": max_result_bytes, "tool_timeout": tool_timeout}
        for name, value in limits.items():
            if not value > 0 or math.isinf(value):
                raise OptionError(f"{name} is {value}; it must be above 0 and finite")
        self._tools: dict[str, AgentTool] = {}
        for tool in tools:
            if tool.name in self._tools:
                raise OptionError(f"two tools are named {tool.name!r}; rename one")
            if confirm is None and not tool.read_only:
                raise OptionError(
                    f"confirm is missing, but {tool.name!r} is not marked read-only; give confirm, which returns "
                    "whether a call may be made, or mark the tool by read_only=True"
                )
            self._tools[tool.name] = tool
        self._model, self._tokenizer, self._confirm = model, Tokenizer(model), confirm
        self._instructions, self._choice, self._search = instructions, tool_choice, search
        self._most_steps, self._most_tokens = max_steps, max_new_tokens
        self._timeout, self._most_bytes = tool_timeout, max_result_bytes

    async def run(self, messages: str | Sequence[Message]) -> AsyncIterator[AgentStep]:
        """Answer a text of the user, or the last message of a conversation. The last step's text is the answer; its
        `finish_reason` is 'tool_calls' if `max_steps` ended the run.

        Raises what a prompt and a generator raise; GuidanceError for parameters that no grammar can hold; what
        `confirm` raises.
        """
        given = [{"role": "user", "content": messages}] if isinstance(messages, str) else messages
        talk = read_messages("messages", given)
        asked: Sequence[Message] = [*talk]
        for step in range(1, self._most_steps + 1):
            begun = time.monotonic()
            answer = await self._answer(talk, required=step == 1 and self._choice == "required")
            calls = answer["tool_calls"]
            thought = {"reasoning_content": answer["reasoning"]} if answer["reasoning"] else {}
            called = {"tool_calls": calls, **thought} if calls else {}
            talk.append({"role": "assistant", "content": answer["answer"], **called})
            made = [await self._perform(call["id"], **call["function"]) for call in calls]
            results = [
                {"role": "tool", "tool_call_id": each.id, "name": each.name, "content": each.result} for each in made
            ]
            talk.extend(results)
            seconds, reason = time.monotonic() - begun, answer["finish_reason"]
            yield AgentStep(step, asked, answer["answer"], answer["reasoning"], reason, made, seconds, tuple(talk))
            if reason != "tool_calls":
                return
            asked = results

    async def _answer(self, talk: Sequence[Message], *, required: bool) -> dict[str, Any]:
        """The model's answer."""
        tokenizer = self._tokenizer
        system = [] if self._instructions is None else [{"role": "system", "content": self._instructions}]
        tools = [
            {
                "type": "function",
                "function": {"name": each.name, "description": each.description, "parameters": each.parameters},
            }
            for each in self._tools.values()
        ]
        prompt = tokenizer.apply_chat_template([*system, *talk], tools=tools or None)
        ids = tokenizer.encode(prompt)
        params = GeneratorParams(self._model)
        params.set_search_options(**{**self._model.facts.search, **self._search})
        if self._most_tokens is not None:
            length = min(len(ids) + self._most_tokens, self._model.config.context_length)
            params.set_search_options(max_length=length)
        if tools:
            grammar = forced_call(tokenizer, prompt, tools, list(self._tools), optional=not required)
            params.set_guidance("lark_grammar", grammar)
        stops = params.search.stop_strings
        stream = StoppingStream(tokenizer.decode, stops, ids)
        reads = {"forced": required and bool(tools), "held": not required and bool(tools)}
        reader = AnswerStream(tokenizer, prompt, tools or None, before=ids, stops=stops, **reads)
        async with Generator(self._model, params) as generator:
            generator.append_tokens(ids)
            while not generator.is_done():
                length = generator.token_count()
                token = await generator.generate_next_token_async()
                if generator.token_count() > length:
                    reader.push(token, stream.push(token))
            reader.end(stream.flush())
            reason = str(generator.finish_reason)
        return {**reader.summary(), "finish_reason": reader.finish_reason_of(reason)}

    async def _perform(self, identifier: str, name: str, arguments: str) -> AgentCall:
        """Make a call, if it is confirmed."""
        tool, given = self._tools[name], json.loads(arguments)
        if not tool.read_only and self._confirm is not None:
            allowed = self._confirm(tool, given)
            if (await allowed if inspect.isawaitable(allowed) else allowed) is not True:
                return AgentCall(identifier, name, given, "refused", "The user refused this call.", 0)
        begun = time.monotonic()
        outcome: Literal["returned", "failed"] = "failed"
        limit = asyncio.timeout(self._timeout)
        try:
            value = tool.execute(**given)
            if inspect.isawaitable(value):
                async with limit:
                    value = await value
            result = value if isinstance(value, str) else json_text(value)
            outcome = "returned"
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
            if isinstance(error, TimeoutError) and limit.expired():
                why = f"there was no result after {self._timeout} s, the limit"
            result = f"The call failed: {why}"
        return AgentCall(identifier, name, given, outcome, self._cut(result), time.monotonic() - begun)

    def _cut(self, text: str) -> str:
        """A text, or its beginning with what was left out."""
        data = text[: self._most_bytes + 1].encode(errors="replace")
        if len(data) <= self._most_bytes and len(text) <= self._most_bytes:
            return text
        kept = data[: self._most_bytes].decode(errors="ignore")
        about = f"it has {len(text)} characters, the limit is {self._most_bytes} bytes. Ask for less."
        return f"{kept}\n[The result is cut here: {about}]"


check_arguments(sys.modules[__name__])
