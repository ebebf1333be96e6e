"""Write a decoder of a well-known shape with random weights and float16 activations, for timing on a GPU host.

usage: make_shape.py SHAPE OUT TOKENIZER_FOLDER BUILDER.py [CONTEXT [RIGHT]]
needs torch, transformers, onnx_ir; no network

SHAPE is smollm2-135m, qwen2.5-0.5b, llama-0.5b (its sizes with Llama 3's vocabulary), llama-0.5b-shallow (6 layers of
llama-3.2-1b), qwen3-0.6b, qwen3-1.7b, qwen3-4b, llama-3.2-1b, llama-3.2-3b, llama-3.1-8b or gemma3-1b, with int4
weights in symmetric blocks of 32, or one of these with -f16 after it, with float16 weights, or with -k-quant-mixed,
with int4 and int8 weights as the builder's int4_algo_config=k_quant_mixed chooses them. BUILDER.py is
onnxruntime_genai/models/builder.py of the onnxruntime-genai wheel; TOKENIZER_FOLDER's tokenizer is put beside the
model, whose ids it does not match: time it with token ids. CONTEXT is 4096 tokens unless given. Everything else is the
builder's default, accuracy_level 4 too. Greedy picks depend on the last id alone, and are the same in all shapes of a
vocabulary; with RIGHT, for a draft model, only for this share of the ids.

The builder would take ten minutes for all layers of qwen3-4b or llama-3.1-8b. It makes three, and the middle one is
repeated (repeated_layers.py). Qwen3-4B ties its embeddings: the builder's default writes them twice even so, as here.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from repeated_layers import repeat_layers
from successors import successors
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

LLAMA = (LlamaConfig, LlamaForCausalLM)
QWEN2 = (Qwen2Config, Qwen2ForCausalLM)
QWEN3 = (Qwen3Config, Qwen3ForCausalLM)
GEMMA3 = (Gemma3TextConfig, Gemma3ForCausalLM)
SHAPES: dict[str, tuple[tuple[Any, Any], dict[str, Any]]] = {
    "smollm2-135m": (
        LLAMA,
        {
            "hidden_size": 576,
            "intermediate_size": 1536,
            "num_hidden_layers": 30,
            "num_attention_heads": 9,
            "num_key_value_heads": 3,
            "vocab_size": 49152,
        },
    ),
    "qwen2.5-0.5b": (
        QWEN2,
        {
            "hidden_size": 896,
            "intermediate_size": 4864,
            "num_hidden_layers": 24,
            "num_attention_heads": 14,
            "num_key_value_heads": 2,
            "vocab_size": 151936,
            "use_sliding_window": False,
        },
    ),
    "llama-0.5b": (
        LLAMA,
        {
            "hidden_size": 896,
            "intermediate_size": 4864,
            "num_hidden_layers": 24,
            "num_attention_heads": 14,
            "num_key_value_heads": 2,
            "vocab_size": 128256,
        },
    ),
    "llama-0.5b-shallow": (
        LLAMA,
        {
            "hidden_size": 2048,
            "intermediate_size": 8192,
            "num_hidden_layers": 6,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "vocab_size": 128256,
        },
    ),
    "qwen3-0.6b": (
        QWEN3,
        {
            "hidden_size": 1024,
            "intermediate_size": 3072,
            "num_hidden_layers": 28,
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "vocab_size": 151936,
            "use_sliding_window": False,
        },
    ),
    "qwen3-1.7b": (
        QWEN3,
        {
            "hidden_size": 2048,
            "intermediate_size": 6144,
            "num_hidden_layers": 28,
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "vocab_size": 151936,
            "use_sliding_window": False,
        },
    ),
    "llama-3.2-1b": (
        LLAMA,
        {
            "hidden_size": 2048,
            "intermediate_size": 8192,
            "num_hidden_layers": 16,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "vocab_size": 128256,
        },
    ),
    "llama-3.2-3b": (
        LLAMA,
        {
            "hidden_size": 3072,
            "intermediate_size": 8192,
            "num_hidden_layers": 28,
            "num_attention_heads": 24,
            "num_key_value_heads": 8,
            "vocab_size": 128256,
        },
    ),
    "llama-3.1-8b": (
        LLAMA,
        {
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "vocab_size": 128256,
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 500000.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 8192,
            },
        },
    ),
    "qwen3-4b": (
        QWEN3,
        {
            "hidden_size": 2560,
            "intermediate_size": 9728,
            "num_hidden_layers": 36,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "vocab_size": 151936,
            "use_sliding_window": False,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0},
        },
    ),
    "gemma3-1b": (
        GEMMA3,
        {
            "hidden_size": 1152,
            "intermediate_size": 6912,
            "num_hidden_layers": 26,
            "num_attention_heads": 4,
            "num_key_value_heads": 1,
            "head_dim": 256,
            "query_pre_attn_scalar": 256,
            "vocab_size": 262144,
            "sliding_window": 512,
            "layer_types": [f"{'sliding' if (layer + 1) % 6 else 'full'}_attention" for layer in range(26)],
        },
    ),
}
REPEATED = ("qwen3-4b", "llama-3.1-8b")
"""Shapes of which the builder makes BUILT_LAYERS layers."""
BUILT_LAYERS = 3
CONTEXT = 4096
WEIGHTS: dict[str, tuple[str, list[str]]] = {
    "-f16": ("fp16", []),
    "-k-quant-mixed": ("int4", ["int4_algo_config=k_quant_mixed"]),
    "-f32": ("int4", ["use_webgpu_fp32=true"]),
    "": ("int4", []),
}
"""The builder's precision and options, by the end of a shape's name."""

BUILDER = """
import runpy, sys, transformers
from pathlib import Path
transformers.Gemma3TextConfig.rope_theta = 1e6
transformers.Gemma3TextConfig.rope_local_base_freq = 1e4
read = transformers.AutoConfig.from_pretrained
def with_rotary_form(*given, **options):
    config = read(*given, **options)
    form = getattr(config, "rope_parameters", None) or {}
    if any(kind.endswith("_attention") for kind in form):
        form["rope_type"] = "default"
    return config
transformers.AutoConfig.from_pretrained = with_rotary_form
sys.argv = sys.argv[1:]
sys.path.insert(0, str(Path(sys.argv[0]).parent))
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""Runs the builder, which reads fields of Gemma 3 that transformers 5 does not have, among them a form of rotary
embedding where each kind of layer has rotary parameters of its own."""

SHARE = 3.0
"""The ratio of the sum of what all layers add to a token's embedding."""


def main() -> int:
    shape, out, tokenizer, builder = sys.argv[1:5]
    context = int(next(iter(sys.argv[5:]), CONTEXT))
    right = float(next(iter(sys.argv[6:]), 1.0))
    ending = next(ending for ending in WEIGHTS if shape.endswith(ending))
    precision, more = WEIGHTS[ending]
    torch.manual_seed(0)
    name = shape.removesuffix(ending)
    (make_config, make_model), sizes = SHAPES[name]
    layers = sizes["num_hidden_layers"]
    built = BUILT_LAYERS if name in REPEATED else layers
    if built != layers and ending == "-k-quant-mixed":
        raise SystemExit(f"{shape}: k_quant_mixed tells layers apart by their number, and {name}'s are repeated")
    config = make_config(
        **{**sizes, "num_hidden_layers": built},
        max_position_embeddings=context,
        tie_word_embeddings=False,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=0,
        initializer_range=0.02,
    )
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with tempfile.TemporaryDirectory() as folder:
        # Made in float16 where it is fast: random numbers of 3 billion weights take a minute on the CPU.
        torch.set_default_dtype(torch.float16)
        with torch.device(device):
            model = make_model(config)
        # Each layer adds to the sum at random: so many times the layers add the root of it.
        separate(model, SHARE * (built / layers) ** 0.5, right)
        model.to("cpu").save_pretrained(folder)
        copy_tokenizer(Path(tokenizer), Path(folder))
        model_folder = Path(out if built == layers else f"{folder}/built")
        run_builder(builder, Path(folder), model_folder, precision, ["enable_webgpu_graph=true", *more])
        if built != layers:
            repeat_layers(model_folder, Path(out), layers)
    limit_context(Path(out) / "genai_config.json", context)
    hash_weights(Path(out))
    return 0


def separate(model: Any, share: float, right: float) -> None:
    """Make greedy picks unambiguous: the logits of purely random weights nearly tie, and any rounding decides.

    The output layer's rows are those of the embedding in another order, so that the next id is the last one's successor
    (successors.py, also for `right`); what the layers add is scaled to `share` times the embedding, which leaves a wide
    margin to rounding and none to an operation that is wrong.
    """
    embedding = model.get_input_embeddings().weight
    seen: list[torch.Tensor] = []
    hook = model.model.norm.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    with torch.no_grad():
        ids = torch.randint(embedding.shape[0], (1, 64), device=embedding.device)
        model(ids)
        hook.remove()
        embedded = embedding[ids].float()
        added = (seen[0].float() - embedded).square().mean().sqrt() / embedded.square().mean().sqrt()
        for layer in model.model.layers:
            if hasattr(layer, "post_feedforward_layernorm"):
                # The output of each half of a layer is normalised, by a norm whose weights have one added.
                layer.post_attention_layernorm.weight.copy_(share / added - 1)
                layer.post_feedforward_layernorm.weight.copy_(share / added - 1)
            else:
                layer.self_attn.o_proj.weight.mul_(share / float(added))
                layer.mlp.down_proj.weight.mul_(share / float(added))
        order = torch.from_numpy(successors(embedding.shape[0], right)).to(embedding.device)
        model.get_output_embeddings().weight[order] = embedding


def copy_tokenizer(source: Path, checkpoint: Path) -> None:
    for file in source.glob("tokenizer*"):
        shutil.copy(file, checkpoint)


def run_builder(builder: str, checkpoint: Path, out: Path, precision: str, options: list[str]) -> None:
    """Let the builder write a model folder for the WebGPU provider from a checkpoint."""
    command = [sys.executable, "-c", BUILDER, builder, "-i", str(checkpoint), "-o", str(out), "-p", precision]
    command += ["-e", "webgpu", "-c", str(checkpoint / "cache"), "--extra_options", *options]
    subprocess.run(command, check=True)


def hash_weights(out: Path) -> None:
    build = Path(__file__).parents[2] / "build.py"
    if build.is_file():  # a pack for another machine has none: weights are hashed when they are first loaded
        subprocess.run([sys.executable, build, "models", "shards", str(out)], check=True)


def limit_context(file: Path, context: int) -> None:
    """The builder takes the context from the configuration; say it if it did not."""
    config = json.loads(file.read_text())
    if config["model"]["context_length"] != context:
        raise SystemExit(f"{file} says context_length {config['model']['context_length']}, {context} was asked for")


if __name__ == "__main__":
    sys.exit(main())
