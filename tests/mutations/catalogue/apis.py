"""Faults in what users call: adapters, onnxruntime, onnxruntime-genai, batches and beams."""

from __future__ import annotations

from ..mutation import Mutation, browser, unit

__all__ = ["APIS"]

APIS = (
    Mutation(
        "adapters.in_use",
        "py_src/capstan/adapters.py",
        "        if entry.users:\n            raise OptionError(",
        "        if False:\n            raise OptionError(",
        "an adapter is freed while a generator runs with it",
        unit("lora"),
    ),
    Mutation(
        "adapters.name_taken",
        "py_src/capstan/adapters.py",
        """        try:
            # Another load may have used the name meanwhile.
            self._require_free(name)
        except OptionError:
            weights.close()
            raise
""",
        "",
        "of two loads under one name the first one is never freed",
        unit("lora"),
    ),
    Mutation(
        "captured.retained",
        "py_src/capstan/onnxruntime/captured.py",
        """        self._device.retain()
""",
        "",
        "a captured run ends the device of others when it is closed",
        unit("onnxruntime_io_binding::test_a_captured_run_gives_outputs_memory_and_outlives_its_session"),
    ),
    Mutation(
        "captured.in_place",
        "py_src/capstan/onnxruntime/captured.py",
        'if other != f"output {fetch.name!r}":',
        "if False:",
        "a run in place is captured, so that its check changes what it reads",
        unit("onnxruntime_io_binding::test_a_run_in_place_cannot_be_captured"),
    ),
    Mutation(
        "captured.other_tensor",
        "py_src/capstan/onnxruntime/captured.py",
        '        require_same("input", feed, run.inputs[feed.name])',
        "        pass",
        "a replay reads other tensors than those that are bound",
        unit("onnxruntime_capture::test_other_tensors_than_those_captured_are_refused"),
    ),
    Mutation(
        "io_binding.read_only",
        "py_src/capstan/onnxruntime/io_binding.py",
        "if ortvalue.host().data.readonly and ortvalue.tensor_size_in_bytes():",
        "if False:",
        "an output may be bound to an array that cannot be written",
        unit("onnxruntime_io_binding::test_a_read_only_array_is_no_output"),
    ),
    Mutation(
        "ort_value.closed",
        "py_src/capstan/onnxruntime/ort_value.py",
        "if self._free is not None and not self._free.alive:",
        "if False:",
        "a closed tensor is used",
        unit("onnxruntime_ort_value::test_device_memory_goes_with_the_value"),
    ),
    Mutation(
        "engine.most",
        "py_src/capstan/genai/request.py",
        "if turn.generated == turn.most:",
        "if turn.generated > turn.most:",
        "a turn generates a token more than it may",
        unit("genai::test_the_same_as_onnxruntime_genai[Engine, turns that are cut]"),
    ),
    Mutation(
        "engine.served_first",
        "py_src/capstan/genai/genai_engine.py",
        "self._turn = first + buffer._capacity",
        "self._turn = first",
        "a small event buffer serves the first requests for ever",
        unit("genai::test_requests_take_turns_in_a_buffer_that_is_too_small_for_all"),
    ),
    Mutation(
        "last_run.mask",
        "py_src/capstan/genai/last_run.py",
        "mask = [int(place not in padded) for padded in self._padded for place in range(length)]",
        "mask = [1 for padded in self._padded for place in range(length)]",
        "the mask that is shown has ones at padding",
        unit("genai_outputs::test_the_mask_leaves_padding_out"),
    ),
    Mutation(
        "row_pool.changed",
        "py_src/capstan/generation/row.py",
        "        self.changes += 1\n",
        "",
        "ids of a burst go to a sequence that was changed meanwhile",
        unit("row_pool::TestOnPaper::test_a_turn_that_is_over_costs_no_steps_until_tokens_are_appended"),
    ),
    Mutation(
        "row_pool.room",
        "py_src/capstan/generation/loop.py",
        "picks = min([picks, *(self.rows[number].room(self.reach) for number in going)])",
        "picks = min(picks, max([0, *(self.rows[number].room(self.reach) for number in going)]))",
        "a burst goes past the end of the longest sequence of a pool",
        unit("row_pool::TestOnPaper::test_a_burst_takes_no_row_past_its_end"),
    ),
    Mutation(
        "beams.ended_behind",
        "py_src/capstan/generation/beam_search.py",
        "elif place < len(found):",
        "else:",
        "a beam ends although better ones go on",
        unit("beams::test_ends_make_the_oracles_hypotheses"),
    ),
    Mutation(
        "beams.penalty",
        "py_src/capstan/generation/beam_search.py",
        "divisor = float32(float(length) ** self.length_penalty)",
        "divisor = float32(float(length) * self.length_penalty)",
        "the length is multiplied by the length penalty",
        unit("beams::test_ends_make_the_oracles_hypotheses"),
    ),
    Mutation(
        "beams.parents",
        "web/src/worker/shaders/sampler/beams.wgsl",
        "= old[parents[beam]];",
        "= old[beam];",
        "a beam goes on over the caches of the beam in its place",
        browser("beams::test_the_gpu_chooses_what_the_host_chooses"),
    ),
    Mutation(
        "beams.ended_behind_on_the_gpu",
        "web/src/worker/shaders/sampler/beams.wgsl",
        "if (place < BEAMS) {",
        "if (ended < BEAMS) {",
        "the GPU ends a beam although better ones go on",
        browser("beams::test_the_gpu_chooses_what_the_host_chooses"),
    ),
    Mutation(
        "beams.edited",
        "py_src/capstan/generation/beam_policy.py",
        "if self._edited or not isinstance(decoder, BeamRows):",
        "if not isinstance(decoder, BeamRows):",
        "the GPU chooses from logits that a stage should have edited",
        browser("beams::test_where_a_stage_edits_logits_the_host_chooses"),
    ),
    Mutation(
        "beams.void_caches",
        "py_src/capstan/generation/beam_policy.py",
        "row.unsettle(row.appended[0][1])",
        "row.unsettle(len(row.tokens))",
        "what a search wrote is taken for a row's own",
        browser("beams::test_a_search_goes_on_behind_waits_that_were_cancelled"),
    ),
)
