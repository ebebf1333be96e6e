"""Takes pictures at three widths, light and dark, side by side: of the documentation's site, and of the demo page.

usage: .venv/bin/python docs/pictures/widths.py site|demo

`site`: `python3 build.py docs` must have built it before. `demo`: the bundled model answers on the CPU.
"""

from __future__ import annotations

import re
import sys
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Literal

from playwright.sync_api import Browser, Page, expect, sync_playwright

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT))

from buildtools.browser import find_browser  # noqa: E402  # on the path just above
from buildtools.commands.docs import TARGET  # noqa: E402
from buildtools.site import assemble  # noqa: E402
from capstan_host.headless.chromium import flags  # noqa: E402  # on the path just above
from capstan_host.model_arguments import BUNDLED, mounts  # noqa: E402
from capstan_host.site_server import serving  # noqa: E402

WIDTHS = (1240, 800, 360)
PAGES = ("index.html", "tape.html", "errors.html")
"""Those of the site, by width."""
HEIGHT = 900
SCALE = 0.4
WAIT_MS = 60_000
STYLE = "body { margin: 0; padding: 8px; background: #888 } div { display: flex; gap: 8px; margin-bottom: 8px }"
Theme = Literal["light", "dark"]
THEMES: tuple[Theme, ...] = ("light", "dark")


class Quiet(SimpleHTTPRequestHandler):
    """Serves files without a line for each."""

    def log_message(self, format: str, *args: object) -> None:
        pass


def image(page: Page) -> str:
    """An HTML image of what a page shows now."""
    assert page.viewport_size
    size = f'width="{page.viewport_size["width"] * SCALE}" height="{HEIGHT * SCALE}"'
    return f'<img src="data:image/png;base64,{b64encode(page.screenshot()).decode()}" {size}>'


@contextmanager
def site(browser: Browser) -> Iterator[Page]:
    server = ThreadingHTTPServer(("localhost", 0), partial(Quiet, directory=str(TARGET)))
    Thread(target=server.serve_forever, daemon=True).start()
    page = browser.new_page(base_url=f"http://localhost:{server.server_port}/")
    yield page
    server.shutdown()


@contextmanager
def demo(browser: Browser) -> Iterator[Page]:
    """The page once it has answered."""
    with serving(assemble(), mounts([BUNDLED])) as server:
        page = browser.new_page()
        page.goto(f"{server.url}#device=wasm&random_seed=7")
        expect(page.locator("#status")).to_have_text(re.compile("^Ready"), timeout=WAIT_MS)
        page.locator("#examples button").first.click()
        expect(page.locator("#status")).to_have_text("Done", timeout=WAIT_MS)
        yield page


def main() -> None:
    what = sys.argv[1]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=str(find_browser()), args=["--headless=new", *flags("software")]
        )
        rows = []
        with {"site": site, "demo": demo}[what](browser) as page:
            for theme in THEMES:
                page.emulate_media(color_scheme=theme)
                images = []
                for width, name in zip(WIDTHS, PAGES, strict=True):
                    page.set_viewport_size({"width": width, "height": HEIGHT})
                    if what == "site":
                        page.goto(name, wait_until="networkidle")
                    page.wait_for_timeout(500)
                    images.append(image(page))
                rows.append("".join(images))
        sheet = browser.new_page(viewport={"width": 992, "height": 744})
        sheet.set_content(f"<style>{STYLE}</style>" + "".join(f"<div>{row}</div>" for row in rows))
        sheet.screenshot(path=HERE / f"{'site' if what == 'site' else 'demo-widths'}.png", full_page=True)
        browser.close()


if __name__ == "__main__":
    main()
