"""Answers the page's requests (web/src/wire/protocol.ts): generate text, chat, run a script, look after stored weights.

The worker imports this module.
"""

from __future__ import annotations

import asyncio
import builtins
import importlib
import json
import math
import posixpath
import sys
import traceback
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

from pyodide.code import eval_code_async

from .._js import host_calls
from .._js.files import mount
from .._js.js_errors import require_memory, spent
from ..errors import CapstanError, ConfigError, OptionError, OutOfMemoryError, PromptError
from ..generation.conversation import Conversation
from ..generation.generator import Generator
from ..generation.generator_params import GeneratorParams
from ..generation.named_processors import named_processor
from ..generation.prompt import require_fitting
from ..generation.token_scores import begin_of
from ..generation.token_times import Timing
from ..host.spans import span
from ..host.tracing import begin_trace, end_trace
from ..loading.load_options import FitOptions, PageOptions, taken
from ..loading.opening import told_facts
from ..model import Model
from ..model_files.hub import HubRepository
from ..model_files.model_facts import ModelFacts
from ..text.chat_prompts import template_options
from ..tokenizer import Tokenizer
from .adapter_requests import adapt, forget_adapters
from .chat_answers import answer_stream, rendered, with_call
from .completion import complete, generator_params, limit_length, require_one_sequence, told_ready, told_steps
from .inspection import burst_list, plan_for, tape_of, tell_alternatives, told_times
from .memory_requests import idle_verification, live_memory, stored_weights
from .read_request import read_request
from .requests import (
    AlternativesRequest,
    AnsweredRequest,
    ChatRequest,
    ConversationRequest,
    EmbedRequest,
    EndSessionRequest,
    ExecRequest,
    GenerateRequest,
    LoadEmbedderRequest,
    LoadRequest,
    ModelFolder,
    ModelRequest,
    OperationsRequest,
    PlanRequest,
    ScoreRequest,
    TokenizerRequest,
    TraceRequest,
)
from .score_requests import score
from .text_events import likelihood, text_event, watch

__all__ = ["begin_trace", "cancel", "handle", "look_after_weights"]

Key = tuple[str | HubRepository, PageOptions]
"""A model's folder and the options of its load."""

running: asyncio.Task[Any] | None = None
answering = 0
"""The number of the request that is running, or ran last: numbers rise from request to request."""
stopped: set[int] = set()
"""Requests that were cancelled before they began."""
loaded: tuple[Key, Model] | None = None
"""The last model and what it was loaded for: the next request for the same one finds it ready."""
loading: asyncio.Task[Model] | None = None
"""The load that is under way."""
conversations: dict[str | None, tuple[Model, str, Conversation]] = {}
"""The last conversation of each session (None: of requests without a session), with its model and its options. The next
request that continues it runs the model on new messages only."""
idle = idle_verification(lambda: load_ended())
verify_after = math.inf
"""Seconds without a request until stored weights are compared with their digests."""
recording: asyncio.Task[None] | None = None
"""Records the decode step of a model that was loaded, if no request for a first token comes before that."""
UNASKED = 0.25
"""Seconds without a request until then: a program asks at once, a person types."""
SAMPLE = "Hello"
"""The text before the decode step that is inspected."""
CHAT_LENGTH = 4096
"""The `max_length` of conversations, where none is given and the model's context is no shorter."""


async def handle(text: str, number: int) -> str:
    """Answer one request; both are JSON. Every error becomes a reply with its type, message and traceback."""
    global running, answering
    running, answering = asyncio.current_task(), number
    host_calls.be_interrupted_once()
    try:
        if number in stopped:
            raise asyncio.CancelledError
        await idle.stop()
        leave_unrecorded()
        request = read_request(text)
        with span(f"answer: {request['kind']}", request=number):
            reply = {"ok": True, "result": await answer_of(request)(request)}
    except (asyncio.CancelledError, KeyboardInterrupt) as error:
        host_calls.be_interrupted_no_more()
        reply = failure("KeyboardInterrupt", "stopped by the user", error)
    except BaseException as error:  # a script's SystemExit, too
        host_calls.be_interrupted_no_more()
        reply = failure_of(error)
    finally:
        running = None
        stopped.discard(number)
        idle.begin(verify_after)
    return json.dumps(reply)


def look_after_weights(milliseconds: float) -> None:
    """Compare stored weights with their digests when no request came for so long; math.inf is never."""
    global verify_after
    verify_after = milliseconds / 1000


def answer_of(request: AnsweredRequest) -> Callable[[Any], Awaitable[Any]]:
    """The function that answers a request."""
    answers: dict[str, Callable[[Any], Awaitable[Any]]] = {
        "load": get_ready,
        "generate": generate,
        "chat": chat,
        "exec": execute,
        "models": stored_weights,
        "memory": live_memory,
        "plan": planned,
        "alternatives": alternatives,
        "score": scores,
        "tokenizer": tokenized,
        "load_embedder": embeddings,
        "embed": embeddings,
        "operations": operations,
        "end_session": end_session,
        "trace": traced,
    }
    return answers[request["kind"]]


def cancel(number: int) -> None:
    """Stop a request at its next await, or before it begins; one that has ended is left alone."""
    if number > answering:
        stopped.add(number)
    elif number == answering and running is not None:
        running.cancel()


def failure_of(error: BaseException) -> dict[str, Any]:
    """The reply for an error; where memory is full, that is the reason, whatever the error says."""
    try:
        if isinstance(error, MemoryError):
            raise spent(error) from error
        require_memory()
    except OutOfMemoryError as full:
        error = full
    return failure(type(error).__name__, str(error), error)


def failure(kind: str, message: str, error: BaseException) -> dict[str, Any]:
    shown = "".join(traceback.format_exception(error))
    return {"ok": False, "error": {"type": kind, "message": message, "traceback": shown}}


async def get_ready(request: LoadRequest) -> dict[str, Any]:
    """Load a model and, if it has a template for chats, begin one; its first tokens are prepared when no request comes
    at once."""
    model = await load_once(request)
    can_chat = Tokenizer(model).has_chat_template
    if can_chat:
        generator = (await conversation_with(model, request)).generator
        told_ready(model, generator)
        prepare_unasked(model, generator)
    return {
        "device": model.device_type,
        "adapter": model.adapter,
        "context_length": model.config.context_length,
        "can_chat": can_chat,
        "begin_token_id": begin_of(model.config),
        "model": told_facts(model.facts, model.search),
        "load_times": model.load_times,
    }


def prepare_unasked(model: Model, generator: Generator) -> None:
    """Have the first tokens prepared unless a request comes at once."""
    global recording
    recording = asyncio.ensure_future(record_unasked(model, generator))


async def record_unasked(model: Model, generator: Generator) -> None:
    """Record a decode step and compile kernels while nobody waits for an answer; the next request raises what
    fails."""
    await asyncio.sleep(UNASKED)
    recorded = generator.capture_note is None
    with suppress(CapstanError):
        await generator.prepare_async()
        if not recorded:
            told_ready(model, generator)


def leave_unrecorded() -> None:
    """A request is there, whose first token needs no recording; what the GPU has begun it finishes."""
    if recording is not None:
        recording.cancel()


async def generate(request: GenerateRequest) -> dict[str, Any]:
    """Complete a prompt."""
    model = await load_once(request)
    tokenizer = Tokenizer(model)
    prompt_ids = request["prompt_ids"]
    if prompt_ids is None:
        prompt = request["prompt"] or ""
        system = request.get("system")
        require_fitting((prompt, system), model.config)
        messages = [] if system is None else [{"role": "system", "content": system}]
        if request.get("as_message") and tokenizer.has_chat_template:
            asked = [*messages, {"role": "user", "content": prompt}]
            prompt_ids = tokenizer.encode(tokenizer.apply_chat_template(asked))
        elif messages:
            raise PromptError("a system message is given, but the model has no chat template; leave it out")
        else:
            prompt_ids = tokenizer.encode_prompt(prompt)
    if not prompt_ids:
        raise PromptError("the prompt is empty; give at least one token")
    params = generator_params(model, request)
    new, most = request["max_new_tokens"], request["search"].get("max_length")
    limit = limit_length(params, model, len(prompt_ids), new, most)
    return await complete(model, tokenizer, request, params, prompt_ids, limit)


async def chat_rows(request: ChatRequest) -> dict[str, Any]:
    """Answer the last message of a conversation several times, as rows of one batch, of which nothing is kept."""
    model = await load_once(request)
    tokenizer = Tokenizer(model)
    require_fitting((message.get("content") for message in request["messages"]), model.config)
    request, text = with_call(tokenizer, request), rendered(tokenizer, request)
    params = generator_params(model, request)
    prompt, most = tokenizer.encode(text), chat_length(model, request["max_length"])
    limit = limit_length(params, model, len(prompt), request["max_new_tokens"], most)
    stops = params.search.stop_strings
    return await complete(
        model, tokenizer, request, params, prompt, limit, lambda: answer_stream(tokenizer, request, text, prompt, stops)
    )


def chat_length(model: Model, asked: int | None) -> int:
    """The `max_length` of a conversation."""
    return min(CHAT_LENGTH, model.config.context_length) if asked is None else asked


async def chat(request: ChatRequest) -> dict[str, Any]:
    """Answer the last message of a conversation; without messages only get ready for one."""
    if request["messages"] and request["search"].get("num_return_sequences", 1) != 1:
        return await chat_rows(request)
    begun = request.get("begun") or []
    model = await load_once(request)
    tokenizer = Tokenizer(model)
    request = with_call(tokenizer, request)
    talk = await conversation_with(model, request)
    generator = talk.generator
    tell = told_steps(model, generator)
    if not request["messages"]:
        prepare_unasked(model, generator)
        return {**tell(), "max_length": generator.max_length}
    require_fitting((message.get("content") for message in request["messages"]), model.config)
    kept = talk.ask(request["messages"], **template_options(request))
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
        tell()

    try:
        reason = await talk.answer(request["max_new_tokens"], show, begun)
    except asyncio.CancelledError:
        reason = "cancel"
    if rest := answer.end():
        host_calls.emit(text_event("", -1, None, rest))
    return {
        **answer.summary(),
        "token_ids": ids,
        "prompt_tokens": prompt,
        "kept_tokens": kept + generator.reused_tokens - reused,
        "sequence_tokens": generator.token_count(),
        "finish_reason": reason,
        **tell(),
        "max_length": generator.max_length,
        **told_times(generator.timing),
    }


async def alternatives(request: AlternativesRequest) -> None:
    """Tell of each token of an answer how probable it was, and what else could have come: after a prompt or, if there
    are messages, in the conversation that they make."""
    answer, count = request["answer"], request["count"]
    model = await load_once(request)
    tokenizer, ends = Tokenizer(model), model.config.eos_token_ids
    if (messages := request.get("messages")) is not None:
        talk = await conversation_with(model, request)
        talk.ask(messages, **template_options(request))
        await tell_alternatives(talk.generator, tokenizer, answer, count, ends)
        return
    prompt_ids = tokenizer.encode_prompt(request["prompt"] or "")
    params = generator_params(model, request)
    require_one_sequence(params)
    limit_length(params, model, len(prompt_ids), request["max_new_tokens"], request["search"].get("max_length"))
    async with Generator(model, params) as generator:
        await adapt(model, generator, request)
        generator.append_tokens(prompt_ids)
        await tell_alternatives(generator, tokenizer, answer, count, ends)


async def scores(request: ScoreRequest) -> dict[str, Any]:
    """Score given tokens."""
    model = await load_once(request)
    return await score(model, request, chat_length(model, None))


async def tokenized(request: TokenizerRequest) -> dict[str, Any]:
    """Encode, decode or render with the model's tokenizer."""
    tokenizer = Tokenizer(await load_once(request))
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


async def embeddings(request: LoadEmbedderRequest | EmbedRequest) -> dict[str, Any]:
    """Load an encoder of texts, or embed some with it."""
    from .embedding_requests import embed, load_embedder

    if request["kind"] == "embed":
        return await embed(request)
    return await load_embedder(request, folder_of(request["model"]))


async def operations(request: OperationsRequest) -> dict[str, Any]:
    """The operations of a decode step, and the GPU time of each."""
    model = await load_once(request)
    params = GeneratorParams(model)
    params.set_search_options(max_length=chat_length(model, None))
    async with Generator(model, params) as generator:
        await adapt(model, generator, request)
        return await tape_of(generator, Tokenizer(model).encode(SAMPLE) or [0])


async def planned(request: PlanRequest) -> dict[str, Any]:
    """Whether a model would fit, before its weights are read."""
    return await plan_for(folder_of(request["model"]), CHAT_LENGTH, **taken(FitOptions, request))


async def conversation_with(model: Model, request: ConversationRequest) -> Conversation:
    """The last conversation if it was with this model and these options, else a new one; its decoder is ready."""
    session = request.get("session")
    limit = request["max_new_tokens"]
    if limit is not None and limit < 1:
        raise OptionError(f"max_new_tokens is {limit}; it must be at least 1")
    names = ("run_ahead", "search", "max_length", "guidance", "speculation", "adapter", "recoveries")
    asked = [request.get(name) for name in names]
    if (processor := request.get("logits_processor")) is not None:
        asked.append(named_processor(processor).serial)
    options = json.dumps(asked, sort_keys=True)
    unused = conversations.get(None)
    if session not in conversations and unused and not unused[2].generator.token_count():
        # It was made when the model was loaded.
        conversations[session] = conversations.pop(None)
    if (last := conversations.get(session)) is not None:
        if last[0] is model and last[1] == options:
            return last[2]
        await end_conversation(session)
    tokenizer = Tokenizer(model)
    if not tokenizer.has_chat_template:
        raise ConfigError(
            f"{model.folder} has no chat template (chat_template in tokenizer_config.json, or chat_template.jinja): "
            "take a model that was made for chats, or complete a prompt with it"
        )
    params = generator_params(model, request)
    require_one_sequence(params)
    params.set_search_options(max_length=chat_length(model, request["max_length"]))
    generator = Generator(model, params)
    try:
        await adapt(model, generator, request)
    except BaseException:
        await generator.aclose()
        raise
    talk = Conversation(tokenizer, generator, params.search.stop_strings)
    conversations[session] = model, options, talk
    host_calls.emit({"kind": "status", "text": "preparing the decode step"})
    await generator.prepare_async(record=False)
    return talk


async def end_conversation(session: str | None) -> None:
    """Give back what a conversation holds."""
    if session in conversations:
        _, _, talk = conversations.pop(session)
        await talk.generator.aclose()


async def end_session(request: EndSessionRequest) -> None:
    """Give back what a session holds; it may have ended already."""
    await end_conversation(request["session"])


async def traced(request: TraceRequest) -> dict[str, Any] | None:
    """Begin a trace, or end it and return it."""
    if request["action"] == "stop":
        return await end_trace()
    begin_trace()
    return None


def folder_of(model: ModelFolder) -> str | HubRepository:
    """A model's place, after the worker has adopted what was picked."""
    if isinstance(model, str):
        return model
    return HubRepository(model["repository"], model["hub"], model["revision"] or "main", model["token"])


async def load_once(request: ModelRequest) -> Model:
    """The model, loaded now or by an earlier request; another one that is loaded is closed first.

    Loading goes on if the request is cancelled meanwhile: it cannot be called back from the GPU, and the next request
    for the same model finds it done.
    """
    global loaded, loading
    key = folder_of(request["model"]), taken(PageOptions, request)
    await load_ended()
    if loaded is not None:
        if loaded[0] == key and loaded[1].healthy() and not idle.distrusted:
            return loaded[1]
        last, loaded = loaded[1], None
        for session in [*conversations]:
            await end_conversation(session)
        forget_adapters()
        await last.aclose()
    idle.distrusted = False
    host_calls.emit({"kind": "status", "text": "finding the model"})
    loading = asyncio.ensure_future(load(key, request.get("stall_timeout"), known_length(request)))
    return await asyncio.shield(loading)


async def load_ended() -> None:
    """Wait for a load that is under way, however it ends."""
    if loading is not None:
        with suppress(Exception):
            await asyncio.shield(loading)


def known_length(request: ModelRequest) -> int | None:
    """Tokens that the request's sequence has room for, as far as they are known without the model; what is no length is
    told with the search options."""
    asked: dict[str, Any] = {**request}
    lengths = [asked.get("search", {}).get("max_length"), asked.get("max_length")]
    prompt, new = asked.get("prompt_ids"), asked.get("max_new_tokens")
    if prompt and new:
        lengths.append(len(prompt) + new)
    known = [each for each in lengths if isinstance(each, int) and each > 0]
    return min(known, default=CHAT_LENGTH if asked["kind"] == "chat" else None)


async def load(key: Key, stall_timeout: float | None, max_length: int | None) -> Model:
    """Load a model and keep it as the loaded one."""
    global loaded, loading
    folder, asked = key
    size: int | None = None

    def progress(what: str, done: int, total: int) -> None:
        nonlocal size
        if what == "weights":
            size = total
            host_calls.emit({"kind": "status", "text": f"the weights have {total / 1e6:.1f} MB"})
            return
        host_calls.emit({"kind": "progress", "what": what, "done": done, "total": total})

    def found(facts: ModelFacts) -> None:
        host_calls.emit({"kind": "status", "text": f"loading {facts}"})

    try:
        model = await Model.load(
            folder, **asked, max_length=max_length, stall_timeout=stall_timeout, progress=progress, on_found=found
        )
        model.facts = replace(model.facts, bytes=model.facts.bytes or size)
        model.on_recovery = lambda reason, ms: host_calls.emit({"kind": "recovered", "reason": reason, "ms": ms})
        loaded = (key, model)
        return model
    finally:
        loading = None


async def execute(request: ExecRequest) -> dict[str, int]:
    """Run a script as `__main__`, top-level await allowed; `models` maps names to folders. It imports modules from its
    own folder, where `files` may have put them."""
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
