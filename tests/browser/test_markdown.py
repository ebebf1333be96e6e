"""Answers of <capstan-chat> as Markdown: what is shown, what cannot come in, how it grows; under a strict policy."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from buildtools import ROOT
from buildtools.bundles import ON_DEMAND, bundle, bundle_on_demand
from capstan_host.site_server import SiteServer
from capstan_host.testing.harness import watch
from tests.looped import looped

STRICT = "default-src *; script-src 'self'; style-src 'self'; require-trusted-types-for 'script'; trusted-types "
OPEN = """() => {
  document.querySelector('capstan-chat')?.remove();
  window.chat = document.createElement('capstan-chat');
  chat.answer = (turn, signal) => answer(turn, signal);
  window.slot = () => chat.shadowRoot.querySelector('.turn:last-child slot[name^="answer"]');
  window.frame = () => new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve)));
  document.body.append(chat);
}"""
SHOW = """async (text) => {
  window.answer = async (turn) => { turn.answer = text; };
  await chat.send('**ask**');
  return slot().innerHTML;
}"""
"""Answer with a text at once, and give its elements."""
GROW = """async ([text, step]) => {
  window.answer = async (turn) => {
    for (let at = 0; at < text.length; at++) {
      turn.append(text[at]);
      if (at % step === 0) await frame();
    }
  };
  let atEnd;
  chat.addEventListener('capstan-busy', ({ detail }) => detail || (atEnd = slot().innerHTML), { capture: true });
  await chat.send('ask');
  return atEnd;
}"""
"""Answer character by character, and give the elements that are there when the answer ends."""
PARTS = """async (parts) => {
  const seen = [];
  const ALL = { childList: true, subtree: true, characterData: true };
  window.answer = async (turn) => {
    for (const part of parts) {
      const drawn = new Promise((resolve) => new MutationObserver(resolve).observe(slot(), ALL));
      turn.append(part);
      await Promise.race([drawn, new Promise((resolve) => setTimeout(resolve, 1000))]);
      seen.push(slot().innerHTML);
    }
  };
  await chat.send('ask');
  return [...seen, slot().innerHTML];
}"""
"""Answer in parts, and give the elements after each of them, once they are drawn, and at the end."""
ELEMENTS = """() => [...slot().querySelectorAll('*:not(.code-head *)')].map((element) => [
  element.localName,
  Object.fromEntries([...element.attributes].map(({ name, value }) => [name, value])),
])"""
TAGS = {
    *("a", "blockquote", "br", "code", "del", "div", "em", "h2", "h3", "h4", "h5", "h6", "hr", "li", "ol", "p", "pre"),
    *("span", "strong", "table", "tbody", "td", "th", "thead", "tr", "ul"),
}
ATTRIBUTES = {"align", "aria-label", "class", "href", "rel", "role", "start", "tabindex", "target"}
CLASSES = re.compile("table|code|code-head|task|hljs-[a-z_ -]+")
LINK = {"target": "_blank", "rel": "noopener noreferrer nofollow"}
ATTACKS = [
    "<script>window.hit = 1</script>",
    "a <img src=x onerror='window.hit = 1'> b",
    "<svg onload=window.hit=1><a xlink:href='javascript:window.hit=1'>x</a></svg>",
    "<style>* { display: none }</style>",
    "<iframe srcdoc='<script>parent.hit = 1</script>'></iframe>",
    "<form action='/steal'><input name=a autofocus onfocus=window.hit=1><button>go</button></form>",
    "<a href='/x' id=chat class=turn style='color: red' onclick='window.hit = 1'>raw</a>",
    "<math><mtext><table><mglyph><style><!--</style><img title='--><img src=1 onerror=window.hit=1>'>",
    "<!-- --><details open ontoggle=window.hit=1>",
    "- <b onmouseover=window.hit=1>x</b>\n\n> <object data=x></object>\n\n| <u>x</u> |\n| --- |\n| <video src=x> |",
    "# <base href='https://elsewhere.test'>",
    "[a](javascript:window.hit=1) [b](JaVaScRiPt:window.hit=1) [c](java\nscript:window.hit=1)",
    "[a](data:text/html,<script>parent.hit=1</script>) [b](vbscript:x) [c](blob:x) [d](file:///etc/passwd)",
    "[a]\n\n[a]: javascript:window.hit=1\n\n<javascript:window.hit=1> [b](&#106;avascript:window.hit=1)",
    "[a](//elsewhere.test) [b](/here) [c](#turns) [d](https:x) [e](\x01javascript:window.hit=1)",
    '![x](https://elsewhere.test/a.png) [![y](/b.png)](/c) ![" onerror=window.hit=1](x" onerror=window.hit=1)',
    '```x" onmouseover="window.hit=1\n<script>window.hit = 1</script>\n```',
    '[x](https://a.test/"onclick="window.hit=1 \'title" onclick=window.hit=1\')',
    "`<img src=x onerror=window.hit=1>` &lt;img src=x onerror=window.hit=1&gt;",
]
CODE = {
    "bash": ("for x in a; do echo $x; done", "keyword", "for"),
    "c": ("int x = 1;", "number", "1"),
    "c++": ("auto x = 1;", "keyword", "auto"),
    "css": ("#a > p.b:hover { color: red; }", "selector-id", "#a"),
    "diff": ("@@ -1 +1 @@\n- a\n+ b", "meta", "@@ -1 +1 @@"),
    "go": ("func f() { return nil }", "keyword", "func"),
    "html": ('<a href="x">&amp;</a><!-- y -->', "attr", "href"),
    "java": ("@Override void f() {}", "meta", "@Override"),
    "js": ("const f = async () => `a${1}`;", "keyword", "const"),
    "JSON": ('{"a": [1, true]}', "attr", '"a"'),
    "python": ("def f(x: int) -> str: return f'{x}'", "keyword", "def"),
    "rs": ('fn f<\'a>() -> u8 { println!("x") }', "keyword", "fn"),
    "sql": ("SELECT count(*) FROM t", "keyword", "SELECT"),
    "ts": ("interface A { b: string }", "keyword", "interface"),
    "yml": ("a: true", "attr", "a:"),
}
"""By a name of the language: code, and a part of it, with the class that it gets."""
LONG = [
    ">" * 5000 + " x",
    "- " * 5000 + "x",
    "1. " * 5000 + "x",
    "[" * 5000 + "x" + "](https://a.test)" * 5000,
    "**a *b " * 5000 + "* **" * 5000,
    "\n".join("  " * depth + "- x" for depth in range(500)),
    "_a" * 20_000,
    "a" + " " * 50_000 + "b",
    "x" * 500_000,
    "```\n" * 5000,
    "`" * 20_000,
    "|" + "a|" * 200 + "\n|" + "-|" * 200 + "\n" + ("|" + "x|" * 200 + "\n") * 20,
]
MIXED = """# Title

Some **bold**, *slanted*, ~~gone~~ and `code` with a [link](https://a.test/x) and 2 ** 3 * 4.
A second line.

3. one
4. two
   - inner **strong
     text**

> quoted
> more

| a | b |
| :- | -: |
| 1 | 2 |

````text
```js
nested
```
````

- [x] done

https://b.test/ and [late]

[late]: https://c.test

---

```python
print("**not bold**")
"""


Scripts = Mapping[str, bytes]


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Scripts:
    """The element, and the colours that it loads, bundled."""
    folder = tmp_path_factory.mktemp("markdown")
    made = [
        bundle(ROOT / "web/src/chat/chat.ts", folder / "chat.js", [f"--external:{name}" for name in ON_DEMAND]),
        *bundle_on_demand(folder),
    ]
    return {path.name: path.read_bytes() for path in made}


def opened(browser: Browser, site: SiteServer, scripts: Scripts, policy: str) -> Page:
    """A page with the element, under a policy."""
    page = browser.new_page(viewport={"width": 360, "height": 640})

    def answer(route: Route) -> None:
        name = route.request.url.rpartition("/")[2]
        if name in scripts:
            route.fulfill(body=scripts[name], content_type="text/javascript")
        elif name.endswith(".js"):
            route.fulfill(status=404)
        else:
            body = "<!doctype html><meta name=viewport content='width=device-width'>"
            body += "<script type=module src=chat.js></script>"
            route.fulfill(body=body, content_type="text/html", headers={"Content-Security-Policy": policy})

    page.route("**/markdown/*", answer)
    page.goto(site.url + "markdown/page.html")
    page.evaluate("() => customElements.whenDefined('capstan-chat').then(() => undefined)")
    page.evaluate(OPEN)
    return page


@pytest.fixture(scope="module")
def strict_page(browser: Browser, site: SiteServer, scripts: Scripts) -> Iterator[tuple[Page, list[str], list[str]]]:
    page = opened(browser, site, scripts, STRICT + "dompurify")
    errors, addresses = watch(page, []), list[str]()
    later = tuple(name[1:] for name in ON_DEMAND)
    page.on("request", lambda request: addresses.append(request.url) if not request.url.endswith(later) else None)
    yield page, errors, addresses
    page.close()


@pytest.fixture
def page(strict_page: tuple[Page, list[str], list[str]]) -> Iterator[Page]:
    """The page with a new element; an error, a refusal of the policy or a request fails the test."""
    page, errors, addresses = strict_page
    page.evaluate(OPEN)
    yield page
    assert (errors, addresses) == ([], [])


def show(page: Page, text: str) -> str:
    return str(page.evaluate(SHOW, text))


def elements(page: Page) -> list[tuple[str, dict[str, str]]]:
    return [(name, attributes) for name, attributes in page.evaluate(ELEMENTS)]


def check(page: Page) -> None:
    """Nothing but known elements with known attributes, and links to web pages."""
    for name, attributes in elements(page):
        assert name in TAGS
        assert set(attributes) <= ATTRIBUTES
        assert CLASSES.fullmatch(attributes.get("class", "table"))
        if name == "a":
            assert attributes["href"].startswith(("https://", "http://", "mailto:"))
            assert LINK.items() <= attributes.items()
    assert page.evaluate("() => window.hit") is None


@looped("attack", ATTACKS)
def test_nothing_of_an_answer_becomes_more_than_known_elements(page: Page, attack: str) -> None:
    show(page, attack)
    check(page)
    page.evaluate(GROW, [attack, 3])
    check(page)


@looped("attack", ATTACKS[:9])
def test_html_of_an_answer_is_shown_as_text(page: Page, attack: str) -> None:
    show(page, attack)
    text = page.evaluate("() => slot().textContent.trimEnd()")
    assert text == attack


def test_an_image_is_its_text_and_its_address(page: Page) -> None:
    assert show(page, "![a cat](https://a.test/cat.png) ![](b.png)") == "<p>a cat (https://a.test/cat.png) b.png</p>"


def test_links_open_elsewhere_and_others_are_words(page: Page) -> None:
    show(page, "[a](http://a.test) [b](mailto:b@c.test) https://d.test e@f.test [g](ftp://g.test)")
    addresses = ["http://a.test", "mailto:b@c.test", "https://d.test", "mailto:e@f.test"]
    assert elements(page) == [("p", {}), *(("a", {"href": address, **LINK}) for address in addresses)]
    assert page.evaluate("() => slot().textContent") == "a b https://d.test e@f.test g"


@pytest.mark.one_in
@pytest.mark.parametrize("text", LONG, ids=range(len(LONG)))
def test_an_answer_without_end_is_shown(page: Page, text: str) -> None:
    show(page, text)
    check(page)
    assert page.evaluate("() => slot().children.length") > 0
    page.evaluate(PARTS, [f"{text}\n\nEnd", "."])
    check(page)


def test_deep_nesting_and_long_paragraphs_stay_as_they_are_written(page: Page) -> None:
    assert show(page, "> " * 20 + "x").count("<blockquote>") < 20
    assert "&gt; x" in show(page, "> " * 20 + "x")
    assert "<strong>" in show(page, "**x** " * 100)
    assert "<strong>" not in show(page, "**x** " * 2000)


@pytest.mark.parametrize("step", [3, 40])
def test_an_answer_that_came_in_characters_is_what_it_is_at_once(page: Page, step: int) -> None:
    show(page, MIXED)
    expect(page.locator(".hljs-string")).to_be_visible()
    whole = show(page, MIXED)
    for tag in TAGS - {"h3", "h4", "h5", "h6", "div"}:
        assert f"<{tag}" in whole
    assert '<ol start="3">' in whole
    assert '<th align="right">' in whole
    assert page.evaluate(GROW, [MIXED, step]) == whole
    check(page)
    assert page.evaluate("() => chat.turns.at(-1).answer") == MIXED


def test_what_is_half_written_looks_whole(page: Page) -> None:
    parts = ["**bo", "ld*", "* 2 ** `co", "de`.\n-", " **x\n\n```text\nlet **a", "\n```\n\n| a |\n|"]
    bold = "<p><strong>bold</strong>"
    code = '<pre tabindex="0"><code>let **a\n</code></pre></div>'
    seen = page.evaluate(PARTS, parts)
    assert seen[:4] == [
        "<p><strong>bo</strong></p>",
        f"{bold}</p>",
        f"{bold} 2 ** <code>co</code></p>",
        f"{bold} 2 ** <code>code</code>.</p>",
    ]
    assert seen[4].endswith(code)
    assert '</ul><div class="code">' in seen[4]
    assert seen[5].endswith(f"{code}<p>| a |</p>")
    [listed, _] = page.evaluate(PARTS, ["- x\n\n  ```text\n  let **a"])
    assert code in listed
    assert seen[6].endswith(f"{code}<p>| a |<br>|</p>"), "at its end an answer is what it says"


def test_an_answer_is_drawn_once_a_frame_and_unchanged_parts_stay(page: Page) -> None:
    found = page.evaluate("""async () => {
      const found = {};
      window.answer = async (turn) => {
        turn.append('One.\\n\\n');
        for (const letter of 'Two') turn.append(letter);
        found.before = slot().childNodes.length;
        found.busy = chat.shadowRoot.getElementById('conversation').ariaBusy;
        await frame();
        await frame();
        found.after = slot().childNodes.length;
        const [first] = slot().children;
        getSelection().selectAllChildren(first);
        for (const letter of ', three.\\n\\nFour.') {
          turn.append(letter);
          await frame();
        }
        found.same = slot().children[0] === first;
      };
      chat.addEventListener('capstan-answer', () => {
        found.last = slot().textContent;
        found.done = chat.shadowRoot.getElementById('conversation').ariaBusy;
      });
      await chat.send('ask');
      return found;
    }""")
    during = {"before": 0, "busy": "true", "after": 2, "same": True}
    assert found == {**during, "last": "One.Two, three.Four.", "done": "false"}


def test_the_end_of_an_answer_stays_in_sight(page: Page) -> None:
    page.evaluate(GROW, ["Line.\n\n" * 60, 20])
    left = page.evaluate("""() => {
      const { scrollHeight, scrollTop, clientHeight } = chat.shadowRoot.getElementById('conversation');
      return scrollHeight - scrollTop - clientHeight;
    }""")
    assert left < 2


def test_copy_gives_the_source_and_what_the_user_said_stays_as_it_is(page: Page) -> None:
    show(page, "**x**\n\n* y\n")
    page.evaluate("() => { navigator.clipboard.writeText = async (text) => { window.copied = text; }; }")
    page.get_by_role("button", name="Copy").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    assert page.evaluate("() => copied") == "**x**\n\n* y\n"
    assert page.evaluate("() => chat.messages.map(({ content }) => content)") == ["**ask**", "**x**\n\n* y\n"]
    assert page.locator(".echo").inner_html() == "**ask**"


def test_a_completion_is_plain(page: Page) -> None:
    text = "# no title\n\n**x** <b>y</b>\n    indented"
    found: list[Any] = page.evaluate(
        """async (text) => {
      window.answer = async (turn) => {
        turn.continues = true;
        for (const letter of text) turn.append(letter);
      };
      await chat.send('def f():');
      return [slot().children.length, slot().textContent];
    }""",
        text,
    )
    assert found == [0, text]
    assert page.evaluate("() => { chat.turns[0].continues = false; return slot().children.length; }") > 0


def test_the_attribute_plain_shows_the_source(page: Page) -> None:
    whole = show(page, "**x**\n\ny")
    shown = "(on) => { chat.toggleAttribute('plain', on); return slot().innerHTML; }"
    assert page.evaluate(shown, True) == "**x**\n\ny"
    assert page.evaluate(GROW, ["*z*", 1]) == "*z*"
    assert show(page, "**x**\n\ny") == "**x**\n\ny"
    assert page.evaluate(shown, False) == whole == "<p><strong>x</strong></p><p>y</p>"


def test_a_task_has_one_mark(page: Page) -> None:
    show(page, "- [x] done\n- [ ] not\n- plain\n\n1. [x] first")
    marks = page.evaluate("() => [...slot().querySelectorAll('li')].map((li) => getComputedStyle(li).listStyleType)")
    assert marks == ["none", "none", "disc", "decimal"]
    assert page.locator("li").all_inner_texts() == ["\u2611 done", "\u2610 not", "plain", "\u2611 first"]


@looped("language", CODE)
def test_code_is_highlighted_by_its_language(page: Page, language: str) -> None:
    code, part, text = CODE[language]
    show(page, f"- x\n\n  ```{language} title=x\n  {code.replace(chr(10), chr(10) + '  ')}\n  ```\n\n```\nplain\n```")
    expect(page.locator(f".turn:last-child li .hljs-{part}").first).to_have_text(text)
    assert [shown.strip() for shown in page.locator(".turn:last-child .code pre").all_text_contents()] == [
        code,
        "plain",
    ]
    assert page.locator(".turn:last-child .code-head span").all_text_contents() == [language, ""]
    check(page)


def test_colours_are_loaded_when_there_is_code_of_a_known_language(
    browser: Browser, site: SiteServer, scripts: Scripts
) -> None:
    page = opened(browser, site, scripts, STRICT + "dompurify")
    addresses: list[str] = []
    page.on("request", lambda request: addresses.append(request.url.rpartition("/")[2]))
    show(
        page, "`x`\n\n    indented\n\n```brainfuck\n+\n```\n\n```\n# no\n```\n\n```python\n" + "x = 1\n" * 5000 + "```"
    )
    assert addresses == []
    show(page, "```py\nif\n```\n\n```js\nif\n```")
    expect(page.locator(".hljs-keyword")).to_have_count(2)
    assert addresses == ["highlight.js"]
    page.close()
    page = opened(browser, site, {"chat.js": scripts["chat.js"]}, STRICT + "dompurify")
    with page.expect_console_message(lambda told: "without colours" in told.text):
        show(page, "```python\nif x:\n    pass\n```")
    assert page.locator(".code pre").inner_text() == "if x:\n    pass\n"
    page.close()
    assert len(scripts["chat.js"]) < 370_000
    assert b"registerLanguage" not in scripts["chat.js"]


FORMULAS = [
    (r"so $a^2$ is", ["a^2"], "inline"),
    (r"so \(\sqrt{2}\) is", [r"\sqrt{2}"], "inline"),
    ("$$\n\\frac{1}{2}\n$$", [r"\frac{1}{2}"], "block"),
    ("\\[\nx_1\n\\]\n\nand $$y$$ too", ["x_1", "y"], "block"),
    ("* $x$\n* `$y$`", ["x"], "inline"),
    ("It costs $5 and $6, or $7-$8; $ x $ and a $ alone", [], ""),
    (r"$\notatex{$", [], ""),
]
"""Texts, the TeX of their formulas, and how these are shown."""


@pytest.mark.parametrize(("text", "formulas", "display"), FORMULAS)
def test_formulas_are_mathml_and_prices_are_not(page: Page, text: str, formulas: list[str], display: str) -> None:
    show(page, "$a$")
    expect(page.locator(".turn:last-child math")).to_have_count(1)
    show(page, text)
    shown = page.locator(".turn:last-child math")
    expect(shown).to_have_count(len(formulas))
    for at in range(len(formulas)):
        assert (shown.nth(at).get_attribute("display") or "inline") == display
    whole = page.evaluate("() => slot().textContent")
    assert "annotation" not in page.evaluate("() => slot().innerHTML")
    if not formulas:
        assert whole.strip() == text
    page.evaluate(GROW, [text, 3])
    expect(shown).to_have_count(len(formulas))


def test_a_formula_cannot_bring_elements_or_addresses(page: Page) -> None:
    show(page, r"$\href{javascript:hit=1}{x} \url{https://a.test} \htmlClass{a}{b} <img src=x onerror=hit=1>$")
    expect(page.locator(".turn:last-child math")).to_have_count(1)
    assert page.locator(".turn:last-child .text :is(a, img, [class*=katex], [style])").count() == 0
    assert page.evaluate("() => window.hit") is None


def test_a_block_of_code_is_copied_by_keyboard_alone(page: Page) -> None:
    code = "<b>if</b> x:\n\n    y"
    show(page, f"> ```python\n> {code.replace(chr(10), chr(10) + '> ')}\n> ```")
    page.evaluate("() => { navigator.clipboard.writeText = async (text) => { window.copied = text; }; }")
    page.locator("#conversation").focus()
    page.keyboard.press("Tab")
    expect(page.get_by_role("button", name="Copy this code")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator(".code-head button")).to_have_text("Copied")
    assert page.evaluate("() => copied.trimEnd()") == code


def test_a_block_that_grows_keeps_the_focus_and_copies_all_of_it(page: Page) -> None:
    found = page.evaluate("""async () => {
      navigator.clipboard.writeText = async (text) => { window.copied = text; };
      const found = {};
      window.answer = async (turn) => {
        turn.append('- Look:\\n\\n  ```python\\n  one = 1\\n');
        await frame();
        await frame();
        const copy = slot().querySelector('.code-head button');
        copy.focus();
        getSelection().selectAllChildren(slot().querySelector('li p'));
        turn.append('  two = 2\\n  ```\\n');
        await frame();
        await frame();
        found.focused = chat.shadowRoot.activeElement === copy;
        found.selected = String(getSelection());
        copy.click();
      };
      await chat.send('ask');
      found.copied = window.copied;
      return found;
    }""")
    assert found == {"focused": True, "selected": "Look:", "copied": "one = 1\ntwo = 2\n"}


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_in_code_and_reasoning(
    browser: Browser, site: SiteServer, scripts: Scripts, theme: Literal["light", "dark"]
) -> None:
    page = opened(browser, site, scripts, STRICT.replace("script-src 'self'", "script-src 'self' 'unsafe-eval'") + "*")
    page.emulate_media(color_scheme=theme)
    page.evaluate("() => { document.documentElement.style.colorScheme = 'light dark'; document.title = 'x'; }")
    # axe judges colours of what is in sight alone.
    page.set_viewport_size({"width": 800, "height": 3000})
    page.evaluate("() => { chat.style.blockSize = '3000px'; }")
    code = "\n\n".join(f"```{language}\n{code}\n```" for language, (code, *_) in CODE.items())
    show(page, f"<think>\nhm\n</think>\n\n{code}\n\n```diff\n- a\n+ b\n```\n\n- [x] done")
    page.get_by_text("Reasoning", exact=True).click()
    expect(page.locator(".hljs-addition").first).to_be_visible()
    page.evaluate("() => {" + (ROOT / "node_modules/axe-core/axe.min.js").read_text() + "}")
    violations, judged = page.evaluate("""async () => {
      const { violations, passes } = await axe.run(chat);
      const told = ({ id, nodes }) => [id, nodes.map(({ html, failureSummary }) => [html, failureSummary])];
      const coloured = passes.find(({ id }) => id === 'color-contrast').nodes;
      return [violations.map(told), coloured.filter(({ html }) => html.includes('hljs-')).length];
    }""")
    assert violations == []
    assert judged > 20
    page.close()


FOLDED = """() => {
  const { summary, details } = { details: slot().querySelector('details'), summary: slot().querySelector('summary') };
  return [details?.open ?? null, summary?.textContent ?? null, slot().lastElementChild?.innerHTML ?? ''];
}"""
"""Whether the reasoning is open, null without any, its heading, and the last element."""


def test_reasoning_is_folded_above_the_answer_and_later_turns_do_not_send_it(page: Page) -> None:
    text = "<think>\n**One**\n</think>\n\n*Two* `</think>`"
    show(page, text)
    assert page.evaluate(FOLDED) == [False, "Reasoning", "<em>Two</em> <code>&lt;/think&gt;</code>"]
    heading = page.get_by_text("Reasoning", exact=True)
    expect(page.locator(".thoughts")).to_be_hidden()
    heading.press("Enter")
    expect(page.locator(".thoughts strong")).to_have_text("One")
    assert page.evaluate("() => chat.messages.map(({ content }) => content)") == ["**ask**", "*Two* `</think>`"]
    turn = page.evaluate("() => (({ answer, reasoning, reply }) => [answer, reasoning, reply])(chat.turns[0])")
    assert turn == [text, "**One**", "*Two* `</think>`"]
    page.evaluate("() => { navigator.clipboard.writeText = async (text) => { window.copied = text; }; }")
    page.get_by_role("button", name="Copy").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    assert page.evaluate("() => copied") == "*Two* `</think>`"
    page.evaluate("() => chat.toggleAttribute('plain', true)")
    assert page.locator(".thoughts").inner_text() == "**One**"
    page.evaluate("() => { chat.turns[0].continues = true; }")
    assert page.evaluate("() => slot().innerHTML").startswith("&lt;think&gt;"), "a continued text is what it says"


def test_while_it_streams_the_heading_tells_that_the_model_thinks_and_for_how_long(page: Page) -> None:
    found = page.evaluate(
        """async (folded) => {
      const look = eval(folded);
      const seen = [];
      const grown = async (turn, part, heading) => {
        turn.append(part);
        for (let frames = 0; frames < 300 && look()[1] !== heading; frames++) await frame();
        seen.push(look());
      };
      window.answer = async (turn) => {
        await grown(turn, '<thi', null);
        await grown(turn, 'nk>hm', 'Thinking…');
        const { now } = performance;
        performance.now = () => now.call(performance) + 61_000;
        await grown(turn, ', so </thi', 'Thinking… 1 min 1 s');
        await grown(turn, 'nk>So.', 'Reasoning (1 min 1 s)');
        performance.now = now;
      };
      await chat.send('ask');
      return [...seen, look()];
    }""",
        FOLDED,
    )
    ended = [False, "Reasoning (1 min 1 s)", "So."]
    assert [heading for _, heading, _ in found] == [None, "Thinking…", "Thinking… 1 min 1 s", ended[1], ended[1]]
    assert [opened for opened, *_ in found] == [None, *[False] * 4]
    assert found[3:] == [ended, ended]


def test_reasoning_that_does_not_end_and_that_an_answer_begins_with_is_folded_too(page: Page) -> None:
    show(page, "<think>hm, `<think>` a")
    assert page.evaluate(FOLDED)[:2] == [False, "Reasoning, not finished"]
    assert page.evaluate("() => [chat.messages.at(-1).content, chat.turns[0].reasoning]") == ["", "hm, `<think>` a"]
    show(page, "Use a and </think> to end.")
    assert page.evaluate(FOLDED)[0] is None
    seen = page.evaluate(
        """async (folded) => {
      const look = eval(folded);
      let seen;
      window.answer = async (turn) => {
        turn.reasons = true;
        turn.append('hm');
        await frame();
        seen = look()[1];
        turn.append('</think>Yes.');
      };
      await chat.send('ask');
      return [seen, look()];
    }""",
        FOLDED,
    )
    assert seen == ["Thinking…", [False, "Reasoning", "Yes."]]
    show(page, "Write `<think>`:\n\n```\n<think>\nhm\n</think>\n```")
    assert page.evaluate(FOLDED)[0] is None


def test_wide_code_and_tables_scroll_in_themselves(page: Page) -> None:
    wide = "```\n" + "x = 1; " * 40 + "\n```\n\n|" + " header |" * 12 + "\n|" + "---|" * 12 + "\n|" + " value |" * 12
    show(page, f"{wide}\n\n- `{'y' * 200}`\n- {'z' * 200}\n\n> {wide.splitlines()[1]}")
    widths = page.evaluate("""() => {
      const log = chat.shadowRoot.getElementById('conversation');
      const wider = (element) => element.scrollWidth > element.clientWidth;
      const boxes = [...slot().querySelectorAll('pre, .table')];
      return [document.documentElement, chat, log, ...boxes].map(wider);
    }""")
    assert widths == [False, False, False, True, True]
    assert [attributes["tabindex"] for name, attributes in elements(page) if "tabindex" in attributes] == ["0", "0"]


def test_under_a_policy_that_refuses_the_parser_an_answer_is_its_source(
    browser: Browser, site: SiteServer, scripts: Scripts
) -> None:
    page = opened(browser, site, scripts, STRICT + "'none'")
    warnings: list[str] = []
    page.on("console", lambda told: warnings.append(told.text))
    assert show(page, "**x**") == "**x**"
    assert any("without its Markdown" in warning for warning in warnings)
    page.close()
