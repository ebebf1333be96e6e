"""Scores of given tokens on CPython: against onnxruntime's logits, and where the sequence is left."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from capstan import Generator, GeneratorParams, LogitsError, Model, OptionError, PromptError, Score, Speculation
from capstan.device.reference.reference_sequence import ReferenceRunner
from capstan.fallback import fallbacks
from capstan.model_files.genai_config_file import parse_genai_config
from tests.unit.paper_model import PaperDecoder, made

FIXTURES = Path(__file__).parents[1] / "fixtures"
LLAMA = FIXTURES / "nano-llama"
CONTEXT = [5, 6, 7, 8, 9]


def tokens(count: int, seed: int = 3) -> list[int]:
    return [int(each) for each in np.random.default_rng(seed).integers(0, 500, count)]


def by_onnxruntime(folder: Path, ids: list[int]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """The logarithms of all probabilities at each position, by one run of the whole graph."""
    decoder = parse_genai_config((folder / "genai_config.json").read_bytes()).decoder
    session = onnxruntime.InferenceSession(str(folder / decoder.filename), providers=["CPUExecutionProvider"])
    feeds: dict[str, Any] = {}
    for each in session.get_inputs():
        shape = (1, len(ids)) if len(each.shape) == 2 else (1, each.shape[1], 0, decoder.head_size)
        if each.name == "input_ids":
            feeds[each.name] = np.array([ids], np.int64)
        elif each.name == "position_ids":
            feeds[each.name] = np.arange(len(ids))[None]
        elif each.name == "attention_mask":
            feeds[each.name] = np.ones(shape, np.int64)
        else:
            feeds[each.name] = np.zeros(shape, np.float32)
    logits = np.asarray(session.run(["logits"], feeds)[0][0], np.float64)
    largest = logits.max(axis=-1, keepdims=True)
    total = np.log(np.exp(logits - largest).sum(axis=-1, keepdims=True))
    found: np.ndarray[Any, np.dtype[np.float64]] = logits - largest - total
    return found


def near(scores: list[Score], whole: list[int], wanted: np.ndarray[Any, np.dtype[np.float64]]) -> None:
    """Float32 logits of two runs that are cut otherwise differ by some 1e-6 of the largest."""
    start = len(whole) - len(scores)
    assert [score.token for score in scores] == whole[start:]
    for place, score in enumerate(scores, start):
        row = wanted[place - 1]
        assert score.log_probability == pytest.approx(row[score.token], abs=2e-5)
        assert score.best == int(row.argmax())
        assert score.best_log_probability == pytest.approx(row.max(), abs=2e-5)


@pytest.fixture(scope="module")
def model() -> Model:
    return Model(str(LLAMA))


def generator(model: Model, change: Callable[[GeneratorParams], object] | None = None, **search: Any) -> Generator:
    params = GeneratorParams(model)
    params.set_search_options(**{"max_length": 256} | search)
    if change is not None:
        change(params)
    return Generator(model, params)


@pytest.mark.parametrize("name", ["nano-llama", "nano-qwen3", "nano-gemma2", "nano-phi4", "nano-granite"])
@pytest.mark.parametrize("count", [1, 150])
def test_scores_are_those_of_onnxruntime_over_the_whole_sequence(name: str, count: int) -> None:
    """150 tokens are more than the positions of a run."""
    ids = tokens(count)
    with generator(Model(str(FIXTURES / name))) as one:
        one.append_tokens(CONTEXT)
        near(one.score(ids), [*CONTEXT, *ids], by_onnxruntime(FIXTURES / name, [*CONTEXT, *ids]))
        assert one.get_sequence() == [*CONTEXT, *ids]


@pytest.mark.parametrize("name", ["nano-llama", "nano-copies", "families/lfm2"])
def test_a_second_continuation_runs_nothing_before_the_contexts_last_token(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Models whose graph gives the last logits alone run token by token; it is counted."""
    ran: list[tuple[int, int]] = []
    for method in ("run", "run_each"):
        plain = getattr(ReferenceRunner, method)

        async def watched(self: Any, ids: list[int], past: int, plain: Any = plain) -> Any:
            ran.append((past, len(ids)))
            return await plain(self, ids, past)

        monkeypatch.setattr(ReferenceRunner, method, watched)
    whole = name != "nano-copies"
    before = sum(fallbacks().values())
    with generator(Model(str(FIXTURES / name))) as one:
        one.append_tokens([each % 256 for each in tokens(40)])
        first = one.score([11, 12, 13])
        one.rewind_to(40)
        other = one.score([11, 99])
    assert ran[0] == (0, 39)
    assert ran[1:3] == ([(39, 3), (39, 2)] if whole else [(39, 1), (40, 1)])
    assert min(past for past, _ in ran[1:]) == 39
    assert other[0].log_probability == pytest.approx(first[0].log_probability, abs=1e-5)
    assert (sum(fallbacks().values()) > before) is not whole


def speculating(params: GeneratorParams) -> None:
    params.set_speculation(Speculation())


def constrained(params: GeneratorParams) -> None:
    params.set_guidance("regex", "[a-z ]{20,}")


WAYS: dict[str, dict[str, Any]] = {
    "sampled": {"do_sample": True, "temperature": 3.0, "random_seed": 5, "repetition_penalty": 3.0},
    "drafts": {"change": speculating, "do_sample": False},
    "grammar": {"change": constrained, "do_sample": False},
}


@pytest.mark.parametrize("way", WAYS)
def test_generation_goes_on_behind_scored_tokens_as_behind_appended_ones(way: str, model: Model) -> None:
    with generator(model) as plain:
        plain.append_tokens(CONTEXT)
        wanted = plain.score([40, 41, 42])
    texts = []
    for scored in (True, False):
        with generator(model, **WAYS[way]) as one:
            one.append_tokens(CONTEXT)
            for _ in range(3):
                one.generate_next_token()
            one.rewind_to(len(CONTEXT))
            if scored:
                found = one.score([40, 41, 42])
                assert [each.best for each in found] == [each.best for each in wanted]
                told = [each.log_probability for each in found]
                assert told == pytest.approx([each.log_probability for each in wanted], abs=1e-5)
            else:
                one.append_tokens([40, 41, 42])
            for _ in range(6):
                one.generate_next_token()
            texts.append(one.get_sequence())
    assert texts[0] == texts[1]


def test_tokens_computed_ahead_are_discarded_and_stay_what_they_are(model: Model) -> None:
    def ahead(params: GeneratorParams) -> None:
        params.options["run_ahead"] = 4

    with generator(model, do_sample=False) as one:
        one.append_tokens(CONTEXT)
        for _ in range(9):
            one.generate_next_token()
        whole = one.get_sequence()
    with generator(model, ahead, do_sample=False) as two:
        two.append_tokens(CONTEXT)
        for _ in range(2):
            two.generate_next_token()
        [found] = two.score([3])
        near([found], [*whole[:7], 3], by_onnxruntime(LLAMA, whole[:7]))
        assert found.best == whole[7]
        two.rewind_to(7)
        for _ in range(7):
            two.generate_next_token()
        assert two.get_sequence() == whole


def test_what_cannot_be_scored_is_refused_and_leaves_the_sequence(model: Model) -> None:
    vocab = model.config.vocab_size
    with generator(model, max_length=8) as one:
        with pytest.raises(OptionError, match=r"the sequence is empty.*append_tokens a context first, such as \[\d+\]"):
            one.score([1])
        one.append_tokens(CONTEXT)
        refused: list[tuple[list[int], str]] = [
            ([], "no tokens were given"),
            ([1, vocab], f"token 1 is {vocab}; ids go from 0 to {vocab - 1}"),
            ([-1], "token 0 is -1"),
            ([1, 2, 3, 4], "the sequence would have 9 tokens; max_length is 8"),
        ]
        for ids, told in refused:
            with pytest.raises(PromptError, match=told):
                one.score(ids)
        assert one.get_sequence() == CONTEXT
        assert len(one.score([1, 2, 3])) == 3
    several_rows: list[tuple[dict[str, Any], Any, str]] = [
        ({"num_beams": 2}, CONTEXT, "score: num_beams is 2"),
        ({"batch_size": 2}, [CONTEXT, CONTEXT], "this generator has 2 rows"),
    ]
    for search, context, told in several_rows:
        with generator(model, **search) as several:
            several.append_tokens(context)
            with pytest.raises(OptionError, match=told):
                several.score([1])


def test_logits_that_are_no_numbers_give_no_scores(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    run = ReferenceRunner.run

    async def nothing(self: Any, ids: list[int], past: int) -> Any:
        found = await run(self, ids, past)
        return type(found)("f", [float("nan")] * len(found))

    with generator(model) as one:
        one.append_tokens(CONTEXT)
        monkeypatch.setattr(ReferenceRunner, "run", nothing)
        with pytest.raises(LogitsError, match="all logits for token 7 are NaN or -inf"):
            one.score([7])
        assert one.get_sequence() == CONTEXT


async def test_a_sequence_that_changes_meanwhile_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = PaperDecoder.score

    one, _ = made()

    async def changed(self: Any, ids: list[int], past: int) -> Any:
        one.rewind_to(2)
        return await plain(self, ids, past)

    monkeypatch.setattr(PaperDecoder, "score", changed)
    one.append_tokens([1, 2, 3])
    with pytest.raises(OptionError, match="was changed meanwhile"):
        await one.score_async([4])
    assert one.get_sequence() == [1, 2]
