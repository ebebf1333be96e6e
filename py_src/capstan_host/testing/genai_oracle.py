"""onnxruntime-genai on CPython's CPU provider as the oracle of greedy ids; it is installed separately, with numpy.

    run(folder, [("append", ids), ("generate", 60), ("rewind", 12), ...])  -> Trace
    logits(folder, ids)                                                    -> float32 [vocab]

Facts about onnxruntime-genai 0.18.0 that this module takes into account:

- A folder written for WebGPU runs on the CPU provider after `Config.clear_providers()`; nothing else has to change,
  also for the static mask of enable_webgpu_graph: without graph capture genai feeds a mask as long as the sequence.
- An end-of-sequence id is returned by `get_next_tokens` but not put into the sequence nor run through the model;
  `append_tokens` afterwards goes on without it.
- A picked token is run when the next is picked. `append_tokens` does not run it, but counts its position, so that the
  cache has a hole there, unless the sequence ended by an end-of-sequence id. `run` rewinds by one and appends that
  token in front of the new ones.
- `generate_next_token` straight after `rewind_to(n)` first appends the old token n again, so that the sequence grows by
  two. `run` rewinds to n - 1 and appends token n - 1 instead, which picks token n again; a rewind to 0 needs an
  append.
- Special tokens are never added by its tokenizer (`add_special_tokens` is off).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime_genai as og

__all__ = ["Action", "Trace", "decode", "encode", "logits", "run", "tokenizer"]

Action = tuple[str, Any]


@dataclass
class Trace:
    """The results of a script of actions."""

    picked: list[int] = field(default_factory=list)
    """Every id picked, in order, end-of-sequence ids included."""
    sequence: list[int] = field(default_factory=list)
    """The sequence at the end, without end-of-sequence ids."""
    done: bool = False
    """Whether the sequence ended, by an end-of-sequence id or max_length."""


def run(folder: Path, actions: Sequence[Action], search: dict[str, Any]) -> Trace:
    """Run actions on one generator: ("append", ids), ("generate", most tokens), ("rewind", length), ("adapter", name),
    which is set from the folder's NAME.onnx_adapter.

    `search` are genai's search options. By default picks are greedy, and a sequence ends at the model's context length.
    """
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
        """Append tokens. With `last` the last token of the sequence runs again before them."""
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
            raise ValueError(f"{verb} is an unknown action; the actions are append, generate, rewind and adapter")
    trace.sequence = sequence()
    trace.done = bool(generator.is_done())
    return trace


def logits(folder: str | Path, ids: Sequence[int]) -> np.ndarray[Any, np.dtype[np.float32]]:
    """The logits after `ids`: float32 [vocab]."""
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
