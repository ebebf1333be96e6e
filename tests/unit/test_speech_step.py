"""A step of a speech decoder: attention over an encoder's outputs and learned positions become our operations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from capstan.tape import PASSES, WorkgroupLimits, fuse_step, without_clears
from capstan.tape.fused_step import fused_step
from capstan.tape.ops.attention import Attention
from capstan.tape.ops.position_row import PositionRow
from capstan.tape.placement import Placement
from capstan.tape.step_graph import Recorded
from tests.unit.recorded_kernels import KERNELS, Kernel, Vector, attend
from tests.unit.small_decoders import CAPACITY, HEAD, HEADS, KV_HEADS, VOCABULARY, WIDTH, Small
from tests.unit.step_simulator import Machine
from tests.unit.test_fusions import STATE, check, made_of

FRAMES = (90, 300)
"""Positions that one split of attention takes, and that several take."""
QUERIES = HEADS * HEAD


def put(target: Vector, values: Vector) -> None:
    target[: values.size] = values.reshape(-1)


def copied(at: Mapping[str, Vector], u: Mapping[str, Any]) -> None:
    for name in ("key", "value"):
        put(at[f"present_{name}"], at[name])


def attended(at: Mapping[str, Vector], u: Mapping[str, Any]) -> None:
    frames = u["present_sequence_length"]
    keys, values = (
        at[f"present_{name}"][: KV_HEADS * frames * HEAD].reshape(KV_HEADS, frames, HEAD) for name in ("key", "value")
    )
    q = at["q"][:QUERIES].reshape(HEADS, HEAD)
    totals, sums, largest = attend(q, keys, values, frames, u["alpha"])
    put(at["out_split_vx"], totals)
    put(at["metadata"], np.stack([largest, sums], axis=1))


def looked_up(at: Mapping[str, Vector], u: Mapping[str, Any]) -> None:
    put(at["output"], at["data"].reshape(-1, WIDTH)[int(at["input_indices"][0])])


SPLIT, JOIN = KERNELS["attention_split"], KERNELS["attention_join"]
COPY = Kernel(
    ("key", "value"),
    ("present_key", "present_value"),
    (
        *(("key_shape", "vec4<u32>"), ("present_key_shape", "vec4<u32>")),
        *((name, "u32") for name in ("total_sequence_length", "kv_sequence_length", "batch_size")),
    ),
    (
        "let at = i2o_present_key(present_key_indices_t(batch, num_head_id, sequence_id, head_size_id));",
        "present_key[present_offset]=key[offset];",
        "present_value[present_offset]=value[offset];",
    ),
    copied,
)
CROSS_SPLIT = replace(
    SPLIT,
    reads=("q", "present_key", "present_value"),
    fields=(*SPLIT.fields, ("total_sequence_length", "u32")),
    lines=(
        *SPLIT.lines,
        "let global_total_sequence_length = uniforms.total_sequence_length;",
        "let valid_key_end = total_sequence_length;",
    ),
    compute=attended,
)
CROSS_JOIN = replace(
    JOIN,
    reads=("input", "metadata"),
    lines=(*JOIN.lines, "let num_total_seq_length_tile = uniforms.num_total_seq_length_tile;"),
)
POSITIONS = Kernel(
    ("data", "input_indices"), ("output",), (("data_indices_shape", "vec2<u32>"),), ("// rows",), looked_up
)


class Speaking(Small):
    """A decoder that reads what an encoder made."""

    def crossed(self, x: int, frames: int, copied: int = 0, seen: int = 0) -> int:
        """Attention over so many positions; fewer are `copied` or `seen` if so asked."""
        s, size = self.sketch, KV_HEADS * frames * HEAD
        keys, values = (s.weights(size) for _ in range(2))
        sizes = dict.fromkeys(("total_sequence_length", "kv_sequence_length"), copied or frames) | {"batch_size": 1}
        shapes = dict.fromkeys(("key_shape", "present_key_shape"), (1, KV_HEADS, frames, HEAD // 4))
        made = dict.fromkeys(("present_key", "present_value"), size)
        key, value = s.run(COPY, {"key": keys, "value": values}, made, {**shapes, **sizes})
        numbers = {"head_size_vec": HEAD // 4, "present_sequence_length": frames, "n_reps": HEADS // KV_HEADS}
        numbers |= {"num_heads": HEADS, "batch_size": 1, "attn_bias_dim0": 1, "attn_bias_dim1": 1}
        out, metadata = s.run(
            CROSS_SPLIT,
            {"q": self.matmul(x, QUERIES, WIDTH), "present_key": key, "present_value": value},
            {"out_split_vx": QUERIES, "metadata": 2 * HEADS},
            {**numbers, "new_sequence_length": 1, "alpha": 0.35, "total_sequence_length": seen or frames},
        )
        joined = {"head_size_vec": HEAD // 4, "new_sequence_length": 1, "num_heads": HEADS}
        [y] = s.run(CROSS_JOIN, {"input": out, "metadata": metadata}, {"output": QUERIES}, joined)
        return y

    def finished(self, x: int, k: int) -> None:
        self.matmul(x, VOCABULARY, k, into=self.logits)


@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize("frames", FRAMES)
def test_attention_over_an_encoders_outputs_is_one_operation_without_a_copy(frames: int, dense: bool) -> None:
    small = Speaking(dense=dense)
    small.finished(small.crossed(small.embedded(), frames), QUERIES)
    placement = check(small, small.sketch.record(), PASSES)
    assert made_of(placement) == {"recorded": 1, "product": 2, "attention": 1}
    [what] = [node.what for node in placement.nodes if isinstance(node.what, Attention)]
    assert (what.capacity, what.heads, what.kv_heads, what.whole, what.written) == (frames, HEADS, KV_HEADS, True, True)


@pytest.mark.parametrize("fewer", [{"copied": 89}, {"seen": 89}])
def test_attention_over_a_part_of_them_stays(fewer: dict[str, int]) -> None:
    small = Speaking()
    small.finished(small.crossed(small.embedded(), 90, **fewer), QUERIES)
    assert made_of(placed(small, None)) == {"recorded": 4, "product": 2}


def placed(small: Small, positions: int | None) -> Placement:
    step = small.sketch.record()
    ops, _ = without_clears(step.ops)
    buffer = None if positions is None else step.buffer_of[positions]
    return fuse_step(step.recording, ops, step.lasting, PASSES, positions=buffer)


def positioned(small: Speaking) -> int:
    """A step that adds the row of the position to an embedding; the tensor of the position."""
    position, x = small.sketch.lasting(1), small.embedded()
    reads = {"data": small.sketch.weights(CAPACITY * WIDTH), "input_indices": position}
    [row] = small.sketch.run(POSITIONS, reads, {"output": WIDTH}, {"data_indices_shape": (CAPACITY, WIDTH // 4)})
    small.finished(small.add(x, row, WIDTH), WIDTH)
    return position


def test_the_row_of_a_position_is_looked_up_by_the_state_and_added() -> None:
    small = Speaking()
    position = positioned(small)
    placement = placed(small, position)
    assert made_of(placement) == {"recorded": 1, "positionrow": 1, "product": 1}
    step = small.sketch.record()
    ops, _ = without_clears(step.ops)
    played = {index: op.played() for index, op in enumerate(ops)}
    made = fused_step(placement, played, (), STATE, WorkgroupLimits(), CAPACITY)
    machine, expected = Machine(step), Machine(step)
    logits = step.buffer_of[small.logits]
    for length in (1, 7, CAPACITY):
        for each in (machine, expected):
            each.length = length
            each.memory[step.buffer_of[position]][:] = length - 1
            each.spoil()
        machine.play_fused(made)
        expected.play_recorded()
        np.testing.assert_allclose(machine.memory[logits], expected.memory[logits], rtol=1e-7, atol=1e-9)


def test_the_row_of_something_else_is_not() -> None:
    small = Speaking()
    position = positioned(small)
    assert made_of(placed(small, None)) == {"recorded": 3, "product": 1}
    kept = placed(small, position).nodes
    assert [type(node.what) for node in kept[:2]] == [Recorded, PositionRow]
