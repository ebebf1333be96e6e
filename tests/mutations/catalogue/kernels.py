"""Faults in shaders: sums, positions, rows and the bits of numbers."""

from __future__ import annotations

from ..mutation import Mutation, browser

__all__ = ["KERNELS"]

KERNELS = (
    Mutation(
        "gemv.next_scale",
        "web/src/shaders/products/matvec_request.wgsl",
        "  wanted.factors[SCALES * at] = scales[row * BLOCKS + block];",
        "  wanted.factors[SCALES * at] = scales[min(row + 1u, N - 1u) * BLOCKS + block];",
        "a row is multiplied by the scales of the next one",
        browser("matvec::test_what_surrounds_the_product"),
    ),
    Mutation(
        "gemv.lost_run",
        "web/src/shaders/products/matvec_products.wgsl",
        "total_of(lower + upper) * f32(",
        "select(1.0, 0.0, member + s * SPAN == 1u) * total_of(lower + upper) * f32(",
        "a run of 32 weights is lost",
        browser("matvec::test_what_surrounds_the_product"),
    ),
    Mutation(
        "gemv.off_by_one",
        "web/src/shaders/products/packed_weights.wgsl",
        "(8388608.0 + zero)",
        "(8388609.0 + zero)",
        "every weight is one too small",
        browser("matvec::test_what_surrounds_the_product"),
    ),
    Mutation(
        "gemv.lost_residual",
        "web/src/shaders/products/matvec_q4.wgsl",
        "added = f32(residual[n]);",
        "added = 0.0;",
        "the residual is not added",
        browser("matvec::test_what_surrounds_the_product"),
    ),
    Mutation(
        "gemv.epsilon",
        "web/src/shaders/products/matvec_held.wgsl",
        "inverseSqrt(squared / f32(K) + EPSILON)",
        "inverseSqrt(squared / f32(K) + EPSILON * 1000.0)",
        "the epsilon of a norm is a thousand times too large",
        browser("matvec::test_what_surrounds_the_product"),
    ),
    Mutation(
        "attention.swapped_heads",
        "web/src/shaders/attention/attention_workgroup.wgsl",
        "min(tile * TILE + i / CHUNKS, GROUP - 1u)",
        "(GROUP - 1u - i / CHUNKS % GROUP)",
        "heads of a group are swapped",
        browser("attention::test_results_and_caches"),
    ),
    Mutation(
        "attention.stale_row",
        "web/src/shaders/attention/attention_workgroup.wgsl",
        "if (split == 0u && tile == 0u) {",
        "if (split == 1u && tile == 7u) {",
        "the new row is not written into the cache",
        browser("attention::test_results_and_caches"),
    ),
    Mutation(
        "attention.one_too_few",
        "web/src/shaders/attention/attention_workgroup.wgsl",
        "let here = min(BLOCK, length - block * BLOCK);",
        "let here = min(BLOCK, length - 1u - min(length - 1u, block * BLOCK));",
        "the last position is not looked at",
        browser("attention::test_results_and_caches"),
    ),
    Mutation(
        "attention.one_too_many",
        "web/src/shaders/attention/attention_workgroup.wgsl",
        "if (at < position) {",
        "if (at < position - 1u || at > position) {",
        "the position before the last is taken for the new one",
        browser("attention::test_results_and_caches"),
    ),
    Mutation(
        "attention.rotation_before",
        "web/src/shaders/attention/attention_workgroup.wgsl",
        "q_rotation(chunk, rotation(chunk, total - 1u))",
        "q_rotation(chunk, rotation(chunk, total - 2u))",
        "queries are rotated by the position before",
        browser("attention::test_results_and_caches"),
    ),
    Mutation(
        "attention.scale",
        "web/src/shaders/attention/attention_shared.wgsl",
        "const STRENGTH = SCALE * LOG2_E;",
        "const STRENGTH = SCALE * LOG2_E * 1.01;",
        "scores are a hundredth too large",
        browser("attention::test_results_and_caches"),
    ),
    Mutation(
        "attention.window",
        "web/src/shaders/attention/attention_shared.wgsl",
        "return total - min(total, WINDOW);",
        "return total - min(total, WINDOW + 1u);",
        "one position more than the window is in sight",
        browser("attention::test_what_lies_before_the_window_is_not_read"),
    ),
    Mutation(
        "attention_join.weights",
        "web/src/shaders/attention/attention_join.wgsl",
        "sum += weight * sums[split];",
        "sum += sums[split];",
        "splits are joined without their weights",
        browser("attention::test_lengths_where_a_split_takes_several_blocks"),
    ),
    Mutation(
        "advance.mask",
        "web/src/shaders/sampler/advance.wgsl",
        "let element = 2u * (row * sizes.max_length + length);",
        "let element = 2u * (row * sizes.max_length + length + 1u);",
        "the mask is set one position too far",
        browser("sampler::test_every_buffer_follows_the_state_layout"),
    ),
    Mutation(
        "advance.end_fed",
        "web/src/shaders/sampler/advance.wgsl",
        """  if (is_end(token)) {
    state[at + 2u] = 1u;
    return;
  }""",
        """  if (is_end(token)) {
    state[at + 2u] = 1u;
  }""",
        "an end of sequence becomes the next step's input",
        browser("sampler::test_every_buffer_follows_the_state_layout"),
    ),
    Mutation(
        "draw.rounds",
        "web/src/shaders/sampler/draw.wgsl",
        """for (var i = 0u; i < 10u; i++) {
    let product0""",
        """for (var i = 0u; i < 9u; i++) {
    let product0""",
        "random numbers come from nine rounds, not ten",
        browser("sampler::test_the_ids_equal_the_reference_samplers"),
    ),
    Mutation(
        "greedy.highest_id",
        "web/src/shaders/sampler/greedy.wgsl",
        "atomicMax(&winner, 0xffffffffu - atomicLoad(&scratch[record + 1u]));",
        "atomicMax(&winner, 0xffffffffu - block);",
        "of equal logits the block's number wins",
        browser("sampler::test_the_ids_equal_the_reference_samplers"),
    ),
    Mutation(
        "prefix.equals",
        "web/src/shaders/sampler/prefix.wgsl",
        "return add64(weight, multiply(min(equals, need), unit));",
        "return add64(weight, multiply(equals, unit));",
        "all tokens of equal logits at the cut count, not the ones that are kept",
        browser("sampler::test_the_ids_equal_the_reference_samplers"),
    ),
    Mutation(
        "compare.unlike",
        "web/src/shaders/truth/compare.wgsl",
        "select(0u, 1u, x_finite != y_finite)",
        "select(0u, 1u, !x_finite && y_finite)",
        "infinite elements of the second buffer alone are not counted",
        browser("compare"),
    ),
    Mutation(
        "cast.ties",
        "web/src/shaders/memory/cast.wgsl",
        "(rest == 0x80u && (n.x != 0u || (fraction & 1u) == 1u))",
        "(rest == 0x80u && n.x != 0u)",
        "an int64 halfway between two floats is not rounded to even",
        browser("span_kernels::test_casts_are_host_memorys_bit_for_bit"),
    ),
    Mutation(
        "mask.element",
        "web/src/shaders/memory/mask.wgsl",
        "value = 1u << (begins * 8u);",
        "value = 1u;",
        "ones of an unaligned mask are put into the wrong byte",
        browser("span_kernels::test_masks_of_any_batch_grow_and_shrink_and_keep_what_does_not_change"),
    ),
    Mutation(
        "matmul.zero_shift",
        "web/src/shaders/products/matmul_q4.wgsl",
        "return (f32(1u << (BITS - 1u)) - f32(number_in(word, at))) * (16.0 / UNIT);",
        "return (f32(number_in(word, at)) - f32(1u << (BITS - 1u))) * (16.0 / UNIT);",
        "zero points of a prompt's products have the wrong sign",
        browser("matmul::test_products_that_end_within_a_tile"),
    ),
    Mutation(
        "few_rows.last_row",
        "web/src/shaders/products/few_rows_q4.wgsl",
        "let octet = x[min(top + m, M - 1u) * OCTETS + at];",
        "let octet = x[min(m, M - 1u) * OCTETS + at];",
        "rows past the first ones repeat these",
        browser("few_rows::test_weights_in_every_form_and_what_is_behind_them"),
    ),
    Mutation(
        "norm_rows.past_the_end",
        "web/src/shaders/products/norm_rows.wgsl",
        "line[i] = select(0.0, line[i] - mean, thread + i * WORKGROUP < K);",
        "line[i] = line[i] - mean;",
        "elements past the end of a row count in its variance",
        browser("few_rows::test_rows_are_normalised"),
    ),
)
