"""The terminal's side of `build.py run --chat`: its requests to the page, its output, and the effect of Ctrl-C."""

from __future__ import annotations

import asyncio
import io
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import pytest

from capstan_host.terminal import Output
from capstan_host.terminal_conversation import Conversation

REQUEST: dict[str, Any] = {"kind": "chat", "messages": [], "max_new_tokens": 5}
LENGTH = 64


class Page:
    """Answers "to X" to X, or what `replies` says; an answer to "long" comes when it is cancelled."""

    def __init__(self, replies: dict[str, dict[str, Any]], on_ask: Callable[[str], None]) -> None:
        self.replies = replies
        self.on_ask = on_ask
        self.asked: list[list[tuple[str, str]]] = []
        self.cancels = 0
        self.cancelled = asyncio.Event()

    async def send(self, request: dict[str, Any]) -> dict[str, Any]:
        if request["kind"] == "cancel":
            self.cancels += 1
            self.cancelled.set()
            return {"ok": True, "result": None}
        assert request.keys() == REQUEST.keys()
        self.asked.append([(message["role"], message["content"]) for message in request["messages"]])
        text = request["messages"][-1]["content"]
        self.on_ask(text)
        if text.startswith("long"):
            await self.cancelled.wait()
            self.cancelled.clear()
        reply = self.replies.get(text, {"text": f"to {text}", "finish_reason": "stop"})
        if "type" in reply:
            return {"ok": False, "error": {"message": "no room", "traceback": "", **reply}}
        # The model's thoughts are no part of the conversation.
        told = {**reply, "text": f"<think>hm</think>{reply['text']}" if reply["text"] else "", "answer": reply["text"]}
        return {"ok": True, "result": {"max_length": LENGTH, **told}}


def talked(
    monkeypatch: pytest.MonkeyPatch,
    lines: str,
    replies: dict[str, dict[str, Any]] | None = None,
    on_ask: Callable[[str], None] = lambda text: None,
    system: str | None = None,
) -> Page:
    """The page after a conversation of these lines."""
    monkeypatch.setattr("sys.stdin", io.StringIO(lines))

    async def run() -> Page:
        page = Page(replies or {}, on_ask)
        await asyncio.wait_for(Conversation(page.send, REQUEST, Output(), system).run(), 10)
        return page

    return asyncio.run(run())


def user(text: str) -> tuple[str, str]:
    return "user", text


def assistant(text: str) -> tuple[str, str]:
    return "assistant", text


def test_each_turn_has_the_messages_before_it_and_reset_forgets_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = talked(monkeypatch, "a\n\n  b \n/reset\nc\n/what\n/exit\nd\n")
    assert page.asked == [[user("a")], [user("a"), assistant("to a"), user("b")], [user("c")]]
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines()[0] == "a new conversation"
    assert captured.err.splitlines()[1].startswith("there is no command /what: /help lists")


def test_help_lists_the_commands_and_asks_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert talked(monkeypatch, "/help\n/exit\n").asked == []
    lines = capsys.readouterr().err.splitlines()
    assert [line.split()[0] for line in lines] == ["/help", "/reset", "/exit", "Ctrl-C"]


def test_a_system_message_is_before_all_others_and_reset_keeps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    page = talked(monkeypatch, "a\n/reset\nb\n", system="Be brief.")
    first = ("system", "Be brief.")
    assert page.asked == [[first, user("a")], [first, user("b")]]


def test_the_end_of_the_input_ends_the_conversation(monkeypatch: pytest.MonkeyPatch) -> None:
    assert talked(monkeypatch, "a\n/usr is a folder").asked[1][-1] == user("/usr is a folder")


@pytest.mark.parametrize(
    ("reply", "said", "kept"),
    [
        (
            {"text": "part", "finish_reason": "length", "context_full": True},
            "the conversation fills max_length (64 tokens): /reset",
            True,
        ),
        (
            {"text": "part", "finish_reason": "length", "context_full": False},
            "the answer ends at --max-new-tokens 5\n",
            True,
        ),
        ({"type": "PromptError"}, "error: no room\n/reset begins a new conversation, --max-length N", False),
        ({"type": "DeviceLostError"}, "error: no room\n", False),
        ({"type": "KeyboardInterrupt"}, "stopped\n", False),
    ],
)
def test_how_an_answer_ended_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], reply: dict[str, Any], said: str, kept: bool
) -> None:
    page = talked(monkeypatch, "a\nb\n", {"a": reply})
    assert page.asked[1] == ([user("a"), assistant("part"), user("b")] if kept else [user("b")])
    assert capsys.readouterr().err.startswith(said)


def interrupted(text: str) -> None:
    if text.startswith("long"):
        os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize(("part", "kept"), [("par", True), ("", False)])
def test_ctrl_c_stops_the_answer_and_not_the_conversation(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], part: str, kept: bool
) -> None:
    before = signal.getsignal(signal.SIGINT)
    reply = {"text": part, "finish_reason": "abort"}
    page = talked(monkeypatch, "long\nb\n", {"long": reply}, interrupted)
    assert page.cancels == 1
    assert page.asked[1] == ([user("long"), assistant("par"), user("b")] if kept else [user("b")])
    assert capsys.readouterr().err.startswith("stopped")
    assert signal.getsignal(signal.SIGINT) is before


def test_ctrl_c_again_ends_the_command_where_the_answer_does_not_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    async def stuck(page: Page, request: dict[str, Any]) -> dict[str, Any]:
        interrupted("long")
        await asyncio.Event().wait()
        return {}

    monkeypatch.setattr(Page, "send", stuck)
    with pytest.raises(asyncio.CancelledError):
        talked(monkeypatch, "long\n")


def test_ctrl_c_at_the_prompt_drops_the_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    presses = [signal.SIGINT]

    def typed() -> str | None:
        if presses:
            os.kill(os.getpid(), presses.pop())
        return sys.stdin.readline()

    monkeypatch.setattr("capstan_host.terminal_conversation.read_line", typed)
    assert talked(monkeypatch, "a\n/exit\n").asked == [[user("a")]]
    told = "/help lists the commands, /reset begins a new conversation, /exit or Ctrl-D ends, Ctrl-C stops an answer"
    assert capsys.readouterr().err == f"\n{told}\n"
