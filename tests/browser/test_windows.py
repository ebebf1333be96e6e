"""Attention with a window: decode steps from a tape pick what onnxruntime-genai picks, past every window."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests import oracle
from tests.browser.model_variants import Variants, looking_back
from tests.browser.page_scripts import PageScripts

FIXTURES = Path(__file__).parents[1] / "fixtures"
LLAMA, GEMMA3 = FIXTURES / "nano-llama", FIXTURES / "nano-gemma3"
PROMPTS = {"short": [5, 6, 7, 8, 9], "past the window": [(31 * i + 7) % 509 for i in range(150)]}
COUNT = 100


@pytest.fixture(scope="module")
def folders(variants: Variants) -> dict[str, Path]:
    """By name: windows in every second layer, in all, and one that ends where a step was compared already."""
    made = {name: variants.graph(f"nano-window-{name}", looking_back(size)) for name, size in (("16", 16), ("40", 40))}
    variants.site.models["nano-gemma3"] = GEMMA3
    return {"gemma3": GEMMA3} | {name: variants.place / folder for name, folder in made.items()}


def generated(scripts: PageScripts, folder: Path, prompt: list[int], count: int, **options: Any) -> dict[str, Any]:
    actions = [("append", prompt), ("generate", count)]
    found: dict[str, Any] = scripts.run("sequences", "drive", folder.name, model=folder.name, actions=actions, **options)
    return found


@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize("name", ["gemma3", "16", "40"])
def test_greedy_ids_are_the_oracles_past_the_window(
    name: str, prompt: str, folders: dict[str, Path], scripts: PageScripts
) -> None:
    ids = PROMPTS[prompt]
    found = generated(scripts, folders[name], ids, COUNT)
    assert (found["capture"], found["note"]) == ("tape", None)
    assert found["picked"] == oracle.greedy(folders[name], ids, COUNT)
