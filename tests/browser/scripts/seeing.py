"""Pictures seen in the page: the ids of each case, how its steps ran, and what was shared."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Mapping, Sequence
from typing import Any

from capstan import Generator, Model
from capstan.fallback import fallbacks
from capstan.genai import Images
from capstan.genai.multimodal_processor import MultiModalProcessor, pictures_of

from .running import parameters


async def seen(
    models: Mapping[str, str],
    *,
    pictures: Mapping[str, str],
    cases: Sequence[Mapping[str, Any]],
    device: str = "wasm",
    capture: str = "tape",
    passes: Sequence[str] | None = None,
) -> list[dict[str, Any]]:
    """For each case, with its `prompt`, the names of its `pictures` and search options, the ids that a generator
    picked; `pictures` are files in base 64."""
    before = fallbacks()
    [folder] = models.values()
    model = await Model.load(folder, device=device, capture=capture, passes=passes, prefix_cache=1 << 24)
    processor, found = MultiModalProcessor._of(model), []
    for case in cases:
        files = [b64decode(pictures[each]) for each in case["pictures"]]
        made = processor(case["prompt"], images=Images.open_bytes(*files) if files else None)
        ids = made["input_ids"].as_numpy()[0].tolist()
        length = min(640, model.config.context_length)
        params = parameters(model, do_sample=False, max_length=length, **case.get("search", {}))
        async with Generator(model, params) as generator:
            if files:
                generator.see(pictures_of(made))
            generator.append_tokens(ids)
            for _ in range(case["picks"]):
                await generator.generate_next_token_async()
            found.append(
                {
                    "ids": generator.get_sequence()[len(ids) :],
                    "reused": generator.reused_tokens,
                    "capture": generator.capture,
                    "note": generator.capture_note,
                    "stepped down": [each for each in fallbacks() if each not in before],
                }
            )
    model.close()
    return found
