"""Answers the page's requests (web/src/wire/protocol.ts), for example to generate text, chat, inspect or run a
script.

ANSWERS has the function for each kind of request.
"""

from __future__ import annotations

import asyncio
import builtins
import importlib
import posixpath
import sys
import traceback
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from pyodide.code import eval_code_async

from .._js import host_calls
from .._js.files import mount
from .._js.js_errors import spent
from .._js.page_storage import cross_origin_bytes
from ..errors import OptionError, PromptError
from ..generation.answer import AnswerStream
from ..generation.generator import Generator
from ..generation.generator_params import GeneratorParams
from ..generation.prompt import require_fitting
from ..generation.token_scores import begin_of
from ..generation.token_times import Timing
from ..host.tracing import begin_trace, end_trace
from ..loading.load_options import FitOptions, taken
from ..loading.opening import facts_report
from ..text.chat_prompts import template_options
from ..tokenizer import Tokenizer
from .adapter_requests import adapt
from .chat_answers import answer_stream, with_call, with_pictures
from .completion import (
    complete,
    generator_params,
    limit_length,
    ready_report,
    require_one_sequence,
    searched,
    steps_report,
)
from .inspection import burst_list, emit_alternatives, plan_for, tape_of, times_report
from .memory_requests import live_memory, stored_weights
from .page_session import CHAT_LENGTH, PageSession, chat_length, folder_of
from .requests import (
    AlternativesRequest,
    ChatRequest,
    EmbedRequest,
    EndSessionRequest,
    ExecRequest,
    GenerateRequest,
    ListenRequest,
    LoadEmbedderRequest,
    LoadRequest,
    LoadRerankerRequest,
    LoadTranscriberRequest,
    LoadVoiceRequest,
    OpenSessionRequest,
    OperationsRequest,
    PlanRequest,
    RerankRequest,
    RestoreSessionRequest,
    SavedSessionsRequest,
    SaveSessionRequest,
    ScoreRequest,
    SpeakRequest,
    TokenizerRequest,
    TraceRequest,
    TranscribeRequest,
)
from .score_requests import score
from .text_events import likelihood, text_event, watch

if TYPE_CHECKING:
    from ..device.speech_encoder import Features

__all__ = ["ANSWERS"]

SAMPLE = "Hello"
"""The text before the decode step that is inspected."""


async def get_ready(session: PageSession, request: LoadRequest) -> dict[str, Any]:
    """Load a model and, if it has a chat template, begin a chat; its first tokens are prepared if no request follows
    immediately.
    """
    model = await session.load_once(request)
    can_chat = Tokenizer(model).has_chat_template
    if can_chat:
        generator = (await session.conversation_with(model, request)).generator
        ready_report(model, generator)
        session.prepare_ahead(model, generator)
    return {
        "device": model.device_type,
        "adapter": model.adapter,
        "context_length": model.config.context_length,
        "max_length": chat_length(model, request.get("max_length")),
        "can_chat": can_chat,
        "begin_token_id": begin_of(model.config),
        "model": facts_report(model.facts, model.search),
        "load_times": model.load_times,
        "cross_origin_bytes": cross_origin_bytes(),
    }


async def generate(session: PageSession, request: GenerateRequest) -> dict[str, Any]:
    """Complete a prompt."""
    model = await session.load_once(request)
    tokenizer = Tokenizer(model)
    prompt_ids, images = request["prompt_ids"], request.get("images") or []
    pictures: tuple[Features, ...] = ()
    if prompt_ids is None:
        prompt = request["prompt"] or ""
        system = request.get("system")
        require_fitting((prompt, system), model.config)
        messages = [] if system is None else [{"role": "system", "content": system}]
        if request.get("as_message") and tokenizer.has_chat_template:
            parts = [*({"type": "image_url", "image_url": each} for each in images), {"type": "text", "text": prompt}]
            asked = session.prompts_of(model).of([*messages, {"role": "user", "content": parts if images else prompt}])
            prompt_ids, pictures = asked.ids, asked.pictures
        elif messages or images:
            what = "a system message" if messages else "a picture"
            raise PromptError(f"{what} is given, but the model has no chat template; leave it out")
        else:
            prompt_ids = tokenizer.encode_prompt(prompt)
    if not prompt_ids:
        raise PromptError("the prompt is empty; give at least one token")
    params = generator_params(model, request)
    new, most = request.get("max_new_tokens"), searched(request).get("max_length")
    fills = limit_length(params, model, len(prompt_ids), new, most)
    return await complete(model, tokenizer, request, params, prompt_ids, fills, pictures=pictures)


async def chat(session: PageSession, request: ChatRequest) -> dict[str, Any]:
    """Answer the last message of a conversation; without messages only prepare for one."""
    request = {**request, "messages": with_pictures(request["messages"], session.pictures)}
    if request["messages"] and searched(request).get("num_return_sequences", 1) != 1:
        return await chat_rows(session, request)
    begun = request.get("begun") or []
    model = await session.load_once(request)
    tokenizer = Tokenizer(model)
    request = with_call(tokenizer, request)
    talk = await session.conversation_with(model, request)
    generator = talk.generator
    report = steps_report(model, generator)
    if not request["messages"]:
        session.prepare_ahead(model, generator)
        return {**report(), "max_length": generator.max_length}
    require_fitting((message.get("content") for message in request["messages"]), model.config)
    asked = session.prompts_of(model).of(request["messages"], **template_options(request))
    restored = None
    session.kept.leave(talk)
    if (keep := request.get("keep")) is not None:
        restored = asdict(await session.kept.bring(keep, talk, asked))
    kept = talk.take(asked)
    answer = answer_stream(tokenizer, request, talk.prompt, generator.get_sequence(), talk.stops)
    answer.begin(begun)
    watch(generator, request)
    prompt, reused = generator.token_count(), generator.reused_tokens
    generator.timing = Timing(bursts=burst_list(request))
    ids: list[int] = []

    def show(token: int, delta: str) -> None:
        added = False
        if token >= 0:
            ids.append(token)
            added = generator.token_count() == prompt + len(begun) + len(ids)
        parts = answer.push(token if added else None, delta)
        host_calls.emit(text_event(delta, token, likelihood(generator, tokenizer, request) if added else None, parts))
        report()

    try:
        reason = await talk.answer(request.get("max_new_tokens"), show, begun)
    except asyncio.CancelledError:
        reason = "abort"
    if keep is not None:
        session.kept.note(keep, talk)
    if rest := answer.end():
        host_calls.emit(text_event("", -1, None, rest))
    return {
        **answer.summary(),
        "token_ids": ids,
        "prompt_tokens": prompt,
        "kept_tokens": kept + generator.reused_tokens - reused,
        "restored": restored,
        "sequence_tokens": generator.token_count(),
        "finish_reason": answer.finish_reason_of(reason),
        "context_full": reason == "length" and generator.finish_reason == "length",
        **report(),
        "max_length": generator.max_length,
        **times_report(generator.timing),
    }


async def chat_rows(session: PageSession, request: ChatRequest) -> dict[str, Any]:
    """Answer the last message of a conversation several times, as rows of one batch, which is not kept."""
    if request.get("keep") is not None:
        count = searched(request)["num_return_sequences"]
        raise OptionError(
            f"keep is {request['keep']!r}, but {count} answers keep nothing: leave keep out, or ask for 1"
        )
    model = await session.load_once(request)
    tokenizer = Tokenizer(model)
    require_fitting((message.get("content") for message in request["messages"]), model.config)
    request = with_call(tokenizer, request)
    asked = session.prompts_of(model).of(request["messages"], **template_options(request))
    params, prompt = generator_params(model, request), asked.ids
    most = chat_length(model, request.get("max_length"))
    fills = limit_length(params, model, len(prompt), request.get("max_new_tokens"), most)
    stops = params.search.stop_strings

    def reader() -> AnswerStream:
        return answer_stream(tokenizer, request, asked.text, prompt, stops)

    return await complete(model, tokenizer, request, params, prompt, fills, reader, asked.pictures)


async def alternatives(session: PageSession, request: AlternativesRequest) -> None:
    """Report the probability of each token of an answer, and its alternatives: after a prompt or, if there are
    messages, in their conversation.
    """
    answer, count = request["answer"], request["count"]
    model = await session.load_once(request)
    tokenizer, ends = Tokenizer(model), model.config.eos_token_ids
    if (messages := request.get("messages")) is not None:
        messages = with_pictures(messages, session.pictures)
        talk = await session.conversation_with(model, request)
        talk.ask(messages, **template_options(request))
        await emit_alternatives(talk.generator, tokenizer, answer, count, ends)
        return
    prompt_ids = tokenizer.encode_prompt(request["prompt"] or "")
    params = generator_params(model, request)
    require_one_sequence(params)
    limit_length(params, model, len(prompt_ids), request.get("max_new_tokens"), searched(request).get("max_length"))
    async with Generator(model, params) as generator:
        await adapt(model, generator, request)
        generator.append_tokens(prompt_ids)
        await emit_alternatives(generator, tokenizer, answer, count, ends)


async def scores(session: PageSession, request: ScoreRequest) -> dict[str, Any]:
    """Score given tokens."""
    model = await session.load_once(request)
    return await score(model, request, chat_length(model, None))


async def tokenized(session: PageSession, request: TokenizerRequest) -> dict[str, Any]:
    """Encode, decode or render with the model's tokenizer."""
    tokenizer = Tokenizer(await session.load_once(request))
    if request["action"] == "decode":
        return {"text": tokenizer.decode(request.get("ids") or [])}
    text = request.get("text") or ""
    if request["action"] == "template":
        text = tokenizer.apply_chat_template(
            request.get("messages") or [],
            add_generation_prompt=request.get("add_generation_prompt") is not False,
            **template_options(request),
        )
    return {"text": text, "ids": tokenizer.encode(text)}


async def embeddings(session: PageSession, request: LoadEmbedderRequest | EmbedRequest) -> dict[str, Any]:
    """Load an encoder of texts, or embed some with it."""
    from .embedding_requests import embed, load_embedder  # noqa: PLC0415  (for pages that embed texts only)

    if request["kind"] == "embed":
        return await embed(request)
    return await load_embedder(request, folder_of(request["model"]))


async def reranking(session: PageSession, request: LoadRerankerRequest | RerankRequest) -> Any:
    """Load a reranker, or rank documents with it."""
    from .reranking_requests import load_reranker, rerank  # noqa: PLC0415  (for pages that rank documents only)

    if request["kind"] == "rerank":
        return await rerank(request)
    return await load_reranker(request, folder_of(request["model"]))


async def speech(session: PageSession, request: LoadTranscriberRequest | TranscribeRequest | ListenRequest) -> Any:
    """Load a speech model, or turn speech into text with it."""
    from .transcription_requests import listen, load_transcriber, transcribe  # noqa: PLC0415  (pages that hear)

    if request["kind"] == "transcribe":
        return await transcribe(request, session.samples)
    if request["kind"] == "listen":
        return await listen(request, session.samples)
    return await load_transcriber(request, folder_of(request["model"]))


async def voices(session: PageSession, request: LoadVoiceRequest | SpeakRequest) -> dict[str, Any]:
    """Load a model that speaks, or speak a text with it."""
    from .voice_requests import load_voice, speak  # noqa: PLC0415  (for pages that speak only)

    if request["kind"] == "speak":
        return await speak(request)
    return await load_voice(request, folder_of(request["model"]))


async def operations(session: PageSession, request: OperationsRequest) -> dict[str, Any]:
    """The operations of a decode step, and the GPU time of each."""
    model = await session.load_once(request)
    params = GeneratorParams(model)
    params.set_search_options(max_length=chat_length(model, None))
    async with Generator(model, params) as generator:
        await adapt(model, generator, request)
        return await tape_of(generator, Tokenizer(model).encode(SAMPLE) or [0])


async def planned(session: PageSession, request: PlanRequest) -> dict[str, Any]:
    """Whether a model would fit, before its weights are read."""
    place = request.get("draft_model")
    draft = None if place is None else folder_of(place)
    return await plan_for(folder_of(request["model"]), draft, CHAT_LENGTH, **taken(FitOptions, request))


async def end_session(session: PageSession, request: EndSessionRequest) -> None:
    """Release the resources of a session, which may have ended already."""
    await session.end_conversation(request["session"])


async def saved_sessions(
    session: PageSession,
    request: SaveSessionRequest | RestoreSessionRequest | OpenSessionRequest | SavedSessionsRequest,
) -> Any:
    """Store a session, continue a stored one, or list and remove stored ones."""
    from .saved_sessions import listed, opened, restore, save  # noqa: PLC0415  (for pages that store sessions only)

    if request["kind"] == "save_session":
        return await save(session, request)
    if request["kind"] == "open_session":
        return await opened(session, request)
    if request["kind"] == "restore_session":
        return await restore(session, request)
    return await listed(session, request)


async def traced(session: PageSession, request: TraceRequest) -> dict[str, Any] | None:
    """Begin a trace, or end and return it."""
    if request["action"] == "stop":
        return await end_trace()
    begin_trace()
    return None


async def execute(session: PageSession, request: ExecRequest) -> dict[str, int]:
    """Run a script as `__main__`, top-level await allowed; `models` maps names to folders. It imports modules from its
    own folder, including those in `files`.
    """
    sys.argv = list(request["argv"])
    mount(request["files"])
    place = posixpath.dirname(request["filename"])
    if place not in sys.path:
        sys.path.insert(0, place)
        importlib.invalidate_caches()
    folders = {name: folder_of(model) for name, model in request["models"].items()}
    names: dict[str, Any] = {"__name__": "__main__", "__file__": request["filename"], "models": folders}
    names["__builtins__"] = builtins
    status = 0
    try:
        await eval_code_async(request["source"], globals=names, filename=request["filename"], return_mode="none")
    except SystemExit as error:
        status = exit_status(error.code)
    except (KeyboardInterrupt, asyncio.CancelledError):
        raise
    except Exception as error:
        traceback.print_exception(error)
        status = 1
        if isinstance(error, MemoryError):
            spent(error)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return {"status": status}


def exit_status(code: object) -> int:
    """The process exit status that CPython derives from SystemExit's code."""
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    print(code, file=sys.stderr)
    return 1


ANSWERS: Mapping[str, Callable[[PageSession, Any], Awaitable[Any]]] = {
    "load": get_ready,
    "generate": generate,
    "chat": chat,
    "exec": execute,
    "models": lambda _, request: stored_weights(request),
    "memory": lambda _, request: live_memory(request),
    "plan": planned,
    "alternatives": alternatives,
    "score": scores,
    "tokenizer": tokenized,
    "load_embedder": embeddings,
    "embed": embeddings,
    "load_reranker": reranking,
    "rerank": reranking,
    "load_transcriber": speech,
    "transcribe": speech,
    "listen": speech,
    "load_voice": voices,
    "speak": voices,
    "operations": operations,
    "end_session": end_session,
    "save_session": saved_sessions,
    "restore_session": saved_sessions,
    "open_session": saved_sessions,
    "saved_sessions": saved_sessions,
    "trace": traced,
}
