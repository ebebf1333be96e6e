"""Keeps the model, the conversations, the load and the recording between the requests of a page."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any

from .._js import host_calls
from ..errors import CapstanError, ConfigError
from ..generation.chat_prompt import ChatPrompts
from ..generation.conversation import Conversation
from ..generation.generator import Generator
from ..generation.kept_conversations import KeptConversations, KeptNote
from ..generation.named_processors import named_processor
from ..generation.run_options import AdaptedOptions, SequenceOptions
from ..loading.load_options import PageOptions, rows, taken
from ..model import Model
from ..model_files.hub import HubRepository
from ..model_files.model_facts import ModelFacts
from ..tokenizer import Tokenizer
from .adapter_requests import adapt, forget_adapters
from .completion import generator_params, ready_report, require_one_sequence
from .memory_requests import idle_verification
from .requests import ConversationRequest, ModelFolder, ModelRequest

__all__ = ["CHAT_LENGTH", "PageSession", "chat_length", "folder_of"]

Key = tuple[str | HubRepository, str | HubRepository | None, PageOptions]
"""A model's folder, its draft model's and the options of its load."""

UNASKED = 0.25
"""Seconds without a request until a decode step is recorded: a program requests immediately, a person types."""
OF_A_GENERATOR = (*rows(AdaptedOptions), *rows(SequenceOptions))
"""Requests that differ in one of these have separate generators."""
CHAT_LENGTH = 4096
"""The default `max_length` of conversations, within the model's context."""


class PageSession:
    """The model of the last request and its conversations, for later requests."""

    def __init__(self) -> None:
        self.samples: Any = None
        """The samples that came with the request, float32."""
        self.pictures: Any = None
        """The pictures that came with the request, in JavaScript."""
        self.prompts: tuple[Model, ChatPrompts] | None = None
        """The last model, and the maker of its prompts."""
        self.loaded: tuple[Key, Model] | None = None
        """The last model and its key: the next request with the same key finds it ready."""
        self.loading: asyncio.Task[Model] | None = None
        """The load that is under way."""
        self.conversations: dict[str | None, tuple[Model, str, Conversation]] = {}
        """The last conversation of each session (None: of requests without a session), with its model and its options.
        The next request that continues it runs the model only on new messages.
        """
        self.recording: asyncio.Task[None] | None = None
        """Records the decode step of a loaded model, unless a request for a first token comes earlier."""
        self.idle = idle_verification(self.load_ended)
        self.kept = KeptConversations(told_kept, self.load_ended)

    async def load_once(self, request: ModelRequest) -> Model:
        """The model, loaded now or by an earlier request; another loaded model is closed first.

        If the request is cancelled meanwhile, loading continues: work on the GPU cannot be cancelled, and the next
        request for the same model finds it loaded.
        """
        draft = request.get("draft_model")
        folders = folder_of(request["model"]), None if draft is None else folder_of(draft)
        key = (*folders, taken(PageOptions, request))
        await self.load_ended()
        if self.loaded is not None:
            if self.loaded[0] == key and self.loaded[1].healthy() and not self.idle.distrusted:
                return self.loaded[1]
            last, self.loaded, self.prompts = self.loaded[1], None, None
            for session in [*self.conversations]:
                await self.end_conversation(session)
            forget_adapters()
            await last.aclose()
        self.idle.distrusted = False
        host_calls.emit({"kind": "status", "text": "finding the model"})
        self.loading = asyncio.ensure_future(self.load(key, request.get("stall_timeout"), known_length(request)))
        return await asyncio.shield(self.loading)

    async def load_ended(self) -> None:
        """Wait for a load that is under way, however it ends."""
        if self.loading is not None:
            with suppress(Exception):
                await asyncio.shield(self.loading)

    async def load(self, key: Key, stall_timeout: float | None, max_length: int | None) -> Model:
        """Load a model and keep it as the loaded one."""
        folder, draft_model, asked = key
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
                folder,
                **asked,
                draft_model=draft_model,
                max_length=max_length,
                stall_timeout=stall_timeout,
                progress=progress,
                on_found=found,
                hears=False,
            )
            model.facts = replace(model.facts, bytes=model.facts.bytes or size)
            model.on_recovery = lambda reason, ms: host_calls.emit({"kind": "recovered", "reason": reason, "ms": ms})
            self.loaded = (key, model)
            return model
        finally:
            self.loading = None

    async def conversation_with(self, model: Model, request: ConversationRequest) -> Conversation:
        """The last conversation if it has this model and these options, else a new one; its decoder is ready."""
        session = request.get("session")
        asked: list[Any] = [request.get(name) for name in (*OF_A_GENERATOR, "max_length")]
        if (processor := request.get("logits_processor")) is not None:
            asked.append(named_processor(processor).serial)
        options = json.dumps(asked, sort_keys=True)
        unused = self.conversations.get(None)
        if session not in self.conversations and unused and not unused[2].generator.token_count():
            # The conversation was made when the model was loaded.
            self.conversations[session] = self.conversations.pop(None)
        if (last := self.conversations.get(session)) is not None:
            if last[0] is model and last[1] == options:
                return last[2]
            await self.end_conversation(session)
        tokenizer = Tokenizer(model)
        if not tokenizer.has_chat_template:
            raise ConfigError(
                f"{model.folder} has no chat template (chat_template in tokenizer_config.json, or "
                "chat_template.jinja): use a model that was made for chats, or complete a prompt with it"
            )
        params = generator_params(model, request)
        require_one_sequence(params)
        params.set_search_options(max_length=chat_length(model, request.get("max_length")))
        generator = Generator(model, params)
        try:
            await adapt(model, generator, request)
        except BaseException:
            await generator.aclose()
            raise
        talk = Conversation(self.prompts_of(model), generator, params.search.stop_strings)
        self.conversations[session] = model, options, talk
        host_calls.emit({"kind": "status", "text": "preparing the decode step"})
        await generator.prepare_async(record=False)
        return talk

    def prompts_of(self, model: Model) -> ChatPrompts:
        """The maker of conversations' prompts."""
        if self.prompts is None or self.prompts[0] is not model:
            self.prompts = model, ChatPrompts(Tokenizer(model), model)
        return self.prompts[1]

    async def end_conversation(self, session: str | None) -> None:
        """Release the resources of a conversation."""
        if session in self.conversations:
            _, _, talk = self.conversations.pop(session)
            self.kept.leave(talk)
            await talk.generator.aclose()

    def prepare_ahead(self, model: Model, generator: Generator) -> None:
        """Have the first tokens prepared unless a request follows immediately."""
        self.recording = asyncio.ensure_future(self.record_ahead(model, generator))

    async def record_ahead(self, model: Model, generator: Generator) -> None:
        """Record a decode step and compile kernels while no caller waits for an answer; the next request raises the
        errors.
        """
        await asyncio.sleep(UNASKED)
        recorded = generator.capture_note is None
        with suppress(CapstanError):
            await generator.prepare_async()
            if not recorded:
                ready_report(model, generator)

    def leave_unrecorded(self) -> None:
        """Cancel the recording when a request arrives, since its first token does not need it. Work that the GPU has
        begun ends first.
        """
        if self.recording is not None:
            self.recording.cancel()


def told_kept(note: KeptNote) -> None:
    """Report to the page that a conversation's state was kept, or why not."""
    host_calls.emit({"kind": "kept", **asdict(note)})


def folder_of(model: ModelFolder) -> str | HubRepository:
    """A model's place, after the worker has adopted picked files."""
    if isinstance(model, str):
        return model
    return HubRepository(model["repository"], model["hub"], model["revision"] or "main", model["token"])


def chat_length(model: Model, asked: int | None) -> int:
    """The `max_length` of a conversation."""
    return min(CHAT_LENGTH, model.config.context_length) if asked is None else asked


def known_length(request: ModelRequest) -> int | None:
    """The length limit of the request's sequence in tokens, as far as it is known without the model. Invalid lengths
    are reported with the search options.
    """
    asked: dict[str, Any] = {**request}
    lengths = [(asked.get("search") or {}).get("max_length"), asked.get("max_length")]
    prompt, new = asked.get("prompt_ids"), asked.get("max_new_tokens")
    if prompt and new:
        lengths.append(len(prompt) + new)
    known = [each for each in lengths if isinstance(each, int) and each > 0]
    return min(known, default=CHAT_LENGTH if asked["kind"] == "chat" else None)
