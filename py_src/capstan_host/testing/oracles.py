"""The oracles of greedy ids: onnxruntime-genai, llama.cpp, and goldens in a file."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from capstan.errors import CapstanError, OptionError
from capstan.model_files.file_names import is_gguf

from .answers import Answer

__all__ = ["Expected", "Golden", "LlamaCpp", "NativeGenai", "Oracle", "OracleError", "Subject", "oracle_named"]

LLAMA_SCRIPT = Path(__file__).with_name("llama_cpp.mjs")
LLAMA_SECONDS = 600
FORMAT = 1


class OracleError(CapstanError):
    """An oracle is not installed, cannot run the model, or is a golden of another model."""


class Subject(Protocol):
    """The model whose ids are compared."""

    folder: Path | None
    """Its files on this machine; None if they are elsewhere."""
    version: str

    def answer(self, prompt: Sequence[int], tokens: int, *, log_probabilities: int | None = None) -> Answer:
        """Greedy ids after a prompt."""


@dataclass(frozen=True)
class Expected:
    """An oracle's answer."""

    name: str
    """The oracle's name and version."""
    ids: list[int]
    margins: list[float | None] | None = None
    """By how much each pick was more probable than the next best, where that was stored."""


class Oracle(Protocol):
    """Gives the greedy ids after a prompt."""

    def expected(self, subject: Subject, prompt: Sequence[int], tokens: int) -> Expected:
        """At most `tokens` ids; an end-of-sequence id can only be the last one. Raises OracleError."""

    def margin(self, subject: Subject, prompt: Sequence[int], picked: int, other: int) -> float | None:
        """By how much the oracle finds `picked` more probable than `other` after a prompt, in natural logarithms; None
        if it is unknown.
        """


class NativeGenai:
    """onnxruntime-genai on this machine's CPU, for a folder with genai_config.json: the subject's, or `folder`."""

    def __init__(self, folder: str | Path | None = None) -> None:
        self.folder = None if folder is None else Path(folder)

    def expected(self, subject: Subject, prompt: Sequence[int], tokens: int) -> Expected:
        folder, genai = self._folder(subject), _genai()
        trace = genai.run(folder, [("append", list(prompt)), ("generate", tokens)], {})
        return Expected(f"onnxruntime-genai {genai.og.__version__}", trace.picked)

    def margin(self, subject: Subject, prompt: Sequence[int], picked: int, other: int) -> float | None:
        # The softmax shifts all logits alike.
        logits = _genai().logits(self._folder(subject), prompt)
        return float(logits[picked] - logits[other])

    def _folder(self, subject: Subject) -> Path:
        folder = _files(self.folder or subject.folder, "oracle='genai'")
        if not (folder / "genai_config.json").is_file():
            raise OracleError(
                f"{folder} has no genai_config.json, which onnxruntime-genai needs: compare with a Golden, or with "
                "oracle='llama.cpp' for a GGUF file"
            )
        return folder


class LlamaCpp:
    """llama.cpp on this machine's CPU by Node's package node-llama-cpp, for a GGUF file: the subject's, or `file`."""

    def __init__(self, file: str | Path | None = None) -> None:
        self.file = None if file is None else Path(file)

    def expected(self, subject: Subject, prompt: Sequence[int], tokens: int) -> Expected:
        told = self._ask(subject, prompt, tokens)
        return Expected(f"llama.cpp {told['release']}", told["ids"])

    def margin(self, subject: Subject, prompt: Sequence[int], picked: int, other: int) -> float | None:
        """Returns None: node-llama-cpp gives the probabilities of tokens after its sampler, which is greedy here."""
        return None

    def _ask(self, subject: Subject, prompt: Sequence[int], tokens: int) -> dict[str, Any]:
        file = _files(self.file or subject.folder, "oracle='llama.cpp'")
        if not is_gguf(file.name):
            raise OracleError(f"{file} is no GGUF file, which llama.cpp needs: compare with oracle='genai' or a Golden")
        node = shutil.which("node")
        if node is None:
            raise OracleError("oracle='llama.cpp' needs Node 20 or newer on the path: install it, or use a Golden")
        asked = json.dumps(
            {"file": str(file.resolve()), "prompt": list(prompt), "tokens": tokens, "from": str(Path.cwd())}
        )
        done = subprocess.run([node, LLAMA_SCRIPT], input=asked, capture_output=True, text=True, timeout=LLAMA_SECONDS)
        if done.returncode:
            missing = "no package node-llama-cpp" in done.stderr
            remedy = "run `npm install --save-dev node-llama-cpp` in this folder" if missing else "see what it says"
            raise OracleError(f"llama.cpp gave no ids for {file} ({done.stderr.strip()[-300:]}): {remedy}")
        told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return told


class Golden:
    """Ids in a JSON file, which `pytest --capstan-update-goldens` writes: the page's own, or those of `source`.

    The file keeps digests of the model's files. A golden of other files is refused; if the subject's files are not on
    this machine (an app's page), ids alone are compared.
    """

    def __init__(self, file: str | Path, source: Oracle | None = None) -> None:
        self.file = Path(file)
        self.source = source
        self.update = False
        """Set by the plugin's option."""

    def expected(self, subject: Subject, prompt: Sequence[int], tokens: int) -> Expected:
        digests = None if subject.folder is None else digests_of(subject.folder)
        if self.update:
            self._write(subject, prompt, tokens, digests)
        content = self._read()
        stored = content.get("files")
        if digests is not None and stored is not None and stored != digests:
            changed = sorted(name for name in {*stored, *digests} if stored.get(name) != digests.get(name))
            raise OracleError(
                f"{self.file} is a golden of another model: {', '.join(changed)} of {subject.folder} changed; if that "
                "is meant, write it again with --capstan-update-goldens"
            )
        for case in content["cases"]:
            if case["prompt_ids"] == list(prompt) and case["tokens"] == tokens:
                return Expected(f"the golden {self.file.name} (by {content['source']})", case["ids"], case["margins"])
        raise OracleError(
            f"{self.file} has no answer of {tokens} tokens to this prompt of {len(prompt)}: add it with "
            "--capstan-update-goldens"
        )

    def margin(self, subject: Subject, prompt: Sequence[int], picked: int, other: int) -> float | None:
        """Returns None: the file has only the margin of each pick over the next best token."""
        return None

    def _read(self) -> dict[str, Any]:
        try:
            content: dict[str, Any] = json.loads(self.file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise OracleError(f"there is no golden {self.file}: write it with --capstan-update-goldens") from None
        except ValueError as error:
            raise OracleError(f"the golden {self.file} is no JSON ({error}): write it again") from error
        if content.get("format") != FORMAT:
            raise OracleError(
                f"the golden {self.file} has format {content.get('format')!r}, not {FORMAT}: delete it and write it "
                "again with --capstan-update-goldens"
            )
        return content

    def _write(self, subject: Subject, prompt: Sequence[int], tokens: int, digests: Mapping[str, str] | None) -> None:
        """Add an answer, or replace an old one; answers of another model or source are dropped."""
        if self.source is None:
            answer = subject.answer(prompt, tokens, log_probabilities=2)
            source, ids = f"capstan {subject.version}", answer.ids
            margins: list[float | None] | None = gaps(answer)
        else:
            told = self.source.expected(subject, prompt, tokens)
            source, ids, margins = told.name, told.ids, told.margins
        cases: list[dict[str, Any]] = []
        if self.file.is_file():
            old = self._read()
            if (old.get("files"), old["source"]) == (digests, source):
                cases = [
                    case for case in old["cases"] if (case["prompt_ids"], case["tokens"]) != (list(prompt), tokens)
                ]
        case = {"prompt_ids": list(prompt), "tokens": tokens, "ids": ids, "margins": margins}
        content = {"format": FORMAT, "source": source, "files": digests, "cases": [*cases, case]}
        self.file.parent.mkdir(parents=True, exist_ok=True)
        self.file.write_text(json.dumps(content) + "\n", encoding="utf-8")


def gaps(answer: Answer) -> list[float | None]:
    """By how much each pick was more probable than the next best token; None for an end-of-sequence id."""
    found: list[float | None] = []
    for each in answer.log_probabilities:
        first, second = sorted(each.values(), reverse=True)[:2]
        found.append(round(first - second, 6))
    return [*found, *[None] * (len(answer.ids) - len(found))]


def digests_of(folder: Path) -> dict[str, str]:
    """The SHA-256 of each file of a model's folder, or of a GGUF file."""
    files = [folder] if folder.is_file() else sorted(path for path in folder.iterdir() if path.is_file())
    found = {}
    for path in files:
        with path.open("rb") as file:
            found[path.name] = hashlib.file_digest(file, "sha256").hexdigest()
    return found


def oracle_named(given: str | Oracle) -> Oracle:
    """The oracle of `assert_ids`. Raises OptionError."""
    if not isinstance(given, str):
        return given
    if given == "genai":
        return NativeGenai()
    if given == "llama.cpp":
        return LlamaCpp()
    raise OptionError(f"oracle is {given!r}: give 'genai', 'llama.cpp' or a Golden")


def _files(folder: Path | None, asked: str) -> Path:
    if folder is None:
        raise OptionError(f"{asked} needs the model's files, and the page's are elsewhere: give the page `folder=`")
    return folder


def _genai() -> Any:
    missing = [name for name in ("onnxruntime_genai", "numpy") if importlib.util.find_spec(name) is None]
    if missing:
        raise OracleError(
            f"oracle='genai' needs {' and '.join(missing)}: run `pip install onnxruntime-genai`, which is no part of "
            "capstan-webgpu[testing], or compare with a Golden"
        )
    from . import genai_oracle  # noqa: PLC0415  (onnxruntime-genai is installed apart)

    return genai_oracle
