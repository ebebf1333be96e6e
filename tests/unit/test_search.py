"""The search options: what is accepted, what is refused, and their words for the GPU."""

from __future__ import annotations

import math
import re
from array import array
from typing import Any

import numpy as np
import pytest

from capstan import FallbackWarning
from capstan.errors import OptionError
from capstan.stages import temperature_scale
from capstan.stages.program import LEAST_END_TOKENS
from capstan.stages.search import MAX_EOS_TOKENS, SearchOptions

INF, NAN = math.inf, math.nan


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": -1.0}, "temperature is -1.0; it must be at least 0, which is greedy search"),
        ({"temperature": NAN}, "temperature is nan"),
        ({"temperature": INF}, "temperature is inf"),
        ({"temperature": True}, "temperature is True"),
        ({"temperature": "1"}, "temperature is '1'"),
        ({"top_p": -0.1}, "top_p is -0.1; it must be from 0 to 1"),
        ({"top_p": 1.0001}, "top_p is 1.0001"),
        ({"top_p": NAN}, "top_p is nan"),
        ({"top_k": -1}, "top_k is -1; it must be from 0"),
        ({"top_k": 5.5}, "top_k is 5.5; it must be an integer"),
        ({"top_k": np.float32(5.5)}, "top_k is .*5.5.*; it must be an integer"),
        ({"max_length": INF}, "max_length is inf; it must be an integer"),
        ({"max_length": NAN}, "max_length is nan; it must be an integer"),
        ({"max_length": 1e300}, "max_length is 1000.*; it must be from 0"),
        ({"top_k": True}, "top_k is True"),
        ({"random_seed": -2}, "random_seed is -2"),
        ({"random_seed": 2**64}, "random_seed is 18446744073709551616"),
        ({"do_sample": 1}, "do_sample is 1; it must be True or False"),
        ({"max_length": -5}, "max_length is -5"),
        ({"max_length": 101}, r"max_length \(101\) cannot be greater than the model's context_length \(100\)"),
        ({"min_length": 70, "max_length": 60}, r"min_length \(70\) cannot be greater than max_length \(60\)"),
        ({"num_beams": 33}, "num_beams is 33; it must be from 1 to 32"),
        ({"num_return_sequences": 0}, "num_return_sequences is 0; it must be from 1 to 32"),
        ({"batch_size": 33}, "batch_size is 33; it must be from 1 to 32"),
        ({"repetition_penalty": 0.0}, "repetition_penalty is 0.0; it must be greater than 0"),
        ({"repetition_penalty": -1.1}, "repetition_penalty is -1.1; it must be greater than 0"),
        ({"repetition_penalty": 1e39}, "repetition_penalty is 1e[+]39; it must be greater than 0 and a float32"),
        ({"min_p": -0.1}, "min_p is -0.1; it must be from 0 to 1"),
        ({"min_p": 1.01}, "min_p is 1.01; it must be from 0 to 1"),
        ({"presence_penalty": 2.5}, "presence_penalty is 2.5; it must be from -2 to 2; 0 turns it off"),
        ({"frequency_penalty": -2.01}, "frequency_penalty is -2.01; it must be from -2 to 2"),
        ({"no_repeat_ngram_size": -1}, "no_repeat_ngram_size is -1; it must be from 0"),
        ({"stop_strings": {}}, "stop_strings is {}; it must be a list of strings"),
        ({"stop_token_ids": {}}, "stop_token_ids is {}; it must be a list of token ids"),
        ({"stop_token_ids": range(10**12)}, "stop_token_ids has more than 1048576 items"),
        ({"bad_words_ids": {}}, "bad_words_ids is {}; it must be a list of lists"),
        ({"bad_words_ids": 5}, "bad_words_ids is 5; it must be a list of lists of token ids"),
        ({"bad_words_ids": "12"}, "bad_words_ids is '12'; it must be a list of lists"),
        ({"bad_words_ids": [5]}, "an entry of bad_words_ids is 5; it must be a list of token ids"),
        ({"bad_words_ids": ["ab"]}, "an entry of bad_words_ids is 'ab'; it must be a list of token ids"),
        ({"bad_words_ids": [[1.5]]}, "an entry of bad_words_ids is 1.5; it must be an integer from 0"),
        ({"bad_words_ids": [[1], []]}, "bad_words_ids has an empty list; leave it out"),
        ({"logit_bias": 3}, "logit_bias is 3; it must map token ids to numbers"),
        ({"logit_bias": [(1, 2, 3)]}, "logit_bias is .*; it must map token ids to numbers"),
        ({"logit_bias": {"a": 1.0}}, "a token of logit_bias is 'a'; it must be an integer from 0"),
        ({"logit_bias": [("5", 1.0)]}, "a token of logit_bias is '5'; it must be an integer from 0"),
        ({"logit_bias": {-1: 1.0}}, "a token of logit_bias is -1; it must be from 0"),
        ({"logit_bias": {1: INF}}, "a logit_bias is inf; it must be a finite number"),
        ({"logit_bias": {1: 1e39}}, "a logit_bias is 1e[+]39; it must be a float32"),
        ({"stop_token_ids": 7}, "stop_token_ids is 7; it must be a list of token ids"),
        ({"stop_token_ids": [-1]}, "stop_token_ids is -1; it must be from 0"),
        ({"stop_token_ids": [5.0]}, "stop_token_ids is 5.0; it must be an integer"),
        ({"stop_token_ids": range(1025)}, "there are 1025 stop_token_ids; at most 1024 are supported"),
        ({"max_time": 0}, "max_time is 0.0; it must be greater than 0 seconds; None turns it off"),
        ({"max_time": NAN}, "max_time is nan"),
        ({"diversity_penalty": INF}, "diversity_penalty is inf"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"chunk_size": -1}, "chunk_size is -1"),
        ({"topk": 5}, "'topk' is not a search option; the options are bad_words_ids, batch_size, .*top_p"),
        ({"seed": 5}, "'seed' is not a search option"),
        ({"eos_token_ids": (5,)}, "'eos_token_ids' is not a search option"),
        ({"pad_token_id": 5}, "'pad_token_id' is not a search option"),
        ({"context_length": 200}, "'context_length' is not a search option"),
    ],
)
def test_an_option_out_of_range_or_unknown_is_refused(options: dict[str, object], message: str) -> None:
    base = SearchOptions(context_length=100)
    with pytest.raises(OptionError, match=message):
        base.replace(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bad_words_ids": [[1, 10]]}, "bad_words_ids has 10; ids of this model go from 0 to 9"),
        ({"logit_bias": {10: 1.0}}, "logit_bias has the token 10; ids of this model go from 0 to 9"),
        ({"stop_token_ids": [9, 10]}, "stop_token_ids has 10; ids of this model go from 0 to 9"),
    ],
)
def test_ids_that_the_vocabulary_lacks_are_refused(options: dict[str, object], message: str) -> None:
    found = SearchOptions().replace(**options)
    found.check_vocabulary(11)
    with pytest.raises(OptionError, match=message):
        found.check_vocabulary(10)


INTEGERS = {
    "max_length": (0, 2**31 - 1),
    "min_length": (0, 2**31 - 1),
    "top_k": (0, 2**31 - 1),
    "random_seed": (-1, 2**64 - 1),
    "batch_size": (1, 32),
    "chunk_size": (0, 2**31 - 1),
    "pad_token_id": (0, 2**31 - 1),
    "context_length": (1, 2**31 - 1),
    "seed": (-1, 2**64 - 1),
}


@pytest.mark.parametrize("name", INTEGERS)
def test_an_integer_is_accepted_up_to_both_its_limits_and_refused_past_them(name: str) -> None:
    def made(value: int) -> SearchOptions:
        return SearchOptions(**{name: value})  # type: ignore[arg-type]

    low, high = INTEGERS[name]
    assert getattr(made(high), name) == high
    assert getattr(made(low), name) == low or (name, low) in (("seed", -1), ("chunk_size", 0))
    for value in (low - 1, high + 1):
        with pytest.raises(OptionError, match=f"{name} is {value}; it must be from {low} to {high}"):
            made(value)


@pytest.mark.parametrize(
    ("options", "taken"),
    [
        ({"top_k": 5.0}, {"top_k": 5}),
        ({"max_length": np.float32(10)}, {"max_length": 10}),
        ({"random_seed": 3.0}, {"random_seed": 3, "seed": 3}),
        ({"chunk_size": 0}, {"chunk_size": None}),
        ({"top_p": 0.0}, {"top_p": 1.0}),
        ({"past_present_share_buffer": False}, {"past_present_share_buffer": False}),
        ({"do_sample": True, "temperature": 0}, {"temperature": 0.0, "greedy": True}),
        ({"do_sample": True, "temperature": 1e-9}, {"temperature": 1e-9, "greedy": False}),
    ],
)
def test_values_that_onnxruntime_genai_takes_are_taken(options: dict[str, object], taken: dict[str, object]) -> None:
    found = SearchOptions(context_length=100).replace(**options)
    assert {name: getattr(found, name) for name in taken} == taken
    assert all(type(getattr(found, name)) is type(value) for name, value in taken.items())


def test_a_temperature_of_0_needs_the_passes_of_greedy_search() -> None:
    zero = SearchOptions(do_sample=True, temperature=0, top_k=5, top_p=0.5)
    assert zero.sampler_program(1000, 80).passes == SearchOptions().sampler_program(1000, 80).passes


@pytest.mark.parametrize("name", ["do_sample", "early_stopping", "past_present_share_buffer"])
def test_a_switch_is_no_number(name: str) -> None:
    with pytest.raises(OptionError, match=f"{name} is 1; it must be True or False"):
        SearchOptions().replace(**{name: 1})


@pytest.mark.parametrize("value", [True, "1", None, INF])
@pytest.mark.parametrize(
    "name",
    ["temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "length_penalty"],
)
def test_what_is_no_finite_number_is_refused(name: str, value: object) -> None:
    with pytest.raises(OptionError, match=f"{name} is {value!r}; it must be a (finite )?number"):
        SearchOptions().replace(**{name: value})


def test_a_number_too_large_for_a_float_is_refused() -> None:
    with pytest.raises(OptionError, match="temperature is inf"):
        SearchOptions().replace(temperature=10**400)


def test_a_top_p_of_false_is_not_off() -> None:
    with pytest.raises(OptionError, match="top_p is False"):
        SearchOptions.from_config({"top_p": False})


@pytest.mark.parametrize("token", [-1, 2**31, 1.0, True])
def test_what_is_no_token_id_ends_no_sequence(token: object) -> None:
    with pytest.raises(OptionError, match="eos_token_ids is "):
        SearchOptions(eos_token_ids=(0, token))  # type: ignore[arg-type]


def test_lengths_may_be_as_long_as_each_other() -> None:
    options = SearchOptions(context_length=100).replace(min_length=100, max_length=100)
    assert (options.min_length, options.max_length) == (100, 100)
    assert SearchOptions(min_length=100).max_length == 0, "how long a sequence may be is not known yet"
    with pytest.raises(OptionError, match=r"min_length \(101\) cannot be greater than max_length \(100\)"):
        SearchOptions(context_length=100, min_length=101)


def test_a_diversity_penalty_is_taken_and_told_as_without_effect() -> None:
    with pytest.warns(
        FallbackWarning, match="diversity_penalty 0.375: neither Capstan nor onnxruntime-genai has groups"
    ):
        SearchOptions(diversity_penalty=0.375).warn_ignored()


def test_what_a_search_section_leaves_out_is_as_in_onnxruntime_genai() -> None:
    options = SearchOptions.from_config({})
    assert (options.do_sample, options.top_k, options.top_p, options.temperature) == (False, 50, 1.0, 1.0)
    assert (options.min_length, options.batch_size, options.chunk_size) == (0, 1, None)
    assert (options.early_stopping, options.eos_token_ids, options.pad_token_id) == (True, (), 0)
    assert options.greedy


def test_a_search_section_of_the_model_builder_is_accepted_whole() -> None:
    section = {
        "diversity_penalty": 0.0,
        "do_sample": False,
        "early_stopping": True,
        "length_penalty": 1.0,
        "max_length": 96,
        "min_length": 0,
        "no_repeat_ngram_size": 0,
        "num_beams": 1,
        "num_return_sequences": 1,
        "past_present_share_buffer": True,
        "repetition_penalty": 1.0,
        "temperature": 1.0,
        "top_k": 1,
        "top_p": 0.0,
    }
    options = SearchOptions.from_config(section, eos_token_ids=[2, 5], pad_token_id=3, context_length=128)
    assert (options.max_length, options.top_p, options.eos_token_ids, options.pad_token_id) == (96, 1.0, (2, 5), 3)
    assert SearchOptions.from_config({}, eos_token_ids=9, context_length=128).max_length == 128


def test_a_drawn_seed_is_reported_and_kept() -> None:
    options = SearchOptions(do_sample=True)
    assert options.seed >= 0
    assert options.seed != SearchOptions(do_sample=True).seed
    assert options.replace(temperature=0.5).seed == options.seed
    assert options.replace(random_seed=-1).seed != options.seed
    assert options.replace(random_seed=-1).seed != options.replace(random_seed=-1).seed
    assert options.replace(random_seed=4).seed == 4
    assert options.replace(random_seed=0).seed == 0, "0 is a seed like any other"
    assert options.replace(random_seed=0).replace(temperature=0.5).seed == 0
    assert SearchOptions(seed=0).seed == 0


def test_numpy_numbers_are_numbers() -> None:
    options = SearchOptions().replace(top_k=np.int64(4), temperature=np.float32(0.5))
    assert (options.top_k, options.temperature) == (4, 0.5)


def test_too_many_end_of_sequence_ids_are_refused() -> None:
    assert len(SearchOptions(eos_token_ids=tuple(range(MAX_EOS_TOKENS))).eos_token_ids) == MAX_EOS_TOKENS
    with pytest.raises(OptionError, match="1025 eos_token_ids"):
        SearchOptions(eos_token_ids=tuple(range(MAX_EOS_TOKENS + 1)))


# sampler_program


@pytest.mark.parametrize(("count", "room"), [(0, 32), (1, 32), (32, 32), (33, 64), (64, 64), (65, 128)])
def test_the_parameters_have_room_for_all_end_ids(count: int, room: int) -> None:
    ids = tuple(range(count))
    options = SearchOptions(eos_token_ids=ids[: count // 2], stop_token_ids=ids[count // 2 :])
    words: dict[str, object] = {**words_of(options)}
    assert (words["end_count"], words["ends"]) == (count, [*ids, *[0] * (room - count)])


def words_of(options: SearchOptions, vocab: int = 1000) -> dict[str, int]:
    """The parameters by the names of their WGSL struct, and `eos`."""
    program = options.sampler_program(vocab, 80)
    struct = re.search(r"struct Params \{\n(.*?)\n\}", program.wgsl, re.DOTALL)
    assert struct is not None
    *names, ends = re.findall(r"(\w+): ", struct[1])
    words = array("I", program.words)
    assert ends == "ends"
    assert len(names) % 4 == 0
    assert len(words) == len(names) + max(LEAST_END_TOKENS, 1 << (len(options.end_token_ids) - 1).bit_length())
    return dict(zip(names, words, strict=False)) | {"ends": list(words[len(names) :])}


def test_the_parameters_for_the_gpu() -> None:
    options = SearchOptions(
        max_length=80,
        min_length=6,
        do_sample=True,
        top_k=40,
        top_p=0.75,
        min_p=0.25,
        repetition_penalty=1.5,
        random_seed=2**40 + 3,
        eos_token_ids=(8, 9),
        pad_token_id=7,
    ).replace(temperature=1.0)
    mantissa, shift = temperature_scale(1.0)
    words = words_of(options)
    expected = {"pad": 7, "end_count": 2, "ends": [8, 9] + [0] * 30, "min_length": 6, "top_k": 40, "top_p": 3 << 30}
    expected |= {"scale": mantissa, "shift": shift & 0xFFFFFFFF, "seed_low": 3, "seed_high": 256}
    expected |= {"least_weight": 1 << 28, "penalty": 3 << 22, "penalty_exponent": 2**32 - 23}
    assert {name: words[name] for name in expected} == expected


def test_only_active_stages_are_in_the_kernels() -> None:
    plain = SearchOptions(do_sample=True, eos_token_ids=(3,))
    assert plain.stages() == plain.replace(temperature=2.0).stages()
    assert (
        plain.sampler_program(1000, 80).wgsl == plain.replace(temperature=2.0, top_k=3).sampler_program(1000, 80).wgsl
    )
    for option, name in (
        ({"min_length": 3}, "min_length"),
        ({"repetition_penalty": 2}, "penalty"),
        ({"min_p": 0.1}, "min_p"),
        ({"presence_penalty": 0.1}, "token_penalties"),
        ({"logit_bias": {1: 2.0}}, "logit_bias"),
        ({"no_repeat_ngram_size": 2}, "no_repeat_ngram"),
        ({"bad_words_ids": [[1, 2]]}, "bad_words"),
    ):
        program = plain.replace(**option).sampler_program(1000, 80)
        assert re.search(rf"fn \w+_{name}\(|_{name}\(row", program.wgsl + program.ban_wgsl), name
        assert program.counts == (name in ("penalty", "token_penalties"))
        assert program.sequence == (program.passes[0] == "ban") == (name in ("no_repeat_ngram", "bad_words"))
    assert plain.replace(do_sample=False, min_p=0.1).stages() == plain.replace(do_sample=False).stages()


@pytest.mark.parametrize(
    ("options", "passes"),
    [
        ({"do_sample": False, "top_p": 0.5}, "max greedy"),
        ({"top_k": 1, "top_p": 0.5}, "max greedy"),
        ({"top_k": 0}, "max sums draw"),
        ({"top_k": 999}, "max count sums draw"),
        ({"top_k": 1000}, "max sums draw"),
        ({"top_k": 0, "top_p": 0.5}, "max weight sums draw"),
        ({"top_k": 5, "top_p": 0.5}, "max count weight sums draw"),
        ({"top_k": 0, "top_p": 1 - 2**-40}, "max sums draw"),
    ],
)
def test_a_step_has_the_passes_that_its_options_need(options: dict[str, Any], passes: str) -> None:
    assert " ".join(SearchOptions(**{"do_sample": True} | options).sampler_program(1000, 80).passes) == passes


@pytest.mark.parametrize("temperature", [5e-324, 1.0, 1e300])
def test_the_shift_of_the_temperature_is_a_signed_word(temperature: float) -> None:
    word = words_of(SearchOptions(do_sample=True, temperature=temperature))["shift"]
    assert word - (2**32 if word >= 2**31 else 0) == temperature_scale(temperature)[1]


def test_greedy_turns_every_cut_off() -> None:
    for options in (SearchOptions(do_sample=False, top_p=0.5), SearchOptions(do_sample=True, top_k=1, top_p=0.5)):
        words = words_of(options)
        assert (words["top_k"], words["top_p"]) == (0, 0)


def test_a_top_p_that_rounds_to_nothing_keeps_one_token() -> None:
    assert SearchOptions(do_sample=True, top_p=2.0**-40).top_p_bits == 1


@pytest.mark.parametrize("temperature", [1.0, 0.7, 1e-300, 1e300, 5e-324, 1.4426950408889634, 1.4426950408889636])
def test_the_temperature_scale_is_the_rounded_quotient(temperature: float) -> None:
    mantissa, shift = temperature_scale(temperature)
    assert 2**31 <= mantissa < 2**32
    quotient = math.log2(math.e) / temperature if temperature > 1e-300 else None
    if quotient is not None:
        assert math.ldexp(mantissa, 130 - shift) == pytest.approx(quotient, rel=3e-10)
