"""The oracle of multi-token-prediction heads: onnxruntime runs a folder's model.onnx and mtp.onnx over a sequence.

    right(folder, tokens)    for each token from the third on, whether the head would have drafted it first

The head reads all tokens before it and the hidden states of the model, as onnxruntime-genai's documents describe it:
entry i has token i + 1 and hidden state i, and drafts token i + 2.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

__all__ = ["HEADS", "right"]

HEADS = Path(__file__).parent / "fixtures" / "mtp"

DTYPES = {"tensor(float)": np.float32, "tensor(float16)": np.float16}


def right(folder: Path, tokens: Sequence[int]) -> list[bool]:
    """Whether the head's first draft is right for each token of a sequence, beginning with the third."""
    hidden = outputs(folder / "model.onnx", tokens[:-2], {})["hidden_states"]
    drafts = outputs(folder / "mtp.onnx", tokens[1:-1], {"hidden_states": hidden})["logits"][0].argmax(-1)
    return [int(draft) == token for draft, token in zip(drafts, tokens[2:], strict=True)]


def outputs(path: Path, tokens: Sequence[int], given: dict[str, Any]) -> dict[str, Any]:
    """Run a graph on a sequence with empty caches; returns all its outputs."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_outputs()]
    places = np.arange(len(tokens), dtype=np.int64)[None]
    feeds = {"input_ids": np.array([tokens], np.int64), "attention_mask": np.ones_like(places), **given}
    for value in session.get_inputs():
        if value.name == "position_ids":
            feeds[value.name] = np.stack([places] * 3) if len(value.shape) > 2 else places
        elif value.name not in feeds:
            feeds[value.name] = np.zeros(cache_sizes(value.shape, len(tokens)), DTYPES[value.type])
    return dict(zip(names, session.run(names, feeds), strict=True))


def cache_sizes(shape: Sequence[int | str], length: int) -> list[int]:
    """The sizes of an empty cache or state of one sequence, with room for `length` positions."""
    free = {"batch_size": 1, "past_sequence_length": length, "kv_cache_dim": 64}
    return [size if isinstance(size, int) else free[size] for size in shape]
