"""Write a decoder of a well-known shape with random weights, int4 with float16 activations, for timing on a GPU host.

usage: make_shape.py SHAPE OUT TOKENIZER_FOLDER BUILDER.py      needs torch, transformers, onnx, onnx_ir

BUILDER.py is onnxruntime_genai/models/builder.py of the onnxruntime-genai wheel; TOKENIZER_FOLDER's tokenizer is put
beside the model, whose ids it does not match: time it with token ids.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

SHAPES = {
    "smollm2-135m": {
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "vocab_size": 49152,
    },
    "llama-3.2-1b": {
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
    },
}


def main() -> int:
    shape, out, tokenizer, builder = sys.argv[1:5]
    torch.manual_seed(0)
    config = LlamaConfig(
        **SHAPES[shape],
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=0,
        initializer_range=0.06,
    )
    with tempfile.TemporaryDirectory() as folder:
        model = LlamaForCausalLM(config).to(torch.float16)
        model.save_pretrained(folder)
        for file in Path(tokenizer).glob("tokenizer*"):
            shutil.copy(file, folder)
        options = ["enable_webgpu_graph=true", "accuracy_level=1"]
        command = [
            sys.executable,
            builder,
            "-i",
            folder,
            "-o",
            out,
            "-p",
            "int4",
            "-e",
            "webgpu",
            "-c",
            f"{folder}/cache",
        ]
        subprocess.run([*command, "--extra_options", *options], check=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
