"""`Capstan.loadTranscriber` in a page: the text, segments and captions are those of CPython; bad sounds are refused."""

from __future__ import annotations

import base64
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

import capstan
from buildtools.site import assemble
from capstan_host.headless.static_server import running
from capstan_host.site_server import SiteServer
from tests.sounds import FLOATS, glide, wave_file

FIXTURES = Path(__file__).parents[1] / "fixtures"
FOLDER = FIXTURES / "speech/nano-whisper"
REPOSITORIES = {"hub": FIXTURES / "speech/nano-whisper-hub", "moonshine": FIXTURES / "speech/nano-moonshine-hub"}
SOUND = wave_file(glide(2.0))

SET_UP = """async () => {
  const { Capstan } = await import("/capstan/capstan.js");
  window.Capstan = Capstan;
  window.asr = await Capstan.loadTranscriber("/models/whisper/", { device: "wasm" });
  window.blob = (text) => new Blob([Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0))]);
  window.hear = async (sound, options) => {
    const run = asr.transcribe(sound, options);
    const parts = [];
    for await (const part of run) parts.push(part);
    return { parts, ...(await run.result) };
  };
  window.failure = (work) => work.then(() => null, ({ code, message }) => [code, message]);
}"""


@pytest.fixture(scope="module")
def page(browser: Browser) -> Iterator[Page]:
    models = {"whisper": FOLDER, **REPOSITORIES, "nano-llama": FIXTURES / "nano-llama"}
    with running(SiteServer(assemble(), models)) as server:
        context = browser.new_context()
        page = context.new_page()
        page.goto(server.url + "blank.html")
        page.evaluate(SET_UP)
        yield page
        context.close()


@pytest.fixture(scope="module")
def transcriber() -> capstan.Transcriber:
    return capstan.Transcriber(capstan.Model(str(FOLDER)))


def told(data: bytes) -> str:
    return base64.b64encode(data).decode()


def as_in_page(found: capstan.Transcription) -> dict[str, Any]:
    segments = [{"text": each.text, "start": each.start, "end": each.end} for each in found.segments]
    return {"text": found.text, "segments": segments, "language": found.language, "duration": found.duration}


def test_texts_and_segments_are_those_of_cpython(page: Page, transcriber: capstan.Transcriber) -> None:
    plain = page.evaluate("text => hear(blob(text))", told(SOUND))
    expected = as_in_page(transcriber.transcribe(SOUND))
    assert {name: plain[name] for name in expected} == expected
    assert len(plain["parts"]) > 5
    assert "".join(each["text"] for each in plain["parts"]).strip() == expected["text"]
    assert plain["vtt"] is None
    assert not plain["aborted"]
    options = {"language": "de", "task": "translate", "timestamps": True}
    stamped = page.evaluate("([text, options]) => hear(blob(text), options)", [told(SOUND), options])
    whole = transcriber.transcribe(SOUND, **options)  # type: ignore[arg-type]
    assert stamped["parts"] == stamped["segments"] == as_in_page(whole)["segments"]
    assert stamped["vtt"] == whole.vtt()
    assert page.evaluate("asr.stats") == {"device": "wasm", "languages": ["en", "de"]}


ON_WEBGPU = """async ([text, options]) => {
  const other = await Capstan.loadTranscriber("/models/whisper/", { device: "webgpu" });
  const found = [await other.transcribe(blob(text), options).result, await other.transcribe(blob(text), {}).result];
  const { device } = other.stats;
  other.close();
  return [device, ...found];
}"""


@pytest.mark.extended
def test_rules_for_timestamps_hold_on_webgpu(page: Page, transcriber: capstan.Transcriber) -> None:
    device, stamped, plain = page.evaluate(ON_WEBGPU, [told(SOUND), {"language": "de", "timestamps": True}])
    assert device == "webgpu"
    assert stamped["segments"] == as_in_page(transcriber.transcribe(SOUND, language="de", timestamps=True))["segments"]
    assert plain["text"] == transcriber.transcribe(SOUND).text


OF_A_REPOSITORY = """async ([text, name, options, device]) => {
  const other = await Capstan.loadTranscriber(`/models/${name}/`, { device });
  const found = await other.transcribe(blob(text), options).result;
  other.close();
  return found.text;
}"""


@pytest.mark.parametrize("device", ["wasm", pytest.param("webgpu", marks=pytest.mark.extended)])
@pytest.mark.parametrize(("name", "options"), [("hub", {"language": "de"}), ("moonshine", {})])
def test_a_repository_in_transformers_js_layout_is_heard(
    name: str, options: dict[str, str], device: str, page: Page
) -> None:
    expected = capstan.Transcriber(capstan.Model(str(REPOSITORIES[name]))).transcribe(SOUND, **options).text  # type: ignore[arg-type]
    assert page.evaluate(OF_A_REPOSITORY, [told(SOUND), name, options, device]) == expected


FORMS = """async (text) => {
  const bytes = await blob(text).arrayBuffer();
  const decoded = await new OfflineAudioContext(1, 1, 16000).decodeAudioData(bytes.slice(0));
  const samples = decoded.getChannelData(0).slice();
  const two = new AudioBuffer({ numberOfChannels: 2, length: samples.length, sampleRate: 16000 });
  for (const channel of [0, 1]) two.copyToChannel(samples, channel);
  const forms = [bytes, samples, two, new File([bytes], "a.wav")];
  const runs = forms.map((form) => asr.transcribe(form, { language: "de" }));
  const found = await Promise.all(runs.map(({ result }) => result));
  return [found.map(({ text }) => text), bytes.byteLength, samples.length];
}"""


def test_all_forms_of_a_sound_give_the_same_text_and_stay_the_callers(
    page: Page, transcriber: capstan.Transcriber
) -> None:
    texts, size, length = page.evaluate(FORMS, told(SOUND))
    assert texts == [transcriber.transcribe(SOUND, language="de").text] * 4
    assert (size, length) == (len(SOUND), 32_000)


ENDED = """async (text) => {
  const whole = (await asr.transcribe(blob(text)).result).text;
  const run = asr.transcribe(blob(text));
  const first = [];
  for await (const part of run) if (first.push(part.text) === 2) break;
  const left = await run.result;
  const before = await asr.transcribe(blob(text), { signal: AbortSignal.abort() }).result;
  return [whole, first, left, before, (await asr.transcribe(blob(text)).result).text];
}"""


def test_leaving_the_loop_ends_a_run_and_the_next_one_is_whole(page: Page) -> None:
    whole, first, left, before, again = page.evaluate(ENDED, told(SOUND))
    assert left["aborted"]
    assert left["text"].startswith("".join(first).strip())
    assert len(left["text"]) < len(whole)
    assert before["aborted"]
    assert before["text"] == ""
    assert again == whole


CREATED = """async (text) => {
  const file = blob(text);
  const { transcriptions, translations } = asr.audio;
  const language = "de";
  const json = await transcriptions.create({ file, model: "whisper-1", language });
  const plain = await transcriptions.create({ file, language, response_format: "text" });
  const verbose = await translations.create({ file, language, response_format: "verbose_json" });
  const vtt = await translations.create({ file, language, response_format: "vtt" });
  const events = [];
  for await (const event of await transcriptions.create({ file, language, stream: true })) events.push(event);
  return { json, plain, verbose, vtt, events };
}"""


def test_openais_parameters_give_openais_results(page: Page, transcriber: capstan.Transcriber) -> None:
    made = page.evaluate(CREATED, told(SOUND))
    text = transcriber.transcribe(SOUND, language="de").text
    whole = transcriber.transcribe(SOUND, language="de", task="translate", timestamps=True)
    assert made["json"] == {"text": text}
    assert made["plain"] == text + "\n"
    assert made["vtt"] == whole.vtt()
    verbose = made["verbose"]
    segments = [{name: each[name] for name in ("text", "start", "end")} for each in verbose.pop("segments")]
    assert segments == as_in_page(whole)["segments"]
    assert verbose == {"text": whole.text, "task": "translate", "language": "de", "duration": 2.0}
    *deltas, done = made["events"]
    assert {each["type"] for each in deltas} == {"transcript.text.delta"}
    assert "".join(each["delta"] for each in deltas).strip() == text
    assert done == {"type": "transcript.text.done", "text": text}


def test_bad_input_is_refused_by_name(page: Page) -> None:
    def failure(call: str, *given: object) -> tuple[str, str]:
        code, message = page.evaluate(f"(given) => failure((async () => {call})())", [*given])
        return code, message

    nan = told(wave_file([*glide(0.5), math.nan], bits=32, coding=FLOATS))
    hear = "hear(blob(given[0]), given[1])"
    for call, given, code, message in (
        (hear, [""], "SoundError", "the sound has no bytes"),
        (hear, [told(b"junk")], "SoundError", "no file that this browser decodes"),
        (hear, [told(wave_file([]))], "SoundError", "the sound"),
        (hear, [nan], "SoundError", "sample 8000 is NaN"),
        ("hear(new Float32Array(0))", [], "SoundError", "has no samples"),
        ("hear(new Float32Array([...Array(300).fill(0), NaN]))", [], "SoundError", "sample 300 is NaN"),
        ("hear('speech.wav')", [], "OptionError", 'the sound is "speech.wav"; it must be a Blob'),
        (hear, [told(SOUND), {"language": "xx"}], "OptionError", "it must be one of en, de"),
        (hear, [told(SOUND), {"task": "sing"}], "OptionError", 'it must be "transcribe" or "translate"'),
        (hear, [told(SOUND), {"beams": 2}], "OptionError", "beams: no such option"),
        ("asr.audio.transcriptions.create({})", [], "OptionError", "file is missing"),
        ("Capstan.loadTranscriber('/models/nano-llama/')", [], "UnsupportedModelError", "hears nothing"),
        ("Capstan.load('/models/hub/')", [], "UnsupportedModelError", "load it by Capstan.loadTranscriber"),
    ):
        found = failure(f"await {call}", *given)
        assert found[0] == code, (call, found)
        assert message in found[1], (call, found)


def test_eight_channels_at_192_khz_are_heard(page: Page) -> None:
    tone = glide(0.5, rate=192_000)
    eight = wave_file([each for sample in tone for each in [sample] * 8], rate=192_000, channels=8)
    assert page.evaluate("text => hear(blob(text)).then(({ duration }) => duration)", told(eight)) == 0.5
