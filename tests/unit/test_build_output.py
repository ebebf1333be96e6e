"""The output of `run`: text on stdout, everything else on stderr, JSON last."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from capstan_host import terminal
from capstan_host.command_errors import CommandError, raise_remote
from capstan_host.commands.run import summary, tape_counts
from capstan_host.terminal import Output, Progress

RESULT: dict[str, Any] = {
    "model": "Nano, 1 M parameters",
    "text": "ab",
    "token_ids": [1, 2, 3],
    "finish_reason": "length",
    "device": "webgpu",
    "adapter": "google swiftshader",
    "capture": "ort",
    "capture_note": "the tape differs from the eager step",
    "tokens_per_second": 12.34,
    "time_to_first_token_ms": 120.4,
    "speculation": None,
}


def test_text_goes_to_stdout_as_it_is_and_the_rest_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    output = Output()
    output.show({"kind": "status", "text": "loading"})
    for text in ("def f", "():\n", "    return", ""):
        output.show({"kind": "text", "text": text, "token_id": 1})
    output.show({"kind": "stderr", "text": "a warning\n"})
    output.show({"kind": "text", "text": "x\n", "token_id": 1})
    output.end_line()
    captured = capsys.readouterr()
    assert captured.out == "def f():\n    return\nx\n"
    assert captured.err == "loading\na warning\n"


def test_progress_is_a_line_a_quarter_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress()
    for done in range(101):
        progress.update("weights", done * 10**6, 10**8)
    lines = capsys.readouterr().err.splitlines()
    assert lines == [f"weights: {mb}.0 of 100.0 MB" for mb in (25, 50, 75, 100)]


async def test_a_step_that_says_nothing_is_told_with_its_seconds(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(terminal, "TICK_SECONDS", 0.001)
    monkeypatch.setattr(terminal, "PLAIN_TICKS", 10)
    output = Output()
    told: dict[str, None] = {}

    async def until_told(what: str) -> None:
        while what not in told:
            await asyncio.sleep(0.001)
            told.update(dict.fromkeys(capsys.readouterr().err.splitlines()))

    async def ticks(count: int) -> None:
        for _ in range(count):
            await asyncio.sleep(terminal.TICK_SECONDS)

    async with output.ticking("reading"):
        await until_told("reading: 0 s so far")
        output.show({"kind": "status", "text": "preparing"})
        await until_told("preparing: 0 s so far")
        output.show({"kind": "text", "text": "x", "token_id": 1})
        capsys.readouterr()
        await ticks(100)
    await ticks(100)
    assert list(told) == ["reading: 0 s so far", "preparing", "preparing: 0 s so far"]
    assert capsys.readouterr().err == "", "nothing is told while text comes, nor behind the block"


def test_progress_is_one_rewritten_line_on_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    progress = Progress()
    progress.update("weights", 10**8, 10**8)
    progress.line("loaded")
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert error.startswith("\rweights: 100.0 of 100.0 MB\r")
    assert error.endswith("\rloaded\n")


def test_the_summary_is_one_line_that_names_what_was_used_and_why() -> None:
    assert summary(RESULT) == (
        "Nano, 1 M parameters: 3 tokens, 12.3 tokens/s, first token after 120 ms, adapter google swiftshader, "
        "device webgpu, capture ort (the tape differs from the eager step), finished by length"
    )
    assert "- tokens/s, no first token" in summary(
        RESULT | {"token_ids": [], "tokens_per_second": None, "time_to_first_token_ms": None}
    )


def test_a_tape_has_a_line_with_its_counters() -> None:
    names = ("steps", "submits", "readbacks", "readback_bytes", "create_buffer", "create_bind_group", "write_buffer")
    counts = {name: number for number, name in enumerate((*names, "python_crossings"), 1)}
    assert tape_counts(counts) == (
        "tape: 1 steps in 2 submits, 3 readbacks of 4 bytes in all, 8 calls of Python; created: 5 buffers, 6 bind "
        "groups; buffer writes: 7"
    )


def test_an_error_of_the_page_is_an_error_of_the_command() -> None:
    with pytest.raises(CommandError, match="^too long: 9 of 8 tokens$") as caught:
        raise_remote({"type": "PromptError", "message": "too long: 9 of 8 tokens", "traceback": "Traceback ..."})
    assert (caught.value.status, caught.value.detail) == (2, "Traceback ...")
    with pytest.raises(KeyboardInterrupt):
        raise_remote({"type": "KeyboardInterrupt", "message": "", "traceback": ""})
