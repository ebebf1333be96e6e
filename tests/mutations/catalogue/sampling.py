"""Faults in the sampler's definition, the stages before a pick, and the check of search options."""

from __future__ import annotations

from ..mutation import Mutation, unit

__all__ = ["SAMPLING"]

SAMPLING = (
    Mutation(
        "sampling.draw_by_row",
        "py_src/capstan/stages/sampling.py",
        "philox4x32_10((position, row, 0, 0), seed)",
        "philox4x32_10((row, position, 0, 0), seed)",
        "the counter of a draw has position and row swapped",
        unit("sampling::test_a_draw_is_word_0_of_philox_over_position_and_row_with_the_seed_as_key"),
    ),
    Mutation(
        "sampling.top_k_equals",
        "py_src/capstan/stages/sampling.py",
        "if keys[token] == cut][: count - above]",
        "if keys[token] == cut][: count]",
        "top_k keeps too many tokens of equal logits",
        unit("sampling::test_top_k_takes_the_lowest_ids_among_equals"),
    ),
    Mutation(
        "sampling.top_p_short",
        "py_src/capstan/stages/sampling.py",
        "target = -(-options.top_p_bits * total >> 32)",
        "target = options.top_p_bits * total >> 32",
        "the share of top_p is rounded down, so that a token may be missing",
        unit("sampling::test_a_tiny_top_p_is_greedy_and_a_top_p_of_one_keeps_everything"),
    ),
    Mutation(
        "search.seed_kept",
        "py_src/capstan/stages/search.py",
        """        if "random_seed" in options:
            values["seed"] = -1
""",
        "",
        "a new random_seed leaves the seed that was drawn before",
        unit("search::test_a_drawn_seed_is_reported_and_kept"),
    ),
    Mutation(
        "search.context_length",
        "py_src/capstan/stages/search.py",
        "if self.max_length > self.context_length:",
        "if self.max_length > self.context_length + 1:",
        "max_length may exceed the model's context by one token",
        unit("search::test_an_option_out_of_range_or_unknown_is_refused"),
    ),
    Mutation(
        "stages.bad_word_at_start",
        "py_src/capstan/stages/bad_words.py",
        "if before <= len(tokens) and",
        "if before < len(tokens) and",
        "a bad word is not banned where its beginning is the whole sequence",
        unit("stages::test_bad_words_are_not_ended"),
    ),
    Mutation(
        "stages.penalty_of_prompt",
        "py_src/capstan/stages/token_penalties.py",
        "Counter(row.tokens[row.prompt :])",
        "Counter(row.tokens)",
        "presence and frequency penalties count the prompt",
        unit("stages::test_generated_tokens_are_penalised_by_their_number"),
    ),
    Mutation(
        "stages.penalty_sign",
        "py_src/capstan/stages/repetition_penalty.py",
        "    if negative:\n        bits = nearest_float(significand * factor",
        "    if not negative:\n        bits = nearest_float(significand * factor",
        "a repetition penalty multiplies positive logits and divides negative ones",
        unit("stages::test_a_penalised_logit_is_the_rounded_quotient_or_product"),
    ),
)
