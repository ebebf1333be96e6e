"""What the templates of web/src/shaders declare: bindings, constants and workgroup memory."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import CodeType

__all__ = ["declared_bindings", "declared_constants", "workgroup_bytes"]

SHADERS = Path(__file__).parents[2] / "web" / "src" / "shaders"
SIZES = {"f32": 4, "u32": 4, "vec2<u32>": 8, "vec4<u32>": 16, "vec4<f32>": 16, "mat2x4<f32>": 32}
"""Bytes of an element of an array."""


def declared_bindings(shader: str, conditions: Mapping[str, bool]) -> list[tuple[str, str]]:
    """(name, access) of what a template declares where these conditions hold, by binding."""
    return _bindings(shader, tuple(sorted(conditions.items())))


def declared_constants(shader: str, constants: Mapping[str, int | float | bool]) -> dict[str, int]:
    """Given constants, and those that the template computes from them."""
    known = {name: int(value) for name, value in constants.items() if not isinstance(value, float)}
    for name, value in _parsed(shader, _conditions(constants))[0]:
        known[name] = eval(value, {"min": min}, known)
    return known


def workgroup_bytes(shader: str, constants: Mapping[str, int | float | bool]) -> int:
    """Bytes of the variables that the workgroups of a template share."""
    known = declared_constants(shader, constants)
    return sum(size * eval(count, {}, known) for size, count in _parsed(shader, _conditions(constants))[1])


def _conditions(constants: Mapping[str, int | float | bool]) -> tuple[tuple[str, bool], ...]:
    return tuple(sorted((name, value) for name, value in constants.items() if isinstance(value, bool)))


@cache
def _lines(shader: str, sorted_conditions: tuple[tuple[str, bool], ...]) -> list[str]:
    """The lines that are there where these conditions hold."""
    conditions = dict(sorted_conditions)
    found: list[str] = []
    active = [True]
    for line in (SHADERS / f"{shader}.wgsl").read_text().splitlines():
        word = line.split()
        if word[:1] == ["#if"]:
            active.append(active[-1] and conditions[word[1]])
        elif word[:1] == ["#else"]:
            active[-1] = active[-2] and not active[-1]
        elif word[:1] == ["#endif"]:
            active.pop()
        elif active[-1]:
            found.append(line)
    assert active == [True], "#if without #endif"
    return found


@cache
def _bindings(shader: str, sorted_conditions: tuple[tuple[str, bool], ...]) -> list[tuple[str, str]]:
    found: list[tuple[int | None, str, str]] = []
    for line in _lines(shader, sorted_conditions):
        declared = re.search(r"@binding\((\w+)\) var<storage, (\w+)> (\w+)", line)
        if declared:
            number, access, name = declared.groups()
            found.append((None if number == "next" else int(number), name, access))
    assert all(number in (None, place) for place, (number, _, _) in enumerate(found))
    return [(name, access) for _, name, access in found]


@cache
def _parsed(
    shader: str, sorted_conditions: tuple[tuple[str, bool], ...]
) -> tuple[list[tuple[str, CodeType]], list[tuple[int, CodeType]]]:
    """Constants with their values, and arrays of workgroup memory: bytes of an element, and how many."""
    sizes = dict(SIZES)
    constants, arrays = [], []
    for line in _lines(shader, sorted_conditions):
        if alias := re.match(r"alias (\w+) = (.+);", line):
            sizes[alias[1]] = sizes.get(alias[2], 0)
        elif constant := re.match(r"const (\w+): u32 = (.+?);", line):
            constants.append((constant[1], _compiled(constant[2])))
        elif line.startswith("var<workgroup>"):
            array = re.match(r"var<workgroup> \w+: array<(.+), ([^,]+)>;", line)
            assert array, line
            assert sizes[array[1]], line
            arrays.append((sizes[array[1]], _compiled(array[2])))
    return constants, arrays


def _compiled(expression: str) -> CodeType:
    return compile(re.sub(r"\b(\d+)u\b", r"\1", expression).replace("/", "//"), "shader", "eval")
