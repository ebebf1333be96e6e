"""Makes what grammars need of a model's tokens, each thing once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ..errors import GuidanceError
from .constraint import Encoder
from .masks import TokenWalks
from .vocabulary import SpecialTokens, TokenBytes, special_tokens, vocabulary

__all__ = ["ModelVocabulary"]


class ModelVocabulary:
    """A model's tokens, for grammars."""

    def __init__(
        self,
        files: Mapping[str, str],
        size: int,
        ends: Sequence[int],
        walks: Callable[[TokenBytes], TokenWalks],
        backend: Callable[[str, str], Encoder],
    ) -> None:
        """`files` has the tokenizer's files, `size` is the number of logits, `ends` the ids that end an output. `walks`
        and `backend` are those of the host.
        """
        self._files, self._size, self._ends, self._host_walks, self._backend = files, size, ends, walks, backend
        self._bytes: TokenBytes | None = None
        self._walks: TokenWalks | None = None
        self._special: SpecialTokens | None = None
        self._encoder: Encoder | None = None

    def token_bytes(self) -> TokenBytes:
        """The bytes of each token. Raises GuidanceError."""
        if self._bytes is None:
            if not self._ends:
                raise GuidanceError("the model has no eos_token_id, so that no output could end; add it to its config")
            self._bytes = TokenBytes(vocabulary(self._files["tokenizer.json"], self._size, self._ends), self._ends)
        return self._bytes

    def token_walks(self) -> TokenWalks:
        """The tokens on the host, for masks. Raises GuidanceError."""
        if self._walks is None:
            self._walks = self._host_walks(self.token_bytes())
        return self._walks

    def special_tokens(self) -> SpecialTokens:
        """The special tokens that a grammar may name. Raises GuidanceError."""
        if self._special is None:
            self._special = special_tokens(self._files["tokenizer.json"], self._size, self._ends)
        return self._special

    def encoder(self) -> Encoder:
        """The encoder of text into tokens."""
        if self._encoder is None:
            config = self._files.get("tokenizer_config.json") or "{}"
            self._encoder = self._backend(self._files["tokenizer.json"], config)
        return self._encoder
