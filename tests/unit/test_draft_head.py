"""Drafts of a multi-token-prediction head, on the reference device: the tokens are those without drafts."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import onnx
import pytest

from capstan import FallbackWarning, Generator, GeneratorParams, Model, genai
from capstan.device.hidden_rows import KEPT, HiddenRows
from capstan.errors import ConfigError
from capstan.fallback import fallbacks
from capstan.model_files.genai_config_file import parse_genai_config
from capstan.stages.speculation_options import Speculation
from tests import oracle
from tests.heads import HEADS, right
from tests.unit.test_speculation import Edit, edited, generated, made

FOLDER = HEADS / "qwen3_5_mtp"
PROMPT = [(31 * i + 7) % 253 for i in range(70)]
LENGTH = len(PROMPT) + 90
ONE, THREE = (Speculation(max_draft_tokens=count, always=True) for count in (1, 3))
SEARCHES: dict[str, dict[str, Any]] = {
    "greedy": {"do_sample": False},
    "drawn": {"do_sample": True, "temperature": 0.9, "top_k": 20, "random_seed": 3},
    "penalties": {"do_sample": False, "repetition_penalty": 1.3, "no_repeat_ngram_size": 3},
}


@pytest.fixture(scope="module")
def model() -> Model:
    return Model(str(FOLDER))


@pytest.fixture(scope="module")
def wrong(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """The model with a head whose logits have the other sign."""
    return Model(str(with_head_of_other_sign(tmp_path_factory.mktemp("wrong") / "model")))


def with_head_of_other_sign(folder: Path) -> Path:
    shutil.copytree(FOLDER, folder)
    head = onnx.load(str(folder / "mtp.onnx"), load_external_data=False)
    logits = head.graph.output[[value.name for value in head.graph.output].index("logits")]
    [maker] = [node for node in head.graph.node if "logits" in node.output]
    maker.output[0] = "turned"
    head.graph.node.append(onnx.helper.make_node("Neg", ["turned"], [logits.name]))
    onnx.save(head, str(folder / "mtp.onnx"))
    return folder


def changed(folder: Path, **mtp: Any) -> Path:
    """A copy of the model whose configuration has other fields of model.mtp."""
    shutil.copytree(FOLDER, folder)
    path = folder / "genai_config.json"
    tree = json.loads(path.read_text())
    tree["model"]["mtp"] |= mtp
    path.write_text(json.dumps(tree))
    return folder


class TestTokens:
    @pytest.mark.parametrize("search", SEARCHES)
    @pytest.mark.parametrize("head", ["right", "wrong"])
    def test_they_are_those_without_drafts(self, search: str, head: str, model: Model, wrong: Model) -> None:
        found, run = [], model if head == "right" else wrong
        for options in (None, ONE, THREE):
            with made(run, options, max_length=LENGTH, **SEARCHES[search]) as generator:
                generator.append_tokens(PROMPT)
                found.append(generated(generator))
                stats = generator.speculation
        assert found[0] == found[1] == found[2]
        assert stats is not None
        assert stats.none, "where nothing is refused this shows little"
        assert stats.proposed == 3 * stats.rounds
        assert stats.acceptance > 0.3 if head == "right" else stats.acceptance < 0.1

    def test_they_are_onnxruntimes_and_so_is_what_is_accepted(self, model: Model) -> None:
        expected = oracle.greedy(FOLDER, PROMPT, LENGTH - len(PROMPT))
        with made(model, ONE, do_sample=False, max_length=LENGTH) as generator:
            generator.append_tokens(PROMPT)
            assert generated(generator) == expected
            stats = generator.speculation
        assert stats is not None
        sequence = [*PROMPT, *expected]
        drafted, place, counts = right(FOLDER, sequence), len(PROMPT) + 1, [0, 0]
        while LENGTH - place >= 2:
            accepted = int(drafted[place - 2])
            counts[accepted] += 1
            place += 1 + accepted
        assert stats.accepted_by_step[:2] == counts
        assert all(counts)

    def test_rewinding_and_appending_change_nothing(self, model: Model) -> None:
        found = []
        for options in (None, THREE):
            with made(model, options, max_length=LENGTH, do_sample=False) as generator:
                edits: list[Edit] = [(31, 20, [41]), (17, 3, [42, 43]), (40, 41, []), (9, 1, []), (3, 0, PROMPT)]
                steps = edited(generator, PROMPT, edits)
                found.append([*steps, generated(generator, 30), generator.get_sequence()])
        assert found[0] == found[1]

    def test_log_probabilities_take_plain_steps(self, model: Model) -> None:
        with made(model, THREE, max_length=LENGTH, do_sample=False) as generator:
            generator.append_tokens(PROMPT)
            expected = oracle.greedy(FOLDER, PROMPT, 40)
            assert generated(generator, 20) == expected[:20]
            with pytest.warns(FallbackWarning, match="log probabilities wait"):
                generator.watch_log_probabilities(2)
            for token in expected[20:30]:
                generator.generate_next_token()
                [likely] = generator.get_log_probabilities()
                assert max(likely, key=likely.__getitem__) == token
            generator.watch_log_probabilities(None)
            assert generated(generator, 10) == expected[30:]


class TestChoice:
    def test_a_head_drafts_where_that_pays(self, model: Model, wrong: Model) -> None:
        params = GeneratorParams(model)
        assert params.speculation == Speculation(max_draft_tokens=2)
        for each in (model, wrong):
            with made(each, params.speculation, do_sample=False, max_length=LENGTH) as generator:
                generator.append_tokens(PROMPT)
                generated(generator)
                assert generator.speculation is not None
                assert generator.speculation.switched_on
                assert generator.speculation.switched_off or each is model

    def test_its_memory_is_told(self, model: Model) -> None:
        draft = model.query_memory_requirements().draft
        assert draft is not None
        assert draft.weights.bytes

    def test_a_disabled_head_is_not_loaded(self, tmp_path: Path) -> None:
        for given in (
            Model(str(changed(tmp_path / "disabled", enabled=False))),
            Model(str(FOLDER), overlay={"model": {"mtp": {"enabled": False}}}),
        ):
            assert given.draft_model is None
            assert GeneratorParams(given).speculation is None

    @pytest.mark.parametrize(
        ("fields", "told"),
        [
            ({"filename": "absent.onnx"}, "absent.onnx"),
            ({"inputs": {"hidden_states": "absent"}}, "input absent is missing"),
            ({"num_hidden_layers": 2}, "model.mtp: Capstan drafts with heads of one layer"),
            ({"shared_kv_layers": [1]}, "caches of the model"),
        ],
    )
    def test_a_head_that_cannot_be_used_is_told_and_counted(
        self, fields: dict[str, Any], told: str, tmp_path: Path
    ) -> None:
        before = fallbacks()
        with pytest.warns(FallbackWarning, match=told):
            other = Model(str(changed(tmp_path / "model", **fields)))
        assert sum(fallbacks().values()) == sum(before.values()) + 1
        with Generator(other, GeneratorParams(other)) as generator:
            generator.append_tokens(PROMPT)
            assert generated(generator, 12) == oracle.greedy(FOLDER, PROMPT, 12)

    @pytest.mark.parametrize("fields", [{"enabled": 1}, {"head_size": 0}, {"filename": "../mtp.onnx"}])
    def test_a_damaged_section_is_refused_by_its_path(self, fields: dict[str, Any]) -> None:
        tree = json.loads((FOLDER / "genai_config.json").read_text())
        tree["model"]["mtp"] |= fields
        with pytest.raises(ConfigError, match=rf"model\.mtp\.{next(iter(fields))}"):
            parse_genai_config(json.dumps(tree))


def test_generators_of_the_native_interface_draft_with_it() -> None:
    loaded = genai.Model(str(FOLDER))
    params = genai.GeneratorParams(loaded)
    params.set_search_options(max_length=LENGTH, do_sample=False)
    generator = genai.Generator(loaded, params)
    generator.append_tokens(PROMPT)
    while not generator.is_done():
        generator.generate_next_token()
    assert list(generator.get_sequence(0))[len(PROMPT) :] == oracle.greedy(FOLDER, PROMPT, LENGTH - len(PROMPT))
    assert generator.get_speculative_stats()["draft_tokens_accepted"]


class TestHiddenRows:
    def test_those_of_the_last_positions_are_kept(self) -> None:
        rows = HiddenRows(2)
        for past in range(0, 5 * KEPT, 100):
            rows.ran(past, b"".join((position % 251).to_bytes(2, "little") for position in range(past, past + 100)))
            assert KEPT <= rows.end - rows.first <= 2 * KEPT or rows.first == 0
            assert rows.end == past + 100
            last = rows.between(rows.end - 3, rows.end)
            assert last == b"".join((position % 251).to_bytes(2, "little") for position in range(past + 97, past + 100))

    def test_a_run_drops_later_positions_and_a_gap_drops_all(self) -> None:
        rows = HiddenRows(1)
        rows.ran(0, b"abcdef")
        rows.ran(4, b"xy")
        rows.ran(5, b"z")
        assert (rows.first, rows.end, rows.between(0, 6)) == (0, 6, b"abcdxz")
        rows.ran(9, b"no")
        assert (rows.first, rows.end, rows.between(9, 11)) == (9, 11, b"no")
