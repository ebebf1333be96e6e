"""A page stays smooth while a model works: no task of its main thread keeps that thread's processor for long.

Processor time is looked at, by the browser's trace, not the time that passes: on a busy machine any task may be kept
waiting. The bench measures the frames beside a busy GPU, in its section frames."""

from __future__ import annotations

import json

import pytest
from playwright.sync_api import Browser, Page

from capstan_host.testing.harness import Harness

LONGEST_MS = 50.0
"""Over this a task counts as long for a page."""
BUSY = "(ms) => { const end = performance.now() + ms; while (performance.now() < end); }"


def longest_task(trace: bytes) -> float:
    """Milliseconds of processor time of the longest task of any page's main thread."""
    events = json.loads(trace)["traceEvents"]
    threads = {(event["pid"], event["tid"]) for event in events if main_thread(event)}
    tasks = [
        event["tdur"] / 1000
        for event in events
        if event["name"].endswith("RunTask") and "tdur" in event and (event["pid"], event["tid"]) in threads
    ]
    assert tasks, "the browser's trace has no tasks with their processor time"
    return float(max(tasks))


def main_thread(event: dict[str, object]) -> bool:
    args = event.get("args")
    named = event["name"] == "thread_name" and isinstance(args, dict)
    return named and isinstance(args, dict) and args["name"] == "CrRendererMain"


def begin(browser: Browser, page: Page) -> None:
    browser.start_tracing(page=page, categories=["toplevel"])


@pytest.mark.extended
def test_a_prompt_and_its_tokens_keep_the_main_thread_free(harness: Harness, browser: Browser) -> None:
    harness.generate("nano-llama", prompt_ids=[5], max_new_tokens=1)
    begin(browser, harness.page)
    try:
        found = harness.generate("nano-llama", prompt_ids=[5] * 400, max_new_tokens=100)
    finally:
        trace = browser.stop_tracing()
    assert len(found["token_ids"]) == 100
    assert longest_task(trace) <= LONGEST_MS


def test_a_task_that_keeps_the_main_thread_is_seen(harness: Harness, browser: Browser) -> None:
    """The control: the same measurement finds a task that does keep it."""
    begin(browser, harness.page)
    try:
        # The time that passes is at least the processor's; twice the limit leaves room for waits.
        for _ in range(3):
            harness.page.evaluate(BUSY, 6 * LONGEST_MS)
    finally:
        trace = browser.stop_tracing()
    assert longest_task(trace) > LONGEST_MS
