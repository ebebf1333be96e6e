"""The names of models, and the search options of known ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import capstan
from capstan.loading.opening import facts_report, search_options
from capstan.model_files.genai_config import GenaiConfig, Stated
from capstan.model_files.gguf.gguf_config import config_from_json, config_to_json, gguf_config
from capstan.model_files.gguf.header import GgmlType
from capstan.model_files.hub import HubRepository
from capstan.model_files.known_models import KnownModel
from capstan.model_files.model_facts import ModelFacts, facts_of
from capstan.stages.search import SearchOptions
from capstan_host.model_arguments import about_model
from tests.gguf_files import gguf_file, header_of
from tests.gguf_models import contents, make

FIXTURES = Path(__file__).parents[1] / "fixtures"
CONVERTED = "Smollm2 135M 8k Lc100K Mix1 Ep2"
"""The name in SmolLM2-135M-Instruct.Q4_1.gguf, as its header has it."""
SMOLLM2 = capstan.models[0]


def config(name: str | None = None, search: Mapping[str, Any] | None = None, **stated: Any) -> GenaiConfig:
    made = capstan.Model(str(FIXTURES / "nano-llama"), device="reference").config
    return replace(made, search=search or {}, stated=Stated(name, **stated))


def written(folder: Path, pairs: dict[str, Any]) -> Path:
    """A small GGUF model with these metadata."""
    metadata, tensors = contents(make("llama", {"": GgmlType.Q8_0}, vocabulary=512))
    path = folder / "a.gguf"
    path.write_bytes(gguf_file(metadata | pairs, tensors))
    return path


@pytest.fixture
def mine() -> Iterator[KnownModel]:
    """A known model of the page's own."""
    search = {"do_sample": True, "temperature": 0.5}
    known = KnownModel(
        "me/mine:Mine.Q8_0.gguf",
        None,
        5,
        "llama",
        64,
        64,
        "MIT",
        needs_f16=False,
        tried=True,
        name="Mine",
        search=search,
    )
    capstan.models.append(known)
    yield known
    capstan.models.remove(known)


def test_a_model_is_known_by_the_name_in_its_file_whatever_the_file_is_called() -> None:
    facts = facts_of(config(CONVERTED, bytes=98_362_432, licence="apache-2.0"), "http://site/models/a.gguf")
    assert str(facts) == "SmolLM2-135M-Instruct, 135 M parameters, 98 MB, Apache 2.0"
    assert facts.search == {"do_sample": False, "temperature": 0.2, "top_p": 0.9}
    for name in ("SmolLM2 135M Instruct", "smollm2-135m_instruct"):
        assert facts_of(config(name), "a.gguf").search == facts.search, "converters differ in case and spaces"
    for name in ("SmolLM2 135M", "SmolLM2 135M Instruct Pirate"):
        other = facts_of(config(name), "SmolLM2-135M-Instruct.Q4_1.gguf")
        assert (other.name, other.search) == (name, {}), "the file's name does not count beside one in the file"
    strange = replace(config(CONVERTED), model_type="qwen2")
    assert facts_of(strange, "a.gguf").search == {}, "a model of another family is another model"


def test_without_a_name_in_it_a_file_is_known_by_its_own_and_a_repository_by_its_id(mine: KnownModel) -> None:
    assert facts_of(config(), "/models/mine.q8_0.gguf").search == mine.search
    assert facts_of(config(), "/models/other.gguf") == ModelFacts("other")
    assert facts_of(config("Else"), HubRepository("Me/Mine:Mine.Q8_0.gguf")).name == "Mine"
    assert facts_of(config("Else"), HubRepository("me/mine:Mine.Q4_0.gguf")).name == "Else"
    assert facts_of(config(), HubRepository("you/yours")).name == "yours"


@pytest.mark.parametrize(
    ("files", "used"),
    [
        ({}, True),
        ({"max_length": 64, "repetition_penalty": 1.2}, True),
        ({"do_sample": False}, False),
        ({"temperature": 0.9}, False),
        ({"top_k": 4}, False),
    ],
)
def test_what_the_files_say_of_sampling_wins_over_what_is_known(
    files: dict[str, Any], used: bool, mine: KnownModel
) -> None:
    made = config("Mine", files)
    facts = facts_of(made, "a.gguf")
    assert facts.search == (mine.search if used else {})
    told = facts_report(facts, search_options(made))["search"]
    assert told["do_sample"] is used
    assert told["temperature"] == (0.5 if used else files.get("temperature", 1.0))
    assert told["repetition_penalty"] == files.get("repetition_penalty", 1.0)


def test_a_model_of_the_python_package_keeps_what_its_files_say(mine: KnownModel, tmp_path: Path) -> None:
    """onnxruntime-genai's module builds on capstan.Model, and must behave like the native package."""
    found: list[ModelFacts] = []
    model = capstan.Model(str(written(tmp_path, {"general.name": "Mine"})), device="reference", on_found=found.append)
    assert [model.facts] == found
    assert (model.facts.name, model.facts.search) == ("Mine", mine.search)
    assert model.search.greedy
    assert capstan.GeneratorParams(model).search.greedy


def test_the_known_options_are_search_options() -> None:
    for known in capstan.models:
        SearchOptions().replace(**known.search)
        assert known.name in known.id.replace(".gguf", "") or known.name.lower() in known.id.lower()


def test_texts_of_a_file_are_shown_as_one_short_line() -> None:
    facts = facts_of(config("a\x1b[31m\n" + "b" * 200, licence="x\ty"), "a.gguf")
    assert facts.name == "a[31m" + "b" * 75
    assert str(replace(facts, name="A")) == "A, licence xy"
    assert facts_of(config("\n"), "a.gguf").name == "a"
    sizes = {999_400_000: "999 M", 1_235_000_000: "1.2 B", 70_600_000_000: "71 B", 251_000: "0.3 M"}
    for count, text in sizes.items():
        assert str(ModelFacts("A", count)) == f"A, {text} parameters"
    assert str(ModelFacts("A", None, 1_235_000_000, "mit")) == "A, 1.2 GB, MIT"


def test_a_gguf_file_states_its_name_parameters_size_and_licence(tmp_path: Path) -> None:
    pairs = {"general.basename": "gemma-3", "general.size_label": "270M", "general.license": "gemma"}
    path = written(tmp_path, pairs)
    header = header_of(path.read_bytes())
    found = gguf_config(header, path.name)
    assert (found.stated.name, found.stated.licence) == ("gemma-3-270M", "gemma")
    assert found.stated.parameters == sum(tensor.dims[0] * (*tensor.dims, 1)[1] for tensor in header.tensors.values())
    assert found.stated.bytes == pytest.approx(path.stat().st_size, abs=64)
    assert config_from_json(config_to_json(found)) == found
    named = gguf_config(header_of(path.read_bytes().replace(b"general.size_label", b"general.name_label")), path.name)
    assert named.stated.name == "gemma-3"


def test_the_site_lists_what_its_models_are_called(tmp_path: Path) -> None:
    path = written(tmp_path, {"general.name": CONVERTED})
    about = about_model(path)["facts"]
    assert about["name"] == SMOLLM2.name
    assert about["title"] == str(capstan.Model(str(path), device="reference").facts)
    assert about["search"]["do_sample"] is False
    assert about["search"]["temperature"] == 0.2
    assert about_model(FIXTURES / "nano-llama")["facts"]["name"] == "nano-llama"
    repository = FIXTURES / "repositories/nano-optimum"
    assert about_model(repository)["facts"] is None, "its configuration is derived with its graph"
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(gguf_file({"general.architecture": "llama"}))
    assert about_model(broken)["facts"] is None
