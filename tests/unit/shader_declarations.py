"""The declarations of our kernels as web/src/worker/gpu/wgsl.ts makes them: bindings, constants and workgroup
memory."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from tests.node import started

__all__ = [
    "PACKED",
    "PLAIN",
    "answered",
    "declared_bindings",
    "declared_constants",
    "expanded",
    "workgroup_bytes",
]

PACKED = ("weights", "scales")
"""The bindings of weights in integers."""
PLAIN = dict.fromkeys(
    ("BYTES", "SIXTEENS", "PREPARED", "WIDE", "ACTIVATED", "GELU", "ERF", "DIVIDED", "CAPPED", "PAIRED"), False
)
"""The flags of a product with nothing around it that bindings do not tell."""
SIZES = {"f32": 4, "u32": 4, "vec2<u32>": 8, "vec4<u32>": 16, "vec4<f32>": 16, "mat2x4<f32>": 32}
"""Bytes of an element of an array."""


def expanded(
    shader: str,
    constants: Mapping[str, int | float | bool],
    has: Iterable[str] = (),
    *,
    half: bool = False,
    lanes: int = 0,
) -> dict[str, Any]:
    """The whole WGSL of a kernel, `code`, and its `bindings` as web/src/worker/gpu/wgsl.ts gives them: those that each
    of its operations has, and those in `has`.

    Raises ValueError, with the page's words, for a template that lacks something.
    """
    text: dict[str, Any] = {"shader": shader, "constants": dict(constants), "half": half, "lanes": lanes}
    text["has"] = sorted(has)
    text["floats"] = [name for name, value in constants.items() if isinstance(value, float)]
    return answered(text)


def answered(request: Mapping[str, Any]) -> dict[str, Any]:
    """The answer of wgsl_server.mjs to a request. Raises ValueError with the server's error."""
    return _answer(json.dumps(request, sort_keys=True))


def declared_bindings(kernel: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(name, access) of what a kernel of a FusedStep declares, by binding."""
    text = {name: kernel[name] for name in ("shader", "constants", "half", "lanes")}
    text["floats"] = [name for name, value in kernel["constants"].items() if isinstance(value, float)]
    made = answered({**text, "bindings": dict.fromkeys(kernel["bindings"])})["bindings"]
    assert [(each["group"], each["binding"]) for each in made] == [(0, place) for place in range(len(made))]
    return [(each["name"], each["access"]) for each in made]


def declared_constants(
    shader: str,
    constants: Mapping[str, int | float | bool],
    has: Iterable[str] = (),
    *,
    half: bool = False,
    lanes: int = 0,
) -> dict[str, int]:
    """Given constants, and those that the template computes from them."""
    known = {name: int(value) for name, value in constants.items() if not isinstance(value, float)}
    code = expanded(shader, constants, has, half=half, lanes=lanes)["code"]
    for name, value in re.findall(r"^const (\w+): u32 = (.+?);", code, re.MULTILINE):
        known[name] = _value(value, known)
    return known


def workgroup_bytes(
    shader: str,
    constants: Mapping[str, int | float | bool],
    has: Iterable[str] = (),
    *,
    half: bool = False,
    lanes: int = 0,
) -> int:
    """Bytes of the variables that the workgroups of a kernel share."""
    known = declared_constants(shader, constants, has, half=half, lanes=lanes)
    code = expanded(shader, constants, has, half=half, lanes=lanes)["code"]
    sizes = dict(SIZES)
    for name, kind in re.findall(r"^alias (\w+) = (.+);", code, re.MULTILINE):
        sizes[name] = sizes.get(kind, 0)
    total = 0
    for line in re.findall(r"^var<workgroup>.*", code, re.MULTILINE):
        array = re.match(r"var<workgroup> \w+: array<(.+), ([^,]+)>;", line)
        assert array, line
        assert sizes[array[1]], line
        total += sizes[array[1]] * _value(array[2], known)
    return total


def _value(expression: str, known: Mapping[str, int]) -> int:
    plain = re.sub(r"\b(\d+)u\b", r"\1", expression).replace("/", "//")
    return int(eval(plain, {"max": max, "min": min}, dict(known)))


@cache
def _answer(request: str) -> dict[str, Any]:
    server = _server()
    assert server.stdin
    assert server.stdout
    server.stdin.write(request + "\n")
    server.stdin.flush()
    answer: dict[str, Any] = json.loads(server.stdout.readline())
    if "error" in answer:
        raise ValueError(answer["error"])
    return answer


@cache
def _server() -> subprocess.Popen[str]:
    """Node with the page's code; it ends with this process."""
    return started(Path(__file__).with_name("wgsl_server.mjs"), "--loader:.wgsl=text")
