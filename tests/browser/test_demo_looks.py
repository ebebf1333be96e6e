"""The looks of the demo page: names, themes, widths, nothing that jumps, settings in its address."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from buildtools import BUILD, ROOT
from capstan_host.site_server import SiteServer
from tests.browser.demo_page import BOOT_MS, RUN_MS, Demo, choose, png_size
from tests.gguf_files import gguf_file

WATCH_SHIFTS = """() => {
  const shifts = [];
  new PerformanceObserver((list) => shifts.push(...list.getEntries())).observe({ type: 'layout-shift' });
  let begun = 0;
  let ended = 0;
  let length = 0;
  const chat = document.querySelector('capstan-chat').shadowRoot;
  const turns = chat.getElementById('turns');
  new MutationObserver(() => {
    const shown = turns.querySelector('.text')?.textContent.length ?? 0;
    if (shown <= length) return;
    length = shown;
    begun ||= performance.now();
    ended = performance.now();
  }).observe(turns, { childList: true, subtree: true });
  window.shifts = async () => {
    const frame = () => new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve)));
    chat.querySelector('.write').style.marginBottom = '80px';
    await frame();
    await frame();
    chat.querySelector('.write').style.marginBottom = '';
    await frame();
    await new Promise((resolve) => setTimeout(resolve, 300));
    const during = shifts.filter(({ startTime }) => startTime >= begun && startTime <= ended);
    // Within the answer a word that has no room on its line goes to the next one. The browser does not tell nodes of
    // shadow roots, only where they were.
    const turn = turns.lastElementChild.getBoundingClientRect();
    const within = ({ currentRect: { top, bottom } }) => top >= turn.top && bottom <= turn.bottom;
    const outside = during.flatMap(({ sources }) => sources.filter((source) => !within(source)));
    const streaming = outside.map(({ currentRect }) => JSON.stringify(currentRect));
    return { seen: shifts.some(({ startTime }) => startTime > ended), streaming };
  };
}"""
"""Watch for layout shifts from the first text of an answer to its last; `shifts()` makes one besides."""
NAMELESS = """
  const { requestAdapter } = GPU.prototype;
  GPU.prototype.requestAdapter = async function (...given) {
    const adapter = await requestAdapter.apply(this, given);
    const names = { vendor: '', architecture: '', device: '', description: '' };
    if (adapter) Object.defineProperty(adapter, 'info', { value: names });
    return adapter;
  };
  const { getContext } = HTMLCanvasElement.prototype;
  HTMLCanvasElement.prototype.getContext = function (kind, ...given) {
    if (kind !== 'webgl') return getContext.call(this, kind, ...given);
    return { RENDERER: 7937, getExtension: () => null, getParameter: (name) => name === 7937 && 'A GPU of WebGL' };
  };
"""
"""An adapter as Firefox reports it, and a WebGL that knows the GPU."""
REFUSE = """() => {
  const { setItem } = Storage.prototype;
  const refuse = () => { throw new DOMException('refused by the test', 'SecurityError'); };
  Storage.prototype.setItem = refuse;
  navigator.clipboard.writeText = async () => refuse();
  window.restore = () => {
    Storage.prototype.setItem = setItem;
    delete navigator.clipboard.writeText;
  };
}"""
DRAG = """(kind) => {
  const dataTransfer = new DataTransfer();
  if (kind === 'Files') dataTransfer.items.add(new File([], 'model.onnx'));
  else dataTransfer.setData(kind, 'words');
  document.body.dispatchEvent(new DragEvent('dragover', { dataTransfer, bubbles: true, cancelable: true }));
}"""
EDGES = """() => {
  const inside = document.getElementById('inside');
  const fields = [...document.querySelectorAll('aside input, aside select, aside textarea')];
  const options = fields.filter((field) => !inside.contains(field) && field.checkVisibility());
  const ends = options.map((field) => field.getBoundingClientRect().bottom);
  return [Math.max(...ends), inside.getBoundingClientRect().top];
}"""
"""The end of the last option and the start of the diagnostics, in pixels."""
PICTURES = BUILD / "pictures" / "demo"
THEMES = ("dark", "light")
WIDTHS = (320, 768, 1280)
NARROW = 896
"""Up to this width the options are a drawer."""
AXE = "async () => (await axe.run(document, { resultTypes: ['violations'] })).violations.map(({ help }) => help)"


def test_a_software_adapter_is_named_as_slow(demo: Demo) -> None:
    if "software" not in demo.text("adapter"):
        pytest.skip("this machine has a hardware adapter")
    expect(demo.page.locator("#notice")).to_be_visible()
    assert "WebGPU is software here" in demo.text("notice")
    demo.page.select_option("#device-choice", "auto")
    assert demo.text("device") == "wasm"
    assert demo.text("device-note") == "auto: the WebGPU adapter is software"
    assert not demo.page.locator("#notice").is_visible()


def test_the_page_opens_with_the_first_model_and_tells_what_it_is(
    browser: Browser, site: SiteServer, tmp_path: Path
) -> None:
    file = tmp_path / "a model.gguf"
    file.write_bytes(gguf_file({"tokenizer.chat_template": "{{ messages }}"}) + bytes(98_400_000))
    models, site.models = site.models, {file.name: file, **site.models}
    page = browser.new_page()
    try:
        page.goto(site.url)
        expect(page.locator("#chosen")).to_have_text("a model")
        expect(page.locator("#model option:checked")).to_have_text("a model, 98.4 MB")
        expect(page.locator("#model-note")).to_have_text("98.4 MB. Answers by its chat template.")
        expect(page.locator("#kind-note")).to_have_text("a model. Ask it something:")
        expect(page.get_by_role("button", name="What is the capital of Japan?")).to_be_visible()
        # Beside a software adapter the CPU computes, unless WebGPU is named; a button takes that back.
        if "software" in page.inner_text("#adapter"):
            expect(page.locator("#device")).to_have_text("wasm")
            expect(page.locator("#notice")).to_be_hidden()
            page.locator("#device-choice").evaluate("each => { each.value = 'webgpu'; }")
            page.locator("#device-choice").dispatch_event("change", {"bubbles": True})
            expect(page.locator("#notice")).to_contain_text("a chat model's first answer takes minutes")
            page.get_by_role("button", name="Compute on the CPU").click()
            expect(page.locator("#notice")).to_be_hidden()
        expect(page.locator("#device")).to_have_text("wasm" if "software" in page.inner_text("#adapter") else "webgpu")
        expect(page.locator("#folder")).to_be_hidden()
        page.get_by_text("Another model", exact=True).click()
        page.fill("#folder", "models/other.gguf")
        page.press("#folder", "Tab")
        expect(page.locator("#chosen")).to_have_text("other.gguf")
        page.fill("#prompt", "x")
        page.click("#run")
        expect(page.locator("#error")).to_contain_text(re.compile(r"/models/other\.gguf(?!/)"), timeout=BOOT_MS)
    finally:
        page.close()
        site.models = models


def test_every_control_has_a_name(demo: Demo) -> None:
    demo.page.select_option("#search", "sample")
    for role in ("textbox", "combobox", "spinbutton", "button"):
        for control in demo.page.get_by_role(role).all():
            snapshot = control.aria_snapshot()
            assert re.match(rf"""- '?{role} "[^"]+""", snapshot), snapshot


@pytest.mark.extended
def test_nothing_jumps_while_an_answer_streams(demo: Demo) -> None:
    demo.set(max_new_tokens="60")
    demo.page.evaluate(WATCH_SHIFTS)
    demo.send()
    shifts = demo.page.evaluate("() => window.shifts()")
    assert demo.text("tokens") == "60"
    assert shifts["seen"], "the observer sees a shift that is made"
    assert shifts["streaming"] == []


@pytest.mark.extended
def test_an_answer_and_a_link_are_copied_and_the_theme_is_kept(demo: Demo) -> None:
    demo.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    demo.send()
    copied = "() => navigator.clipboard.readText()"
    demo.page.get_by_role("button", name="Copy", exact=True).click()
    expect(demo.page.get_by_role("button", name="Copied")).to_be_visible()
    assert demo.page.evaluate(copied) == "def fibonacci(n):" + demo.answer()
    demo.page.click("#share")
    expect(demo.page.locator("#share")).to_have_text("Copied")
    link = demo.page.evaluate(copied)
    assert link.startswith(demo.page.url.partition("#")[0] + "#")
    assert "prompt=def+fibonacci%28n%29%3A" in link
    ground = "() => getComputedStyle(document.documentElement).backgroundColor"
    demo.page.select_option("#theme", "light")
    light = demo.page.evaluate(ground)
    demo.page.select_option("#theme", "dark")
    assert demo.page.evaluate(ground) != light
    assert demo.page.evaluate("() => localStorage.getItem('capstan-theme')") == "dark"
    demo.page.select_option("#theme", "")


@pytest.mark.extended
def test_where_nothing_may_be_kept_or_copied_theme_and_link_work(demo: Demo) -> None:
    demo.page.evaluate(REFUSE)
    ground = "() => getComputedStyle(document.documentElement).backgroundColor"
    demo.page.select_option("#theme", "light")
    light = demo.page.evaluate(ground)
    demo.page.select_option("#theme", "dark")
    assert demo.page.evaluate(ground) != light
    demo.page.click("#share")
    expect(demo.page.locator("#share")).to_have_text("In the address")
    assert "prompt=def+fibonacci%28n%29%3A" in demo.page.url
    demo.page.select_option("#theme", "")
    demo.page.evaluate("() => restore()")


@pytest.mark.extended
def test_an_adapter_without_a_name_has_webgls(browser: Browser, site: SiteServer) -> None:
    context = browser.new_context()
    page = context.new_page()
    page.add_init_script(NAMELESS)
    page.goto(site.url)
    adapter = page.locator("#adapter")
    expect(adapter).to_have_text(re.compile("^A GPU of WebGL, by WebGL's name \\((software|hardware)\\)$"))
    context.close()


def test_settings_are_in_the_address_and_taken_from_it_but_no_token(demo: Demo) -> None:
    demo.page.select_option("#search", "sample")
    demo.page.fill("#temperature", "0.3")
    demo.page.fill("#token", "secret")
    demo.page.locator("#token").blur()
    assert "temperature=0.3" in demo.page.url
    assert "secret" not in demo.page.url
    demo.page.evaluate("() => { location.hash = 'model=nano-qwen2&temperature=1.2&min_p=0.1&token=other&prompt=a+b'; }")
    expect(demo.page.locator("#chosen")).to_have_text("nano-qwen2")
    values = [demo.page.input_value("#" + name) for name in ("temperature", "min-p", "token", "prompt")]
    assert values == ["1.2", "0.1", "secret", "a b"]
    demo.set(temperature="", min_p="", token="")


def test_a_link_leads_to_the_options_and_the_address_keeps_the_settings(demo: Demo) -> None:
    demo.set(max_new_tokens="7")
    demo.page.locator("#max-new-tokens").blur()
    address = demo.page.url
    assert "max_new_tokens=7" in address
    with demo.sized(320):
        demo.page.locator("#prompt").focus()
        demo.page.get_by_role("link", name="Options").click()
        expect(demo.page.locator("#options")).to_be_focused()
        expect(demo.page.locator("#options-title")).to_be_in_viewport()
    assert demo.page.url == address


def test_on_a_phone_the_options_are_a_drawer(demo: Demo) -> None:
    page, title = demo.page, demo.page.locator("#options-title")
    page.evaluate("() => {" + (ROOT / "node_modules/axe-core/axe.min.js").read_text() + "}")
    with demo.sized(360):
        expect(title).to_be_hidden()
        page.locator("#prompt").focus()
        page.get_by_role("link", name="Options").click()
        expect(title).to_be_in_viewport()
        expect(page.locator("#options")).to_be_focused()
        for theme in THEMES:
            page.evaluate("theme => { document.documentElement.dataset.theme = theme; }", theme)
            assert page.evaluate(AXE) == []
        page.evaluate("() => { document.documentElement.dataset.theme = ''; }")
        page.keyboard.press("Escape")
        expect(title).to_be_hidden()
        page.get_by_role("link", name="Options").click()
        page.get_by_role("button", name="Close").click()
        expect(title).to_be_hidden()
        page.evaluate("() => { document.getElementById('max-new-tokens').value = '1.5'; }")
        page.click("#run")
        expect(page.locator("#max-new-tokens")).to_be_focused()
        expect(page.locator("#max-new-tokens")).to_be_in_viewport()
        page.fill("#max-new-tokens", "6")
        page.press("#max-new-tokens", "Enter")
        expect(title).to_be_hidden()
        demo.wait("status", "^Done$")
        figures = page.locator(".figures :is(dt, dd)")
        wider = "all => all.filter((each) => each.scrollWidth > each.clientWidth).map((each) => each.textContent)"
        assert figures.evaluate_all(wider) == [], "none is clipped"
    expect(title).to_be_in_viewport()


@pytest.mark.parametrize("width", [360, 390, 430, 500])
def test_a_model_with_a_long_name_leaves_the_page_as_wide_as_the_phone(width: int, demo: Demo) -> None:
    named = "name => { const chip = document.getElementById('chosen'), before = chip.textContent; "
    named += "chip.textContent = name; const { scrollWidth } = document.documentElement; chip.textContent = before; "
    with demo.sized(width):
        assert demo.page.evaluate(named + "return scrollWidth; }", "SmolLM2-135M-Instruct.Q4_1") == width


@pytest.mark.parametrize("width", [360, 1200])
def test_no_model_in_the_list_is_clipped(width: int, demo: Demo) -> None:
    with demo.sized(width):
        if width <= NARROW:
            demo.page.get_by_role("link", name="Options").click()
        room, widths = demo.page.evaluate("""() => {
          const select = document.getElementById('model');
          const context = document.createElement('canvas').getContext('2d');
          context.font = getComputedStyle(select).font;
          const widths = [...select.options].map(({ text }) => [context.measureText(text).width, text]);
          const arrow = 24;
          return [select.clientWidth - arrow, widths];
        }""")
    assert not [text for width, text in widths if width > room], room


def test_the_page_can_be_installed_and_shared(demo: Demo, site: SiteServer) -> None:
    session = demo.page.context.new_cdp_session(demo.page)
    errors = session.send("Page.getInstallabilityErrors")["installabilityErrors"]
    assert [error["errorId"] for error in errors] == ["in-incognito"], "as the contexts of tests are"
    manifest = session.send("Page.getAppManifest")
    assert manifest["errors"] == []
    named = demo.page.locator("link[rel=manifest]").evaluate("link => link.href")
    assert manifest["url"] == named != ""
    for icon in json.loads(manifest["data"])["icons"]:
        path = ROOT / "web/demo" / icon["src"]
        assert path.suffix == ".svg" or png_size(path) == tuple(map(int, icon["sizes"].split("x")))
    tags = dict(
        demo.page.locator("meta[property^=og]").evaluate_all(
            "all => all.map((meta) => [meta.getAttribute('property'), meta.content])"
        )
    )
    assert {"og:title", "og:description", "og:image", "og:image:alt"} < set(tags)
    size = int(tags["og:image:width"]), int(tags["og:image:height"])
    assert png_size(ROOT / "web/demo" / tags["og:image"]) == size == (1200, 630)
    assert demo.page.request.get(site.url + tags["og:image"]).ok


def test_the_keyboard_alone_leads_from_the_load_to_an_answer(browser: Browser, site: SiteServer) -> None:
    page = browser.new_page()
    page.goto(f"{site.url}#model=nano-llama&device=wasm&max_new_tokens=4")
    expect(page.locator("#prompt")).to_be_focused()
    expect(page.locator("#examples button")).to_have_count(3)
    page.keyboard.type("def f(")
    page.keyboard.press("Enter")
    expect(page.locator("#status")).to_have_text("Done", timeout=BOOT_MS)
    expect(page.locator("#tokens")).to_have_text("4")
    page.keyboard.press("Shift+Tab")
    expect(page.get_by_role("button", name="Continue")).to_be_focused()
    page.close()


def test_parts_of_the_options_close_and_open(demo: Demo) -> None:
    for part in demo.page.locator("aside details").all():
        summary = part.locator("> summary")
        summary.click()
        expect(part).not_to_have_attribute("open", "")
        summary.press("Enter")
        expect(part).to_have_attribute("open", "")


def test_where_files_are_dragged_over_the_page_it_says_what_to_drop(demo: Demo) -> None:
    drawn = "() => getComputedStyle(document.body, '::after').content"
    demo.page.evaluate(DRAG, "text/plain")
    assert demo.page.evaluate(drawn) == "none", "a text is no folder"
    demo.page.evaluate(DRAG, "Files")
    assert demo.page.evaluate(drawn) == '"Drop files for the conversation, or a model"'
    demo.page.evaluate("() => document.body.dispatchEvent(new DragEvent('dragleave', { bubbles: true }))")
    assert demo.page.evaluate(drawn) == "none"


@pytest.mark.extended
def test_no_state_theme_or_width_has_anything_that_axe_or_an_eye_would_find(demo: Demo) -> None:
    """The pictures are left in PICTURES, for eyes."""
    page = demo.page
    page.evaluate("() => {" + (ROOT / "node_modules/axe-core/axe.min.js").read_text() + "}")
    shutil.rmtree(PICTURES, ignore_errors=True)
    found: dict[str, list[str]] = {}

    def look(state: str) -> None:
        found[state] = accessibility(page, state)

    look("welcome, settings open")
    page.evaluate("() => { for (const part of document.querySelectorAll('aside details')) part.open = false; }")
    look("settings closed")
    page.evaluate("() => { for (const part of document.querySelectorAll('aside details')) part.open = true; }")
    demo.hold(3)
    look("streaming")
    page.click("#stop")
    look("stopped")
    page.click("#clear")
    demo.set(max_new_tokens="6", prompt="def fibonacci(n):")
    demo.send()
    look("answered")
    demo.look()
    page.locator(".tokens [role=button]").nth(2).click()
    look("tokens looked at")
    page.get_by_role("button", name="Edit").click()
    look("edited")
    demo.set(prompt="")
    page.click("#run")
    look("refused")
    page.click("#drawer-open")
    page.click("#tape-ask")
    demo.wait("tape-note", "operations, in the order")
    look("drawer")
    page.keyboard.press("Escape")
    page.click("#race-open")
    demo.hold_after(2)
    page.click("#race-start")
    demo.wait("race-note", "Preparing the decode step|Generating|generating")
    look("race running")
    page.click("#race-stop")
    demo.wait("race-note", "^Stopped")
    look("race stopped")
    page.keyboard.press("Escape")
    page.click("#chosen")
    demo.wait("models-note", "is stored in this browser")
    look("models")
    page.keyboard.press("Escape")
    page.context.route("**/nano-qwen2/tokenizer.json", lambda route: route.fulfill(status=404, body="no such file"))
    choose(page, "nano-qwen2")
    demo.set(prompt="def fibonacci(n):")
    page.click("#run")
    demo.wait("error-code", "^ModelFileError$")
    look("a model that cannot be loaded")
    page.context.unroute("**/nano-qwen2/tokenizer.json")
    demo.errors.clear()  # Chromium writes of each 404.
    assert not any(found.values()), found
    assert len(list(PICTURES.glob("*.png"))) == len(found) * len(THEMES) * len(WIDTHS)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("width", WIDTHS)
def test_options_are_above_diagnostics(width: int, demo: Demo) -> None:
    with demo.sized(width):
        if width <= NARROW:
            demo.page.get_by_role("link", name="Options").click()
        options, diagnostics = demo.page.evaluate(EDGES)
    assert options <= diagnostics


LABELS_AT_FIELDS = """
() => [...document.querySelectorAll("#options .fields label")].filter((label) => {
  const field = label.control?.getBoundingClientRect();
  if (!field?.width || label.contains(label.control)) return false;
  const text = document.createRange();
  text.selectNodeContents(label);
  return [...text.getClientRects()].some(
    ({ left, right, top, bottom }) =>
      left < field.right && right + 8 > field.left && top < field.bottom && bottom > field.top,
  );
}).map((label) => label.textContent)
"""


@pytest.mark.one_in(3)
@pytest.mark.parametrize("width", WIDTHS)
def test_no_label_touches_its_field(width: int, demo: Demo) -> None:
    demo.page.select_option("#search", "sample")
    with demo.sized(width):
        if width <= NARROW:
            demo.page.get_by_role("link", name="Options").click()
        assert demo.page.evaluate(LABELS_AT_FIELDS) == []


@pytest.mark.one_in(3)
@pytest.mark.parametrize("width", WIDTHS)
def test_the_page_ends_where_its_content_ends(width: int, demo: Demo) -> None:
    demo.send()
    expect(demo.page.locator("#stored-table")).to_be_visible(timeout=RUN_MS)
    with demo.sized(width):
        end = demo.page.evaluate("() => document.documentElement.scrollHeight")
        content = demo.page.evaluate("() => document.querySelector('main').getBoundingClientRect().bottom")
    assert end <= max(800, content + 1)


def accessibility(page: Page, state: str) -> list[str]:
    """axe's findings in the page's present state, in both themes at each width; a picture of each is kept."""
    usual = page.viewport_size
    assert usual is not None
    PICTURES.mkdir(parents=True, exist_ok=True)
    found = []
    for theme in THEMES:
        page.evaluate("theme => { document.documentElement.dataset.theme = theme; }", theme)
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": 800})
            page.screenshot(path=PICTURES / f"{state}, {theme}, {width}.png", full_page=True)
            assert page.evaluate("() => document.documentElement.scrollWidth") == width, "it scrolls one way only"
            violations = page.evaluate(
                "async () => (await axe.run(document, { resultTypes: ['violations'] })).violations"
            )
            for violation in violations:
                places = [node["html"][:200] for node in violation["nodes"]]
                found.append(f"{theme}, {width} pixels: {violation['help']}: {places}")
    page.evaluate("() => { document.documentElement.dataset.theme = ''; }")
    page.set_viewport_size(usual)
    return found
