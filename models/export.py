"""Turn trained weights into the model folder: transformers' layout first, then onnxruntime-genai's builder.

usage: export.py WEIGHTS.pt TOKENIZER_DIR --out models/bundled [--precision fp32|int8|int4] [--random] [--check]

Activations are float32 whatever the precision of the weights, so that adapters without shader-f16 can run it.
"""

import argparse
import dataclasses
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from train import Decoder, Shape
from transformers import LlamaConfig, LlamaForCausalLM

ROOT = Path(__file__).resolve().parents[1]


def to_transformers(weights: dict[str, torch.Tensor], tokenizer: Path, out: Path, check: bool) -> None:
    s = Shape()
    config = LlamaConfig(
        vocab_size=s.vocabulary,
        hidden_size=s.width,
        intermediate_size=s.hidden,
        num_hidden_layers=s.layers,
        num_attention_heads=s.heads,
        num_key_value_heads=s.kv_heads,
        head_dim=s.head_size,
        max_position_embeddings=s.context,
        rms_norm_eps=s.norm_epsilon,
        rope_theta=s.rope_theta,
        tie_word_embeddings=False,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=0,
    )
    model = LlamaForCausalLM(config)
    model.load_state_dict(weights)
    model.save_pretrained(out)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tokenizer / name, out / name)
    if check:
        ours = Decoder(s)
        ours.load_state_dict(weights)
        ids = torch.randint(1, s.vocabulary, (2, 65))
        with torch.no_grad():
            theirs = torch.nn.functional.cross_entropy(
                model(ids[:, :-1]).logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none"
            )
            difference = (ours(ids[:, :-1], ids[:, 1:]) - theirs).abs().max()
        print(f"largest difference in loss from transformers: {difference:.2e} nats")


def build(source: Path, out: Path, precision: str) -> None:
    command = [
        sys.executable,
        "-m",
        "onnxruntime_genai.models.builder",
        "-i",
        str(source),
        "-o",
        str(out),
        "-p",
        precision,
        "-e",
        "webgpu",
    ]
    options = ["enable_webgpu_graph=true", "use_webgpu_fp32=true", "shared_embeddings=false"]
    with tempfile.TemporaryDirectory() as cache:
        done = subprocess.run(
            [*command, "-c", cache, "--extra_options", *options], capture_output=True, text=True, check=False
        )
    if done.returncode:
        raise SystemExit(done.stderr[-3000:])


def tidy(out: Path, tokenizer: Path) -> None:
    """Our own tokenizer files, byte for byte, and nothing that a reader of the folder does not need."""
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tokenizer / name, out / name)
    path = out / "genai_config.json"
    config = json.loads(path.read_text())
    config["search"].update(top_k=40, top_p=0.95, temperature=0.8, do_sample=False, max_length=Shape().context)
    path.write_text(json.dumps(config, indent=2) + "\n")
    # Pages ask for a chat template: an empty file is none, and no missing file in their consoles.
    (out / "chat_template.jinja").touch()
    keep = {"genai_config.json", "model.onnx", "model.onnx.data", "tokenizer.json", "tokenizer_config.json"}
    keep |= {"chat_template.jinja"}
    for file in out.iterdir():
        if file.name not in keep:
            file.unlink()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("weights", type=Path)
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--precision", default="fp32", choices=["fp32", "int8", "int4"])
    parser.add_argument(
        "--random", action="store_true", help="random weights in the same shape, to work with before training"
    )
    parser.add_argument("--check", action="store_true", help="compare with transformers' model of the same weights")
    args = parser.parse_args()
    torch.manual_seed(0)
    if args.random:
        weights = {
            k: torch.randn_like(v) * 0.05 if v.dim() == 2 else v for k, v in Decoder(Shape()).state_dict().items()
        }
    else:
        weights = torch.load(args.weights)["weights"]
    with tempfile.TemporaryDirectory() as folder:
        to_transformers(weights, args.tokenizer, Path(folder), args.check)
        build(Path(folder), args.out, args.precision)
    tidy(args.out, args.tokenizer)
    subprocess.run([sys.executable, ROOT / "build.py", "models", "shards", args.out], check=True)
    print({p.name: p.stat().st_size for p in sorted(args.out.iterdir())}, dataclasses.asdict(Shape()))


if __name__ == "__main__":
    main()
