"""Features of sounds are those of the native processor to float rounding, and what is no sound is refused by name."""

from __future__ import annotations

import io
import json
import math
import struct
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime_genai as native
import pytest
import soundfile

from capstan import ConfigError, SoundError, UnsupportedModelError
from capstan.sound.resampling import upsampled
from capstan.sound.sound_processor import SoundProcessor
from tests.looped import looped
from tests.sounds import FLOATS, glide, wave_file

FOLDER = Path(__file__).parents[1] / "fixtures/speech/nano-whisper"
CONFIG = (FOLDER / "audio_processor_config.json").read_text()
NEAR = 1e-4
"""Features are logarithms around 1 of powers in single precision, down to 1e-8 of the loudest, where rounding shows:
speech differs by 1.2e-5, these tones by 3.8e-5."""


@pytest.fixture(scope="module")
def processor() -> Any:
    return native.Model(str(FOLDER)).create_multimodal_processor()


def features(data: bytes) -> np.ndarray[Any, Any]:
    return SoundProcessor.of_config(CONFIG, "audio_processor_config.json").features([data], ["the sound"])


def refused(data: bytes) -> str:
    with pytest.raises(SoundError) as error:
        features(data)
    return str(error.value)


SOUNDS = {
    "16 kHz": wave_file(glide(2.0)),
    "silence": wave_file([0.0] * 16000),
    "30 seconds": wave_file(glide(30.0)),
    "one frame": wave_file(glide(0.5)[:160]),
    "less than a window": wave_file(glide(0.5)[:399]),
    "a window and a half": wave_file(glide(0.5)[:601]),
    "8 bits": wave_file(glide(0.7), bits=8),
    "24 bits": wave_file(glide(0.7), bits=24),
    "32 bits": wave_file(glide(0.7), bits=32),
    "floats": wave_file(glide(0.7), bits=32, coding=FLOATS),
    "doubles": wave_file(glide(0.7), bits=64, coding=FLOATS),
    "stereo": wave_file(glide(1.0), channels=2),
    "22.05 kHz": wave_file(glide(0.7, rate=22050), rate=22050),
    "44.1 kHz stereo": wave_file(glide(1.4, rate=44100), rate=44100, channels=2),
    "48 kHz": wave_file(glide(1.0, rate=48000), rate=48000),
    "192 kHz": wave_file(glide(0.4, rate=192000), rate=192000),
}


@looped("name", SOUNDS)
def test_features_are_the_native_processors(name: str, processor: Any) -> None:
    made = processor("x", audios=native.Audios.open_bytes(SOUNDS[name]))
    wanted = np.array(made["audio_features"].as_numpy())
    found = features(SOUNDS[name])
    assert found.dtype == wanted.dtype == np.float32
    assert found.shape == wanted.shape == (1, 80, 3000)
    assert np.abs(found - wanted).max() < NEAR


def test_several_sounds_are_rows() -> None:
    processor = SoundProcessor.of_config(CONFIG, "a")
    both = processor.features([SOUNDS["8 bits"], SOUNDS["48 kHz"]], ["one", "two"])
    assert np.array_equal(both[0], features(SOUNDS["8 bits"])[0])
    assert np.array_equal(both[1], features(SOUNDS["48 kHz"])[0])


def test_eight_channels_are_their_mean() -> None:
    # The native package takes pairs of neighbours for stereo, and gets a sound four times as long.
    one = glide(0.4, rate=192000)
    wide = wave_file([sample for each in one for sample in [each] * 8], rate=192000, channels=8)
    assert np.abs(features(wide) - features(wave_file(one, rate=192000))).max() < NEAR


def test_other_chunks_and_an_unknown_length_are_read() -> None:
    data = SOUNDS["16 kHz"]
    listed = data[:12] + b"LIST" + struct.pack("<I", 3) + b"abc\0" + data[12:]
    streamed = data[:40] + struct.pack("<I", 0xFFFFFFFF) + data[44:]
    for each in (listed, streamed):
        assert np.array_equal(features(each), features(data))


def test_an_extensible_format_is_read() -> None:
    data = wave_file(glide(0.7), bits=24)
    form = struct.pack("<H", 0xFFFE) + data[22:36] + struct.pack("<HHIH", 22, 24, 0, 1) + bytes(14)
    wide = data[:16] + struct.pack("<I", len(form)) + form + data[36:]
    assert np.array_equal(features(wide), features(data))


NO_SOUNDS = {
    "no bytes": (b"", "the sound has 0 bytes and is not a WAV file; give a WAV file"),
    "a text": (b"RIFF or not", "has 11 bytes and is not a WAV file"),
    "MP3": (b"ID3\x04" + bytes(40), "is an MP3 file, which soundfile does not read; give a WAV file"),
    "MP3 without a tag": (b"\xff\xfb\x90\x00" + bytes(40), "is an MP3 file"),
    "FLAC": (b"fLaC" + bytes(40), "is a FLAC file"),
    "M4A": (b"\0\0\0\x20ftypM4A " + bytes(40), "is an M4A or MP4 file, which soundfile does not read; give a WAV file"),
    "no samples": (wave_file([]), "has no samples"),
    "too short": (wave_file(glide(0.5)[:159]), "has 159 samples at 16000 a second; give at least 160"),
    "no data": (wave_file([])[:36], "has no samples; give a WAV file"),
    "truncated": (SOUNDS["16 kHz"][:1000], "is truncated: it announces 64000 bytes of samples and has 956"),
    "half a frame": (
        wave_file([0.0] * 8001, bits=16)[:-1].replace(b"data\x82>", b"data\x81>"),
        "its last frame has 1 of 2 bytes",
    ),
    "a short format": (b"RIFF\0\0\0\0WAVEfmt \x04\0\0\0abcd" + bytes(20), "its format has 4 bytes"),
    "no channels": (wave_file([0.0] * 900).replace(b"\x01\0\x01\0", b"\x01\0\0\0"), "has 0 channels at 16000"),
    "3 kHz": (wave_file(glide(1.0, rate=3000), rate=3000), "has 3000 samples a second; speech needs at least 4000"),
    "NaN": (wave_file([0.1] * 700 + [math.nan] + [0.1] * 700, bits=32, coding=FLOATS), "sample 700 is NaN or infinite"),
    "infinity": (wave_file([0.1] * 700 + [math.inf], bits=64, coding=FLOATS), "sample 700 is NaN or infinite"),
    "31 seconds": (wave_file([0.0] * 31 * 16000), "is 31.0 seconds long; the model hears at most 30"),
    "10 hours": (
        wave_file([])[:40] + struct.pack("<I", 36000 * 16000 * 2),
        "is 36000.0 seconds long",
    ),
}


@looped("name", NO_SOUNDS)
def test_what_is_no_sound_is_refused_by_name(name: str) -> None:
    data, message = NO_SOUNDS[name]
    assert message in refused(data)


WAVE = np.array(glide(2.0), np.float32)


def coded(coding: tuple[str, str], samples: Any = WAVE, rate: int = 16_000) -> bytes:
    """A file by libsndfile, of a format and its subtype."""
    file = io.BytesIO()
    soundfile.write(file, samples, rate, format=coding[0], subtype=coding[1])
    return file.getvalue()


OTHERS = {
    "FLAC": (("FLAC", "PCM_16"), 1e-4),
    "Vorbis": (("OGG", "VORBIS"), 0.03),
    "Opus": (("OGG", "OPUS"), 0.03),
    "MP3": (("MP3", "MPEG_LAYER_III"), 0.03),
    "A-law": (("WAV", "ALAW"), 0.01),
    "ADPCM": (("WAV", "IMA_ADPCM"), 0.03),
    "64 bits": (("RF64", "PCM_24"), 1e-5),
}


@looped("name", OTHERS)
def test_other_files_are_read_by_libsndfile(name: str) -> None:
    about = SoundProcessor.of_config(CONFIG, "a")
    coding, near = OTHERS[name]
    found = about.samples(coded(coding), "the sound", 30)
    assert abs(len(found) - len(WAVE)) < 1000
    assert np.abs(found[: len(WAVE)] - WAVE[: len(found)]).mean() < near
    stereo = np.array(glide(3.0, rate=48_000), np.float32)[:, None].repeat(2, axis=1)
    resampled = about.samples(coded(coding, stereo, 48_000), "the sound", 30)
    plain = about.samples(wave_file(stereo[:, 0].tolist(), rate=48_000), "the sound", 30)
    assert np.abs(resampled[: len(plain)] - plain[: len(resampled)]).mean() < near


def test_flac_gives_the_samples_of_wav_which_the_native_package_hears_nearly(processor: Any) -> None:
    whole = (32_767 * WAVE).astype(np.int16)
    flac = coded(("FLAC", "PCM_16"), whole)
    assert np.array_equal(features(flac), features(coded(("WAV", "PCM_16"), whole)))
    wanted = np.array(processor("x", audios=native.Audios.open_bytes(flac))["audio_features"].as_numpy())
    assert np.abs(features(flac) - wanted).mean() < 1e-4


def test_files_that_end_early_are_refused() -> None:
    for name in ("FLAC", "MP3"):
        data = coded(OTHERS[name][0])
        assert "truncated" in refused(data[: len(data) * 2 // 3]), name
    assert "is 31.0 seconds long; the model hears at most 30" in refused(
        coded(("FLAC", "PCM_16"), np.zeros(31 * 16000))
    )


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "soundfile", None)
    assert "is a FLAC file; soundfile, which reads many formats, is not installed" in refused(b"fLaC" + bytes(40))
    assert "`pip install soundfile`, or give a WAV file" in refused(b"fLaC" + bytes(40))


UP = {
    8000: [0.13755, 0.09757, 0.07562, 0.07452, 0.09251, 0.1207, 0.14756, 0.16048],
    12_000: [0.13756, 0.09786, 0.07576, 0.07476, 0.09252, 0.12082, 0.14754, 0.1603],
}
"""Samples from 300 on of torchaudio 2.11's `resample` to 16 kHz, of a twentieth of a second."""


def test_lower_rates_are_raised_as_by_torchaudio() -> None:
    for rate, wanted in UP.items():
        found = upsampled(np.array(glide(0.05, rate=rate), np.float32), rate, 16_000)
        assert len(found) == 800
        assert np.abs(found[300:308] - wanted).max() < 2e-5


def test_a_recording_of_a_telephone_is_heard() -> None:
    about = SoundProcessor.of_config(CONFIG, "a")
    low = wave_file(glide(62.0, rate=8000), rate=8000)
    found = about.samples(low, "the sound", 100)
    # Parts of 30 seconds join without a seam.
    assert np.array_equal(found, upsampled(low_floats(low), 8000, 16_000))
    assert features(wave_file(glide(1.0, rate=8000), rate=8000)).shape == (1, 80, 3000)


def low_floats(data: bytes) -> Any:
    return np.frombuffer(data[44:], "<i2") * np.float32(1 / (1 << 15))


def changed(step: int, **fields: Any) -> str:
    config = json.loads(CONFIG)
    operation = config["feature_extraction"]["sequence"][step]["operation"]
    operation.setdefault("attrs", {}).update(fields)
    return json.dumps(config)


def of_type(kind: str) -> str:
    config = json.loads(CONFIG)
    config["feature_extraction"]["sequence"][2]["operation"]["type"] = kind
    return json.dumps(config)


CONFIGS: Mapping[str, tuple[str, type[Exception], str]] = {
    "no JSON": ("{", ConfigError, "a.json: line 1"),
    "no steps": ("{}", ConfigError, "expected feature_extraction.sequence"),
    "other steps": (of_type("NemoLogMel"), UnsupportedModelError, "its steps are AudioDecoder, STFTNorm, NemoLogMel"),
    "another rate": (changed(0, target_sample_rate=8000), UnsupportedModelError, "target_sample_rate is 8000"),
    "no padding": (
        changed(2, no_padding=1),
        UnsupportedModelError,
        "LogMelSpectrum.no_padding is 1; Capstan supports only 0",
    ),
    "another window": (changed(1, win_fn="hamming"), UnsupportedModelError, "win_fn is 'hamming'"),
    "a short window": (changed(1, hann_win=[1.0]), ConfigError, "hann_win: expected 400 numbers"),
    "a size of 0": (changed(1, n_fft=0), ConfigError, "STFTNorm.n_fft is 0; expected a whole number"),
    "two sizes": (changed(2, n_fft=512), ConfigError, "they must be equal"),
    "a long chunk": (changed(2, chunk_size=10**9), ConfigError, "chunk_size is 1000000000"),
}


@looped("name", CONFIGS)
def test_configurations_that_cannot_be_computed_are_refused_by_path(name: str) -> None:
    text, kind, message = CONFIGS[name]
    with pytest.raises(kind) as error:
        SoundProcessor.of_config(text, "a.json")
    assert message in str(error.value)


def test_a_given_window_is_used() -> None:
    plain = SoundProcessor.of_config(CONFIG, "a.json")
    given = SoundProcessor.of_config(changed(1, hann_win=[float(each) for each in plain.window]), "a.json")
    flat = SoundProcessor.of_config(changed(1, hann_win=[1.0] * 400), "a.json")
    data = [SOUNDS["8 bits"]]
    assert np.array_equal(given.features(data, ["a"]), plain.features(data, ["a"]))
    assert not np.allclose(flat.features(data, ["a"]), plain.features(data, ["a"]))
