"""Grammars on CPython: xgrammar's WebAssembly build, the one that pages use, in a Node process."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import weakref
from base64 import b64decode
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..errors import GuidanceError
from ..guidance.matcher import refusal

__all__ = ["LocalGrammars"]

SCRIPT = Path(__file__).with_name("grammars.mjs")
REMEDY = (
    "on CPython guidance needs Node.js 18 or newer and, in this directory or one above, "
    "`npm install @mlc-ai/web-xgrammar@0.1.27`"
)


class _Node:
    """A Node process that answers calls; it ends with the last of who uses it."""

    def __init__(self) -> None:
        node = shutil.which("node")
        if node is None:
            raise GuidanceError(f"there is no `node` on the path; {REMEDY}")
        command = [node, "--no-warnings", str(SCRIPT)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        weakref.finalize(self, _end, self._process)

    def call(self, name: str, *given: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps([name, *given]).encode() + b"\n")
            self._process.stdin.flush()
            answer = json.loads(self._process.stdout.readline())
        except (OSError, ValueError) as error:
            raise GuidanceError(f"the Node process that matches grammars has ended; {REMEDY}") from error
        if "error" not in answer:
            return answer["result"]
        if answer.get("code") == "MODULE_NOT_FOUND":
            raise GuidanceError(f"@mlc-ai/web-xgrammar is not installed; {REMEDY}")
        raise refusal(answer["error"])


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()
    process.wait()


_running: weakref.ref[_Node] | None = None


def _node() -> _Node:
    """The process, started when it is first needed."""
    global _running
    found = _running() if _running is not None else None
    if found is None:
        found = _Node()
        _running = weakref.ref(found)
    return found


class LocalGrammars:
    """See capstan.guidance.matcher.Grammars."""

    def __init__(self, tokens: Sequence[str], stop: Sequence[int]) -> None:
        self._node = _node()
        self._vocabulary: int = self._node.call("open", list(tokens), list(stop))

    async def compile(self, text: str) -> LocalMatcher:
        return LocalMatcher(self._node, self._node.call("compile", self._vocabulary, text))


class LocalMatcher:
    """See capstan.guidance.matcher.Matcher."""

    def __init__(self, node: _Node, handle: int) -> None:
        self._node, self._handle = node, handle

    def accept(self, token: int) -> bool:
        return bool(self._node.call("accept", self._handle, token))

    def roll_back(self, tokens: int) -> None:
        self._node.call("rollBack", self._handle, tokens)

    async def mask(self) -> bytes:
        return b64decode(self._node.call("mask", self._handle))

    def ahead(self) -> str:
        return str(self._node.call("ahead", self._handle))

    def close(self) -> None:
        self._node.call("close", self._handle)
