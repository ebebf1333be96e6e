"""Saves a generator's tokens with the rows of its KV cache, from which another generator continues."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ..adapters import LoadedAdapter
from ..device.cache_rows import FollowingRows, SavedRows
from ..device.element_types import byte_count
from ..device.narrow_rows import WIDE, NarrowRows, require_narrow
from ..errors import OptionError, StorageError, UnsupportedModelError
from ..host import current_host
from ..model_files.bounded_json import clipped
from ..model_files.file_names import is_gguf
from .prompt import checked_prompts
from .row_loop import RowLoop
from .state_format import AGAIN, RowSink, SavedState, write_shards

if TYPE_CHECKING:
    from ..graph import GraphDescription
    from ..model import Model

__all__ = ["identity", "require_same", "restore_state", "save_state"]


async def save_state(loop: RowLoop, sink: RowSink, bits: int = 0) -> dict[str, Any]:
    """Give a sink the rows of the positions that the model has run, of a loop of one row; returns the header of the
    state. With 8 or 4 `bits` the rows are narrowed. Raises OptionError, UnsupportedModelError, StorageError, and
    PromptError for an empty sequence.
    """
    loop.require_tokens()
    about = identity(loop)
    require_narrow(loop.model.graph, bits)
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
    graph, base = loop.model.graph, caches.base
    rows, narrow = caches.read(row.valid), NarrowRows(graph.cache_dtype, bits) if bits else None
    size = sum(cache_sizes(graph, row.valid, base))
    tokens = {"tokens": list(row.tokens), "appended": row.appended, "contents": [asdict(each) for each in row.contents]}
    tokens |= {"long": loop.long, "length": row.valid, "base": base}
    if narrow is not None:
        size, rows = narrow.size(size), narrowed(rows, narrow)
    await sink.begin(size)
    digests = await write_shards(rows, sink)
    return {**about, **tokens, "bits": bits, "bytes": size, "digests": digests}


async def narrowed(caches: AsyncGenerator[bytes | bytearray], narrow: NarrowRows) -> AsyncGenerator[bytes | bytearray]:
    async with aclosing(caches):
        async for rows in caches:
            yield current_host().narrow_rows(rows, narrow.dtype, narrow.bits)


async def restore_state(loop: RowLoop, state: SavedState) -> None:
    """Make an empty loop of one row continue from a saved state. After an error the loop is empty. Raises StorageError
    for rows that are damaged, OptionError for a state of another model, adapter or cache type, and the errors of
    `save_state` and `append_tokens`.
    """
    loop.require_open()
    if loop.length:
        raise OptionError(f"the sequence has {loop.length} tokens; restore into an empty one: rewind_to(0) first")
    about = identity(loop)
    header = state.header
    require_same(header, about)
    model = loop.model
    [prompt] = checked_prompts(header["tokens"], 1, model.config, 0, loop.max_length, loop.options.pad_token_id)
    rows, length = rows_of(model.graph, state), header["length"]
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
        decoder.row(0).adopt(FollowingRows(), length)
        # Growing caches have as many positions as were adopted.
        caches = decoder.row(0).caches()
        assert caches is not None, "models with states were refused"
        await caches.load(rows, length)
        loop.require_open()
        [row] = loop.rows
        # The last token runs again, for the logits after it.
        row.valid = min(length, len(row.tokens) - 1)
        row.contents = state.contents
        loop.reused += row.valid
    except BaseException:
        loop.rewind(0)
        raise


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
    files = named_files(model)
    # The graph of a GGUF file is made from the file, in the type of numbers that suits the device.
    made = bool(files) and all(map(is_gguf, files))
    return {
        "model": {"graph": "" if made else model.origin.graph, "files": files},
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
        if one != other and not (header["bits"] and alike(one, other)):
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


def alike(one: Any, other: Sequence[Any]) -> bool:
    """Whether narrow rows of one cache are those of another, which may have another type of float."""
    if not isinstance(one, list) or len(one) != len(other):
        return False
    return [one[0], *one[2:]] == [other[0], *other[2:]] and one[1] in WIDE and other[1] in WIDE


def rows_of(graph: GraphDescription, state: SavedState) -> SavedRows:
    """The rows of a state. Raises StorageError if they have another size."""
    length, base, bits, size = (state.header[name] for name in ("length", "base", "bits", "bytes"))
    require_narrow(graph, bits)
    narrow = NarrowRows(graph.cache_dtype, bits) if bits else None
    rows = SavedRows(cache_sizes(graph, length, base), state.rows, base, narrow)
    expected = rows.stored(sum(rows.sizes))
    if expected != size or (base and graph.sliding is None):
        raise StorageError(f"the state has {size} bytes of rows, {length} tokens have {expected}: {AGAIN}")
    return rows


def cache_sizes(graph: GraphDescription, length: int, base: int) -> list[int]:
    """Bytes of the rows of each cache; sliding caches hold those from `base` on."""
    slide = frozenset() if graph.sliding is None else frozenset(graph.sliding.pasts)
    return [
        byte_count(graph.cache_dtype, pair.dims(1, length - base if pair.past in slide else length))
        for pair in graph.cache
    ]
