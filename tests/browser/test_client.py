"""The page's handle on the worker."""

from __future__ import annotations

import time

from playwright.sync_api import Page

START = """async () => {
  const { Capstan } = await import("/capstan/capstan.js");
  try {
    await Capstan.start({ base: "/capstan/" });
    return "it started";
  } catch (error) {
    return `${error.code}: ${error.message}`;
  }
}"""
ISOLATED = {"Cross-Origin-Embedder-Policy": "require-corp", "Cross-Origin-Resource-Policy": "same-origin"}
OUT_OF_ORDER = "setInterval(() => 0, 1000); setTimeout(() => { throw new Error('out of order'); });"


def test_a_worker_that_fails_while_it_starts_is_ended(blank_page: Page, page_errors: list[str]) -> None:
    answer = {"content_type": "text/javascript", "headers": ISOLATED, "body": OUT_OF_ORDER}
    blank_page.route("**/worker.js", lambda route: route.fulfill(**answer))
    message = blank_page.evaluate(START)
    assert message.startswith("DeviceUnavailableError: the worker failed: ")
    assert "out of order" in message
    deadline = time.monotonic() + 60
    while blank_page.workers and time.monotonic() < deadline:
        blank_page.wait_for_timeout(50)
    assert blank_page.workers == []
    page_errors.clear()
