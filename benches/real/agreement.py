"""Computes float32's answers to a model's chats: the truth with which the bench compares engines.

usage: .venv/bin/python benches/real/agreement.py MODEL_FOLDER ... [--tokens N] [--top N]

Writes chats.json into each model folder, from benches/real/chats.json: the prompts and replies as ids, by the folder's
tokenizer and chat template; what float32 picks greedily after each prompt, with the margin of each pick; and float32's
probabilities of the `top` likeliest tokens after each token of a reply.

Float32 is onnxruntime's CPU provider on CPython, over the same graph and the same constants: float16 tensors of the
graph become float32, quantized weights stay as they are, and accuracy_level becomes 1, since the builder's 4 lets the
CPU multiply int8 activations. So what differs from it in an engine is the precision of activations and sums alone.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import onnx
import onnxruntime
import tokenizers
from onnx import TensorProto, numpy_helper
from onnx.external_data_helper import load_external_data_for_model

HERE = Path(__file__).parent
CHATS = "chats.json"
"""The bench reads its chats from this file of a model folder."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", metavar="MODEL_FOLDER", nargs="+", type=Path)
    parser.add_argument("--tokens", type=int, default=256, help="tokens picked greedily after each prompt")
    parser.add_argument("--top", type=int, default=256, help="tokens whose probability is kept")
    args = parser.parse_args()
    for folder in args.folders:
        found = truth(folder, args.tokens, args.top)
        temporary = folder / f"{CHATS}.new"
        temporary.write_text(json.dumps(found))
        temporary.replace(folder / CHATS)
        print(folder / CHATS)
    return 0


def truth(folder: Path, tokens: int, top: int) -> dict[str, Any]:
    """The contents of chats.json for a model."""
    config = json.loads((folder / "genai_config.json").read_text())["model"]
    graph = folder / config["decoder"]["filename"]
    vocabulary = config["vocab_size"]
    with tempfile.TemporaryDirectory() as scratch:
        model = Float32(float32_graph(graph, Path(scratch)), config["decoder"])
        chats: list[dict[str, Any]] = []
        ids: list[np.ndarray] = []
        logs: list[np.ndarray] = []
        for prompt, reply in encoded(folder):
            rows = log_softmax(model.forced([*prompt, *reply])[len(prompt) :, :vocabulary])
            best = np.argsort(-rows, axis=1, kind="stable")[:, : min(top, vocabulary)]
            ids.append(best.astype("<u4"))
            logs.append(np.take_along_axis(rows, best, 1).astype("<f4"))
            picked = list(model.greedy(prompt, tokens, vocabulary))
            greedy, margins = [pick for pick, _ in picked], [round(margin, 4) for _, margin in picked]
            texts = {"prompt_text": pieces(folder, prompt), "reply_text": pieces(folder, reply)}
            chats.append({"prompt": prompt, "reply": reply, **texts, "greedy": greedy, "margins": margins})
    return {
        "weights": hashlib.sha256(graph.with_name(f"{graph.name}.data").read_bytes()).hexdigest(),
        "computed": f"float32 activations, onnxruntime {onnxruntime.__version__} on the CPU, the folder's own weights",
        "top": int(ids[0].shape[1]),
        "chats": chats,
        "ids": base64.b64encode(np.concatenate(ids).tobytes()).decode(),
        "log_probabilities": base64.b64encode(np.concatenate(logs).tobytes()).decode(),
    }


def encoded(folder: Path) -> Iterator[tuple[list[int], list[int]]]:
    """The committed chats as ids: the prompt as the template writes it, and the reply behind it. A folder without a
    chat template gets the question unchanged.
    """
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    file = folder / "chat_template.jinja"
    about = json.loads((folder / "tokenizer_config.json").read_text())
    plain = "{{ messages[0].content }}"
    template = jinja2.Environment().from_string(
        file.read_text() if file.is_file() else about.get("chat_template", plain)
    )
    for chat in json.loads((HERE / CHATS).read_text()):
        text = template.render(messages=[{"role": "user", "content": chat["user"]}], add_generation_prompt=True)
        prompt = tokenizer.encode(text, add_special_tokens=False).ids
        yield prompt, tokenizer.encode(chat["assistant"], add_special_tokens=False).ids


def pieces(folder: Path, ids: list[int]) -> list[str]:
    """The text of each id, for engines that take text."""
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    return [tokenizer.decode([token], skip_special_tokens=False) for token in ids]


def float32_graph(graph: Path, scratch: Path) -> Path:
    """The graph with float32 wherever it has float16, and its weights, in a folder of their own."""
    model = onnx.load(graph, load_external_data=False)
    load_external_data_for_model(model, str(graph.parent))
    for tensor in model.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT16:
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float32), tensor.name))
    for value in (*model.graph.input, *model.graph.output, *model.graph.value_info):
        if value.type.tensor_type.elem_type == TensorProto.FLOAT16:
            value.type.tensor_type.elem_type = TensorProto.FLOAT
    for node in model.graph.node:
        for attribute in node.attribute:
            if attribute.name == "accuracy_level":
                attribute.i = 1
            elif node.op_type == "Cast" and attribute.name == "to" and attribute.i == TensorProto.FLOAT16:
                attribute.i = TensorProto.FLOAT
            elif attribute.type == onnx.AttributeProto.TENSOR and attribute.t.data_type == TensorProto.FLOAT16:
                attribute.t.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(attribute.t).astype(np.float32)))
            elif attribute.type in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS):
                raise SystemExit(f"{graph}: {node.op_type} {node.name} has a graph inside, which is not converted")
    file = scratch / "model.onnx"
    onnx.save(model, file, save_as_external_data=True, location="model.onnx.data", size_threshold=1024)
    return file


class Float32:
    """A converted model on the CPU."""

    def __init__(self, graph: Path, decoder: dict[str, Any]) -> None:
        self.session = onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])
        self.decoder = decoder
        self.inputs = {value.name for value in self.session.get_inputs()}

    def run(self, ids: list[int], past: dict[str, np.ndarray], before: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Logits [len(ids), vocab] after `before` positions, and the caches for the next call."""
        feeds: dict[str, np.ndarray] = {"input_ids": np.array([ids], np.int64)}
        feeds["attention_mask"] = np.ones((1, before + len(ids)), np.int64)
        if "position_ids" in self.inputs:
            feeds["position_ids"] = np.arange(before, before + len(ids), dtype=np.int64)[None]
        names = [value.name for value in self.session.get_outputs()]
        results = dict(zip(names, self.session.run(names, feeds | (past or self.nothing())), strict=True))
        return results.pop("logits")[0], {name.replace("present", "past_key_values"): v for name, v in results.items()}

    def nothing(self) -> dict[str, np.ndarray]:
        shape = (1, self.decoder["num_key_value_heads"], 0, self.decoder["head_size"])
        return {name: np.zeros(shape, np.float32) for name in self.inputs if name.startswith("past_key_values")}

    def forced(self, ids: list[int]) -> np.ndarray:
        return self.run(ids, {}, 0)[0]

    def greedy(self, prompt: list[int], tokens: int, vocabulary: int) -> Iterator[tuple[int, float]]:
        """Each pick, end-of-sequence ids being tokens like others, and how far it is above the second best."""
        ids, past, before = prompt, dict[str, np.ndarray](), 0
        for _ in range(tokens):
            logits, past = self.run(ids, past, before)
            before += len(ids)
            second, first = np.partition(logits[-1, :vocabulary], -2)[-2:]
            ids = [int(np.argmax(logits[-1, :vocabulary]))]
            yield ids[0], float(first - second)


def log_softmax(rows: np.ndarray) -> np.ndarray:
    shifted = rows.astype(np.float64) - rows.max(axis=1, keepdims=True)
    result: np.ndarray = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return result


if __name__ == "__main__":
    sys.exit(main())
