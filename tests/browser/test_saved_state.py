"""A generator that was saved continues in another load of the page, on each device and kind of cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests import oracle
from tests.browser.model_variants import Variants
from tests.browser.page_scripts import PageScripts
from tests.long_windows import CONTEXT, PROMPT, WINDOW, longer

FIXTURES = Path(__file__).parents[1] / "fixtures"
START = list(range(20, 60))
TAIL = [5, 9, 11]
SEEDED = {"do_sample": True, "temperature": 1.5, "random_seed": 7}
COUNT = 8
WAYS: dict[str, dict[str, Any]] = {
    "webgpu": {"device": "webgpu"},
    "eager": {"device": "webgpu", "capture": "off"},
    "program": {"device": "wasm"},
    "onnxruntime": {"device": "wasm", "capture": "off"},
    "int8": {"device": "webgpu", "kv_cache_dtype": "int8"},
}


def continued(scripts: PageScripts, model: str, load: dict[str, Any], **arguments: Any) -> dict[str, Any]:
    given = {"prompt": START, "tail": TAIL, "count": COUNT, **arguments}
    found: dict[str, Any] = scripts.run("saving", "continued", model, model=model, load=load, **given)
    assert found["restored"] == found["unbroken"]
    assert (found["reused"], found["recomputed"]) == (len(given["prompt"]) + COUNT - 1, 0), "one token ran again"
    assert (found["refused"], found["length"]) == (["StorageError"] * 2, 0)
    assert found["stepped down"] == []
    return found


@pytest.mark.one_in(2)
@pytest.mark.parametrize("way", WAYS)
def test_ids_are_those_of_an_unbroken_sequence(way: str, scripts: PageScripts) -> None:
    found = continued(scripts, "nano-llama", WAYS[way])
    if way != "int8":
        first = oracle.greedy(FIXTURES / "nano-llama", START, 2 * COUNT)
        assert found["first"] + found["restored"][:COUNT] == first
        answered = [*START, *first, *TAIL]
        assert found["restored"][COUNT:] == oracle.greedy(FIXTURES / "nano-llama", answered, COUNT)


@pytest.mark.parametrize("way", ["webgpu", "program"])
def test_seeded_ids_are_those_of_an_unbroken_sequence(way: str, scripts: PageScripts) -> None:
    continued(scripts, "nano-llama", WAYS[way], **SEEDED)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("prompt", [60, WINDOW + 512 + 64], ids=["whole", "slid"])
def test_caches_that_slide_continue(prompt: int, variants: Variants, scripts: PageScripts) -> None:
    source = FIXTURES / "nano-gemma3"
    name = longer(source, variants.folder(f"nano-gemma3-saved-{prompt}", source)).name
    found = continued(scripts, name, WAYS["webgpu"], prompt=PROMPT[:prompt], most=CONTEXT)
    assert found["base"] == (prompt > WINDOW + 512)
    assert found["first"] == oracle.greedy(variants.place / name, PROMPT[:prompt], COUNT)


def test_a_state_moves_between_devices_with_the_same_caches(scripts: PageScripts) -> None:
    expected = oracle.greedy(FIXTURES / "nano-llama", START, 8)[4:]
    ways = [WAYS[name] for name in ("program", "onnxruntime", "eager", "int8")]
    *others, quantized = scripts.run(
        "saving", "between", "nano-llama", model="nano-llama", prompt=START, saving=WAYS["webgpu"], loads=ways
    )
    assert others == [[expected, len(START) + 3]] * 3
    assert "kv_cache_dtype" in quantized
