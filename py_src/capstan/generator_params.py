"""How a generator picks tokens and how far it runs ahead."""

from __future__ import annotations

from typing import TYPE_CHECKING

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

    def set_search_options(self, **options: object) -> None:
        """Change options by their onnxruntime-genai names; OptionError for an unknown name or a bad value."""
        self.search = self.search.replace(**options)
