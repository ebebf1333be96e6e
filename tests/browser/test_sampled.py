"""Sampled ids: the same from run to run, from K to K and from device to reference."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from capstan import Generator, GeneratorParams, Model
from tests import oracle
from tests.browser.page_scripts import PageScripts

NANO = Path(__file__).parents[1] / "fixtures/nano-llama"
PROMPT = [5, 6, 7, 8, 9]
SEARCHES: dict[str, dict[str, Any]] = {
    "temperature": {"temperature": 1.3, "top_k": 0},
    "top_k": {"temperature": 0.9, "top_k": 20},
    "top_p": {"temperature": 0.9, "top_k": 0, "top_p": 0.8},
    "all": {"temperature": 0.7, "top_k": 50, "top_p": 0.95},
    "min_p": {"temperature": 1.3, "top_k": 0, "min_p": 0.1},
    "penalty": {"temperature": 0.7, "top_k": 50, "repetition_penalty": 1.3, "min_p": 0.02},
    "stages": {
        "temperature": 1.5,
        "top_k": 8,
        "presence_penalty": 0.5,
        "frequency_penalty": -0.4,
        "no_repeat_ngram_size": 2,
        "logit_bias": [[7, 2.5], [8, 2.0], [9, 2.0]],
        "bad_words_ids": [[224], [7, 8]],
    },
}


def picked(scripts: PageScripts, seed: int, **options: Any) -> list[int]:
    found = scripts.run(
        "sequences",
        "drive",
        "nano-llama",
        model="nano-llama",
        actions=[("append", PROMPT), ("generate", 24)],
        do_sample=True,
        random_seed=seed,
        **options,
    )
    assert options.get("device") == "wasm" or (found["capture"], found["note"]) == ("tape", None)
    ids: list[int] = found["picked"]
    return ids


@pytest.fixture(scope="module")
def first(installed_scripts: PageScripts) -> list[int]:
    return picked(installed_scripts, 5, run_ahead=8, **SEARCHES["all"])


@pytest.mark.one_in(2)
@pytest.mark.parametrize("run_ahead", [1, 3, 8, None], ids=["K1", "K3", "K8", "adaptive"])
def test_the_same_seed_gives_the_same_ids_whatever_the_run_ahead(
    run_ahead: int | None, first: list[int], scripts: PageScripts
) -> None:
    assert picked(scripts, 5, run_ahead=run_ahead, **SEARCHES["all"]) == first


def test_the_wasm_device_picks_the_same_ids(first: list[int], scripts: PageScripts) -> None:
    assert picked(scripts, 5, device="wasm", **SEARCHES["all"]) == first


def test_another_seed_gives_other_ids(first: list[int], scripts: PageScripts) -> None:
    other = picked(scripts, 6, run_ahead=8, **SEARCHES["all"])
    assert other != first
    assert len(set(other)) > 8


@pytest.mark.one_in(2)
@pytest.mark.parametrize("search", SEARCHES)
def test_the_gpu_picks_what_the_reference_sampler_picks_from_the_logits(search: str, scripts: PageScripts) -> None:
    found = scripts.run(
        "logits",
        "host_loop",
        "nano-llama",
        model="nano-llama",
        prompt=PROMPT,
        count=10,
        device="webgpu",
        do_sample=True,
        random_seed=2**40 + 3,
        **SEARCHES[search],
    )
    assert found["device"] == found["host"]
    assert len(set(found["host"])) > 3


@pytest.mark.one_in(2)
@pytest.mark.parametrize("device", ["webgpu", "wasm"])
def test_stages_follow_appended_and_rewound_tokens_as_the_oracle_does(device: str, scripts: PageScripts) -> None:
    repeated = [123, 158, 55] * 6
    actions = [("append", repeated), ("generate", 24), ("append", [11, 12]), ("generate", 6), ("rewind", 21)]
    actions += [("append", [30]), ("generate", 8)]
    search = {"repetition_penalty": 1.01, "no_repeat_ngram_size": 2}
    found = scripts.run(
        "sequences",
        "drive",
        "nano-llama",
        model="nano-llama",
        actions=actions,
        device=device,
        do_sample=False,
        **search,
    )
    assert found["picked"] == oracle.drive(NANO, actions, **search).picked
    assert found["picked"] != oracle.drive(NANO, actions, repetition_penalty=1.01).picked


def banned(_tokens: list[int], best: list[tuple[int, float]]) -> dict[int, float]:
    return {token: float("-inf") for token, _ in best[:2]}


@pytest.mark.one_in(4)
@pytest.mark.parametrize(("device", "capture"), [("webgpu", "tape"), ("webgpu", "off"), ("wasm", "tape")])
def test_processors_edit_what_the_device_picks_from(device: str, capture: str, scripts: PageScripts) -> None:
    search = {"do_sample": True, "top_k": 20, "random_seed": 3, "frequency_penalty": 0.5, "no_repeat_ngram_size": 2}
    model = Model(str(NANO))
    params = GeneratorParams(model, shortlist_processor=banned)
    params.set_search_options(**search)
    with Generator(model, params) as reference:
        for tokens, count in (PROMPT, 8), ([11, 12], 9):
            reference.append_tokens(tokens)
            for _ in range(count):
                reference.generate_next_token()
        expected = reference.get_sequence()
    asked = {"prompt": PROMPT, "count": 8, "appended": [11, 12], "device": device, "capture": capture}
    found = scripts.run("logits", "processed", "nano-llama", model="nano-llama", search=search, **asked)
    assert found["logits"]["sequence"] == expected
    assert found["shortlist"]["sequence"] == expected
    if (device, capture) == ("webgpu", "tape"):
        # 512 logits, or a sum with 16 pairs, and the picked id.
        assert (found["logits"]["bytes"], found["shortlist"]["bytes"]) == (4 * 512 + 4, 4 * 33 + 4)
        assert found["shortlist"]["capture"] == "tape"
