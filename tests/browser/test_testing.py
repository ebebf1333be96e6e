"""capstan.testing's fixtures in a page: ids against oracles, near ties, wrong weights, counters."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from capstan.testing.pages import PageModel

FIXTURES = Path(__file__).parents[1] / "fixtures"
LLAMA = FIXTURES / "nano-llama"
PROMPT = [5, 6, 7, 8, 9]
Opened = Callable[..., PageModel]


def test_ids_are_those_of_the_native_package_at_four_bytes_a_token(capstan_model: Opened) -> None:
    llm = capstan_model(LLAMA)
    agreement = llm.assert_ids(PROMPT, oracle="genai", tokens=21)
    assert (len(agreement.ids), agreement.ties) == (21, [])
    counters = llm.counters(PROMPT, 21)
    assert (counters.buffers, counters.bytes_per_token) == (0, 4.0)
    assert 0 < counters.submits <= counters.totals["steps"] + 1 == 21
    assert counters.per_token["create_bind_group"] == 0
