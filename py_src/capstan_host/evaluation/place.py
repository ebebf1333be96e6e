"""The place of the evaluated model: a folder or GGUF file, an address, or a hub's repository."""

from __future__ import annotations

import os
import re
from pathlib import Path

from capstan.errors import OptionError
from capstan.model_files.file_names import is_gguf
from capstan.model_files.hub import HUGGING_FACE, HubRepository

__all__ = ["model_place"]

ID = r"[\w-][\w.-]*/[\w.-]*[\w-](:[\w./-]+)?"
"""A repository's id, or that of a GGUF file in one."""


def model_place(
    model: str, hub: str | None = None, revision: str | None = None, elsewhere: bool = False
) -> str | HubRepository:
    """A path, an address or a repository. OptionError where there is none; with `elsewhere` an absolute path belongs to
    other machines, and only they check it."""
    path = Path(model).expanduser()
    if re.match("https?://", model):
        return model
    if path.is_dir() or (path.is_file() and is_gguf(path.name)) or (elsewhere and path.is_absolute()):
        return str(path.absolute())
    if path.exists() or not re.fullmatch(ID, model) or path.parent.is_dir():
        raise OptionError(
            f"model={model} is no model: give a folder that onnxruntime-genai's model builder wrote, a GGUF file, "
            "an address, or a hub's repository as OWNER/NAME or OWNER/NAME:FILE.gguf"
        )
    token = os.environ.get("CAPSTAN_HUB_TOKEN") or None
    address = hub or os.environ.get("CAPSTAN_HUB") or HUGGING_FACE
    return HubRepository(model, address, revision or "main", token)
