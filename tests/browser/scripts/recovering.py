"""Models and generators whose device is lost at some point; runs in the page."""

from __future__ import annotations

import asyncio
from typing import Any

from pyodide.code import run_js

from capstan import CapstanError, Generator, Model, Speculation
from capstan._js import host_calls
from capstan.fallback import fallbacks
from capstan.memory import CATEGORIES, ledger

from .rows import JOINT
from .running import close_all, parameters

PROMPT = [5, 6, 7, 8, 9]
DRAWN: dict[str, Any] = {"do_sample": True, "temperature": 1.3, "top_k": 40, "random_seed": 11}


def destroy() -> None:
    """Lose the page's device, if there is one."""
    engine = host_calls.gpu()
    if engine is not None:
        engine.destroy_device()


async def run(
    models: dict[str, str],
    *,
    tokens: int = 24,
    lost_after: float | None = None,
    lost_at: int | None = None,
    recoveries: int = 3,
    draft: str | None = None,
    search: dict[str, Any] = DRAWN,
) -> dict[str, Any]:
    """Load, generate and close, and lose the device after as many milliseconds, or at a token; the ids, or the error.
    With a draft model every step is drafted."""
    await close_all()
    begun, before = host_calls.now(), dict(fallbacks())
    timer = asyncio.get_running_loop().call_later((lost_after or 0) / 1000, destroy if lost_after else lambda: None)
    found: dict[str, Any] = {"ids": [], "error": None, "events": [], "drafted": []}
    drafting: dict[str, Any] = {} if draft is None else {"draft_model": models[draft], "passes": JOINT}
    try:
        async with await Model.load(models["nano-llama"], device="webgpu", **drafting) as model:
            model.on_recovery = lambda reason, ms: found["events"].append([reason, ms])
            params = parameters(model, run_ahead=4, **search)
            params.options["recoveries"] = recoveries
            if draft is not None:
                params.set_speculation(Speculation(max_draft_tokens=4, always=True))
            async with Generator(model, params) as generator:
                generator.append_tokens(PROMPT)
                while len(found["ids"]) < tokens:
                    found["ids"].append(await generator.generate_next_token_async())
                    # Somebody outside watches.
                    host_calls.emit({"kind": "status", "text": f"token {len(found['ids'])}"})
                    if len(found["ids"]) == lost_at:
                        found["drafted"].append(drafted_steps(generator))
                        destroy()
                generator.append_tokens(PROMPT)
                while len(found["ids"]) < 2 * tokens:
                    found["ids"].append(await generator.generate_next_token_async())
                found["drafted"].append(drafted_steps(generator))
    except CapstanError as error:
        found["error"] = [type(error).__name__, str(error)]
    timer.cancel()
    found["fallbacks"] = [name for name, count in fallbacks().items() if count != before.get(name)]
    found["took"] = host_calls.now() - begun
    for _ in range(100):
        if not any(ledger().bytes(category=name) for name in CATEGORIES):
            break
        await asyncio.sleep(0.05)
    found["left"] = sum(ledger().bytes(category=name) for name in CATEGORIES)
    return found


def drafted_steps(generator: Generator) -> int:
    """The number of steps that verified drafts."""
    return 0 if generator.speculation is None else generator.speculation.rounds


AWAY = """ms => {
  const { prototype } = GPU;
  const { requestAdapter } = prototype;
  const until = performance.now() + ms;
  prototype.requestAdapter = async function (...args) {
    return performance.now() < until ? null : requestAdapter.apply(this, args);
  };
  return () => { prototype.requestAdapter = requestAdapter; };
}"""


async def away(models: dict[str, str], *, ms: float) -> dict[str, Any]:
    """Load and generate while the browser offers no adapter for so long."""
    restore = run_js(AWAY)(ms)
    try:
        return await run(models)
    finally:
        restore()
