"""Faults in convolutions and linear attention with states, in the gates of attention, and in drafts of models with
states."""

from __future__ import annotations

from ..mutation import Mutation, browser, unit

__all__ = ["STATES"]

SHADERS = "web/src/worker/shaders"

STATES = (
    Mutation(
        "states.read_elsewhere",
        "py_src/capstan/tape/ops/traced.py",
        "return None if lasting or len(self.readers.get(value, ())) != 1 else self.of(",
        "return None if lasting else self.of(",
        "a value that another operation reads is not made any more",
        unit("stateful_steps::test_linear_attention_of_which_something_is_read_elsewhere"),
    ),
    Mutation(
        "states.copied_elsewhere",
        "py_src/capstan/tape/ops/traced.py",
        "        return copy if moved and self.graph.last.get(past) == copy.writes[0] else None",
        "        return copy",
        "a state changes in place although the next step reads it elsewhere",
        unit("stateful_steps::test_a_state_that_is_copied_elsewhere_is_not_in_place"),
    ),
    Mutation(
        "states.written_weights",
        "py_src/capstan/tape/ops/traced.py",
        "return buffer if buffer is not None and buffer not in made else None",
        "return buffer if value not in self.makers else None",
        "what the step writes is taken for a weight of linear attention",
        unit("stateful_steps::test_weights_that_the_step_writes_are_not_taken_for_constant"),
    ),
    Mutation(
        "states.other_epsilon",
        "py_src/capstan/tape/ops/delta_rule.py",
        "    if not alike or any(",
        "    if any(",
        "keys are divided by a length with the epsilon of queries",
        unit("stateful_steps::test_other_shapes_stay_as_recorded"),
    ),
    Mutation(
        "states.turned_matrix",
        "py_src/capstan/tape/ops/state_signatures.py",
        "return isinstance(shape, tuple) and sum(size > 1 for size in shape) == 1",
        "return isinstance(shape, tuple)",
        "the elements of a transposed matrix are taken in their old order",
        unit(
            "ort_kernels::test_other_shapes_are_other_operations", "stateful_steps::test_other_shapes_stay_as_recorded"
        ),
    ),
    Mutation(
        "attention.rotates_any",
        "py_src/capstan/tape/ops/attention_signatures.py",
        "    return query[:2] == key[:2] == (1, 1) and query[3] == key[3] == head - half and 2 * half <= head",
        "    return query[:2] == key[:2] == (1, 1)",
        "any rotation is taken for that of the first elements of a head",
        unit("ort_kernels::test_other_shapes_are_other_operations"),
    ),
    Mutation(
        "attention.gate_of_another",
        "py_src/capstan/tape/ops/attention_finder.py",
        '        return (sigmoid, times) if both and self.only_reader(opened, "multiply") == times else None',
        "        return (sigmoid, times)",
        "the gate of attention multiplies another vector",
        unit("stateful_steps::TestGatedAttention::test_stays_as_recorded_if_the_gate_goes_elsewhere"),
    ),
    Mutation(
        "rows.states_of_several",
        "py_src/capstan/tape/row_step.py",
        '        if not along:\n            raise TapeError(f"{what.title} has a form only for one sequence")\n',
        "",
        "separate sequences share a state",
        unit("row_step::test_what_has_a_state_takes_the_positions_of_one_sequence"),
    ),
    Mutation(
        "drafts.position_of_states",
        "py_src/capstan/device/webgpu/decoder.py",
        "if not self._unread and self.runs.snapshots is not None:",
        "if self.runs.snapshots is not None:",
        "the position of states is that before the bursts under way",
        unit("webgpu_model::TestStates::test_their_position_is_known_once_no_drafted_burst_is_under_way"),
    ),
    Mutation(
        "delta_rule.no_decay",
        f"{SHADERS}/states/delta_rule.wgsl",
        "    let shrink = exp(rate[head] * softplus(",
        "    let shrink = exp(0.0 * rate[head] * softplus(",
        "the state of linear attention does not decay",
        browser("states::test_linear_attention_and_its_state"),
    ),
    Mutation(
        "delta_rule.long_key",
        f"{SHADERS}/states/delta_rule.wgsl",
        "    let k_unit = inverseSqrt(squares.y + EPSILON * f32(KEY));",
        "    let k_unit = 1.0;",
        "the keys of linear attention are not divided by their length",
        browser("states::test_linear_attention_and_its_state"),
    ),
    Mutation(
        "delta_rule.next_head",
        f"{SHADERS}/states/delta_rule.wgsl",
        "  let key_at = head * KEY_HEADS / HEADS * KEY;",
        "  let key_at = head % KEY_HEADS * KEY;",
        "heads of v have the keys of another head",
        browser("states::test_linear_attention_and_its_state"),
    ),
    Mutation(
        "convolution.one_kept",
        f"{SHADERS}/states/convolution.wgsl",
        "      kept[(row * CHANNELS + channel) * HELD + j] = element(inputs[j]);",
        "      kept[channel * HELD + j] = element(inputs[j]);",
        "only the state after the last position of a convolution is kept",
        browser("states::test_a_convolution_and_its_state"),
    ),
    Mutation(
        "convolution.other_gate",
        f"{SHADERS}/states/convolution.wgsl",
        "    sum *= f32(x[at + CHANNELS]);",
        "    sum *= f32(x[at]);",
        "the results of a convolution are multiplied by the gate of its inputs",
        browser("states::test_a_convolution_and_its_state"),
    ),
    Mutation(
        "gated_head_norm.no_sigmoid",
        f"{SHADERS}/states/gated_head_norm.wgsl",
        " * open / (1.0 + exp(-open)));",
        " * open);",
        "the gate of a head's norm is not activated",
        browser("states::test_heads_are_normed_and_gated"),
    ),
    Mutation(
        "head_gate.query",
        f"{SHADERS}/attention/head_gate.wgsl",
        "(2u * (i / HEAD) + 1u) * HEAD",
        "(2u * (i / HEAD)) * HEAD",
        "attention is multiplied by the sigmoid of its queries, not of its gates",
        browser("states::test_a_gate_follows_each_query"),
    ),
    Mutation(
        "attention.gate_for_a_query",
        f"{SHADERS}/attention/attention_workgroup.wgsl",
        "min(tile * TILE + i / CHUNKS, GROUP - 1u)) * QUERY_CHUNKS;",
        "min(tile * TILE + i / CHUNKS, GROUP - 1u)) * CHUNKS;",
        "attention takes gates for queries",
        browser("attention::test_a_gate_follows_each_query"),
    ),
    Mutation(
        "settle.next_position",
        f"{SHADERS}/sampler/settle.wgsl",
        "states[(picks - 1u) * size + id.x]",
        "states[picks * size + id.x]",
        "after a drafted step the state has a refused draft in it",
        browser("sampler::test_of_a_drafted_step_the_state_after_its_last_pick_is_left"),
    ),
    Mutation(
        "settle.without_a_pick",
        f"{SHADERS}/sampler/settle.wgsl",
        "  if (picks != 0u && id.x < size) {",
        "  if (id.x < size) {",
        "a drafted step of a row that is done changes its state",
        browser("sampler::test_of_a_drafted_step_the_state_after_its_last_pick_is_left"),
    ),
    Mutation(
        "advance.padding_of_drafts",
        f"{SHADERS}/sampler/advance.wgsl",
        "    ring[slot] = select(params.pad, NOTHING, POSITIONS > 1u);",
        "    ring[slot] = params.pad;",
        "drafted steps of a row that is done pick padding",
        browser("sampler::test_of_a_drafted_step_the_state_after_its_last_pick_is_left"),
    ),
)
