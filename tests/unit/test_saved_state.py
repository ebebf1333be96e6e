"""A saved generator continues in another one, with the ids of onnxruntime-genai and without its prompt being run."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import capstan
from capstan import (
    Adapters,
    CapstanError,
    Generator,
    GeneratorParams,
    Model,
    OptionError,
    OutOfMemoryError,
    PictureError,
    PromptError,
    StorageError,
    UnsupportedModelError,
)
from capstan.device.reference.reference_sequence import ReferenceSequence
from capstan.genai.multimodal_processor import items_of
from tests import oracle
from tests.long_ropes import LONG_ROPE, ORIGINAL
from tests.lora_models import LORA
from tests.unit.test_seeing import CASES, CHECKS, GRADIENT, inputs
from tests.unit.test_seeing import FOLDER as SEEING

FIXTURES = Path(__file__).parents[1] / "fixtures"
LLAMA = FIXTURES / "nano-llama"
START = list(range(20, 50))
NEXT = [3, 5, 7]
LONG_START = [(29 * i + 3) % 509 for i in range(ORIGINAL - 8)]
SEEDED = {"do_sample": True, "temperature": 1.5, "random_seed": 7}
AT_DIGEST, AT_BODY = 16, 48
"""The places of the digest and of the bytes after it."""


def generator_of(model: Model, max_length: int = 120, **search: Any) -> Generator:
    params = GeneratorParams(model)
    params.set_search_options(max_length=max_length, **search)
    return Generator(model, params)


def take(generator: Generator, count: int) -> list[int]:
    found = []
    for _ in range(count):
        generator.generate_next_token()
        found += generator.get_next_tokens()
    return found


def saved(model: Model, ids: Sequence[int] = START, count: int = 8, **search: Any) -> bytes:
    with generator_of(model, **search) as generator:
        generator.append_tokens(ids)
        take(generator, count)
        return generator.save_state()


@pytest.fixture(scope="module")
def llama() -> Model:
    return Model(str(LLAMA))


@pytest.fixture(scope="module")
def state(llama: Model) -> bytes:
    return saved(llama)


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of tokens in each run of a model."""
    runs: list[int] = []
    prefill = ReferenceSequence.prefill

    def counted(self: ReferenceSequence, ids: Sequence[int], every: bool = False) -> Any:
        runs.append(len(ids))
        return prefill(self, ids, every)

    monkeypatch.setattr(ReferenceSequence, "prefill", counted)
    return runs


@pytest.mark.parametrize("name", ["nano-llama", "nano-gemma3", "nano-qwen3", "families/gptoss"])
def test_it_continues_with_the_oracles_ids_in_another_load(name: str, ran: list[int]) -> None:
    folder = FIXTURES / name
    expected = oracle.greedy(folder, START, 16)
    state = saved(Model(str(folder)))
    ran.clear()
    with generator_of(Model(str(folder))) as generator:
        generator.restore_state(state)
        assert generator.get_sequence() == [*START, *expected[:8]]
        assert take(generator, 8) == expected[8:]
        assert ran == [1] * 8, "the prompt is not run"
        assert generator.reused_tokens == len(START) + 7


def test_caches_that_grow_with_each_run_continue(ran: list[int]) -> None:
    folder = FIXTURES / "repositories" / "nano-optimum"
    with generator_of(Model(str(folder))) as one, generator_of(Model(str(folder))) as other:
        one.append_tokens(START)
        take(one, 4)
        other.restore_state(one.save_state())
        ran.clear()
        assert take(other, 4) == take(one, 4)
        assert set(ran) == {1}


@pytest.mark.parametrize(
    "search",
    [SEEDED, {**SEEDED, "repetition_penalty": 1.3}, {**SEEDED, "presence_penalty": 1.5}, {"stop_strings": ["zzz"]}],
    ids=["seeded", "repetition", "presence", "stop strings"],
)
def test_search_options_see_what_was_appended_and_what_was_picked(search: dict[str, Any], llama: Model) -> None:
    with generator_of(llama, **search) as one, generator_of(llama, **search) as other:
        one.append_tokens(START)
        take(one, 8)
        one.append_tokens(NEXT)
        take(one, 4)
        other.restore_state(one.save_state())
        assert take(other, 12) == take(one, 12), "the saved one goes on undisturbed"
        one.rewind_to(len(START))
        other.rewind_to(len(START))
        assert take(one, 4) == take(other, 4)


def test_a_prompt_that_was_not_run_is_run_before_it_is_saved(llama: Model, ran: list[int]) -> None:
    with generator_of(llama) as generator:
        generator.append_tokens(START)
        state = generator.save_state()
        assert ran == [len(START)]
        assert take(generator, 4) == oracle.greedy(LLAMA, START, 4)
    ran.clear()
    with generator_of(llama) as generator:
        generator.restore_state(memoryview(state))
        generator.append_tokens(NEXT)
        assert take(generator, 4) == oracle.greedy(LLAMA, [*START, *NEXT], 4)
        assert ran == [len(NEXT) + 1, 1, 1, 1]


def test_a_grammar_follows_the_restored_answer(llama: Model) -> None:
    def constrained() -> Generator:
        params = GeneratorParams(llama)
        params.set_search_options(max_length=120)
        params.set_guidance("regex", "[0-9]{40}")
        return Generator(llama, params)

    with constrained() as one, constrained() as other:
        one.append_tokens(START)
        take(one, 6)
        other.restore_state(one.save_state())
        rest = take(one, 6)
        assert take(other, 6) == rest


def test_adapters_are_part_of_the_state() -> None:
    model = Model(str(LORA))
    adapters = Adapters(model)
    for name in ("first", "second"):
        adapters.load(f"{name}.onnx_adapter", name)

    def adapted(*names: str) -> Generator:
        generator = generator_of(model)
        for name in names:
            generator.set_active_adapter(adapters, name)
        return generator

    with adapted("first") as one:
        one.append_tokens(START)
        take(one, 4)
        state, rest = one.save_state(), take(one, 6)
    with adapted("first") as other:
        other.restore_state(state)
        assert take(other, 6) == rest
    for names in ((), ("second",), ("first", "second")):
        with adapted(*names) as other, pytest.raises(OptionError, match="LoRA adapters.* or append the tokens"):
            other.restore_state(state)
    with adapted() as one:
        one.append_tokens(START)
        take(one, 2)
        one.set_active_adapter(adapters, "first")
        one.append_tokens(NEXT)
        take(one, 2)
        with pytest.raises(OptionError, match="set within the sequence"):
            one.save_state()


def test_every_damaged_byte_is_found_and_leaves_the_generator_empty(llama: Model, state: bytes) -> None:
    with generator_of(llama) as generator:
        for place in [*range(0, len(state), 97), *range(AT_BODY + 8), len(state) - 1]:
            damaged = bytearray(state)
            damaged[place] ^= 0x20
            with pytest.raises((StorageError, OptionError), match=r"append the tokens instead|no saved state"):
                generator.restore_state(damaged)
            assert generator.token_count() == 0
        for size in (0, 1, 15, 16, 47, 48, 51, 52, 300, len(state) - 1):
            with pytest.raises(StorageError, match="cut off or damaged|no saved state"):
                generator.restore_state(state[:size])
        with pytest.raises(StorageError, match="damaged"):
            generator.restore_state(state + b"\0")
        generator.restore_state(state)
        assert take(generator, 4) == oracle.greedy(LLAMA, START, 12)[8:]


def resealed(state: bytes, change: Callable[[dict[str, Any]], object], rows: Callable[[bytes], bytes] = bytes) -> bytes:
    """A state with another header, whose digest is right."""
    size = int.from_bytes(state[AT_BODY : AT_BODY + 4], "little")
    header = json.loads(state[AT_BODY + 4 : AT_BODY + 4 + size])
    change(header)
    text = json.dumps(header).encode()
    head = len(text).to_bytes(4, "little") + text
    return state[:AT_DIGEST] + hashlib.sha256(head).digest() + head + rows(state[AT_BODY + 4 + size :])


HOSTILE: dict[str, Any] = {
    "length": [0, -1, 1 << 40, 39, True, None, "3"],
    "base": [-1, 1, 37, 1 << 60, None],
    "tokens": [[], [1], [10**9] * 38, ["a"] * 38, [-1] * 38, {}, list(range(500)), [0.5] * 38],
    "appended": [[], [[1, 30]], [[0, 31], [5, 38]], [[0, 99]], [[0]], [0, 30], [["0", 30]], [[0, 30, 38]], None],
    "contents": [[{}], [{"start": 0, "end": 99, "digest": ""}], [{"start": 5, "end": 4, "digest": ""}], [0]],
    "long": [0, None],
    "model": [{}, [], {"graph": 1, "files": {}}, {"graph": "", "files": None}],
    "adapters": [["0"], [0], {}],
    "caches": [[], [[]], [0], None],
    "bits": [8, 5, -8, None],
    "bytes": [0, -1, 1 << 60, 5, None],
    "digests": [[], ["0"], [0], ["0", "0"], None],
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_header_with_a_right_digest_is_not_trusted(name: str, llama: Model, state: bytes) -> None:
    expected = oracle.greedy(LLAMA, START, 12)[8:]
    with generator_of(llama) as generator:
        for value in HOSTILE[name]:
            hostile = resealed(state, partial(dict.update, **{name: value}))
            with pytest.raises(CapstanError):
                generator.restore_state(hostile)
            assert generator.token_count() == 0
        missing = resealed(state, lambda header: header.pop(name))
        for hostile in (missing, resealed(state, dict.copy, lambda rows: rows[:-4])):
            with pytest.raises(StorageError):
                generator.restore_state(hostile)
        generator.restore_state(state)
        assert take(generator, 4) == expected


def test_another_model_other_weights_and_another_version_are_refused(
    llama: Model, state: bytes, tmp_path: Path
) -> None:
    other = shutil.copytree(LLAMA, tmp_path / "other")
    weights = bytearray((other / "model.onnx.data").read_bytes())
    weights[100] ^= 1
    (other / "model.onnx.data").write_bytes(weights)
    for folder, words in ((FIXTURES / "nano-qwen2", "another model"), (other, "other weights: model.onnx.data")):
        with generator_of(Model(str(folder))) as generator, pytest.raises(OptionError, match=words):
            generator.restore_state(state)
    with generator_of(llama) as generator, pytest.raises(OptionError, match="version '3' .* reads 2"):
        generator.restore_state(state.replace(b"state 2\n", b"state 3\n", 1))


def test_the_sequence_must_be_empty_and_have_room(llama: Model, state: bytes) -> None:
    with generator_of(llama) as generator:
        generator.append_tokens(START)
        with pytest.raises(OptionError, match=r"30 tokens.*rewind_to\(0\)"):
            generator.restore_state(state)
        generator.rewind_to(0)
        with pytest.raises(PromptError):
            generator.save_state()
        generator.restore_state(state)
        assert generator.token_count() == 38
    with generator_of(llama, 37) as short, pytest.raises(PromptError, match="max_length is 37"):
        short.restore_state(state)


def test_a_device_that_fails_leaves_the_generator_empty(
    llama: Model, state: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OutOfMemoryError("no room")

    with generator_of(llama) as generator:
        with monkeypatch.context() as patch:
            patch.setattr(ReferenceSequence, "write", full)
            with pytest.raises(OutOfMemoryError):
                generator.restore_state(state)
        assert generator.token_count() == 0
        generator.append_tokens(START)
        assert take(generator, 4) == oracle.greedy(LLAMA, START, 4)


def test_batches_beams_and_models_with_states_are_refused(llama: Model, state: bytes) -> None:
    for search in ({"batch_size": 2}, {"num_beams": 2}):
        with generator_of(llama, **search) as generator:
            with pytest.raises(OptionError, match="2 rows"):
                generator.restore_state(state)
            generator.append_tokens([START] * search.get("batch_size", 1))
            with pytest.raises(OptionError, match="2 rows"):
                generator.save_state()
    with generator_of(Model(str(FIXTURES / "families" / "lfm2"))) as generator:
        generator.append_tokens(START)
        with pytest.raises(UnsupportedModelError, match="states that each run overwrites"):
            generator.save_state()


def test_pictures_are_recognised_by_their_digests(ran: list[int]) -> None:
    genai_model = capstan.genai.Model(str(SEEING))
    model = Model(str(SEEING))

    def begun(generator: Generator, picture: bytes) -> Any:
        made = inputs(capstan.genai, genai_model, picture)
        generator.see(items_of(made["pixel_values"]))
        return made["input_ids"].as_numpy()[0]

    with generator_of(model, 600) as one:
        one.append_tokens(begun(one, GRADIENT))
        first = take(one, 4)
        state, rest = one.save_state(), take(one, 4)
    assert first == CASES["gradient"]["ids"][:4]
    with generator_of(model, 600) as other:
        other.restore_state(state)
        with pytest.raises(PictureError, match="no picture was given"):
            take(other, 1)
        begun(other, GRADIENT)
        ran.clear()
        assert take(other, 4) == rest
        assert ran == [1] * 4
    with generator_of(model, 600) as other:
        other.restore_state(state)
        begun(other, CHECKS)
        ran.clear()
        take(other, 1)
        assert ran[0] > 256, "the tokens from another picture on run again"


def test_a_long_rope_continues_on_both_sides_of_its_original_length(ran: list[int]) -> None:
    for count in (4, 12):
        with generator_of(Model(str(LONG_ROPE))) as one, generator_of(Model(str(LONG_ROPE))) as other:
            one.append_tokens(LONG_START)
            taken = take(one, count)
            other.restore_state(one.save_state())
            ran.clear()
            assert take(other, 12) == oracle.again(LONG_ROPE, [*LONG_START, *taken], 12)
            assert (max(ran) > 1) == (count == 4), "the factors change for all positions"
