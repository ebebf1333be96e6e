"""Several rows in the page: batches and beams give the oracle's ids, draws those of the reference device."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from capstan.device.shortlist import Shortlist
from capstan.graph.onnx_pb2 import ModelProto
from capstan.stages.sampling import finite_logits
from capstan_host.site_server import SiteServer
from tests import oracle
from tests.browser.model_variants import Variants
from tests.browser.page_scripts import PageScripts
from tests.unit.test_rows import LLAMA, PAD, PADDED, generated, loaded

LFM2 = Path(__file__).parents[1] / "fixtures/families/lfm2"
EOS = [180, 178, 91, 120, 429, 78, 243, 20, 413, 342, 109, 33, 118, 174]
GREEDY: dict[str, Any] = {"prompts": PADDED, "returned": 1, "max_length": 20, "repetition_penalty": 1.3, "eos": EOS[:9]}
BEAMS: dict[str, Any] = {"prompts": PADDED, "returned": 3, "max_length": 14, "num_beams": 3, "eos": EOS}
DRAWN: dict[str, Any] = {
    "prompts": [[5, 6, 7], [8, 9, 10]],
    "returned": 2,
    "max_length": 14,
    "do_sample": True,
    "temperature": 1.3,
    "top_k": 40,
    "random_seed": 3,
}


LONG: list[int] = [3 + (37 * i + 11) % 500 for i in range(3000)]


def native(run: dict[str, Any]) -> oracle.Rows:
    options = {**run, "num_return_sequences": run["returned"]}
    return oracle.rows(LLAMA, options.pop("prompts"), **options)


def drawn(folder: Path) -> list[list[int]]:
    options = {name: value for name, value in DRAWN.items() if name not in ("prompts", "returned")}
    return generated(loaded(folder), DRAWN["prompts"], num_return_sequences=2, **options).sequences


def of_4096_positions(variants: Variants, name: str) -> str:
    """nano-llama with longer tables of its rotation."""

    def change(model: ModelProto) -> None:
        angles = np.outer(np.arange(4096), 10000.0 ** (-np.arange(8) / 8))
        for tensor in model.graph.initializer:
            if tensor.name in ("cos_cache", "sin_cache"):
                values = np.cos(angles) if tensor.name == "cos_cache" else np.sin(angles)
                tensor.ClearField("external_data")
                tensor.ClearField("data_location")
                tensor.dims[:] = values.shape
                tensor.raw_data = values.astype(np.float32).tobytes()

    path = variants.place / variants.graph(name, change) / "genai_config.json"
    tree = json.loads(path.read_text())
    tree["model"]["context_length"] = tree["search"]["max_length"] = 4096
    path.write_text(json.dumps(tree))
    return name


@pytest.mark.extended
def test_rows_whose_lengths_differ_by_thousands_pick_what_each_picks_alone(
    variants: Variants, scripts: PageScripts
) -> None:
    name, count = of_4096_positions(variants, "rows-apart"), 12
    short = LONG[:3]
    padded = [short + [PAD] * (len(LONG) - len(short)), LONG]
    run = {"model": name, "returned": 1, "max_length": 3100, "steps": count, "eos": []}
    runs = [{**run, "prompts": prompts} for prompts in ([short], [LONG], padded)]
    *alone, together = scripts.run("batches", "all_of", name, runs=runs, device="webgpu")
    rows = [[step[row] for step in together["picked"]] for row in range(2)]
    assert rows == [[step[0] for step in one["picked"]] for one in alone]
    assert rows == [oracle.greedy(variants.place / name, prompt, count) for prompt in (short, LONG)]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_shortlists_are_the_definitions(dtype: Any, scripts: PageScripts) -> None:
    draw = np.random.default_rng(4)
    given, wanted = [], []
    for rows, start, vocab, count in ((1, 0, 1, 1), (1, 0, 7, 7), (3, 5, 513, 6), (1, 0, 50_001, 20), (2, 1, 8195, 4)):
        logits = (draw.normal(size=(rows, vocab)) * 6).astype(dtype)
        if vocab > 7:
            logits[0, [3, 400, 70]] = logits[0].max()
            logits[0, [5, 6, 8, 9]] = [np.nan, -np.inf, np.finfo(dtype).smallest_subnormal, -0.0]
        if vocab > 4099:
            # Found in different blocks.
            logits[-1, [4095, 4096, 100]] = 40
        held = np.concatenate([np.full(start, 50, dtype), logits.ravel(), np.zeros(8, dtype)])
        text = held.tobytes()[: -(-(start + logits.size) * held.itemsize // 4) * 4].hex()
        given.append([text, np.dtype(dtype).name, vocab, count, start, rows])
        wanted.append([Shortlist.of(finite_logits(row.astype(np.float32).tobytes()), count) for row in logits])
    for found, expected in zip(scripts.run("batches", "shortlists", rows=given), wanted, strict=True):
        size = len(found) // len(expected)
        for row, one in enumerate(expected):
            got = Shortlist.read(found[row * size : (row + 1) * size])
            assert got.best == one.best
            assert got.total == pytest.approx(one.total, rel=1e-6, abs=1e-6)


@pytest.mark.one_in(4)
@pytest.mark.parametrize(("device", "capture"), [("webgpu", "tape"), ("webgpu", "off"), ("wasm", "off")])
def test_rows_are_the_oracles_and_the_references(
    device: str, capture: str, scripts: PageScripts, site: SiteServer
) -> None:
    site.models["lfm2"] = LFM2
    runs = [{"model": "nano-llama", **run} for run in (GREEDY, BEAMS, DRAWN)] + [{"model": "lfm2", **DRAWN}]
    greedy, beams, *others = scripts.run(
        "batches", "all_of", "nano-llama", "lfm2", runs=runs, device=device, capture=capture
    )
    assert (greedy["picked"], greedy["sequences"]) == (native(GREEDY).picked, native(GREEDY).sequences)
    assert any(2 in picks for picks in greedy["picked"]), "a row ends before others"
    assert beams["sequences"] == native(BEAMS).sequences
    assert [found["sequences"] for found in others] == [drawn(LLAMA), drawn(LFM2)]
    assert {found["capture"] for found in (greedy, beams, *others)} == {capture}
