"""How given tokens are cut into runs that give the logits of all their positions, and what stays in memory."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from capstan import graph
from capstan.device.webgpu.scored_runs import LOGITS_BYTES, cut_scored, scored_positions
from capstan.device.webgpu.tapes.prefill_tapes import Run
from capstan.model_files.genai_config_file import parse_genai_config

LLAMA = Path(__file__).parents[1] / "fixtures/nano-llama"
LENGTHS = [(), (8, 16, 32), (8, 16, 32, 64)]


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("back", [0, 20])
def test_each_position_is_in_a_run_that_has_a_tape_or_begins_at_it(lengths: tuple[int, ...], back: int) -> None:
    most = 64
    for start, count in itertools.product((20, 21, 40, 300), range(1, 200)):
        runs = cut_scored(start, start + count, most, lengths, back)
        ends = [run.start + run.length for run in runs]
        assert ends[-1] == start + count
        for run, begin in zip(runs, [start, *ends], strict=False):
            assert run.length <= most
            assert back <= run.start <= begin < run.start + run.length
            assert run.start == begin or run.length in lengths


def test_a_short_continuation_is_one_run_of_a_tape_that_begins_in_its_context() -> None:
    assert cut_scored(100, 105, 64, (8, 16), 0) == [Run(97, 8)]
    assert cut_scored(100, 109, 64, (8, 16), 0) == [Run(93, 16)]
    assert cut_scored(2, 7, 64, (8, 16), 0) == [Run(2, 5)], "there is no position before the sequence"
    assert cut_scored(100, 105, 64, (8, 16), 100) == [Run(100, 5)], "nor may it begin before the caches' window"
    assert cut_scored(0, 150, 64, (64,), 0) == [Run(0, 64), Run(64, 64), Run(86, 64)]


@pytest.mark.parametrize(
    ("vocab", "dtype", "most", "positions"),
    [(128_256, "float16", 2048, 256), (151_936, "float32", 2048, 64), (512, "float32", 64, 64), (512, "float16", 1, 1)],
)
def test_the_logits_of_a_run_have_at_most_64_mib(vocab: int, dtype: str, most: int, positions: int) -> None:
    decoder = parse_genai_config((LLAMA / "genai_config.json").read_bytes()).decoder
    described = graph.describe(graph.parse((LLAMA / "model.onnx").read_bytes()), decoder, 512)
    about = replace(described, vocab_size=vocab, logits_dtype=dtype)
    assert scored_positions(about, most) == positions
    assert positions * vocab * np.dtype(dtype).itemsize <= LOGITS_BYTES
