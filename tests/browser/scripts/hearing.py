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
from capstan.speech.transcriber import Transcriber
from capstan.speech.transcription_run import SpeechModel
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
    recorded: bool = False,
) -> list[dict[str, Any]]:
    """For each case of search options, with the numbers of its `sounds`, what a generator gave; `sounds` are WAV files
    in base 64. With `joint` several rows share a step on software adapters too; `recorded` replays the encoder."""
    before = fallbacks()
    model = await load(models, folder, device=device, capture=capture, passes=JOINT if joint else None)
    encoder = model.speech_encoder
    assert isinstance(encoder, SpeechEncoder)
    if recorded:
        await encoder.record()
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


async def transcribed(
    models: Mapping[str, str], *, sound: str, options: Mapping[str, Any], capture: str = "tape"
) -> dict[str, Any]:
    """The segments of a WAV file in base 64 on webgpu, and how the steps of its one window ran."""
    before = fallbacks()
    model = await load(models, "nano-whisper", device="webgpu", capture=capture)
    transcriber = Transcriber(model)
    await transcriber.prepare_async()
    made: list[Generator] = []
    generator = SpeechModel.generator

    def noted(self: SpeechModel, stamped: bool, longest: int | None = None) -> Generator:
        made.append(generator(self, stamped, longest))
        return made[-1]

    SpeechModel.generator = noted  # type: ignore[method-assign]
    try:
        run = transcriber.run(b64decode(sound), timestamps=True, **options)
        segments = [[each.text, each.start, each.end] async for each in run]
    finally:
        SpeechModel.generator = generator  # type: ignore[method-assign]
    assert transcriber._speech.encoder._recorded is not None
    return {
        "segments": segments,
        "capture": made[0].capture,
        "counters": dict(made[0].counters),
        "stepped down": [each for each in fallbacks() if each not in before],
    }
