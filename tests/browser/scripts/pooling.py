"""Generators over buffers of the caller's, for rows and for the scratch of tapes; runs in the page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import capstan
from capstan import CapstanError, Generator, Model
from capstan._js.page_gpu_engine import JsGpuEngine
from capstan.fallback import fallbacks
from capstan.memory import DeviceBuffer, MemoryType, Pools, ledger
from capstan.tape import PASSES

from . import probe
from .rows import APART, JOINT
from .running import close_all, parameters

CHOICES = {"separate": APART, "joint": JOINT, "all": tuple(PASSES)}
POOLS = ("persistent", "io", "scratch")
WATCHED = ("record", "restore_tape", "give_scratch", "create_buffers")


@contextmanager
def counted() -> Iterator[Counter[str]]:
    """How often the engine is asked for what takes time or memory."""
    asked: Counter[str] = Counter()
    plain = {name: getattr(JsGpuEngine, name) for name in WATCHED}

    def noted(name: str) -> Any:
        async def call(self: JsGpuEngine, *given: Any) -> Any:
            asked[name] += 1
            return await plain[name](self, *given)

        return call

    for name in plain:
        setattr(JsGpuEngine, name, noted(name))
    try:
        yield asked
    finally:
        for name, method in plain.items():
            setattr(JsGpuEngine, name, method)


def own_buffers(model: Model, need: Any, more: int = 0) -> Pools:
    """A buffer for each item of the pools, larger by `more` bytes."""
    made = {
        pool: {item.name: model.device.allocate(item.bytes + more, label=f"my {item.name}") for item in need.pool(pool)}
        for pool in POOLS
    }
    return Pools(made["persistent"], made["io"], made["scratch"] or None)


def close_pools(*pools: Pools) -> None:
    for each in pools:
        for name in POOLS:
            for buffer in (getattr(each, name) or {}).values():
                buffer.close()


def scratch_of(model: Model, need: Any) -> dict[str, DeviceBuffer]:
    return {item.name: model.device.allocate(item.bytes, label=f"my {item.name}") for item in need.pool("scratch")}


def allocated() -> dict[str, int]:
    """Bytes that generators allocated by category, and the number of scratch buffers of tapes."""
    now = ledger()
    own = {name: now.bytes(category=name) for name in ("persistent", "io")}
    return {
        **own,
        "tape scratch": sum("tape scratch" in label and "my " not in label for label in probe.live_buffers()),
    }


def kept() -> int:
    """Bytes of the program and of generators."""
    return sum(ledger().bytes(category=name) for name in ("user", "persistent", "io"))


async def steps(generator: Generator, count: int | None = None) -> None:
    while not generator.is_done() and count != 0:
        await generator.generate_next_token_async()
        count = None if count is None else count - 1


async def given_rows(
    models: Mapping[str, str],
    *,
    model: str,
    prompts: Sequence[Sequence[int]],
    choice: str,
    turns: int = 1,
    more: int = 0,
    close_early: bool = False,
    **search: Any,
) -> dict[str, Any]:
    """Rows without pools, `turns` times, then twice over our buffers, with other scratch in their midst."""
    await close_all()
    found: dict[str, Any] = {"sequences": [], "ledger": [], "asked": []}
    before = fallbacks()
    async with await Model.load(models[model], device="webgpu", passes=CHOICES[choice]) as opened:
        params = parameters(opened, batch_size=len(prompts), **search)
        rows, length = params.rows, params.search.max_length
        early = opened.query_memory_requirements(rows, length)
        found["early"] = [len(early.pool("scratch")), early.no_scratch]

        async def rest(generator: Generator) -> None:
            await steps(generator)
            count = len(prompts) * search.get("num_return_sequences", 1)
            found["sequences"].append([generator.get_sequence(row) for row in range(count)])

        for _ in range(turns):
            async with Generator(opened, params) as generator:
                generator.append_tokens(prompts)
                await rest(generator)
                found["own"] = allocated()
        await opened.trim()
        need = opened.query_memory_requirements(rows, length)
        found["rows"] = need.rows
        found["no scratch"] = need.no_scratch
        found["scratch"] = [item.bytes for item in need.pool("scratch")]
        start, own = ledger().bytes(), kept()
        for _ in range(2):
            pools = own_buffers(opened, need, more)
            others = scratch_of(opened, need)
            with counted() as asked:
                generator = Generator(opened, params, pools=pools)
                generator.append_tokens(prompts)
                await steps(generator, 3)
                found["ledger"].append(allocated())
                await generator.replace_scratch_async(others)
                close_pools(Pools(scratch=pools.scratch))
                if close_early:
                    close_pools(pools, Pools(scratch=others))
                await steps(generator, 3)
                found["ledger"].append(allocated())
                await rest(generator)
            found["asked"].append(dict(asked))
            found["capture"] = [generator.capture, generator.capture_note]
            await generator.aclose()
            found["held"] = [label for label in probe.live_buffers() if label.startswith("my ")] if close_early else []
            close_pools(pools, Pools(scratch=others))
        found["left"], found["left own"] = ledger().bytes() - start, kept() - own
    found["stepped down"] = [each for each in fallbacks() if each not in before]
    return found


async def refused(
    models: Mapping[str, str], *, model: str, prompts: Sequence[Sequence[int]], choice: str
) -> dict[str, Any]:
    """Errors for buffers of rows and for scratch that cannot be used, and what each left in the ledger; then the same
    generators go on."""
    await close_all()
    cpu = await capstan.open_device("wasm")
    opened = await Model.load(models[model], device="webgpu", passes=CHOICES[choice])
    eager = await Model.load(models[model], device="webgpu", capture="off")
    slow = await Model.load(models[model], device="wasm")
    options: dict[str, Any] = {"batch_size": len(prompts), "max_length": 24}
    found: dict[str, Any] = {"left": {}, "ids": []}

    def rows_of(one: Model, pools: Pools | None) -> Generator:
        return Generator(one, parameters(one, **options), pools=pools)

    running = rows_of(opened, None)
    running.append_tokens(prompts)
    await steps(running)
    found["ids"].append([running.get_sequence(row) for row in range(len(prompts))])
    await running.aclose()
    await opened.trim()
    need = opened.query_memory_requirements(len(prompts), 24)
    mine = own_buffers(opened, need)
    # Over our buffers that stay in use.
    running = rows_of(opened, mine)
    running.append_tokens(prompts)
    await steps(running, 4)
    made = own_buffers(opened, need)
    items = {item.name: item for item in need.items if item.pool in POOLS}
    # Tensors of the last row, or of all rows.
    cache, state, logits = ([name for name in items if part in name][-1] for part in ("kv", "state", "logits"))
    first = "tape scratch 0"
    gone = opened.device.allocate(items[first].bytes, label="gone")
    gone.close()
    closed = opened.device.allocate(items[cache].bytes, label="closed")
    closed.close()
    extra = [
        small := opened.device.allocate(items[cache].bytes - 16, label="small"),
        loose := opened.device.allocate(items[state].bytes + 256, label="loose"),
        staging := opened.device.allocate(items[logits].bytes, MemoryType.HOST_ACCESSIBLE, label="staging"),
        between := opened.device.allocate(items[first].bytes, MemoryType.HOST_ACCESSIBLE, label="staging"),
        foreign := cpu.allocate(max(item.bytes for item in items.values()), label="cpu"),
        little := opened.device.allocate(items[first].bytes - 16, label="little"),
    ]
    persistent, io, scratch = ({**(getattr(made, name) or {})} for name in POOLS)

    def without(buffers: Mapping[str, Any], name: str) -> dict[str, Any]:
        return {other: buffer for other, buffer in buffers.items() if other != name}

    one = {item.name: item for item in opened.query_memory_requirements(1, 24).pool("io")}
    given: dict[str, Pools] = {
        "small": Pools(persistent={**persistent, cache: small}),
        "misaligned": Pools(persistent={**persistent, state: loose.span(16, items[state].bytes)}),
        "staging": Pools(io={**io, logits: staging}),
        "foreign": Pools(io={**io, logits: foreign}),
        "closed": Pools(persistent={**persistent, cache: closed}),
        "unknown": Pools(io={**io, "banana": io[logits]}),
        "missing": Pools(io=without(io, logits)),
        "twice": Pools(persistent={**persistent, cache: persistent[[name for name in items if "kv" in name][-2]]}),
        "in another pool": Pools(persistent=persistent, io={**io, logits: persistent[cache]}),
        "of one sequence": Pools(io={**dict.fromkeys(one, io[logits]), "row 7 logits": io[logits]}),
        "in use": Pools(persistent={**persistent, cache: (mine.persistent or {})[cache]}),
        "small scratch": Pools(scratch={**scratch, first: little}),
        "closed scratch": Pools(scratch={**scratch, first: gone}),
        "foreign scratch": Pools(scratch={**scratch, first: foreign}),
        "staging scratch": Pools(scratch={**scratch, first: between}),
        "missing scratch": Pools(scratch=without(scratch, first)),
        "onnxruntime's scratch": Pools(scratch={**scratch, "prefill scratch": scratch[first]}),
        "scratch in use as a cache": Pools(scratch={**scratch, first: (mine.persistent or {})[cache]}),
    }
    replaced = {
        "replaced by small scratch": {**scratch, first: little},
        "replaced by closed scratch": {**scratch, first: gone},
        "replaced by the cache": {**scratch, first: (mine.persistent or {})[cache]},
    }

    async def refusal(name: str, attempt: Any) -> None:
        before = ledger().bytes()
        try:
            await attempt
            found[name] = "no error"
        except CapstanError as error:
            found[name] = f"{type(error).__name__}: {error}"
        if ledger().bytes() != before:
            found["left"][name] = ledger().bytes() - before

    for name, pools in given.items():
        await refusal(name, rows_of(opened, pools).prepare_async())
    for name, buffers in replaced.items():
        await refusal(name, running.replace_scratch_async(buffers))
    for one_model, where in ((eager, "without a tape"), (slow, "on wasm")):
        async with rows_of(one_model, None) as other:
            other.append_tokens(prompts)
            await steps(other, 1)
            await refusal(f"replaced {where}", other.replace_scratch_async(scratch))
        await refusal(f"scratch {where}", rows_of(one_model, Pools(scratch=scratch)).prepare_async())
    await refusal("persistent on wasm", rows_of(slow, Pools(persistent=persistent)).prepare_async())
    await steps(running)
    found["ids"].append([running.get_sequence(row) for row in range(len(prompts))])
    await running.aclose()
    for each in (eager, slow, opened):
        await each.aclose()
    for buffer in extra:
        buffer.close()
    close_pools(made, mine)
    cpu.close()
    return found
