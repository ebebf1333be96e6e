"""Text from a pipe or a file follows the prompt of `run`."""

from __future__ import annotations

import argparse
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from buildtools import cli
from capstan_host import piped, terminal
from capstan_host.command_errors import CommandError
from capstan_host.commands import run as run_command
from capstan_host.piped import is_piped, read_piped, with_piped

NANO = Path(__file__).parents[1] / "fixtures/nano-llama"


@pytest.fixture
def stdin(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], None]]:
    """Makes a descriptor the standard input."""
    opened = []

    def given(descriptor: int) -> None:
        opened.append(os.fdopen(descriptor))
        monkeypatch.setattr("sys.stdin", opened[-1])

    yield given
    for each in opened:
        each.close()


def pipe(data: bytes) -> int:
    ours, theirs = os.pipe()
    os.write(theirs, data)
    os.close(theirs)
    return ours


def test_pipes_and_files_are_read_and_nothing_else(stdin: Callable[[int], None], tmp_path: Path) -> None:
    stdin(pipe(b"a \xc3\xa9\nb\r\n\n"))
    assert is_piped()
    assert read_piped() == "a é\nb"
    (tmp_path / "text").write_text("from a file\n")
    stdin(os.open(tmp_path / "text", os.O_RDONLY))
    assert is_piped()
    assert read_piped() == "from a file"
    stdin(os.open(os.devnull, os.O_RDONLY))
    assert not is_piped()


def test_no_standard_input_is_no_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", None)
    assert not is_piped()


def test_other_bytes_than_text_are_refused(stdin: Callable[[int], None]) -> None:
    stdin(pipe(b"\xff\xfe"))
    with pytest.raises(CommandError, match="^the piped text is not UTF-8"):
        read_piped()


def test_a_pipe_that_stays_open_is_told_of(
    stdin: Callable[[int], None], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told = threading.Event()
    monkeypatch.setattr(piped, "QUIET_SECONDS", 0.0)
    ours, theirs = os.pipe()
    stdin(ours)
    say = terminal.say

    def said(text: str) -> None:
        say(text)
        told.set()

    def close() -> None:
        told.wait(5)
        os.close(theirs)

    monkeypatch.setattr(piped, "say", said)
    threading.Thread(target=close).start()
    assert read_piped() == ""
    assert told.is_set()
    assert capsys.readouterr().err.startswith("reading the standard input to its end")


def test_piped_text_follows_the_prompt() -> None:
    assert with_piped("Summarise:", "a\nb") == "Summarise:\n\na\nb"
    assert with_piped(None, "a") == "a"
    assert with_piped("x", "") == "x"
    with pytest.raises(CommandError, match="the prompt is empty, and so is the piped text"):
        with_piped(None, "")


@pytest.mark.parametrize(
    ("argv", "prompt"),
    [(["Summarise:"], "Summarise:\n\ntext"), ([], "text"), (["--prompt-ids", "1,2"], None)],
)
def test_run_asks_for_the_prompt_and_the_piped_text(
    argv: list[str], prompt: str | None, stdin: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    async def generate(args: argparse.Namespace) -> int:
        asked.append(args.request["prompt"])
        return 0

    monkeypatch.setattr(run_command, "generate", generate)
    stdin(pipe(b"text\n"))
    args = cli.parse(["run", *argv, "--model", str(NANO)])
    run_command.check(args)
    assert run_command.run(args) == 0
    assert asked == [prompt]
