"""Turns a sound of any length into text, segment by segment."""

from __future__ import annotations

from array import array
from collections.abc import AsyncIterable, AsyncIterator, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ModelFileError, SoundError, UnsupportedModelError
from ..host import wait_here
from ..host.disk_file import read_file
from ..model import Model
from ..model_files.genai_config import GENERATION_CONFIG
from ..model_files.model_types import MOONSHINE
from ..tokenizer import Tokenizer
from .caption import Caption, LiveOptions
from .speech_tokens import SpeechTokens
from .transcription_run import SpeechModel, Transcription, TranscriptionRun

if TYPE_CHECKING:
    from .listener import Listener

__all__ = ["MOST_BYTES", "Transcriber"]

LONGEST_SECONDS = 4 * 3600
"""The longest sound: its samples take 0.9 GB."""
MOST_BYTES = 1 << 29
"""The limit of a sound file's bytes."""


class Transcriber:
    """Turns speech into text with a Whisper or a Moonshine model.

    `sound` is the content of a sound file (bytes), its path (str), or samples of one channel at 16,000 Hz: an array of
    floats. It may last 4 hours. The model hears windows of 30 seconds, each from the end of the last whole segment, as
    in openai's `transcribe` and transformers' `generate`. Search is greedy.

    `language` is a code such as 'de'; by default the model detects it. `task` is 'transcribe', or 'translate' for
    English text. With `timestamps` segments have their times. Moonshine has none of these options; its windows are cut
    where a sound is quietest.

    Raises UnsupportedModelError for a text model.
    """

    def __init__(self, model: Model) -> None:
        about, encoder, config = model.config.encoder, model.speech_encoder, model.config
        if about is None or encoder is None:
            raise UnsupportedModelError(
                f"{model.folder} is a model of type {model.type!r}, which takes only text and hears nothing; load a "
                "Whisper or a Moonshine"
            )
        from ..sound.waveform import sounds_of  # noqa: PLC0415  (numpy: pages that hear)

        files, tokenizer = model.tokenizer_files, Tokenizer(model)
        end, start = config.eos_token_ids[0], config.bos_token_id
        if model.type == MOONSHINE and start is not None:
            tokens = SpeechTokens.of_text(start, end)
        else:
            tokens = SpeechTokens.of_model(tokenizer, end, config.vocab_size, files.get(GENERATION_CONFIG))
        sounds = sounds_of(files[about.processor], about.processor)
        self._speech = SpeechModel(model, encoder, tokenizer, tokens, sounds)

    @property
    def languages(self) -> list[str]:
        """The codes of the languages that the model knows; empty for an English model."""
        return list(self._speech.tokens.languages)

    async def prepare_async(self) -> None:
        """Compile and record now, so that the first sound waits only for itself. Optional; only models on `webgpu` have
        anything to prepare."""
        from ..sound.sound_processor import RATE  # noqa: PLC0415  (numpy: pages that hear)

        speech = self._speech
        if speech.model.device_type != "webgpu":
            return
        await speech.encoder.record()
        language = next(iter(speech.tokens.languages), None)
        async for _ in self.run(array("f", bytes(4 * RATE)), language=language):
            break

    def run(
        self, sound: Any, *, language: str | None = None, task: str = "transcribe", timestamps: bool = False
    ) -> TranscriptionRun:
        """An asynchronous iterator over the segments as they are transcribed: `async for segment in
        transcriber.run(sound)`. Without timestamps a sound of at most 30 seconds gives single words. Raises SoundError,
        OptionError.
        """
        self._speech.tokens.require(language, task, timestamps)
        return TranscriptionRun(self._speech, self._samples(sound), language, task, timestamps)

    async def transcribe_async(
        self, sound: Any, *, language: str | None = None, task: str = "transcribe", timestamps: bool = False
    ) -> Transcription:
        """The whole text of a sound. Raises SoundError, OptionError, and the errors of Generator."""
        run = self.run(sound, language=language, task=task, timestamps=timestamps)
        async for _ in run:
            pass
        return run.result

    def transcribe(
        self, sound: Any, *, language: str | None = None, task: str = "transcribe", timestamps: bool = False
    ) -> Transcription:
        """`transcribe_async`, blocking."""
        made = self.transcribe_async(sound, language=language, task=task, timestamps=timestamps)
        return wait_here(self._speech.model.host, made, "transcribe", "await transcribe_async(...)")

    async def listen(
        self,
        blocks: AsyncIterable[Any] | Iterable[Any],
        *,
        language: str | None = None,
        task: str = "transcribe",
        silence: float = 0.5,
        threshold: float = 0.5,
        interval: float = 1.0,
        vad: str | None = None,
    ) -> AsyncIterator[Caption]:
        """Captions of a sound while it arrives, as arrays of samples at 16,000 Hz of any length: `async for caption in
        transcriber.listen(blocks)`. Silero's detector cuts the sound where `silence` seconds have no speech. Every
        `interval` seconds, or less often on a slow machine, an utterance gives the text so far, and at its end the
        whole text (`final`). `interval=0` gives only final texts.

        Speech begins where its probability reaches `threshold`. `vad` is the path of another file of the detector.
        Raises SoundError, OptionError."""
        listener = await self.listener(LiveOptions(language, task, silence, threshold, interval), vad)
        try:
            async for block in each_of(blocks):
                async for caption in listener.hear(block):
                    yield caption
            async for caption in listener.end():
                yield caption
        finally:
            await listener.aclose()

    async def listener(self, options: LiveOptions, vad: str | None = None) -> Listener:
        """The listener that takes the blocks of `listen`. Raises SoundError, OptionError."""
        from ..sound.sound_processor import RATE  # noqa: PLC0415  (numpy: pages that hear)
        from .listener import Listener  # noqa: PLC0415  (numpy: pages that hear)
        from .speech_detector import SpeechDetector  # noqa: PLC0415  (numpy: pages that hear)

        self._speech.tokens.require(options.language, options.task)
        transcribe = partial(self.transcribe_async, language=options.language, task=options.task)
        return Listener(await SpeechDetector.load(vad), transcribe, options, self._speech.sounds.seconds * RATE)

    def _samples(self, sound: Any) -> Any:
        """The samples of a sound at 16,000 Hz. Raises SoundError."""
        sounds = self._speech.sounds
        if isinstance(sound, str):
            try:
                return sounds.samples(read_file(Path(sound), MOST_BYTES), sound, LONGEST_SECONDS)
            except ModelFileError as error:
                raise SoundError(str(error)) from error
        if isinstance(sound, bytes):
            return sounds.samples(sound, "the sound", LONGEST_SECONDS)
        return sounds.checked(sound, "the sound", LONGEST_SECONDS)


async def each_of(blocks: AsyncIterable[Any] | Iterable[Any]) -> AsyncIterator[Any]:
    """The items of either kind of iterable."""
    if isinstance(blocks, AsyncIterable):
        async for block in blocks:
            yield block
    else:
        for block in blocks:
            yield block
