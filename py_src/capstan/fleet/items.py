"""The items of a run: what goes in, and the result of each."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from ..errors import CapstanError, PromptError
from ..text.messages import read_messages

__all__ = [
    *("Entry", "FleetError", "Item", "ItemError", "UnfitError"),
    *("any_input", "entries", "pair_input", "prompt_input", "text_input"),
]


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
    """A digest of its input, the job and the model: another one is another result."""
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
    """'eos', 'stop', 'length', 'time'."""
    prompt_tokens: int | None = None
    value: Any = None
    """A vector of `embed`, log probabilities of `loglikelihood`, what a script of `map` returned."""
    timings: dict[str, float | None] = field(default_factory=dict)
    """`queue_ms` in the page, `first_token_ms` and `total_ms` from there on."""
    error: ItemError | None = None

    def line(self) -> str:
        """The JSON line, without what is as it is by default."""
        usual = asdict(Item("", 0, "", "", 0))
        required = ("id", "index", "digest", "worker", "attempt")
        told = {name: value for name, value in asdict(self).items() if name in required or value != usual[name]}
        return json.dumps(told, ensure_ascii=False) + "\n"


def entries(items: Iterable[Any], about: Mapping[str, Any], read: Callable[[int, Any], Any]) -> Iterator[Entry]:
    """Number the items and name them: by their `id` if they have one, else by their number. `read` checks one and makes
    the page's input of it. `about` is the job and the model, for the digests. Raises PromptError for an id that came
    before."""
    common = json.dumps(about, sort_keys=True)
    seen: dict[str, int] = {}
    for index, item in enumerate(items):
        given = item.get("id") if isinstance(item, Mapping) else None
        if given is not None and (isinstance(given, bool) or not isinstance(given, str | int)):
            raise PromptError(f"item {index}: id is {given!r}; give a string or a number, or leave it out")
        name = str(index if given is None else given)
        if seen.setdefault(name, index) != index:
            raise PromptError(f"item {index}: id {name!r} is that of item {seen[name]}, too; give each its own")
        content = read(index, item)
        whole = json.dumps([common, content], sort_keys=True)
        yield Entry(name, index, hashlib.sha256(whole.encode()).hexdigest()[:24], content)


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
            f"item {index} has {', '.join(names) or 'nothing'}; give one of {', '.join(kinds)}, and an id"
        )
    [name] = names
    value = item[name]
    if not isinstance(value, kinds[name]) or not value:
        raise PromptError(f"item {index}: {name} is {value!r}; give a {kinds[name].__name__} that is not empty")
    if name == "prompt_ids" and not all(type(each) is int and each >= 0 for each in value):
        raise PromptError(f"item {index}: prompt_ids has another value than numbers from 0")
    if name == "messages":
        read_messages(f"item {index}: messages", value)
    return {name: value}


def text_input(index: int, item: Any) -> str:
    """A text, or a mapping with `text`. Raises PromptError."""
    text = item.get("text") if isinstance(item, Mapping) else item
    if not isinstance(text, str) or not text:
        raise PromptError(f"item {index} is {item!r}; give a text that is not empty")
    return text


def pair_input(index: int, item: Any) -> dict[str, Any]:
    """A (context, text), or a mapping with `context` and `text`, or with `context_ids` and `token_ids`."""
    if isinstance(item, list | tuple) and len(item) == 2:
        item = {"context": item[0], "text": item[1]}
    given = {name: value for name, value in item.items() if name != "id"} if isinstance(item, Mapping) else {}
    texts = set(given) == {"context", "text"} and all(isinstance(each, str) for each in given.values())
    ids = set(given) == {"context_ids", "token_ids"} and all(isinstance(each, list) for each in given.values())
    if not (texts or ids):
        raise PromptError(f"item {index} is {item!r}; give context and text, or context_ids and token_ids")
    return given


def any_input(index: int, item: Any) -> Any:
    """A value for a script: its `input`, if it is a mapping with an id. Raises PromptError for what is not JSON."""
    value = item["input"] if isinstance(item, Mapping) and set(item) == {"id", "input"} else item
    try:
        json.dumps(value)
    except (TypeError, ValueError) as error:
        raise PromptError(f"item {index} cannot be sent to a page as JSON ({error})") from error
    return value
