"""Rows in fewer bits are blocks of GGUF files, which the package gguf reads; the page's code makes the same bytes."""

from __future__ import annotations

import json
import subprocess
from base64 import b64decode, b64encode
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from capstan import Generator, GeneratorParams, Model, OptionError
from capstan.device.narrow_rows import NarrowRows
from capstan.device.reference.narrowed import narrowed, widened
from capstan.generation.state_format import SavedState
from tests.node import started

FIXTURES = Path(__file__).parents[1] / "fixtures"
QUANTS: dict[int, Any] = {8: gguf.quants.Q8_0, 4: gguf.quants.Q4_1}
GENTLE = np.random.default_rng(5).standard_normal(32 * 64)
EDGES = [0.0, -0.0, 1.0, -1.0, 30000, -30000, 6e-8, -6e-8, 1e-5, 127, 127.5, -126.5]
NUMBERS = np.concatenate([GENTLE, np.zeros(32), np.full(32, -3.25), np.resize(EDGES, 96)])
"""Blocks of one sign, of zeros and of the least and of large numbers, too."""


@pytest.fixture(scope="module")
def node() -> subprocess.Popen[str]:
    return started(Path(__file__).with_name("narrow_rows_server.mjs"))


def by_page(node: subprocess.Popen[str], what: str, rows: bytes, dtype: str, bits: int) -> bytes:
    assert node.stdin
    assert node.stdout
    width = 8 * np.dtype(dtype).itemsize
    node.stdin.write(json.dumps({"what": what, "rows": b64encode(rows).decode(), "width": width, "bits": bits}) + "\n")
    node.stdin.flush()
    return b64decode(node.stdout.readline())


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("bits", [8, 4])
def test_blocks_are_those_of_gguf_files(bits: int, dtype: str, node: subprocess.Popen[str]) -> None:
    numbers = NUMBERS.astype(dtype)
    made = narrowed(numbers.tobytes(), dtype, bits)
    assert len(made) == NarrowRows(dtype, bits).size(numbers.nbytes)
    read = QUANTS[bits].dequantize_blocks(np.frombuffer(made, np.uint8).reshape(-1, len(made) // (len(numbers) // 32)))
    wide = np.frombuffer(widened(made, dtype, bits), dtype)
    assert np.array_equal(wide, read.astype(dtype).reshape(-1))
    blocks = numbers.astype(np.float64).reshape(-1, 32)
    steps = np.abs(blocks).max(1) / 127 if bits == 8 else (blocks.max(1) - blocks.min(1)) / 15
    wrong = np.abs(wide.astype(np.float64).reshape(-1, 32) - blocks).max(1)
    # A scale and a least number are rounded to float16.
    assert (wrong <= steps * 0.52 + np.abs(blocks).max(1) * 2e-3 + 1e-6).all()
    assert by_page(node, "narrow", numbers.tobytes(), dtype, bits) == made
    assert by_page(node, "widen", made, dtype, bits) == widened(made, dtype, bits)


def generator_of(model: Model) -> Generator:
    params = GeneratorParams(model)
    params.set_search_options(max_length=120)
    return Generator(model, params)


@pytest.mark.parametrize(("bits", "share"), [(8, 34 / 128), (4, 20 / 128)])
def test_a_state_in_fewer_bits_continues(bits: int, share: float) -> None:
    model = Model(str(FIXTURES / "nano-phi4"))
    with generator_of(model) as one, generator_of(model) as other:
        one.append_tokens(range(20, 60))
        one.generate_next_token()
        whole, few = one.save_state(), one.save_state(bits=bits)
        sizes = [SavedState.of_bytes(state).header["bytes"] for state in (whole, few)]
        assert sizes[1] == pytest.approx(sizes[0] * share)
        other.restore_state(few)
        assert other.reused_tokens == 40
        other.generate_next_token()
        one.generate_next_token()
        assert other.get_sequence()[:41] == one.get_sequence()[:41]
        found, wanted = (np.array(each.get_logits()) for each in (other, one))
        assert 0 < np.abs(found - wanted).max() < (0.02 if bits == 8 else 0.5) * np.abs(wanted).max()


def test_heads_of_other_sizes_and_other_bits_are_refused() -> None:
    model = Model(str(FIXTURES / "nano-llama"))
    with generator_of(model) as generator:
        generator.append_tokens(range(20, 30))
        generator.generate_next_token()
        size = model.graph.cache[0].head_size
        assert size % 32
        with pytest.raises(OptionError, match=f"heads of {size} numbers; rows can be saved in 8 bits with"):
            generator.save_state(bits=8)
        with pytest.raises(OptionError, match="bits is 5; saved rows have 8 or 4 bits"):
            generator.save_state(bits=5)
        generator.save_state()
