"""Faults in evaluations, and in the page's half of a fleet that answers them."""

from __future__ import annotations

from ..mutation import Mutation, unit

__all__ = ["EVALUATION"]

EVALUATION = (
    Mutation(
        "evaluation.cut",
        "py_src/capstan_host/evaluation/lm_eval_model.py",
        "scored = min(len(tokens), len(whole) - 1)",
        "scored = min(len(tokens), len(whole) - 2)",
        "the first token that is scored of a text longer than max_length is left out",
        unit("evaluation::test_what_is_too_long_loses_its_beginning_which_is_told"),
    ),
    Mutation(
        "evaluation.failed_item",
        "py_src/capstan_host/evaluation/runners.py",
        "        if item.error is not None:\n",
        "        if False:\n",
        "a table is made of requests that no page could answer",
        unit("evaluation::test_browsers_that_die_are_replaced_on_one_machine_and_in_a_cluster"),
    ),
    Mutation(
        "in_page.order",
        "py_src/capstan_host/fleet/in_page.py",
        "    return sorted(range(len(pairs)), key=tokens)\n",
        "    return range(len(pairs))\n",
        "the contexts that pairs share run again for each",
        unit("in_page::test_pairs_that_begin_alike_share_a_run_and_bad_ones_fail_alone"),
    ),
    Mutation(
        "in_page.pools",
        "py_src/capstan_host/fleet/in_page.py",
        "        await idle.aclose()\n",
        "",
        "the caches of row pools that are not used any more stay on the GPU",
        unit("in_page::test_the_pools_of_the_last_two_option_sets_stay"),
    ),
    Mutation(
        "in_page.stop",
        "py_src/capstan_host/fleet/in_page.py",
        "while sequence.finish_reason is None and stream.stopped is None:",
        "while sequence.finish_reason is None:",
        "a row of a pool goes on behind its stop string",
        unit("in_page::test_stop_strings_end_rows_of_one_pool"),
    ),
)
