"""Reads a page's request and checks it against the table in requests.py."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, Union, cast, get_args, get_origin, get_type_hints, is_typeddict

from ..errors import OptionError
from ..loading.load_options import rows
from ..model_files.bounded_json import NotJsonError, clipped, read_json
from .requests import AnsweredRequest

__all__ = ["read_request"]

PLAIN: dict[Any, tuple[tuple[type, ...], str]] = {
    str: ((str,), "a string"),
    int: ((int,), "a whole number"),
    float: ((int, float), "a number"),
    bool: ((bool,), "true or false"),
    NoneType: ((NoneType,), "null"),
    list: ((list,), "an array"),
    dict: ((dict,), "an object"),
}
"""The JSON types for an annotation, and its words in a message."""


def read_request(text: str) -> AnsweredRequest:
    """A request with all its fields. Raises OptionError for fields that are missing, unknown or of another type."""
    try:
        request = read_json(text)
    except NotJsonError as error:
        raise OptionError(f"request: {error}") from error
    if not isinstance(request, dict):
        raise OptionError(f"request: {clipped(request)}, expected an object")
    kind = request.get("kind")
    if not isinstance(kind, str) or kind not in REQUESTS:
        raise OptionError(f"a request's kind is {clipped(kind)}; it must be one of {', '.join(REQUESTS)} or cancel")
    require_fields(f"the request {kind!r}", "", request, REQUESTS[kind])
    return cast(AnsweredRequest, request)


@cache
def fields_of(table: Any) -> dict[str, Any]:
    """The types of the fields by their names. An option may be null, or one of its choices."""
    fields = get_type_hints(table)
    for name, row in rows(table).items():
        if row.choices or row.default is not None:
            fields[name] = (Literal[row.choices] if row.choices else fields[name]) | None
    return fields


REQUESTS = {get_args(fields_of(request)["kind"])[0]: request for request in get_args(AnsweredRequest)}
"""The requests by their kinds. They are looked up while Capstan is imported, before a snapshot is made."""


def require_fields(what: str, place: str, given: Mapping[str, Any], table: Any) -> None:
    """Raise OptionError for a missing field, an unknown one, or one of another type; messages put `place` before its
    name.
    """
    fields = fields_of(table)
    missing = [place + name for name in fields if name in table.__required_keys__ and name not in given]
    if missing:
        raise OptionError(f"{', '.join(missing)}: missing in {what}; give null to leave a value open")
    for name, value in given.items():
        if name not in fields:
            raise OptionError(unknown(what, place, name, list(fields)))
        require_type(place + name, value, fields[name])
        if value is not None and (described := rows(table)[name].refusal(place + name, value)):
            raise OptionError(described)


def require_type(name: str, value: object, wanted: Any) -> None:
    """Raise OptionError for a value of another type than `wanted`, an annotation of the table."""
    if wanted is Any:
        return
    kinds = get_args(wanted) if get_origin(wanted) in (Union, UnionType) else (wanted,)
    kind = next((kind for kind in kinds if is_of(value, kind)), None)
    if kind is None:
        words = [word for kind in kinds for word in words_of(kind)]
        described = " or ".join([", ".join(words[:-1]), words[-1]] if words[1:] else words)
        raise OptionError(f"{name} is {clipped(value)}; it must be {described}")
    if is_typeddict(kind):
        require_fields(name, f"{name}.", cast("dict[str, Any]", value), kind)
    elif isinstance(value, list):
        (item_kind,) = get_args(kind)
        # A prompt may have thousands of ids.
        if {*map(type, value)} != {item_kind}:
            for place, item in enumerate(value):
                require_type(f"{name}[{place}]", item, item_kind)
    elif isinstance(value, dict):
        _, item_kind = get_args(kind)
        for key, item in value.items():
            require_type(f"{name}.{key}", item, item_kind)


def is_of(value: object, kind: Any) -> bool:
    """Whether a value is of a type of the table; its contents are not checked."""
    if get_origin(kind) is Literal:
        return isinstance(value, str) and value in get_args(kind)
    types, _ = PLAIN[base(kind)]
    return isinstance(value, types) and isinstance(value, bool) is (bool in types)


def words_of(kind: Any) -> list[str]:
    """The words for a type of the table in a message."""
    return [repr(value) for value in get_args(kind)] if get_origin(kind) is Literal else [PLAIN[base(kind)][1]]


def base(kind: Any) -> Any:
    return dict if is_typeddict(kind) else get_origin(kind) or kind


def unknown(what: str, place: str, name: str, known: list[str]) -> str:
    """The message about an unknown field. It does not show the value, which may be a token under a misspelt name."""
    import difflib  # noqa: PLC0415  (for an unknown field only)

    nearest = difflib.get_close_matches(name, known, 1)
    meant = f"did you mean {place}{nearest[0]}? It has" if nearest else "it has"
    return f"{clipped(place + name)} is not a field of {what}; {meant} {', '.join(known)}"
