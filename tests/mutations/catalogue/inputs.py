"""Faults in what reads models, requests, texts and grammars."""

from __future__ import annotations

from ..mutation import Mutation, unit

__all__ = ["INPUTS"]

INPUTS = (
    Mutation(
        "config.percent_d",
        "py_src/capstan/model_files/config.py",
        'if value.count("%d") != 1:',
        'if "%d" not in value:',
        "a name pattern with two places for the layer is taken",
        unit("config::test_a_wrong_field_is_named_by_its_path"),
    ),
    Mutation(
        "config.data_folder",
        "py_src/capstan/model_files/config.py",
        'return self.filename[: self.filename.rfind("/") + 1]',
        'return self.filename[: self.filename.rfind("/")]',
        "the folder of data files lacks its slash",
        unit("config::test_data_files_are_beside_the_graph"),
    ),
    Mutation(
        "config.capture_first",
        "py_src/capstan/model_files/config.py",
        "            found = GraphCapture(switched(options, CAPTURE, False), options.where(CAPTURE))",
        "            found = found or GraphCapture(switched(options, CAPTURE, False), options.where(CAPTURE))",
        "the first enableGraphCapture counts, not the last",
        unit("config::test_whether_to_capture_is_read_from_the_last_of_webgpus_options"),
    ),
    Mutation(
        "file_names.encoded_up",
        "py_src/capstan/model_files/file_names.py",
        """        if found or decoded == name:
            return found
""",
        """        return found
""",
        "a percent-encoded path may lead out of the model's folder",
        unit("file_names::test_names_that_lead_out_of_the_folder_are_not"),
    ),
    Mutation(
        "retrying.one_more",
        "py_src/capstan/host/retrying.py",
        "if tried >= TRIES or",
        "if tried > TRIES or",
        "a request is made once more than told",
        unit("retrying::test_the_last_failure_is_told"),
    ),
    Mutation(
        "tokenizer.shared",
        "py_src/capstan/tokenizer.py",
        "made[id(model)] = copy(self)",
        "made[id(model)] = self",
        "the options of a model's first tokenizer are those of its later ones",
        unit("tokenizer::test_the_files_of_a_model_are_read_once_for_all_its_tokenizers"),
    ),
    Mutation(
        "tokenizer.padded_before",
        "py_src/capstan/tokenizer.py",
        "return [row + [pad_token_id] * (longest - len(row)) for row in rows]",
        "return [[pad_token_id] * (longest - len(row)) + row for row in rows]",
        "padding of a batch is before the shorter prompts",
        unit("tokenizer::test_a_batch_is_padded_behind_its_shorter_rows_and_decoded_row_by_row"),
    ),
    Mutation(
        "stream.sent_twice",
        "py_src/capstan/text/stream.py",
        "self._shown, self._sent = len(self._window), len(text)",
        "self._shown, self._sent = len(self._window), 0",
        "the context of a delta is given out again",
        unit("stream::test_a_character_is_given_out_when_its_last_byte_comes"),
    ),
    Mutation(
        "stream.whole_held",
        "py_src/capstan/text/stream.py",
        "whole = max(self._sent, len(text) - incomplete)",
        "whole = self._sent",
        "whole characters before an incomplete one are held back",
        unit("stream::test_each_token_gives_all_characters_that_it_completes"),
    ),
    Mutation(
        "expressions.final",
        "py_src/capstan/text/expressions.py",
        "if around <= self._final or min(around) < q:",
        "if not around or min(around) < q:",
        "an ambiguous loop counts as slow although nothing can fail behind it",
        unit("expressions::test_an_expression_that_ends_is_taken"),
    ),
    Mutation(
        "vocabulary.mark",
        "py_src/capstan/guidance/vocabulary.py",
        'tokens[id_] = "" if _MARK in written else written',
        "tokens[id_] = written",
        "other tokens may spell what stands for a special one",
        unit("guidance_texts::test_tokens_are_told_in_the_alphabet_of_bytes"),
    ),
    Mutation(
        "stream.stop_begun",
        "py_src/capstan/text/stream.py",
        "for size in range(min(len(text), len(stop) - 1), 0, -1):",
        "for size in range(1, min(len(text), len(stop) - 1) + 1):",
        "the shortest beginning of a stop string is held back, not the longest",
        unit("stream::test_text_ends_before_the_first_stop_string_however_the_tokens_cut_it"),
    ),
    Mutation(
        "automaton.ended_rule",
        "py_src/capstan/guidance/automaton.py",
        "if len(stack) == 1 or not self.accepting[stack[-1]]:",
        "if len(stack) == 1:",
        "a rule ends where it may not",
        unit("guidance_automaton::test_what_is_allowed_is_what_xgrammar_allows"),
    ),
    Mutation(
        "automaton.following",
        "py_src/capstan/guidance/automaton.py",
        "row[symbol] = (pushed if ends else (following, *pushed), first)",
        "row[symbol] = (pushed, first)",
        "a rule forgets where its caller goes on",
        unit("guidance_automaton::test_what_is_allowed_is_what_xgrammar_allows"),
    ),
    Mutation(
        "constraint.rolled_back",
        "py_src/capstan/guidance/constraint.py",
        "matcher.roll_back(len(found))",
        "matcher.roll_back(len(found) - 1)",
        "tokens that were tried for a forced text stay in the matcher",
        unit("constrained::test_forced_tokens_take_no_step_of_the_model"),
    ),
    Mutation(
        "vocabulary.special",
        "py_src/capstan/guidance/vocabulary.py",
        'plain = not added.get("special") or added["id"] in stop',
        "plain = True",
        "a grammar may force the text of a special token",
        unit("guidance_texts::test_tokens_are_told_in_the_alphabet_of_bytes"),
    ),
    Mutation(
        "json_numbers.exclusive",
        "py_src/capstan/guidance/json_numbers.py",
        "high -= found.below and high == found.high",
        "high -= found.below",
        "below 5.5 the integer 5 is excluded, too",
        unit("guidance_matching::test_schemas_allow_what_fits_them"),
    ),
)
