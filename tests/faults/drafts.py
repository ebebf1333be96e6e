"""Attacks on the draft model of a load: values of every type, folders that are missing, damaged or of another model,
and tokens of another vocabulary."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Awaitable
from pathlib import Path
from random import Random
from typing import Any

import capstan
from capstan import Generator, GeneratorParams, Model
from capstan.memory import ledger

from .arguments import VALUES
from .folders import FILES, KINDS, MODEL, laid_out
from .targets import Target

__all__ = ["drafts"]

OTHERS = {
    "nano-shape": "",
    "nano-float": "",
    "nano-llama": "it is the same file, model.onnx",
    "nano-qwen2": "their vocabularies differ",
    "families/lfm2": "it has states that each run overwrites",
    "vision/nano-gemma3-vl": "it is a model that sees",
    "speech/nano-whisper": "is a model of type 'whisper'",
    "missing": "genai_config.json: cannot be read",
    "nano-llama/model.onnx": "genai_config.json: cannot be read",
}
"""Other folders, and what their errors say; those without an error draft."""
PROMPT = (5, 60, 17)


def mutate(random: Random, data: bytes) -> bytes:
    kind = random.choice(("value", "other", "files", "tokens"))
    if kind == "value":
        return json.dumps({"value": random.randrange(len(VALUES))}).encode()
    if kind == "other":
        return json.dumps({"other": random.choice([*OTHERS])}).encode()
    if kind == "files":
        files = random.sample(FILES, random.choice((1, 1, 2)))
        return json.dumps({"files": {file: random.choice([*KINDS]) for file in files}}).encode()
    return json.dumps({"tokens": random.sample(range(512), 2)}).encode()


async def run(data: bytes) -> None:
    case, said = json.loads(data), ""
    with tempfile.TemporaryDirectory() as place:
        draft: Any = place
        if "value" in case:
            draft = VALUES[case["value"]]
        elif "other" in case:
            draft, said = MODEL.parent / case["other"], OTHERS[case["other"]]
        else:
            laid_out(Path(place), case.get("files", {}))
            if "tokens" in case:
                said = swapped(Path(place) / "tokenizer.json", *case["tokens"])
        before = ledger().bytes()
        error, planned = await error_of(drafted(draft)), await error_of(capstan.plan(MODEL, draft_model=draft))
        assert ledger().bytes() == before, "memory of the model is held"
        # A plan reads no weights.
        assert "files" in case or str(planned) == str(error), f"the load ends in {error!r}, the plan in {planned!r}"
        assert said in str(error), f"{error!r} does not say {said}"
        if error is not None:
            raise error


async def drafted(draft: Any) -> None:
    """Load a model with that draft model; its tokens are those without one."""
    found = []
    for each in (None, draft):
        async with await Model.load(MODEL, draft_model=each) as model:
            params = GeneratorParams(model)
            params.set_search_options(do_sample=False, max_length=len(PROMPT) + 8)
            async with Generator(model, params) as generator:
                generator.append_tokens(PROMPT)
                found.append([token async for token in generator])
    assert found[0] == found[1], "the draft model changed the tokens"


async def error_of(work: Awaitable[object]) -> Exception | None:
    """The error that the work raises; None if it raises none."""
    try:
        await work
    except Exception as error:
        return error
    return None


def swapped(file: Path, one: int, other: int) -> str:
    """Swap the ids of two tokens, and give what the error says."""
    tree = json.loads(file.read_text())
    vocabulary = tree["model"]["vocab"]
    names = {id_: name for name, id_ in vocabulary.items()}
    vocabulary[names[one]], vocabulary[names[other]] = other, one
    file.write_text(json.dumps(tree))
    first = min(one, other)
    return f"id {first} is {names[max(one, other)]!r} in the draft model and {names[first]!r} in the model"


drafts = Target("draft models", b'{"other": "nano-shape"}', mutate, run)
