"""Model folders as the command line sees them: what can be refused before a browser starts."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import quote

from . import ROOT
from .errors import CommandError

__all__ = ["BUNDLED", "check_model", "check_onnx_folder", "model_url", "mounts"]

BUNDLED = ROOT / "models/bundled"
CONFIG = "genai_config.json"


def check_model(folder: Path) -> Path:
    """The folder, made absolute, if it can be a model that onnxruntime-genai's builder wrote."""
    remedy = "give a folder that onnxruntime-genai's model builder wrote"
    if not folder.is_dir():
        state = "is not a folder" if folder.exists() else "does not exist"
        raise CommandError(f"model folder {folder} {state}: {remedy}")
    config_file = folder / CONFIG
    if not config_file.is_file():
        raise CommandError(f"{folder} has no {CONFIG}: {remedy}")
    try:
        config = json.loads(config_file.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise CommandError(f"{config_file} is not JSON ({error}): repair it or export the model again") from error
    filename = config
    for key in ("model", "decoder", "filename"):
        filename = filename.get(key) if isinstance(filename, dict) else None
    if not isinstance(filename, str):
        raise CommandError(f"{config_file}: model.decoder.filename is not a string: {remedy}")
    if not (folder / filename).is_file():
        raise CommandError(f"model file {folder / filename} does not exist, but {CONFIG} names it: {remedy}")
    return folder.resolve()


def check_onnx_folder(folder: Path) -> Path:
    """The folder, made absolute, if it can be a model for a script: one of the builder's, or any with an ONNX graph."""
    if folder.is_dir() and not (folder / CONFIG).exists():
        if not any(folder.glob("*.onnx")):
            raise CommandError(f"{folder} has neither {CONFIG} nor an .onnx file: give a model's folder")
        return folder.resolve()
    return check_model(folder)


def mounts(folders: Iterable[Path]) -> dict[str, Path]:
    """The name under /models/ of each folder: its own name; two of one name are refused."""
    found: dict[str, Path] = {}
    for folder in folders:
        name = folder.resolve().name
        if name in found and found[name] != folder.resolve():
            raise CommandError(f"two model folders are named {name!r} ({found[name]}, {folder}): rename one of them")
        found[name] = folder.resolve()
    return found


def model_url(name: str) -> str:
    """Where the page finds a mounted model."""
    return f"/models/{quote(name)}/"
