"""The log of the native package: what a generator does, line by line, to a function, a file or the error output."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..errors import OptionError
from ..fallback import fall_back

__all__ = ["fields", "log", "logs", "set_log_callback", "set_log_options"]

WRITTEN = ("generate_next_token", "append_next_tokens", "hit_eos", "hit_max_length")
"""The switches whose lines Capstan writes."""
SWITCHES = (
    *("enabled", "ansi_tags", *WRITTEN),
    *("warning", "model_input_values", "model_output_shapes", "model_output_values", "model_logits", "ort_lib"),
    "value_stats",
)
"""Log options that are on or off; `filename` is a text."""

on = dict.fromkeys(SWITCHES, False) | {"ansi_tags": True}
sinks: list[Callable[[str], Any] | Path] = []
"""The function or the file that gets the lines, whichever was set last."""


def set_log_options(**options: Any) -> None:
    """Switches of the log, and `filename`: nothing is written before `enabled` is True; "" closes the file. Lines of
    tensors and of onnxruntime are not written: turning these on is a step down, with a warning. OptionError for an
    unknown name, a value of another type, or a file that cannot be written."""
    for name, value in options.items():
        if name not in SWITCHES and name != "filename":
            raise OptionError(f"{name!r} is not a log option; the options are {', '.join(SWITCHES)}, filename")
        if not isinstance(value, str if name == "filename" else bool):
            raise OptionError(f"{name} is {value!r}; it must be {'a text' if name == 'filename' else 'True or False'}")
    for name, value in options.items():
        if name == "filename":
            to_file(value)
            continue
        on[name] = value
        if value and name not in ("enabled", "ansi_tags", *WRITTEN):
            fall_back(f"log option {name}", "Capstan logs tokens, not tensors", "get_input and get_output show tensors")


def set_log_callback(callback: Callable[..., Any] | None, /) -> None:
    """Give each line to a function; None ends that."""
    sinks[:] = [] if callback is None else [callback]


def to_file(name: str) -> None:
    """Begin a file for the lines."""
    if not name:
        sinks.clear()
        return
    try:
        Path(name).write_text("", encoding="utf-8")
    except (OSError, ValueError) as error:
        raise OptionError(f"filename is {name!r}, which cannot be written: {error}") from error
    sinks[:] = [Path(name)]


def logs(kind: str) -> bool:
    """Whether lines of a kind are written."""
    return on["enabled"] and on[kind]


def log(kind: str, text: str) -> None:
    """Write a line of a kind, if its switch is on."""
    if logs(kind):
        start, end = ("\033[1m\033[44m", "\033[0m") if on["ansi_tags"] else ("", "")
        write(f"{start}  {kind}  {end} {text}\n")


def fields(**values: object) -> str:
    """Names and values as a line has them, the last name in another colour."""
    *_, last = values
    found = []
    for name, value in values.items():
        start, end = ("\033[36m" if name == last else "\033[32m", "\033[0m") if on["ansi_tags"] else ("", "")
        found.append(f"{start}{name.replace('sequence_', 'sequence ')}: {end}{value}")
    return " ".join(found)


def write(line: str) -> None:
    if not sinks:
        sys.stderr.write(line)
    elif callable(sinks[0]):
        sinks[0](line)
    else:
        with sinks[0].open("a", encoding="utf-8") as file:
            file.write(line)
