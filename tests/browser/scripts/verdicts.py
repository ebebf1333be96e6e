"""Fused kernels that were changed on their way to the GPU, and what later loads know of a step; runs in the page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from pyodide.code import run_js

from capstan import Generator, Model
from capstan._js.page_gpu_engine import JsGpuEngine
from capstan.fallback import fallbacks

from .adapters import adapter
from .running import close_all, parameters, take

CHANGED = """(label, wanted, instead) => {
  const { prototype } = GPUDevice;
  const { createShaderModule } = prototype;
  let times = 0;
  prototype.createShaderModule = function (given) {
    if (given.label !== label || !given.code.includes(wanted)) return createShaderModule.call(this, given);
    times += 1;
    return createShaderModule.call(this, { ...given, code: given.code.replaceAll(wanted, instead) });
  };
  return () => { prototype.createShaderModule = createShaderModule; return times; };
}"""


async def with_changed_kernel(
    models: Mapping[str, str],
    *,
    model: str,
    prompt: Sequence[int],
    count: int,
    kernel: str,
    wanted: str,
    instead: str,
) -> dict[str, Any]:
    """The ids after a prompt with `wanted` replaced by `instead` in a kernel's text, and the passes' effects."""
    restore = run_js(CHANGED)(kernel, wanted, instead)
    before = fallbacks()
    try:
        with adapter({}):
            opened = await Model.load(models[model], device="webgpu", disable_file_mapped_weights=True)
            async with opened, Generator(opened, parameters(opened)) as generator:
                generator.append_tokens(prompt)
                ids = await take(generator, count)
                step = {"passes": generator.tape_passes, "capture": generator.capture, "note": generator.capture_note}
    finally:
        changed = restore()
    down = {name: times for name, times in fallbacks().items() if times > before.get(name, 0)}
    return {"ids": ids, "fallbacks": down, "changed": changed, **step}


@contextmanager
def counted(*names: str) -> Iterator[Counter[str]]:
    """How often methods of the engine are called."""
    calls: Counter[str] = Counter()
    methods = {name: getattr(JsGpuEngine, name) for name in names}

    def counting(name: str) -> Any:
        def called(self: JsGpuEngine, *given: Any, **named: Any) -> Any:
            calls[name] += 1
            return methods[name](self, *given, **named)

        return called

    for name in names:
        setattr(JsGpuEngine, name, counting(name))
    try:
        yield calls
    finally:
        for name, method in methods.items():
            setattr(JsGpuEngine, name, method)


async def later_loads(
    models: Mapping[str, str], *, model: str, prompt: Sequence[int], count: int
) -> list[dict[str, Any]]:
    """For a first generator, a second one beside it, and the generator of a second load: its ids, the passes' effects,
    and how often steps were compared for it."""
    await close_all()
    found: list[dict[str, Any]] = []

    async def one(opened: Model, calls: Counter[str], beside: Generator | None = None) -> None:
        before = Counter(calls)
        async with Generator(opened, parameters(opened)) as generator:
            generator.append_tokens(prompt)
            if beside is None and not found:
                ids = await take(generator, count)
                found.append({"ids": ids, "passes": generator.tape_passes, "calls": dict(calls - before)})
                await one(opened, calls, generator)
                return
            ids = await take(generator, count)
            found.append({"ids": ids, "passes": generator.tape_passes, "calls": dict(calls - before)})

    with counted("witness", "compare") as calls:
        for _ in range(2):
            async with await Model.load(models[model], device="webgpu") as opened:
                await one(opened, calls)
    return found
