"""Talks with <capstan-chat>: Chromium's fake microphone asks, answers are interrupted and read aloud."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Browser, Page, expect

from buildtools.site import assemble
from capstan_host.headless.static_server import running
from capstan_host.site_server import SiteServer
from tests.browser.demo_page import BOOT_MS
from tests.browser.test_live_captions import FOLDER
from tests.sounds import quiet, voice, wave_file
from tests.voices import make_voice

SAID = np.concatenate([quiet(1.0), voice(1.6), quiet(2.0)])
ANSWER = """() => {
  window.stopped = 0;
  const chat = document.getElementById('chat');
  chat.answer = async (turn, signal) => {
    turn.append('One. Two.');
    await new Promise((resolve) => signal.addEventListener('abort', resolve));
    window.stopped++;
  };
}"""
PLAY = """() => {
  window.read = [];
  const { start } = AudioBufferSourceNode.prototype;
  AudioBufferSourceNode.prototype.start = function (...given) {
    read.push(this.buffer.duration);
    return start.apply(this, given);
  };
}"""


@pytest.fixture
def page(browser: Browser, quick_browser: Path, tmp_path: Path) -> Iterator[Page]:
    sound = tmp_path / "said.wav"
    sound.write_bytes(wave_file(SAID.tolist()))
    fake = ["--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"]
    free = ["--autoplay-policy=no-user-gesture-required", f"--use-file-for-fake-audio-capture={sound}"]
    other = browser.browser_type.launch(
        executable_path=str(quick_browser), args=["--headless=new", "--no-sandbox", *fake, *free]
    )
    with running(SiteServer(assemble(), {"whisper": FOLDER, "kokoro": make_voice(tmp_path)})) as server:
        page = other.new_page()
        page.goto(f"{server.url}#transcriber=models/whisper/&voice=models/kokoro/")
        page.evaluate(ANSWER)
        yield page
        other.close()


def test_each_utterance_is_a_question_which_interrupts_the_answer_before(page: Page) -> None:
    page.evaluate(PLAY)
    page.get_by_role("button", name="Speak", exact=True).click()
    expect(page.get_by_role("button", name="Stop listening")).to_have_attribute("aria-pressed", "true")
    expect(page.locator("#turns .echo").nth(1)).to_be_visible(timeout=BOOT_MS)
    assert page.evaluate("() => stopped") >= 1
    page.keyboard.press("Escape")
    expect(page.get_by_role("button", name="Speak", exact=True)).to_have_attribute("aria-pressed", "false")
    asked = page.locator("#turns .echo").count()
    page.wait_for_timeout(5000)
    assert page.locator("#turns .echo").count() == asked, "nothing is heard any more"


def test_an_answer_is_read_aloud_and_escape_ends_it(page: Page) -> None:
    page.evaluate(PLAY)
    page.fill("#prompt", "Count")
    page.keyboard.press("Enter")
    page.keyboard.press("Escape")
    expect(page.locator("#conversation")).to_have_attribute("aria-busy", "false")
    page.get_by_role("button", name="Read aloud").click()
    page.wait_for_function("() => read.length >= 1", timeout=BOOT_MS)
    page.keyboard.press("Escape")
    page.wait_for_timeout(1000)
    heard = page.evaluate("() => read.length")
    page.wait_for_timeout(2000)
    assert page.evaluate("() => read.length") == heard


def test_a_sound_goes_with_a_message_as_what_is_said_in_it(page: Page) -> None:
    page.evaluate("() => { chat.answer = async (turn) => turn.append('so') }")
    page.set_input_files("#file", {"name": "said.wav", "mimeType": "audio/wav", "buffer": wave_file(SAID.tolist())})
    expect(page.get_by_role("button", name="Remove said.wav")).to_be_visible(timeout=BOOT_MS)
    page.fill("#prompt", "What is said?")
    page.keyboard.press("Enter")
    expect(page.locator("#turns .text")).to_have_text("so")
    content = page.evaluate("() => chat.messages[0].content")
    assert content.startswith("said.wav:\n\n```\n")
    assert content.endswith("\n```\n\nWhat is said?")
    assert len(content) > len("said.wav:\n\n```\n\n```\n\nWhat is said?")
    page.set_input_files("#file", {"name": "noise.mp3", "mimeType": "audio/mpeg", "buffer": b"no sound"})
    expect(page.locator("#error-message")).to_contain_text("no file that this browser decodes", timeout=BOOT_MS)


@pytest.mark.parametrize("name", ["transcriber", "voice"])
def test_a_model_that_is_not_there_is_told(name: str, page: Page) -> None:
    page.evaluate("name => document.getElementById('chat').setAttribute(name, 'models/nothing/')", name)
    page.fill("#prompt", "Count")
    page.keyboard.press("Enter")
    page.keyboard.press("Escape")
    expect(page.locator("#conversation")).to_have_attribute("aria-busy", "false")
    page.get_by_role("button", name="Speak" if name == "transcriber" else "Read aloud", exact=True).click()
    expect(page.locator("#error-message")).to_contain_text("models/nothing/", timeout=BOOT_MS)
    if name == "transcriber":
        expect(page.get_by_role("button", name="Speak", exact=True)).to_have_attribute("aria-pressed", "false")
