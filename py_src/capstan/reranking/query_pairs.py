"""Makes the tokens of a query with each document, as a reranker was trained on them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ..errors import ConfigError, OptionError
from ..text.pair_template import PairTemplate, longest_first
from ..text_encoder import Tokens
from ..tokenizer import Tokenizer

__all__ = ["PromptPairs", "QueryPairs", "TemplatePairs"]

SYSTEM = (
    "Judge whether the Document meets the requirements based on the Query and the Instruct provided. "
    'Note that the answer can only be "yes" or "no".'
)
BEFORE = f"<|im_start|>system\n{SYSTEM}<|im_end|>\n<|im_start|>user\n"
AFTER = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"


class QueryPairs(Protocol):
    """Makes the tokens of a query with each document."""

    max_tokens: int
    """The most tokens of a query and a document together, including special tokens."""

    def tokens(self, query: str, documents: Sequence[str], instruction: str | None) -> list[Tokens]: ...


class TemplatePairs:
    """The pairs of a cross-encoder, by the tokenizer's template of pairs. Too long ones are cut like `truncation=True`
    of transformers.
    """

    def __init__(self, tokenizer: Tokenizer, limit: int) -> None:
        self._tokenizer = tokenizer
        self._template = PairTemplate.of(tokenizer.post_processor)
        self.max_tokens = limit
        self._room = limit - self._template.added
        require_room(self._room, limit, self._template.added)

    def tokens(self, query: str, documents: Sequence[str], instruction: str | None) -> list[Tokens]:
        if instruction is not None:
            raise OptionError(
                f"instruction is {instruction!r}, but this model takes only a query and a document; leave it out"
            )
        asked = self._tokenizer.encode(query)
        return [self._joined(asked, self._tokenizer.encode(document)) for document in documents]

    def _joined(self, query: list[int], document: list[int]) -> Tokens:
        first, second = longest_first(len(query), len(document), self._room)
        return Tokens(*self._template.join(query[:first], document[:second]))


class PromptPairs:
    """The prompts of Qwen3-Reranker, as its model card writes them. Too long ones lose the end of the document. Control
    tokens in a query or a document are only text.
    """

    def __init__(self, tokenizer: Tokenizer, limit: int) -> None:
        self._tokenizer = tokenizer
        self._before, self._after = tokenizer.encode(BEFORE), tokenizer.encode(AFTER)
        self.max_tokens = limit
        added = len(self._before) + len(self._after)
        self._room = limit - added
        require_room(self._room, limit, added)

    def tokens(self, query: str, documents: Sequence[str], instruction: str | None) -> list[Tokens]:
        start = f"<Instruct>: {INSTRUCTION if instruction is None else instruction}\n<Query>: {query}\n<Document>: "
        bodies = (self._tokenizer.encode_literal(start + document)[: self._room] for document in documents)
        return [Tokens([*self._before, *body, *self._after]) for body in bodies]


def require_room(room: int, limit: int, added: int) -> None:
    """Raise ConfigError if the special tokens, or those of the prompt, leave no room for both texts."""
    if room < 2:
        raise ConfigError(
            f"the model takes {limit} tokens, and its template has {added} of them; config.json and "
            "tokenizer_config.json must allow 2 more: copy them again"
        )
