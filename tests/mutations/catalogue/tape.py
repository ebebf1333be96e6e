"""Faults in recordings, the passes over them, placement, and the operations that replace recorded ones."""

from __future__ import annotations

from ..mutation import Mutation, unit

__all__ = ["TAPE"]

TAPE = (
    Mutation(
        "prefill.not_apart",
        "py_src/capstan/tape/prefill_graph.py",
        "return moved_apart(put_back(graph, left_out), values)",
        "return put_back(graph, left_out)",
        "a prompt's product that ends in the buffer of its input stays as recorded",
        unit("prefill_minima::test_a_sum_in_the_buffer_of_x_is_copied_there"),
    ),
    Mutation(
        "passes.first_definition",
        "py_src/capstan/tape/passes.py",
        "for i in range(use - 1, -1, -1):",
        "for i in range(use):",
        "the counts of an indirect dispatch are taken from the first write of their buffer, not the last",
        unit("tape::TestReachingDefinition::test_is_the_last_write_before_the_use"),
    ),
    Mutation(
        "passes.second_upload",
        "py_src/capstan/tape/passes.py",
        "a.data[first - a.offset : last - a.offset] == b.data[first - b.offset : last - b.offset]",
        "a.data[: last - first] == b.data[: last - first]",
        "overlapping uploads are compared at the wrong offsets",
        unit("tape::TestCheckReplayable::test_accepts_another_range_that_agrees_where_it_overlaps"),
    ),
    Mutation(
        "passes.offset_of_counts",
        "py_src/capstan/tape/passes.py",
        "key = (_signature(recording, ops[definition], uniforms), op.offset)",
        "key = (_signature(recording, ops[definition], uniforms),)",
        "indirect dispatches with counts at different offsets share one table",
        unit("tape::TestDirectDispatches::test_other_offsets_are_other_tables"),
    ),
    Mutation(
        "recording.part_overwrites",
        "py_src/capstan/tape/recording.py",
        "return op.target == buffer and op.target_offset == 0 and op.size == self.sizes[buffer]",
        "return op.target == buffer and op.target_offset == 0",
        "a copy into a part of a buffer counts as a new content of the whole",
        unit("tape::TestSliceFor::test_ends_at_a_whole_copy_or_clear"),
    ),
    Mutation(
        "placement.freed_early",
        "py_src/capstan/tape/placement.py",
        "last_use = {value: i for i, node in enumerate(nodes) for value in (*node.writes, *node.reads)}",
        "last_use = {value: i for i, node in enumerate(nodes) for value in node.writes}",
        "scratch is given to another value while this one is still to be read",
        unit("placement::TestAnyGraph::test_finds_every_value_where_it_was_left"),
    ),
    Mutation(
        "placement.read_and_written",
        "py_src/capstan/tape/placement.py",
        'both -= {Place("recorded", buffer) for buffer in node.what.in_place}',
        "both = set()",
        "an operation may write the buffer that it reads",
        unit("placement::TestMisplaced::test_a_buffer_that_is_read_and_written"),
    ),
    Mutation(
        "uniforms.vec3",
        "py_src/capstan/tape/uniforms.py",
        "ALIGNMENT = {1: 4, 2: 8, 3: 16, 4: 16}",
        "ALIGNMENT = {1: 4, 2: 8, 3: 12, 4: 16}",
        "vectors of three components are read at the wrong alignment",
        unit("uniforms::test_values_are_where_wgsl_puts_them"),
    ),
    Mutation(
        "witness.part_overlaps",
        "py_src/capstan/tape/witness.py",
        "self.sizes[buffer] = offset + -(-size // ALIGNMENT) * ALIGNMENT",
        "self.sizes[buffer] = offset + size // ALIGNMENT * ALIGNMENT",
        "parts of the witness's log overlap where a size is no multiple of the alignment",
        unit("step_check::test_an_operation_whose_kernel_leaves_its_result_unwritten_stays_as_recorded"),
    ),
    Mutation(
        "attention_plan.partials",
        "py_src/capstan/tape/ops/attention_plan.py",
        "partial_bytes = rows * what.heads * most * (4 + what.head) * 4",
        "partial_bytes = rows * what.heads * most * what.head * 4",
        "the partials of attention have no room for their sums",
        unit("attention_plan::test_constants_are_as_the_kernels_ask"),
    ),
    Mutation(
        "attention_plan.no_join",
        "py_src/capstan/tape/ops/attention_plan.py",
        "return heads if splits(length) > 1 or not alone_writes else 0, 1, rows",
        "return heads if splits(length) > 1 else 0, 1, rows",
        "nothing writes the result where a split is alone and the join has to",
        unit("attention_plan::test_the_join_writes_every_result_where_a_kernel_binds_fewer_buffers"),
    ),
    Mutation(
        "attention_plan.memory",
        "py_src/capstan/tape/ops/attention_plan.py",
        """    while not shuffled and unshuffled_bytes(tile, what.head, chunks) > room:
        tile = evenly(group, tile - 1)
""",
        "",
        "the kernel without subgroups takes more workgroup memory than there is",
        unit("attention_plan::test_constants_are_as_the_kernels_ask"),
    ),
    Mutation(
        "gemv.bias_of_up",
        "py_src/capstan/tape/ops/gemv.py",
        """            given["bias"] = values["bias_up"]
""",
        """            given["bias"] = values["bias"]
""",
        "the other half of a gated layer gets the bias of the first",
        unit("fused_step::test_a_gated_product_behind_a_sum_that_binds_too_many_buffers_is_two"),
    ),
    Mutation(
        "gemv.sizes",
        "py_src/capstan/tape/ops/gemv.py",
        "return self.rows * (self.k * ELEMENT_BYTES[self.stream] if index else width * ELEMENT_BYTES[self.element])",
        "return self.rows * (self.n * ELEMENT_BYTES[self.element] if index else width * ELEMENT_BYTES[self.element])",
        "the sum before a norm has the room of the product",
        unit("fused_step::test_what_surrounds_products_binds_what_their_template_declares"),
    ),
    Mutation(
        "few_rows.last_rows",
        "py_src/capstan/tape/ops/few_rows.py",
        "return -(-self.n // (self.workgroup // self.span * self.rows)), -(-self.m // self.tall), 1",
        "return -(-self.n // (self.workgroup // self.span * self.rows)), self.m // self.tall, 1",
        "the last rows of x are not computed",
        unit("few_rows::test_tilings_keep_the_limits_of_the_shader_and_the_adapter"),
    ),
    Mutation(
        "matrix_tiling.memory",
        "py_src/capstan/tape/ops/matrix_tiling.py",
        "memory = results <= self.memory(dense) <= limits.memory",
        "memory = results <= self.memory(dense)",
        "a tiling takes more workgroup memory than the adapter has",
        unit("matrix_tiling::test_a_tiling_keeps_the_limits_of_the_shader_and_the_adapter"),
    ),
)
