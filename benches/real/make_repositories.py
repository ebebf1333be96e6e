"""Lay a real model out as repositories on a hub are: what the model builder and what Optimum wrote of it.

usage: .venv/bin/python benches/real/make_repositories.py OUT --checkpoint HF_FOLDER [--genai DTYPE=FOLDER ...]

    OUT/builder    onnx/model_DTYPE.onnx for each folder of onnxruntime-genai's model builder, its weights in two files
    OUT/optimum    onnx/model.onnx as Optimum exports the checkpoint, the weights inside; made if OPTIMUM_PYTHON names a
                   Python that has optimum 1.24 with transformers 4.48

Existing files are kept. DTYPE is Transformers.js' name: fp32, q4 or q4f16. same_ids.py, beside this file, then compares
the picks with those of the builder's folders.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "py_src")]

from capstan.loading.repository import DTYPES  # noqa: E402  # on the path just above
from tests.repository_layout import lay_out  # noqa: E402

SMALL = ("config.json", "generation_config.json", "chat_template.jinja")
TOKENIZER = ("tokenizer.json", "tokenizer_config.json")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", metavar="OUT", type=Path)
    parser.add_argument("--checkpoint", type=Path, required=True, help="config.json, tokenizer and weights")
    parser.add_argument("--genai", metavar="DTYPE=FOLDER", action="append", default=[])
    args = parser.parse_args()
    folders = dict(given.split("=", 1) for given in args.genai)
    if unknown := sorted(folders.keys() - DTYPES.keys()):
        parser.error(f"{', '.join(unknown)}: give one of {', '.join(DTYPES)}")
    for dtype, folder in folders.items():
        if not (args.out / "builder" / "onnx" / f"model{DTYPES[dtype]}.onnx").exists():
            lay_out(Path(folder), args.out / "builder", suffix=DTYPES[dtype])
            copy_small(Path(folder), args.checkpoint, args.out / "builder")
    python = os.environ.get("OPTIMUM_PYTHON")
    if python and not (args.out / "optimum").exists():
        with tempfile.TemporaryDirectory(dir=args.out) as work:
            export = ROOT / "tests/fixtures/optimum_export.py"
            subprocess.run([python, export, args.checkpoint, Path(work) / "exported"], check=True)
            made = Path(work) / "optimum"
            (made / "onnx").mkdir(parents=True)
            (Path(work) / "exported" / "model.onnx").rename(made / "onnx" / "model.onnx")
            for name in TOKENIZER:
                shutil.copyfile(args.checkpoint / name, made / name)
            copy_small(Path(work) / "exported", args.checkpoint, made)
            made.rename(args.out / "optimum")
    return 0


def copy_small(exported: Path, checkpoint: Path, target: Path) -> None:
    """config.json as the checkpoint has it; the others, where the export has them."""
    for name in SMALL:
        for source in (checkpoint / name, exported / name):
            if source.exists():
                shutil.copyfile(source, target / name)
                break


if __name__ == "__main__":
    sys.exit(main())
