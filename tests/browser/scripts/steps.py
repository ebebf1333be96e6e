"""One tape step against one eager step from the same poisoned state; runs in the page."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Mapping, Sequence
from typing import Any

from . import probe
from .meddling import recorded_again
from .running import close_all, gpu, load

DEAD = 0xC1
"""Fills what lies past the end of the sequence: the float32 -24.22."""
NAN = 0xFF


async def tape_and_eager(
    models: Mapping[str, str], *, model: str, lengths: Sequence[int], capacity: int, passes: Sequence[str] | None
) -> list[dict[str, Any]]:
    """For each number of valid positions before the step: how far logits and caches of the two ways are apart."""
    opened = await load(models, model, passes=passes)
    decoder: Any = await opened.decoder(capacity)
    engine, buffers, step = gpu(), decoder.buffers, decoder._step
    decoder.set_search(opened.search)
    found = []
    for cache in buffers.cache:
        engine.fill(cache, DEAD)
    past = 0
    for length in lengths:
        for name in ("ring", "logits", "state"):
            spoil(buffers, name)
        ids = [(37 * i + 11) % 509 for i in range(past, length)]
        await decoder.prefill(ids, past)
        first = await decoder.submit(1, True)
        inputs = await state_of(engine, buffers)
        kept = [await engine.read(span.buffer.handle, 0, span.length) for span in buffers.cache_spans]

        for name in ("ring", "logits"):
            spoil(buffers, name)
        burst = await decoder.submit(1, False)
        tape_logits = await engine.read(buffers.logits, 0, buffers.spans["logits"].length)
        tape_caches = [await engine.read(span.buffer.handle, 0, span.length) for span in buffers.cache_spans]

        for buffer, data in inputs:
            engine.write(buffer, 0, data)
        for cache, data in zip(buffers.cache, kept, strict=True):
            engine.write(cache, 0, data)
        spoil(buffers, "logits")
        await engine.run(step.eager, length + 1)
        eager_logits = await engine.read(buffers.logits, 0, buffers.spans["logits"].length)
        eager_caches = [await engine.read(span.buffer.handle, 0, span.length) for span in buffers.cache_spans]

        pairs = zip(tape_caches, eager_caches, strict=True)
        eager = array("f", eager_logits)
        found.append(
            {
                "length": length,
                "capture": decoder.capture,
                "note": decoder.capture_note,
                "passes": decoder.tape_passes,
                "first": first.ids[0],
                "input": struct.unpack("<q", inputs[0][1])[0],
                "logits": apart(array("f", tape_logits), eager),
                "largest": max(map(abs, eager)),
                "differing_bytes": [differing_bytes(x, y) for x, y in pairs],
                "caches": max(
                    apart(array("f", x), array("f", y)) for x, y in zip(tape_caches, eager_caches, strict=True)
                ),
                "elsewhere": sum(
                    written_elsewhere(x, y, opened.config.decoder.head_size, decoder.capacity, length)
                    for x, y in zip(kept, tape_caches, strict=True)
                ),
                "wrote": [x != y for x, y in zip(kept, tape_caches, strict=True)],
                "tape_pick": burst.ids[0],
                "eager_pick": eager.index(max(eager)),
            }
        )
        past = length
    await decoder.close()
    return found


def spoil(buffers: Any, name: str) -> None:
    """Fill a span with what is no number."""
    span = buffers.spans[name]
    buffers.device.copy_cpu_to_device(span, bytes([NAN]) * span.length)


async def state_of(engine: Any, buffers: Any) -> list[tuple[int, bytes]]:
    """The inputs of the next decode step: ids, mask and, if the model takes them, positions."""
    found = [
        (buffers.input_ids, await engine.read(buffers.input_ids, 0, 8)),
        (buffers.mask, await engine.read(buffers.mask, 0, buffers.capacity * 8)),
    ]
    if buffers.positions is not None:
        found.append((buffers.positions, await engine.read(buffers.positions, 0, 8)))
    return found


def apart(a: Sequence[float], b: Sequence[float]) -> float:
    """The largest difference; infinite if anything is not a number."""
    differences = [abs(x - y) for x, y in zip(a, b, strict=True)]
    return max(differences) if all(d == d for d in differences) else float("inf")


def written_elsewhere(before: bytes, after: bytes, head: int, capacity: int, position: int) -> int:
    """Bytes of a float32 cache [heads, capacity, head] that changed at another position."""
    row = 4 * head
    rows = range(len(before) // row)
    changed = [i for i in rows if before[i * row : (i + 1) * row] != after[i * row : (i + 1) * row]]
    return row * sum(i % capacity != position for i in changed)


def differing_bytes(a: bytes, b: bytes) -> int:
    """How many bytes of two equally long buffers differ."""
    return 0 if a == b else sum(x != y for x, y in zip(a, b, strict=True))


async def private_buffers(
    models: Mapping[str, str], *, model: str, lengths: Sequence[int], restored: bool
) -> dict[str, Any]:
    """Buffers that only a tape's own session may touch, and who else binds them: eager runs, another tape. The tapes
    are recorded, or made again from those that were stored."""
    with recorded_again():
        found = await private_of_two(models, model, lengths)
    return await private_of_two(models, model, lengths) if restored else found


async def private_of_two(models: Mapping[str, str], model: str, lengths: Sequence[int]) -> dict[str, Any]:
    await close_all()
    opened = await load(models, model)
    decoder: Any = await opened.decoder(256)
    other: Any = await opened.decoder(512)
    private = probe.private_buffers(gpu(), decoder._step.tape)
    others = probe.private_buffers(gpu(), other._step.tape)
    probe.forget_bound()
    for length in lengths:
        await decoder.prefill([(37 * i + 11) % 509 for i in range(length)], 0)
    decoder.buffers.set_input(5, max(lengths))
    await gpu().run(decoder._step.eager, max(lengths) + 1)
    bound = probe.bound_buffers(gpu())
    await decoder.close()
    await other.close()
    return {
        "sessions": [one._step.session != 0 for one in (decoder, other)],
        "private": len(private),
        "bound": len(bound),
        "with_eager": sorted(set(private + others) & set(bound)),
        "with_another_tape": sorted(set(private) & set(others)),
    }


async def recording(models: Mapping[str, str], *, model: str) -> dict[str, Any]:
    """Record a captured run over poisoned buffers; which of them it changed, and what was submitted meanwhile."""
    opened = await load(models, model)
    loaded: Any = opened._loaded
    decoder: Any = await opened.decoder(256)
    engine, buffers = gpu(), decoder.buffers
    session, binding = await loaded._steps.capture(buffers)
    buffers.set_input(5, 3)
    watched = [buffers.logits, *buffers.cache]
    for buffer in watched:
        engine.fill(buffer, DEAD)
    sizes = [buffers.spans["logits"].length, *(span.length for span in buffers.cache_spans)]
    before = probe.counts()
    recorded = await engine.record(binding)
    submits = probe.counts()["submits"] - before["submits"]
    unchanged = [
        await engine.read(buffer, 0, size) == bytes([DEAD]) * size for buffer, size in zip(watched, sizes, strict=True)
    ]
    engine.retire(binding)
    engine.drop_recording(recorded["handle"])
    engine.unbind(binding)
    await engine.release_session(session)
    await decoder.close()
    kinds = [op[0] for op in recorded["ops"]]
    return {"unchanged": unchanged, "submits": submits, "kinds": {kind: kinds.count(kind) for kind in set(kinds)}}
