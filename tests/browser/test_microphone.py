"""`Capstan.microphone` hears what Chromium's fake microphone plays, at 16,000 Hz; a refused one is a SoundError."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Browser, Page

from capstan_host.site_server import SiteServer
from tests.sounds import glide, wave_file

HEAR = """async () => {
  const { Capstan } = await import("/capstan/capstan.js");
  const microphone = await Capstan.microphone();
  const empty = microphone.ended;
  while (microphone.seconds < 1.5) await new Promise((resolve) => setTimeout(resolve, 50));
  const first = await microphone.take();
  while (microphone.seconds < 0.2) await new Promise((resolve) => setTimeout(resolve, 50));
  await microphone.close();
  const second = await microphone.take();
  const rest = await microphone.take();
  return [[...first], second.length, rest.length, empty, microphone.ended];
}"""
TONE = 1000.0


@pytest.fixture
def hearing(browser: Browser, quick_browser: Path, site: SiteServer, tmp_path: Path) -> Iterator[Page]:
    sound = tmp_path / "tone.wav"
    sound.write_bytes(wave_file(glide(4.0, TONE, TONE, rate=48_000), rate=48_000))
    fake = ["--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"]
    arguments = ["--headless=new", "--no-sandbox", *fake, f"--use-file-for-fake-audio-capture={sound}"]
    other = browser.browser_type.launch(executable_path=str(quick_browser), args=arguments)
    page = other.new_page()
    page.goto(site.url + "blank.html")
    yield page
    other.close()


def test_samples_are_what_the_microphone_hears(hearing: Page) -> None:
    samples, second, rest, before, after = hearing.evaluate(HEAR)
    assert 1.4 * 16_000 < len(samples) < 60 * 16_000
    spectrum: Any = np.abs(np.fft.rfft(samples[-16_000:]))
    assert abs(int(spectrum.argmax()) - TONE) <= 10
    assert second > 0.15 * 16_000
    assert rest == 0
    assert (before, after) == (False, True)


BLOCKS = """async (own) => {
  const { Capstan } = await import("/capstan/capstan.js");
  const Context = window.AudioContext;
  if (own)
    window.AudioContext = class extends Context {
      constructor(options) {
        if (options) throw new DOMException("another rate", "NotSupportedError");
        super({ sampleRate: 44100 });
      }
    };
  const microphone = await Capstan.microphone().finally(() => (window.AudioContext = Context));
  const found = [];
  for await (const block of microphone) if ((found.push(...block), found.length > 24000)) break;
  await microphone.close();
  return found.slice(8000, 24000);
}"""


@pytest.mark.parametrize("own", [False, True])
def test_blocks_join_without_a_seam_at_any_rate_of_the_microphone(hearing: Page, own: bool) -> None:
    samples = np.array(hearing.evaluate(BLOCKS, own))
    spectrum: Any = np.abs(np.fft.rfft(samples * np.hanning(len(samples)))) ** 2
    tones = sum(spectrum[place - 40 : place + 40].sum() for place in (440, int(TONE)))
    assert spectrum[60:].sum() < 1.01 * tones


def test_a_microphone_that_is_refused_is_told(browser: Browser, site: SiteServer) -> None:
    page = browser.new_page()
    page.goto(site.url + "blank.html")
    call = "import('/capstan/capstan.js').then(({ Capstan }) => Capstan.microphone())"
    code, message = page.evaluate(f"() => {call}.catch(({{ code, message }}) => [code, message])")
    page.close()
    assert code == "SoundError"
    assert "the microphone cannot be heard (Not" in message
