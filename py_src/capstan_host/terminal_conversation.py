"""A conversation in the terminal: `chat`, or `run --chat`."""

from __future__ import annotations

import asyncio
import re
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from .command_errors import raise_remote
from .terminal import Output, say
from .trace import trace_query, write_trace

if TYPE_CHECKING:
    from capstan.host.tracing import TraceFile

    from .machine import Machine

with suppress(ImportError):
    import readline  # noqa: F401  # gives input() editing and a history

__all__ = ["Conversation", "converse"]

Send = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]
"""Passes a request to the page and waits for its reply."""

PROMPT = "> "
COMMANDS = {
    "/help": "lists the commands",
    "/reset": "begins a new conversation",
    "/exit": "or Ctrl-D ends",
    "Ctrl-C": "stops an answer",
}
IN_SHORT = ", ".join(f"{name} {what}" for name, what in COMMANDS.items())
COMMAND = re.compile(r"/[a-z]+")


def converse(
    request: dict[str, Any],
    mounts: Mapping[str, Path],
    machine: Machine,
    system: str | None,
    debug: bool,
    trace: TraceFile | None,
) -> int:
    """Read messages and print the model's answers until the input ends; `request` has no messages yet, and `system` is
    the system message before all others.
    """
    try:
        asyncio.run(talk(request, mounts, machine, system, debug, trace))
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
    return 0


async def talk(
    request: dict[str, Any],
    mounts: Mapping[str, Path],
    machine: Machine,
    system: str | None,
    debug: bool,
    trace: TraceFile | None,
) -> None:
    """Open the page, make the model ready, take turns."""

    from .digests import Digests
    from .headless.headless_page import HeadlessPage
    from .site_server import serving

    output = Output()
    try:
        with serving(machine.site(), mounts, digests=Digests()) as server:
            program, query = machine.browser(), trace_query(trace)
            async with HeadlessPage(
                server.url, output.show, None, program, request["device"], debug=debug, query=query
            ) as page:
                async with output.ticking():
                    ready = await page.request(request)
                if not ready["ok"]:
                    raise_remote(ready["error"])
                output.end_line()
                about = ready["result"]
                capture = about["capture"] + (f" ({about['capture_note']})" if about["capture_note"] else "")
                say(f"{about['model']}: device {about['device']}, adapter {about['adapter']}, capture {capture}")
                say(f"at most {about['max_length']} tokens; {IN_SHORT}")
                await Conversation(page.request, request, output, system).run()
                if trace is not None:
                    await write_trace(page, trace)
    finally:
        output.end_line()


class Conversation:
    """Holds the messages so far, and handles Ctrl-C during an answer and between answers."""

    def __init__(self, send: Send, request: dict[str, Any], output: Output, system: str | None = None) -> None:
        self._send = send
        self._request = request
        self._output = output
        self._system = [] if system is None else [{"role": "system", "content": system}]
        self._messages: list[dict[str, str]] = []
        """The messages of the user and the model."""
        self._stop: asyncio.Event | None = None
        """Set to stop the answer that is coming; None between answers."""
        self._reading = False

    async def run(self) -> None:
        """Take turns until /exit or the end of the input."""
        with self._interrupts():
            while (text := self._read()) is not None:
                if text == "/exit":
                    return
                if text == "/reset":
                    self._messages.clear()
                    say("a new conversation")
                elif text == "/help":
                    say("\n".join(f"{name:8}{what}" for name, what in COMMANDS.items()))
                elif COMMAND.fullmatch(text):
                    say(f"there is no command {text}: {IN_SHORT}")
                elif text:
                    await self._turn(text)

    async def _turn(self, text: str) -> None:
        """Send one more message. It is removed again if there is no answer to it."""
        self._messages.append({"role": "user", "content": text})
        async with self._output.ticking("reading the message"):
            reply = await self._reply()
        self._output.end_line()
        if not reply["ok"]:
            self._messages.pop()
            stopped = reply["error"]["type"] == "KeyboardInterrupt"
            say("stopped" if stopped else f"error: {reply['error']['message']}")
            if reply["error"]["type"] == "PromptError":
                say("/reset begins a new conversation, --max-length N allows a longer one")
            return
        result = reply["result"]
        reason = result["finish_reason"]
        if reason == "abort" and not result["text"]:
            self._messages.pop()
            say("stopped before an answer; the message is taken back")
            return
        self._messages.append({"role": "assistant", "content": result["answer"]})
        if reason == "abort":
            say("stopped; the answer so far is part of the conversation")
        elif reason == "length" and result["context_full"]:
            say(
                f"the conversation fills max_length ({result['max_length']} tokens): /reset begins a new one, "
                "--max-length N allows a longer one"
            )
        elif reason == "length":
            say(f"the answer ends at --max-new-tokens {self._request['max_new_tokens']}")

    async def _reply(self) -> dict[str, Any]:
        """The page's reply to the messages; Ctrl-C cancels the request."""
        self._stop = asyncio.Event()
        asking = asyncio.ensure_future(self._send({**self._request, "messages": [*self._system, *self._messages]}))
        stopping = asyncio.ensure_future(self._stop.wait())
        try:
            await asyncio.wait({asking, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not asking.done():
                await self._send({"kind": "cancel"})
            return await asking
        finally:
            self._stop = None
            stopping.cancel()
            asking.cancel()

    @contextmanager
    def _interrupts(self) -> Iterator[None]:
        """Ctrl-C stops an answer, and pressed twice it ends the command; at the prompt it drops the line."""
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None

        def interrupt(_number: int, _frame: FrameType | None) -> None:
            if self._reading:
                raise KeyboardInterrupt
            if self._stop is not None:
                loop.call_soon_threadsafe(task.cancel if self._stop.is_set() else self._stop.set)

        before = signal.signal(signal.SIGINT, interrupt)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    def _read(self) -> str | None:
        """The next line, without the space around it; None at the end of the input."""
        while True:
            try:
                self._reading = True
                line = read_line()
                self._reading = False
                return line if line is None else line.strip()
            except KeyboardInterrupt:
                say("\n" + IN_SHORT)
            except UnicodeDecodeError as error:
                say(f"that line is not {error.encoding} text: write it again")
            finally:
                self._reading = False


def read_line() -> str | None:
    """A line of the standard input, edited where it is a terminal; None at its end."""
    if sys.stdin.isatty() and sys.stdout.isatty():
        try:
            return input(PROMPT)
        except EOFError:
            print(flush=True)
            return None
    if sys.stdin.isatty():
        sys.stderr.write(PROMPT)
        sys.stderr.flush()
    return sys.stdin.readline() or None
