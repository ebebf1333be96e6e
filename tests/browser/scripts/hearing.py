"""Sounds heard in the page: the ids of each search, and how its steps ran."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Mapping, Sequence
from typing import Any

from capstan import Generator
from capstan.device.speech_encoder import SpeechEncoder
from capstan.fallback import fallbacks
from capstan.genai.genai_tensors import Tensor
from capstan.genai.multimodal_processor import items_of
from capstan.sound.sound_processor import SoundProcessor
from capstan.tokenizer import Tokenizer

from .rows import JOINT
from .running import load, parameters


async def heard(
    models: Mapping[str, str],
    *,
    sounds: Sequence[str],
    prompt: str,
    cases: Sequence[Mapping[str, Any]],
    folder: str = "nano-whisper",
    device: str = "webgpu",
    capture: str = "tape",
    joint: bool = False,
) -> list[dict[str, Any]]:
    """For each case of search options, with the numbers of its `sounds`, what a generator gave; `sounds` are WAV files
    in base 64. With `joint` several rows share a step on software adapters too."""
    before = fallbacks()
    model = await load(models, folder, device=device, capture=capture, passes=JOINT if joint else None)
    encoder = model.speech_encoder
    assert isinstance(encoder, SpeechEncoder)
    about = model.config.encoder
    assert about is not None
    processor = SoundProcessor.of_config(model.tokenizer_files[about.processor], about.processor)
    ids = Tokenizer(model).encode(prompt)
    found = []
    for case in cases:
        options = {**case}
        chosen = [b64decode(sounds[place]) for place in options.pop("sounds")]
        features = processor.features(chosen, ["a sound"] * len(chosen)).astype(encoder.dtype)
        params = parameters(model, do_sample=False, batch_size=len(chosen), **options)
        async with Generator(model, params) as generator:
            generator.hear(items_of(Tensor(features)))
            generator.append_tokens([ids] * len(chosen) if len(chosen) > 1 else ids)
            while not generator.is_done():
                await generator.generate_next_token_async()
            found.append(
                {
                    "ids": [generator.get_sequence(row) for row in range(len(chosen))],
                    "capture": generator.capture,
                    "note": generator.capture_note,
                    "passes": generator.tape_passes,
                    "counters": dict(generator.counters),
                    "stepped down": [each for each in fallbacks() if each not in before],
                    "adapter": model.adapter,
                }
            )
    return found
