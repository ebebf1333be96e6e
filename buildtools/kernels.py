"""Compiles the CPU's kernels, in AssemblyScript, to the WebAssembly that the worker's bundle has inside."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from capstan_host.locks import locked

from . import CACHE, ROOT
from .environment import run_tool

__all__ = ["KERNELS", "compile_kernels"]

SOURCES = ROOT / "web/kernels"
FOLDER = ROOT / "web/src/worker/cpu"
RELAXED = ("--enable", "relaxed-simd")
THREADS = ("--enable", "threads", "--sharedMemory", "--maximumMemory", "65536")
KERNELS: Mapping[str, tuple[str, ...]] = {
    "plain": (),
    "plain_threads": THREADS,
    "relaxed": RELAXED,
    "relaxed_threads": (*RELAXED, *THREADS),
}
"""The options of the compiler for each set of kernels."""
FLAGS = (
    "-O3",
    "--enable",
    "simd",
    "--noAssert",
    "--runtime",
    "stub",
    "--importMemory",
    "--use",
    "abort=",
    "--disableWarning",
    "112",
)
"""Warning 112 is about vectors as arguments, which only kernels give to kernels."""


def compile_kernels() -> None:
    """Compile them unless they are of these sources already."""
    with locked("kernels"):
        compile_all()


def compile_all() -> None:
    inputs = [*sorted(SOURCES.glob("*.ts")), ROOT / "package-lock.json"]
    digest = hashlib.sha256(
        b"".join(path.read_bytes() for path in inputs) + repr((KERNELS, FLAGS)).encode()
    ).hexdigest()
    stamp = CACHE / "kernels.txt"
    made = {name: FOLDER / f"{name}.wasm" for name in KERNELS}
    if stamp.exists() and stamp.read_text() == digest and all(path.is_file() for path in made.values()):
        return
    compiler = ROOT / "node_modules/assemblyscript/bin/asc.js"
    for name, path in made.items():
        command = ["node", str(compiler), str(SOURCES / "program.ts"), *FLAGS, *KERNELS[name], "--outFile", str(path)]
        run_tool(command, "fix the error in web/kernels/")
    stamp.write_text(digest)
