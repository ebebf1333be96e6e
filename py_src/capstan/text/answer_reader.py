"""Splits a model's answer, while it is generated, into reasoning, text and calls of tools. The parts do not depend on
the cuts of the text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ..fallback import fall_back
from .answer_formats import ANY_MODEL, AnswerFormat
from .call_forms import Call, Functions, Read
from .call_grammar import any_in_json
from .call_values import Cursor, MoreError, NoCallError
from .stream import overlap

__all__ = ["AnswerPart", "AnswerReader", "functions_of"]

OPEN, CLOSE = "<think>", "</think>"
"""The marks around reasoning in the text of an answer, in place of the model's own."""
MOST_HEADER = 600
"""Characters of the head of a message in a channel."""
SLACK = 16
"""An incomplete call is read again when the text has grown by this fraction (1 / N), so that long calls do not take
quadratic time.
"""
HEADER = re.compile(r"(?:<\|start\|>assistant)?((?:(?!<\|(?:message|end|start)\|>)[\s\S])*)<\|message\|>")
"""The head of a message in a channel."""
BROKEN = re.compile(r"<\|(?:end|start)\|>")
"""A mark that never occurs within a head."""
RECIPIENT = re.compile(r"\bto=(?:functions\.)?([\w.\-]+)")
ENDS = ("<|end|>", "<|call|>", "<|return|>", "<|start|>")
STARTS = ("<|start|>assistant", "<|channel|>", " to=")


@dataclass(frozen=True)
class AnswerPart:
    """A piece of an answer. `text` is its form in the answer's whole text; a "mark" belongs neither to the reasoning
    nor to the answer.
    """

    kind: Literal["reasoning", "answer", "call", "mark"]
    text: str
    call: Call | None = None


def functions_of(tools: Sequence[Mapping[str, Any]] | None) -> Functions:
    """The parameters of tools by name; tools are in OpenAI's form, or without `function` around each."""
    found = {}
    for tool in tools or ():
        function = tool.get("function", tool)
        if isinstance(function, Mapping) and isinstance(function.get("name"), str):
            found[function["name"]] = function.get("parameters")
    return found


class AnswerReader:
    """`push` the text in parts, then `end`; each returns the parts that are certain."""

    def __init__(
        self,
        form: AnswerFormat,
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        begun: bool = False,
        forced: bool = False,
        held: bool = False,
        most: int | None = None,
    ) -> None:
        """With `begun` the prompt ended within the reasoning. With `forced` a grammar makes the answer a call, in the
        form of the format or of ANY_MODEL. With `held` a grammar lets the answer end with such a call, and nothing but
        what it wrote is one. Calls after the first `most` stay text.
        """
        self._form, self._begun, self._most = form, begun, most
        self._functions = functions_of(tools)
        self._readers: dict[str, Read] = dict(form.calls.opening) if tools and form.calls else {}
        if held and form.calls:
            self._readers = {mark: read for mark, read in self._readers.items() if mark == form.calls.before[0]}
        if forced or (held and any_in_json(form, self._functions)):
            self._readers |= ANY_MODEL.opening
        elif tools and form.calls is None:
            reason = "the chat template belongs to no family with a known form of calls"
            fall_back("calls of tools", reason, "they stay in the answer's text; require a call to have it read")
        self._channel_calls = bool(tools) and form.channels
        self._held, self._count, self._tried = "", 0, 0
        self._parts: list[AnswerPart] = []
        self._state: Callable[[bool], bool] = self._begin
        """The present state: takes the certain part of the held text; returns whether to call the next state. Its
        argument is whether the text has ended.
        """

    def push(self, text: str) -> list[AnswerPart]:
        self._held += text
        return self._run(False)

    def end(self) -> list[AnswerPart]:
        return self._run(True)

    def _run(self, final: bool) -> list[AnswerPart]:
        while self._state(final):
            pass
        parts, self._parts = self._parts, []
        return parts

    def _report(self, kind: Literal["reasoning", "answer", "mark"], length: int, shown: str | None = None) -> None:
        """Report the first `length` characters as that kind; `shown` replaces them in the answer's text."""
        text, self._held = self._held[:length], self._held[length:]
        text = text if shown is None else shown
        if text and self._parts and self._parts[-1].kind == kind:
            self._parts[-1] = AnswerPart(kind, self._parts[-1].text + text)
        elif text:
            self._parts.append(AnswerPart(kind, text))

    # The states.

    def _begin(self, final: bool) -> bool:
        """The state at the beginning."""
        if final and not self._held:
            return False
        lead = self._held.lstrip()
        space = len(self._held) - len(lead)
        if self._form.channels:
            if not final and any(start.startswith(self._held) for start in STARTS):
                return False
            self._state = self._header if self._held.startswith(STARTS) else self._final
            return True
        mark = self._form.thinking[0]
        if lead.startswith(mark):
            self._report("mark", space)
            self._open(len(mark))
            return True
        if not final and mark.startswith(lead):
            return False
        if self._begun:
            self._open(0)
        else:
            self._state = self._answer_begin
        return True

    def _open(self, length: int) -> None:
        self._report("mark", length, OPEN)
        self._state = self._reasoning_begin

    def _reasoning_begin(self, final: bool) -> bool:
        return self._skip_space(self._reasoning, final)

    def _skip_space(self, following: Callable[[bool], bool], final: bool) -> bool:
        space = len(self._held) - len(self._held.lstrip())
        self._report("mark", space)
        if self._held or final:
            self._state = following
        return bool(self._held) or final

    def _reasoning(self, final: bool) -> bool:
        mark = self._form.thinking[1]
        place = self._place_of(mark, final)
        if place is None:
            keep = 0 if final else overlap(self._held, f"`{mark}`")
            keep = max(keep, 0 if final else overlap(self._held, mark))
            described = self._held[: len(self._held) - keep].rstrip()
            self._report("reasoning", len(described))
            if final:
                self._report("mark", len(self._held))
            return False
        self._report("reasoning", len(self._held[:place].rstrip()))
        self._report("mark", len(self._held) - len(self._held.lstrip()))
        self._report("mark", len(mark), CLOSE)
        if self._form.channels:
            self._state = self._next_message
        else:
            self._state = self._answer_begin_after_thinking
        return True

    def _place_of(self, mark: str, final: bool) -> int | None:
        """The place of a mark; a mark between backticks is text."""
        for found in re.finditer(f"(`?){re.escape(mark)}(`?)", self._held):
            at_end = found.end() == len(self._held) and not final
            if found[1] and (found[2] or at_end):
                if at_end and not found[2]:
                    return None
                continue
            return found.start() + len(found[1])
        return None

    def _answer_begin_after_thinking(self, final: bool) -> bool:
        return self._skip_space(self._answer_begin, final)

    def _answer_begin(self, final: bool) -> bool:
        """The start of an answer that is a call as a whole."""
        read = self._readers.get("")
        taken = read is not None and self._call(0, "", read, final)
        if taken is None:
            return False
        self._state = self._answer
        return True

    def _answer(self, final: bool) -> bool:
        marks = [mark for mark in self._readers if mark]
        opening = self._form.thinking[0] if self._form.thinks_anywhere else ""
        stray = self._form.thinking[1] if self._form.thinks_anywhere else ""
        found = [(self._held.find(mark), mark) for mark in (*marks, opening, stray) if mark and mark in self._held]
        if not found:
            keep = (
                0 if final else max((overlap(self._held, mark) for mark in (*marks, opening, stray) if mark), default=0)
            )
            self._report("answer", len(self._held) - keep)
            return False
        place, mark = min(found)
        self._report("answer", place)
        if mark == opening:
            self._open(len(mark))
        elif mark == stray:
            self._report("mark", len(mark), "")
        else:
            taken = self._call(len(mark), mark, self._readers[mark], final)
            if taken is None:
                return False
            if not taken:
                self._report("answer", len(mark))
        return True

    def _call(self, start: int, mark: str, read: Read, final: bool) -> bool | None:
        """Take the calls after the held mark; False if there are none, None if that is not certain."""
        cursor = self._cursor(start, final)
        if cursor is None:
            return None
        try:
            calls = read(cursor, self._functions)
        except MoreError:
            return None
        except NoCallError:
            self._tried = 0
            if mark:
                stays("a text begins like a call, but is not one")
            return False
        self._tried = 0
        return self._take(calls, cursor.at)

    def _cursor(self, start: int, final: bool) -> Cursor | None:
        """The held text from `start` on; None if it has hardly grown since it was read."""
        length = len(self._held)
        if not final and self._tried and length - self._tried < self._tried // SLACK:
            return None
        self._tried = length
        return Cursor(self._held, start, final)

    def _take(self, calls: Sequence[Call], length: int) -> bool:
        """Report the calls in the first `length` characters. Returns False, and reports nothing, unless all are calls
        of the tools.
        """
        calls = [call if call.arguments is not None else Call(call.name, {}) for call in calls]
        if not calls or not all(isinstance(call.arguments, Mapping) for call in calls):
            stays("a text begins like a call, but is not one")
            return False
        if self._functions and not all(call.name in self._functions for call in calls):
            stays("it calls a function that is not one of the tools")
            return False
        if self._most is not None:
            calls = calls[: max(0, self._most - self._count)]
        if not calls:
            return False
        text, self._held = self._held[:length], self._held[length:]
        for call in calls:
            self._parts.append(AnswerPart("call", text, call))
            text = ""
        self._count += len(calls)
        return True

    # gpt-oss.

    def _header(self, final: bool) -> bool:
        """The state before a message in a channel."""
        found = HEADER.match(self._held, 0, MOST_HEADER)
        if found is None:
            if len(self._held) >= MOST_HEADER or BROKEN.search(self._held, 1):
                mark = next(mark for mark in STARTS if self._held.startswith(mark))
                self._report("mark", len(mark), "")
                self._state = self._final
                return True
            if final:
                self._report("mark", len(self._held), "")
            return False
        recipient = RECIPIENT.search(found[1])
        if recipient and self._channel_calls and recipient[1] != "assistant":
            return self._channel_call(recipient[1], found.end(), final)
        if recipient and recipient[1] != "assistant":
            self._report("answer", found.end())
            self._state = self._final
        elif "<|channel|>analysis" in found[1]:
            self._open(found.end())
        else:
            self._report("mark", found.end(), "")
            self._state = self._final
        return True

    def _channel_call(self, name: str, start: int, final: bool) -> bool:
        cursor = self._cursor(start, final)
        if cursor is None:
            return False
        try:
            arguments = cursor.value()
            cursor.space()
            if not (final and cursor.at_end):
                cursor.expect("<|call|>", "<|end|>", "<|return|>")
        except MoreError:
            return False
        except NoCallError:
            self._tried = 0
            stays("a text begins like a call, but is not one")
        else:
            self._tried = 0
            if self._take([Call(name, arguments)], cursor.at):
                self._state = self._next_message
                return True
        self._report("answer", start)
        self._state = self._final
        return True

    def _final(self, final: bool) -> bool:
        """The state within a message that is part of the answer."""
        found = [(self._held.find(mark), mark) for mark in ENDS if mark in self._held]
        if not found:
            keep = 0 if final else max(overlap(self._held, mark) for mark in ENDS)
            self._report("answer", len(self._held) - keep)
            return False
        place, mark = min(found)
        self._report("answer", place)
        if mark != "<|start|>":
            self._report("mark", len(mark), "")
        self._state = self._next_message
        return True

    def _next_message(self, final: bool) -> bool:
        """The state after a message."""
        if not self._held:
            return False
        if not final and any(start.startswith(self._held) for start in STARTS):
            return False
        if self._held.startswith(STARTS):
            self._state = self._header
        else:
            self._report("mark", len("<|start|>") * self._held.startswith("<|start|>"), "")
            self._state = self._final
        return True


def stays(reason: str) -> None:
    fall_back("a call of a tool", reason, "it stays in the answer's text")
