"""The example of an agent as its visitor uses it, with the model that it loads: it books seats, and reads the table."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Dialog, Page, expect

from buildtools import ROOT
from buildtools.bundles import bundle
from capstan_host.site_server import SiteServer
from capstan_host.testing.harness import watch
from tests.browser.agent_module import agent_module
from tests.documented import hub_at_its_address, repositories

EXAMPLE = ROOT / "examples/agent"
ANSWER_MS = 120_000


@pytest.fixture
def errors() -> list[str]:
    return []


@pytest.fixture
def page(browser: Browser, site: SiteServer, errors: list[str], tmp_path: Path) -> Iterator[Page]:
    """The example in a page of the site, whose hub has the model."""
    client = f"{site.url}capstan/capstan.js"
    context = browser.new_context()
    with agent_module(tmp_path, site) as agents, hub_at_its_address(context, repositories(tmp_path / "hub")):
        outside = [f"--alias:capstan-webgpu={client}", f"--alias:capstan-webgpu/agent={agents}"]
        outside += [f"--external:{client}", f"--external:{agents}"]
        main = bundle(EXAMPLE / "main.js", tmp_path / "main.js", outside)
        context.route("**/main.js", lambda route: route.fulfill(path=main))
        page = context.new_page()
        watch(page, errors)
        # A document that the test answers itself might not ask other servers of this machine.
        page.goto(site.url + "blank.html")
        page.set_content((EXAMPLE / "index.html").read_text())
        yield page
    context.close()


ENDED = re.compile("^ended: (stop|length|tool_calls)$")


def asked_for(page: Page, wish: str) -> list[str]:
    """The steps' lines, after a wish."""
    page.get_by_label("Your wish").fill(wish)
    page.get_by_role("button", name="Ask").click()
    expect(page.get_by_role("button", name="Ask")).to_be_enabled(timeout=ANSWER_MS)
    expect(page.get_by_role("status")).to_have_text(ENDED)
    return page.locator("li").all_inner_texts()


def test_a_model_of_135_million_parameters_fills_the_form_and_reads_the_table(page: Page, errors: list[str]) -> None:
    asked: list[str] = []
    answers = [True, False]

    def decide(dialog: Dialog) -> None:
        asked.append(dialog.message)
        if answers.pop(0):
            dialog.accept()
        else:
            dialog.dismiss()

    page.on("dialog", decide)
    day, seats = page.get_by_label("Day"), page.get_by_label("Seats")
    [step, *_] = asked_for(page, page.get_by_label("Your wish").input_value())
    booked = {"day": day.input_value(), "seats": int(seats.input_value())}
    assert asked == [f"Allow book with {json.dumps(booked, separators=(',', ':'))}?"]
    assert booked == {"day": "Tuesday", "seats": 2}
    assert step.startswith('book returned: {"booked":2,"day":"Tuesday"}')
    [step, *_] = asked_for(page, "Book 3 seats on Tuesday.")
    assert len(asked) == 2
    assert step.startswith("book refused: The user refused this call.")
    assert (day.input_value(), int(seats.input_value())) == ("Tuesday", 2), "a call that is refused changes nothing"
    steps = asked_for(page, "How many seats are free on Friday?")
    assert steps[0].startswith('free_seats returned: [{"day":"Monday","seats":0},{"day":"Tuesday","seats":3},')
    assert "12" in steps[-1]
    assert len(asked) == 2, "a tool that only reads needs no confirmation"
    assert errors == []
