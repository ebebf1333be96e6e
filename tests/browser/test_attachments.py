"""Files of a message in <capstan-chat> and on the demo page: pictures, texts and PDF files; others are refused."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, FilePayload, Page, expect

from buildtools.site import assemble
from capstan_host.headless.static_server import running
from capstan_host.site_server import SiteServer
from tests.browser.demo_page import BOOT_MS
from tests.browser.test_picture_chats import FIXTURES, PNG, data_url
from tests.unit.test_picture_chats import TEMPLATE

ANSWER = """() => {
  window.asked = [];
  chat.answer = async (turn) => {
    asked.push(chat.messages.at(-1).content);
    if (turn.asked === 'fail') throw new Error('nothing came');
    turn.append('so');
  };
}"""
PASTE = """([name, type]) => {
  const clipboardData = new DataTransfer();
  clipboardData.items.add(new File(['pasted'], name, { type }));
  chat.shadowRoot.getElementById('prompt').dispatchEvent(
    new ClipboardEvent('paste', { clipboardData, bubbles: true, cancelable: true }));
}"""
DROP = """([target, name, type]) => {
  const dataTransfer = new DataTransfer();
  dataTransfer.items.add(new File(['dropped'], name, { type }));
  document.querySelector(target).dispatchEvent(
    new DragEvent('drop', { dataTransfer, bubbles: true, cancelable: true, composed: true }));
}"""
MODEL = """async ([url, question]) => {
  const { Capstan } = await import('/capstan/capstan.js');
  const llm = await Capstan.load('/models/sees/', { device: 'wasm' });
  const content = [{ type: 'image_url', image_url: { url } }, { type: 'text', text: question }];
  const { text } = await llm.chat([{ role: 'user', content }], { temperature: 0, maxTokens: 6 }).result;
  llm.close();
  return text;
}"""


def pdf_file(text: str) -> bytes:
    """A PDF file of a page with a text; empty for a page without one."""
    stream = f"BT /F1 12 Tf 20 20 Td ({text}) Tj ET" if text else ""
    parts = [
        "<</Type/Catalog/Pages 2 0 R>>",
        "<</Type/Pages/Kids[3 0 R]/Count 1>>",
        "<</Type/Page/Parent 2 0 R/MediaBox[0 0 200 200]/Contents 4 0 R/Resources<</Font<</F1 5 0 R>>>>>>",
        f"<</Length {len(stream)}>>stream\n{stream}\nendstream",
        "<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>",
    ]
    body, places = "%PDF-1.4\n", []
    for number, part in enumerate(parts, 1):
        places.append(len(body))
        body += f"{number} 0 obj{part}endobj\n"
    table = "".join(f"{place:010} 00000 n \n" for place in places)
    size = len(parts) + 1
    end = (
        f"xref\n0 {size}\n0000000000 65535 f \n{table}trailer<</Root 1 0 R/Size {size}>>\nstartxref\n{len(body)}\n%%EOF"
    )
    return (body + end).encode()


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("attached") / "sees"
    shutil.copytree(FIXTURES / "vision/nano-gemma3-vl", folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    models = {name: FIXTURES / name for name in ("nano-qwen2", "nano-llama")}
    with running(SiteServer(assemble(), {"sees": folder, **models})) as server:
        yield server.url


@pytest.fixture
def page(browser: Browser, url: str) -> Iterator[Page]:
    page = browser.new_context().new_page()
    page.goto(url + "#device=wasm&search=greedy&max_new_tokens=6")
    page.evaluate("() => { window.chat = document.getElementById('chat'); }")
    yield page
    page.context.close()


def attach(page: Page, *files: tuple[str, str, bytes]) -> None:
    payloads: list[FilePayload] = [{"name": name, "mimeType": kind, "buffer": content} for name, kind, content in files]
    page.set_input_files("#file", payloads)


def waiting(page: Page) -> list[str]:
    names = "all => all.map((each) => each.alt ?? each.textContent)"
    return list(page.locator("#files .attached > :not(button)").evaluate_all(names))


def say(page: Page, text: str) -> None:
    page.fill("#prompt", text)
    page.keyboard.press("Enter")


def test_texts_and_a_pdf_file_stand_before_the_question(page: Page) -> None:
    page.evaluate(ANSWER)
    attach(page, ("notes.md", "text/markdown", b"a ``` b"), ("f.rs", "", b"fn f() {}\n"))
    attach(page, ("paper.pdf", "application/pdf", pdf_file("Hello from a page")))
    expect(page.locator("#files .attached")).to_have_count(3, timeout=20_000)
    assert waiting(page) == ["notes.md", "f.rs", "paper.pdf"]
    page.get_by_role("button", name="Remove f.rs").click()
    say(page, "What is it?")
    expect(page.locator("#turns .file")).to_have_text(["notes.md", "paper.pdf"])
    expect(page.locator("#files .attached")).to_have_count(0)
    texts = "notes.md:\n\n````\na ``` b\n````\n\npaper.pdf:\n\n```\nHello from a page\n```\n\n"
    assert page.evaluate("() => asked") == [texts + "What is it?"]
    page.get_by_role("button", name="Answer again").click()
    expect(page.locator("#turns .versions")).to_contain_text("2 / 2")
    page.get_by_role("button", name="Edit").click()
    page.locator(".editor textarea").fill("And now?")
    page.keyboard.press("Enter")
    expect(page.locator("#turns .versions")).to_contain_text("3 / 3")
    assert page.evaluate("() => asked") == [texts + "What is it?", texts + "What is it?", texts + "And now?"]


def test_files_are_pasted_and_dropped_and_stay_if_nothing_comes_and_over_a_reload(page: Page) -> None:
    page.evaluate(ANSWER)
    page.evaluate(PASTE, ["pasted.txt", "text/plain"])
    page.evaluate(DROP, ["#chat", "dropped.py", ""])
    page.evaluate(DROP, ["#side", "outside.csv", "text/csv"])
    expect(page.locator("#files .attached")).to_have_count(3)
    attach(page, ("cat.png", "image/png", PNG))
    expect(page.locator("#files .attached")).to_have_count(4)
    say(page, "fail")
    expect(page.locator("#error")).to_be_visible()
    assert waiting(page) == ["pasted.txt", "dropped.py", "outside.csv", "cat.png"]
    page.fill("#prompt", "fine")
    page.get_by_role("button", name="Try again").click()
    expect(page.locator("#turns .picture")).to_have_attribute("src", data_url(PNG))
    expect(page.locator("#turns .text")).to_have_text("so")
    content = page.evaluate("() => chat.messages[0].content")
    assert [part["type"] for part in content] == ["image_url", "text"]
    page.wait_for_timeout(500)
    page.reload()
    expect(page.locator("#turns .picture")).to_have_attribute("src", data_url(PNG))
    assert page.evaluate("() => document.getElementById('chat').messages[0].content") == content


REFUSED = {
    "movie.mp4": (
        "video/mp4",
        b"x",
        "movie.mp4 is video/mp4; give a picture, a sound, a PDF, or a file of text or code",
    ),
    "song.wav": ("audio/wav", b"x", "song.wav is a sound, and there is no model that hears (transcriber); choose one"),
    "a.bin": ("", b"x", "a.bin is application/octet-stream"),
    "zeros.txt": ("text/plain", b"a\0b", "zeros.txt cannot be read: it is no text"),
    "long.txt": ("text/plain", b"x" * 200_001, "long.txt has 200001 characters; a message takes 200000 of a file"),
    "scan.pdf": ("application/pdf", pdf_file(""), "scan.pdf cannot be read: it has pictures of pages and no text"),
    "broken.pdf": ("application/pdf", b"%PDF-1.4 no", "broken.pdf cannot be read: "),
    "large.png": ("image/png", b"no picture" * 200_000, "large.png cannot be read: "),
}


def test_other_files_are_refused_by_name(page: Page) -> None:
    page.evaluate(ANSWER)
    # The page sets it when it has found its models.
    expect(page.locator("#chat")).to_have_attribute("transcriber", re.compile("moonshine"))
    page.evaluate("() => chat.removeAttribute('transcriber')")
    for name, (kind, content, message) in REFUSED.items():
        attach(page, (name, kind, content))
        expect(page.locator("#error-message")).to_contain_text(message, timeout=20_000)
        assert waiting(page) == []
        page.evaluate("() => chat.showError(null)")


def test_a_picture_is_asked_about_and_models_that_do_not_see_say_so(page: Page, url: str) -> None:
    model = page.locator("#model")
    model.select_option(value=f"{url}models/sees/")
    attach(page, ("checks.png", "image/png", PNG))
    expect(page.locator("#files .picture")).to_be_visible()
    say(page, "What is this?")
    expect(page.locator("#status")).to_have_text("Done", timeout=BOOT_MS)
    answer = page.locator("#turns .text").text_content()
    assert answer == page.evaluate(MODEL, [data_url(PNG), "What is this?"]) != ""
    page.click("#clear")
    model.select_option(value=f"{url}models/nano-qwen2/")
    attach(page, ("checks.png", "image/png", PNG))
    say(page, "What is this?")
    expect(page.locator("#error-code")).to_have_text("UnsupportedModelError", timeout=BOOT_MS)
    expect(page.get_by_role("button", name="Choose another model")).to_be_visible()
    model.select_option(value=f"{url}models/nano-llama/")
    page.get_by_role("button", name="Try again").click()
    expect(page.locator("#error-message")).to_contain_text("This model continues a text", timeout=BOOT_MS)
    assert waiting(page) == ["checks.png"]
