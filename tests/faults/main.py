"""Tries every class of attacks and prints what came of it: `build.py test --faults`."""

from __future__ import annotations

import argparse
import asyncio
import json
import time
import warnings
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path

from playwright.sync_api import Error

from buildtools.site import assemble
from capstan.model_files.gguf.header import GgmlType
from capstan.weights.manifest import Manifest
from capstan_host.terminal import say
from tests.gguf_files import gguf_file
from tests.gguf_models import contents, make
from tests.repository_layout import CONFIG

from . import downloads
from .deadline import deadline
from .drafts import drafts
from .fleet_items import attack_fleet
from .folders import folders
from .options import attack_agents, attack_options
from .page import PAGE_SHARE, opened_page, page_attacks
from .processes import spread
from .reference import reference_targets
from .report import HEAD, Outcome, attack
from .served import attack_served
from .serving import attack_server
from .share import Share
from .targets import Target, targets
from .tokenizer_parts import attack_tokenizers
from .tools import tool_targets

__all__ = ["COUNT", "attack_target", "attacks_here", "corpus", "main", "model_files"]

COUNT = 200
"""Cases of a class, unless said otherwise. Those in a page are a tenth; a fortieth load the page for each case."""
HERE = Path(__file__).parent
CORPUS = HERE / "corpus"
"""Cases that once failed, by class: CORPUS/CLASS/NAME."""
MODEL = HERE.parent / "fixtures/nano-llama"
SHARD = 16384


def model_files() -> dict[str, bytes]:
    """The files of a small model: those of the builder's folder, those of a repository, and a GGUF file."""
    names = ("genai_config.json", "model.onnx", "model.onnx.data", "tokenizer.json", "tokenizer_config.json")
    files = {name: (MODEL / name).read_bytes() for name in names}
    data = files["model.onnx.data"]
    pieces = [data[at : at + SHARD] for at in range(0, len(data), SHARD)]
    options = {"do_sample": True, "temperature": 0.7, "top_k": 5, "repetition_penalty": 1.1, "bad_words_ids": [[5]]}
    return {
        **files,
        "shards": Manifest.of(pieces, SHARD).serialize().encode(),
        "config.json": json.dumps(CONFIG).encode(),
        "gguf": gguf_file(*contents(make("llama", {"": GgmlType.Q4_1}, {"block_count": 1}, vocabulary=512))),
        "generation_config.json": json.dumps({**options, "eos_token_id": [1, 2]}).encode(),
    }


def corpus(kind: str) -> list[bytes]:
    """The cases of a class that once failed."""
    return [path.read_bytes() for path in sorted((CORPUS / kind).glob("*"))]


def attacks_here(share: Share) -> dict[str, Callable[[], Outcome]]:
    """Every class that needs no page, in this interpreter."""
    kinds = [
        *targets(model_files()),
        *reference_targets(model_files()),
        *tool_targets(),
        Target("downloads", downloads.good, downloads.script, downloads.run),
        folders,
        drafts,
    ]
    return {
        **{target.kind: partial(attack_target, target, share) for target in kinds},
        "requests": partial(attack_server, share, corpus("requests")),
        "fleet": partial(attack_fleet, share, corpus("fleet")),
        "server": partial(attack_served, share, corpus("server")),
        "API values": partial(attack_options, share.times(10)),
        "agents": partial(attack_agents, share),
        "tokenizer parts": partial(attack_tokenizers, share, corpus("tokenizer parts")),
    }


def attack_target(target: Target, share: Share) -> Outcome:
    """The mutations of a class, and its corpus; the good input works before and after them."""
    outcome = Outcome(target.kind)

    async def attack_all() -> None:
        made = share.cases(target.kind, lambda random: target.mutate(random, target.good))
        for case in [target.good, *corpus(target.kind), *made]:
            with deadline(outcome, case):
                await attack(outcome, case, target.run)
        before = outcome.taken
        await attack(outcome, target.good, target.run)
        if outcome.taken != before + 1:
            outcome.fail(target.good, "the good input is not taken any more")

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        asyncio.run(attack_all())
    return outcome


def main(arguments: Sequence[str]) -> int:
    """Print a table of classes and the failures; 1 if there are any."""
    parser = argparse.ArgumentParser(prog="build.py test --faults", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="what the cases are made of (default: 1)")
    parser.add_argument("--count", type=int, default=COUNT, metavar="N", help=f"cases of a class (default: {COUNT})")
    parser.add_argument("--no-page", action="store_true", help="only what needs no browser")
    parser.add_argument("--class", action="append", dest="kinds", metavar="NAME", help="only these, such as 'page *'")
    parser.add_argument("--processes", type=int, default=1, metavar="N", help="so many share the cases (default: 1)")
    parser.add_argument("--part", type=part_of, default=(1, 1), metavar="K/N", help="the cases of one of N processes")
    parser.add_argument("--out", type=Path, metavar="FILE.jsonl", help="write what is found instead of printing it")
    args = parser.parse_args(arguments)
    share = Share(args.count, args.seed, *args.part)
    here = chosen([*attacks_here(share)], args.kinds or ["*"])
    on_page = [] if args.no_page else chosen([*page_attacks(share, model_files(), corpus)], args.kinds or ["*"])
    if not here and not on_page:
        parser.error(f"no class is named {' or '.join(args.kinds)}")
    if args.out:
        attack_each(share, here, on_page, args.out)
        return 0
    if on_page:
        assemble()
    given = ["--seed", str(args.seed), "--count", str(args.count)]
    return printed(spread(given, [*here, *on_page], args.processes))


def part_of(text: str) -> tuple[int, int]:
    """K and N of K/N."""
    part, parts = (int(number) for number in text.split("/"))
    if not 1 <= part <= parts:
        raise ValueError
    return part, parts


def chosen(names: Sequence[str], kinds: Sequence[str]) -> list[str]:
    """The classes with these names or patterns."""
    return [name for name in names if any(fnmatchcase(name, kind) for kind in kinds)]


def attack_each(share: Share, here: Sequence[str], on_page: Sequence[str], out: Path) -> None:
    """Write the outcome of each class into a file as soon as it is there."""
    attacks = attacks_here(share)
    for kind in here:
        perform(kind, attacks[kind], share, out)
    if on_page:
        attacks_there = page_attacks(share.times(PAGE_SHARE), model_files(), corpus)
        with opened_page(model_files()) as page:
            for kind in on_page:
                perform(kind, partial(attacks_there[kind], page), share, out)


def perform(kind: str, run: Callable[[], Outcome], share: Share, out: Path) -> None:
    """Try a class; a browser that is gone is a failure. Its begin, its outcome and its failures are told at once."""
    which = f" ({share.part}/{share.parts})" if share.parts > 1 else ""
    say(f"{kind}{which} ...")
    begun = time.monotonic()
    try:
        outcome = run()
    except (Error, AssertionError) as error:
        outcome = Outcome(kind)
        outcome.fail(b"", f"it ended with {type(error).__name__}: {error}")
    outcome.seconds = time.monotonic() - begun
    with out.open("a") as file:
        file.write(json.dumps(outcome.as_json()) + "\n")
    for line in (*(failure.line() for failure in outcome.failures), outcome.line() + which):
        say(line)


def printed(outcomes: Sequence[Outcome]) -> int:
    """Print a table of classes and the failures; 1 if there are any."""
    print(HEAD)
    for outcome in outcomes:
        print(outcome.line())
    failures = [failure for outcome in outcomes for failure in outcome.failures]
    for failure in failures:
        print(failure.line())
    return 1 if failures else 0
