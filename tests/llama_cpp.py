"""llama.cpp for tests: npm's package node-llama-cpp, installed in a folder, and its scores of a GGUF file."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["LlamaScores", "install_llama_cpp"]

PACKAGES = ("node-llama-cpp@3.22.1", "@node-llama-cpp/linux-x64@3.22.1")
SCRIPT = Path(__file__).with_name("llama_scores.mjs")


def install_llama_cpp(folder: Path) -> None:
    """Install the package in a folder, without what it builds from source."""
    (folder / "package.json").write_text('{"private": true}')
    npm = ["npm", "install", "--ignore-scripts", "--omit=optional", "--no-audit", "--no-fund", *PACKAGES]
    subprocess.run(npm, cwd=folder, check=True, timeout=300)


@dataclass(frozen=True)
class LlamaScores:
    """A GGUF file, for sequences of `length` tokens, by the package in `folder`."""

    file: Path
    folder: Path
    length: int

    def of(self, sequences: list[tuple[list[int], list[int]]]) -> list[list[tuple[float, float]]]:
        """For each token behind each context its log probability, and by how much its logit is above all others."""
        return [[(value, margin) for value, margin in each] for each in self._ask(sequences=sequences)["scores"]]

    def greedy(self, prompts: list[tuple[list[int], int]]) -> list[list[int]]:
        """At most so many greedy ids behind each prompt, an end-of-sequence id being the last."""
        ids: list[list[int]] = self._ask(prompts=prompts)["ids"]
        return ids

    def _ask(self, **asked: Any) -> dict[str, Any]:
        given = {"file": str(self.file), "length": self.length, "sequences": [], "prompts": [], **asked}
        done = subprocess.run(
            ["node", SCRIPT], input=json.dumps(given), cwd=self.folder, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stderr[-2000:]
        told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return told
