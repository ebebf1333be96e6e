"""`asr.listen` in a page: captions of Chromium's fake microphone and of other sources, and how the iteration ends."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Browser, Page

from buildtools.site import assemble
from capstan_host.headless.static_server import running
from capstan_host.site_server import SiteServer
from tests.sounds import quiet, voice, wave_file

FOLDER = Path(__file__).parents[1] / "fixtures/speech/nano-whisper"
RATE = 16_000
SAID = np.concatenate([quiet(0.6), voice(1.6), quiet(1.0), voice(0.9), quiet(1.5)])

SET_UP = """async () => {
  const { Capstan } = await import("/capstan/capstan.js");
  window.Capstan = Capstan;
  window.load = () => Capstan.loadTranscriber("/models/whisper/", { device: "wasm" });
  window.asr = await load();
  window.samples = (text) =>
    new Float32Array(Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0)).buffer);
  window.blocks = async function* (text) {
    const all = samples(text);
    for (let start = 0; start < all.length; start += 1600) yield all.subarray(start, start + 1600);
  };
  window.collect = async (captions, until = () => false) => {
    const found = [];
    for await (const caption of captions) if ((found.push(caption), until(caption, found))) break;
    return found;
  };
  window.failure = (work) => work.then(() => null, ({ code, message }) => [code, message]);
}"""


@pytest.fixture(scope="module")
def page(browser: Browser, quick_browser: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    sound = tmp_path_factory.mktemp("sound") / "said.wav"
    sound.write_bytes(wave_file(SAID.tolist()))
    fake = ["--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"]
    arguments = ["--headless=new", "--no-sandbox", *fake, f"--use-file-for-fake-audio-capture={sound}%noloop"]
    other = browser.browser_type.launch(executable_path=str(quick_browser), args=arguments)
    with running(SiteServer(assemble(), {"whisper": FOLDER})) as server:
        page = other.new_page()
        page.goto(server.url + "blank.html")
        page.evaluate(SET_UP)
        yield page
        other.close()


def told(samples: Any) -> str:
    return base64.b64encode(np.asarray(samples, np.float32).tobytes()).decode()


HEAR = """async () => {
  const microphone = await Capstan.microphone();
  const found = await collect(asr.listen(microphone, { interval: 0 }), (_, all) => all.length === 2);
  const before = microphone.ended;
  await microphone.close();
  return [found, before, microphone.ended];
}"""


def test_two_utterances_at_a_microphone_give_two_final_captions(page: Page) -> None:
    found, before, after = page.evaluate(HEAR)
    assert [each["final"] for each in found] == [True, True]
    first, second = found
    assert first["text"] != ""
    # With a fifth of a second of silence at both ends.
    assert abs(first["end"] - first["start"] - 2.0) < 0.4
    assert abs(second["end"] - second["start"] - 1.3) < 0.4
    assert abs(second["start"] - first["start"] - 2.6) < 0.4
    assert (before, after) == (False, True)


UNPLUGGED = """async () => {
  const microphone = await Capstan.microphone();
  setTimeout(() => {
    const [track] = microphone.stream.getTracks();
    track.stop();
    track.dispatchEvent(new Event("ended"));
  }, 500);
  const unplugged = await collect(asr.listen(microphone));
  const other = await Capstan.microphone();
  setTimeout(() => other.close(), 500);
  return [unplugged.length, (await collect(asr.listen(other))).length];
}"""


def test_a_microphone_that_is_unplugged_or_closed_ends_the_captions(page: Page) -> None:
    unplugged, closed = page.evaluate(UNPLUGGED)
    assert unplugged <= 1
    assert closed <= 1


OTHER = """async ([text, silence]) => {
  const options = { language: "de", interval: 0 };
  const all = samples(text);
  const parts = await collect(asr.listen(blocks(text), { interval: 0.4 }));
  const finals = await collect(asr.listen(blocks(text), options));
  const { text: same } = await asr.transcribe(
    all.slice(Math.round(finals[0].start * 16000), Math.round(finals[0].end * 16000)), { language: "de" },
  ).result;
  return [parts, finals, same, await collect(asr.listen(blocks(silence), options))];
}"""


def test_captions_of_any_source_are_partial_then_final_and_silence_gives_none(page: Page) -> None:
    parts, finals, same, silent = page.evaluate(OTHER, [told(SAID), told(quiet(4.0))])
    assert len(finals) == 2
    assert finals[0]["final"]
    assert finals[0]["text"] == same
    assert [(each["start"], each["end"]) for each in parts if each["final"]] == [
        (each["start"], each["end"]) for each in finals
    ]
    assert not parts[0]["final"]
    assert silent == []


ON_WEBGPU = """async ([text]) => {
  const options = { language: "de", interval: 0 };
  const other = await Capstan.loadTranscriber("/models/whisper/", { device: "webgpu" });
  const found = await collect(other.listen(blocks(text), options));
  const { device } = other.stats;
  other.close();
  return [device, found, await collect(asr.listen(blocks(text), options))];
}"""


@pytest.mark.extended
def test_captions_on_webgpu_are_those_of_the_cpu(browser: Browser) -> None:
    with running(SiteServer(assemble(), {"whisper": FOLDER})) as server:
        page = browser.new_page()
        page.goto(server.url + "blank.html")
        page.evaluate(SET_UP)
        device, found, expected = page.evaluate(ON_WEBGPU, [told(SAID)])
        page.close()
    assert device == "webgpu"
    assert found == expected
    assert len(found) == 2


ENDS = """async ([text]) => {
  const twice = await collect(asr.listen(blocks(text), { interval: 0 }), () => true);
  const controller = new AbortController();
  const endless = async function* () {
    yield* blocks(text);
    await new Promise(() => {});
  };
  const run = asr.listen(endless(), { interval: 0, signal: controller.signal });
  const aborted = await collect(run, (_, all) => void (all.length === 2 && controller.abort()));
  const cut = new AbortController();
  setTimeout(() => cut.abort(), 300);
  await collect(asr.listen(endless(), { interval: 0.1, signal: cut.signal }));
  const before = await collect(asr.listen(blocks(text), { signal: AbortSignal.abort() }));
  const other = await load();
  const closed = failure(collect(other.listen(blocks(text), { interval: 0 }), () => void other.close()));
  return [twice.length, aborted.length, before.length, await closed,
    (await collect(asr.listen(blocks(text), { interval: 0 }))).length];
}"""


def test_leaving_aborting_and_closing_end_the_captions(page: Page) -> None:
    left, aborted, before, closed, again = page.evaluate(ENDS, [told(SAID)])
    assert (left, aborted, before, again) == (1, 2, 0, 2)
    assert closed[0] == "ClosedError"


def test_bad_input_is_refused_by_name(page: Page) -> None:
    for call, code, message in (
        ("asr.listen([1])", "OptionError", "the sound is [1]; it must be a microphone"),
        ("asr.listen(blocks(given), { quiet: 1 })", "OptionError", "quiet: no such option"),
        ("asr.listen(blocks(given), { silence: 60 })", "OptionError", "silence is 60; it must be from 0.1 to 10"),
        ("asr.listen(blocks(given), { language: 'xx' })", "OptionError", "it must be one of en, de"),
        ("asr.listen((async function* () { yield [1]; })())", "OptionError", "a block of the sound is [1]"),
        ("asr.listen((async function* () { yield new Float32Array([NaN]); })())", "SoundError", "NaN or infinite"),
        ("asr.listen((async function* () { throw { code: 'own', message: 'mine' }; })())", "own", "mine"),
    ):
        found = page.evaluate(f"(given) => failure((async () => collect({call}))())", told(quiet(0.1)))
        assert found[0] == code, (call, found)
        assert message in found[1], (call, found)
