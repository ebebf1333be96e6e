"""Faults in what drives pages from CPython: capstan.testing and capstan.fleet."""

from __future__ import annotations

from ..mutation import Mutation, unit

__all__ = ["DRIVERS"]

DRIVERS = (
    Mutation(
        "headless.silent_step_down",
        "py_src/capstan/headless/browser.py",
        '({self.failure})" if self.failure else',
        '({self.failure})" if False else',
        "a browser that fails with the GPU is told as a machine without one",
        unit("build_browser::test_a_step_down_from_the_gpu_tells_its_reason"),
    ),
    Mutation(
        "testing.last_token",
        "py_src/capstan/testing/answers.py",
        "enumerate(zip(one, other, strict=False))",
        "enumerate(zip(one[:-1], other, strict=False))",
        "the last token is not compared with the oracle's",
        unit("testing::test_a_near_tie_is_a_warning_and_the_rest_is_compared_behind_the_oracles_token"),
    ),
    Mutation(
        "testing.sure_oracle",
        "py_src/capstan/testing/model.py",
        "if own < tie and exact and (theirs is None or theirs < tie):",
        "if own < tie and exact:",
        "a near tie of the page is excused, although the oracle was sure of its token",
        unit("testing::test_no_near_tie_is_excused_beyond_its_bound_or_where_the_oracle_was_sure"),
    ),
    Mutation(
        "testing.inverted_ratio",
        "py_src/capstan/testing/timing.py",
        "sorted(run / baseline for run, baseline in taken)",
        "sorted(baseline / run for run, baseline in taken)",
        "a slower run is told as a faster one",
        unit("testing::test_a_difference_counts_only_if_the_whole_interval_is_beyond_the_tolerance"),
    ),
    Mutation(
        "testing.narrow_interval",
        "py_src/capstan/testing/timing.py",
        "while 2 * (below :=",
        "while 0.1 * (below :=",
        "the interval of a ratio lacks the true median far more often than it says",
        unit("testing::test_the_interval_holds_the_median_as_often_as_it_says"),
    ),
    Mutation(
        "testing.order_of_rounds",
        "py_src/capstan/testing/timing.py",
        "        if number % 2:\n",
        "        if False:\n",
        "the baseline is always measured second, when the machine is warmer",
        unit("testing::test_rounds_take_turns_and_their_order_turns_round"),
    ),
    Mutation(
        "testing.golden_of_another",
        "py_src/capstan/testing/oracles.py",
        "if digests is not None and stored is not None and stored != digests:",
        "if digests is not None and stored is not None and stored.keys() != digests.keys():",
        "a model is compared with the golden of other weights",
        unit("testing::test_a_golden_is_written_read_and_refused_for_another_model"),
    ),
    Mutation(
        "testing.nothing_kept",
        "py_src/capstan/testing/plugin.py",
        'report.when in ("setup", "call") and',
        'report.when == "setup" and',
        "of a test that failed nothing is kept",
        unit("testing::test_a_failure_is_kept_and_an_error_of_a_page_is_one"),
    ),
    Mutation(
        "testing.silent_page",
        "py_src/capstan/testing/plugin.py",
        "(errors := pages.errors()):",
        "(errors := pages.errors()[1:]):",
        "a test passes whose page threw an exception",
        unit("testing::test_a_failure_is_kept_and_an_error_of_a_page_is_one"),
    ),
    Mutation(
        "fleet.one_attempt",
        "py_src/capstan/fleet/browsers.py",
        "if failures[entry.id] < self._serving.attempts:",
        "if False:",
        "an item is given up at its first failure",
        unit("fleet::TestBrowsers::test_what_kills_browsers_fails_three_times_and_the_others_are_answered"),
    ),
    Mutation(
        "fleet.blamed_in_company",
        "py_src/capstan/fleet/browsers.py",
        "if len(rest) == 1 and len(batch) == 1:",
        "if len(rest) == 1:",
        "a dead browser counts against an item that was not alone in it",
        unit("fleet::TestBrowsers::test_what_kills_browsers_fails_three_times_and_the_others_are_answered"),
    ),
    Mutation(
        "fleet.order_in_batch",
        "py_src/capstan/fleet/browsers.py",
        "return [outcomes[entry.id] for entry in entries]",
        "return [*outcomes.values()]",
        "results stand in the order in which they came, not in that of the items",
        unit("fleet::TestBrowsers::test_what_kills_browsers_fails_three_times_and_the_others_are_answered"),
    ),
    Mutation(
        "fleet.lost_batch",
        "py_src/capstan/fleet/fleet.py",
        """* rest, 2 * rest
            return [], [batch]
""",
        """* rest, 2 * rest
            return [], []
""",
        "the batch of a worker that cannot answer is given to no other",
        unit("fleet::TestFleet::test_workers_that_cannot_answer_are_left_and_without_others_the_reasons_are_told"),
    ),
    Mutation(
        "fleet.bound_for_ever",
        "py_src/capstan/fleet/fleet.py",
        """if future.status != "pending" or (here and flight.workers and not flight.workers & here)""",
        """if future.status != "pending\"""",
        "a batch that was meant for workers that are gone is waited for",
        unit("fleet::TestFleet::test_a_batch_for_workers_that_are_gone_goes_to_others"),
    ),
    Mutation(
        "fleet.no_rest",
        "py_src/capstan/fleet/fleet.py",
        "if each not in self._rests or self._rests[each][0] <= now]",
        "if each not in self._rests]",
        "a worker that could not answer once is never asked again",
        unit("fleet::TestFleet::test_workers_that_could_not_answer_are_asked_again_after_a_rest"),
    ),
    Mutation(
        "fleet.finished_again",
        "py_src/capstan/fleet/fleet.py",
        "fresh = (entry for entry in numbered if file is None or not file.has(entry))",
        "fresh = numbered",
        "items that the file has are computed and yielded once more",
        unit("fleet::TestFleet::test_a_second_run_computes_what_the_first_did_not"),
    ),
    Mutation(
        "fleet.stale_result",
        "py_src/capstan/fleet/results.py",
        "return self.finished.get(entry.id) == entry.digest",
        "return entry.id in self.finished",
        "the result of another input or option counts as this item's",
        unit("fleet::TestFleet::test_a_second_run_computes_what_the_first_did_not"),
    ),
    Mutation(
        "fleet.torn_line",
        "py_src/capstan/fleet/results.py",
        '                if not line.endswith(b"\\n"):\n                    continue\n',
        "",
        "a run does not go on after a line that was not written whole",
        unit("fleet::TestResultFile::test_a_torn_last_line_and_errors_are_dropped_and_the_rest_is_finished"),
    ),
    Mutation(
        "fleet.half_written",
        "py_src/capstan/fleet/results.py",
        "            self._file.truncate(start)\n",
        "",
        "a full disk leaves a part of a line in the file",
        unit("fleet::TestResultFile::test_a_full_disk_leaves_whole_lines_and_tells_the_bytes"),
    ),
)
