"""Renders chat templates with Jinja2 and transformers' settings, in the page and on CPython. A budget limits the work
of a template.

A template comes with the model: an endless one would block the worker. So everything that it makes or reads is charged:
repeated parts by their length in the template, results of operators, calls and filters by size. An operation that
multiplies a size (`"x" * n`, widths, `replace`) is checked before it runs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Sized
from datetime import datetime
from functools import lru_cache, wraps
from itertools import chain
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, nodes, pass_context
from jinja2.ext import Extension, loopcontrols
from jinja2.meta import find_undeclared_variables
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

__all__ = ["render", "variables_of"]

MOST_WORK = 100_000_000
"""The most characters that one rendering makes or reads; an item of a collection and a call count as ITEM characters, a
part of the body of a loop or macro as PART. A long conversation has WORK_EACH more for each rendered character.
"""
WORK_EACH = 100
ITEM = 100
PART = 50
MOST_GROWN = 10_000_000
"""The most characters that one call may make from fewer."""
MOST_DIGITS = 4300
"""Python's own limit for numbers that are printed."""
LONGEST_TEMPLATE = 200_000
NUMBERS_ARE_VALUES = {"default", "d", "int", "float", "sum", "map", "select", "reject", "truncate", "wordwrap"}
"""Filters whose numbers are not counts."""
AT_MANY_PLACES = {"expandtabs", "indent", "join", "replace", "tojson", "translate", "wordwrap"}
"""Functions that put an argument, or a number of blanks, at many places of a text."""
MOST_LAZY = 100_000
COLLECTIONS: tuple[type[Collection[Any]], ...] = (
    list,
    tuple,
    set,
    frozenset,
    dict,
    type({}.keys()),
    type({}.values()),
    type({}.items()),
)


def render(template: str, variables: Mapping[str, Any]) -> str:
    """The rendered text of a template. Raises jinja2's errors, those of Python's operations, and ValueError beyond the
    budget.
    """
    environment, compiled = _compiled(template)
    environment.begin(variables)
    return compiled.render(**variables)


@lru_cache(maxsize=4)
def variables_of(template: str) -> frozenset[str]:
    """The variables that a template takes, by name; its errors are those of `render`."""
    environment, _ = _compiled(template)
    return frozenset(find_undeclared_variables(environment.parse(template)))


@lru_cache(maxsize=4)
def _compiled(template: str) -> tuple[_Environment, Template]:
    if len(template) > LONGEST_TEMPLATE:
        raise ValueError(f"it has {len(template)} characters; at most {LONGEST_TEMPLATE} are read: shorten it")
    environment = _Environment()
    return environment, environment.from_string(template)


def to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON in transformers' form for chat templates: in the given order, without HTML's escapes."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def strftime_now(format: str) -> str:
    return datetime.now().strftime(format)


def vars_of(namespace: Namespace) -> dict[str, Any]:
    """The variables of a template's namespace, read without its own `__getattribute__`, which finds only these
    variables.
    """
    found: dict[str, Any] = object.__getattribute__(namespace, "_Namespace__attrs")
    return found


class _Generation(Extension):
    """`{% generation %}` marks the assistant's part of a conversation, for training."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


class _Charged(NodeTransformer):
    """Inserts the environment's own filters where a template loops, compares, or makes values without a call."""

    def _repeated(self, node: Any) -> nodes.Node:
        text = sum(len(each.data) for each in node.find_all(nodes.TemplateData))
        parts = sum(1 for _ in node.find_all(nodes.Node))
        self.generic_visit(node)
        cost = nodes.Const(ITEM + text + PART * parts)
        node.body.insert(0, nodes.ExprStmt(_filtered(cost, "spent"), lineno=node.lineno))
        return node  # type: ignore[no-any-return]

    visit_Macro = visit_CallBlock = visit_Block = _repeated  # noqa: N815

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self._repeated(node)
        node.iter = _filtered(node.iter, "looped")
        return node

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:
        self.generic_visit(node)
        node.expr = _filtered(node.expr, "read")
        for operand in node.ops:
            operand.expr = _filtered(operand.expr, "read")
        return node

    def _made(self, node: nodes.Expr) -> nodes.Node:
        self.generic_visit(node)
        return _filtered(node, "made")

    visit_List = visit_Dict = visit_Concat = _made  # noqa: N815

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:
        return self._made(node) if node.ctx == "load" else node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        self.generic_visit(node)
        return _filtered(node, "made") if isinstance(node.arg, nodes.Slice) else node


def _filtered(node: Any, name: str) -> nodes.Filter:
    return nodes.Filter(node, f"capstan {name}", [], [], None, None, lineno=node.lineno)


class _Environment(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset(ImmutableSandboxedEnvironment.default_binop_table)

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation], finalize=self._read
        )
        self.globals |= {"raise_exception": raise_exception, "strftime_now": strftime_now}
        del self.globals["lipsum"]
        self.filters["tojson"] = to_json
        tables: tuple[tuple[dict[str, Any], bool], ...] = ((self.filters, True), (self.tests, False))
        for table, foreseen in tables:
            for name, function in table.items():
                table[name] = self._watched(function, name if foreseen else None)
        # With a context, since a filter of only constants would be computed once, while the template is compiled.
        spent = pass_context(lambda context, cost: self._charge(cost))
        self.filters |= {"capstan looped": self._looped, "capstan spent": spent}
        self.filters |= {"capstan made": self._made, "capstan read": self._read}
        self.begin({})

    def begin(self, variables: Mapping[str, Any]) -> None:
        """Begin a rendering, with the whole budget for these variables."""
        self._weights: dict[int, tuple[Any, int]] = {}
        """By the address of a kept collection, its size."""
        self._most = self._left = MOST_WORK + WORK_EACH * sum(map(self._weight, variables.values()))

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        found: nodes.Template = _Charged().visit(super()._parse(source, name, filename))
        found.set_environment(self)
        return found

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        given = (*args, *kwargs.values())
        receiver = getattr(__obj, "__self__", None)
        __self._charge(ITEM + sum(map(__self._weight if receiver is not None else __self._size, given)))
        if isinstance(receiver, str | bytes | int):
            __self._foresee(__obj.__name__, receiver, given)
        return __self._made(super().call(__context, __obj, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        self._charge(self._weight(left) + self._weight(right))
        if operator in ("*", "**") and isinstance(left, int) and isinstance(right, int):
            bits = left.bit_length() * right if operator == "**" else left.bit_length() + right.bit_length()
            if bits > MOST_DIGITS * 10 // 3:
                raise ValueError(
                    f"it computes a number of {bits} bits; at most {MOST_DIGITS} digits are allowed: make it smaller"
                )
        elif operator == "*":
            times, one = (left, right) if isinstance(left, int) else (right, left)
            if isinstance(times, int):
                self._grow(times * self._weight(one))
        elif operator == "%" and isinstance(left, str):
            self._foresee("format", left, right if isinstance(right, tuple) else (right,))
        return self._made(super().call_binop(context, operator, left, right))

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        found = super().wrap_str_format(value)
        if found is None:
            return None
        formatted = found

        @wraps(formatted)
        def foreseen(*args: Any, **kwargs: Any) -> str:
            self._foresee("format", value.__self__, (*args, *kwargs.values()))
            return formatted(*args, **kwargs)

        return foreseen

    def _watched(self, function: Callable[..., Any], name: str | None) -> Callable[..., Any]:
        """The filter or test, which charges the budget for each call. A filter has a `name`, and is refused before it
        makes a long value.
        """
        before = hasattr(function, "jinja_pass_arg")

        @wraps(function)
        def watched(*args: Any, **kwargs: Any) -> Any:
            given = (*args[before:], *kwargs.values())
            # A filter, or a test of one value, does not read the value's contents.
            self._charge(ITEM + sum(map(self._size if name or len(given) == 1 else self._weight, given)))
            if name is not None and given:
                self._foresee(name, given[0], given[1:])
            return self._made(function(*args, **kwargs))

        return watched

    def _foresee(self, name: str, receiver: Any, given: Sequence[Any]) -> None:
        """Refuse a call that would make a long value from a short one: by a count, or by a text at many places."""
        count = max((abs(each) for each in given if isinstance(each, int)), default=0)
        if name == "format":
            text = str(receiver)
            # Only a `*`, or a field within a field, takes a width from the values.
            from_values = count if "*" in text or re.search(r"\{[^{}]+\{", text) else 0
            # Numbers in the text around the fields are not widths; named fields may hold anything.
            fields = [text] if re.search(r"%\(|\{[^{}]*\{", text) else re.findall(r"%[-#0 +]*[\d.]*|\{[^{}]*\}", text)
            self._grow(sum(map(int, re.findall(r"\d+", " ".join(fields)))) + from_values)
            return
        if name in NUMBERS_ARE_VALUES:
            count = 0
        if not isinstance(receiver, str | bytes | Iterable) and count > MOST_DIGITS:
            raise ValueError(f"{name} is given {count}; at most {MOST_DIGITS} is allowed: make it smaller")
        size = max(count, *(self._weight(each) if isinstance(each, dict) else self._size(each) for each in given), 0)
        if name == "replace" and isinstance(given[0], type(receiver)):
            self._grow(receiver.count(given[0]) * size)
        else:
            self._grow(self._size(receiver) * size if name in AT_MANY_PLACES else count)

    def _size(self, value: Any) -> int:
        """The number of items of a value; for an iterator, the largest range."""
        return len(value) if isinstance(value, Sized) else MOST_LAZY * isinstance(value, Iterator)

    def _grow(self, amount: int) -> None:
        if amount > MOST_GROWN:
            raise ValueError(
                f"it makes a value of {amount} characters; at most {MOST_GROWN} are allowed: make it shorter"
            )

    def _charge(self, amount: int) -> None:
        self._left -= amount
        if self._left < 0:
            raise ValueError(
                f"it takes {self._most - self._left} characters (an item counts as {ITEM}); at most {self._most} are "
                "allowed: shorten its loops, or the conversation"
            )

    def _made(self, value: Any) -> Any:
        """A new value: its items already exist, but its written form may not exceed the limit."""
        self._charge(ITEM * len(value) if isinstance(value, COLLECTIONS) else self._weight(value))
        if self._weight(value) > MOST_WORK:
            self._grow(self._weight(value))
        return value

    def _read(self, value: Any) -> Any:
        """A value that is written or compared as a whole."""
        self._charge(self._weight(value))
        return value

    def _looped(self, items: Any) -> Any:
        if isinstance(items, Sized):
            self._charge(ITEM * len(items))
            return items
        return self._counted(items)

    def _counted(self, items: Iterable[Any]) -> Iterator[Any]:
        for item in items:
            self._charge(ITEM)
            yield item

    def _weight(self, value: Any) -> int:
        """The approximate number of characters of a written value; a list in two others counts twice."""
        if isinstance(value, str | bytes):
            return len(value)
        if isinstance(value, int):
            return value.bit_length() // 3
        if isinstance(value, Namespace):
            return ITEM + sum(map(self._weight, vars_of(value).values()))
        if not isinstance(value, COLLECTIONS):
            return 0
        if id(value) in self._weights:
            return self._weights[id(value)][1]
        parts = chain(value, value.values()) if isinstance(value, dict) else value
        weight = ITEM * (1 + len(value)) + sum(map(self._weight, parts))
        self._weights[id(value)] = value, weight
        return weight
