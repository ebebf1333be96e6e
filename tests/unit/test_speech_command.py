"""The command line gives the page a WAV file, whatever file of sound it was given."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile

from capstan_host.command_errors import CommandError
from capstan_host.speech import as_wave
from tests.sounds import glide, wave_file


def test_other_files_become_wav_files_of_their_samples(tmp_path: Path) -> None:
    plain = tmp_path / "plain.wav"
    plain.write_bytes(wave_file(glide(0.5)))
    assert as_wave(plain, tmp_path) == plain
    stereo = np.array(glide(0.5, rate=44_100))[:, None] * (1.0, 0.5)
    for name in ("sound.flac", "sound.mp3"):
        soundfile.write(tmp_path / name, stereo, 44_100)
        made = as_wave(tmp_path / name, tmp_path)
        samples, rate = soundfile.read(made)
        assert (made.read_bytes()[:4], rate, samples.shape) == (b"RIFF", 44_100, (22_050,))
        assert np.abs(samples - 0.75 * stereo[:, 0]).mean() < (1e-4 if name == "sound.flac" else 0.03)


def test_what_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = tmp_path / "speech.m4a"
    wrong.write_bytes(b"\0\0\0\x20ftypM4A " + bytes(100))
    with pytest.raises(
        CommandError, match=r"speech.m4a is an M4A or MP4 file, which soundfile does not read; give a WAV"
    ):
        as_wave(wrong, tmp_path)
    monkeypatch.setitem(sys.modules, "soundfile", None)
    with pytest.raises(CommandError, match=r'speech.m4a is no WAV file, .*: pip install "capstan-webgpu\[reference\]"'):
        as_wave(wrong, tmp_path)
