"""capstan.Generator on CPython, over the reference device, takes the same actions to the same tokens as the oracle."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from capstan import Generator, GeneratorParams, Model, OptionError
from tests import oracle
from tests.oracle import Action

FIXTURES = sorted(path.parent for path in (Path(__file__).parents[1] / "fixtures").glob("*/genai_config.json"))
LLAMA = next(folder for folder in FIXTURES if folder.name == "nano-llama")
PROMPT = [5, 6, 7, 8, 9]
REPEATED = [123, 158, 55] * 6
"""Greedy search goes on with five times the same token."""

SCRIPTS: dict[str, list[Action]] = {
    "generate": [("append", PROMPT), ("generate", 40)],
    "across_64": [("append", list(range(100, 160))), ("generate", 12)],
    "append_64_and_65": [("append", list(range(100, 164))), ("generate", 1), ("append", [7]), ("generate", 6)],
    "append_twice": [("append", [5]), ("append", [6, 7, 8, 9]), ("generate", 5)],
    "generate_then_append": [("append", PROMPT), ("generate", 20), ("append", [11, 12, 13]), ("generate", 10)],
    "rewind_then_append": [("append", PROMPT), ("generate", 30), ("rewind", 12), ("append", [3]), ("generate", 8)],
    "rewind_then_generate": [("append", PROMPT), ("generate", 30), ("rewind", 12), ("generate", 10)],
    "rewind_into_the_prompt": [("append", PROMPT), ("generate", 3), ("rewind", 2), ("append", [8]), ("generate", 5)],
    "rewind_to_nothing": [("append", PROMPT), ("generate", 3), ("rewind", 0), ("append", [300]), ("generate", 5)],
}


def drive(model: Model, actions: Sequence[Action], **search: object) -> oracle.Trace:
    """oracle.drive, by capstan."""
    params = GeneratorParams(model)
    params.set_search_options(do_sample=False, **search)
    trace = oracle.Trace()
    with Generator(model, params) as generator:
        for verb, argument in actions:
            if verb == "append":
                generator.append_tokens(argument)
            elif verb == "rewind":
                generator.rewind_to(argument)
            else:
                for _ in range(argument):
                    if generator.is_done():
                        break
                    generator.generate_next_token()
                    trace.picked += generator.get_next_tokens()
        trace.sequence, trace.done = generator.get_sequence(0), generator.is_done()
    return trace


@pytest.mark.one_in(3)
@pytest.mark.parametrize("folder", FIXTURES, ids=lambda folder: folder.name)
@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS)
def test_actions_give_the_oracles_tokens(folder: Path, script: list[Action]) -> None:
    assert drive(Model(str(folder)), script) == oracle.drive(folder, script)


STATEFUL = [LLAMA.parent / "families" / name for name in ("lfm2", "qwen3_5_text")]


@pytest.mark.parametrize("folder", STATEFUL, ids=lambda folder: folder.name)
@pytest.mark.parametrize("chunk_size", [0, 7])
def test_states_that_runs_overwrite_go_on_as_a_new_run_of_the_oracle(folder: Path, chunk_size: int) -> None:
    """onnxruntime-genai 0.18 rewinds no such model: a new generator has to run what was kept."""
    search = {"chunk_size": chunk_size} if chunk_size else {}
    sequence: list[int] = []
    model = Model(str(folder))
    params = GeneratorParams(model)
    params.set_search_options(do_sample=False, **search)
    with Generator(model, params) as generator:
        for kept, appended, count in [(0, PROMPT, 40), (45, [11, 12], 12), (30, [], 10), (12, [3], 8), (2, [8], 5)]:
            generator.rewind_to(kept)
            if appended:
                generator.append_tokens(appended)
            sequence = [*sequence[:kept], *appended]
            picked = []
            for _ in range(count):
                generator.generate_next_token()
                picked += generator.get_next_tokens()
            assert picked == oracle.greedy(folder, sequence, count)
            sequence += picked
            assert generator.get_sequence(0) == sequence


@pytest.mark.parametrize("chunk_size", [1, 7, 64])
@pytest.mark.parametrize("script", ["across_64", "rewind_then_append"])
def test_a_prompt_in_small_runs_gives_the_same_tokens(script: str, chunk_size: int) -> None:
    assert drive(Model(str(LLAMA)), SCRIPTS[script], chunk_size=chunk_size) == oracle.drive(LLAMA, SCRIPTS[script])


@pytest.mark.parametrize("eos_index", [0, 1, 7])
def test_an_end_of_sequence_and_what_is_appended_after_it_are_the_oracles(eos_index: int, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(LLAMA, folder)
    tree = json.loads((folder / "genai_config.json").read_text())
    eos = oracle.greedy(LLAMA, PROMPT, 20)[eos_index]
    tree["model"]["eos_token_id"] = [eos, 1]
    (folder / "genai_config.json").write_text(json.dumps(tree))
    script: list[Action] = [("append", PROMPT), ("generate", 20), ("append", [17, 18]), ("generate", 6)]
    trace = drive(Model(str(folder)), script)
    assert trace.picked[eos_index] == eos
    assert trace == oracle.drive(folder, script)
    assert drive(Model(str(folder)), script[:2]).done


def test_max_length_ends_where_the_oracle_ends() -> None:
    script: list[Action] = [("append", PROMPT), ("generate", 100)]
    trace = drive(Model(str(LLAMA)), script, max_length=65)
    assert trace == oracle.drive(LLAMA, script, max_length=65)
    assert (len(trace.sequence), trace.done) == (65, True)


def test_penalties_count_what_was_picked_since_tokens_were_appended() -> None:
    """By numpy from the oracle's logits, over appended and rewound tokens; rows of None are appended ones."""

    def expected(appended: Sequence[int], sequence: list[int], since: int, count: int) -> list[int]:
        sequence += appended
        since = len(sequence) if appended else since
        for _ in range(count):
            logits = oracle.logits(LLAMA, sequence)
            picks = np.bincount(sequence[since:], minlength=len(logits))
            penalty = (picks * 1.25 - 0.5 * (picks > 0)).astype(np.float32)
            sequence.append(int(np.argmax(logits - penalty)))
        return sequence

    script: list[Action] = [("append", REPEATED), ("generate", 8), ("append", [11, 12]), ("generate", 8)]
    script += [("rewind", 33), ("generate", 3), ("rewind", 25), ("generate", 3), ("rewind", 23), ("append", [9, 9])]
    script += [("rewind", 24), ("generate", 6)]
    sequence = expected([11, 12], expected(REPEATED, [], 0, 8), 0, 8)
    sequence = expected([], sequence[:33], 28, 3)
    sequence = expected([], sequence[:25], 18, 3)
    regenerated = sequence[25:]
    sequence = expected([], [*sequence[:23], 9], 24, 6)
    trace = drive(Model(str(LLAMA)), script, frequency_penalty=1.25, presence_penalty=-0.5)
    assert trace.sequence == sequence
    assert trace.picked[19:22] == regenerated, "what was appended and cut away counts for nothing"
    assert trace.sequence != drive(Model(str(LLAMA)), script).sequence


@pytest.mark.parametrize("size", [1, 2, 3])
def test_runs_of_tokens_that_must_not_be_repeated_are_the_oracles(size: int) -> None:
    script: list[Action] = [("append", REPEATED), ("generate", 12), ("rewind", 21), ("append", [30]), ("generate", 9)]
    trace = drive(Model(str(LLAMA)), script, no_repeat_ngram_size=size)
    assert trace == oracle.drive(LLAMA, script, no_repeat_ngram_size=size)
    assert trace != oracle.drive(LLAMA, script)


@pytest.mark.parametrize("penalty", [0.7, 1.1, 3.0])
@pytest.mark.parametrize("script", ["generate", "generate_then_append", "rewind_then_append"])
def test_a_repetition_penalty_gives_the_oracles_tokens(script: str, penalty: float) -> None:
    trace = drive(Model(str(LLAMA)), SCRIPTS[script], repetition_penalty=penalty)
    assert trace == oracle.drive(LLAMA, SCRIPTS[script], repetition_penalty=penalty)
    assert trace != oracle.drive(LLAMA, SCRIPTS[script])


def test_probabilities_are_a_softmax_of_the_logits() -> None:
    with Generator(Model(str(LLAMA))) as generator:
        generator.append_tokens(PROMPT)
        for _ in range(2):
            logits = np.asarray(generator.get_logits(), np.float64)
            wanted = logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())
            best = [int(token) for token in np.argsort(-logits, kind="stable")]
            asked = [best[0], best[100]]
            found = asyncio.run(generator.log_probabilities_async(3, asked))
            assert list(found) == [*best[:3], best[100]]
            assert list(found.values()) == pytest.approx([wanted[token] for token in found])
            generator.generate_next_token()
        for count, also in [(0, []), (len(logits) + 1, []), (1, [len(logits)]), (1, [-1])]:
            with pytest.raises(OptionError, match="must be from"):
                asyncio.run(generator.log_probabilities_async(count, also))
