"""Faults in the loops that generate, in what they share, and in the model's use of a device."""

from __future__ import annotations

from ..mutation import Mutation, browser, unit

__all__ = ["GENERATION"]

GENERATION = (
    Mutation(
        "row.rewind_keeps_last_row",
        "py_src/capstan/generation/row.py",
        "        self.unsettle(max(0, length - 1))\n        if not length:",
        "        self.unsettle(length)\n        if not length:",
        "after a rewind the last token is not run again, so that the logits are of another position",
        unit("generator::TestRewinding::test_goes_on_like_a_fresh_run"),
    ),
    Mutation(
        "row.end_in_cache",
        "py_src/capstan/generation/row.py",
        "            self.unsettle(max(0, self.valid - 1))\n        else:",
        "            pass\n        else:",
        "cache entries behind an end of sequence count as right",
        unit("generator", "generator_use", "rows"),
    ),
    Mutation(
        "row.past_the_end",
        "py_src/capstan/generation/row.py",
        "return limit - len(self) - len(self.ready) - self.ahead",
        "return limit - len(self) - len(self.ready)",
        "bursts under way are forgotten, so that steps are submitted past max_length",
        unit("generator::TestRunningAhead::test_tokens_are_the_models_up_to_max_length"),
    ),
    Mutation(
        "flight.changed_meanwhile",
        "py_src/capstan/generation/flight.py",
        "for number, row, changes in self.rows if row.changes == changes]",
        "for number, row, changes in self.rows]",
        "ids of a burst are taken in although the sequence was changed meanwhile",
        unit("generator_use::TestSeveralTasks::test_a_sequence_changed_meanwhile_goes_on_as_it_was_changed"),
    ),
    Mutation(
        "run_ahead.gap_measured",
        "py_src/capstan/generation/run_ahead.py",
        "if last is None or burst.submitted > last:",
        "if last is None:",
        "a pause of the reader counts as the time of a step",
        unit("run_ahead::test_a_gap_of_the_readers_is_not_measured"),
    ),
    Mutation(
        "prefix_cache.last_token",
        "py_src/capstan/device/prefix_cache.py",
        'wanted = array("q", loop.rows[number].tokens[:-1])',
        'wanted = array("q", loop.rows[number].tokens)',
        "the last token of a prompt is taken over, too, so that nothing makes its logits",
        unit("prefix_cache::TestWhatIsRun::test_one_token_is_run_of_a_prompt_that_is_known_as_a_whole"),
    ),
    Mutation(
        "prefix_cache.other_adapter",
        "py_src/capstan/device/prefix_cache.py",
        "            if kept.key == loop.cache_key:",
        "            if True:",
        "rows that were computed with another adapter are taken over",
        unit("prefix_cache::TestWhatIsRun::test_what_depends_on_more_than_tokens_is_not_shared"),
    ),
    Mutation(
        "generator.norm",
        "py_src/capstan/generation/generator.py",
        "norm = found.best[0][0] + found.total",
        "norm = found.total",
        "log-probabilities are off by the largest logit",
        unit("reference_generator::test_probabilities_are_a_softmax_of_the_logits"),
    ),
    Mutation(
        "generator.closed_twice",
        "py_src/capstan/generation/generator.py",
        """            if loop.closed:
                return None
""",
        "",
        "closing a generator a second time gives its decoder back again",
        unit("leaving::test_one_that_was_closed_is_not_closed_again"),
    ),
    Mutation(
        "speculation.finds_itself",
        "py_src/capstan/generation/speculation.py",
        """        if len(tokens) >= size:
            self._behind[tuple(tokens[-size:])] = len(tokens)
        tokens.append(token)""",
        """        tokens.append(token)
        if len(tokens) >= size:
            self._behind[tuple(tokens[-size:])] = len(tokens)""",
        "the tokens at the end of a sequence find themselves, so that nothing is drafted",
        unit("speculation::TestNgramIndex::test_drafts_are_what_followed_the_latest_earlier_place"),
    ),
    Mutation(
        "speculation.room",
        "py_src/capstan/generation/speculated_loop.py",
        "if row.ended or room < most:",
        "if row.ended or room < 1:",
        "drafted steps run past max_length",
        unit("speculation::TestRunningAhead::test_tokens_are_the_models_up_to_max_length"),
    ),
    Mutation(
        "notes.other_key",
        "py_src/capstan/host/notes.py",
        "if head == seal(name, of_key, content):",
        "if head:",
        "a note is taken for another model, build or adapter",
        unit("notes::test_a_note_is_there_for_its_key_only"),
    ),
    Mutation(
        "recovery.adapters",
        "py_src/capstan/generation/row_loop.py",
        "theirs = self._pools is not None or self.adapters.layers or self.adapters.pending",
        "theirs = self._pools is not None",
        "a sequence goes on without its LoRA adapter on another device",
        browser("lora::test_a_lost_device_is_told_and_model_and_adapter_can_be_loaded_again"),
    ),
    Mutation(
        "prompt.one_less",
        "py_src/capstan/generation/prompt.py",
        "values = list(islice(source, batch_size * max(room, 1) + 1))",
        "values = list(islice(source, batch_size * max(room, 1)))",
        "tokens beyond max_length are cut off in silence",
        unit("generator_use::TestOptions::test_endless_tokens_are_refused_at_max_length"),
    ),
    Mutation(
        "log_probabilities.norm",
        "py_src/capstan/generation/row_loop.py",
        "norm = found.best[0][0] + found.total",
        "norm = found.total",
        "log probabilities are not those of a softmax",
        unit("log_probabilities::test_each_token_has_its_log_probability_by_the_models_logits"),
    ),
    Mutation(
        "embeddings.cut",
        "py_src/capstan/embeddings.py",
        "return row[: self.max_tokens - self._ending] + row[len(row) - self._ending :]",
        "return row[: self.max_tokens]",
        "a text that is too long loses its last special token",
        unit("embeddings::test_a_text_that_is_too_long_keeps_its_special_tokens"),
    ),
    Mutation(
        "embeddings.order",
        "py_src/capstan/embeddings.py",
        "                    found[place] = vector\n",
        "                    found[len(found) - 1 - place] = vector\n",
        "vectors come in another order than their texts",
        unit("embeddings::test_texts_are_independent_of_those_beside_them"),
    ),
    Mutation(
        "embeddings.padding",
        "py_src/capstan/embeddings.py",
        "int64([1] * len(row), 0) for row in rows]",
        "int64([1] * len(row), 1) for row in rows]",
        "texts see the padding behind them",
        unit("embeddings::test_texts_are_independent_of_those_beside_them"),
    ),
)
