"""Public functions, called with arguments of wrong types; for CPython and pages."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from random import Random
from types import FunctionType
from typing import Any

from capstan import HubRepository, SearchOptions, Speculation
from capstan.errors import ArgumentTypeError

__all__ = ["PACKAGES", "VALUES", "Parameter", "call", "functions", "not_refused", "parameters"]

HOSTS = ("capstan_host.fleet", "capstan_host.testing", "capstan_host.evaluation")
"""Packages that pages lack."""
PACKAGES = (
    *("capstan", "capstan.memory", "capstan.measure", "capstan.notebook", "capstan.genai", "capstan.onnxruntime"),
    *("capstan.embeddings", "capstan.reranking"),
    *(() if sys.platform == "emscripten" else HOSTS),
)
VALUES: tuple[Any, ...] = (
    None,
    5,
    -1,
    1.5,
    float("nan"),
    True,
    "x",
    "\ud800",
    b"x",
    object(),
    [object()],
    [None],
    (1, "x"),
    {"x": 1},
    {5: None},
    len,
    int,
    1j,
)
"""Values of all kinds."""
TAKEN: dict[str, tuple[type, ...]] = {
    "int": (int,),
    "float": (int, float),
    "bool": (bool,),
    "str": (str,),
    **dict.fromkeys(("bytes", "bytearray", "memoryview", "Buffer"), (bytes,)),
    "None": (type(None),),
    **dict.fromkeys(("Sequence", "Iterable", "Collection", "list", "builtins.list", "tuple"), (list, tuple, dict)),
    **dict.fromkeys(("Mapping", "dict", "Given"), (dict,)),
    **dict.fromkeys(
        ("Callable", "Progress", "Account", "LogitsProcessor", "ShortlistProcessor", "Phonemize"), (type, type(len))
    ),
}
"""Types of values that an annotation may allow, by its name; it allows none of the others. Classes are not here."""
ANY = ("Any", "object", "T")
THEMSELVES = (HubRepository, SearchOptions, Speculation)
"""Classes whose constructors take more types than they keep."""


@dataclass(frozen=True)
class Parameter:
    """A parameter of a public function."""

    where: str
    function: Any
    owner: type | None
    """The class of a method with `self`."""
    name: str
    annotation: str
    before: tuple[str, ...]
    """The annotations of what must be given before it, as it has no keyword."""

    def wrong(self) -> Iterator[Any]:
        """Values of types that its annotation does not allow."""
        heads = [part.partition("[")[0] for part in parted(self.annotation)]
        if not set(heads) & set(ANY):
            kinds = {kind for head in heads for kind in TAKEN.get(head, ())}
            for value in VALUES:
                # A bool is an int to Python alone, and so is a nan a number.
                if type(value) not in kinds and not (type(value) is int and float in kinds):
                    yield value


def parted(annotation: str) -> list[str]:
    """The members of a union."""
    parts, depth = [""], 0
    for character in annotation:
        depth += (character == "[") - (character == "]")
        if character == "|" and not depth:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts]


def functions() -> Iterator[tuple[str, Any, type | None]]:
    """Each public function and method, with the class of a method that needs a `self`."""
    for package in PACKAGES:
        module = importlib.import_module(package)
        for name in module.__all__:
            public = getattr(module, name)
            if isinstance(public, FunctionType):
                yield f"{package}.{name}", public, None
            if not isinstance(public, type) or issubclass(public, BaseException) or hasattr(public, "_is_protocol"):
                continue
            for method in dir(public):
                member = inspect.getattr_static(public, method)
                where = f"{package}.{name}.{method}"
                if method.startswith("_") and method not in ("__init__", "__getitem__", "__setitem__"):
                    continue
                if isinstance(member, property):
                    member = member.fset
                if isinstance(member, FunctionType) and in_capstan(member):
                    yield where, member, public
                elif isinstance(member, classmethod | staticmethod) and in_capstan(member.__func__):
                    yield where, getattr(public, method), None


def in_capstan(function: Any) -> bool:
    """Whether it is not inherited from a class of another package."""
    return str(inspect.unwrap(function).__module__).startswith("capstan")


def parameters() -> Iterator[Parameter]:
    """Every parameter, but those of THEMSELVES."""
    for where, function, owner in functions():
        if where.endswith(".__init__") and owner in THEMSELVES:
            continue
        before: list[str] = []
        for name, parameter in list(inspect.signature(function).parameters.items())[owner is not None :]:
            if parameter.kind is parameter.POSITIONAL_ONLY:
                yield Parameter(where, function, owner, name, parameter.annotation, tuple(before))
                before.append(parameter.annotation)
            elif parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
                yield Parameter(where, function, owner, name, parameter.annotation, ())


def bare(kind: type) -> Any:
    """An instance that was not initialised, of an abstract class, too."""
    missing = getattr(kind, "__abstractmethods__", ())
    return object.__new__(type(kind.__name__, (kind,), dict.fromkeys(missing)) if missing else kind)


CALLS = 300
RIGHT: dict[str, Any] = {"int": 1, "str": "x", "bool": True, "float": 1.0, "Any": None}


async def call(parameter: Parameter, value: Any) -> str | None:
    """Give a wrong value: None if the right error comes, else the answer."""
    given: list[Any] = [] if parameter.owner is None else [bare(parameter.owner)]
    for annotation in parameter.before:
        kind = vars(inspect.getmodule(inspect.unwrap(parameter.function))).get(annotation)
        given.append(object.__new__(kind) if isinstance(kind, type) else RIGHT[annotation])
    named = {}
    if inspect.signature(parameter.function).parameters[parameter.name].kind is inspect.Parameter.POSITIONAL_ONLY:
        given.append(value)
    else:
        named[parameter.name] = value
    try:
        found = parameter.function(*given, **named)
        if inspect.isawaitable(found):
            await found
    except ArgumentTypeError as error:
        return None if f"{parameter.name} is " in str(error) else f"told of another argument: {error}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "it was taken"


@cache
def every_wrong() -> list[tuple[Parameter, Any]]:
    """Each parameter of each public function with every value of a wrong type."""
    return [(parameter, value) for parameter in parameters() for value in parameter.wrong()]


async def not_refused(random: Random | None = None) -> tuple[int, list[str]]:
    """Give each parameter of each public function every wrong type, or with `random` CALLS of these: how many there
    were, and what was not refused."""
    wrong = every_wrong() if random is None else random.sample(every_wrong(), CALLS)
    told = []
    for parameter, value in wrong:
        why = await call(parameter, value)
        if why is not None:
            told.append(f"{parameter.where}({parameter.name}: {parameter.annotation} = {value!r:.60}): {why}")
    return len(wrong), told
