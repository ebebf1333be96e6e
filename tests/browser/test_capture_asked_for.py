"""enableGraphCapture is what it is in the native packages: "0" is off, "1" is capture or a warning with the reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests import oracle
from tests.browser.model_variants import Variants, through_hardmax
from tests.browser.page_scripts import PageScripts

LLAMA = Path(__file__).parents[1] / "fixtures" / "nano-llama"
PROMPT = [5, 6, 7, 8, 9]
WAYS = ["overlay", "genai overlay", "option", "long name"]


def configured(scripts: PageScripts, model: str, *cases: tuple[str, str, str | None]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = scripts.run("capturing", "configured", model, model=model, cases=cases)
    assert all(each["ids"] == oracle.greedy(LLAMA, PROMPT, 8) for each in found if "error" not in each)
    return found


@pytest.mark.one_in(2)
@pytest.mark.parametrize("way", WAYS)
def test_capture_is_what_the_configuration_says(way: str, scripts: PageScripts) -> None:
    off, on, wrong = configured(scripts, "nano-llama", (way, "0", None), (way, "1", None), (way, "2", None))
    assert (off["capture"], off["warned"]) == ("off", [])
    assert 'enableGraphCapture is "0"' in off["note"]
    assert (on["capture"], on["note"], on["warned"]) == ("tape", None, [])
    kind, message = wrong["error"]
    assert kind == "ConfigError"
    assert 'enableGraphCapture: expected "0" or "1", got "2"' in message
    assert "model.decoder.session_options.provider_options[" in message


@pytest.mark.extended
def test_an_argument_wins_and_the_file_counts(scripts: PageScripts, variants: Variants) -> None:
    text = (LLAMA / "genai_config.json").read_text()
    off = text.replace('"enableGraphCapture": "1"', '"enableGraphCapture": "0"')
    variants.text("nano-off", "genai_config.json", off)
    file, argument, against = configured(
        scripts, "nano-off", ("file", "", None), ("file", "", "tape"), ("overlay", "1", "off")
    )
    assert (file["capture"], file["warned"]) == ("off", [])
    assert (
        "genai_config.json: model.decoder.session_options.provider_options[0].webgpu.enableGraphCapture" in file["note"]
    )
    assert (argument["capture"], argument["note"]) == ("tape", None)
    assert (against["capture"], against["note"], against["warned"]) == ("off", None, [])


def test_capture_that_cannot_be_had_is_warned_of_with_its_reason(scripts: PageScripts, variants: Variants) -> None:
    model = variants.graph("nano-hardmax", through_hardmax)
    asked, unasked = configured(scripts, model, ("option", "1", None), ("overlay", "1", "tape"))
    assert (asked["capture"], unasked["capture"]) == ("off", "off")
    (warned,) = asked["warned"]
    assert 'enableGraphCapture "1": the graph cannot be captured: node /added/Hardmax' in warned
    assert warned.endswith("decode steps run eagerly")
    assert unasked["warned"] == []
