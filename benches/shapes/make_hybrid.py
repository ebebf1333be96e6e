"""Write a hybrid model of a well-known shape with random int4 weights, float16 activations, for timing on a GPU host.

usage: make_hybrid.py SHAPE OUT TOKENIZER_FOLDER BUILDER.py [CONTEXT]
needs torch, transformers, onnx_ir, onnx, numpy; no network

SHAPE is qwen3.5-0.8b (the text decoder with its multi-token-prediction head, mtp.onnx), lfm2-350m or lfm2-1.2b. The
other arguments and the builder's options are as for make_shape.py; the builder of onnxruntime-genai 0.18 or newer is
needed. It gets a checkpoint of zeros, and the weights that it wrote are replaced in place.

Embedding and output projection are one table, as in the real models, so a token's row cannot be copied to its successor
as in make_shape.py. Instead a signed permutation P of the channels is drawn, and a successor's row is P times the
token's row, which gives cycles of 2 * hidden tokens. The feed-forward part of the last layer computes roughly P: it
squares each channel and keeps its sign. Greedy picks follow the cycles, whatever the other layers add, which is random,
SHARE times the embedding. The head's projection has P over the embedding and random numbers over the hidden state,
which turn about 0.3 of its first drafts into wrong ones. `cycle_successors` gives the next token of each token.
"""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from make_shape import CONTEXT, copy_tokenizer, hash_weights, limit_context, run_builder
from safetensors.torch import save_file
from transformers import Lfm2Config, Lfm2ForCausalLM, Qwen3_5Config, Qwen3_5ForConditionalGeneration

Array = np.ndarray[Any, np.dtype[Any]]

LFM2: dict[str, Any] = {
    "vocab_size": 65536,
    "num_hidden_layers": 16,
    "num_key_value_heads": 8,
    "conv_L_cache": 3,
    "layer_types": ["full_attention" if layer in (2, 5, 8, 10, 12, 14) else "conv" for layer in range(16)],
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
}
SHAPES: dict[str, dict[str, Any]] = {
    "qwen3.5-0.8b": {
        "vocab_size": 248320,
        "hidden_size": 1024,
        "intermediate_size": 3584,
        "num_hidden_layers": 24,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 16,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
        "mtp_num_hidden_layers": 1,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 1e7,
            "partial_rotary_factor": 0.25,
            "mrope_section": [11, 11, 10],
            "mrope_interleaved": True,
        },
    },
    "lfm2-350m": {
        **LFM2,
        "hidden_size": 1024,
        "intermediate_size": 6656,  # of which LFM2 takes two thirds
        "num_attention_heads": 16,
    },
    "lfm2-1.2b": {
        **LFM2,
        "hidden_size": 2048,
        "intermediate_size": 12288,
        "num_attention_heads": 32,
    },
}
"""The sizes of each text decoder."""
VISION = {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2}
"""Sizes of the vision part that Qwen3.5's configuration needs; the builder does not export it."""
SPECIAL = 3
"""Beginning, end and padding are tokens 0, 1 and 2."""

BLOCK, ZERO, MOST = 32, 8, 7
"""The inputs that share a scale; the stored number of 0; the largest number."""
NUMBERS = np.where(np.arange(16) == 0, ZERO, np.arange(16)).astype(np.uint8)
"""Stored numbers of -7 to 7 with 0 twice: if their mean was not 0, it would add up from layer to layer."""
PAIRS = (NUMBERS[:, None] << 4 | NUMBERS).reshape(-1)
SPREAD = float((NUMBERS.astype(float) - ZERO).std())
TABLE = 0.06
"""The standard deviation of embeddings."""
AHEAD = 4.0
"""The ratio of the last layer's output to its input."""
SHARE = 2.0
"""The ratio of the sum of what all other layers add to a token's embedding."""
NOISE = 6.0
"""The ratio of the hidden state's part to the embedding's in the head: at 5 about 0.93 of the first drafts are right,
at 7 about 0.44."""
SEED = 1


def main() -> int:
    shape, target, tokenizer, builder = sys.argv[1:5]
    context, out = int(next(iter(sys.argv[5:]), CONTEXT)), Path(target)
    with tempfile.TemporaryDirectory() as folder:
        write_checkpoint(Path(folder), SHAPES[shape], context)
        copy_tokenizer(Path(tokenizer), Path(folder))
        run_builder(builder, Path(folder), out, "int4", ["enable_webgpu_graph=true"])
    limit_context(out / "genai_config.json", context)
    for name in ("model.onnx", "mtp.onnx"):
        if (out / name).exists():
            fill(out / name)
    hash_weights(out)
    return 0


def write_checkpoint(folder: Path, sizes: dict[str, Any], context: int) -> None:
    """Write a checkpoint of zeros; the weights of a head are added, since transformers has no such part."""
    common = {"tie_word_embeddings": True, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}
    text = {**sizes, **common, "max_position_embeddings": context}
    with torch.device("meta"):
        model: Any
        if "mtp_num_hidden_layers" in sizes:
            vision = {**VISION, "out_hidden_size": sizes["hidden_size"]}
            model = Qwen3_5ForConditionalGeneration(Qwen3_5Config(text_config=text, vision_config=vision, **common))
        else:
            model = Lfm2ForCausalLM(Lfm2Config(**text))
    shapes = {name: tensor.shape for name, tensor in model.state_dict().items() if name != "lm_head.weight"}
    if "mtp_num_hidden_layers" in sizes:
        hidden, attention = sizes["hidden_size"], model.config.text_config.layer_types.index("full_attention")
        layer = f"model.language_model.layers.{attention}."
        shapes |= {name.replace(layer, "mtp.layers.0."): shapes[name] for name in shapes if name.startswith(layer)}
        shapes["mtp.fc.weight"] = (hidden, 2 * hidden)
        for name in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"):
            shapes[f"mtp.{name}.weight"] = (hidden,)
    tensors = {name: torch.zeros(size, dtype=torch.float16) for name, size in shapes.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    model.config.architectures, model.config.dtype = [type(model).__name__], torch.float16
    model.config.save_pretrained(folder)


def fill(path: Path) -> None:
    """Replace the weights in the file beside a graph; rotary caches and a bias of zeros stay."""
    graph = onnx.load(path, load_external_data=False).graph
    filler = Filler(graph, head=path.name == "mtp.onnx")
    own = f"{path.name}.data"
    with (path.parent / own).open("r+b") as file:
        for tensor in graph.initializer:
            place = {entry.key: entry.value for entry in tensor.external_data}
            if place.get("location") != own or tensor.name.endswith(("cos_cache", "sin_cache", "conv1d.bias")):
                continue
            kind = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
            data = np.ascontiguousarray(filler.values(tensor.name, tuple(tensor.dims)), kind)
            if data.nbytes != int(place["length"]):
                raise SystemExit(f"{tensor.name} has {place['length']} bytes in {path}, {data.nbytes} were made")
            file.seek(int(place["offset"]))
            file.write(data.data)


def order_of_channels(hidden: int) -> Array:
    """The channels as P moves them: each one to the next one's place, the last one, negated, to the first one's."""
    return np.random.default_rng([SEED, 1]).permutation(hidden)


def cycles(vocab: int, hidden: int) -> Array:
    """The tokens of each cycle in their order, int64 [cycles, 2 * hidden]; special tokens and a rest are in none."""
    ids = np.random.default_rng([SEED, 2]).permutation(np.arange(SPECIAL, vocab))
    count = len(ids) // (2 * hidden)
    return ids[: count * 2 * hidden].reshape(count, 2 * hidden)


def cycle_successors(vocab: int, hidden: int) -> Array:
    """The next token of each token, int64 [vocab]; -1 for tokens in no cycle, which are never picked."""
    found = np.full(vocab, -1, np.int64)
    tokens = cycles(vocab, hidden)
    found[tokens] = np.roll(tokens, -1, axis=1)
    return found


def packed(numbers: Array) -> Array:
    """Rows of numbers from -7 to 7 as int4, two a byte."""
    stored = (numbers + ZERO).astype(np.uint8)
    return np.asarray(stored[:, 0::2] | stored[:, 1::2] << 4)


def random_numbers(random: np.random.Generator, rows: int, inner: int) -> Array:
    """Rows of random int4 numbers, two a byte."""
    return PAIRS[np.frombuffer(random.bytes(rows * inner // 2), np.uint8)].reshape(rows, -1)


class Filler:
    """Makes the values of a graph's constants by their names and shapes."""

    def __init__(self, graph: onnx.GraphProto, head: bool) -> None:
        shapes = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
        self.head = head
        self.layers = 1 + max(int(found[1]) for name in shapes if (found := re.search(r"layers\.(\d+)\.mlp", name)))
        self.vocab, blocks, _ = shapes["lm_head.MatMul.weight_Q4"]
        self.hidden = blocks * BLOCK
        self.random = np.random.Generator(np.random.SFC64([SEED, 3, head]))

    def values(self, name: str, shape: tuple[int, ...]) -> Array:
        if name == "lm_head.MatMul.weight_Q4":
            return self.table()
        if name == "lm_head.MatMul.weight_scales":
            return self.table_scales(shape)
        if name.endswith("weight_Q4"):
            return self.numbers(name, shape)
        if name.endswith("weight_scales"):
            return self.scales(name, shape)
        draw = self.random.standard_normal(shape, np.float32)
        if "norm" in name:
            return 1 + 0.1 * draw
        if name.endswith("neg_exp_A"):
            return -self.random.uniform(1, 16, shape)
        if name.endswith("dt_bias"):
            step = np.exp(self.random.uniform(np.log(1e-3), np.log(0.1), shape))
            return np.asarray(step + np.log(-np.expm1(-step)))
        if ".conv" in name:
            return 0.5 * draw
        if name.endswith("proj.MatMul.weight"):
            return draw / np.float32(shape[0] ** 0.5)
        raise SystemExit(f"{name} {list(shape)} has no rule in {__file__}")

    def table(self) -> Array:
        """The embeddings' numbers: along a cycle, a window moves over a row and its negative, in P's order."""
        hidden, random = self.hidden, np.random.Generator(np.random.SFC64([SEED, 4]))
        result = random_numbers(random, self.vocab, hidden)
        place = np.argsort(order_of_channels(hidden))
        for tokens in cycles(self.vocab, hidden):
            first = random.integers(-MOST, MOST + 1, hidden).astype(np.int8)
            around = np.concatenate([first, -first] * 2)
            windows = np.lib.stride_tricks.sliding_window_view(around, hidden)
            result[tokens] = packed(windows[2 * hidden - np.arange(2 * hidden)][:, place])
        return result

    def table_scales(self, shape: tuple[int, ...]) -> Array:
        """The embeddings' scales, a quarter for tokens in no cycle, so that they are never picked."""
        result = np.full(shape, TABLE / np.arange(-MOST, MOST + 1).std())
        result[cycle_successors(self.vocab, self.hidden) < 0] /= 4
        return result

    def part_of_p(self, name: str) -> str:
        """The name of the product, if it computes a part of P: the last feed-forward part, or the head's projection."""
        part = name.split(".")[-3]
        if self.head:
            return part if part == "fc" else ""
        return part if name.startswith(f"model.layers.{self.layers - 1}.mlp.") else ""

    def numbers(self, name: str, shape: tuple[int, ...]) -> Array:
        """Random numbers [rows, inner / 2], with P's over the first channels."""
        rows, blocks, _ = shape
        result, hidden = random_numbers(self.random, rows, blocks * BLOCK), self.hidden
        part, channels, start = self.part_of_p(name), np.arange(hidden), order_of_channels(hidden)
        if not part:
            return result
        exact = np.zeros((rows, blocks * BLOCK), np.int8)
        to, sign = np.roll(start, -1), np.where(channels == hidden - 1, -1, 1)
        if part == "fc":
            exact[to, start] = MOST * sign
            result[:, : hidden // 2] = packed(exact)[:, : hidden // 2]
        elif part == "down_proj":
            exact[to, start] = exact[to, start + hidden] = MOST * sign
            result = packed(exact)
        else:
            # The sum of silu(4 * x) * x and silu(-4 * x) * x is about 4 * x * abs(x).
            exact[channels, channels] = MOST
            exact[channels + hidden, channels] = -MOST if part == "gate_proj" else MOST
            result[: 2 * hidden] = packed(exact)[: 2 * hidden]
        return result

    def scales(self, name: str, shape: tuple[int, ...]) -> Array:
        """Scales [rows, blocks] with which an input of deviation 1 gives an output of deviation 1, or P's."""
        _, blocks = shape
        usual: Array = self.random.uniform(0.8, 1.2, shape) / (SPREAD * (blocks * BLOCK) ** 0.5)
        part = self.part_of_p(name)
        if part == "fc":
            usual *= NOISE * 2**0.5  # the random numbers are over half of the inputs
            usual[:, : self.hidden // BLOCK] = 1 / MOST
            usual *= TABLE
        elif part == "down_proj":
            before = TABLE * (1 + SHARE**2) ** 0.5
            usual = np.full(shape, AHEAD * before / (4 * 3**0.5) / MOST)  # 3 is the mean of x ** 4
        elif part:
            usual[: 2 * self.hidden] = (4 if part == "gate_proj" else 1) / MOST
        elif name.split(".")[-3] in ("o_proj", "out_proj", "down_proj"):
            # Their inputs, silu(a) * b and gated attention, are about 0.6.
            usual *= (0.25 * TABLE if self.head else SHARE * TABLE / (2 * self.layers) ** 0.5) / 0.6
        return usual


if __name__ == "__main__":
    sys.exit(main())
