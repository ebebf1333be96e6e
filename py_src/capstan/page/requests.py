"""Lists the requests that Python answers, in a table of their fields and the fields' types.

`read_request` checks each request against it, and `build.py` writes web/src/wire/requests.ts from it
(buildtools/wire.py). A field that is `NotRequired` or an option may be left out, which means null. `Message`, `Tool`
and picked folders have TypeScript types in web/src/wire/page_types.ts.
"""

# Annotations are values here, not text: read_request reads them.
from typing import Any, Literal, NotRequired, TypedDict

from ..generation.run_options import (
    AdaptedOptions,
    AnswerOptions,
    CallOptions,
    SequenceOptions,
    TalkOptions,
    TemplateOptions,
)
from ..loading.load_options import EmbedderOptions, FitOptions, RequestOptions

__all__ = [
    "AlternativesRequest",
    "AnsweredRequest",
    "ChatRequest",
    "ConversationRequest",
    "EmbedRequest",
    "EndSessionRequest",
    "ExecRequest",
    "GenerateRequest",
    "ListenRequest",
    "LoadEmbedderRequest",
    "LoadRequest",
    "LoadRerankerRequest",
    "LoadTranscriberRequest",
    "LoadVoiceRequest",
    "MemoryRequest",
    "ModelFolder",
    "ModelRequest",
    "ModelsRequest",
    "OpenSessionRequest",
    "OperationsRequest",
    "PlanRequest",
    "RerankRequest",
    "RestoreSessionRequest",
    "RunRequest",
    "SaveSessionRequest",
    "SavedSessionsRequest",
    "ScoreRequest",
    "ScoredSequence",
    "SpeakRequest",
    "TokenizerRequest",
    "TraceRequest",
    "TranscribeRequest",
]


class HubRepository(TypedDict):
    """A repository of a hub; see capstan.HubRepository."""

    repository: str
    """Its id, as OWNER/NAME."""
    hub: str
    """The hub's address."""
    revision: str | None
    """A branch, a tag or a commit; null is the branch main."""
    token: str | None


ModelFolder = str | HubRepository
Message = dict[str, Any]


class DraftedModel(TypedDict):
    """A model, and the model that drafts for it."""

    model: ModelFolder
    draft_model: NotRequired[ModelFolder | None]
    """A smaller model of the same vocabulary, which drafts tokens that the model verifies; null for none."""


class ModelRequest(RequestOptions, AdaptedOptions, DraftedModel):
    """The model of a request and its options."""


class RunRequest(ModelRequest, SequenceOptions, AnswerOptions):
    """A request that runs the model over a sequence."""


class GenerateRequest(RunRequest):
    """Complete a prompt with a model; tokens arrive as `text` events, the summary as the reply."""

    kind: Literal["generate"]
    prompt: str | None
    prompt_ids: list[int] | None
    as_message: NotRequired[bool | None]
    """Answer the prompt, as the one message of a user, if the model has a chat template; null for false."""
    system: NotRequired[str | None]
    """The system message before the prompt, with `as_message`; null for none."""
    images: NotRequired[list[str] | None]
    """`data:` addresses of pictures before the prompt, with `as_message`; null for none."""
    begun: NotRequired[list[int] | None]
    """The first tokens of the completion, which continues after them and is reported without them; they count as new
    tokens.
    """


class ConversationRequest(RunRequest, TalkOptions):
    """A request about a conversation."""


class LoadRequest(ConversationRequest):
    """Load a model, and prepare the decode step of its chats if it has a chat template."""

    kind: Literal["load"]


class ChatRequest(ConversationRequest, TemplateOptions, CallOptions):
    """Answer the last message of a conversation by the model's chat template.

    Tokens arrive as `text` events, the summary as the reply, even after `cancel`. The worker keeps the caches of the
    last conversation: a request whose messages continue it runs the model only on new messages. Without messages the
    model is loaded and prepared.
    """

    kind: Literal["chat"]
    messages: list[Message]
    begun: NotRequired[list[int] | None]
    """See GenerateRequest, but for the first tokens of the answer."""
    keep: NotRequired[str | None]
    """The id under which the browser keeps what was computed for the conversation, for requests of a later page;
    null for none. It becomes the id of a saved session without messages. See `kept` of CapstanEvent.
    """


class AlternativesRequest(ConversationRequest, TemplateOptions):
    """Report the probability of each token of an answer and its alternatives, by `alternatives` events; the model runs
    over the answer. The model and the prompt or messages are those of the answered request.
    """

    kind: Literal["alternatives"]
    prompt: str | None
    messages: NotRequired[list[Message] | None]
    """The messages of a conversation up to the answered one, in place of a prompt; null for a prompt."""
    answer: list[int]
    """The ids of the answer's tokens."""
    count: int
    """The number of most probable tokens that are reported for each token."""


class TokenizerRequest(ModelRequest, TemplateOptions):
    """Use the model's tokenizer: `encode` a text into `ids`, `decode` ids into a `text`, or render messages by the chat
    template into a `text` and its `ids`. The result holds these.
    """

    kind: Literal["tokenizer"]
    action: Literal["encode", "decode", "template"]
    text: NotRequired[str | None]
    ids: NotRequired[list[int] | None]
    messages: NotRequired[list[Message] | None]
    add_generation_prompt: NotRequired[bool | None]
    """Whether the rendered text ends with the beginning of an answer; null for true."""


class ScoredSequence(TypedDict):
    """Tokens to score and their context: `token_ids` after `context_ids`, or a `text` after a `context`, which are
    tokenized as one. A text without a context follows the token that begins the model's texts.
    """

    context_ids: NotRequired[list[int] | None]
    token_ids: NotRequired[list[int] | None]
    context: NotRequired[str | None]
    text: NotRequired[str | None]


class ScoreRequest(ModelRequest):
    """Score the tokens of sequences: the model runs over them as over prompts, and the result, a ScoreResult, has their
    log probabilities. A start that a sequence shares with the one before it runs only once.
    """

    kind: Literal["score"]
    sequences: list[ScoredSequence]
    max_length: NotRequired[int | None]
    """The largest number of tokens in a sequence, including its context; null is 4096, or the model's context if that
    is shorter. Requests with the same number share buffers.
    """
    token_texts: NotRequired[bool | None]
    """Report the text of each token, too; null for false."""


class OperationsRequest(ModelRequest):
    """Describe the operations of the model's decode step."""

    kind: Literal["operations"]


class PlanRequest(FitOptions, DraftedModel):
    """Report whether a model would fit, before its weights are read."""

    kind: Literal["plan"]


class EndSessionRequest(TypedDict):
    """Release the resources of a session."""

    kind: Literal["end_session"]
    session: str


class LoadEmbedderRequest(EmbedderOptions):
    """Load an encoder of texts; see capstan.embeddings.Embedder.load. The worker keeps the encoder until the worker
    ends.
    """

    kind: Literal["load_embedder"]
    model: ModelFolder
    pooling: Literal["mean", "cls", "last"] | None
    """null takes the value of the model's files."""


class EmbedRequest(TypedDict):
    """Embed texts with the loaded encoder; see EmbedResult."""

    kind: Literal["embed"]
    texts: list[str]


class LoadRerankerRequest(EmbedderOptions):
    """Load a reranker; see capstan.reranking.Reranker.load. The worker keeps the reranker until the worker ends."""

    kind: Literal["load_reranker"]
    model: ModelFolder


class RerankRequest(TypedDict):
    """Rank documents with the loaded reranker; see RankedDocument."""

    kind: Literal["rerank"]
    query: str
    documents: list[str]
    instruction: NotRequired[str | None]
    """null takes the one of the model's prompt."""


class LoadTranscriberRequest(EmbedderOptions):
    """Load a speech model; see capstan.Transcriber. The worker keeps the model until the worker ends."""

    kind: Literal["load_transcriber"]
    model: ModelFolder


class TranscribeRequest(TypedDict):
    """Turn speech into text with the loaded model: float32 samples of one channel at 16,000 Hz, attached to the
    request, or a WAV file. Parts arrive as `segment` events; see TranscribeResult.
    """

    kind: Literal["transcribe"]
    file: NotRequired[str | None]
    """The address of the file; null for samples."""
    language: NotRequired[str | None]
    """A language code, such as "de"; null if the model detects the language."""
    task: NotRequired[Literal["transcribe", "translate"] | None]
    """null is "transcribe"."""
    timestamps: NotRequired[bool | None]
    """Whether segments have times; null for false."""


class ListenRequest(TypedDict):
    """Make captions of a sound while it arrives; they are `caption` events. The result is false if the captions were
    cancelled. See capstan.Transcriber.listen.
    """

    kind: Literal["listen"]
    live: int
    """The page's number for the sound."""
    action: Literal["begin", "hear", "end", "drop"]
    """`begin` takes the options, `hear` the next samples, which are attached; `end` gives the last caption, `drop`
    gives none.
    """
    language: NotRequired[str | None]
    task: NotRequired[Literal["transcribe", "translate"] | None]
    silence: NotRequired[float | None]
    threshold: NotRequired[float | None]
    interval: NotRequired[float | None]


class LoadVoiceRequest(EmbedderOptions):
    """Load a model that speaks; see capstan.Voice.load. The worker keeps the model until the worker ends."""

    kind: Literal["load_voice"]
    model: ModelFolder


class SpeakRequest(TypedDict):
    """Speak a text with the loaded model; see SpeakResult."""

    kind: Literal["speak"]
    text: str
    voice: NotRequired[str | None]
    """The name of a file in voices/; null for the default."""
    speed: NotRequired[float | None]
    """null is 1."""
    phonemes: NotRequired[bool | None]
    """Whether the text is phonemes; null for false."""


class ExecRequest(TypedDict):
    """Run a Python script; its output arrives as `stdout` and `stderr` events, its exit status as the reply."""

    kind: Literal["exec"]
    source: str
    filename: str
    argv: list[str]
    models: dict[str, ModelFolder]
    """Model folders by name."""
    files: dict[str, str]
    """Files that the script finds in Python's file system: URLs by path; relative paths are below its current folder.
    Each is read when it is opened. A folder of them that holds a model may be loaded by its path.
    """


class ModelsRequest(TypedDict):
    """List the weights that this origin stores, after removing or verifying some."""

    kind: Literal["models"]
    action: Literal["list", "evict", "verify"]
    which: str | None
    """A content hash or a URL; null means all."""


class MemoryRequest(TypedDict):
    """List the live memory."""

    kind: Literal["memory"]


class SaveSessionRequest(TypedDict):
    """Store a session's messages, and what was computed for them, under an id; see SavedSession."""

    kind: Literal["save_session"]
    session: str
    id: str
    messages: list[Message]
    budget: int
    """The most bytes that the computed states of all stored sessions may take together."""
    bits: int
    """The bits of a number of its state: 8 or 4, or 0 for those of the cache."""


class RestoreSessionRequest(ConversationRequest):
    """Continue a stored session as `session`; the result is a RestoredSession, or null if there is none of that id."""

    kind: Literal["restore_session"]
    id: str


class OpenSessionRequest(ConversationRequest, TemplateOptions, CallOptions):
    """Begin a session with these messages and the state in a file; the result is a RestoredSession."""

    kind: Literal["open_session"]
    url: str
    messages: list[Message]


class SavedSessionsRequest(TypedDict):
    """List the stored sessions, after removing one or all."""

    kind: Literal["saved_sessions"]
    action: Literal["list", "delete"]
    id: str | None
    """null means all."""


class TraceRequest(TypedDict):
    """Begin a trace, or end it; then the result is a Trace."""

    kind: Literal["trace"]
    action: Literal["start", "stop"]


AnsweredRequest = (
    LoadRequest
    | GenerateRequest
    | ChatRequest
    | ExecRequest
    | ModelsRequest
    | MemoryRequest
    | OperationsRequest
    | PlanRequest
    | AlternativesRequest
    | ScoreRequest
    | TokenizerRequest
    | LoadEmbedderRequest
    | EmbedRequest
    | LoadRerankerRequest
    | RerankRequest
    | LoadTranscriberRequest
    | TranscribeRequest
    | ListenRequest
    | LoadVoiceRequest
    | SpeakRequest
    | EndSessionRequest
    | SaveSessionRequest
    | RestoreSessionRequest
    | OpenSessionRequest
    | SavedSessionsRequest
    | TraceRequest
)
