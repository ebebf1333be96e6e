"""Scripts in the style of onnxruntime-genai's examples, which run unchanged with it and in a page.

`expected/` has what they print with the native package on CPython; `make_expected.py` writes it.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["EXPECTED", "FOLDER", "LINES", "MODELS", "SCRIPTS"]

FOLDER = Path(__file__).parent / "scripts"
EXPECTED = Path(__file__).parent / "expected"
SCRIPTS = tuple(sorted(path.stem for path in FOLDER.glob("*.py") if path.stem != "common"))
TEXTS = ("chat", "model_generate", "streaming")
"""Scripts that show texts take the bundled model: what nano models make up is no UTF-8, which every decoder shows
otherwise."""
REPEATING = ("speculation",)
"""So do those whose texts have to repeat themselves."""
MODELS = {name: "bundled" if name in TEXTS + REPEATING else "nano-llama" for name in SCRIPTS}
MODELS["adapters"] = "nano-lora"
MODELS["whisper"] = "nano-whisper"
MODELS["vision"] = "nano-gemma3-vl"
LINES = ("hello\n", "\n", "how are you\n", "quit\n")
"""The standard input of each script."""
