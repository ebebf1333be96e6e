"""Write a Gemma 3 folder with vision in float16, with random weights, for timing and comparing on a GPU host.

usage: make_seeing.py SHAPE OUT TOKENIZER_FOLDER BUILDER.py     needs torch, transformers, onnx_ir; no network

SHAPE is gemma3-4b or nano. The text decoder is int4 with float16 activations, as onnxruntime-genai's builder writes it
with exclude_embeds; the vision graph (SigLIP and the projector) is torch's export, the embedding graph that of the
guide for Gemma 3. TOKENIZER_FOLDER has a tokenizer with Gemma 3's tokens of pictures, which is put beside it. All
layers are sliding ones, which is the same up to the window. BUILDER.py is as for make_shape.py.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import onnx
import torch
from make_shape import BUILDER
from repeated_layers import repeat_layers
from transformers import (
    Gemma3Config,
    Gemma3ForCausalLM,
    Gemma3ForConditionalGeneration,
    Gemma3TextConfig,
    SiglipVisionConfig,
)

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.fixtures.gemma3_vision import embedding_graph, export_vision, write_configs

PLACEHOLDER = "<image_soft_token>"
BUILT_LAYERS = 3
SHAPES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "gemma3-4b": (
        {
            "vocab_size": 262208,
            "hidden_size": 2560,
            "intermediate_size": 10240,
            "num_hidden_layers": 34,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "head_dim": 256,
            "query_pre_attn_scalar": 256,
            "sliding_window": 1024,
        },
        {
            "hidden_size": 1152,
            "intermediate_size": 4304,
            "num_hidden_layers": 27,
            "num_attention_heads": 16,
            "image_size": 896,
            "patch_size": 14,
        },
    ),
    "nano": (
        {
            "vocab_size": 416,
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 32,
            "query_pre_attn_scalar": 32,
            "sliding_window": 512,
        },
        {
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "image_size": 64,
            "patch_size": 4,
        },
    ),
}
"""The sizes of text and vision, by shape."""


def main() -> int:
    shape, target, tokenizer, builder = sys.argv[1:5]
    sizes, vision = SHAPES[shape]
    tokens = {
        each["content"]: each["id"]
        for each in json.loads(Path(tokenizer, "tokenizer.json").read_text())["added_tokens"]
    }
    out, layers, device = Path(target), sizes["num_hidden_layers"], "cuda" if torch.cuda.is_available() else "cpu"
    out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    text = Gemma3TextConfig(
        **{**sizes, "num_hidden_layers": BUILT_LAYERS},
        layer_types=["sliding_attention"] * BUILT_LAYERS,
        max_position_embeddings=4096,
        tie_word_embeddings=False,
        bos_token_id=2,
        eos_token_id=1,
        pad_token_id=0,
    )
    whole = Gemma3Config(
        text_config=text,
        vision_config=SiglipVisionConfig(**vision, vision_use_head=False),
        mm_tokens_per_image=256,
        image_token_index=tokens[PLACEHOLDER],
        boi_token_index=tokens["<start_of_image>"],
        eoi_token_index=tokens["<end_of_image>"],
    )
    torch.set_default_dtype(torch.float16)
    with torch.device(device):
        seeing = Gemma3ForConditionalGeneration(whole).eval()
    with torch.no_grad():
        for name, weights in seeing.named_parameters():
            if "vision" in name or "multi_modal" in name:
                weights.normal_(0, 0.3 if shape == "nano" else 0.02)
            elif weights.dim() == 2:
                weights.normal_(0, 1.2 / weights.shape[1] ** 0.5 if "embed" not in name else 0.06)
    with tempfile.TemporaryDirectory() as folder:
        alone = Gemma3ForCausalLM(text)
        alone.model, alone.lm_head = seeing.model.language_model, seeing.lm_head
        alone.to("cpu").save_pretrained(folder)
        for file in Path(tokenizer).glob("tokenizer*"):
            shutil.copy(file, folder)
        built = out if layers == BUILT_LAYERS else Path(folder) / "built"
        command = [sys.executable, "-c", BUILDER, builder, "-i", folder, "-o", str(built), "-p", "int4", "-e", "webgpu"]
        options = ["enable_webgpu_graph=true", "exclude_embeds=true"]
        subprocess.run([*command, "-c", f"{folder}/cache", "--extra_options", *options], check=True)
        if layers != BUILT_LAYERS:
            repeat_layers(built, out, layers)
    seeing.to(device)
    with tempfile.TemporaryDirectory() as folder:
        export_vision(seeing, vision["image_size"], Path(folder) / "vision.onnx")
        save(onnx.load(f"{folder}/vision.onnx"), out / "vision.onnx")
    table = seeing.model.language_model.embed_tokens.weight.detach().cpu().numpy()
    save(embedding_graph(table, tokens[PLACEHOLDER], table.shape[1] ** 0.5), out / "embedding.onnx")
    write_configs(out, vision["image_size"])
    return 0


def save(model: onnx.ModelProto, path: Path) -> None:
    onnx.save(model, path, save_as_external_data=True, location=f"{path.name}.data")


if __name__ == "__main__":
    sys.exit(main())
