"""Speech to text at the command line: `run` with a speech model and a sound file."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from .command_errors import CommandError, raise_remote
from .model_arguments import CONFIG, is_speech, mounts, read_json
from .terminal import Event, Output, say

__all__ = [
    "add_speech_arguments",
    "answered",
    "hears",
    "names_sound",
    "others_refused",
    "require_no_sound",
    "sound_file",
    "speech_requests",
    "transcribe",
]

SOUNDS = (".wav", ".mp3", ".m4a", ".ogg", ".flac", ".opus", ".webm")
"""The endings of sound files."""
ADDRESS = "/files/sound"


def add_speech_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of a speech model."""
    add = parser.add_argument_group("speech", "with a speech model the prompt is a sound file").add_argument
    add("--language", metavar="CODE", help="the spoken language, as de (default: the model finds it)")
    add("--task", choices=("transcribe", "translate"), help="translate: English text of any language")
    add("--timestamps", action="store_true", help="a line for each segment, with its times")
    add("--vtt", action="store_true", help="captions in the WebVTT format")


def hears(model: Path) -> bool:
    """Whether a model's folder has a model that hears."""
    if not (model / CONFIG).is_file():
        return is_speech(model)
    config = read_json(model / CONFIG)
    about = config.get("model") if isinstance(config, dict) else None
    return isinstance(about, dict) and isinstance(about.get("encoder"), dict)


def speech_options(args: argparse.Namespace) -> list[str]:
    """The options of a speech model that were given; `chat` has none of them."""
    return [f"--{name}" for name in ("language", "task", "timestamps", "vtt") if getattr(args, name, None)]


def names_sound(text: str | None) -> bool:
    """Whether a prompt is the path of a sound file."""
    return text is not None and Path(text).suffix.lower() in SOUNDS and Path(text).is_file()


def require_no_sound(args: argparse.Namespace, model: str) -> None:
    """Refuse a sound file, and the options of a speech model, for a model of text."""
    given = speech_options(args)
    sound = names_sound(args.text)
    if sound or given:
        what = f"{args.text} is a sound" if sound else f"{' and '.join(given)} were given"
        raise CommandError(f"{what}, but {model} takes text: give --model a Whisper folder, or --prompt TEXT")


def sound_file(args: argparse.Namespace) -> Path:
    """The file that the prompt names."""
    if not args.text:
        raise CommandError(f"no sound: give a sound file, as in {args.machine.program} run --model whisper speech.wav")
    path = Path(args.text)
    if not path.is_file():
        raise CommandError(f"there is no sound file {path}: give the path of an existing one")
    return path


def as_wave(path: Path, folder: Path) -> Path:
    """The file if it is a WAV file, else a WAV file of its samples, which is written into the folder."""
    with path.open("rb") as file:
        if file.read(4) == b"RIFF":
            return path
    try:
        import soundfile

        from capstan.errors import CapstanError
        from capstan.host.disk_file import read_file
        from capstan.sound.sound_file import opened
        from capstan.speech.transcriber import LONGEST_SECONDS, MOST_BYTES
    except (ImportError, OSError) as error:
        raise CommandError(
            f"{path} is no WAV file, and others cannot be read here ({error}): pip install "
            '"capstan-webgpu[reference]", or `ffmpeg -i FILE sound.wav`'
        ) from error
    try:
        found = opened(read_file(path, MOST_BYTES), str(path), LONGEST_SECONDS)
        samples = found.samples(0, found.frames).mean(axis=1)
    except CapstanError as error:
        raise CommandError(str(error)) from error
    made = folder / "sound.wav"
    soundfile.write(made, samples, found.rate, subtype="FLOAT")
    return made


def speech_requests(args: argparse.Namespace, given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The requests that load the model, without its address, and transcribe. `given` are all options that were given
    besides those of speech.
    """
    sound_file(args)
    others_refused(args, given)
    if args.vtt and args.json:
        raise CommandError("--vtt and --json were both given: give one of them")
    load = {"kind": "load_transcriber", **given}
    stamped = args.timestamps or args.vtt or args.json
    asked = {"language": args.language, "task": args.task, "timestamps": stamped}
    return load, {"kind": "transcribe", "file": ADDRESS, **asked}


def others_refused(args: argparse.Namespace, given: Mapping[str, Any]) -> None:
    """Refuse the options that are only for text models."""
    from capstan.loading.load_options import EmbedderOptions, rows

    others = [name for name in given if name not in rows(EmbedderOptions)]
    if others:
        raise CommandError(f"--{others[0].replace('_', '-')} is for models of text: leave it out for {args.model}")


def shown(event: Event, args: argparse.Namespace) -> str:
    """The text of a segment for stdout while segments arrive; empty for other events."""
    if args.vtt or event["kind"] != "segment":
        return ""
    if args.timestamps:
        return f"[{event['start']:.2f} - {event['end']:.2f}] {event['text'].strip()}\n"
    return str(event["text"])


async def answered(
    args: argparse.Namespace, files: Mapping[str, Path], shown: Callable[[Event], Event]
) -> dict[str, Any]:
    """Open the page, send the requests and show their events; returns the result of the last request."""
    from .digests import Digests
    from .headless.headless_page import HeadlessPage
    from .site_server import serving

    output = Output()

    def show(event: Event) -> None:
        output.show(shown(event))

    try:
        with serving(args.machine.site(), mounts(args.served), files=files, digests=Digests()) as server:
            page = HeadlessPage(server.url, show, None, args.machine.browser(), args.device, debug=args.debug)
            async with page, output.ticking():
                for request in args.request:
                    reply = await page.request(request)
                    if not reply["ok"]:
                        output.end_line()
                        raise_remote(reply["error"])
    finally:
        output.end_line()
    result: dict[str, Any] = reply["result"]
    return result


async def transcribe(args: argparse.Namespace) -> int:
    """Transcribe; the text is printed as it comes."""
    with TemporaryDirectory() as made:
        result = await answered(
            args,
            {ADDRESS: as_wave(sound_file(args), Path(made))},
            lambda event: {"kind": "text", "text": text} if (text := shown(event, args)) else event,
        )
    if args.vtt:
        print(result["vtt"], end="", flush=True)
    say(f"{result['duration']:.1f} s of sound, language {result['language']}")
    if args.json:
        print(json.dumps({name: value for name, value in result.items() if name != "vtt"}), flush=True)
    return 0
