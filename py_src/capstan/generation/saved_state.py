"""Saves a generator's tokens with the rows of its KV cache as bytes, from which another generator continues.

The bytes are a line with the version of the format, the SHA-256 of all bytes after it, the header's length (u32,
little-endian), the header (JSON), and the rows of each cache in the order of the graph.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from ..adapters import LoadedAdapter
from ..device.cache_rows import SavedRows
from ..device.element_types import byte_count
from ..device.prefix_cache import Content
from ..errors import OptionError, StorageError, UnsupportedModelError
from ..model_files.bounded_json import NotJsonError, clipped, read_json
from .prompt import checked_prompts
from .row_loop import RowLoop

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from ..graph import GraphDescription
    from ..model import Model

__all__ = ["restore_state", "save_state", "state_contents"]

FORMAT = b"capstan state "
VERSION = b"1\n"
"""Raised when the header, the order of the rows or their meaning changes."""
DIGEST, LENGTH = 32, 4
"""Bytes of the digest, and of the header's length."""
AGAIN = "append the tokens instead, and the model runs on them"


async def save_state(loop: RowLoop) -> bytes:
    """The sequence of a loop of one row, with the rows of the positions that the model has run. Raises OptionError,
    UnsupportedModelError, StorageError, and PromptError for an empty sequence.
    """
    loop.require_tokens()
    about = identity(loop)
    while loop.flight and not loop.stale:
        await loop.read()
    if loop.stale:
        await loop.policy.settle()
    [row] = loop.rows
    caches = loop.open_decoder().row(0).caches()
    assert caches is not None, "models with states were refused"
    if not caches.holds(row.valid):
        # Caches that slide have moved on with the picks that ran ahead.
        await loop.policy.settle()
    rows = await caches.read(row.valid)
    tokens = {"tokens": list(row.tokens), "appended": row.appended, "contents": [asdict(each) for each in row.contents]}
    header = json.dumps({**about, **tokens, "long": loop.long, "length": row.valid, "base": rows.base}).encode()
    parts = [len(header).to_bytes(LENGTH, "little"), header, *rows.caches]
    sealed = hashlib.sha256()
    for part in parts:
        sealed.update(part)
    return b"".join([FORMAT, VERSION, sealed.digest(), *parts])


async def restore_state(loop: RowLoop, state: Buffer) -> None:
    """Make an empty loop of one row continue from a saved state. After an error the loop is empty. Raises StorageError
    for bytes that are damaged, OptionError for a state of another model, adapter, cache type or version, and the errors
    of `save_state` and `append_tokens`.
    """
    loop.require_open()
    if loop.length:
        raise OptionError(f"the sequence has {loop.length} tokens; restore into an empty one: rewind_to(0) first")
    about = identity(loop)
    header, payload = opened(state)
    require_same(header, about)
    model = loop.model
    [prompt] = checked_prompts(header["tokens"], 1, model.config, 0, loop.max_length, loop.options.pad_token_id)
    rows, length = rows_of(model.graph, header, payload), header["length"]
    await loop.flight.drain()
    loop.counts.end(loop.decoder)
    decoder = await loop.ready_decoder()
    loop.require_open()
    try:
        loop.resume(prompt.ids, header["appended"])
        await loop.rotate(decoder)
        if loop.long != header["long"]:
            # The next token would have made the rows invalid, too.
            return
        caches = decoder.row(0).caches()
        assert caches is not None, "models with states were refused"
        if not caches.takes(rows.base, length):
            raise OptionError(
                f"the state's caches over a window begin at position {rows.base}, and a generator with a max_length of "
                f"{loop.max_length} keeps all positions: set max_length to the one with which it was saved"
            )
        decoder.row(0).adopt(rows, length)
        [row] = loop.rows
        # The last token runs again, for the logits after it.
        row.valid = min(length, len(row.tokens) - 1)
        row.contents = tuple(Content(**each) for each in header["contents"])
        loop.reused += row.valid
    except BaseException:
        loop.rewind(0)
        raise


def state_contents(state: Buffer) -> tuple[Content, ...]:
    """The pictures in the tokens of a saved state. Raises StorageError, OptionError."""
    return tuple(Content(**each) for each in opened(state)[0]["contents"])


def identity(loop: RowLoop) -> dict[str, Any]:
    """Everything besides tokens on which the rows depend. Raises UnsupportedModelError, OptionError or StorageError if
    no state can be saved or restored.
    """
    model, graph = loop.model, loop.model.graph
    if len(loop.rows) > 1:
        raise OptionError(
            f"this generator has {len(loop.rows)} rows; a state has one: set batch_size and num_beams to 1"
        )
    if model.config.encoder is not None or graph.states:
        has = "an encoder" if model.config.encoder is not None else "states that each run overwrites"
        raise UnsupportedModelError(
            f"a model of type {model.type!r} has {has}, and a saved state has only the rows of a KV cache: keep the "
            "tokens, and append them again"
        )
    layers = loop.adapted or ()
    if not isinstance(layers, tuple):
        raise OptionError(
            "an adapter was set within the sequence; a state has adapters of a whole sequence: set them before tokens"
        )
    return {
        "model": {"graph": model.origin.graph, "files": named_files(model)},
        "adapters": [each.digest for each in layers if isinstance(each, LoadedAdapter)],
        "caches": [[pair.past, graph.rows_of(pair), pair.heads, pair.head_size] for pair in graph.cache],
    }


def named_files(model: Model) -> Mapping[str, list[str]]:
    names = model.origin.names()
    for location, found in names.items():
        if not found:
            raise StorageError(
                f"{location} of {model.folder} is not stored, and its server sends no ETag or Last-Modified: no later "
                "load could tell whether the weights are the same; let the server send one, or let weights be stored"
            )
    return names


def opened(state: Buffer) -> tuple[dict[str, Any], memoryview]:
    """The header and the rows of a saved state whose digest is right. Raises StorageError, OptionError."""
    data = memoryview(state).cast("B")
    start = len(FORMAT) + len(VERSION)
    found = bytes(data[:start])
    if not found.startswith(FORMAT) or not found.endswith(b"\n"):
        raise StorageError(f"these {len(data)} bytes begin with {clipped(found)}; they are no saved state: {AGAIN}")
    if not found.endswith(VERSION):
        version = found[len(FORMAT) :].decode("latin-1").strip()
        raise OptionError(f"the state has version {clipped(version)} of the format; this Capstan reads 1: {AGAIN}")
    body = data[start + DIGEST :]
    if hashlib.sha256(body).digest() != data[start : start + DIGEST]:
        raise StorageError(f"the state of {len(data)} bytes is cut off or damaged: its digest differs; {AGAIN}")
    end = LENGTH + int.from_bytes(body[:LENGTH], "little")
    try:
        header = read_json(bytes(body[LENGTH:end]))
    except NotJsonError as error:
        raise StorageError(f"the state's header is not valid: {error}; {AGAIN}") from error
    require_header(header)
    return header, body[end:]


def require_header(header: Any) -> None:
    """Raise StorageError unless the fields have their types: anyone can write a right digest."""
    kinds: dict[str, type] = {
        "model": dict,
        "adapters": list,
        "caches": list,
        "tokens": list,
        "appended": list,
        "contents": list,
    }
    kinds |= {"long": bool, "length": int, "base": int}
    given = header if isinstance(header, dict) else {}
    wrong = [name for name, kind in kinds.items() if type(given.get(name)) is not kind]
    if not wrong:
        count = len(header["tokens"])
        flat = [place for pair in header["appended"] if isinstance(pair, list) for place in pair]
        ranges = [pair for pair in header["appended"] if isinstance(pair, list) and len(pair) == 2]
        contents = [each for each in header["contents"] if is_content(each, count)]
        checks = {
            "length": 0 < header["length"] <= count,
            "base": 0 <= header["base"] < max(1, header["length"]),
            "appended": len(ranges) == len(header["appended"]) and is_ascending([0, *flat, count]) and flat[:1] == [0],
            "contents": len(contents) == len(header["contents"]),
        }
        wrong = [name for name, right in checks.items() if not right]
    if wrong:
        raise StorageError(f"the state's {wrong[0]} is {clipped(given.get(wrong[0]))}, which no state has; {AGAIN}")


def is_ascending(places: Sequence[Any]) -> bool:
    return all(type(place) is int for place in places) and all(one <= other for one, other in pairwise(places))


def is_content(each: Any, count: int) -> bool:
    """Whether this is a range of the first `count` tokens with a digest."""
    if not isinstance(each, dict) or set(each) != {"start", "end", "digest"} or not isinstance(each["digest"], str):
        return False
    return is_ascending([0, each["start"], each["end"], count])


def require_same(header: Mapping[str, Any], about: Mapping[str, Any]) -> None:
    """Raise OptionError if the state is of another model, adapters or caches."""
    given, own = header["model"], about["model"]
    files = given.get("files")
    if given.get("graph") != own["graph"] or not isinstance(files, dict) or files.keys() != own["files"].keys():
        raise OptionError(f"the state is of another model: the graphs differ; load the model of the state, or {AGAIN}")
    for location, names in own["files"].items():
        if not isinstance(files[location], list) or not set(names) & {*map(str, files[location])}:
            raise OptionError(
                f"the state is of other weights: {location} has {names[0]}, and had {clipped(files[location])}; load "
                f"the weights of the state, or {AGAIN}"
            )
    if header["adapters"] != about["adapters"]:
        counts = len(header["adapters"]), len(about["adapters"])
        raise OptionError(
            f"the state was computed with {counts[0]} LoRA adapters, and this generator has {counts[1]} or others: set "
            f"the adapters of the state before it is restored, or {AGAIN}"
        )
    for one, other in zip(header["caches"], about["caches"], strict=False):
        if one != other:
            raise OptionError(
                f"the state has a cache {clipped(one)} (name, type, heads, size); the model has {clipped(other)}: load "
                f"it with the device and the kv_cache_dtype of the state, or {AGAIN}"
            )
    if len(header["caches"]) != len(about["caches"]):
        counts = len(header["caches"]), len(about["caches"])
        raise OptionError(
            f"the state has {counts[0]} caches; the model has {counts[1]}: load it with the device of the state, or "
            f"{AGAIN}"
        )


def rows_of(graph: GraphDescription, header: Mapping[str, Any], payload: memoryview) -> SavedRows:
    """The rows of each cache. Raises StorageError if they have another size."""
    sliding, length, base = graph.sliding, header["length"], header["base"]
    caches, at = [], 0
    for pair in graph.cache:
        count = length - base if sliding is not None and pair.past in sliding.pasts else length
        size = byte_count(graph.cache_dtype, pair.dims(1, count))
        caches.append(payload[at : at + size])
        at += size
    if at != len(payload) or (base and sliding is None):
        raise StorageError(f"the state has {len(payload)} bytes of rows, {length} tokens have {at}: {AGAIN}")
    return SavedRows(caches, base)
