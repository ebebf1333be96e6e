"""Text to speech at the command line: `run` with a model that speaks, into a WAV file."""

from __future__ import annotations

import argparse
import asyncio
from array import array
from base64 import b64decode
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .command_errors import CommandError
from .model_arguments import read_json
from .piped import is_piped, read_piped
from .speech import answered, others_refused
from .terminal import say

__all__ = ["add_voice_arguments", "require_no_voice", "speak", "speaks", "voice_requests"]

MODEL_TYPE = "style_text_to_speech_2"
OPTIONS = ("out", "voice", "speed")


def add_voice_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of a model that speaks."""
    add = parser.add_argument_group("voice", "a model that speaks reads the prompt aloud").add_argument
    add("--out", metavar="FILE", help="the WAV file that a model that speaks writes (default: speech.wav)")
    add("--voice", metavar="NAME", help="who speaks: a file in the model's voices/ (default: af_heart)")
    add("--speed", type=float, metavar="X", help="how fast it is spoken, from 0.5 to 2 (default: 1)")


def speaks(model: Path) -> bool:
    """Whether a model's folder has a model that speaks."""
    config = read_json(model / "config.json") if (model / "config.json").is_file() else {}
    return isinstance(config, dict) and config.get("model_type") == MODEL_TYPE


def require_no_voice(args: argparse.Namespace, model: str) -> None:
    """Refuse the options of a model that speaks if the model is another one."""
    given = [f"--{name}" for name in OPTIONS if getattr(args, name, None) is not None]
    if given:
        raise CommandError(
            f"{' and '.join(given)} were given, but {model} does not speak: give --model a Kokoro folder"
        )


def voice_requests(args: argparse.Namespace, given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The requests that load the model, without its address, and speak. `given` are all options that were given
    besides those of a voice."""
    others_refused(args, given)
    text = args.text or (read_piped() if is_piped() else "")
    if not text:
        raise CommandError('no text: give one, as in run --model kokoro "Hello!" --out speech.wav')
    return {"kind": "load_voice", **given}, {"kind": "speak", "text": text, "voice": args.voice, "speed": args.speed}


def speak(args: argparse.Namespace) -> int:
    """Speak the text; the file is written at the end."""
    from capstan.speech.voice import SAMPLE_RATE, wave_of

    result = asyncio.run(answered(args, {}, lambda event: event))
    samples = array("f", b64decode(result["samples"]))
    if not samples:
        raise CommandError("the text has nothing to speak: give words")
    path = Path(args.out or "speech.wav")
    try:
        path.write_bytes(wave_of([samples]))
    except OSError as error:
        raise CommandError(f"--out: {path} cannot be written ({error}): give another file") from error
    say(f"{len(samples) / SAMPLE_RATE:.1f} s of sound in {path}")
    return 0
