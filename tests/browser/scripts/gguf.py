"""Generates with graphs of GGUF files; runs in the page."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from capstan import Generator, Model, OutOfMemoryError
from capstan.tape import PASSES, Recorded
from capstan.tape.placement import Placement

from .meddling import recorded_again
from .running import parameters, take

FILE = "a%20model.gguf"
INT8_ACTIVATIONS = 4
prefill: Any = import_module("capstan.device.webgpu.tapes.prefill_tapes")
tensors: Any = import_module("capstan.graph.gguf.gguf_tensors")


async def picked(
    models: Mapping[str, str],
    *,
    model: str,
    prompt: Sequence[int],
    count: int,
    file: str = FILE,
    device: str = "webgpu",
    capture: str = "tape",
    embedding_tables: str | None = None,
) -> dict[str, Any]:
    """The ids after a prompt, how steps were run, and the logits of the prompt's last position."""
    async with (
        await Model.load(
            models[model] + file,
            device=device,
            dtype="fp32",
            capture=capture,
            embedding_tables=embedding_tables,
        ) as opened,
        Generator(opened, parameters(opened, eos=[])) as generator,
    ):
        generator.append_tokens(prompt)
        logits = list(await generator.get_logits_async())
        ids = await take(generator, count)
        about = {"device": opened.device_type, "passes": dict(generator.tape_passes or {})}
        about |= {"counters": generator.counters}
        return {"ids": ids, "logits": logits, "capture": [generator.capture, generator.capture_note], **about}


@contextmanager
def products(found: dict[int, list[str]], *, int8: bool) -> Iterator[None]:
    """Has in `found`, by length of taped runs, the kinds of what computes products: "Recorded", or ours. With `int8`
    graphs that are written meanwhile allow activations in int8."""
    fuse, exact = prefill.fuse_prefill, tensors.EXACT_ACTIVATIONS

    def fused(
        recording: Any, ops: Sequence[Any], lasting: Collection[int], weights: Mapping[int, Any], rows: int, *more: Any
    ) -> Placement:
        made: Placement = fuse(recording, ops, lasting, weights, rows, *more)
        held = {*weights, *(each.minima for each in weights.values())}
        # The table is looked up first, and multiplied at last for one position alone.
        held -= recording.reads(ops[0])
        kinds = []
        for node in made.nodes:
            if isinstance(node.what, Recorded):
                kinds += ["Recorded"] * (not held.isdisjoint(recording.reads(ops[node.what.index])))
            elif getattr(node.what, "weights", None) in weights:
                kinds.append(type(node.what).__name__)
        found[rows] = kinds
        return made

    prefill.fuse_prefill = fused
    tensors.EXACT_ACTIVATIONS = INT8_ACTIVATIONS if int8 else exact
    try:
        yield
    finally:
        prefill.fuse_prefill, tensors.EXACT_ACTIVATIONS = fuse, exact


async def prompted(
    models: Mapping[str, str], *, model: str, prompt: Sequence[int], count: int, dtype: str, int8: bool
) -> dict[str, Any]:
    """The ids behind a prompt, eagerly and twice more, when its runs have tapes; and what computes their products."""
    kinds: dict[int, list[str]] = {}
    ids = []
    with products(kinds, int8=int8), recorded_again():
        passes = [name for name in PASSES if name != "direct"]
        async with await Model.load(models[model] + FILE, device="webgpu", dtype=dtype, passes=passes) as opened:
            for _ in range(3):
                async with Generator(opened, parameters(opened, eos=[])) as generator:
                    generator.append_tokens(prompt)
                    ids.append(await take(generator, count))
                    report = dict(generator.tape_passes or {}).get("prefill", "")
    return {"ids": ids, "kinds": kinds, "report": report}


async def too_large(models: Mapping[str, str], *, model: str, most: int) -> dict[str, Any]:
    """The error of a load on the CPU, whose heap has `most` bytes, and the progress of the weights until then."""
    told: list[str] = []
    cpu: Any = import_module("capstan.device.wasm.wasm_model")
    heap, cpu.HEAP_BYTES = cpu.HEAP_BYTES, most
    try:
        await Model.load(
            models[model] + FILE, device="wasm", capture="off", progress=lambda what, done, total: told.append(what)
        )
    except OutOfMemoryError as error:
        return {"error": f"{type(error).__name__}: {error}", "told": told}
    finally:
        cpu.HEAP_BYTES = heap
    return {"error": "", "told": told}
