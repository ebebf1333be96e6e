"""Checks and describes the models that the command line names, before a browser starts."""

from __future__ import annotations

import argparse
import asyncio
import functools
import json
import os
import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .command_errors import CommandError
from .places import MODELS

if TYPE_CHECKING:
    from capstan.model_files.gguf.header import GgufFile

__all__ = [
    "BUNDLED",
    "DIGESTS_SUFFIX",
    "DTYPES",
    "about_model",
    "add_hub_arguments",
    "add_options",
    "check_chat_template",
    "check_genai",
    "check_model",
    "check_place",
    "check_script_model",
    "given_options",
    "graphs_of",
    "model_url",
    "mounts",
    "repository",
    "shards",
    "transformers_js_dtypes",
]

BUNDLED = MODELS / "bundled"
CONFIG = "genai_config.json"
REPOSITORY_CONFIG = "config.json"
GGUF = ".gguf"
DIGESTS_SUFFIX = ".shards.json"
"""The ending of the file that holds a data file's digests, like capstan.weights.manifest.MANIFEST_SUFFIX."""
HUGGING_FACE = "https://huggingface.co"
"""capstan.model_files.hub.HUGGING_FACE, which cannot be imported before the environment exists."""
ID = r"[\w-][\w.-]*/[\w.-]*[\w-]"
"""A repository's id, as OWNER/NAME; a GGUF file of it is OWNER/NAME:FILE.gguf."""
DTYPES = ("fp32", "fp16", "q4", "q4f16", "q8", "int8", "uint8", "bnb4")
"""The dtypes of capstan.loading.repository, which cannot be imported before the environment exists."""


SEVERAL = {
    "gemma4": ("decoder_model_merged", "embed_tokens"),
    **dict.fromkeys(("idefics3", "smolvlm"), ("decoder_model_merged", "embed_tokens", "vision_encoder")),
}
"""The names of the graphs of a repository that has several, by config.json's type: those of capstan.loading."""

BUILDERS = "a folder that onnxruntime-genai's model builder wrote"


def check_genai(folder: Path, remedy: str = f"give {BUILDERS}") -> Path:
    """The folder, made absolute, if it can be a model that onnxruntime-genai's builder wrote."""
    require_folder(folder, remedy)
    if not (folder / CONFIG).is_file():
        raise CommandError(f"{folder} has no {CONFIG}: {remedy}")
    graph_of(folder / CONFIG, remedy)
    return folder.resolve()


def check_model(folder: Path) -> Path:
    """The folder, made absolute, if it can be a model: the builder's, or a repository in Transformers.js layout."""
    remedy = f"give {BUILDERS}, or one with {REPOSITORY_CONFIG} and onnx/model*.onnx"
    require_folder(folder, remedy)
    if (folder / CONFIG).is_file() or not (folder / REPOSITORY_CONFIG).is_file():
        return check_genai(folder, remedy)
    if not graphs_of(folder):
        found = ", ".join(sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.onnx"))[:12])
        there = f"its ONNX files are {found}" if found else "nor any other ONNX file"
        raise CommandError(f"{folder} has {REPOSITORY_CONFIG}, but no onnx/model*.onnx ({there}): {remedy}")
    return folder.resolve()


def check_place(path: Path) -> Path:
    """The folder or GGUF file, made absolute, if it can be a model."""
    if path.suffix.lower() != GGUF:
        return check_model(path)
    if not path.is_file():
        raise CommandError(f"model file {path} does not exist: give a GGUF file, or {BUILDERS}")
    has_chat_template(path)
    return path.absolute()


def shards(file: Path) -> list[Path]:
    """The existing files of the GGUF model to which `file` belongs, in order."""
    from capstan.errors import CapstanError
    from capstan.model_files.gguf.shards import shard_names

    try:
        names = shard_names(file.name)
    except CapstanError as error:
        raise CommandError(str(error)) from error
    return [each for each in map(file.with_name, names) if each.is_file()]


@functools.cache
def gguf_header(path: Path, _stat: os.stat_result) -> GgufFile:
    """The header of a GGUF file. Raises CommandError for another or a damaged file."""
    from capstan.errors import CapstanError
    from capstan.model_files.gguf.header import read_header

    with path.open("rb") as file:

        async def read(start: int, length: int) -> bytes:
            file.seek(start)
            return file.read(length)

        try:
            return asyncio.run(read_header(read, path.stat().st_size, str(path)))
        except CapstanError as error:
            raise CommandError(str(error)) from error


def require_folder(folder: Path, remedy: str) -> None:
    if not folder.is_dir():
        state = "is not a folder" if folder.exists() else "does not exist"
        raise CommandError(f"model folder {folder} {state}: {remedy}")


def graph_of(config_file: Path, remedy: str) -> Path:
    """The graph that genai_config.json names."""
    filename = read_json(config_file)
    for key in ("model", "decoder", "filename"):
        filename = filename.get(key) if isinstance(filename, dict) else None
    if not isinstance(filename, str):
        raise CommandError(f"{config_file}: model.decoder.filename is not a string: {remedy}")
    graph = config_file.parent / filename
    if not graph.is_file():
        raise CommandError(f"model file {graph} does not exist, but {CONFIG} names it: {remedy}")
    return graph


def read_json(file: Path) -> Any:
    """The value in a JSON file."""
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, OSError, RecursionError) as error:
        raise CommandError(f"{file} is not JSON ({error}): repair it or export the model again") from error


def check_chat_template(model: Path) -> None:
    """Refuse a model without a chat template."""
    if not has_chat_template(model):
        where = "chat_template in tokenizer_config.json, or chat_template.jinja"
        raise CommandError(
            f"{model} has no chat template ({'tokenizer.chat_template' if model.is_file() else where}): give --model a "
            "model that was made for chats, or complete a prompt without --chat and --system"
        )


def has_chat_template(model: Path) -> bool:
    """Whether a model's folder or GGUF file has a chat template. Raises CommandError if it cannot be read."""
    if model.is_file():
        first = shards(model)[0]
        return bool(gguf_header(first, first.stat()).metadata.get("tokenizer.chat_template"))
    template = model / "chat_template.jinja"
    if template.is_file():
        # An empty one says that there is none.
        return template.stat().st_size > 0
    config = model / "tokenizer_config.json"
    content = read_json(config) if config.is_file() else {}
    return isinstance(content, dict) and bool(content.get("chat_template"))


def graphs_of(folder: Path) -> list[Path]:
    """The graphs of a folder: the one that genai_config.json names, or all graphs of a repository."""
    if (folder / CONFIG).is_file():
        return [graph_of(folder / CONFIG, "export the model again")]
    fronts = ["*coder_model"] if is_speech(folder) else SEVERAL.get(type_of(folder), ["model"])
    return sorted(file for front in fronts for file in folder.glob(f"onnx/{front}*.onnx"))


def is_speech(folder: Path) -> bool:
    """Whether a repository in Transformers.js' layout has a model of speech."""
    from capstan.model_files.model_types import HEARD_REPOSITORIES

    return type_of(folder) in HEARD_REPOSITORIES


def type_of(folder: Path) -> str:
    """The type of the model in a repository in Transformers.js' layout; empty if there is none."""
    config = read_json(folder / REPOSITORY_CONFIG) if (folder / REPOSITORY_CONFIG).is_file() else None
    return str(config.get("model_type", "")) if isinstance(config, dict) else ""


def about_model(model: Path) -> dict[str, Any]:
    """The demo page's facts about a model before it is loaded: the bytes of its graph and weights (None for a
    repository, of which only one graph is loaded), whether it has a chat template, and its `facts`, such as its name.
    """
    try:
        chat = has_chat_template(model)
    except CommandError:
        chat = False
    return {"bytes": bytes_of(model), "chat": chat, "facts": facts(model)}


def bytes_of(model: Path) -> int | None:
    """The bytes of a model's graph and weights; None for a repository, of which only one graph is loaded."""
    if model.is_file():
        return sum(file.stat().st_size for file in shards(model))
    weights = [path.stat().st_size for path in model.iterdir() if ".onnx" in path.name and path.is_file()]
    return sum(weights) if (model / CONFIG).is_file() else None


def facts(model: Path) -> dict[str, Any] | None:
    """The name of a model and how its tokens are picked (ModelFacts in web/src/wire/protocol.ts); None for a
    repository, and for files that cannot be read, for which loading gives the reason.
    """
    from capstan.errors import CapstanError
    from capstan.loading.opening import facts_report, search_options
    from capstan.model_files.genai_config_file import parse_genai_config
    from capstan.model_files.gguf.gguf_config import gguf_config
    from capstan.model_files.gguf.shards import joined
    from capstan.model_files.model_facts import facts_of

    try:
        if model.is_file():
            headers = [gguf_header(file, file.stat()) for file in shards(model)]
            config = gguf_config(joined(headers), model.name)
        elif (model / CONFIG).is_file():
            config = parse_genai_config((model / CONFIG).read_bytes())
        else:
            return None
        named = replace(config, stated=replace(config.stated, bytes=bytes_of(model)))
        return facts_report(facts_of(named, str(model)), search_options(config))
    except (CapstanError, CommandError, OSError):
        return None


def transformers_js_dtypes(folder: Path) -> list[str]:
    """The dtypes of the graphs that Transformers.js would find in a folder; none if the folder is not in its layout."""
    if not (folder / REPOSITORY_CONFIG).is_file():
        return []
    suffixes = {"fp32": "", "q8": "_quantized"}
    return [name for name in DTYPES if (folder / f"onnx/model{suffixes.get(name, f'_{name}')}.onnx").is_file()]


def check_script_model(folder: Path) -> Path:
    """The folder or GGUF file, made absolute, if it can be a model for a script: also any folder with an ONNX graph."""
    if folder.is_dir() and not (folder / CONFIG).exists() and not (folder / REPOSITORY_CONFIG).exists():
        if not any(folder.glob("*.onnx")):
            raise CommandError(f"{folder} has neither {CONFIG} nor an .onnx file: give a model's folder")
        return folder.resolve()
    return check_place(folder)


def add_options(parser: argparse._ActionsContainer, table: type) -> None:
    """Add the options of a class of load_options or run_options that have a help text."""
    from capstan.loading.load_options import rows

    for name, row in rows(table).items():
        if row.help:
            how: dict[str, Any] = {"choices": row.choices} if row.choices else {"type": int, "metavar": row.metavar}
            how = {"action": "store_true"} if row.default is False else {**how, "default": row.default}
            parser.add_argument(f"--{name.replace('_', '-')}", help=row.help, **how)


def given_options(args: argparse.Namespace, table: type) -> dict[str, Any]:
    """The given options of a class. Raises CommandError for a value outside of an option's limits."""
    from capstan.loading.load_options import rows

    found = {name: getattr(args, name, None) for name in rows(table)}
    given = {name: value for name, value in found.items() if value is not None and value is not False}
    for name, value in given.items():
        if told := rows(table)[name].refusal(f"--{name.replace('_', '-')}", value):
            raise CommandError(told)
    return given


def add_hub_arguments(parser: argparse._ActionsContainer) -> None:
    """Add the options for the hub of a repository that --model names by its id."""
    address = (
        "the hub of --model OWNER/NAME or OWNER/NAME:FILE.gguf; empty: none is asked "
        f"(default: CAPSTAN_HUB, else {HUGGING_FACE})"
    )
    parser.add_argument("--hub", metavar="URL", default=os.environ.get("CAPSTAN_HUB", HUGGING_FACE), help=address)
    revision = "its branch, tag or commit (default: main); a token is taken from CAPSTAN_HUB_TOKEN"
    parser.add_argument("--revision", metavar="REV", help=revision)


def repository(name: str, hub: str, revision: str | None) -> dict[str, str | None] | None:
    """The hub's repository that --model names, in the form of a request; None if it names a folder or a file.

    A name is an id only if it neither exists as a path nor begins with the name of a folder here, so that no hub gets a
    mistyped path.
    """
    if is_path(name):
        if revision is not None:
            raise CommandError(f"--revision is {revision}, but {name} is no repository of a hub: leave it out")
        return None
    if not hub:
        raise CommandError(
            f"model folder {name} does not exist: give another one, or if it is a repository's id, the hub's address "
            "as --hub URL or in CAPSTAN_HUB, which is empty"
        )
    return {"repository": name, "hub": hub, "revision": revision, "token": os.environ.get("CAPSTAN_HUB_TOKEN") or None}


def is_path(name: str) -> bool:
    """Whether --model names a folder or a file of this machine, which may be mistyped, rather than a repository."""
    whole, colon, file = name.partition(":")
    if Path(name).exists() or ("/" in whole and Path(whole).parent.is_dir()):
        return True
    is_file = file.lower().endswith(".gguf") if colon else not name.lower().endswith(".gguf")
    return not re.fullmatch(ID, whole) or not is_file


def mounts(models: Iterable[Path]) -> dict[str, Path]:
    """The folders and GGUF files by their names under /models/, which are their own names. Refuses two models with the
    same name. A file that is a link keeps the link's name.
    """
    found: dict[str, Path] = {}
    for model in models:
        target = model.resolve()
        name = model.name if model.is_file() else target.name
        if name in found and found[name] != target:
            raise CommandError(f"two models are named {name!r} ({found[name]}, {model}): rename one of them")
        found[name] = target
    return found


def model_url(name: str) -> str:
    """The address of a mounted model in the page."""
    from .headless.served_files import model_path

    return model_path(name)
