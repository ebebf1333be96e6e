"""Lets a multi-token-prediction head follow the sequence of its model, before drafted steps advance both."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Protocol

from ...memory import DeviceBuffer
from .prompt_runs import PromptRuns
from .sequence_buffers import STATE_WORDS, SequenceBuffers

__all__ = ["HeadDecoder", "follow_with_head"]

PLACE, FIRST = 5, 7
"""Words of the sampler's state: the picks of the last drafted step in that of a model, and in that of a head the
position of the model whose hidden state the head reads first.
"""


class HeadDecoder(Protocol):
    """The decoder of a head."""

    @property
    def buffers(self) -> SequenceBuffers: ...
    async def prefill(self, ids: Sequence[int], past: int) -> None: ...


async def follow_with_head(runs: PromptRuns, hidden: DeviceBuffer, head: HeadDecoder, tokens: Sequence[int]) -> None:
    """Have the head follow a sequence of at least two tokens, of which the model ran all but the last. The head runs
    over the hidden states that the last runs over prompts kept; if a step came after those runs, it begins at the last
    position. The next drafted step reads the hidden states in `hidden`.
    """
    buffers, device, last = runs.buffers, runs.buffers.device, len(tokens) - 2
    row = buffers.spans["input hidden"]
    start, count = buffers.kept_hidden
    if start + count != last + 1:
        start, count = last, 1
    else:
        row = buffers.spans["kept hidden"].sub((count - 1) * row.length, row.length)
    if count > 1:
        head.buffers.read_hidden(buffers.spans["kept hidden"], 0)
        try:
            await head.prefill(tokens[start + 1 : -1], 0)
        finally:
            head.buffers.read_hidden(None, 0)
    words = array("I", [0] * STATE_WORDS)
    words[FIRST] = start
    with device.batch():
        device.copy_tensors([(row, hidden.span(0, row.length))])
        device.copy_cpu_to_device(head.buffers.spans["state"], words)
        device.copy_cpu_to_device(buffers.spans["state"].sub(4 * PLACE, 4), array("I", [1]))
