"""Writes the log of the native package: lines about a generator's work, to a function, a file or the error output."""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Callable
from math import fsum, sqrt
from pathlib import Path
from typing import Any

from ..errors import OptionError
from ..fallback import fall_back

__all__ = [
    *("fields", "log", "log_logits", "log_tensor", "logs", "set_log_callback", "set_log_options", "tensor_lines"),
]

SWITCHES = (
    *("enabled", "ansi_tags", "warning", "generate_next_token", "append_next_tokens", "hit_eos", "hit_max_length"),
    *("model_input_values", "model_output_shapes", "model_output_values", "model_logits", "value_stats", "ort_lib"),
)
"""Log options that are on or off; `filename` is a text."""
SHOWN = 5
"""The number of values shown at each end of a tensor."""
TYPES = {"l": "int64", "q": "int64", "f": "float32", "e": "float16", "H": "float16"}
"""Element types by the format of a memoryview; without numpy, float16 is shown as its bits."""

on = dict.fromkeys(SWITCHES, False) | dict.fromkeys(("ansi_tags", "warning", "value_stats"), True)
sinks: list[Callable[[str], Any] | Path] = []
"""The function or the file that receives the lines, whichever was set last."""


def set_log_options(**options: Any) -> None:
    """Set switches of the log, and its `filename`. Nothing is written before `enabled` is True; the filename "" closes
    the file. Lines of tensors need runs of the whole sequence, like get_input and get_output. Lines of onnxruntime are
    not written; turning them on is a fallback, with a warning. OptionError for an unknown name, a value of another
    type, or a file that cannot be written.
    """
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
        if value and name == "ort_lib":
            fall_back("log option ort_lib", "onnxruntime's own log is not read", "capstan.trace shows what it does")


def set_log_callback(callback: Callable[..., Any] | None, /) -> None:
    """Pass each line to a function; None stops this."""
    sinks[:] = [] if callback is None else [callback]


def to_file(name: str) -> None:
    """Open a file for the lines."""
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
        write(f"{label(kind)}{text}\n")


def label(kind: str) -> str:
    return tagged(f"  {kind}  ", "1m\033[44") + " "


def tagged(text: str, colour: str = "32") -> str:
    return f"\033[{colour}m{text}\033[0m" if on["ansi_tags"] else text


def tensor_lines() -> bool:
    """Whether lines of any tensors are written."""
    return any(map(logs, ("model_input_values", "model_output_shapes", "model_output_values", "model_logits")))


def log_tensor(name: str, tensor: Any, values: bool) -> None:
    """Write a tensor's name and shape, and its values if there are any and they are enabled. As in the native package,
    a shape without values ends without a line break.
    """
    view = memoryview(tensor)
    shape = view.shape or ()
    sizes = "".join(f"{size} " for size in shape)
    described = f"{tagged(f'ShapeDims[ {view.ndim}]')}{tagged('Shape[ ')}{sizes}{tagged(']')}"
    write(f"{tagged('Name: ')}{name} {described}{tagged(' Type: ')}{TYPES[view.format]}{tagged(' Location: ')}CPU\r\n")
    if values and 0 not in shape:
        write_values(view)


def log_logits(tensor: Any) -> None:
    """Write the values of the next token's logits."""
    write_values(memoryview(tensor), label("model_logits"))
    write("\n")


def write_values(view: memoryview[Any], before: str = "") -> None:
    """Write the first and the last values of a tensor, and the statistics of floats."""
    data = view.cast("B")
    floats = view.format in "feH"
    found: array[Any] = array("f" if floats else "q")
    if view.itemsize == 2:
        # The array module has no float16.
        found.extend(struct.unpack(f"{len(data) // 2}e", data))
    else:
        found.frombytes(data)
    ends = found if len(found) <= 2 * SHOWN else (*found[:SHOWN], *found[-SHOWN:])
    shown = [f"{value:g}" if floats else str(value) for value in ends]
    if len(found) > len(ends):
        shown.insert(SHOWN, "...")
    write(f"{before}{tagged('Values[ ')}{' '.join(shown)} {tagged(']')}\n")
    if floats and on["value_stats"]:
        least, most, mean = min(found), max(found), fsum(found) / len(found)
        deviation = sqrt(fsum((value - mean) ** 2 for value in found) / len(found))
        places = [f"{value:g} at index[{found.index(value)}]" for value in (least, most)]
        described = zip(("Min", "Max", "Mean", "StdDev"), (*places, f"{mean:g}", f"{deviation:g}"), strict=True)
        log("value_stats", "".join(f"{tagged(f' {name}: ', '36')}{value}" for name, value in described))


def fields(**values: object) -> str:
    """Names and values in the form of a log line, the last name in another colour."""
    *_, last = values
    found = []
    for name, value in values.items():
        label = tagged(f"{name.replace('sequence_', 'sequence ')}: ", "36" if name == last else "32")
        found.append(f"{label}{value}")
    return " ".join(found)


def write(line: str) -> None:
    if not sinks:
        sys.stderr.write(line)
    elif callable(sinks[0]):
        sinks[0](line)
    else:
        with sinks[0].open("a", encoding="utf-8") as file:
            file.write(line)
