"""The page's tokenizer (web/src/worker/tokenizer_json.ts), bundled for Node, as capstan.tokenizer drives it."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from capstan import errors
from capstan._js.page_tokens import PageBackend

__all__ = ["Make", "page_tokenizers"]

ROOT = Path(__file__).parents[1]

Make = Callable[[str, str], Any]
"""Makes a backend of tokenizer.json and tokenizer_config.json."""


class NodeTokenizer:
    """The page's JavaScript object, in a Node process."""

    def __init__(self, call: Callable[..., Any], index: int) -> None:
        self._call, self._index = call, index

    def encode(self, text: str, add_special: bool) -> Any:
        return self._call("encode", self._index, text, add_special)

    def decode(self, ids: str, skip_special: bool) -> Any:
        return self._call("decode", self._index, ids, skip_special)


@contextmanager
def page_tokenizers(folder: Path) -> Iterator[Make]:
    """makeTokenizer of web/src/worker/tokenizer_json.ts, which is built in a folder."""
    bundle = folder / "server.mjs"
    esbuild = ROOT / "node_modules" / ".bin" / "esbuild"
    entry = ROOT / "tests" / "unit" / "tokenizer_server.mjs"
    subprocess.run(
        [str(esbuild), str(entry), "--bundle", "--platform=node", "--format=esm", f"--outfile={bundle}"],
        check=True,
        capture_output=True,
        cwd=ROOT,
    )
    node = shutil.which("node")
    assert node
    with subprocess.Popen([node, str(bundle)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdin
        assert server.stdout
        stdin, stdout = server.stdin, server.stdout

        def call(*request: Any) -> Any:
            stdin.write(json.dumps(request) + "\n")
            stdin.flush()
            answer = json.loads(stdout.readline())
            if "error" in answer:
                raise getattr(errors, answer.get("code", ""), RuntimeError)(answer["error"])
            return answer["result"]

        try:
            yield lambda tokenizer, _: PageBackend(NodeTokenizer(call, call("make", tokenizer)))
        finally:
            # A call that was given up may still keep it.
            server.kill()
