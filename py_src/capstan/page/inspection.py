"""Answers requests that inspect a model: its fit, times, tape, and the probability of each token of an answer."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any, Unpack

from .. import measure
from .._js import host_calls
from ..errors import DeviceUnavailableError, OptionError
from ..generation.generator import Generator
from ..generation.token_times import BurstTimes, Timing
from ..loading.load_options import FitOptions
from ..loading.planning import plan
from ..model_files.hub import HubRepository
from ..tokenizer import Tokenizer
from .requests import RunRequest

__all__ = ["CONTEXT_TOKENS", "burst_list", "plan_for", "tape_of", "emit_alternatives", "texts_after", "times_report"]

CONTEXT_TOKENS = 8
"""A token's text is its addition to the text of this number of tokens before it."""
REPEATS = 4
"""Repetitions of each operation's timing, of which the median is used."""


def texts_after(tokenizer: Tokenizer, before: Sequence[int]) -> Callable[[int], str]:
    """A function that returns the text which a token adds to the tokens before it."""
    known = tokenizer.decode(before)

    def text(token: int) -> str:
        whole = tokenizer.decode([*before, token])
        return whole[len(known) :] if whole.startswith(known) else tokenizer.decode([token])

    return text


async def emit_alternatives(
    generator: Generator, tokenizer: Tokenizer, answer: Sequence[int], count: int, ends: Sequence[int]
) -> None:
    """Run the model over the answer, which follows the generator's sequence, and notify the page of each token in turn.
    Afterwards the sequence ends before the answer's last token or, after a cancellation, at the token that was reached.
    """
    before = generator.get_sequence()[-CONTEXT_TOKENS:]
    for place, token in enumerate(answer):
        text_of = texts_after(tokenizer, before)

        def about(token: int, log_probability: float, text_of: Callable[[int], str] = text_of) -> dict[str, Any]:
            text, probability = text_of(token), math.exp(log_probability)
            return {"token_id": token, "text": text, "probability": probability, "ends": token in ends}

        found = await generator.log_probabilities_async(count, [token])
        best = [about(other, found[other]) for other in list(found)[:count]]
        host_calls.emit({"kind": "alternatives", "place": place, "token": about(token, found[token]), "best": best})
        if place + 1 < len(answer):
            generator.append_tokens([token])
            before = [*before, token][-CONTEXT_TOKENS:]


async def plan_for(
    folder: str | HubRepository, draft: str | HubRepository | None, length: int, **options: Unpack[FitOptions]
) -> dict[str, Any]:
    """Whether a model, its draft model, and a sequence of `length` tokens, or of the model's context if that is
    shorter, would fit the device.
    """
    whole = await plan(folder, draft_model=draft, **options)
    context = whole.requirements.max_length
    fit = whole if context <= length else await plan(folder, draft_model=draft, **options, max_length=length)
    need = fit.requirements
    return {
        "device": need.device,
        "fits": bool(fit),
        "reason": fit.reason,
        "tight": fit.tight,
        "max_length": need.max_length,
        "context_length": context,
        "largest_max_length": whole.largest_max_length,
        "bytes": need.total.bytes,
        "exact": need.total.exact,
        "draft_bytes": 0 if need.draft is None else need.draft.total.bytes,
        "split": [
            {"name": each.name, "bytes": each.bytes, "parts": each.parts, "why": each.why} for each in need.split
        ],
        "pools": {name: getattr(need, name).bytes for name in ("weights", "persistent", "io", "scratch")},
    }


def burst_list(request: RunRequest) -> list[BurstTimes] | None:
    """A list in which a Timing keeps the bursts, if the request wants them."""
    return [] if request.get("timeline") else None


def times_report(timing: Timing) -> dict[str, Any]:
    """The times of a run and, if they were kept, those of its bursts, in milliseconds since the first token was
    requested.
    """
    since = timing.started or 0.0
    times: dict[str, Any] = {
        "tokens_per_second": timing.tokens_per_second,
        "time_to_first_token_ms": timing.time_to_first_token,
        "waiting_ms": timing.waiting_ms,
        "copying_ms": timing.copying_ms,
    }

    def described(burst: BurstTimes) -> list[float]:
        stamps = (burst.encoded, burst.submitted, burst.done, burst.readable, burst.entered)
        return [*(round(at - since, 3) for at in stamps), burst.picks]

    return times if timing.bursts is None else {**times, "bursts": [described(burst) for burst in timing.bursts]}


async def tape_of(generator: Generator, prompt: Sequence[int]) -> dict[str, Any]:
    """The operations of the decode step after a prompt and a token, with the GPU's time for each. Without GPU times
    `operations` is None, and `note` has the reason.
    """
    generator.append_tokens(prompt)
    await generator.prepare_async(record=True)
    await generator.generate_next_token_async()
    found, note = None, None
    try:
        found = [asdict(each) for each in await measure.operations(generator, REPEATS)]
    except (DeviceUnavailableError, OptionError) as error:
        note = str(error)
    return {
        "capture": generator.capture,
        "capture_note": generator.capture_note,
        "tape_passes": generator.tape_passes,
        "operations": found,
        "note": note,
    }
