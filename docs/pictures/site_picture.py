"""Takes the picture of the documentation's site: three widths, light and dark, side by side.

usage: .venv/bin/python docs/pictures/site_picture.py

`python3 build.py docs` must have built the site before.
"""

from __future__ import annotations

import sys
from base64 import b64encode
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Literal

from playwright.sync_api import Browser, sync_playwright

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT))

from buildtools.browser import find_browser, flags  # noqa: E402  # on the path just above
from buildtools.commands.docs import TARGET  # noqa: E402

SHOTS: tuple[tuple[str, int], ...] = (("index.html", 1240), ("tape.html", 800), ("errors.html", 360))
HEIGHT = 900
SCALE = 0.4


class Quiet(SimpleHTTPRequestHandler):
    """Serves files without a line for each."""

    def log_message(self, format: str, *args: object) -> None:
        pass


def shot(browser: Browser, url: str, width: int, theme: Literal["light", "dark"]) -> str:
    """An HTML image of a page."""
    page = browser.new_page(viewport={"width": width, "height": HEIGHT}, color_scheme=theme)
    page.goto(url, wait_until="networkidle")
    data = b64encode(page.screenshot()).decode()
    page.close()
    return f'<img src="data:image/png;base64,{data}" width="{width * SCALE}" height="{HEIGHT * SCALE}">'


def main() -> None:
    server = ThreadingHTTPServer(("localhost", 0), partial(Quiet, directory=str(TARGET)))
    Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://localhost:{server.server_port}/"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=str(find_browser()), args=["--headless=new", *flags("software")]
        )
        themes: tuple[Literal["light", "dark"], ...] = ("light", "dark")
        rows = ["".join(shot(browser, url + name, width, theme) for name, width in SHOTS) for theme in themes]
        sheet = browser.new_page(viewport={"width": 992, "height": 744})
        style = "body { margin: 0; padding: 8px; background: #888 } div { display: flex; gap: 8px; margin-bottom: 8px }"
        sheet.set_content(f"<style>{style}</style>" + "".join(f"<div>{row}</div>" for row in rows))
        sheet.screenshot(path=HERE / "site.png", full_page=True)
        browser.close()
    server.shutdown()


if __name__ == "__main__":
    main()
