"""Makes public functions refuse arguments of wrong types, by their annotations.

    check_arguments(sys.modules[__name__])      # the last line of a public package

wraps every function in the package's `__all__` and every public method of its classes. An argument that its annotation
does not allow raises ArgumentTypeError before the function runs. Annotations are read at the first call.

An integer has `__index__` and a number has `__float__`, but neither is a bool; a bool is also 0 or 1; texts and bytes
are not lists. The items of a list, tuple, set or dict are checked, those of an iterator or an array are not. `Any` and
`object` allow everything, and the function checks by itself. The names of `**options: Unpack[Options]` are checked,
too; `inspect.signature` shows them as parameters, with the `default` of the last part of an `Annotated` type.
"""

from __future__ import annotations

import builtins
import inspect
import operator
import re
import reprlib
import sys
import types
import typing
from collections import abc
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from itertools import accumulate
from types import FunctionType, ModuleType
from typing import Any

from .errors import ArgumentTypeError

__all__ = ["check_arguments", "check_methods", "checked", "read_annotations"]

CALLED = ("__init__", "__call__", "__getitem__", "__setitem__", "__delitem__")
"""Methods without a public name that take users' arguments."""
SUBSCRIPT = re.compile(r"\b(array|memoryview)\[\w+\]")
"""Classes with an item type in annotations, which not every Python can evaluate."""
_done: set[type] = set()
_made: list[Signature] = []


def package_of(module: str) -> str:
    """The name of a module's top package."""
    return module.partition(".")[0]


OURS = package_of(__name__)


def check_arguments(module: ModuleType, themselves: tuple[type, ...] = ()) -> None:
    """Have the public functions and classes of a package check their arguments, except the constructors of the classes
    in `themselves`, which accept more types than those of their fields. Names that the package imports later are left
    out: their own modules also call this function.
    """
    for name in module.__all__:
        public = vars(module).get(name)
        if isinstance(public, FunctionType):
            setattr(module, name, checked(public, name))
        elif isinstance(public, type) and not issubclass(public, BaseException):
            for base in public.__mro__:
                if package_of(base.__module__) in (package_of(module.__name__), OURS) and base not in _done:
                    _done.add(base)
                    check_methods(base, name, constructor=base not in themselves)


def read_annotations() -> None:
    """Read all annotations now instead of at the first calls, for the memory snapshot from which pages start."""
    for signature in _made:
        signature.read()


def check_methods(kind: type, public: str, constructor: bool = True) -> None:
    """Have the public methods of a class check their arguments; messages call the class `public`."""
    for name, member in list(vars(kind).items()):
        where = public if name == "__init__" else f"{public}.{name}"
        if (name.startswith("_") and name not in CALLED) or (name == "__init__" and not constructor):
            continue
        if isinstance(member, FunctionType):
            setattr(kind, name, checked(member, where))
        elif isinstance(member, classmethod | staticmethod):
            setattr(kind, name, type(member)(checked(member.__func__, where)))
        elif isinstance(member, property) and isinstance(member.fset, FunctionType):
            setattr(kind, name, member.setter(checked(member.fset, where)))


def checked(function: Any, where: str) -> Any:
    """The function, with its arguments checked; messages call it `where`."""
    hints = function.__annotations__
    if all(name == "return" or hint in ("Any", "object") for name, hint in hints.items()):
        return function
    check = Signature(function, where).check
    if inspect.iscoroutinefunction(function):

        @wraps(function)
        async def awaited(*args: Any, **kwargs: Any) -> Any:
            check(args, kwargs)
            return await function(*args, **kwargs)

        return shown(awaited)

    @wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        check(args, kwargs)
        return function(*args, **kwargs)

    return shown(called)


def shown(function: Any) -> Any:
    """The function, with the options of a class as parameters in its signature."""
    kinds = [str(kind) for kind in function.__annotations__.values() if str(kind).startswith("Unpack[")]
    if not kinds:
        return function
    options = inspect.unwrap(function).__globals__[kinds[0][len("Unpack[") : -1]]
    signature = inspect.signature(function)
    parameters = [each for each in signature.parameters.values() if each.kind is not each.VAR_KEYWORD]
    described = typing.get_type_hints(options, include_extras=True)
    for name, kind in typing.get_type_hints(options).items():
        default = getattr(getattr(described[name], "__metadata__", (None,))[-1], "default", None)
        written = re.sub(r"\b[\w.]+\.(?=\w)", "", inspect.formatannotation(kind))
        keyword = inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=written)
        parameters.append(keyword)
    function.__signature__ = signature.replace(parameters=parameters)
    return function


@dataclass(frozen=True)
class Test:
    """Whether a value is of a type."""

    wanted: str
    """The type in words."""
    holds: Callable[[Any], bool]
    at_once: frozenset[type] = frozenset()
    """Classes whose instances need no further check."""

    def allows(self, value: object) -> bool:
        """Whether a value is of the type."""
        return type(value) in self.at_once or self.holds(value)


class Signature:
    """The types of a function's parameters."""

    def __init__(self, function: Any, where: str) -> None:
        self._function, self._where = function, where
        self._named: dict[str, Test] | None = None
        self._placed: list[tuple[str, Test]] = []
        self._rest: tuple[str, Test] | None = None
        self._closed = False
        """Whether the names of keywords are known."""
        _made.append(self)

    def check(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Raise ArgumentTypeError for an argument of a wrong type. The call itself reports too many, missing or unknown
        arguments, unless it takes options of a class.
        """
        named = self._named
        if named is None:
            named = self.read()
        for (name, test), value in zip(self._placed, args, strict=False):
            if type(value) not in test.at_once and not test.holds(value):
                raise self._refused(name, value, test)
        for name, value in kwargs.items():
            if name not in named:
                if self._closed:
                    whose = self._function.__qualname__
                    raise TypeError(f"{whose}() got an unexpected keyword argument {name!r}")
            elif not named[name].allows(value):
                raise self._refused(name, value, named[name])
        if self._rest is not None:
            name, test = self._rest
            for place, value in enumerate(args[len(self._placed) :]):
                if not test.allows(value):
                    raise self._refused(f"{name}[{place}]", value, test)

    def read(self) -> dict[str, Test]:
        """The tests of the arguments by name; they are kept unless a class in the annotations is not loaded yet."""
        named: dict[str, Test] = {}
        placed, names = [], Names(inspect.unwrap(self._function).__globals__)
        for name, parameter in inspect.signature(self._function).parameters.items():
            hint = parameter.annotation
            if isinstance(hint, str):
                hint = eval(SUBSCRIPT.sub(r"\1", hint), {}, names)
            if typing.get_origin(hint) is typing.Unpack and parameter.kind is parameter.VAR_KEYWORD:
                [options] = typing.get_args(hint)
                named |= {each: test_of(kind) for each, kind in typing.get_type_hints(options).items()}
                self._closed = True
                continue
            test = ANYTHING if hint is parameter.empty else test_of(hint)
            if parameter.kind is parameter.VAR_POSITIONAL:
                self._rest = (name, test)
            elif parameter.kind is not parameter.VAR_KEYWORD:
                if parameter.kind is not parameter.KEYWORD_ONLY:
                    placed.append((name, test))
                if parameter.kind is not parameter.POSITIONAL_ONLY:
                    named[name] = test
        self._placed, self._named = placed, None if names.unknown else named
        return named

    def _refused(self, name: str, value: object, test: Test) -> ArgumentTypeError:
        kind = type(value).__name__
        return ArgumentTypeError(f"{self._where}: {name} is {reprlib.repr(value)}, of type {kind}; give {test.wanted}")


class Names(dict[str, Any]):
    """The names in a module's annotations. A name that only a type checker imports is looked up in the packages around
    the module, then anywhere.
    """

    def __init__(self, module: dict[str, Any]) -> None:
        super().__init__(module)
        self.unknown = False
        """Whether a requested class is in a module that is not loaded, so that it has no instances yet."""

    def __missing__(self, name: str) -> Any:
        around = list(accumulate(self["__name__"].split("."), "{}.{}".format))
        for module in (builtins, sys.modules[__name__], *(sys.modules[package] for package in reversed(around))):
            if name in vars(module):
                return vars(module)[name]
        for place, module in list(sys.modules.items()):
            if package_of(place) in (around[0], OURS) and getattr(vars(module).get(name), "__module__", "") == place:
                return vars(module)[name]
        self.unknown = True
        return type(name, (), {})


class Buffer:
    """In annotations: any object that `memoryview` takes, like collections.abc.Buffer in later Pythons."""


ANYTHING = Test("anything", lambda value: True)


def test_of(hint: Any) -> Test:
    """The test of a type in an annotation."""
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if hint in (Any, object):
        return ANYTHING
    if isinstance(hint, typing.TypeVar):
        return test_of(hint.__bound__ or Any)
    if hint is None or hint is types.NoneType:
        return Test("None", lambda value: value is None, frozenset([types.NoneType]))
    if origin in (typing.Union, types.UnionType):
        return any_of([test_of(part) for part in parts])
    if origin is typing.Literal:
        return Test(" or ".join(map(repr, parts)), lambda value: isinstance(value, str) and value in parts)
    if origin is abc.Callable or hint is abc.Callable:
        return Test("a function", callable)
    kind = origin or hint
    if kind is Buffer:
        return Test("a buffer, as bytes or an array", is_buffer, frozenset([bytes, bytearray, memoryview]))
    if kind in NUMBERS:
        return NUMBERS[kind]
    if kind in (str, bytes, bytearray, memoryview):
        return Test(WORDS[kind], lambda value: isinstance(value, kind), frozenset([kind]))
    if issubclass(kind, abc.Mapping) or typing.is_typeddict(kind):
        return mapping_of(parts if issubclass(kind, abc.Mapping) else ())
    if issubclass(kind, abc.Iterable) and kind.__module__ in ("builtins", "collections.abc"):
        return list_of(kind, parts)
    if getattr(kind, "_is_protocol", False):
        needed = {name for base in kind.__mro__ for name in public_names(base)}
        return Test(f"an object with {', '.join(sorted(needed))}", lambda value: needed <= set(dir(value)))
    article = "an" if kind.__name__[0] in "AEIO" else "a"
    return Test(f"{article} {kind.__name__}", lambda value: isinstance(value, kind), frozenset([kind]))


def any_of(tests: list[Test]) -> Test:
    """One of several types."""
    if ANYTHING in tests:
        return ANYTHING
    at_once = frozenset[type]().union(*(test.at_once for test in tests))
    wanted = " or ".join(test.wanted for test in tests)
    return Test(wanted, lambda value: any(test.holds(value) for test in tests), at_once)


def list_of(kind: type, parts: tuple[Any, ...]) -> Test:
    """The test of an iterable, a collection, a sequence, a tuple or a set; messages call all except tuples and sets a
    list.
    """
    each = [test_of(part) for part in parts if part is not ...] or [ANYTHING]
    fixed = kind is tuple and ... not in parts and len(each) > 1
    exact = kind in (tuple, list, set, frozenset)

    def holds(value: Any) -> bool:
        if isinstance(value, str | bytes | bytearray):
            return False
        if not isinstance(value, kind) and (exact or not looks_like(kind, value)):
            return False
        if fixed:
            return len(value) == len(each) and all(test.allows(item) for test, item in zip(each, value, strict=True))
        [test] = each
        if test is ANYTHING or not isinstance(value, list | tuple | set | frozenset):
            return True
        return all(test.allows(item) for item in value)

    name = kind.__name__ if exact else "list"
    wanted = f"a {name}" if each == [ANYTHING] else f"a {name} in which each item is {each[0].wanted}"
    if fixed:
        wanted = f"a tuple of {', '.join(test.wanted for test in each)}"
    return Test(wanted, holds)


def looks_like(kind: type, value: Any) -> bool:
    """Whether an array, which belongs to no abstract class, can be used as one."""
    if issubclass(kind, abc.Set | abc.Iterator):
        return False
    return not isinstance(value, abc.Mapping | abc.Set) and hasattr(value, "__len__") and hasattr(value, "__getitem__")


def mapping_of(parts: tuple[Any, ...]) -> Test:
    """A mapping, with the types of its keys and values."""
    key, item = (test_of(part) for part in parts) if parts else (ANYTHING, ANYTHING)

    def holds(value: Any) -> bool:
        if not isinstance(value, abc.Mapping):
            return False
        return not isinstance(value, dict) or all(key.allows(name) and item.allows(value[name]) for name in value)

    described = [
        f"each {what} is {test.wanted}" for what, test in (("key", key), ("value", item)) if test is not ANYTHING
    ]
    return Test(f"a dict in which {', '.join(described)}" if described else "a dict", holds)


def public_names(base: type) -> list[str]:
    """The members that a protocol declares."""
    if not getattr(base, "_is_protocol", False) or base.__module__ == "typing":
        return []
    return [name for name in {**vars(base), **inspect.get_annotations(base)} if not name.startswith("_")]


def is_integer(value: Any) -> bool:
    """Whether a value can be used as an index. An array also has `__index__`, which may raise an error."""
    if isinstance(value, bool):
        return False
    try:
        operator.index(value)
    except TypeError:
        return False
    return True


def is_number(value: Any) -> bool:
    """Whether a value converts to a float."""
    if isinstance(value, bool | str | bytes | bytearray):
        return False
    try:
        float(value)
    except OverflowError:
        return True
    except (TypeError, ValueError):
        return False
    return True


def is_buffer(value: Any) -> bool:
    """Whether a value has the buffer protocol."""
    try:
        memoryview(value)
    except TypeError:
        return False
    return True


def is_switch(value: Any) -> bool:
    """Whether a value is a bool (also numpy's), or 0 or 1."""
    return type(value).__name__ in ("bool", "bool_") or (is_integer(value) and operator.index(value) in (0, 1))


NUMBERS = {
    int: Test("an integer", is_integer, frozenset([int])),
    float: Test("a number", is_number, frozenset([int, float])),
    bool: Test("True or False", is_switch, frozenset([bool])),
}
WORDS = {str: "a text", bytes: "bytes", bytearray: "a bytearray", memoryview: "a memoryview"}
