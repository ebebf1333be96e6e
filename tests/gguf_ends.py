"""Vocabularies of GGUF files, and the tokens of each that end an output by llama.cpp.

The answers are in fixtures/gguf_ends.json. These commands wrote them:

    npm install --ignore-scripts node-llama-cpp@3.22.1 @node-llama-cpp/linux-x64@3.22.1  # in FOLDER
    python3 -m tests.gguf_ends FOLDER
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.gguf_files import gguf_file
from tests.gguf_tokenizers import SHAPE

__all__ = ["CASES", "answers", "metadata", "tokens_of"]

ANSWERS = Path(__file__).with_name("fixtures") / "gguf_ends.json"
NAMES = (  # noqa: SIM905
    "<|eot_id|> <|im_end|> <|end|> <|return|> <|call|> <|flush|> <|calls|> <end_of_turn> <|endoftext|> </s> "
    "<|eom_id|> <EOT> _<EOT> [EOT] [EOS] <|end_of_text|> <end_of_utterance> <eos> <turn|> <|tool_response> [e~[ "
    "<\uff5cend\u2581of\u2581sentence\uff5c> <|fim_pad|> <fim-pad> <fim_pad> <PAD> [PAD] <|fim_repo|> "
    "<|repo_name|> <fim-repo> <REPO> <reponame> <|file_sep|> <|im_start|> <|fim_prefix|> <|fim_suffix|> "
    "<|fim_middle|> <pad> <s> <bos> <|channel|> <|python_tag|> [INST] <|tool_call|> <|assistant|> <|user|> "
    "<file_sep> <|diff_marker|> <\uff5cfim\u2581hole\uff5c> <|turn> [TOOL_CALLS] "
).split()
LAST: dict[str, Any] = {"tokenizer.ggml.eos_token_id": 0}
CASES: list[tuple[list[str], dict[str, Any]]] = [
    *(([name], LAST) for name in NAMES),
    (["<|return|>", "<|call|>", "<|end|>"], LAST),
    (["<|calls|>", "<|flush|>", "<|end|>"], LAST),
    (["<|call|>", "<|end|>"], LAST),
    (["<|return|>", "<|end|>"], LAST),
    (["<|call|>", "<|flush|>", "<|end|>", "<|im_end|>"], LAST),
    (["<|tool_response>", "</s>", "<eos>"], LAST),
    (["<|return|>", "<|call|>", "<|end|>"], {"tokenizer.ggml.eos_token_id": 6}),
    (["one", "two", "three", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>"], LAST),
    *(
        (["one", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>"], {**LAST, f"tokenizer.ggml.{key}_token_id": 4})
        for key in ("fim_pad", "fim_rep", "fim_sep", "fim_pre", "eot", "eom", "padding")
    ),
]
"""The tokens behind those of every vocabulary, and the metadata."""


def tokens_of(place: int) -> list[str]:
    return ["zero", "a", "b", "ab", *CASES[place][0]]


def metadata(place: int) -> dict[str, Any]:
    """The tokenizer's metadata of a case."""
    tokens = tokens_of(place)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [1] * 4 + [3] * (len(tokens) - 4),
        "tokenizer.ggml.merges": ["a b"],
        **CASES[place][1],
    }


def answers() -> list[list[int]]:
    """The ids that end an output, for each case."""
    found: list[list[int]] = json.loads(ANSWERS.read_text())
    return found


ASK = """
import {getLlama} from "node-llama-cpp";
const llama = await getLlama({gpu: false, build: "never", logLevel: "error"});
const found = [];
for (const [file, count] of JSON.parse(process.argv[2])) {
  const model = await llama.loadModel({modelPath: file, vocabOnly: true});
  found.push([...Array(count).keys()].filter((id) => model._model.isEogToken(id)));
}
console.log(JSON.stringify(found));
process.exit(0);
"""


def main(folder: Path) -> None:
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        (script := Path(scratch) / "ask.mjs").write_text(ASK)
        asked = []
        for place in range(len(CASES)):
            (file := Path(scratch) / f"{place}.gguf").write_bytes(gguf_file({**SHAPE, **metadata(place)}))
            asked.append((str(file), len(tokens_of(place))))
        told = subprocess.run(["node", str(script), json.dumps(asked)], check=True, capture_output=True, text=True)
    ANSWERS.write_text(told.stdout.splitlines()[-1] + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
