"""Lists the options of a run other than search options, in a table with one row for each option.

Rows are written as in capstan.loading.load_options, and the same code is generated from them. Every caller accepts
GeneratorOptions; the JavaScript API and requests accept PickOptions and TemplateOptions; only requests accept the other
classes. Rows with a `help` are options of the command line.
"""

# Annotations are values here, not text: `rows` and `read_request` read them.
from typing import Annotated, Any, Literal, NotRequired, TypedDict

from ..loading.load_options import Row

__all__ = [
    "AdaptedOptions",
    "AnswerOptions",
    "CallOptions",
    "GeneratorOptions",
    "Guidance",
    "PickOptions",
    "SequenceOptions",
    "Speculation",
    "TalkOptions",
    "TemplateOptions",
    "Tool",
]

Tool = dict[str, Any]


class Guidance(TypedDict):
    """A grammar; docs/guidance.md describes what its text may contain."""

    type: Literal["json_schema", "regex", "lark_grammar", "ebnf"]
    data: str
    """The grammar's text."""
    enable_ff_tokens: NotRequired[bool]
    """Append text that must come next without a model step for each of its tokens."""


class Speculation(TypedDict):
    """The options of drafting; see capstan.Speculation."""

    ngram_size: NotRequired[int]
    max_draft_tokens: NotRequired[int]


class GeneratorOptions(TypedDict, total=False):
    """The options of every generator."""

    run_ahead: Annotated[
        int | None, Row(least=1, most=64, metavar="K", help="decode steps per submit (default: adaptive)")
    ]
    """Decode steps in one submit; by default adapted to the measured round trip."""
    recoveries: Annotated[int, Row(default=3, least=0)]
    """The number of times that a run may lose its GPU device and continue on another one; with 0 the first loss ends
    it. A browser that loses more than 3 during one generation will lose the next one, too.
    """


class AdaptedOptions(GeneratorOptions, total=False):
    """The options of a request that runs the model."""

    adapter: str | None
    """The address of a LoRA adapter file to run the model with; by default none."""


class PickOptions(TypedDict, total=False):
    """The options of picking tokens, besides the search options."""

    logits_processor: str | None
    """The name of a function that edits logits before each pick; a script defines it with `@capstan.logits_processor`
    or `@capstan.shortlist_processor`, and docs/logits_processors.md lists its arguments and results. In JavaScript
    `llm.python` runs such a script; pages that share a worker cannot, and this option is refused there.
    """


class SequenceOptions(PickOptions, total=False):
    """The options of a sequence of tokens."""

    search: dict[str, Any] | None
    """Search options by the names of capstan.SearchOptions, which are onnxruntime-genai's where it has them; only the
    given ones.
    """
    guidance: Guidance | None
    """The grammar that the output has to fit, as GeneratorParams.set_guidance takes it; by default none."""
    speculation: Speculation | None
    """Draft tokens and verify several in one step, as capstan.Speculation takes it; by default not."""


class AnswerOptions(TypedDict, total=False):
    """The options of one answer."""

    max_new_tokens: Annotated[
        int | None,
        Row(least=1, help="stop after N new tokens (default: 256; in a chat, until the conversation is full)"),
    ]
    log_probabilities: int | None
    """Report with each token its log probability and those of this number of alternatives, as `log_probability` of
    `text` events; by default none.
    """
    timeline: bool | None
    """Report in the result the times of each burst of tokens, as `bursts`: BurstTimes[]."""


class TalkOptions(TypedDict, total=False):
    """The options of a conversation."""

    max_length: Annotated[
        int | None,
        Row(
            least=1,
            help="in a chat, the most tokens of the conversation (default: 4096, or the model's context if shorter)",
        ),
    ]
    """Tokens of the whole conversation; by default 4096, or the model's context if that is shorter."""
    session: str | None
    """The session whose computed caches the request uses; they are kept until EndSessionRequest. Requests without a
    session share one.
    """


class TemplateOptions(TypedDict, total=False):
    """The options of a chat's prompt, which the model's chat template makes."""

    tools: list[Tool] | None
    """The tools that the model may call, in the form for its chat template: OpenAI's `{ type: "function", function:
    {...} }`."""
    thinking: bool | None
    """Whether the model reasons before it answers, if its chat template knows that (Qwen3, SmolLM3, Granite)."""
    chat_template_kwargs: dict[str, Any] | None
    """Other variables of the chat template by their names, such as reasoning_effort. Variables that the template does
    not have are refused.
    """
    continue_final_message: bool | None
    """Whether the answer continues the last message, which is the assistant's; its text is what comes after it."""


class CallOptions(TypedDict, total=False):
    """The options of the calls that an answer makes."""

    called: list[str] | None
    """The names of tools of which the answer must call one, in place of a grammar; by default the model chooses."""
    call_optional: bool | None
    """With `called`: the answer may be a text, too. A grammar holds a call to the parameters of its tool."""
    most_calls: int | None
    """The number of calls after which further calls stay in the answer's text; by default there is no limit."""
