"""The length of prefill runs, from the sizes of the activations."""

from __future__ import annotations

import pytest

from capstan.device.webgpu.prefill_chunk import SCRATCH_BYTES, prefill_chunk
from capstan.graph.activation_memory import Activation, Activations


def of_width(width: int) -> Activations:
    """One float16 tensor of `width` elements a token."""
    return Activations((Activation("x", 16, ("batch_size", "sequence_length", width), 0, 1),), ())


@pytest.mark.parametrize(
    ("width", "chunk"),
    [(1024, 2048), (SCRATCH_BYTES // 2 // 2048, 2048), (SCRATCH_BYTES // 2 // 2048 + 1, 1024), (1 << 18, 512)],
)
def test_a_run_is_as_long_as_its_activations_allow(width: int, chunk: int) -> None:
    assert prefill_chunk(of_width(width), 4096, software=False) == chunk
    assert of_width(width).peak(1, chunk, 4096) <= SCRATCH_BYTES


def test_activations_too_large_for_any_run_leave_the_shortest() -> None:
    assert prefill_chunk(of_width(1 << 24), 4096, software=False) == 64


def test_a_short_context_is_no_reason_for_shorter_runs() -> None:
    assert prefill_chunk(of_width(1 << 18), 500, software=False) == 2048


def test_a_software_adapter_gets_short_runs() -> None:
    assert prefill_chunk(of_width(64), 4096, software=True) == 64
