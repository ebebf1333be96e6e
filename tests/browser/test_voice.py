"""`Capstan.loadVoice` in a page: sounds are those of the native onnxruntime, a text is spoken while it comes."""

from __future__ import annotations

import wave
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Browser, Page

from buildtools.site import assemble
from capstan_host.headless.static_server import running
from capstan_host.site_server import SiteServer
from tests.voices import make_voice, native_samples

FIXTURES = Path(__file__).parents[1] / "fixtures"
HELLO = "həlˈO wˈɜɹld!"

SET_UP = """async () => {
  const { Capstan } = await import("/capstan/capstan.js");
  window.Capstan = Capstan;
  window.voice = await Capstan.loadVoice("/models/kokoro/");
  window.all = async (parts) => {
    const found = [];
    for await (const part of parts) found.push([...part]);
    return found;
  };
  window.later = async function* (...parts) {
    for (const part of parts) yield part;
  };
  window.failure = (work) => work.then(() => null, ({ code, message }) => [code, message]);
}"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_voice(tmp_path_factory.mktemp("kokoro"))


@pytest.fixture(scope="module")
def page(browser: Browser, folder: Path) -> Iterator[Page]:
    with running(SiteServer(assemble(), {"kokoro": folder, "nano-llama": FIXTURES / "nano-llama"})) as server:
        context = browser.new_context()
        page = context.new_page()
        page.goto(server.url + "blank.html")
        page.evaluate(SET_UP)
        yield page
        context.close()


def test_english_is_spoken_with_the_samples_of_the_native_onnxruntime(page: Page, folder: Path) -> None:
    first, second = page.evaluate("all(voice.speak('Hello world! How are you?'))")
    assert first == pytest.approx(native_samples(folder, HELLO, "af_heart"), abs=1e-5)
    assert second == pytest.approx(native_samples(folder, "hˌW ɑɹ ju?".replace("ˌ", "ˈ"), "af_heart"), abs=1e-5)
    options = {"voice": "bf_emma", "speed": 1.5}
    [british] = page.evaluate("options => all(voice.speak('Hello car.', options))", options)
    assert british == pytest.approx(native_samples(folder, "həlˈQ kˈɑː.", "bf_emma", 1.5), abs=1e-5)
    assert page.evaluate("voice.stats")["device"] == "wasm"


ON_WEBGPU = """async (phonemes) => {
  const other = await Capstan.loadVoice("/models/kokoro/", { device: "webgpu" });
  const found = await all(other.speak(phonemes, { phonemes: true }));
  const { device } = other.stats;
  other.close();
  return [device, found];
}"""


@pytest.mark.extended
def test_webgpu_gives_the_same_sound(page: Page, folder: Path) -> None:
    device, [found] = page.evaluate(ON_WEBGPU, HELLO)
    assert device == "webgpu"
    assert found == pytest.approx(native_samples(folder, HELLO, "af_heart"), abs=1e-4)


STREAMED = """async () => {
  const told = [];
  const answer = async function* () {
    try {
      for (const part of ["Hel", "lo wor", "ld! And", " so on. ", "Never"]) {
        told.push(part);
        yield part;
      }
    } finally {
      told.push("left");
    }
  };
  const before = [];
  for await (const samples of voice.speak(answer())) {
    before.push([told.length, samples.length]);
    if (before.length === 2) break;
  }
  await new Promise((resolve) => setTimeout(resolve, 0));
  return [before, told.at(-1), await all(voice.speak(later("* * *\\n", "\\n"))), await all(voice.speak(later()))];
}"""


def test_an_answer_is_spoken_while_it_comes_and_leaving_the_loop_ends_it(page: Page, folder: Path) -> None:
    before, last, *silent = page.evaluate(STREAMED)
    assert [told for told, _ in before] == [3, 4]
    assert before[0][1] == len(native_samples(folder, HELLO, "af_heart"))
    assert last == "left"
    assert silent == [[], []]


PHONEMIZED = """async () => {
  const phonemize = async (sentence, name) => {
    if (sentence === "none") return null;
    return name === "ff_siwis" && sentence === "Oui." ? "sˈɪ∅" : "nˈo.";
  };
  const own = await Capstan.loadVoice("/models/kokoro/", { phonemize });
  const found = await all(own.speak("Oui. Non.", { voice: "ff_siwis" }));
  const refused = await failure(all(own.speak("none")));
  own.close();
  return [found, refused, await failure(all(own.speak("closed")))];
}"""


def test_a_function_of_the_page_makes_the_phonemes(page: Page, folder: Path) -> None:
    [oui, non], refused, closed = page.evaluate(PHONEMIZED)
    assert oui == pytest.approx(native_samples(folder, "sˈɪ", "ff_siwis"), abs=1e-5)
    assert non == pytest.approx(native_samples(folder, "nˈo.", "ff_siwis"), abs=1e-5)
    assert refused == ["OptionError", "phonemize gave null; it must give a string of phonemes"]
    assert closed[0] == "ClosedError"


ENDED = """async () => {
  const one = new AbortController();
  const parts = [];
  for await (const part of voice.speak("One. Two. Three.", { signal: one.signal })) {
    parts.push(part.length);
    one.abort();
  }
  const never = async function* () {
    yield "One. ";
    await new Promise(() => {});
  };
  const two = new AbortController();
  setTimeout(() => two.abort(), 300);
  const waited = await all(voice.speak(never(), { signal: two.signal }));
  const before = await all(voice.speak("One.", { signal: AbortSignal.abort() }));
  return [parts.length, waited.length, before.length, (await all(voice.speak("One."))).length];
}"""


def test_a_signal_ends_speech_also_while_no_text_comes(page: Page) -> None:
    assert page.evaluate(ENDED) == [1, 1, 0, 1]


CREATED = """async () => {
  const { speech } = voice.audio;
  const input = "Hello world!";
  const wav = await speech.create({ model: "tts-1", input, voice: "af_heart", response_format: "wav", speed: 0.5 });
  const pcm = await speech.create({ input, response_format: "pcm" });
  const bytes = async (response) => [...new Uint8Array(await response.arrayBuffer())];
  return [wav.headers.get("Content-Type"), await bytes(wav), await bytes(pcm)];
}"""


def test_openais_parameters_give_openais_results(page: Page, folder: Path) -> None:
    kind, wav, pcm = page.evaluate(CREATED)
    assert kind == "audio/wav"
    with wave.open(BytesIO(bytes(wav))) as file:
        assert file.getparams()[:3] == (1, 2, 24_000)
        slow = np.frombuffer(file.readframes(file.getnframes()), np.int16) / 32767
    assert slow == pytest.approx(native_samples(folder, HELLO, "af_heart", 0.5), abs=1e-4)
    plain = np.frombuffer(bytes(pcm), np.int16) / 32767
    assert plain == pytest.approx(native_samples(folder, HELLO, "af_heart"), abs=1e-4)


PLAYED = """async () => {
  const spoken = voice.play("Hello world! And so on.");
  const stop = new AbortController();
  const never = async function* () {
    yield "One. ";
    await new Promise(() => {});
  };
  const stopped = voice.play(never(), { signal: stop.signal });
  setTimeout(() => stop.abort(), 500);
  return [await spoken, await stopped];
}"""


def test_play_ends_with_the_sound_or_by_its_signal(page: Page) -> None:
    page.mouse.click(5, 5)
    assert page.evaluate(PLAYED) == [None, None]


def test_bad_input_is_refused_by_name(page: Page) -> None:
    for call, code, message in (
        ("all(voice.speak(''))", "OptionError", 'the text is "", which has nothing to speak'),
        ("all(voice.speak('***'))", "OptionError", "which has nothing to speak"),
        ("all(voice.speak(5))", "OptionError", "the text is 5; it must be a string or an asynchronous iterable"),
        ("all(voice.speak('a', { speed: 3 }))", "OptionError", "speed is 3; it must be from 0.5 to 2"),
        ("all(voice.speak('a', { pitch: 3 }))", "OptionError", "pitch: no such option"),
        ("all(voice.speak('a', { voice: 'af_none' }))", "OptionError", "voice is 'af_none'; "),
        ("all(voice.speak('oui', { voice: 'ff_siwis' }))", "OptionError", "only for English: give a function"),
        ("voice.audio.speech.create({})", "OptionError", "input is missing"),
        (
            "voice.audio.speech.create({ input: 'a', response_format: 'mp3' })",
            "OptionError",
            'it must be "wav" or "pcm"',
        ),
        ("Capstan.loadVoice('/models/nano-llama/')", "ModelFileError", "config.json is missing"),
    ):
        found = page.evaluate(f"failure((async () => await {call})())")
        assert found is not None, call
        assert found[0] == code, (call, found)
        assert message in found[1], (call, found)


def test_texts_of_all_kinds_have_phonemes(page: Page) -> None:
    spoken = "text => import('/capstan/phonemes.js').then(({ phonemize }) => phonemize(text, 'en-US'))"
    assert page.evaluate(spoken, "The early bird's first word, further north.") == (
        "ðə ˈɜɹli bˈɜɹdz fˈɜɹst wˈɜɹd, fˈɜɹðəɹ nˈɔɹθ."
    )
    assert page.evaluate(spoken, "1,234 (or 3) miles?") == "wˈʌn θˈWzən tu hˈʌndəɹd θˈɜɹdˌi fɔɹ (əɹ θɹˈi) mˈIəlz?"
    for text in ("The constructor's toString, valueOf and __proto__", "😀 日本 été", "**", "a" * 20_000):
        assert isinstance(page.evaluate(spoken, text), str)
