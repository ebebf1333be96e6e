"""Host time of a step, and Capstan's time stamps beside the probe's; runs in the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from capstan import Generator
from capstan._js import host_calls
from capstan.device.row_interface import Burst

from . import probe
from .running import load, parameters

CAPTURES = ("tape", "ort", "off")


async def host_times(
    models: Mapping[str, str], *, model: str, prompt: Sequence[int], count: int, rounds: int
) -> dict[str, Any]:
    """Least host milliseconds of a step, by capture; runs of the three alternate. Other work on the cores adds to some
    of them.

    A step is what brings one token: the tape's bursts have 8 each, the other ways can have only one. A burst's host
    time goes from the request to its submit. In an eager step onnxruntime-web waits for the GPU meanwhile (mapAsync);
    that wait is not the host's work, so what the probe saw of it is taken off.
    """
    hosts: dict[str, list[float]] = {capture: [] for capture in CAPTURES}
    used: dict[str, Any] = {}
    for _ in range(rounds):
        for capture in CAPTURES:
            opened = await load(models, model, capture=capture)
            async with Generator(opened, parameters(opened, run_ahead=8)) as generator:
                generator.append_tokens(prompt)
                bursts, _ = await watched(generator, count)
                used[capture] = (generator.capture, generator.capture_note)
                waits = [tuple(stamp) for stamp in probe.stamps()["mapped"]]
                # The first burst picks from the prefill's logits: it is no step.
                for burst in bursts[1:]:
                    start = burst.submitted - burst.host
                    waiting = sum(max(0.0, min(end, burst.submitted) - max(begin, start)) for begin, end in waits)
                    hosts[capture].append((burst.host - (waiting if capture == "off" else 0.0)) / burst.picks)
    return {"least": {capture: min(times) for capture, times in hosts.items()}, "used": used}


async def stamps(models: Mapping[str, str], *, model: str, prompt: Sequence[int], count: int) -> dict[str, Any]:
    """The stamps of every burst, and those that the probe took right before and after; the generator's times, and when
    each token was asked for and there."""
    opened = await load(models, model)
    async with Generator(opened, parameters(opened, run_ahead=2, max_length=len(prompt) + count)) as generator:
        await generator.prepare_async()
        generator.append_tokens(prompt)
        bursts, tokens = await watched(generator, count)
        seen = probe.stamps()
        timing = generator.timing
        return {
            "tokens": tokens,
            "bursts": [(burst.submitted, burst.readable) for burst in bursts],
            "done": [burst.done for burst in bursts],
            "work": seen["work"][-len(bursts) :],
            "waiting_ms": timing.waiting_ms,
            "copying_ms": timing.copying_ms,
            "first_submit": seen["submitted"][0],
            # The last submits are the bursts', those before are the prefill's.
            "finished": seen["finished"][-len(bursts) :],
            "submitted": seen["submitted"][-len(bursts) :],
            "mapped": [end for _, end in seen["mapped"]],
            "ranged": seen["ranged"],
            "started": timing.started,
            "first_token": timing.first_token,
            "last_token": timing.last_token,
            "time_to_first_token": timing.time_to_first_token,
            "tokens_per_second": timing.tokens_per_second,
            "capture": (generator.capture, generator.capture_note),
        }


async def watched(generator: Generator, count: int) -> tuple[list[Burst], list[tuple[float, float]]]:
    """Take tokens: the bursts that brought them, and for each token when it was asked for and when it was there."""
    await generator.prepare_async()
    bursts: list[Burst] = []
    receive = generator._loop.receive

    def keep(burst: Burst, numbers: Sequence[int]) -> None:
        bursts.append(burst)
        receive(burst, numbers)

    generator._loop.receive = keep  # type: ignore[method-assign]
    probe.forget()
    tokens = []
    for _ in range(count):
        asked = host_calls.now()
        await generator.generate_next_token_async()
        tokens.append((asked, host_calls.now()))
    return bursts, tokens
