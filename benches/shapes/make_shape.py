"""Write a decoder of a well-known shape with random weights, int4 with float16 activations, for timing on a GPU host.

usage: make_shape.py SHAPE OUT TOKENIZER_FOLDER BUILDER.py      needs torch, transformers, onnx, onnx_ir; no network

SHAPE is smollm2-135m, qwen2.5-0.5b, llama-3.2-1b or llama-3.2-3b. BUILDER.py is onnxruntime_genai/models/builder.py of
the onnxruntime-genai wheel; TOKENIZER_FOLDER's tokenizer is put beside the model, whose ids it does not match: time it
with token ids. The context is cut to 4096 tokens.
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
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

LLAMA = (LlamaConfig, LlamaForCausalLM)
QWEN2 = (Qwen2Config, Qwen2ForCausalLM)
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
}
CONTEXT = 4096
SPREAD = 0.06
"""Standard deviation of the weights: with less, greedy picks repeat one id."""


def main() -> int:
    shape, out, tokenizer, builder = sys.argv[1:5]
    torch.manual_seed(0)
    (make_config, make_model), sizes = SHAPES[shape]
    config = make_config(
        **sizes,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=0,
        initializer_range=SPREAD,
    )
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with tempfile.TemporaryDirectory() as folder:
        # Made in float16 where it is fast: random numbers of 3 billion weights take a minute on the CPU.
        torch.set_default_dtype(torch.float16)
        with torch.device(device):
            model = make_model(config)
        model.to("cpu").save_pretrained(folder)
        for file in Path(tokenizer).glob("tokenizer*"):
            shutil.copy(file, folder)
        options = ["enable_webgpu_graph=true", "accuracy_level=1"]
        command = [sys.executable, builder, "-i", folder, "-o", out, "-p", "int4", "-e", "webgpu"]
        subprocess.run([*command, "-c", f"{folder}/cache", "--extra_options", *options], check=True)
    limit_context(Path(out) / "genai_config.json")
    return 0


def limit_context(file: Path) -> None:
    """The builder takes the context from the configuration; say it if it did not."""
    config = json.loads(file.read_text())
    if config["model"]["context_length"] != CONTEXT:
        raise SystemExit(f"{file} says context_length {config['model']['context_length']}, {CONTEXT} was asked for")


if __name__ == "__main__":
    sys.exit(main())
