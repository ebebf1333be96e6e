"""The place of the evaluated model: a folder or GGUF file of this machine, an address, or a hub's repository."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from ..errors import OptionError
from ..headless.server import model_path
from ..model_files.file_names import is_gguf
from ..model_files.hub import HUGGING_FACE

__all__ = ["model_place"]

ID = r"[\w-][\w.-]*/[\w.-]*[\w-](:[\w./-]+)?"
"""A repository's id, or that of a GGUF file in one."""


def model_place(
    model: str, hub: str | None = None, revision: str | None = None
) -> tuple[str | dict[str, Any], dict[str, Path]]:
    """A model as a page's request names it, and the files to be served for that. OptionError where there is none."""
    path = Path(model).expanduser()
    if re.match("https?://", model):
        return model, {}
    if path.is_dir():
        return "/models/evaluated/", {"evaluated": path.resolve()}
    if path.is_file() and is_gguf(path.name):
        return model_path(path.name), {path.name: path.absolute()}
    if path.exists() or not re.fullmatch(ID, model) or path.parent.is_dir():
        raise OptionError(
            f"model={model} is no model: give a folder that onnxruntime-genai's model builder wrote, a GGUF file, "
            "an address, or a hub's repository as OWNER/NAME or OWNER/NAME:FILE.gguf"
        )
    token = os.environ.get("CAPSTAN_HUB_TOKEN") or None
    address = hub or os.environ.get("CAPSTAN_HUB") or HUGGING_FACE
    return {"repository": model, "hub": address, "revision": revision, "token": token}, {}
