"""Chooses how the draft model or the head of a model is loaded, and checks whether a small model can draft."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from ..errors import OptionError
from ..fallback import fall_back
from ..guidance.vocabulary import token_ids
from ..model_files.genai_config import GenaiConfig
from .load_options import LoadOptions, taken
from .opening import Source, source_of

if TYPE_CHECKING:
    from ..graph import StateTensor

__all__ = ["draft_source", "head_source", "require_draft_model", "without_head"]


class Compared(Protocol):
    """The part of a Model that is compared, before or after its weights are loaded."""

    @property
    def folder(self) -> str: ...
    @property
    def config(self) -> GenaiConfig: ...
    @property
    def tokenizer_files(self) -> dict[str, str]: ...


def draft_options(options: LoadOptions, device: str) -> LoadOptions:
    """The options with which a draft model is loaded to the `device` of its model: those of the model, except the ones
    that are about the model's own files and length. Its step is taped unless the caller says otherwise, whatever its
    configuration requests: drafts are made in the submit that verifies them.
    """
    own = ("draft_model", "dtype", "embedding_tables", "overlay", "graphs", "max_length", "on_found", "prefix_cache")
    kept = {name: value for name, value in options.items() if name not in own}
    return taken(LoadOptions, {"capture": "tape", **kept, "device": device, "hears": False})


def draft_source(path: Any, options: LoadOptions, device: str) -> Source:
    """The source of the caller's draft model, or of the one in the folder of the model at `path`, to be loaded to the
    `device` of the model.
    """
    place, kept = options.get("draft_model"), draft_options(options, device)
    if place is not None:
        return source_of(place, kept)
    return replace(source_of(path, {**kept, "overlay": options.get("overlay")}), of_draft=True)


def head_source(path: Any, options: LoadOptions, device: str) -> Source:
    """The place of a model's multi-token-prediction head, which is the model's, and the options with which it is loaded
    to the `device` of the model.
    """
    kept: LoadOptions = {**draft_options(options, device), "overlay": options.get("overlay")}
    return replace(source_of(path, kept), head=True)


def without_head(model: str, why: str) -> None:
    """Warn that the head of a model is not used, and count it."""
    fall_back(f"the multi-token-prediction head of {model}", why, "each step picks one token; the tokens are the same")


def require_draft_model(model: Compared, draft: Compared, states: Sequence[StateTensor]) -> None:
    """Raise OptionError unless `draft`, whose graph has these `states`, can draft tokens for `model`: it is another
    model that does not see, its sequences can be cut, and each id that both models have is the same token.
    """
    what = f"draft_model {draft.folder} cannot draft for {model.folder}"
    if (draft.folder, draft.config.graph_files) == (model.folder, model.config.graph_files):
        raise OptionError(
            f"{what}: it is the same file, {draft.config.decoder.filename}, whose drafts cost as much as its tokens; "
            "give a smaller model of the same family"
        )
    if draft.config.vision is not None:
        raise OptionError(f"{what}: it is a model that sees, and drafts follow from text only; give a model of text")
    if states:
        raise OptionError(
            f"{what}: it has states that each run overwrites, so that refused drafts cannot be taken back; give a "
            "model with key/value caches only"
        )
    mine, theirs = (each.tokenizer_files["tokenizer.json"] for each in (model, draft))
    if mine == theirs:
        return
    tokens, drafted = ({id_: token for token, id_ in token_ids(text).items()} for text in (mine, theirs))
    for id_ in sorted(tokens.keys() & drafted.keys()):
        if tokens[id_] != drafted[id_]:
            raise OptionError(
                f"{what}: their vocabularies differ: id {id_} is {drafted[id_]!r} in the draft model and "
                f"{tokens[id_]!r} in the model; give a smaller model of the same family"
            )
