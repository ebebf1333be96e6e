"""Generators that take over the key/value rows of others pick the oracle's ids, in a page."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from capstan_host.site_server import SiteServer
from tests import oracle
from tests.browser.page_scripts import PageScripts
from tests.browser.test_repositories import GONE, copied, with_magnitudes

FIXTURES = Path(__file__).parents[1] / "fixtures"
SOURCE = random.Random(21)
START = [SOURCE.randrange(3, 250) for _ in range(40)]
TAILS = [[5, 6], [7], [*range(60, 70)]]
LENGTHS = [80, 400, 80]
COUNT = 8


@pytest.mark.one_in(4)
@pytest.mark.parametrize("device", ["webgpu", "wasm"])
@pytest.mark.parametrize("growing", [False, True], ids=["in place", "growing"])
def test_ids_are_the_oracles(
    device: str, growing: bool, site: SiteServer, scripts: PageScripts, tmp_path: Path
) -> None:
    name, folder = "nano-llama", FIXTURES / "nano-llama"
    if growing:
        scripts.expect(GONE)
        name, folder = f"prefix-{device}", FIXTURES / "nano-float"
        repository = FIXTURES / "repositories" / "nano-optimum"
        site.models[name] = copied(repository, tmp_path / name, with_magnitudes)
    arguments = {"start": START, "tails": TAILS, "lengths": LENGTHS, "count": COUNT}
    result = scripts.run("prefixes", "shared", name, model=name, device=device, **arguments)
    assert [ids for ids, _ in result["found"]] == [oracle.greedy(folder, [*START, *tail], COUNT) for tail in TAILS]
    # The first is closed by the time the second begins, which is open when the third does; capacities differ.
    assert [reused for _, reused in result["found"]] == [0, 40, 40]
    rows, reused, joint = result["batch"]
    assert rows == [oracle.greedy(folder, [*START, *tail], COUNT) for tail in ([1, 9], [3, 4])]
    assert reused == 80
    assert bool(joint) == (device == "webgpu" and not growing)
    if device == "webgpu":
        # The first sequence's prompt, and its tokens that were picked and run, 512 bytes each.
        assert result["kept"] == [512 * (42 + COUNT - 1)]
    assert (result["stats"]["evicted"], result["left"]) == (0, [])
