"""Tries every class of attacks and tells what came of it: `build.py test --faults`."""

from __future__ import annotations

import argparse
import asyncio
import json
import warnings
from collections.abc import Sequence
from pathlib import Path
from random import Random

from capstan.weights.manifest import Manifest
from tests.repository_layout import CONFIG

from . import downloads
from .folders import folders
from .options import attack_options
from .page import attack_page
from .report import Failure, Outcome, attack
from .serving import attack_server
from .targets import Target, targets

__all__ = ["COUNT", "attack_here", "main", "model_files"]

COUNT = 200
"""Cases of a class, unless said otherwise; those in a page are a tenth."""
HERE = Path(__file__).parent
CORPUS = HERE / "corpus"
"""Cases that once failed, by class: CORPUS/CLASS/NAME."""
FOUND = HERE.parents[1] / "build/faults"
MODEL = HERE.parent / "fixtures/nano-llama"
SHARD = 16384


def model_files() -> dict[str, bytes]:
    """The files of a small model: those of the builder's folder, and those of a repository."""
    names = ("genai_config.json", "model.onnx", "model.onnx.data", "tokenizer.json", "tokenizer_config.json")
    files = {name: (MODEL / name).read_bytes() for name in names}
    data = files["model.onnx.data"]
    pieces = [data[at : at + SHARD] for at in range(0, len(data), SHARD)]
    options = {"do_sample": True, "temperature": 0.7, "top_k": 5, "repetition_penalty": 1.1, "bad_words_ids": [[5]]}
    return {
        **files,
        "shards": Manifest.of(pieces, SHARD).serialize().encode(),
        "config.json": json.dumps(CONFIG).encode(),
        "generation_config.json": json.dumps({**options, "eos_token_id": [1, 2]}).encode(),
    }


def corpus(kind: str) -> list[bytes]:
    """The cases of a class that once failed."""
    return [path.read_bytes() for path in sorted((CORPUS / kind).glob("*"))]


def attack_here(count: int, seed: int) -> list[Outcome]:
    """Every class that needs no page, in this interpreter."""
    kinds = [
        *targets(model_files()),
        Target("downloads", downloads.good, downloads.script, downloads.run),
        folders,
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = [asyncio.run(attack_target(target, count, seed)) for target in kinds]
    return [*found, attack_server(count, seed, corpus("requests")), attack_options(10 * count, seed)]


async def attack_target(target: Target, count: int, seed: int) -> Outcome:
    """So many mutations of a class, and its corpus; the good input works before and after them."""
    outcome, random = Outcome(target.kind), Random(f"{target.kind} {seed}")
    for case in [target.good, *corpus(target.kind), *(target.mutate(random, target.good) for _ in range(count))]:
        await attack(outcome, case, target.run)
    before = outcome.taken
    await attack(outcome, target.good, target.run)
    if outcome.taken != before + 1:
        outcome.fail(target.good, "the good input is not taken any more")
    return outcome


def main(arguments: Sequence[str]) -> int:
    """Print a table of classes and the failures; 1 if there are any."""
    parser = argparse.ArgumentParser(prog="build.py test --faults", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="what the cases are made of (default: 1)")
    parser.add_argument("--count", type=int, default=COUNT, metavar="N", help=f"cases of a class (default: {COUNT})")
    parser.add_argument("--no-page", action="store_true", help="only what needs no browser")
    args = parser.parse_args(arguments)
    outcomes = attack_here(args.count, args.seed)
    if not args.no_page:
        outcomes += attack_page(max(1, args.count // 10), args.seed, model_files())
    print(f"{'class':<16}{'tried':>7}{'survived':>10}{'failed':>8}")
    for outcome in outcomes:
        print(outcome.line())
    failures = [failure for outcome in outcomes for failure in outcome.failures]
    for number, failure in enumerate(failures):
        print(f"{failure.kind}: {failure.why} ({kept(number, failure)})")
    return 1 if failures else 0


def kept(number: int, failure: Failure) -> Path:
    """The file that a failed case is written to; once mended it belongs into the corpus."""
    place = FOUND / failure.kind / f"{number:04}"
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(failure.case)
    return place
