"""Faults in the rewriting of ONNX graphs and in their description."""

from __future__ import annotations

from ..mutation import Mutation, unit

__all__ = ["GRAPHS"]

GRAPHS = (
    Mutation(
        "last_token.first",
        "py_src/capstan/graph/last_token.py",
        'for part, bound in (("starts", -1), ("ends", 2**63 - 1), ("axes", 1)):',
        'for part, bound in (("starts", 0), ("ends", 2**63 - 1), ("axes", 1)):',
        "the logits are those of all positions, not of the last one",
        unit("graph::test_last_token_logits_are_the_last_row"),
    ),
    Mutation(
        "last_token.read_elsewhere",
        "py_src/capstan/graph/last_token.py",
        "(len(wiring.consumers.get(name, [])) != 1 or name in wiring.outputs)",
        "(name in wiring.outputs)",
        "hidden states are cut although another node reads them",
        unit("graph::test_last_token_logits_give_a_reason_for_what_they_do_not_understand"),
    ),
    Mutation(
        "scratch.freed_early",
        "py_src/capstan/graph/scratch.py",
        "changes[tensor.read + 1] = changes.get(tensor.read + 1, 0) - size",
        "changes[tensor.read] = changes.get(tensor.read, 0) - size",
        "a tensor counts as freed before its last reader ran",
        unit("memory_pools::test_scratch_is_the_most_that_is_alive_at_once"),
    ),
    Mutation(
        "capture.window",
        "py_src/capstan/graph/capture.py",
        "window = self.window if self.window < capacity else 0",
        "window = self.window if self.window <= capacity else 0",
        "a window that no sequence outgrows is computed all the same",
        unit("graph_description::test_runs_that_outgrow_the_window_of_attention_cannot_be_captured"),
    ),
    Mutation(
        "uncomputed.positions",
        "py_src/capstan/graph/uncomputed.py",
        "if name and source(wiring, name) != position_ids else None",
        "if False else None",
        "position ids of the graph's own are left out without a word",
        unit("graph_limits::test_positions_are_ignored_unless_they_are_the_ones_that_are_fed"),
    ),
    Mutation(
        "session_weights.small",
        "py_src/capstan/graph/session_weights.py",
        "if entry.length <= CONSTANT_BYTES:",
        "if entry.length < CONSTANT_BYTES:",
        "a constant of exactly the limit becomes an input",
        unit("session_weights::test_the_session_s_graph_with_its_buffers_computes_what_the_model_does"),
    ),
    Mutation(
        "session_weights.folded",
        "py_src/capstan/graph/session_weights.py",
        "and all(name in constants for name in node.input if name)",
        "and any(name in constants for name in node.input if name)",
        "a node with one constant input counts as folded",
        unit("session_weights::test_the_session_s_graph_with_its_buffers_computes_what_the_model_does"),
    ),
    Mutation(
        "gguf.halves",
        "py_src/capstan/graph/gguf/builder.py",
        'self.head if self.family.neighbours and part != "v" else 0',
        "0",
        "rows of q and k stay in the order in which neighbours rotate",
        unit("gguf_graph::test_each_family_computes_what_its_weights_say"),
    ),
    Mutation(
        "gguf.window",
        "py_src/capstan/model_files/gguf/families.py",
        "return -1 if layer % 6 == 5 else",
        "return -1 if layer % 6 == 0 else",
        "the first of six layers attends to all positions in place of the last",
        unit("gguf_graph::test_each_family_computes_what_its_weights_say"),
    ),
    Mutation(
        "gguf.sums",
        "py_src/capstan/graph/gguf/tensors.py",
        "self.integers(0, 0, columns // block, block)",
        "self.integers(0, 0, block, columns // block)",
        "the sums of x are over other elements than a block's",
        unit("gguf_graph::test_a_model_of_each_type_computes_what_its_weights_say"),
    ),
    Mutation(
        "gguf.other_sums",
        "py_src/capstan/tape/ops/minima.py",
        "if summed is not None and only_read(graph, recording, ops, summed) == multiplied(joins, maker):",
        "if summed is not None:",
        "a product adds what minima add to sums of something else",
        unit(
            "prefill_minima::test_sums_of_something_else_are_not_joined",
            "fusions::test_sums_that_are_not_those_of_the_minima_are_not_joined",
        ),
    ),
    Mutation(
        "gguf.shift",
        "py_src/capstan/device/reference/unpacked.py",
        "return d * np.float32(how.shift) + m",
        "return m",
        "the minima are those of the file, though the middle of the quants became zero",
        unit("gguf_types::test_a_product_s_weights_are_the_values_but_for_one_rounding"),
    ),
    Mutation(
        "graphs.cpu_note",
        "py_src/capstan/device/wasm/model_graph.py",
        "config.vocab_size, wide_bytes]",
        "config.vocab_size]",
        "a noted graph for the CPU serves another amount of float32 weights",
        unit("wasm_graph::test_what_else_it_depends_on_rewrites_it"),
    ),
    Mutation(
        "graphs.long_rows",
        "py_src/capstan/graph/long_rope.py",
        "long = TableRows(whole.location, whole.offset + cut,",
        "long = TableRows(whole.location, whole.offset,",
        "the long rows begin where the short ones do",
        unit("long_rope::TestGraph::test_tables_with_long_rows_behind_short_ones_become_inputs"),
    ),
    Mutation(
        "graphs.one_run",
        "py_src/capstan/graph/long_rope.py",
        "long = length > choice.original",
        "long = length >= choice.original",
        "a run of the original length has the long factors",
        unit("long_rope::TestGraph::test_the_graph_of_one_run_has_the_tables_for_its_length"),
    ),
)
