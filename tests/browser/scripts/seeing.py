"""Pictures seen in the page: the ids of each case, how its steps ran, and what was shared."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Mapping, Sequence
from typing import Any

from capstan import Generator, Model
from capstan.device.picture_encoder import PictureEncoder
from capstan.fallback import fallbacks
from capstan.genai.genai_tensors import Tensor
from capstan.genai.multimodal_processor import items_of
from capstan.picture.picture_processor import PictureProcessor
from capstan.tokenizer import Tokenizer

from .running import parameters

SEQUENCE = "\n\n<start_of_image>" + 256 * "<image_soft_token>" + "<end_of_image>\n\n"


async def seen(
    models: Mapping[str, str],
    *,
    pictures: Mapping[str, str],
    cases: Sequence[Mapping[str, Any]],
    name: str = "nano-gemma3-vl",
    device: str = "wasm",
    capture: str = "tape",
    passes: Sequence[str] | None = None,
) -> list[dict[str, Any]]:
    """For each case, with its `prompt`, the names of its `pictures` and search options, the ids that a generator
    picked; `pictures` are files in base 64."""
    before = fallbacks()
    model = await Model.load(models[name], device=device, capture=capture, passes=passes, prefix_cache=1 << 24)
    encoder, file = model.picture_encoder, model.config.processor
    assert isinstance(encoder, PictureEncoder)
    assert file is not None
    processor, tokenizer = PictureProcessor.of_config(model.tokenizer_files[file], file), Tokenizer(model)
    found = []
    for case in cases:
        files = [b64decode(pictures[each]) for each in case["pictures"]]
        ids = tokenizer.encode(case["prompt"].replace("<start_of_image>", SEQUENCE))
        params = parameters(model, do_sample=False, max_length=640, **case.get("search", {}))
        async with Generator(model, params) as generator:
            if files:
                values = processor.pixels(files, case["pictures"]).astype(encoder.dtype)
                generator.see(items_of(Tensor(values)))
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
