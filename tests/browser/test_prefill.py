"""The cost of a prompt besides its kernels; its chunks give the same results as one run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import oracle
from tests.browser.page_scripts import PageScripts

pytestmark = pytest.mark.own_page

FIXTURES = Path(__file__).parents[1] / "fixtures"
LENGTHS = [1, 5, 40, 64, 150]
"""One id, few, more than 32 (where attention's kernel changes), a whole chunk, three chunks."""


@pytest.mark.one_in(2)
@pytest.mark.parametrize("model", ["nano-llama", "nano-shape"])
def test_a_prefill_reads_nothing_back(model: str, scripts: PageScripts) -> None:
    found = scripts.run("counting", "prefills", model, model=model, capture="tape", lengths=LENGTHS)
    assert found["chunk"] == 64
    for length, seen in found["prefills"].items():
        assert (seen["readbacks"], seen["readback_bytes"]) == (0, 0), length
        assert seen["create_buffer"] == 0, length


@pytest.mark.one_in(2)
@pytest.mark.parametrize("model", ["nano-llama", "nano-copies"])
def test_an_eager_step_reads_back_its_pick_alone(model: str, scripts: PageScripts) -> None:
    step = scripts.run("counting", "prefills", model, model=model, capture="off", lengths=[5])["step"]
    assert (step["readbacks"], step["readback_bytes"]) == (1, 4)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("count", [63, 64, 65, 150])
def test_a_prompt_in_chunks_is_continued_as_by_the_oracle(count: int, scripts: PageScripts) -> None:
    prompt = [(37 * i + 11) % 509 for i in range(count)]
    for capture in ("tape", "off"):
        found = scripts.run("counting", "picks", "nano-llama", model="nano-llama", capture=capture, prompt=prompt)
        assert found == oracle.greedy(FIXTURES / "nano-llama", prompt, 8), capture


@pytest.mark.extended
def test_the_kernels_of_long_prompts_are_compiled_before_the_first(scripts: PageScripts) -> None:
    lengths = {"model": "nano-llama", "lengths": [4, 31, 32, 64, 150]}
    assert scripts.run("counting", "compiled", "nano-llama", early=True, **lengths) == [0] * 5
    late = scripts.run("counting", "compiled", "nano-llama", early=False, **lengths)
    assert late[2] > 0, "no kernel is particular to long prompts: compiling them early has no reason"
