"""The items of a run: what goes in, and the result of each."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from capstan.errors import CapstanError, OptionError, PromptError
from capstan.model_files.bounded_json import MOST_DEPTH, clipped, is_deeper
from capstan.text.messages import read_messages

__all__ = [
    *("Entry", "FleetError", "Item", "ItemError", "NoItem", "UnfitError"),
    *("any_input", "entries", "pair_input", "prompt_input", "text_input"),
]

MOST_ID_BITS = 128
"""The most bits of a number that is an id."""


class FleetError(CapstanError):
    """The fleet cannot go on: no worker has a browser with the model, or the scheduler is gone."""


class UnfitError(FleetError):
    """A worker cannot serve: its browsers do not start, or the model cannot be loaded there."""


@dataclass(frozen=True)
class Entry:
    """An item on its way to a page."""

    id: str
    index: int
    """Its place among the items, from 0."""
    digest: str
    """A digest of its input, the job and the model: an item with another digest is computed again."""
    input: Any
    failures: int = 0
    """How often it failed, alone in its batch."""


@dataclass(frozen=True)
class ItemError:
    """The reason why an item has no result."""

    type: str
    message: str


@dataclass(frozen=True)
class Item:
    """The result of an item, a JSON line of a result file."""

    id: str
    index: int
    digest: str
    worker: str
    """The address of the Dask worker."""
    attempt: int
    """1 for an item that never failed."""
    adapter: str = ""
    """The GPU adapter's name."""
    text: str | None = None
    token_ids: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    """'stop', 'length', 'time', or 'tool_calls' for an answer of `chat` that calls a tool."""
    prompt_tokens: int | None = None
    value: Any = None
    """The `reasoning`, `answer` and `tool_calls` of `chat`, a vector of `embed`, log probabilities of `loglikelihood`,
    or the result of a script of `map`.
    """
    timings: dict[str, float | None] = field(default_factory=dict)
    """`queue_ms` is the wait in the page; `first_token_ms` and `total_ms` count from its end."""
    error: ItemError | None = None

    def line(self) -> str:
        """The JSON line, without fields that have their default values. Halves of surrogate pairs, which UTF-8 cannot
        encode, are escaped. Raises ValueError for NaN and infinity, and RecursionError.
        """
        usual = asdict(Item("", 0, "", "", 0))
        required = ("id", "index", "digest", "worker", "attempt")
        told = {name: value for name, value in asdict(self).items() if name in required or value != usual[name]}
        text = json.dumps(told, ensure_ascii=False, allow_nan=False) + "\n"
        return text.encode(errors="backslashreplace").decode()


@dataclass(frozen=True)
class NoItem:
    """Takes the place of an item that could not be read, and has the reason."""

    reason: str


def entries(items: Iterable[Any], about: Mapping[str, Any], read: Callable[[int, Any], Any]) -> Iterator[Entry | Item]:
    """Number the items and name them: by their `id` if they have one, else by their number. `read` checks an item and
    makes the page's input from it. `about` has the job and the model, for the digests. For an item that cannot be sent,
    its result with the error is yielded instead.
    """
    common = json.dumps(about, sort_keys=True)
    seen: dict[str, int] = {}
    for index, item in enumerate(items):
        name = ""
        try:
            name = name_of(index, item)
            if name in seen:
                raise PromptError(
                    f"item {index}: id {clipped(name)} is that of item {seen[name]}, too; give each its own"
                )
            content = read(index, item)
            text = json_of(index, content)
            digest = hashlib.sha256(f"[{json.dumps(common)}, {text}]".encode()).hexdigest()[:24]
            entry: Entry | Item = Entry(name, index, digest, content)
        except (OptionError, PromptError, TypeError, ValueError, RecursionError) as error:
            name = name or str(index)
            while name in seen:
                # The result file has one line an id.
                name += f" (item {index})"
            told = str(error) if isinstance(error, CapstanError) else f"item {index} cannot be read ({error})"
            kind = "OptionError" if isinstance(error, OptionError) else "PromptError"
            entry = Item(name, index, "", "", 1, error=ItemError(kind, told))
        seen[name] = index
        yield entry


def name_of(index: int, item: Any) -> str:
    """The id of an item. Two adjacent halves of a surrogate pair become one character. Raises PromptError."""
    if isinstance(item, NoItem):
        raise PromptError(item.reason)
    given = item.get("id") if isinstance(item, Mapping) else None
    if given is None:
        return str(index)
    if isinstance(given, bool) or not isinstance(given, str | int):
        raise PromptError(f"item {index}: id is {clipped(given)}; give a string or a number, or leave it out")
    if isinstance(given, int) and given.bit_length() > MOST_ID_BITS:
        raise PromptError(f"item {index}: id has {given.bit_length()} bits, at most {MOST_ID_BITS}; give a string")
    return str(given).encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")


def json_of(index: int, content: Any) -> str:
    """An item's content as JSON text. Raises PromptError for content that cannot be sent to a page."""
    try:
        text = json.dumps(content, sort_keys=True, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise PromptError(f"item {index} cannot be sent to a page as JSON ({error})") from error
    if is_deeper(text.encode(), MOST_DEPTH):
        raise PromptError(
            f"item {index} is nested more than {MOST_DEPTH} levels deep, so that no page reads it: flatten it"
        )
    return text


def prompt_input(index: int, item: Any) -> dict[str, Any]:
    """A prompt: a text, token ids, or a mapping with one of `prompt`, `prompt_ids`, `messages`. Raises PromptError, and
    OptionError for messages of another form."""
    if isinstance(item, str):
        item = {"prompt": item}
    elif isinstance(item, list | tuple):
        item = {"messages" if item and isinstance(item[0], Mapping) else "prompt_ids": list(item)}
    if not isinstance(item, Mapping):
        raise PromptError(f"item {index} is a {type(item).__name__}; give a text, token ids or messages")
    names = [name for name in item if name != "id"]
    kinds = {"prompt": str, "prompt_ids": list, "messages": list}
    if len(names) != 1 or names[0] not in kinds:
        raise PromptError(
            f"item {index} has {', '.join(map(str, names)) or 'nothing'}; give one of {', '.join(kinds)}, and an id"
        )
    [name] = names
    value = item[name]
    if not isinstance(value, kinds[name]) or not value:
        raise PromptError(f"item {index}: {name} is {clipped(value)}; give a {kinds[name].__name__} that is not empty")
    if name == "prompt_ids" and not all(type(each) is int and each >= 0 for each in value):
        raise PromptError(f"item {index}: prompt_ids has a value that is not a whole number from 0")
    if name == "messages":
        read_messages(f"item {index}: messages", value)
    return {name: value}


def text_input(index: int, item: Any) -> str:
    """A text, or a mapping with `text`. Raises PromptError."""
    text = item.get("text") if isinstance(item, Mapping) else item
    if not isinstance(text, str) or not text:
        raise PromptError(f"item {index} is {clipped(item)}; give a text that is not empty")
    return text


def pair_input(index: int, item: Any) -> dict[str, Any]:
    """A (context, text), or a mapping with `context` and `text`, or with `context_ids` and `token_ids`."""
    if isinstance(item, list | tuple) and len(item) == 2:
        item = {"context": item[0], "text": item[1]}
    given = {name: value for name, value in item.items() if name != "id"} if isinstance(item, Mapping) else {}
    texts = set(given) == {"context", "text"} and all(isinstance(each, str) for each in given.values())
    ids = set(given) == {"context_ids", "token_ids"} and all(isinstance(each, list) for each in given.values())
    if not (texts or ids):
        raise PromptError(f"item {index} is {clipped(item)}; give context and text, or context_ids and token_ids")
    return given


def any_input(index: int, item: Any) -> Any:
    """The value of an item for a script: its `input` if it is a mapping of `id` and `input`, else the item itself."""
    return item["input"] if isinstance(item, Mapping) and set(item) == {"id", "input"} else item
