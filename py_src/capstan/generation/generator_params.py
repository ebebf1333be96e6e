"""Holds the parameters of a generator: how it picks tokens, and how far it runs ahead."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Unpack

from ..errors import OptionError
from ..guidance import Guidance
from ..loading.load_options import require_options, taken
from ..stages.native_speculation import speculation_of
from ..stages.search import MAX_ROWS, SearchOptions
from ..stages.speculation_options import Speculation
from ..tokenizer import Tokenizer
from .processors import SHORTLIST, LogitsProcessor, Processors, ShortlistProcessor
from .run_options import GeneratorOptions

if TYPE_CHECKING:
    from ..model import Model

__all__ = ["GeneratorParams"]

HEAD_SPECULATION = Speculation(max_draft_tokens=2)
"""The default for models with a multi-token-prediction head: drafts after the first follow from the head's own hidden
states, and fewer of them are right.
"""


class GeneratorParams:
    """Search options for generators of a model, starting from its genai_config.json.

    `tokenizer` is for `stop_strings`; by default it is the model's. The options are those of
    capstan.generation.run_options.GeneratorOptions, kept as `options`.

    One function of the caller may edit logits before each pick, without run-ahead (docs/logits_processors.md):
    `logits_processor(tokens, logits)` edits or replaces all logits; `shortlist_processor(tokens, best)` receives the
    `shortlist` best ones and returns new logits of any tokens. Raises OptionError for a wrong combination.
    """

    __slots__ = (
        *("_model", "_tokenizer", "_vocab", "guidance", "options", "processors", "search"),
        *("speculation", "speculation_requested"),
    )

    def __init__(
        self,
        model: Model,
        *,
        tokenizer: Tokenizer | None = None,
        logits_processor: LogitsProcessor | None = None,
        shortlist_processor: ShortlistProcessor | None = None,
        shortlist: int | None = None,
        **options: Unpack[GeneratorOptions],
    ) -> None:
        require_options(GeneratorOptions, options)
        self.options = taken(GeneratorOptions, options)
        self.search: SearchOptions = model.search
        self._model, self._tokenizer = model, tokenizer
        self._vocab = model.config.vocab_size
        self.guidance: Guidance | None = None
        if shortlist is not None and shortlist_processor is None:
            raise OptionError(
                f"shortlist is {shortlist} without a shortlist_processor; give one, or leave shortlist out"
            )
        count = min(SHORTLIST, self._vocab) if shortlist is None else shortlist
        self.processors = Processors(logits_processor, shortlist_processor, count)
        self.processors.check(self._vocab, self.options["run_ahead"], self.search.num_beams)
        self.speculation = speculation_of(model.speculative, model.has_draft_model)
        if self.speculation is None and model.draft_model is not None:
            self.speculation = HEAD_SPECULATION
        self.speculation_requested = False
        """Whether the caller chose `speculation`; else a draft model, a head or the model's files turn it on."""

    @property
    def drafts_by_model(self) -> bool:
        """Whether the model's draft model or head makes the drafts."""
        drafting = self.speculation is not None and self.speculation.ngram_size is None
        return drafting and self._model.draft_model is not None

    @property
    def rows(self) -> int:
        """The number of sequences that are generated together: beams, or the returned sequences of each prompt. Raises
        OptionError for options that exclude each other.
        """
        search = self.search
        most = search.num_beams if search.num_beams > 1 or search.greedy else MAX_ROWS
        if search.num_return_sequences > most:
            raise OptionError(
                f"num_return_sequences ({search.num_return_sequences}) must be in [1, {most}]: num_beams beams find "
                "at most num_beams sequences; without beams several sequences need do_sample=True"
            )
        if search.num_beams > 1 and search.do_sample:
            raise OptionError(
                f"do_sample is True and num_beams is {search.num_beams}: beams are not sampled; set do_sample=False, "
                "or num_beams=1"
            )
        self.processors.check(self._vocab, self.options["run_ahead"], search.num_beams)
        return search.batch_size * max(search.num_beams, search.num_return_sequences)

    def stop_decoder(self) -> Callable[[Sequence[int]], str] | None:
        """The function that decodes ids for `stop_strings`; None without stop strings. Raises OptionError for a string
        that cannot occur, and with beams.
        """
        if not self.search.stop_strings:
            return None
        if self.search.num_beams > 1:
            raise OptionError(
                f"stop_strings are given and num_beams is {self.search.num_beams}: beams are not checked for stop "
                "strings; leave one of them out"
            )
        tokenizer = Tokenizer(self._model) if self._tokenizer is None else self._tokenizer
        for string in self.search.stop_strings:
            special = tokenizer.special_tokens_in(string)
            if special:
                raise OptionError(
                    f"stop_strings has {string!r} with the special tokens {special}, which have no text; give their "
                    "ids as stop_token_ids, and a text without them as a stop string"
                )
        return tokenizer.decode

    def length_limit(self, context_length: int) -> int:
        """The length limit of a sequence in tokens. Raises OptionError for a max_length beyond the context."""
        max_length = self.search.max_length or context_length
        if max_length > context_length:
            raise OptionError(
                f"max_length ({max_length}) cannot be greater than model context_length ({context_length}); "
                "lower max_length"
            )
        return max_length

    def set_guidance(self, type: str, data: str, enable_ff_tokens: bool = False) -> None:
        """Restrict outputs to a grammar: `type` is 'json_schema', 'regex', 'lark_grammar' or 'ebnf', `data` its text;
        two empty strings turn guidance off. With `enable_ff_tokens` text that must come next is appended without a
        model step for each of its tokens.

        Raises GuidanceError with the place in the text, and OptionError, also if there is a logits processor.
        """
        if self.processors.given and (type or data):
            raise OptionError("guidance and a logits processor were both given; give one of them")
        self.guidance = None
        if type != "" or data != "":
            self.guidance = Guidance(type, data, enable_ff_tokens, lambda: self._model.vocabulary.special_tokens())

    def set_speculation(self, options: Speculation | None) -> None:
        """Draft tokens and verify several in one step: the tokens are the same, and come faster if drafts are right.
        None turns it off. A grammar or a logits processor, which needs each token, also turns it off: a fallback,
        counted when a generator is made. For a model with a draft model or a multi-token-prediction head it is on from
        the start.
        """
        self.speculation, self.speculation_requested = options, True

    def set_search_options(self, **options: object) -> None:
        """Change options by their onnxruntime-genai names; OptionError for an unknown name or a bad value."""
        search = self.search.replace(**options)
        search.check_vocabulary(self._vocab)
        search.warn_ignored()
        self.search = search
