"""A generator that was saved continues in another load of the page, on each device and kind of cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from capstan.model_files.gguf.header import GgmlType
from capstan_host.site_server import SiteServer
from tests import oracle
from tests.browser.model_variants import Variants
from tests.browser.page_scripts import PageScripts
from tests.gguf_models import FURTHER, make, write
from tests.long_windows import CONTEXT, PROMPT, WINDOW, longer

FIXTURES = Path(__file__).parents[1] / "fixtures"
START = list(range(20, 60))
TAIL = [5, 9, 11]
SEEDED = {"do_sample": True, "temperature": 1.5, "random_seed": 7}
COUNT = 8
WAYS: dict[str, dict[str, Any]] = {
    "webgpu": {"device": "webgpu"},
    "eager": {"device": "webgpu", "capture": "off"},
    "wasm": {"device": "wasm"},
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


@pytest.mark.one_in(2)
@pytest.mark.parametrize("way", ["wasm", "webgpu"])
def test_a_gguf_file_continues(way: str, scripts: PageScripts, site: SiteServer, tmp_path: Path) -> None:
    sizes = {"block_count": 2, "context_length": 600}
    types = {"": GgmlType.Q4_1, "attn_v": GgmlType.Q6_K, "token_embd": GgmlType.Q8_0}
    made = make("smollm3", types, {**FURTHER["smollm3"], **sizes}, vocabulary=512)
    name = f"gguf-saved-{way}"
    site.models[name] = write(made, tmp_path / name / "model.gguf").parent
    try:
        found = continued(scripts, name, WAYS[way], file="model.gguf", prompt=PROMPT[:250], most=500)
    finally:
        del site.models[name]
    assert ("is a program" in str(found["note"])) == (way == "wasm")


@pytest.mark.one_in(2)
@pytest.mark.parametrize("way", ["webgpu", "wasm"])
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
    ways = [WAYS[name] for name in ("wasm", "eager", "int8")]
    *others, quantized = scripts.run(
        "saving", "between", "nano-llama", model="nano-llama", prompt=START, saving=WAYS["webgpu"], loads=ways
    )
    assert others == [[expected, len(START) + 3]] * 2
    assert "kv_cache_dtype" in quantized
