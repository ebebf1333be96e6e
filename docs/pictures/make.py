"""Makes the README's pictures of the demo page, its icons, and its preview for links, from the page itself.

usage: .venv/bin/python docs/pictures/make.py [--adapter hardware] [--model PLACE] [--out FOLDER]

`python3 build.py test` must have set up this checkout before. The model, that of `build.py run` unless another is
given, answers the page's examples: on the GPU with `--adapter hardware`, else on the CPU.
"""

from __future__ import annotations

import argparse
import io
import re
import sys
import time
from pathlib import Path
from typing import Literal

from PIL import Image
from playwright.sync_api import Browser, Page, expect, sync_playwright

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
ICONS = ROOT / "web/demo/icons"
sys.path.insert(0, str(ROOT))

from buildtools.browser import find_browser  # noqa: E402  # on the path just above
from buildtools.site import assemble  # noqa: E402
from capstan_host.chat_model import default_model  # noqa: E402
from capstan_host.headless.chromium import flags  # noqa: E402  # on the path just above
from capstan_host.model_arguments import mounts  # noqa: E402
from capstan_host.site_server import serving  # noqa: E402

SETTINGS = {"software": "#device=wasm", "hardware": ""}
WAIT_MS = 600_000
MASKED = 'viewBox="0 0 48 48" style="background: #1f5fa5; padding: 10%; box-sizing: border-box"'
FILM = (800, 420)
"""Pixels of the film."""
FRAME_MS = 150
MOST_FRAMES = 200


class Photographer:
    """Opens the page of a server in a browser, and takes its picture."""

    def __init__(self, browser: Browser, url: str, folder: Path) -> None:
        self._browser, self._url, self._folder = browser, url, folder

    def opened(self, theme: Literal["light", "dark"], width: int, height: int) -> Page:
        """The page as it comes up."""
        page = self._browser.new_page(viewport={"width": width, "height": height}, color_scheme=theme)
        page.goto(self._url)
        expect(page.locator("#status")).to_have_text(re.compile("^Ready"), timeout=WAIT_MS)
        return page

    def answered(self, page: Page) -> Page:
        """The page once it has answered two examples, of which the second is shown: everything is warm then."""
        for example in (0, 1):
            page.locator("#examples button").nth(example).click()
            expect(page.locator("#status")).to_have_text("Done", timeout=WAIT_MS)
            if example == 0:
                page.click("#clear")
        return page

    def take(self, page: Page, name: str) -> None:
        page.screenshot(path=self._folder / f"{name}.png")

    def film(self, page: Page, name: str, question: str) -> None:
        """Film a question that is typed, sent and answered in the warm page, with a picture every FRAME_MS."""
        page.click("#clear")
        frames: list[Image.Image] = []

        def shoot(wait: int = FRAME_MS) -> None:
            begun = time.monotonic()
            frames.append(Image.open(io.BytesIO(page.screenshot())).convert("RGB").resize(FILM))
            page.wait_for_timeout(max(0.0, wait - 1000 * (time.monotonic() - begun)))

        for letter in range(0, len(question), 3):
            page.fill("#prompt", question[: letter + 3])
            shoot()
        page.keyboard.press("Enter")
        # The page is busy from the next frame on.
        for _ in range(MOST_FRAMES):
            shoot()
            if page.inner_text("#status") == "Done":
                break
        durations = [FRAME_MS] * len(frames) + [3000]
        frames.append(frames[-1])
        place = self._folder / f"{name}.webp"
        frames[0].save(place, save_all=True, append_images=frames[1:], duration=durations, loop=0, quality=60, method=4)


def make_icons(browser: Browser) -> None:
    """The icons of an installed page, out of icon.svg. Systems cut a maskable one to a circle or the like."""
    drawing = (ICONS / "icon.svg").read_text()
    for name, size, svg in (
        ("icon-192", 192, drawing),
        ("icon-512", 512, drawing),
        ("icon-maskable-512", 512, drawing.replace(' rx="10"', "").replace('viewBox="0 0 48 48"', MASKED)),
    ):
        page = browser.new_page(viewport={"width": size, "height": size})
        page.set_content(f"<style>body {{ margin: 0; display: grid }}</style>{svg}")
        page.screenshot(path=ICONS / f"{name}.png", omit_background=True)
        page.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--adapter", choices=SETTINGS, default="software")
    parser.add_argument("--model", type=Path, metavar="PLACE")
    parser.add_argument("--out", type=Path, default=HERE, metavar="FOLDER")
    args = parser.parse_args()
    with serving(assemble(), mounts([args.model or default_model()])) as server, sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=str(find_browser()), args=["--headless=new", *flags(args.adapter)]
        )
        camera = Photographer(browser, server.url + SETTINGS[args.adapter], args.out)
        make_icons(browser)
        wide = camera.answered(camera.opened("light", 1200, 760))
        camera.take(wide, "demo")
        wide.set_viewport_size({"width": 1200, "height": 630})
        wide.screenshot(path=ICONS / "preview.png")
        camera.film(wide, "demo-answers", "Give me three tips for a good night's sleep.")
        camera.take(camera.opened("dark", 390, 760), "demo-phone")
        browser.close()


if __name__ == "__main__":
    main()
