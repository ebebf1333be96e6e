"""Faults in the device of a page: recording, checking and storing tapes, and their buffers."""

from __future__ import annotations

from ..mutation import Mutation, browser, unit

__all__ = ["WEBGPU"]

WEBGPU = (
    Mutation(
        "step_recorder.leak",
        "py_src/capstan/device/webgpu/tapes/step_recorder.py",
        "                undo.callback(self.step.engine.close_tape, fused.tape)\n",
        "",
        "a fused tape that fails its comparison stays allocated",
        unit("step_recorder::test_a_device_that_is_lost_on_the_way_leaves_no_tape"),
    ),
    Mutation(
        "step_recorder.counts",
        "py_src/capstan/device/webgpu/tapes/step_recorder.py",
        """        await self._check_counts(recording, ops, groups, tables)
        return""",
        "        return",
        "workgroup counts of tables are not compared with what the step computes",
        unit("step_recorder::TestIndirectDispatches::test_stay_where_the_step_gets_other_counts_than_the_table_has"),
    ),
    Mutation(
        "step_recorder.lasting",
        "py_src/capstan/device/webgpu/tapes/step_recorder.py",
        "lasting = not isinstance(error, OutOfMemoryError)",
        "lasting = True",
        "a step that lacked memory once is never fused again",
        unit("step_recorder::test_a_lack_of_memory_for_fused_kernels_says_nothing_of_later_loads"),
    ),
    Mutation(
        "step_check.lengths",
        "py_src/capstan/device/webgpu/tapes/step_check.py",
        "return sorted({min(length, self.buffers.capacity - 1) for length in (PROBE_TOKENS, long)})",
        "return [min(PROBE_TOKENS, self.buffers.capacity - 1)]",
        "a tape is compared after few positions only",
        unit("step_recorder::test_a_window_that_ends_past_the_long_length_is_outgrown_in_the_check"),
    ),
    Mutation(
        "replay_check.unlike",
        "py_src/capstan/device/webgpu/tapes/comparison.py",
        "if found.unlike or found.max_difference > limit:",
        "if found.max_difference > limit:",
        "NaN in a replay passes the comparison",
        unit("step_recorder::test_a_fused_tape_that_fails_its_check_steps_down_to_the_recorded_kernels"),
    ),
    Mutation(
        "replay_check.padding",
        "py_src/capstan/device/webgpu/tapes/comparison.py",
        "span.length // row * row if name == about.logits else span.length",
        "span.length",
        "a replay must write the elements behind an odd vocabulary, which nobody reads",
        browser("gguf::test_ids_are_the_definition_s"),
    ),
    Mutation(
        "verdicts.sizes",
        "py_src/capstan/device/webgpu/tapes/verdicts.py",
        'add(binding, number("buffer", buffer), offset, size, recording.sizes[buffer])',
        'add(binding, number("buffer", buffer), offset, size)',
        "a verdict is used for a step with buffers of other sizes",
        unit("recording_digest"),
    ),
    Mutation(
        "stored_tapes.adapter",
        "py_src/capstan/device/webgpu/tapes/stored_tapes.py",
        "self._facts = json.dumps([facts, engine.adapter()], sort_keys=True)",
        "self._facts = json.dumps([facts], sort_keys=True)",
        "a tape that was stored on another adapter is used",
        unit("stored_tapes"),
    ),
    Mutation(
        "stored_tapes.part_of_buffer",
        "py_src/capstan/device/webgpu/tapes/stored_tapes.py",
        """                if name is None:
                    raise TapeError("a kernel of the tape binds part of a buffer that has no name")
""",
        "",
        "a stored tape names no buffer for a part that it binds",
        unit("stored_tapes"),
    ),
    Mutation(
        "tape_scratch.order",
        "py_src/capstan/device/webgpu/tapes/tape_scratch.py",
        "order = sorted(range(len(sizes)), key=lambda number: -sizes[number])",
        "order = sorted(range(len(sizes)), key=lambda number: sizes[number])",
        "the largest part of a tape's scratch gets the smallest given buffer",
        unit("tape_scratch"),
    ),
    Mutation(
        "sequence_buffers.zeros",
        "py_src/capstan/device/run_inputs.py",
        """            self._grow(memory, valid, past)
            self._grow(memory, past, past + len(ids))""",
        "            self._grow(memory, past, past + len(ids))",
        "the mask keeps zeros before a prompt, where a sequence ended within a burst",
        unit("sequence_buffers"),
    ),
    Mutation(
        "sequence_buffers.given",
        "py_src/capstan/device/webgpu/sequence_buffers.py",
        """        if self.given is not None:
            self.given.end()
""",
        "",
        "buffers of the caller stay held after the generator is closed",
        unit("sequence_buffers"),
    ),
    Mutation(
        "session.captured",
        "py_src/capstan/device/webgpu/webgpu_session.py",
        "            undo.push_async_callback(captured.release)\n",
        "",
        "the session of a capture that fails is never released",
        unit("webgpu_session"),
    ),
    Mutation(
        "session.other_inputs",
        "py_src/capstan/device/webgpu/tapes/session_tapes.py",
        "self._write(feed, data[-size:] + data[:-size])",
        "self._write(feed, data)",
        "a capture is checked twice on the same inputs",
        unit("webgpu_session"),
    ),
    Mutation(
        "js_requests.flags",
        "py_src/capstan/page/read_request.py",
        "return isinstance(value, types) and isinstance(value, bool) is (bool in types)",
        "return isinstance(value, types)",
        "true passes for a number in a request",
        unit("requests"),
    ),
    Mutation(
        "long_rope.of_pool",
        "py_src/capstan/device/webgpu/webgpu_model.py",
        "                found.rotate(False)\n",
        "",
        "a decoder that was given back has the factors of the sequence before",
        browser("long_rope::test_a_pool_takes_a_decoder_with_the_short_factors"),
    ),
    Mutation(
        "long_rope.of_rows",
        "py_src/capstan/device/webgpu/joint_rows.py",
        "        self._one.rotate(long)\n",
        "        pass\n",
        "rows of one step stay with the short factors",
        browser("long_rope::test_rows_are_computed_anew_together"),
    ),
    Mutation(
        "packed_prompts.adopted",
        "py_src/capstan/device/webgpu/joint_row.py",
        "        self.begin(length + 1)\n",
        "",
        "a step that ends the prompts of other rows overwrites what a row took over",
        browser("packed_prompts::test_what_a_long_row_takes_over_is_not_overwritten_while_others_are_run"),
    ),
    Mutation(
        "packed_prompts.checked_over",
        "py_src/capstan/device/webgpu/tapes/pack_tapes.py",
        "_pieces(buffers, most, 0, [copy.span() for copy in copies], _caches(rows, row))",
        "[]",
        "the check of a tape leaves its tokens in the caches of rows that are under way",
        browser("packed_prompts::test_sequences_that_are_admitted_at_once_beside_others"),
    ),
    Mutation(
        "long_rope.back",
        "py_src/capstan/device/webgpu/decoder.py",
        "        if long != self._long:\n",
        "        if long and not self._long:\n",
        "a sequence that is cut to the original length keeps the long factors",
        browser("long_rope::test_prompts_rewinds_and_appended_tokens_have_the_factors_for_their_length"),
    ),
    Mutation(
        "long_rope.on_the_cpu",
        "py_src/capstan/device/wasm/wasm_model.py",
        """            self._long = long
            self._feed(self._fixed())""",
        "            self._long = long",
        "on the CPU a sequence stays with the short factors",
        browser("long_rope::test_a_sequence_that_outgrows_the_original_length_is_computed_anew_once"),
    ),
    Mutation(
        "long_rope.host_write",
        "py_src/capstan/device/run_inputs.py",
        """    \"\"\"The rotary tables of a model with a long rope, for the sequence's length.\"\"\"
""",
        """    changes = False
""",
        "a tape ends when the tables of its sequence are filled",
        browser("long_rope::test_a_sequence_that_outgrows_the_original_length_is_computed_anew_once"),
    ),
    Mutation(
        "sliding.tables",
        "py_src/capstan/device/webgpu/sliding.py",
        "memoryview(rows)[self.base * row :",
        "memoryview(rows)[0 * row :",
        "the rotary tables of sliding caches stay at position 0",
        unit("sliding_caches::test_rows_are_in_their_places_whatever_is_run"),
    ),
    Mutation(
        "sliding.spare",
        "py_src/capstan/device/webgpu/sliding.py",
        "window + (self.room - window) // 2",
        "window",
        "a slide keeps the window alone, of a length that drafts may not reach",
        unit("sliding_caches::test_bursts_under_way_that_give_less_than_they_may_leave_the_window"),
    ),
    Mutation(
        "sliding.holds",
        "py_src/capstan/graph/sliding_caches.py",
        "return base == 0 or length >= base + self.window",
        "return True",
        "a rewind goes on behind a window that sliding caches lost",
        unit("sliding_caches::test_a_run_without_its_window_is_refused_and_one_from_the_start_is_not"),
    ),
    Mutation(
        "sliding.shared",
        "py_src/capstan/device/webgpu/cache_spans.py",
        "return self.holds(length) and (",
        "return True or (",
        "the prefix cache gives rows whose window is gone",
        unit("sliding_caches::test_nothing_is_continued_where_the_window_is_gone"),
    ),
)
