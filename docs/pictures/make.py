"""Makes the pictures of the demo page that the README shows, from the page itself.

usage: .venv/bin/python docs/pictures/make.py

`python3 build.py test` must have set up this checkout before. The bundled model answers an example with a fixed seed,
computed by the CPU.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from playwright.sync_api import Browser, Page, expect, sync_playwright

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT))

from buildtools.browser import find_browser, flags  # noqa: E402  # on the path just above
from buildtools.models import BUNDLED, mounts  # noqa: E402
from buildtools.server import serving  # noqa: E402
from buildtools.site import assemble  # noqa: E402

SETTINGS = "#device=wasm&random_seed=7"
WAIT_MS = 300_000


def opened(browser: Browser, url: str, theme: str, width: int, height: int) -> Page:
    """The page with an answer on it."""
    page = browser.new_page(
        viewport={"width": width, "height": height}, color_scheme="dark" if theme == "dark" else "light"
    )
    page.goto(url + SETTINGS)
    expect(page.locator("#status")).to_have_text(re.compile("^Ready"), timeout=WAIT_MS)
    return page


def answered(page: Page) -> Page:
    """The page once it has answered an example."""
    page.locator("#examples button").nth(1).click()
    expect(page.locator("#status")).to_have_text("Done", timeout=WAIT_MS)
    return page


def main() -> None:
    with serving(assemble(), mounts([BUNDLED])) as server, sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=str(find_browser()), args=["--headless=new", *flags("software")]
        )
        wide = answered(opened(browser, server.url, "light", 1200, 760))
        wide.screenshot(path=HERE / "demo.png")
        phone = opened(browser, server.url, "dark", 390, 760)
        phone.screenshot(path=HERE / "demo-phone.png")
        browser.close()


if __name__ == "__main__":
    main()
