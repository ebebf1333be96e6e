"""The error tree is the one drawn at the top of its module."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import capstan
from buildtools.wire import error_codes
from capstan import errors

ROOT = Path(__file__).parents[2]


def drawn() -> dict[str, str]:
    """Parent by class name, as the module's docstring draws them."""
    assert errors.__doc__ is not None
    parents: dict[str, str] = {}
    above: list[tuple[int, str]] = []
    for line in errors.__doc__.splitlines():
        match = re.match(r"([ │├└─]*)([A-Z]\w*Error)\b", line)
        if match is None:
            continue
        depth = len(match[1])
        while above and above[-1][0] >= depth:
            above.pop()
        if above:
            parents[match[2]] = above[-1][1]
        above.append((depth, match[2]))
    return parents


def test_the_drawing_is_the_tree() -> None:
    parents = drawn()
    assert len(parents) == 27
    for name, parent in parents.items():
        assert getattr(errors, name).__bases__[0] is getattr(errors, parent), f"{name} is no child of {parent}"


def test_every_error_is_drawn_and_public() -> None:
    defined = {name for name, value in vars(errors).items() if isinstance(value, type)}
    assert defined == {"CapstanError", *drawn()}
    assert set(errors.__all__) == defined
    for name in defined:
        assert getattr(capstan, name) is getattr(errors, name)


@pytest.mark.parametrize("name", sorted(drawn()))
def test_every_error_is_a_capstan_error_and_says_what_it_means(name: str) -> None:
    kind = getattr(errors, name)
    assert issubclass(kind, errors.CapstanError)
    assert kind.__doc__
    assert str(kind("max_length is 0; it must be at least 1")) == "max_length is 0; it must be at least 1"


@pytest.mark.parametrize(
    "name", ["ArgumentTypeError", "BindingError", "OptionError", "PictureError", "PromptError", "SoundError"]
)
def test_wrong_values_are_value_errors(name: str) -> None:
    assert issubclass(getattr(errors, name), ValueError)


def test_wrong_types_are_type_errors() -> None:
    assert issubclass(errors.ArgumentTypeError, TypeError)


def test_what_catches_the_native_packages_errors_catches_these() -> None:
    assert issubclass(errors.CapstanError, RuntimeError)


def test_a_page_knows_the_name_of_each_error() -> None:
    """TypeScript's type of the codes comes from the list of the names."""
    written = error_codes((ROOT / "py_src/capstan/errors.py").read_text())
    assert re.findall(r'^  \| "(\w+)"', written, re.MULTILINE) == errors.__all__
