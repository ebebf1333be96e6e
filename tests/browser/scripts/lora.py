"""Generators with LoRA adapters; runs in the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from capstan import Adapters, DeviceLostError, Generator
from capstan.fallback import fallbacks
from capstan.memory import ledger

from .running import gpu, load, parameters, take


async def drive(
    models: Mapping[str, str],
    *,
    model: str,
    runs: Sequence[Sequence[tuple[str, Any]]],
    device: str = "webgpu",
    prompts: int = 1,
    **options: Any,
) -> dict[str, Any]:
    """The sequences of generators, each driven by actions ("adapter", name), ("append", ids), ("rewind", length) and
    ("generate", most); the sessions that each made, and the bytes of the adapters."""
    before = dict(fallbacks())
    opened = await load(models, model, device=device)
    adapters = Adapters(opened)
    for name in {argument for actions in runs for verb, argument in actions if verb == "adapter"}:
        await adapters.load_async(f"{name}.onnx_adapter", name)
    counts = Sessions() if device == "webgpu" else None
    found, sessions = [], []
    for actions in runs:
        search: dict[str, Any] = options | ({"batch_size": prompts} if prompts > 1 else {})
        params = parameters(opened, **search)
        async with Generator(opened, params) as generator:
            for verb, argument in actions:
                if verb == "adapter":
                    generator.set_active_adapter(adapters, argument)
                elif verb == "append":
                    generator.append_tokens(argument)
                elif verb == "rewind":
                    generator.rewind_to(argument)
                else:
                    await take(generator, argument)
            shown = {"capture": generator.capture, "passes": generator.tape_passes}
            found.append({"sequences": [generator.get_sequence(row) for row in range(prompts)], **shown})
        if counts is not None:
            sessions.append(counts.taken())
    held = adapter_bytes()
    for name in adapters.names:
        adapters.unload(name)
    if counts is not None:
        counts.end()
    assert adapter_bytes() == 0, ledger().entries
    told = {name: count for name, count in fallbacks().items() if count != before.get(name)}
    return {"runs": found, "sessions": sessions, "adapters": held, "fallbacks": told}


async def lost(models: Mapping[str, str], *, model: str, prompt: Sequence[int], count: int) -> dict[str, Any]:
    """A generator with an adapter whose device is lost after two tokens, then the same without a loss: how the first
    one ended, and the ids of the second one."""
    error = ""
    for loses in (True, False):
        opened = await load(models, model)
        adapters = Adapters(opened)
        await adapters.load_async("first.onnx_adapter", "first")
        async with Generator(opened, parameters(opened)) as generator:
            generator.set_active_adapter(adapters, "first")
            generator.append_tokens(prompt)
            await take(generator, 2)
            if loses:
                gpu().destroy_device()
            try:
                await take(generator, count - 2)
            except DeviceLostError as told:
                error = str(told)
            ids = generator.get_sequence(0)
        if not loses:
            adapters.unload("first")
    return {"error": error, "ids": ids, "recoveries": opened.recoveries}


def adapter_bytes() -> int:
    return sum(entry.bytes for entry in ledger().entries if "adapter '" in entry.owner)


class Sessions:
    """Counts the sessions that are made on the page's GPU."""

    def __init__(self) -> None:
        self.engine: Any = vars(gpu())
        self.count = 0
        make = gpu().create_session

        async def counted(*arguments: Any, **named: Any) -> int:
            self.count += 1
            handle: int = await make(*arguments, **named)
            return handle

        self.engine["create_session"] = counted

    def taken(self) -> int:
        """Those since it was last asked."""
        count, self.count = self.count, 0
        return count

    def end(self) -> None:
        del self.engine["create_session"]
