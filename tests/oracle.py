"""The oracle of every device: the picks of onnxruntime-genai on CPython.

    greedy(folder, prompt_ids, 40)                         -> [ids]
    drive(folder, [("append", ids), ("generate", 60), ("rewind", 12), ...])  -> Trace

Facts about onnxruntime-genai 0.18.0 that this module settles:

- A folder written for WebGPU runs on the CPU provider after `Config.clear_providers()`; nothing else has to change,
  also for the static mask of enable_webgpu_graph: without graph capture genai feeds a mask as long as the sequence.
- An end-of-sequence id is returned by `get_next_tokens` but not put into the sequence nor run through the model;
  `append_tokens` afterwards goes on without it.
- A picked token is run when the next is picked. `append_tokens` does not run it, but counts its position, so that the
  cache has a hole there, unless the sequence ended by an end-of-sequence id. `drive` rewinds by one and appends that
  token in front of the new ones.
- `generate_next_token` straight after `rewind_to(n)` first appends the old token n again, so that the sequence grows by
  two. `drive` rewinds to n - 1 and appends token n - 1 instead, which picks token n anew; a rewind to 0 needs an
  append.
- Special tokens are never added by its tokenizer (`add_special_tokens` is off).
- Results are kept in build/oracle, by the folder's content, the arguments and genai's version.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime_genai as og

__all__ = ["Action", "Rows", "Trace", "drive", "encode", "greedy", "rows"]

Action = tuple[str, Any]
VERSION = 2
"""The version of this module's meaning; stored results of other versions are not used."""
CACHE = Path(__file__).parent.parent / "build" / "oracle"


@dataclass
class Trace:
    """The results of a script of actions."""

    picked: list[int] = field(default_factory=list)
    """Every id picked, in order, end-of-sequence ids included."""
    sequence: list[int] = field(default_factory=list)
    """The sequence at the end, without end-of-sequence ids."""
    done: bool = False
    """Whether the sequence ended, by an end-of-sequence id or max_length."""


def greedy(folder: str | Path, prompt_ids: Sequence[int], max_new_tokens: int, **search: Any) -> list[int]:
    """The ids picked greedily after a prompt: at most `max_new_tokens`, an end-of-sequence id being the last."""
    return drive(folder, [("append", list(prompt_ids)), ("generate", max_new_tokens)], **search).picked


def anew(folder: str | Path, prompt_ids: Sequence[int], count: int) -> list[int]:
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


def run(folder: Path, actions: Sequence[Action], search: dict[str, Any]) -> Trace:
    """`drive` without the cache."""
    config = og.Config(str(folder))
    config.clear_providers()
    model = og.Model(config)
    params = og.GeneratorParams(model)
    params.set_search_options(**{"do_sample": False, **search})
    generator = og.Generator(model, params)
    adapters = og.Adapters(model)
    for name in {argument for verb, argument in actions if verb == "adapter"}:
        adapters.load(str(folder / f"{name}.onnx_adapter"), name)
    trace = Trace()
    pending = rewound = False
    """The last token of the sequence was picked but not run; the last action was a rewind."""

    def sequence() -> list[int]:
        return [int(token) for token in generator.get_sequence(0)]

    def append(ids: Sequence[int], *, last: bool) -> None:
        """Append, with the last token of the sequence run again in front if so asked."""
        if last:
            ids = [sequence()[-1], *ids]
            generator.rewind_to(len(sequence()) - 1)
        generator.append_tokens(np.array(ids, np.int32))

    for verb, argument in actions:
        if verb == "append":
            append(argument, last=pending)
            pending = rewound = False
        elif verb == "adapter":
            generator.set_active_adapter(adapters, argument)
        elif verb == "rewind":
            generator.rewind_to(argument)
            pending, rewound = False, True
        elif verb == "generate":
            if rewound:
                append([], last=True)
                rewound = False
            for _ in range(argument):
                if generator.is_done():
                    break
                length = len(sequence())
                generator.generate_next_token()
                trace.picked.append(int(generator.get_next_tokens()[0]))
                pending = len(sequence()) > length
        else:
            raise ValueError(f"{verb}: unknown action; there are append, generate, rewind and adapter")
    trace.sequence = sequence()
    trace.done = bool(generator.is_done())
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


def logits(folder: str | Path, ids: Sequence[int]) -> np.ndarray[Any, np.dtype[np.float32]]:
    """The logits after `ids`: float32 [vocab]. Not cached."""
    config = og.Config(str(folder))
    config.clear_providers()
    model = og.Model(config)
    generator = og.Generator(model, og.GeneratorParams(model))
    generator.append_tokens(np.array(ids, np.int32))
    last: np.ndarray[Any, np.dtype[np.float32]] = np.array(generator.get_logits(), np.float32).reshape(-1)
    return last


@cache
def tokenizer(folder: Path) -> Any:
    config = og.Config(str(folder))
    config.clear_providers()
    return og.Tokenizer(og.Model(config))


def encode(folder: str | Path, text: str) -> list[int]:
    """The text's token ids."""
    return [int(token) for token in tokenizer(Path(folder)).encode(text)]


def decode(folder: str | Path, ids: Sequence[int]) -> str:
    """The ids' text."""
    return str(tokenizer(Path(folder)).decode(np.array(ids, np.int32)))


def content(folder: Path) -> str:
    """A digest of what is in a folder."""
    digest = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        digest.update(f"{path.name} {path.stat().st_size}\n".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()
