"""Long rope on CPython: rotary tables as inputs, and caches computed again where a sequence outgrows the short ones.

A generator of the native package does so where its one sequence has 4097 tokens. `oracle.again` has it do so at any
length: each token is picked by a generator that is given the whole sequence.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

import capstan
from capstan import (
    DeviceLostError,
    FallbackWarning,
    OptionError,
    PromptError,
    Speculation,
    UnsupportedModelError,
    graph,
)
from capstan.device.rope_tables import RopeTables, places
from capstan.fallback import fallbacks
from capstan.generation.row_pool import poolable
from capstan.graph.graph_passes import rewritten
from capstan.graph.onnx_pb2 import ModelProto
from capstan.graph.rewriting import Rewriting
from capstan.model_files.genai_config_file import parse_genai_config
from tests import oracle
from tests.long_ropes import LONG_ROPE, ORIGINAL, branches, changed_at, choice_of, halved, joined, one_kind
from tests.unit.paper_model import PROMPT, made, run_of
from tests.unit.paper_model import take as taken

LLAMA = LONG_ROPE.parents[1] / "nano-llama"
SHORT = [5, 6, 7, 8, 9]
NEAR = [(29 * i + 3) % 509 for i in range(ORIGINAL - 4)]
"""A prompt that is outgrown within few tokens."""
LONG = [(37 * i + 11) % 509 for i in range(ORIGINAL + 6)]


def parsed(folder: Path = LONG_ROPE) -> ModelProto:
    return graph.parse((folder / "model.onnx").read_bytes())


def load(folder: Path = LONG_ROPE, **options: Any) -> capstan.Model:
    return asyncio.run(capstan.Model.load(folder, device="reference", **options))


@pytest.fixture(scope="module")
def model() -> Iterator[capstan.Model]:
    with closing(load()) as opened:
        yield opened


def generator_of(model: capstan.Model, speculation: Speculation | None = None, **search: Any) -> capstan.Generator:
    params = capstan.GeneratorParams(model)
    params.set_search_options(**search)
    params.set_speculation(speculation)
    return capstan.Generator(model, params)


def take(generator: capstan.Generator, count: int) -> list[int]:
    found = []
    for _ in range(count):
        generator.generate_next_token()
        found.append(int(generator.get_next_tokens()[0]))
    return found


class TestGraph:
    def test_the_tables_that_an_if_chooses_become_inputs(self) -> None:
        model, file = parsed(), (LONG_ROPE / "model.onnx").read_bytes()
        made, rope = graph.long_rope(model, file=file)
        assert rope is not None
        assert (rope.original, rope.positions) == (64, 512)
        assert [(table.name, table.dtype, table.width) for table in rope.tables] == [
            ("cos_cache", "float32", 8),
            ("sin_cache", "float32", 8),
        ]
        assert not {"If", "Greater"} & {node.op_type for node in made.graph.node}
        assert not graph.uncapturable(graph.total_length_on_gpu(made))
        assert [value.name for value in made.graph.input[-2:]] == ["cos_cache", "sin_cache"]
        wanted = [tensor for branch in ("else_branch", "then_branch") for tensor in branches(model)[branch]]
        for place, tensor in zip(places(rope), wanted, strict=True):
            assert (place.location, place.rows) == ("", tensor.dims[0])
            assert file[place.offset : place.offset + place.length] == tensor.raw_data

    @pytest.mark.parametrize("external", [True, False])
    def test_tables_with_long_rows_behind_short_ones_become_inputs(self, external: bool, tmp_path: Path) -> None:
        folder = joined(tmp_path, external=external)
        file = folder / ("model.onnx.data" if external else "model.onnx")
        made, rope = graph.long_rope(parsed(folder), joined_at=64, file=(folder / "model.onnx").read_bytes())
        assert rope is not None
        assert (rope.original, rope.positions) == (64, 512)
        assert not {"cos_cache", "sin_cache"} & {tensor.name for tensor in made.graph.initializer}
        wanted = [tensor for branch in ("else_branch", "then_branch") for tensor in branches(parsed())[branch]]
        for place, tensor in zip(places(rope), wanted, strict=True):
            assert place.location == ("model.onnx.data" if external else "")
            assert file.read_bytes()[place.offset : place.offset + place.length] == tensor.raw_data

    def test_a_model_with_one_kind_of_factors_stays_as_it_is(self) -> None:
        assert graph.long_rope(parsed(LLAMA)) == (parsed(LLAMA), None)
        assert graph.rope_of_length(parsed(LLAMA), 1000) == parsed(LLAMA)

    @pytest.mark.parametrize("form", ["if", "joined"])
    def test_the_graph_of_one_run_has_the_tables_for_its_length(self, form: str, tmp_path: Path) -> None:
        folder = joined(tmp_path) if form == "joined" else LONG_ROPE
        config = parse_genai_config((folder / "genai_config.json").read_bytes())
        data = (folder / "model.onnx.data").read_bytes()
        for length in (ORIGINAL, ORIGINAL + 1):
            made = rewritten(parsed(folder), "layers on reference", Rewriting(config, run_length=length))
            options = onnxruntime.SessionOptions()
            options.add_external_initializers_from_files_in_memory(["model.onnx.data"], [data], [len(data)])
            session = onnxruntime.InferenceSession(graph.serialize(made), options, providers=["CPUExecutionProvider"])
            feeds: dict[str, Any] = {
                "input_ids": np.array([LONG[:length]], np.int64),
                "attention_mask": np.array([[1] * length], np.int64),
            }
            empty = np.zeros((1, 2, 0, 16), np.float32)
            feeds |= {f"past_key_values.{layer}.{kind}": empty for layer in range(2) for kind in ("key", "value")}
            logits = session.run(["logits"], feeds)[0][0, -1]
            assert np.allclose(logits, oracle.logits(LONG_ROPE, LONG[:length]), atol=1e-4)

    @pytest.mark.parametrize("other", ["kind", "source"])
    def test_a_choice_by_something_else_is_refused(self, other: str) -> None:
        model = parsed()
        [greater] = [node for node in model.graph.node if node.op_type == "Greater"]
        if other == "kind":
            greater.op_type = "Less"
        else:
            greater.input[0] = "input_ids"
        with pytest.raises(UnsupportedModelError, match=r"\(If\) chooses rotary factors, but not by comparing"):
            graph.long_rope(model)

    def test_tables_that_a_branch_computes_are_refused(self) -> None:
        model = parsed()
        branch = next(item.g for item in choice_of(model).attribute if item.name == "then_branch")
        branch.node[0].op_type = "RandomNormal"
        with pytest.raises(UnsupportedModelError, match=r"\(If\) computes rotary factors by node .* \(RandomNormal\)"):
            graph.long_rope(model)

    def test_tables_that_are_no_bytes_of_the_file_are_refused(self) -> None:
        told = r"rotary factors cos_cache have 2048 bytes of raw_data, expected 2048 in the graph's file"
        with pytest.raises(UnsupportedModelError, match=told):
            graph.long_rope(parsed(), file=b"another file")
        model = parsed()
        branches(model)["then_branch"][1].ClearField("raw_data")
        with pytest.raises(
            UnsupportedModelError, match=r"rotary factors sin_cache have 0 bytes of raw_data, expected 16384"
        ):
            graph.long_rope(model)

    def test_tables_of_different_widths_are_refused(self) -> None:
        model = parsed()
        branches(model)["then_branch"][0].dims[:] = [1024, 4]
        told = r"rotary factors cos_cache are \[64, 8\] and \[1024, 4\], expected floats of one type"
        with pytest.raises(UnsupportedModelError, match=told):
            graph.long_rope(model)

    def test_rows_behind_the_short_ones_are_long_ones(self) -> None:
        _, rope = graph.long_rope(parsed())
        assert rope is not None
        row = 8 * 4
        tables = RopeTables.of(rope, [b"s" * 64 * row, b"S" * 64 * row, b"l" * 512 * row, b"L" * 512 * row])
        assert tables.rows(True, 70) == [b"l" * 70 * row, b"L" * 70 * row]
        assert tables.rows(False, 70) == [b"s" * 64 * row + b"l" * 6 * row, b"S" * 64 * row + b"L" * 6 * row]
        assert tables.rows(False, 10) == [b"s" * 10 * row, b"S" * 10 * row]


class TestSequences:
    def test_one_that_outgrows_the_original_length_is_computed_anew_once(self, model: capstan.Model) -> None:
        assert (model.config.context_length, model.original_length) == (512, 64)
        with generator_of(model) as generator:
            generator.append_tokens(SHORT)
            assert take(generator, 60) == oracle.greedy(LONG_ROPE, SHORT, 60)
            assert (generator.token_count(), generator.rope_changes) == (65, 0)
            rest = take(generator, 30)
            assert generator.rope_changes == 1
        assert rest == oracle.again(LONG_ROPE, SHORT, 90)[60:]
        assert rest != oracle.greedy(LONG_ROPE, SHORT, 90)[60:], "the keys of before would do, too"

    def test_a_prompt_that_is_longer_begins_with_the_long_factors(self, model: capstan.Model) -> None:
        for length in (ORIGINAL, ORIGINAL + 1, ORIGINAL + 6):
            with generator_of(model) as generator:
                generator.append_tokens(LONG[:length])
                assert take(generator, 12) == oracle.again(LONG_ROPE, LONG[:length], 12)
                assert generator.rope_changes == (length == ORIGINAL)

    def test_one_that_is_cut_to_the_original_length_is_computed_anew(self, model: capstan.Model) -> None:
        with generator_of(model) as generator:
            generator.append_tokens(LONG)
            take(generator, 3)
            generator.rewind_to(ORIGINAL + 2)
            assert take(generator, 2) == oracle.again(LONG_ROPE, LONG[: ORIGINAL + 2], 2)
            assert generator.rope_changes == 0
            generator.rewind_to(ORIGINAL - 2)
            assert take(generator, 8) == oracle.again(LONG_ROPE, LONG[: ORIGINAL - 2], 8)
            assert generator.rope_changes == 2

    def test_tokens_appended_across_the_original_length_have_all_computed_anew(self, model: capstan.Model) -> None:
        with generator_of(model) as generator:
            generator.append_tokens(LONG[:40])
            first = take(generator, 3)
            generator.append_tokens(LONG[40:])
            whole = [*LONG[:40], *first, *LONG[40:]]
            assert take(generator, 5) == oracle.again(LONG_ROPE, whole, 5)
            # And on, once it is outgrown.
            generator.append_tokens(SHORT)
            assert generator.rope_changes == 1
            assert take(generator, 3) == oracle.again(LONG_ROPE, generator.get_sequence()[: len(whole) + 10], 3)
            assert generator.rope_changes == 1

    def test_a_limit_at_the_original_length_changes_nothing(self, model: capstan.Model) -> None:
        for limit, changes in ((ORIGINAL, 0), (ORIGINAL + 1, 0), (ORIGINAL + 2, 1)):
            with generator_of(model, max_length=limit) as generator:
                generator.append_tokens(NEAR)
                found = take(generator, limit - len(NEAR))
                assert found == oracle.again(LONG_ROPE, NEAR, len(found))
                assert (generator.finish_reason, generator.rope_changes) == ("length", changes)

    def test_logits_behind_it_are_those_of_the_long_factors(self, model: capstan.Model) -> None:
        with generator_of(model) as generator:
            generator.append_tokens(NEAR)
            take(generator, 5)
            found = np.array(generator.get_logits())
            assert np.allclose(found, oracle.logits(LONG_ROPE, generator.get_sequence()), atol=1e-4)

    @pytest.mark.parametrize(("start", "accepted"), [([166], 7), ([8, 269], 2)])
    def test_drafts_do_not_reach_past_it(self, start: list[int], accepted: int, model: capstan.Model) -> None:
        prompt = (start * ORIGINAL)[: ORIGINAL - 6]
        with generator_of(model, Speculation(always=True, ngram_size=2)) as generator:
            generator.append_tokens(prompt)
            assert take(generator, 16) == oracle.again(LONG_ROPE, prompt, 16)
            assert generator.speculation is not None
            assert (generator.speculation.accepted, generator.rope_changes) == (accepted, 1)

    def test_a_processor_sees_the_logits_of_the_long_factors(self, model: capstan.Model) -> None:
        params = capstan.GeneratorParams(model, logits_processor=lambda tokens, logits: None)
        with capstan.Generator(model, params) as generator:
            generator.append_tokens(NEAR)
            assert take(generator, 12) == oracle.again(LONG_ROPE, NEAR, 12)
            assert generator.rope_changes == 1

    def test_a_grammar_goes_on(self, model: capstan.Model) -> None:
        params = capstan.GeneratorParams(model)
        params.set_guidance("regex", r"(.|\n)*")
        with capstan.Generator(model, params) as generator:
            generator.append_tokens(NEAR)
            assert take(generator, 10) == oracle.again(LONG_ROPE, NEAR, 10)
            assert generator.rope_changes == 1

    def test_the_memory_that_is_told_has_the_tables(self, model: capstan.Model) -> None:
        items = {item.name: item.bytes for item in model.query_memory_requirements(max_length=500).items}
        assert (items["rope cos_cache"], items["rope sin_cache"]) == (512 * 8 * 4, 512 * 8 * 4)
        items = {item.name: item.bytes for item in model.query_memory_requirements(2, max_length=256).items}
        assert items["row 1 rope cos_cache"] == 256 * 8 * 4

    @pytest.mark.parametrize("length", [ORIGINAL, ORIGINAL + 1])
    def test_a_run_of_one_layer_at_a_time_has_the_factors_for_its_length(
        self, length: int, model: capstan.Model
    ) -> None:
        found = asyncio.run(model.computed_output(LONG[:length], "logits"))
        logits = np.frombuffer(found.data, np.float32).reshape(found.dims)[0, -1]
        assert np.allclose(logits, oracle.logits(LONG_ROPE, LONG[:length]), atol=1e-4)

    def test_a_prompt_past_the_context_is_refused(self, model: capstan.Model) -> None:
        told = r"would have 513 tokens; max_length is 512"
        with generator_of(model) as generator, pytest.raises(PromptError, match=told):
            generator.append_tokens([5] * 513)


class TestRunningAhead:
    @pytest.mark.parametrize("run_ahead", [1, 3, 8, 64, None])
    async def test_no_step_is_queued_past_the_original_length(self, run_ahead: int | None) -> None:
        generator, paper = made(run_ahead=run_ahead, max_length=30)
        paper.original_length = 20
        generator.append_tokens(PROMPT)

        ids = [token async for token in generator]
        assert ids == run_of(PROMPT, 30 - len(PROMPT))
        [decoder] = paper.decoders
        assert decoder.prefills == [(PROMPT, 0), ([*PROMPT, *ids][:21], 0)]
        before = 21 - len(PROMPT)
        assert decoder.rotated == [(False, 0, 0), (False, 0, 0), (True, 1, before)]
        assert sum(picks for picks, _ in decoder.submitted) == before + 9
        assert generator.rope_changes == 1

    async def test_after_a_lost_device_another_decoder_has_the_long_factors(self) -> None:
        generator, paper = made(run_ahead=1, max_length=40)
        paper.original_length = 20
        generator.append_tokens(PROMPT)
        ids = await taken(generator, 22)
        paper.decoders[0].fault = DeviceLostError("gone")
        ids += await taken(generator, 6)
        assert ids == run_of(PROMPT, 28)
        after = paper.decoders[1]
        assert after.rotated[0] == (True, 0, 0)
        assert after.prefills[0] == ([*PROMPT, *ids][:21], 0), "as it was run before"
        assert generator.rope_changes == 1

    def test_of_a_model_with_one_kind_of_factors_no_others_are_asked_for(self) -> None:
        generator, paper = made(max_length=30)
        generator.append_tokens(PROMPT)
        asyncio.run(taken(generator, 20))
        assert paper.decoders[0].rotated == []


class TestRows:
    def test_rows_are_computed_anew_together(self, model: capstan.Model) -> None:
        prompts = [NEAR, LONG[: len(NEAR)]]
        with generator_of(model, batch_size=2) as generator:
            generator.append_tokens(prompts)
            for _ in range(12):
                generator.generate_next_token()
            found = [generator.get_sequence(row)[len(NEAR) :] for row in range(2)]
            assert generator.rope_changes == 1
        assert found == [oracle.again(LONG_ROPE, prompt, 12) for prompt in prompts]

    def test_a_row_is_rotated_as_the_longest_one(self, model: capstan.Model) -> None:
        """As in the native package, where the mask is as wide as the longest prompt."""
        prompts = [LONG, LONG[10:40] + [2] * (len(LONG) - 30)]
        with generator_of(model, batch_size=2) as generator:
            generator.append_tokens(prompts)
            for _ in range(6):
                generator.generate_next_token()
            found = [generator.get_sequence(row) for row in range(2)]
            assert generator.rope_changes == 0
        assert found == oracle.rows(LONG_ROPE, prompts, max_length=len(LONG) + 6).sequences

    def test_beams_are_computed_anew_together(self, model: capstan.Model) -> None:
        with generator_of(model, num_beams=2, max_length=ORIGINAL + 12) as generator:
            generator.append_tokens(NEAR)
            while not generator.is_done():
                generator.generate_next_token()
            found = generator.get_sequence()
            assert generator.rope_changes == 1
        assert found == beams(NEAR, 2, ORIGINAL + 12)

    def test_a_sequence_that_may_outgrow_it_has_steps_of_its_own(self, model: capstan.Model) -> None:
        params = capstan.GeneratorParams(model)
        params.set_search_options(max_length=ORIGINAL + 1)
        assert poolable(model, params)
        params.set_search_options(max_length=ORIGINAL + 2)
        with pytest.warns(FallbackWarning, match=r"a max_length of 66 is past the original length of 64"):
            assert not poolable(model, params)


def beams(prompt: list[int], count: int, length: int) -> list[int]:
    """The best of some beams, each step over whole sequences."""
    kept = [(0.0, list(prompt))]
    while len(kept[0][1]) < length:
        found = []
        for score, ids in kept:
            logits = oracle.logits(LONG_ROPE, ids).astype(np.float64)
            scores = logits - logits.max()
            scores -= np.log(np.exp(scores).sum())
            found += [(score + scores[token], [*ids, int(token)]) for token in np.argsort(-scores)[: 2 * count]]
        kept = sorted(found, key=lambda each: -each[0])[:count]
    return kept[0][1]


class TestPrefixes:
    def test_short_and_long_sequences_share_no_rows(self) -> None:
        with closing(load(prefix_cache=1 << 20)) as model:
            prompts = [LONG[:50], LONG, LONG[:60], [*LONG, 5, 6]]
            open_, reused = [], []
            for prompt in prompts:
                generator = generator_of(model)
                open_.append(generator)
                generator.append_tokens(prompt)
                assert take(generator, 2) == oracle.again(LONG_ROPE, prompt, 2)
                reused.append(generator.reused_tokens)
            assert reused == [0, 0, 50, 70]
            for generator in open_:
                generator.close()
            # Their rows are kept apart once they are closed, too.
            for prompt, rows in ((LONG[:55], 54), ([*LONG[:66], 9], 66)):
                with generator_of(model) as generator:
                    generator.append_tokens(prompt)
                    assert take(generator, 2) == oracle.again(LONG_ROPE, prompt, 2)
                    assert generator.reused_tokens == rows

    def test_one_that_outgrew_it_takes_over_long_rows(self) -> None:
        with closing(load(prefix_cache=1 << 20)) as model:
            [*ids] = [*NEAR, *oracle.again(LONG_ROPE, NEAR, 8)]
            with generator_of(model) as long, generator_of(model) as generator:
                long.append_tokens(ids)
                take(long, 1)
                generator.append_tokens(NEAR)
                assert take(generator, 8) == ids[len(NEAR) :]
                assert (generator.reused_tokens, generator.rope_changes) == (ORIGINAL, 1)


class TestForms:
    @pytest.mark.parametrize("external", [True, False])
    def test_tables_behind_one_another_give_the_same(self, external: bool, tmp_path: Path) -> None:
        with closing(load(joined(tmp_path, external=external))) as model, generator_of(model) as generator:
            assert (model.config.context_length, model.original_length) == (512, 64)
            generator.append_tokens(NEAR)
            assert take(generator, 12) == oracle.again(LONG_ROPE, NEAR, 12)

    def test_tables_in_float16_are_fed_as_such(self, tmp_path: Path) -> None:
        folder = halved(tmp_path)
        with closing(load(folder)) as model, generator_of(model) as generator:
            generator.append_tokens(NEAR)
            assert take(generator, 12) == oracle.again(folder, NEAR, 12)
            items = {item.name: item.bytes for item in model.query_memory_requirements(max_length=256).items}
            assert items["rope cos_cache"] == 256 * 8 * 2

    def test_sequences_end_where_there_are_no_long_tables(self, tmp_path: Path) -> None:
        with pytest.warns(FallbackWarning, match=r"^positions from 64 to the model's context_length of 512: "):
            model = load(one_kind(tmp_path))
        params = capstan.GeneratorParams(model)
        with pytest.raises(OptionError, match=r"max_length \(65\) cannot be .* context_length \(64\)"):
            params.set_search_options(max_length=65)
        with generator_of(model) as generator:
            generator.append_tokens(SHORT)
            assert take(generator, 59) == oracle.greedy(LONG_ROPE, SHORT, 59)
            assert generator.finish_reason == "length"

    def test_where_the_native_package_computes_anew_the_ids_are_its_own(self, tmp_path: Path) -> None:
        """It does so at 4097 tokens alone, of one sequence of the types phi3 and phimoe."""
        folder = changed_at(tmp_path, 4096, 4608)
        prompt = [(37 * i + 11) % 509 for i in range(4090)]
        with closing(load(folder)) as model, generator_of(model, max_length=4200) as generator:
            generator.append_tokens(prompt)
            assert take(generator, 20) == oracle.greedy(folder, prompt, 20, max_length=4200)
            assert generator.rope_changes == 1


def test_the_expected_ids_of_the_fixture_are_met(model: capstan.Model) -> None:
    before = fallbacks()
    for run in json.loads((LONG_ROPE / "expected.json").read_text()):
        with generator_of(model) as generator:
            generator.append_tokens(run["prompt"])
            assert take(generator, len(run["ids"])) == run["ids"]
    assert fallbacks() == before
