"""How a generator picks tokens and how far it runs ahead."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .errors import OptionError
from .run_ahead import RunAhead
from .search import SearchOptions

if TYPE_CHECKING:
    from .model import Model

__all__ = ["GeneratorParams"]


class GeneratorParams:
    """Search options for generators of a model, starting from its genai_config.json.

    `run_ahead` fixes the decode steps of one submit (1 to 64); None adapts it.
    """

    def __init__(self, model: Model, *, run_ahead: int | None = None) -> None:
        self.search: SearchOptions = model.search
        self.run_ahead = run_ahead
        RunAhead(run_ahead, 64)

    @property
    def rows(self) -> int:
        """Sequences that are generated together."""
        return self.search.batch_size * self.search.num_return_sequences

    def length_limit(self, context_length: int) -> int:
        """Tokens of the longest sequence. Raises OptionError for a max_length beyond the context."""
        max_length = self.search.max_length or context_length
        if max_length > context_length:
            raise OptionError(
                f"max_length ({max_length}) cannot be greater than model context_length ({context_length}); "
                "lower max_length"
            )
        return max_length

    def set_search_options(self, **options: object) -> None:
        """Change options by their onnxruntime-genai names; OptionError for an unknown name or a bad value."""
        self.search = self.search.replace(**options)
