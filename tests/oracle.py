"""The oracle of every device: the picks of onnxruntime-genai on CPython.

    greedy(folder, prompt_ids, 40)                         -> [ids]
    drive(folder, [("append", ids), ("generate", 60), ("rewind", 12), ...])  -> Trace

capstan_host.testing.genai_oracle does it; here results are kept in build/oracle, by the folder's content, the arguments
and genai's version.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime_genai as og
import tokenizers

from capstan_host.testing.genai_oracle import Action, Trace, decode, encode, logits, run, tokenizer

__all__ = [
    "Action",
    "Rows",
    "Trace",
    "again",
    "decode",
    "drive",
    "encode",
    "greedy",
    "logits",
    "prompt",
    "rows",
    "text",
    "tokenizer",
]


def prompt(folder: Path, text: str) -> list[int]:
    """Token ids of a text that is continued, with the special tokens that the Rust tokenizer puts before it."""
    return list(tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json")).encode(text).ids)


def text(folder: Path, ids: Sequence[int]) -> str:
    """The text of ids by the Rust tokenizer; onnxruntime-genai's loses what is behind bytes that are no UTF-8."""
    return str(tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json")).decode(list(ids)))


VERSION = 2
"""The version of this module's meaning; stored results of other versions are not used."""
CACHE = Path(__file__).parent.parent / "build" / "oracle"


def greedy(folder: str | Path, prompt_ids: Sequence[int], max_new_tokens: int, **search: Any) -> list[int]:
    """The ids picked greedily after a prompt: at most `max_new_tokens`, an end-of-sequence id being the last."""
    return drive(folder, [("append", list(prompt_ids)), ("generate", max_new_tokens)], **search).picked


def again(folder: str | Path, prompt_ids: Sequence[int], count: int) -> list[int]:
    """`count` ids picked greedily after a prompt, each by a generator of its own that is given the whole sequence.

    With long rope (phi3, phimoe) a generator does so itself where its one sequence has 4097 tokens when a token is
    asked for, whatever the original length in the graph. Several rows, tokens appended across that length and a
    rewind to below it leave caches whose positions are rotated by the factors of the runs that computed them.
    """
    ids = list(prompt_ids)
    for _ in range(count):
        ids += greedy(folder, ids, 1)
    return ids[len(prompt_ids) :]


def drive(folder: str | Path, actions: Sequence[Action], **search: Any) -> Trace:
    """Run actions on one generator: ("append", ids), ("generate", most tokens), ("rewind", length), ("adapter", name),
    which is set from the folder's NAME.onnx_adapter.

    `search` are genai's search options; picks are greedy, at most up to the model's context length, unless they say
    else.
    """
    key = json.dumps([VERSION, content(Path(folder)), list(actions), search, og.__version__], sort_keys=True)
    stored = CACHE / f"{hashlib.sha256(key.encode()).hexdigest()}.json"
    if stored.is_file():
        return Trace(**json.loads(stored.read_text()))
    trace = run(Path(folder), actions, search)
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=CACHE, delete=False) as file:
        json.dump(asdict(trace), file)
    Path(file.name).replace(stored)
    return trace


@dataclass
class Rows:
    """The results of several rows."""

    picked: list[list[int]]
    """Ids by step and row; none of beams."""
    sequences: list[list[int]]


def rows(
    folder: str | Path,
    prompts: Sequence[Sequence[int]],
    *,
    returned: int = 1,
    eos: Sequence[int] = (),
    adapter: str = "",
    **search: Any,
) -> Rows:
    """Rows of a batch until all have ended; of beams, the first `returned` of each prompt; with the adapter of the
    folder's file of that name.

    `eos` takes the place of the model's end-of-sequence ids. get_next_tokens reads freed memory where there are beams,
    and get_sequence past the last row.
    """
    key = json.dumps([VERSION, content(Path(folder)), prompts, returned, eos, search, og.__version__], sort_keys=True)
    key += adapter
    stored = CACHE / f"rows-{hashlib.sha256(key.encode()).hexdigest()}.json"
    if not stored.is_file():
        config = og.Config(str(folder))
        config.clear_providers()
        if eos:
            config.overlay(json.dumps({"model": {"eos_token_id": list(eos)}}))
        model = og.Model(config)
        params = og.GeneratorParams(model)
        params.set_search_options(**{"do_sample": False, "batch_size": len(prompts), **search})
        generator = og.Generator(model, params)
        if adapter:
            adapters = og.Adapters(model)
            adapters.load(str(Path(folder) / f"{adapter}.onnx_adapter"), adapter)
            generator.set_active_adapter(adapters, adapter)
        generator.append_tokens(np.array(prompts, np.int32))
        picked = []
        while not generator.is_done():
            generator.generate_next_token()
            if search.get("num_beams", 1) == 1:
                picked.append([int(token) for token in generator.get_next_tokens()])
        sequences = [[int(id_) for id_ in generator.get_sequence(row)] for row in range(len(prompts) * returned)]
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=CACHE, delete=False) as file:
            json.dump(asdict(Rows(picked, sequences)), file)
        Path(file.name).replace(stored)
    return Rows(**json.loads(stored.read_text()))


def content(folder: Path) -> str:
    """A digest of what is in a folder."""
    digest = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        digest.update(f"{path.name} {path.stat().st_size}\n".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()
