"""Generators that are saved, and continued by another load of the model; runs in the page."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any

from capstan import CapstanError, Generator, Model, OptionError
from capstan.fallback import fallbacks
from capstan.generation.state_format import SHARD, FileRows, SavedState
from capstan.host.session_store import SessionStore, StoredSession

from .running import parameters, take

__all__ = ["between", "continued", "stored"]


async def continued(
    models: Mapping[str, str],
    *,
    model: str,
    load: dict[str, Any],
    prompt: Sequence[int],
    tail: Sequence[int] = (),
    count: int = 8,
    most: int = 200,
    file: str = "",
    **search: Any,
) -> dict[str, Any]:
    """The ids of a generator after `count` picks, and those of another load that restored it there; after `tail`, too.
    Also the tokens that the second one took over.
    """
    search, place = {"do_sample": False, **search, "max_length": most}, models[model] + file
    async with (
        await Model.load(place, **load) as opened,
        Generator(opened, parameters(opened, **search)) as generator,
    ):
        generator.append_tokens(prompt)
        first = await take(generator, count)
        state = await generator.save_state_async()
        unbroken = await take(generator, count)
        if tail:
            generator.append_tokens(tail)
            unbroken += await take(generator, count)
    async with await Model.load(place, **load) as opened:
        counted = dict(fallbacks())
        async with Generator(opened, parameters(opened, **search)) as generator:
            await generator.restore_state_async(state)
            restored = await take(generator, count)
            spent = {"reused": generator.reused_tokens, "recomputed": generator.recomputed_tokens}
            if tail:
                generator.append_tokens(tail)
                restored += await take(generator, count)
            damaged = bytearray(state)
            damaged[-5] ^= 1
            refused = []
            generator.rewind_to(0)
            for bad in (damaged, state[:-1]):
                try:
                    await generator.restore_state_async(bad)
                except CapstanError as error:
                    refused.append(type(error).__name__)
            length = generator.token_count()
        after = [what for what, times in fallbacks().items() if times != counted.get(what)]
        note = generator.capture_note
        return {
            "first": first,
            "unbroken": unbroken,
            "restored": restored,
            **spent,
            "bytes": len(state),
            "base": b'"base": 0' not in state[:100_000],
            "refused": refused,
            "length": length,
            "stepped down": after,
            "note": note,
        }


async def between(
    models: Mapping[str, str], *, model: str, prompt: Sequence[int], saving: dict[str, Any], loads: list[dict[str, Any]]
) -> list[Any]:
    """The ids that other loads of a model pick after a state, or why they refuse it."""
    async with (
        await Model.load(models[model], **saving) as opened,
        Generator(opened, parameters(opened, do_sample=False, max_length=120)) as generator,
    ):
        generator.append_tokens(prompt)
        await take(generator, 4)
        state = await generator.save_state_async()
    found: list[Any] = []
    for load in loads:
        async with (
            await Model.load(models[model], **load) as opened,
            Generator(opened, parameters(opened, do_sample=False, max_length=120)) as generator,
        ):
            try:
                await generator.restore_state_async(state)
                found.append([await take(generator, 4), generator.reused_tokens])
            except OptionError as error:
                found.append(str(error))
    return found


async def stored(
    models: Mapping[str, str], *, model: str, prompt: Sequence[int], load: dict[str, Any], bits: int = 0
) -> list[Any]:
    """The ids that follow a state which the browser stored, and the tokens that were not run again."""
    store = await SessionStore.open()
    async with await Model.load(models[model], **load) as opened:
        search: dict[str, Any] = {"do_sample": False, "max_length": 60}
        rows = store.rows("talk", 1 << 30, SHARD)
        async with Generator(opened, parameters(opened, **search)) as generator:
            generator.append_tokens(prompt)
            await take(generator, 4)
            header = await generator.save_rows(rows, bits)
        found = await store.write(StoredSession("talk", [], header=json.dumps(header)), rows)
        read = SavedState.header_of(found.header)
        async with Generator(opened, parameters(opened, **search)) as generator:
            with closing(await store.open_rows(found, SHARD)) as file:
                await generator.restore_rows(SavedState(read, FileRows(file, read["bytes"], read["digests"])))
            ids = await take(generator, 8)
            reused = generator.reused_tokens
    await store.remove("talk")
    return [ids, reused]
