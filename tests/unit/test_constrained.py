"""Generators under a grammar on CPython: what is picked, what stays in step, what is refused."""

from __future__ import annotations

import json
import re
from array import array
from pathlib import Path
from typing import Any

import pytest

from capstan import Generator, GeneratorParams, Model, Tokenizer
from capstan.errors import GuidanceError, OptionError

FIXTURES = Path(__file__).parents[1] / "fixtures"
PROMPT = [5, 6, 7]
PHONE = r"[0-9]{3}-[0-9]{4} done"


@pytest.fixture(scope="module")
def model() -> Model:
    return Model(str(FIXTURES / "nano-llama"))


def guided(model: Model, kind: str, data: str, *, forced: bool = False, **search: Any) -> Generator:
    params = GeneratorParams(model)
    params.set_search_options(**{"do_sample": False, "max_length": 128, **search})
    params.set_guidance(kind, data, forced)
    return Generator(model, params)


def finish(generator: Generator) -> str:
    """Generate to the end; the text behind the prompt."""
    while not generator.is_done():
        generator.generate_next_token()
    return text(generator)


def text(generator: Generator, row: int = 0) -> str:
    return Tokenizer(generator._model).decode(generator.get_sequence(row)[len(PROMPT) :])


def test_a_pick_is_the_best_of_what_the_grammar_allows(model: Model) -> None:
    """By brute force over all tokens: what is allowed is what some end of the output could follow."""
    tokenizer = Tokenizer(model)
    ends = model.config.eos_token_ids
    texts = {token: tokenizer.decode([token]) for token in range(model.config.vocab_size) if token not in ends}
    prefix = re.compile(r"(?=.)([0-9]{0,3}|[0-9]{3}-[a-z]{0,6})")
    with guided(model, "regex", r"[0-9]{3}-[a-z]{6}") as generator:
        generator.append_tokens(PROMPT)
        while not generator.is_done():
            logits, before = generator.get_logits(), text(generator)
            able = [token for token, piece in texts.items() if piece and prefix.fullmatch(before + piece)]
            if re.fullmatch(r"[0-9]{3}-[a-z]{6}", before):
                able = list(ends)
            generator.generate_next_token()
            assert generator.get_next_tokens() == [max(able, key=lambda token: (logits[token], -token))]
    assert generator.finish_reason == "stop"


def test_an_output_ends_where_the_grammar_does_and_nowhere_else(model: Model) -> None:
    searches: list[dict[str, Any]] = [
        *({}, {"min_length": 60}, {"repetition_penalty": 1e9}, {"do_sample": True, "temperature": 50.0})
    ]
    for search in searches:
        with guided(model, "regex", PHONE, **search) as generator:
            generator.append_tokens(PROMPT)
            assert re.fullmatch(PHONE, finish(generator))
            assert generator.finish_reason == "stop"


def test_the_grammar_keeps_step_when_the_sequence_is_rewound(model: Model) -> None:
    with guided(model, "regex", PHONE, do_sample=True, temperature=9.0, top_k=0, random_seed=3) as generator:
        generator.append_tokens(PROMPT)
        whole = finish(generator)
        assert re.fullmatch(PHONE, whole)
        for length in (len(PROMPT) + 5, len(PROMPT) + 1, len(PROMPT) + 4, len(PROMPT)):
            generator.rewind_to(length)
            assert finish(generator) == whole
        generator.rewind_to(0)
        generator.append_tokens(PROMPT)
        assert finish(generator) == whole


def test_appended_tokens_are_no_output_and_after_an_end_the_grammar_begins_anew(model: Model) -> None:
    """As in onnxruntime-genai 0.18."""
    tokenizer = Tokenizer(model)
    with guided(model, "regex", PHONE) as generator:
        generator.append_tokens(PROMPT)
        for _ in range(2):
            generator.generate_next_token()
        generator.append_tokens(tokenizer.encode("<7>"))
        middle = finish(generator)
        assert re.fullmatch(PHONE, middle.replace("<7>", ""))
        generator.append_tokens(tokenizer.encode(" and "))
        both = finish(generator)
        assert re.fullmatch(PHONE, both.removeprefix(middle + " and "))
        # Back into the first output.
        generator.rewind_to(len(PROMPT) + len(tokenizer.encode(middle)) - 1)
        assert finish(generator) == middle


def test_a_rewind_behind_an_end_keeps_the_grammar_that_began_anew(model: Model) -> None:
    tokenizer = Tokenizer(model)
    with guided(model, "regex", PHONE, do_sample=True, temperature=9.0, top_k=0, random_seed=3) as generator:
        generator.append_tokens(PROMPT)
        first = finish(generator)
        ended = generator.token_count()
        generator.append_tokens(tokenizer.encode(" and "))
        begun = generator.token_count()
        both = finish(generator)
        assert re.fullmatch(PHONE, both.removeprefix(first + " and "))
        for length in (begun + 6, begun + 1, begun):
            # Into the second output, and to its start.
            generator.rewind_to(length)
            assert finish(generator) == both
        # Behind the first output, which can only end there.
        generator.rewind_to(ended)
        assert finish(generator) == first
        assert generator.finish_reason == "stop"
        assert generator.token_count() == ended
        # Within the appended tokens: the grammar begins behind them.
        generator.append_tokens(tokenizer.encode(" and "))
        generator.rewind_to(begun - 1)
        cut = tokenizer.decode(tokenizer.encode(" and ")[:-1])
        assert re.fullmatch(PHONE, finish(generator).removeprefix(first + cut))


def test_logits_that_are_set_are_picked_from_within_the_grammar(model: Model) -> None:
    tokenizer = Tokenizer(model)
    [seven], [letter] = tokenizer.encode("7"), tokenizer.encode("x")
    logits = array("f", [0.0]) * model.config.vocab_size
    logits[seven], logits[letter] = 5.0, 9.0
    with guided(model, "regex", "[0-9]+") as generator:
        generator.append_tokens(PROMPT)
        generator.set_logits(logits)
        generator.generate_next_token()
        assert text(generator) == "7"


def test_where_all_allowed_logits_are_infinitely_low_one_of_them_is_picked(model: Model) -> None:
    logits = array("f", [1.0]) * model.config.vocab_size
    allowed = {token for digit in "0123456789" for token in Tokenizer(model).encode(digit)}
    for token in allowed:
        logits[token] = float("-inf")
    searches: list[dict[str, Any]] = [{}, {"do_sample": True, "temperature": 3.0}, {"min_length": 50}]
    for search in searches:
        with guided(model, "regex", "[0-9]", **search) as generator:
            generator.append_tokens(PROMPT)
            generator.set_logits(logits)
            generator.generate_next_token()
            assert set(generator.get_next_tokens()) <= allowed


def test_forced_tokens_take_no_step_of_the_model(model: Model) -> None:
    data = "(yes|no), this is the only way that the text can go on"
    with guided(model, "regex", data, forced=True) as quick, guided(model, "regex", data) as slow:
        quick.append_tokens(PROMPT)
        slow.append_tokens(PROMPT)
        assert re.fullmatch(data, finish(slow))
        assert re.fullmatch(data, finish(quick))
        assert slow.counters["steps"] >= len(slow.get_sequence()) - len(PROMPT) - 1
        assert quick.counters["steps"] < slow.counters["steps"] / 2
        # A forced token is followed by the same logits as if it had been picked.
        with guided(model, "regex", ".{8}") as other:
            quick.rewind_to(len(PROMPT) + 6)
            other.append_tokens(quick.get_sequence())
            assert list(quick.get_logits()) == pytest.approx(list(other.get_logits()), abs=1e-5)


def test_rows_of_a_batch_have_a_grammar_each(model: Model) -> None:
    schema = json.dumps({"type": "array", "items": {"type": "integer", "maximum": 9999}, "minItems": 1, "maxItems": 3})
    search: dict[str, Any] = {"batch_size": 2, "do_sample": True, "temperature": 4.0, "top_k": 0, "random_seed": 5}
    with guided(model, "json_schema", schema, **search) as generator:
        generator.append_tokens([PROMPT, PROMPT])
        finish(generator)
        outputs = [text(generator, row) for row in (0, 1)]
    assert outputs[0] != outputs[1]
    for output in outputs:
        assert all(isinstance(item, int) for item in json.loads(output))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda params: params.set_search_options(num_beams=2), "num_beams is 2 with guidance"),
        (lambda params: params.set_search_options(batch_size=2), "enable_ff_tokens is True with 2 rows"),
    ],
)
def test_what_does_not_go_together_is_refused(change: object, said: str, model: Model) -> None:
    params = GeneratorParams(model)
    params.set_guidance("regex", "a", True)
    change(params)  # type: ignore[operator]
    with pytest.raises(OptionError, match=said):
        Generator(model, params)


def test_a_fixed_run_ahead_with_forced_tokens_is_refused(model: Model) -> None:
    params = GeneratorParams(model, run_ahead=4)
    params.set_guidance("regex", "a", True)
    with pytest.raises(OptionError, match="run_ahead is 4; with enable_ff_tokens each pick waits for its mask"):
        Generator(model, params)


def test_both_strings_empty_turn_guidance_off(model: Model) -> None:
    params = GeneratorParams(model)
    params.set_search_options(do_sample=False, max_length=16)
    params.set_guidance("regex", "[0-9]+")
    params.set_guidance("", "")
    with Generator(model, params) as generator, Generator(model, params) as same:
        generator.append_tokens(PROMPT)
        same.append_tokens(PROMPT)
        assert finish(generator) == finish(same)
        assert not re.fullmatch("[0-9]+", text(generator))


def test_a_tokenizer_without_bytes_is_refused() -> None:
    model = Model(str(FIXTURES / "families" / "gemma"))
    with pytest.raises(GuidanceError, match="a WordLevel model with no decoder"):
        guided(model, "regex", "a")


def test_a_grammar_that_is_too_large_is_refused(model: Model) -> None:
    with pytest.raises(
        GuidanceError, match="regex: it takes more than 40000 states; ask for fewer alternatives or repetitions"
    ):
        guided(model, "regex", "(?:abc|de[fg]){10000}(?:hij){9000}")


def test_a_character_that_no_token_has_is_told(model: Model, tmp_path: Path) -> None:
    for name in (FIXTURES / "nano-llama").iterdir():
        (tmp_path / name.name).write_bytes(name.read_bytes())
    tokenizer = json.loads((tmp_path / "tokenizer.json").read_text())
    tokenizer["model"]["vocab"] = {piece: id_ for piece, id_ in tokenizer["model"]["vocab"].items() if "7" not in piece}
    tokenizer["model"]["merges"] = []
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    with guided(Model(str(tmp_path)), "regex", "a7") as generator:
        generator.append_tokens(PROMPT)
        generator.generate_next_token()
        with pytest.raises(GuidanceError, match="no token of the vocabulary continues 1 output tokens"):
            generator.generate_next_token()
