"""Programs for the CPU in Node, and by their definition."""

from __future__ import annotations

import json
import subprocess
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from buildtools.kernels import compile_kernels
from capstan.device.reference.cpu_operations import CpuRun, run
from capstan.device.wasm.cpu_graph import WasmGraph, prepare
from capstan.device.wasm.cpu_program import ROWS, CpuProgram
from capstan.device.wasm.program_planner import planned
from capstan.model_files.genai_config_file import parse_genai_config
from capstan.model_files.gguf.gguf_config import gguf_decoder
from tests.gguf_models import FIXTURES, Made
from tests.node import started

__all__ = ["ROOM", "Definition", "asked", "gguf_graph", "kernels", "logits", "opened", "tried"]

SERVER = Path(__file__).with_name("cpu_programs.mjs")
ROOM = 512
"""Positions of the definition's caches."""


def kernels(kind: str) -> subprocess.Popen[str]:
    """Node with the kernels, `relaxed` or `plain`."""
    compile_kernels()
    return started(SERVER, arguments=[kind])


def asked(node: subprocess.Popen[str], **told: Any) -> str:
    """The answer to one question, which cpu_programs.mjs lists."""
    assert node.stdin
    assert node.stdout
    node.stdin.write(json.dumps(told) + "\n")
    node.stdin.flush()
    return node.stdout.readline()


def gguf_graph(made: Made, context: int) -> WasmGraph:
    """The graph of a GGUF file with that context."""
    config = parse_genai_config((FIXTURES / "nano-llama" / "genai_config.json").read_bytes(), "nano-llama")
    decoder, rows = gguf_decoder(made.file, "model.gguf"), len(made.tensors["token_embd.weight"])
    return prepare(made.graph(), replace(config, decoder=decoder, vocab_size=rows, context_length=context), 0)


def tried(
    node: subprocess.Popen[str],
    made: CpuProgram,
    found: WasmGraph,
    files: Mapping[str, bytes],
    threads: int,
    most: int = 1 << 16,
) -> dict[str, Any]:
    """The results of a program over data files in Node, where shared memory may have `most` pages."""
    caches = [(pair.past, pair.present, "float32", pair.dims(1, ROOM)) for pair in found.about.cache]
    told = {name: b64encode(data).decode() for name, data in files.items()}
    spec, program = json.dumps({"caches": caches}), json.dumps(made.as_json())
    answer: dict[str, Any] = json.loads(asked(node, program=program, threads=threads, files=told, spec=spec, most=most))
    return answer


def opened(
    node: subprocess.Popen[str], found: WasmGraph, context: int, files: Mapping[str, bytes], threads: int = 1
) -> CpuProgram:
    """The program of a graph, open in Node over its data files."""
    made = planned(found, threads, context)
    assert tried(node, made, found, files, threads)["threads"] == threads
    return made


def logits(node: subprocess.Popen[str], ids: Sequence[int], past: int, kept: int) -> NDArray[np.float32]:
    """The logits of the last `kept` of some tokens, by the kernels."""
    answer = b64decode(asked(node, ids=list(ids), past=past, kept=kept))
    return np.frombuffer(answer, np.float32).reshape(kept, -1)


class Definition:
    """The definition of the program that is open in Node, over the weights as they were packed there."""

    def __init__(self, node: subprocess.Popen[str], made: CpuProgram) -> None:
        whole = np.frombuffer(b64decode(asked(node, whole=True)), np.uint8)
        self.memory = np.concatenate([whole[: made.end], np.zeros(made.position * ROOM + 64, np.uint8)])
        self.made, self.past = made, 0

    def logits(self, ids: Sequence[int]) -> NDArray[np.float32]:
        """Run further tokens; the last one's logits."""
        for at in range(0, len(ids), ROWS):
            part = ids[at : at + ROWS]
            given = CpuRun(self.memory, len(part), self.past, 1, self.made.end, ROOM)
            given.integers(self.made.ids, len(part))[:] = part
            run(given, self.made.words)
            self.past += len(part)
        return given.floats(self.made.logits, self.made.row)[: self.made.vocab].copy()

    def greedy(self, prompt: Sequence[int], count: int) -> list[int]:
        """The ids after a prompt."""
        ids = [int(self.logits(prompt).argmax())]
        while len(ids) < count:
            ids.append(int(self.logits(ids[-1:]).argmax()))
        return ids
