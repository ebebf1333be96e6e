"""Gives statistics of speculation by the names of the native package."""

from __future__ import annotations

from typing import Any

from ..generation.speculation import SpeculationStats

__all__ = ["speculation_stats"]

COUNTS = (
    *("rounds", "completed_rounds", "interrupted_rounds", "active_rounds", "draft_tokens_proposed"),
    *("draft_tokens_evaluated", "draft_tokens_accepted", "correction_tokens", "bonus_tokens", "tokens_queued"),
    *("tokens_emitted", "tokens_discarded", "tokens_buffered", "draft_forward_passes", "target_forward_passes"),
    *("effective_k", "adaptive_k_increases", "adaptive_k_decreases", "adaptive_k_observations"),
    *("adaptive_k_probes", "cooldown_entries", "cooldown_steps", "cooldown_remaining", "standard_fallback_steps"),
    *("mtp_failures", "dflash2_failures", "dflash2_disables", "dflash2_admission_misses", "full_accept_rounds"),
    *("partial_accept_rounds", "zero_accept_rounds", "target_verify_forward_passes", "target_reanchor_forward_passes"),
    *("target_reconciliation_forward_passes", "ngram_lookup_hits", "ngram_lookup_misses"),
    *("ngram_lookup_tokens_proposed", "ngram_chained_tokens_proposed", "ngram_grammar_candidate_rejections"),
    *("ngram_history_syncs", "ngram_history_tokens_synced"),
)
"""The counts of get_speculative_stats; further names are times and quotients."""
QUOTIENTS = (
    *("total_draft_ms", "total_target_ms", "total_reconciliation_ms", "total_target_verify_ms"),
    *("total_target_reanchor_ms", "total_ngram_history_sync_ms", "total_ngram_lookup_ms", "avg_draft_ms_per_token"),
    *("acceptance_rate", "avg_draft_tokens_per_round", "mean_emitted_tokens_per_round", "expected_tokens_per_round"),
    *("avg_target_ms_per_round", "target_baseline_ms_per_token", "target_overhead_ratio", "estimated_speedup"),
    *("observed_speedup", "adaptive_k_throughput"),
)
HISTOGRAM = 8
"""The number of steps that accepted 0, 1, ... drafts; the last entry counts all others."""


def speculation_stats(stats: SpeculationStats | None, by_model: bool = False) -> dict[str, Any]:
    """All counts of the native package by name; 0 for those that Capstan does not keep. Drafts are the draft model's if
    they are `by_model`, else found in the sequence.
    """
    counts: dict[str, Any] = dict.fromkeys(COUNTS, 0)
    quotients: dict[str, Any] = dict.fromkeys(QUOTIENTS, 0.0)
    histogram = [0] * HISTOGRAM
    if stats is not None:
        counts |= counts_of(stats)
        quotients |= quotients_of(stats)
        if not by_model:
            counts |= lookups_of(stats)
            quotients["total_ngram_lookup_ms"] = stats.drafting_ms
        for accepted, steps in enumerate(stats.accepted_by_step):
            histogram[min(accepted, HISTOGRAM - 1)] += steps
    return counts | {"formula_supported": stats is not None} | quotients | {"acceptance_length_histogram": histogram}


def counts_of(stats: SpeculationStats) -> dict[str, int]:
    """The counts of speculation. A round is a step with drafts."""
    return {
        "rounds": stats.rounds,
        "completed_rounds": stats.rounds,
        "draft_tokens_proposed": stats.proposed,
        "draft_tokens_evaluated": stats.evaluated,
        "draft_tokens_accepted": stats.accepted,
        "correction_tokens": stats.rounds - stats.full,
        "bonus_tokens": stats.full,
        "tokens_queued": stats.emitted,
        "tokens_emitted": stats.emitted,
        "target_forward_passes": stats.rounds,
        "target_verify_forward_passes": stats.rounds,
        "cooldown_entries": stats.switched_off,
        "standard_fallback_steps": stats.plain,
        "full_accept_rounds": stats.full,
        "partial_accept_rounds": stats.rounds - stats.full - stats.none,
        "zero_accept_rounds": stats.none,
    }


def lookups_of(stats: SpeculationStats) -> dict[str, int]:
    """The counts of drafts that were found in the sequence."""
    return {
        "ngram_lookup_hits": stats.rounds,
        "ngram_lookup_misses": stats.misses,
        "ngram_lookup_tokens_proposed": stats.proposed,
    }


def quotients_of(stats: SpeculationStats) -> dict[str, float]:
    """The quotients of the counts. Times are those of the last steps."""
    plain, drafted = stats.plain_step_ms or 0.0, stats.drafted_step_ms or 0.0
    return {
        "total_draft_ms": stats.drafting_ms,
        "avg_draft_ms_per_token": stats.drafting_ms / stats.proposed if stats.proposed else 0.0,
        "acceptance_rate": stats.acceptance,
        "avg_draft_tokens_per_round": stats.proposed / stats.rounds if stats.rounds else 0.0,
        "mean_emitted_tokens_per_round": stats.tokens_per_step,
        "expected_tokens_per_round": stats.tokens_per_step,
        "avg_target_ms_per_round": drafted,
        "target_baseline_ms_per_token": plain,
        "target_overhead_ratio": drafted / plain - 1.0 if plain and drafted else 0.0,
        "estimated_speedup": stats.speedup,
    }
