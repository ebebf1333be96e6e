"""Encoders of texts, and the vectors that the native onnxruntime and numpy make of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import tokenizers

ENCODERS = Path(__file__).parent / "fixtures/encoders"
KINDS = {
    "bert": "mean",
    "distilbert": "mean",
    "modernbert": "cls",
    "mpnet": "mean",
    "qwen3": "last",
    "xlm-roberta": "mean",
}
"""The pooling of each one's folder, 'mean' where it says nothing."""
TEXTS = [
    "The tape is recorded once.",
    "a model",
    "Weights come from the browser's storage while Python starts, and the GPU reads them.",
]


def vectors(kind: str, texts: Sequence[str | list[int]], pooling: str) -> np.ndarray[Any, Any]:
    """A unit vector for each text, or for its ids, one at a time."""
    folder = ENCODERS / kind
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    session = onnxruntime.InferenceSession(folder / "onnx/model.onnx", providers=["CPUExecutionProvider"])
    found = []
    for text in texts:
        ids = np.array([text if isinstance(text, list) else tokenizer.encode(text).ids])
        given = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
        [[hidden]] = session.run(None, {each.name: given[each.name] for each in session.get_inputs()})
        vector = {"mean": hidden.mean(0), "cls": hidden[0], "last": hidden[-1]}[pooling]
        found.append(vector / np.linalg.norm(vector))
    return np.array(found)
