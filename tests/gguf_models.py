"""Small random GGUF models: their bytes, and what they compute by definition, in float32 over what `gguf` reads."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import prod, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from capstan.device.reference.unpacked import weight_bytes
from capstan.graph import external_entries
from capstan.graph.float_experts import float_experts
from capstan.graph.gguf.builder import write_graph
from capstan.graph.gguf.rotary import DIVISORS, LONG, SHORT, SMALL_TENSORS
from capstan.graph.onnx_pb2 import ModelProto
from capstan.model_files.gguf.gguf_config import gguf_decoder
from capstan.model_files.gguf.header import GgmlType, GgufFile, GgufTensor
from tests.gguf_experts import EXPERT_TYPES, EXPERTS, WITH_EXPERTS, expert_shapes, mixed
from tests.gguf_files import gguf_file, text, tokenizer_metadata
from tests.gguf_gemma4 import GEMMA4, gemma4_logits, gemma4_shapes, proportional
from tests.gguf_tensors import float32_of, weights

__all__ = [
    "FIXTURES",
    "FURTHER",
    "MIXED",
    "SIZES",
    "VOCABULARY",
    "Made",
    "before",
    "contents",
    "folder_of",
    "in_floats",
    "make",
    "write",
    "write_shards",
    "write_spread",
]

Floats = NDArray[np.float32]

SIZES: dict[str, int] = {
    "block_count": 2,
    "embedding_length": 256,
    "feed_forward_length": 512,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "context_length": 64,
}
VOCABULARY = 96
ENDS = {"tokenizer.ggml.eos_token_id": 1, "tokenizer.chat_template": "{{ messages[0].content }}"}
FIXTURES = Path(__file__).parent / "fixtures"

FURTHER: dict[str, dict[str, Any]] = {
    "llama": {"rope.freq_base": 500000.0},
    "qwen2": {},
    "qwen3": {"attention.key_length": 128},
    "gemma2": {"attention.sliding_window": 8, "attn_logit_softcapping": 5.0, "final_logit_softcapping": 3.0},
    "gemma3": {
        "block_count": 7,
        "attention.sliding_window": 8,
        "rope.freq_base": 1e6,
        "rope.scaling.type": "linear",
        "rope.scaling.factor": 8.0,
    },
    "gemma4": {**GEMMA4, "final_logit_softcapping": 20.0},
    "phi3": {"attention.sliding_window": 8},
    "granite": {"attention.scale": 0.1, "embedding_scale": 4.0, "residual_scale": 0.6, "logit_scale": 3.0},
    "smollm3": {"block_count": 5},
    "lfm2": {"block_count": 3, "attention.head_count_kv": (0, 2, 0), "shortconv.l_cache": 3},
    "qwen3moe": {**EXPERTS, "attention.key_length": 128},
    "granitemoe": {**EXPERTS, "feed_forward_length": 64, "logit_scale": 3.0},
    "gpt-oss": {**EXPERTS, "attention.sliding_window": 8},
}
NEIGHBOURS = ("llama", "granite", "granitemoe", "smollm3")
BIASED = ("qwen2", "gpt-oss")
UNPACKED = ("shortconv.conv.weight", "ssm_conv1d.weight", "ffn_gate_inp.weight", ".bias")
"""Matrices of float32 in every file."""
MIXED = {"": GgmlType.Q4_K, "attn_v": GgmlType.Q6_K, "token_embd": GgmlType.Q8_0, "ffn_down": GgmlType.Q5_1}
"""As in a file of a K mix: attention reads three products, and the table is that of the output."""


@dataclass
class Made:
    """A file: its header, and its bytes."""

    file: GgufFile
    data: bytes = b""
    tensors: dict[str, Floats] = field(default_factory=dict)
    """As `gguf` reads them."""

    def meta(self, key: str, default: float = 0.0) -> float:
        return float(self.file.metadata.get(f"{self.file.architecture}.{key}", default))  # type: ignore[arg-type]

    def read(self, offset: int, length: int) -> bytes:
        return self.data[offset : offset + length]

    def graph(self, element: str = "float32") -> ModelProto:
        held = (self.file.tensors[name] for name in SMALL_TENSORS if name in self.file.tensors)
        small = {each.name: self.read(each.offset, each.length) for each in held}
        return write_graph(self.file, gguf_decoder(self.file, "model.gguf"), element, small)

    def session(self, rewrite: Callable[[ModelProto], ModelProto] | None = None) -> Any:
        """onnxruntime's session over the graph, or over what `rewrite` makes of it, its weights made by the
        definition."""
        model, _ = float_experts(self.graph())
        model = rewrite(model) if rewrite else model
        entries = {entry.name: entry for entry in external_entries(model)}
        for tensor in model.graph.initializer:
            if tensor.name in entries:
                data = weight_bytes(entries[tensor.name], self.read)
                tensor.ClearField("external_data")
                tensor.ClearField("data_location")
                tensor.raw_data = data
        return onnxruntime.InferenceSession(model.SerializeToString())

    def defined(self, ids: Sequence[int]) -> Floats:
        """The logits of all positions."""
        if self.file.architecture == "gemma4":
            return gemma4_logits(self, ids, rotated)
        w, family, positions = self.tensors, self.file.architecture, np.arange(len(ids))
        told = self.file.metadata[self.file.key("attention.head_count_kv")]
        by_layer = told if isinstance(told, tuple) else [told] * int(self.meta("block_count"))
        heads, kv_heads = int(self.meta("attention.head_count")), int(max(by_layer))
        hidden = int(self.meta("embedding_length"))
        size, gemma = int(self.meta("attention.key_length", hidden // heads)), family.startswith("gemma")
        x = w["token_embd.weight"][list(ids)] * np.float32(sqrt(hidden) if gemma else self.meta("embedding_scale", 1.0))
        residual = np.float32(self.meta("residual_scale", 1.0))
        for layer in range(int(self.meta("block_count"))):

            def of(name: str, layer: int = layer) -> Floats | None:
                return w.get(f"blk.{layer}.{name}")

            local = {"gemma2": layer % 2 == 0, "gemma3": layer % 6 != 5, "phi3": True, "gpt-oss": layer % 2 == 0}.get(
                family, False
            )
            base = 10000.0 if family == "gemma3" and local else self.meta("rope.freq_base", 10000.0)
            angles = base ** (-np.arange(size // 2) / (size // 2)) / w.get(DIVISORS, np.float32(1))
            if self.meta("rope.scaling.factor") and not local:
                angles = angles / self.meta("rope.scaling.factor")
            n = self.norm(x, of("attn_norm.weight"))
            if not by_layer[layer]:
                made = self.convolved(n, layer)
            else:
                q, k, v = (n @ of(f"attn_{name}.weight").T for name in "qkv")  # type: ignore[union-attr]
                if of("attn_q.bias") is not None:
                    biases = (w[f"blk.{layer}.attn_{name}.bias"] for name in "qkv")
                    q, k, v = (made + bias for made, bias in zip((q, k, v), biases, strict=True))
                q, k, v = (made.reshape(len(ids), -1, size).swapaxes(0, 1) for made in (q, k, v))
                if of("attn_q_norm.weight") is not None:
                    q, k = self.norm(q, of("attn_q_norm.weight")), self.norm(k, of("attn_k_norm.weight"))
                if family != "smollm3" or layer % 4 != 3:
                    q, k = (rotated(made, positions[:, None] * angles, family in NEIGHBOURS) for made in (q, k))
                k, v = (np.repeat(made, heads // kv_heads, axis=0) for made in (k, v))
                scores = q @ k.swapaxes(1, 2) * np.float32(self.meta("attention.scale", 1 / sqrt(size)))
                if cap := self.meta("attn_logit_softcapping"):
                    scores = np.tanh(scores / cap) * cap
                apart = positions[:, None] - positions
                hidden_ones = (apart < 0) | (local & (apart >= self.meta("attention.sliding_window")))
                scores = np.where(hidden_ones, -np.inf, scores)
                if (sinks := of("attn_sinks.weight")) is not None:
                    sink = np.broadcast_to(sinks[:, None, None], (*scores.shape[:2], 1))
                    scores = np.concatenate([scores, sink], axis=-1)
                    v = np.concatenate([v, np.zeros_like(v[:, :1])], axis=1)
                shares = np.exp(scores - scores.max(-1, keepdims=True))
                made = (shares / shares.sum(-1, keepdims=True) @ v).swapaxes(0, 1).reshape(len(ids), -1)
                made = made @ of("attn_output.weight").T  # type: ignore[union-attr]
                made = made if of("attn_output.bias") is None else made + of("attn_output.bias")
            x = x + residual * (self.norm(made, of("post_attention_norm.weight")) if gemma else made)
            n = self.norm(x, of("post_attention_norm.weight" if family == "gpt-oss" else "ffn_norm.weight"))
            if family in WITH_EXPERTS:
                made = mixed(n, of, int(self.meta("expert_used_count")))
            else:
                gate, up = (n @ of(f"ffn_{name}.weight").T for name in ("gate", "up"))  # type: ignore[union-attr]
                gelu = gate * (1 + np.tanh(sqrt(2 / np.pi) * (gate + 0.044715 * gate**3))) / 2
                made = ((gelu if gemma else gate / (1 + np.exp(-gate))) * up) @ of("ffn_down.weight").T  # type: ignore[union-attr]
            x = x + residual * (self.norm(made, of("post_ffw_norm.weight")) if gemma else made)
        logits = (
            self.norm(x, w.get("output_norm.weight", w.get("token_embd_norm.weight")))
            @ w.get("output.weight", w["token_embd.weight"]).T
        )
        logits = logits / np.float32(self.meta("logit_scale", 1.0))
        if cap := self.meta("final_logit_softcapping"):
            logits = np.tanh(logits / cap) * cap
        return np.asarray(logits, np.float32)

    def convolved(self, n: Floats, layer: int) -> Floats:
        """A gated convolution of LFM2."""
        parts = (self.tensors[f"blk.{layer}.shortconv.{name}.weight"] for name in ("in_proj", "conv", "out_proj"))
        inner, kernel, outer = parts
        b, c, x = np.split(n @ inner.T, 3, axis=-1)
        padded = np.concatenate([np.zeros((kernel.shape[1] - 1, b.shape[1]), np.float32), b * x])
        made = sum(padded[place : place + len(n)] * kernel[:, place] for place in range(kernel.shape[1]))
        return np.asarray((c * made) @ outer.T, np.float32)

    def norm(self, x: Floats, weight: Floats | None) -> Floats:
        epsilon = np.float32(self.meta("attention.layer_norm_rms_epsilon"))
        return np.asarray(x / np.sqrt(np.mean(x * x, -1, keepdims=True) + epsilon) * weight, np.float32)


def before(session: Any) -> dict[str, Floats]:
    """The caches and states before the first position."""
    past = (value for value in session.get_inputs() if value.name.startswith("past"))
    return {
        value.name: np.zeros([0 if isinstance(each, str) else each for each in value.shape[1:]], np.float32)[None]
        for value in past
    }


def rotated(x: Floats, angles: NDArray[np.float64], neighbours: bool) -> Floats:
    a, b = (x[..., ::2], x[..., 1::2]) if neighbours else np.split(x, 2, axis=-1)
    c, s = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    if neighbours:
        return np.stack([a * c - b * s, b * c + a * s], axis=-1).reshape(x.shape)
    return np.concatenate([a * c - b * s, b * c + a * s], axis=-1)


def make(
    family: str,
    types: Mapping[str, GgmlType],
    given: Mapping[str, Any] | None = None,
    tied: bool = True,
    vocabulary: int = VOCABULARY,
) -> Made:
    """A model. Its matrices are of the type of the longest name in `types` that begins theirs; "" is for the others but
    for experts. None in `given` leaves a key out."""
    types = {**EXPERT_TYPES, **types}
    told: dict[str, Any] = {**SIZES, "attention.layer_norm_rms_epsilon": 1e-5, **(given or {})}
    told = {key: value for key, value in told.items() if value is not None}
    hidden, inner, heads = told["embedding_length"], told["feed_forward_length"], told["attention.head_count"]
    size = told.get("attention.key_length", hidden // heads)
    by_layer = told.get("attention.head_count_kv", heads)
    by_layer = by_layer if isinstance(by_layer, tuple) else (by_layer,) * told["block_count"]
    q, kv = heads * size, max(by_layer) * size
    layer: dict[str, tuple[int, ...]] = {
        "attn_norm.weight": (hidden,),
        "attn_q.weight": (q, hidden),
        "attn_k.weight": (kv, hidden),
        "attn_v.weight": (kv, hidden),
        "attn_output.weight": (hidden, q),
        "ffn_norm.weight": (hidden,),
        "ffn_gate.weight": (inner, hidden),
        "ffn_up.weight": (inner, hidden),
        "ffn_down.weight": (hidden, inner),
    }
    if family in BIASED:
        layer |= {"attn_q.bias": (q,), "attn_k.bias": (kv,), "attn_v.bias": (kv,)}
    if family in ("qwen3", "qwen3moe", "qwen35", "gemma3", "lfm2"):
        layer |= {"attn_q_norm.weight": (size,), "attn_k_norm.weight": (size,)}
    if family.startswith("gemma"):
        layer |= {"post_attention_norm.weight": (hidden,), "post_ffw_norm.weight": (hidden,)}
    if family in WITH_EXPERTS:
        for name in ("gate", "up", "down"):
            del layer[f"ffn_{name}.weight"]
        layer |= expert_shapes(told, family == "gpt-oss")
    if family == "gpt-oss":
        layer |= {"attn_output.bias": (hidden,), "attn_sinks.weight": (heads,)}
        layer["post_attention_norm.weight"] = layer.pop("ffn_norm.weight")
    shapes = {"token_embd.weight": (vocabulary, hidden), "output_norm.weight": (hidden,)}
    shapes |= {} if tied else {"output.weight": (vocabulary, hidden)}
    shapes |= {f"blk.{i}.{name}": dims for i in range(told["block_count"]) for name, dims in layer.items()}
    turning = told.get("rope.dimension_count", size) // 2
    if family == "llama" and "rope.freq_base" in told:
        shapes[DIVISORS] = (turning,)
    if family == "phi3" and "rope.scaling.original_context_length" in told:
        shapes |= {SHORT: (turning,), LONG: (turning,)}
    if family == "gemma4":
        shapes = gemma4_shapes(shapes, told)
    if family == "qwen35":
        shapes = qwen35_shapes(shapes, told, q)
    for i in (i for i, kv_heads in enumerate(by_layer) if not kv_heads):
        for name in [name for name in layer if name.startswith("attn_") and name != "attn_norm.weight"]:
            del shapes[f"blk.{i}.{name}"]
        kernel = (hidden, told["shortconv.l_cache"])
        sizes = {"in_proj": (3 * hidden, hidden), "out_proj": (hidden, hidden), "conv": kernel}
        shapes |= {f"blk.{i}.shortconv.{name}.weight": dims for name, dims in sizes.items()}
    if family == "lfm2":
        shapes["token_embd_norm.weight"] = shapes.pop("output_norm.weight")
    if family == "phi3":
        for i in range(told["block_count"]):
            for name in ("attn_q", "attn_k", "attn_v", "ffn_gate", "ffn_up"):
                del shapes[f"blk.{i}.{name}.weight"]
            shapes |= {f"blk.{i}.attn_qkv.weight": (q + 2 * kv, hidden), f"blk.{i}.ffn_up.weight": (2 * inner, hidden)}
    data, tensors, found = bytearray(), dict[str, GgufTensor](), dict[str, Floats]()
    for seed, (name, dims) in enumerate(shapes.items()):
        short = name.split(".", 2)[-1] if name.startswith("blk.") else name
        kind = GgmlType.F32
        if len(dims) > 1 and not name.endswith(UNPACKED):
            kind = types[max((each for each in types if short.startswith(each)), key=len)]
        rows = (prod(dims[:-1]), dims[-1]) if len(dims) > 1 else dims
        held = weights(kind, rows, seed)
        if name.endswith("ssm_a"):
            held = (-np.frombuffer(held, np.float32)).tobytes()
        if name == DIVISORS and family == "gemma4":
            held = proportional(dims[0])
        if name.endswith("q_norm.weight") and family == "gemma4":
            held = (np.frombuffer(held, np.float32) / 8).tobytes()
        if name == LONG:
            held = (np.frombuffer(held, np.float32) * 4).tobytes()
        tensors[name] = GgufTensor(name, dims, kind, len(data), len(held))
        found[name] = float32_of(kind, held, rows[0]).reshape(dims)
        data += held + bytes(-len(held) % 32)
    for i in range(told["block_count"] if family == "phi3" else 0):
        parts = np.split(found.pop(f"blk.{i}.attn_qkv.weight"), [q, q + kv])
        parts += np.split(found.pop(f"blk.{i}.ffn_up.weight"), 2)
        names = ("attn_q", "attn_k", "attn_v", "ffn_gate", "ffn_up")
        found |= {f"blk.{i}.{name}.weight": part for name, part in zip(names, parts, strict=True)}
    metadata = {"general.architecture": family, **{f"{family}.{key}": value for key, value in told.items()}}
    return Made(GgufFile("model.gguf", 3, metadata, tensors, 0), bytes(data), found)


def qwen35_shapes(shapes: Mapping[str, tuple[int, ...]], told: Mapping[str, Any], q: int) -> dict[str, tuple[int, ...]]:
    """The tensors of Qwen3.5, given those of its layers if all were attention without gates."""
    found = {name.replace("ffn_norm", "post_attention_norm"): dims for name, dims in shapes.items()}
    hidden, size, heads = (told[key] for key in ("embedding_length", "ssm.state_size", "ssm.time_step_rank"))
    inner, channels = heads * size, (2 * told["ssm.group_count"] + heads) * size
    recurrent = {
        "attn_qkv.weight": (channels, hidden),
        "attn_gate.weight": (inner, hidden),
        "ssm_conv1d.weight": (channels, told["ssm.conv_kernel"]),
        "ssm_dt.bias": (heads,),
        "ssm_a": (heads,),
        "ssm_beta.weight": (heads, hidden),
        "ssm_alpha.weight": (heads, hidden),
        "ssm_norm.weight": (size,),
        "ssm_out.weight": (hidden, inner),
    }
    for layer in range(told["block_count"]):
        front = f"blk.{layer}."
        if layer % told["full_attention_interval"] == told["full_attention_interval"] - 1:
            found[f"{front}attn_q.weight"] = (2 * q, hidden)
            continue
        of_attention = (front + "attn_q", front + "attn_k", front + "attn_v", front + "attn_output")
        found = {name: dims for name, dims in found.items() if not name.startswith(of_attention)}
        found |= {front + name: dims for name, dims in recurrent.items()}
    return found


def contents(made: Made) -> tuple[dict[str, Any], dict[str, Any]]:
    """The metadata of a model of 512 tokens, with the tokenizer of nano-llama, and its tensors, for `gguf_file`."""
    tensors = {
        name: (each.dims, int(each.type), made.read(each.offset, each.length))
        for name, each in made.file.tensors.items()
    }
    return {**made.file.metadata, **tokenizer_metadata(FIXTURES / "nano-llama", "gpt-2"), **ENDS}, tensors


def in_floats(made: Made) -> Made:
    """The same in float32: llama.cpp rounds activations for products by other types."""
    if {each.type for each in made.file.tensors.values()} == {GgmlType.F32}:
        return made
    data, tensors = bytearray(), dict[str, GgufTensor]()
    for name, held in made.tensors.items():
        tensors[name] = GgufTensor(name, held.shape, GgmlType.F32, len(data), held.nbytes)
        data += held.tobytes() + bytes(-held.nbytes % 32)
    return Made(replace(made.file, tensors=tensors), bytes(data), made.tensors)


def write(made: Made, path: Path) -> Path:
    """The whole file of a model of 512 tokens."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gguf_file(*contents(made)))
    return path


def write_spread(made: Made, path: Path, starts: Mapping[str, int]) -> Path:
    """The same in a sparse file: each tensor that `starts` names lies across about that byte of the file, the rest
    follows the last of them."""
    metadata, tensors = contents(made)
    head = bytearray(gguf_file(metadata, {name: (dims, kind, b"") for name, (dims, kind, _) in tensors.items()}))
    at = max(starts.values()) + (1 << 20)
    body = []
    for name, (dims, kind, content) in tensors.items():
        if name in starts:
            start = (starts[name] - len(content) // 2 - len(head)) // 32 * 32 + len(head)
        else:
            start, at = at - at % 32 + len(head) % 32, at + len(content) + 64
        front = text(name) + struct.pack(f"<I{len(dims)}QI", len(dims), *reversed(dims), kind)
        place = head.index(front) + len(front)
        head[place : place + 8] = struct.pack("<Q", start - len(head))
        body.append((start, content))
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        for start, content in [(0, bytes(head)), *body]:
            file.seek(start)
            file.write(content)
    return path


def write_shards(made: Made, folder: Path, *ends: str, name: str = "a model", **lies: Any) -> list[Path]:
    """The same in shards, as gguf-split writes them: a shard ends with the first tensor whose name ends so, the last
    one with the last tensor. `lies` replaces pairs "split.*" of the second one."""
    metadata, tensors = contents(made)
    order = list(tensors)
    starts = [0, *(next(i for i, each in enumerate(order) if each.endswith(end)) + 1 for end in ends), len(order)]
    files = []
    folder.mkdir(parents=True, exist_ok=True)
    for number, (start, end) in enumerate(pairwise(starts)):
        split = {"split.no": number, "split.count": len(ends) + 1, "split.tensors.count": len(order)}
        if number == 1:
            split |= {f"split.{key}": value for key, value in lies.items()}
        file = folder / f"{name}-{number + 1:05}-of-{len(ends) + 1:05}.gguf"
        some = {each: tensors[each] for each in order[start:end]}
        file.write_bytes(gguf_file({**(metadata if number == 0 else {}), **split}, some))
        files.append(file)
    return files


def folder_of(made: Made, folder: Path) -> Path:
    """A model folder with the file as data beside a graph that is given."""
    folder.mkdir()
    (folder / "model.gguf").write_bytes(made.data)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(FIXTURES / "nano-llama" / name, folder)
    config = json.loads((FIXTURES / "nano-llama/genai_config.json").read_text())
    front = made.file.architecture
    sizes = {"num_attention_heads": "attention.head_count", "num_key_value_heads": "attention.head_count_kv"}
    sizes |= {"hidden_size": "embedding_length", "num_hidden_layers": "block_count"}
    config["model"] |= {"type": {"gemma3": "gemma3_text"}.get(front, front), "context_length": 64}
    decoder = config["model"]["decoder"]
    decoder |= {"filename": "model.gguf", "head_size": 64}
    decoder |= {key: made.file.metadata[f"{front}.{name}"] for key, name in sizes.items()}
    config["search"]["max_length"] = 64
    (folder / "genai_config.json").write_text(json.dumps(config))
    return folder
