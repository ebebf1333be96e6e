"""Completes a prompt for the page: with one sequence, or with several that are sampled together as rows of a batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from .._js import host_calls
from ..errors import OptionError, PromptError
from ..fallback import fall_back
from ..generation.answer import AnswerStream
from ..generation.generator import Generator
from ..generation.generator_params import GeneratorParams
from ..generation.named_processors import named_processor
from ..generation.run_options import GeneratorOptions
from ..loading.load_options import taken
from ..model import Model
from ..stages.search import DRAWING
from ..stages.speculation_options import Speculation
from ..tokenizer import Tokenizer
from .adapter_requests import adapt
from .inspection import burst_list, times_report
from .requests import RunRequest
from .text_events import Choice, watch

if TYPE_CHECKING:
    from ..device.speech_encoder import Features

__all__ = [
    "complete",
    "generator_params",
    "limit_length",
    "require_one_sequence",
    "searched",
    "ready_report",
    "steps_report",
]


async def complete(
    model: Model,
    tokenizer: Tokenizer,
    request: RunRequest,
    params: GeneratorParams,
    prompt: Sequence[int],
    fills: bool,
    answer: Callable[[], AnswerStream | None] = lambda: None,
    pictures: Sequence[Features] = (),
) -> dict[str, Any]:
    """Continue a prompt with a new generator, and notify the page of each token. `fills` is the result of
    limit_length. The keys of the result are those of `build.py run --json`; with several sequences `choices` has all of
    them and the other keys are those of the first. `answer` makes the reader of each answer of a chat. The prompt has
    the `pictures`.
    """
    begun: Sequence[int] = request.get("begun") or []  # type: ignore[assignment]  # of the requests that have it
    search = params.search
    rows: list[int | None] = [None] if params.rows == 1 else [*range(params.rows)]
    choices = [Choice(tokenizer, search.stop_strings, prompt, begun, row, answer()) for row in rows]
    async with Generator(model, params) as generator:
        await adapt(model, generator, request)
        if pictures:
            generator.see(pictures)
        generator.append_tokens([*prompt, *begun])
        host_calls.emit({"kind": "status", "text": "preparing the decode step"})
        # Only the first token is awaited.
        await generator.prepare_async(record=False)
        report = steps_report(model, generator)
        host_calls.emit({"kind": "status", "text": "generating"})
        watch(generator, request)
        generator.timing.bursts = burst_list(request)
        while not generator.is_done():
            going = [reason is None for reason in generator.finish_reasons]
            await generator.generate_next_token_async()
            for choice, token, goes in zip(choices, generator.get_next_tokens(), going, strict=True):
                if goes:
                    choice.take(token, token not in search.end_token_ids, generator, request)
            report()
        described = [
            {
                **choice.end(),
                "token_ids": choice.ids,
                "finish_reason": choice.finish_reason_of(reason),
                "context_full": fills and reason == "length",
            }
            for choice, reason in zip(choices, generator.finish_reasons, strict=True)
        ]
        return {
            **described[0],
            **({} if len(described) == 1 else {"choices": described}),
            "prompt_ids": [*prompt],
            **report(),
            "tape_passes": generator.tape_passes,
            **times_report(generator.timing),
            "counters": generator.counters,
            "speculation": None if generator.speculation is None else asdict(generator.speculation),
        }


def generator_params(model: Model, request: RunRequest) -> GeneratorParams:
    """The parameters of a request, without its lengths; the model's files or makers give the defaults. Raises
    OptionError, GuidanceError.
    """
    processor = request.get("logits_processor")
    named: dict[str, Any] = {} if processor is None else named_processor(processor).options
    params = GeneratorParams(model, **taken(GeneratorOptions, request), **named)
    params.set_search_options(**{**model.facts.search, **searched(request)})
    if (drafting := request.get("speculation")) is not None:
        params.set_speculation(Speculation(**drafting))
    elif params.speculation is not None and request.get("log_probabilities") is not None:
        fall_back("speculation", "log probabilities wait for the logits of each token", "each step picks one token")
        params.set_speculation(None)
    if (guidance := request.get("guidance")) is not None:
        params.set_guidance(**guidance)
    for name in ("batch_size", "num_beams"):
        value = getattr(params.search, name)
        if value != 1:
            raise OptionError(
                f"{name} is {value}; a request has one prompt and no beam search: leave {name} at 1, or use "
                "capstan.Generator in a script (build.py exec)"
            )
    count = params.search.num_return_sequences
    if count > 1 and params.search.greedy:
        raise OptionError(
            f"num_return_sequences (n) is {count}, but without sampling all sequences are the same: set one of "
            f"{', '.join(DRAWING)} (a temperature above 0), or leave it at 1"
        )
    return params


def searched(request: RunRequest) -> dict[str, Any]:
    """The search options of a request."""
    return request.get("search") or {}


def require_one_sequence(params: GeneratorParams) -> None:
    """Raise OptionError for several sequences."""
    if (count := params.search.num_return_sequences) != 1:
        raise OptionError(
            f"num_return_sequences (n) is {count}; an answer that is continued has one sequence: leave it at 1"
        )


def limit_length(params: GeneratorParams, model: Model, prompt: int, new_tokens: int | None, most: int | None) -> bool:
    """Set max_length to `most`, or to the prompt and `new_tokens` if that is less, within the model's context. Returns
    whether no token has room after that. Raises PromptError, OptionError.
    """
    context = model.config.context_length
    if prompt >= context:
        raise PromptError(f"the prompt has {prompt} tokens; the model's context_length is {context}: shorten it")
    if new_tokens is None:
        if most is not None:
            params.set_search_options(max_length=most)
        return True
    room = context if most is None else min(most, context)
    params.set_search_options(max_length=min(prompt + new_tokens, room))
    return prompt + new_tokens >= room


def ready_report(model: Model, generator: Generator) -> dict[str, Any]:
    """The facts about the generator's steps, of which the page is also notified."""
    about = {
        "model": str(model.facts),
        "device": model.device_type,
        "adapter": model.adapter,
        "capture": generator.capture,
        "capture_note": generator.capture_note,
        "tape_passes": generator.tape_passes,
    }
    host_calls.emit({"kind": "ready", **about})
    return about


def steps_report(model: Model, generator: Generator) -> Callable[[], dict[str, Any]]:
    """Notify the page of facts about the generator's steps. The returned function, called after a token, notifies it
    that the next token waits for the recording of the decode step, and of new facts; it returns the latest facts.
    """
    about, recording = ready_report(model, generator), False

    def report() -> dict[str, Any]:
        nonlocal about, recording
        if recording != generator.records_next:
            recording = generator.records_next
            text = "recording and checking the decode step" if recording else "answering"
            host_calls.emit({"kind": "status", "text": text})
            about = about if recording else ready_report(model, generator)
        return about

    return report
