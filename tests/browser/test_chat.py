"""Conversations: requests to the page, and `build.py run --chat` in a terminal."""

from __future__ import annotations

import itertools
import json
import os
import select
import signal
import subprocess
import sys
import time
from typing import Any

import pytest

from buildtools import ROOT
from capstan import Model, Tokenizer
from capstan.text.stream import alike
from capstan_host.testing.harness import Harness
from tests import oracle
from tests.chat_templates import CHATS, ENDLESS, TEMPLATES, VARIABLES
from tests.chat_templates import oracle as oracle_text

FOLDER = ROOT / "tests/fixtures/nano-qwen2"
SECONDS = 240
NEW = 8


def chat(harness: Harness, *messages: tuple[str, str], **options: Any) -> dict[str, Any]:
    return harness.reply(
        {
            "kind": "chat",
            "model": "/models/nano-qwen2/",
            "dtype": None,
            "device": "webgpu",
            "capture": "tape",
            "run_ahead": None,
            "messages": [{"role": role, "content": content} for role, content in messages],
            "max_length": None,
            "max_new_tokens": NEW,
            "search": {"do_sample": False},
            **options,
        }
    )


def prompt_of(*turns: str) -> list[int]:
    """The ids of a conversation's prompt, users' and model's messages in turn."""
    said = zip(itertools.cycle(["user", "assistant"]), turns, strict=False)
    text = "".join(f"<|im_start|>{role}\n{content}<|im_end|>\n" for role, content in said)
    return Tokenizer(Model(str(FOLDER))).encode(f"{text}<|im_start|>assistant\n")


def picked(prompt: list[int], count: int) -> list[int]:
    """The oracle's ids behind a prompt."""
    return oracle.drive(FOLDER, [("append", prompt), ("generate", count)]).picked


def test_a_conversation_has_the_oracles_ids_and_keeps_what_was_computed(harness: Harness) -> None:
    ready = chat(harness)
    assert ready["ok"], ready
    # A message may come at once: its first token does not wait for a recording.
    assert (ready["result"]["capture"], ready["result"]["max_length"]) == ("off", 512)
    assert ready["result"]["capture_note"] == "the decode step is recorded after the first token"
    first = chat(harness, ("user", "hello"))["result"]
    messages = [("user", "hello"), ("assistant", first["text"]), ("user", "more")]
    second = chat(harness, *messages)["result"]
    assert harness.text() == second["text"]
    prompt, whole = prompt_of("hello"), prompt_of("hello", first["text"], "more")
    assert first["token_ids"] == picked(prompt, NEW)
    assert second["token_ids"] == picked(whole, NEW)
    assert (first["kept_tokens"], second["kept_tokens"]) == (0, alike([*prompt, *first["token_ids"]], whole))
    assert second["kept_tokens"] >= len(prompt)
    assert second["sequence_tokens"] == len(whole) + NEW
    refused = chat(harness, *messages, ("user", "x" * 600))
    assert refused["error"]["type"] == "PromptError"
    again = chat(harness, *messages)["result"]
    assert again["token_ids"] == second["token_ids"]
    assert harness.errors == []


RENDER = """
import json, sys
from capstan.text.chat_template import render
templates, endless, variables = json.loads(sys.argv[1])
for template in [*templates, *endless, "right afterwards: {{ [none] }}"]:
    try:
        text = render(template, variables)
    except Exception as error:
        text = type(error).__name__ + ": "
    print(json.dumps(text))
"""


def test_templates_print_as_jinja2_does_and_end(harness: Harness) -> None:
    templates, endless = [*TEMPLATES, *CHATS], ENDLESS[::8]
    done = harness.exec(RENDER, argv=[json.dumps([templates, endless, VARIABLES])])
    assert done.status == 0, done.stderr
    *found, last = map(json.loads, done.stdout.splitlines())
    assert last == "right afterwards: [None]"
    for template, text in zip(templates, found, strict=False):
        wanted = oracle_text(template, VARIABLES)
        assert text == wanted or (text.endswith("Error: ") and wanted.startswith(text)), template
    assert all(text.endswith("Error: ") for text in found[len(templates) :])


DESTROY = """
import asyncio
from capstan._js import host_calls

host_calls.gpu().destroy_device()
await asyncio.sleep(0.5)
"""


def test_a_prompt_is_a_message_if_that_is_asked_and_the_model_has_a_template(harness: Harness) -> None:
    def prompt_ids(model: str, **options: Any) -> list[int]:
        about = {"dtype": None, "device": "webgpu", "capture": "tape", "run_ahead": None, "max_new_tokens": 1}
        prompt = {"prompt": "hello", "prompt_ids": None}
        reply = harness.reply(
            {"kind": "generate", "model": f"/models/{model}/", "search": {}, **about, **prompt, **options}
        )
        assert reply["ok"], reply
        ids: list[int] = reply["result"]["prompt_ids"]
        return ids

    qwen2 = Tokenizer(Model(str(FOLDER.with_name("nano-qwen2"))))
    message = qwen2.encode("<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n")
    assert prompt_ids("nano-qwen2", as_message=True) == message
    system = qwen2.encode("<|im_start|>system\nBe brief.<|im_end|>\n")
    assert prompt_ids("nano-qwen2", as_message=True, system="Be brief.") == [*system, *message]
    assert prompt_ids("nano-qwen2") == qwen2.encode("hello")
    assert prompt_ids("nano-llama", as_message=True) == oracle.prompt(FOLDER.with_name("nano-llama"), "hello")


@pytest.mark.extended
def test_a_device_that_is_lost_between_two_answers_takes_no_ids_along(harness: Harness) -> None:
    count = 19
    question = "what is a web page"
    first = chat(harness, ("user", question), max_new_tokens=count)["result"]
    assert harness.exec(DESTROY).status == 0
    messages = [("user", question), ("assistant", first["text"]), ("user", "more")]
    second = chat(harness, *messages, max_new_tokens=count)["result"]
    assert first["token_ids"] == picked(prompt_of(question), count)
    assert second["token_ids"] == picked(prompt_of(question, first["text"], "more"), count)
    assert second["kept_tokens"] == 0


def test_a_model_without_a_chat_template_is_refused(harness: Harness) -> None:
    error = chat(harness, model="/models/nano-llama/")["error"]
    assert error["type"] == "ConfigError"
    assert error["message"].startswith("/models/nano-llama/ has no chat template (")


@pytest.mark.extended
@pytest.mark.skipif(sys.platform == "win32", reason="there are no pseudo terminals")
def test_a_conversation_in_a_terminal_is_stopped_by_ctrl_c_and_ended_by_ctrl_d() -> None:
    ours, theirs = os.openpty()
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "build.py"), "run", "--chat", "--greedy", "--model", str(FOLDER)],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        env={**os.environ, "CAPSTAN_ADAPTER": "software", "TERM": "dumb"},
    )
    os.close(theirs)
    shown = b""

    def wait_for(text: bytes) -> bytes:
        nonlocal shown
        deadline = time.monotonic() + SECONDS
        while text not in shown:
            assert time.monotonic() < deadline, shown
            if select.select([ours], [], [], 1)[0]:
                shown += os.read(ours, 4096)
        before, _, shown = shown.partition(text)
        return before

    try:
        wait_for(b"Ctrl-C stops an answer\r\n> ")
        os.write(ours, b"hello\n")
        wait_for(b"hello\r\n")
        while not shown.strip():
            shown += os.read(ours, 4096)
        os.killpg(process.pid, signal.SIGINT)
        wait_for(b"stopped; the answer so far is part of the conversation\r\n> ")
        os.write(ours, b"more\n")
        wait_for(b"the conversation fills max_length (512 tokens): /reset begins a new one")
        wait_for(b"\n> ")
        os.write(ours, b"\x04")
        assert process.wait(SECONDS) == 0
    finally:
        process.kill()
        os.close(ours)
