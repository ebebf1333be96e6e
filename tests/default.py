"""The tests that `python3 build.py test` runs: all unit tests but those of LEFT_OUT, and the browser tests of SMOKE.
`--all` runs the others, too. CONTRIBUTING.md says how they were chosen."""

from __future__ import annotations

__all__ = ["has_default", "is_default"]

SMOKE: frozenset[str] = frozenset(
    {
        "attention::test_caches_of_8_bits",
        "attention::test_lengths_where_a_split_takes_several_blocks",
        "attention::test_prepared_queries_over_caches_of_4_bits",
        "attention::test_results_and_caches",
        "attention_nodes::test_what_no_rule_forbids_is_computed_and_what_one_forbids_is_not",
        "bad_input::test_a_broken_model_folder_is_refused",
        "batches::test_shortlists_are_the_definitions",
        "chat::test_a_conversation_has_the_oracles_ids_and_keeps_what_was_computed",
        "chat_element::test_a_model_answers_what_the_turns_say_also_where_the_page_changed_one",
        "chat_element::test_escape_stops_an_answer_and_what_a_page_brings_goes_with_its_turn",
        "choices",
        "client::test_of_an_expected_file_of_a_hub_its_repository_is_opened",
        "compare",
        "counters::test_a_run_to_max_length_creates_and_writes_nothing",
        "demo::test_a_run_streams_text_and_tells_how_it_was_computed",
        "documented_typescript::test_every_public_name_is_in_an_example",
        "expert_nodes::test_experts_of_one_row_are_computed",
        "fallbacks::test_an_uncapturable_graph_runs_eagerly_and_the_note_names_the_node",
        "faults::test_a_fault_in_the_middle_of_a_burst_is_typed_and_a_new_load_works",
        "few_rows::test_rows_are_normalised",
        "few_rows::test_subgroup_matrices_multiply_weights_in_every_form",
        "few_rows::test_weights_in_every_form_and_what_is_behind_them",
        "generate::test_a_run_across_the_lengths_where_kernels_change_is_the_oracles",
        "gguf::test_steps_over_affine_types_are_fused_as_those_over_others",
        "gguf::test_the_cpu_picks_the_definition_s_ids",
        "gguf::test_weights_that_are_too_large_for_the_cpu_are_not_read",
        "gguf_places::test_a_repository_of_gguf_files_lists_them",
        "gguf_places::test_nothing_is_kept_of_files_that_are_no_models",
        "held_submit",
        "hub::test_the_address_of_a_repositorys_page_is_told_from_a_folder",
        "interleaved::test_generators_side_by_side_pick_what_each_picks_alone",
        "life::test_requests_are_rejected_when_a_worker_dies_and_the_next_is_answered",
        "load_files::test_a_file_that_is_not_there_is_named",
        "lookup::test_rows_are_those_of_the_ids",
        "lora::test_a_lost_device_is_told_and_model_and_adapter_can_be_loaded_again",
        "markdown::test_a_block_that_grows_keeps_the_focus_and_copies_all_of_it",
        "markdown::test_a_completion_is_plain",
        "markdown::test_html_of_an_answer_is_shown_as_text",
        "markdown::test_nothing_of_an_answer_becomes_more_than_known_elements",
        "markdown::test_what_is_half_written_looks_whole",
        "matmul::test_products_that_end_within_a_tile",
        "matmul_matrices::test_products_that_end_within_a_tile",
        "matvec::test_what_surrounds_the_product",
        "matvec_dense::test_the_shapes_of_models_as_they_are_tuned",
        "moved::test_words_are_copied",
        "policies::test_a_sandboxed_frame_needs_its_origin",
        "policies::test_the_package_of_the_page_itself_needs_no_more_than_webassembly",
        "prefill_attention::test_attention_of_runs_that_end_anywhere",
        "prefill_pace::test_runs_are_halved_over_the_bound_and_the_ids_are_the_oracles",
        "prefix_cache::test_ids_are_the_oracles",
        "repositories::test_ids_are_those_of_the_genai_folder",
        "rewind::test_rewinding_back_across_64_is_the_oracles",
        "sampled::test_the_same_seed_gives_the_same_ids_whatever_the_run_ahead",
        "sampler::test_every_buffer_follows_the_state_layout",
        "sampler::test_of_a_drafted_step_the_state_after_its_last_pick_is_left",
        "sampler::test_stages_follow_the_picks_of_a_burst",
        "sampler::test_the_ids_equal_the_reference_samplers",
        "speculation::test_drafts_of_a_model_are_verified_in_the_same_submit",
        "saved_state::test_ids_are_those_of_an_unbroken_sequence",
        "scoring::test_runs_from_a_tape_reach_back_into_the_context",
        "session_weights::test_a_short_file_is_refused_before_it_is_fetched",
        "shapes::test_a_step_of_another_shape_is_fused",
        "span_kernels::test_a_span_larger_than_may_be_bound_or_stashed_at_once_goes_in_pieces",
        "span_kernels::test_casts_are_host_memorys_bit_for_bit",
        "span_kernels::test_masks_of_any_batch_grow_and_shrink_and_keep_what_does_not_change",
        "span_kernels::test_rows_of_a_mask_share_a_dispatch_unless_they_share_a_word",
        "states",
        "state_nodes::test_a_state_and_what_comes_of_it_are_computed",
        "stop::test_an_end_in_the_middle_of_a_burst_then_more_tokens_is_the_oracles",
        "tape::test_a_tape_step_is_an_eager_step_for_every_fixture[nano-copies-8]",
        "unfit::test_a_soft_cap_is_computed_on_every_device",
        "weight_store::test_a_large_file_is_hashed_in_a_worker_of_its_own",
        "weight_store::test_a_server_that_is_busy_is_asked_again_when_it_says",
        "weight_store::test_another_range_than_was_asked_for_is_an_error_and_nothing_of_it_is_stored",
        "weight_store::test_weights_around_2_and_4_gib_are_asked_for_by_their_ranges",
        "weight_store::test_weights_at_any_offset_arrive_whole",
    }
)
"""Files of tests/browser, or tests as FILE::TEST or FILE::TEST[CASE]; a file's name is without `test_` and `.py`."""
LEFT_OUT: frozenset[str] = frozenset(
    {
        "bench",
        "chat_model::test_a_file_that_is_not_whole_is_fetched_again",
        "chat_model::test_a_full_disk_is_told_with_the_room_that_is_needed",
        "chat_model::test_a_package_index_without_the_wheel_leaves_the_bundled_model",
        "chat_model::test_the_file_is_fetched_once_and_its_size_is_told_first",
        "chat_model::test_without_a_network_the_systems_words_are_the_reason",
        "documents::test_each_test_that_reliability_names_is_there",
        "embeddings::test_what_is_embedded_must_be_texts",
        "evaluation::test_browsers_that_die_are_replaced_on_one_machine_and_in_a_cluster",
        "extended::test_one_case_in_n_runs_by_default",
        "fleet::TestFleet::test_a_batch_for_workers_that_are_gone_goes_to_others",
        "fleet::TestFleet::test_workers_that_cannot_answer_are_left_and_without_others_the_reasons_are_told",
        "fleet::TestFleet::test_workers_that_could_not_answer_are_asked_again_after_a_rest",
        "fusions::TestWhateverTheBuffers::test_recycled_at_random",
        "fusions::test_a_fused_step_leaves_what_the_recorded_step_leaves",
        "graph_pipeline::test_only_the_list_runs_passes",
        "guidance_matching::test_outputs_of_random_models_fit",
        "guidance_matching::test_unicode_categories_mean_what_unicodedata_says",
        "large_models::test_a_load_for_a_length_takes_its_caches_apart",
        "large_models::test_caches_that_do_not_fit_are_told_with_the_longest_that_do",
        "large_models::test_from_8_bits_on_4_are_told",
        "large_models::test_it_is_read_in_parts_and_its_offsets_are_beyond_4_gib",
        "large_models::test_the_lengths_of_smaller_caches_are_those_of_a_load_with_them",
        "long_rope::TestForms::test_tables_behind_one_another_give_the_same",
        "map",
        "mutations::test_a_fault_that_no_test_finds_is_told",
        "not_finite::test_a_sound_model_has_none",
        "public_names::test_every_module_imports_on_cpython_and_names_what_is_public[capstan_host.evaluation.task_data]",
        "sampling::test_draws_follow_the_softmax",
        "sampling::test_only_and_all_tokens_of_the_plain_definition_can_be_drawn",
        "second_compiler",
        "testing::test_the_report_ends_with_the_reason_for_a_run_on_the_cpu",
        "webgpu_model::test_wherever_it_ends_given_buffers_are_let_go_and_serve_again",
    }
)
"""Files and tests of tests/unit, named likewise."""


def is_default(nodeid: str) -> bool:
    """Whether the default runs this test, which is not extended."""
    names = _names(nodeid)
    return not names & LEFT_OUT if nodeid.startswith("tests/unit/") else bool(names & SMOKE)


def has_default(file: str) -> bool:
    """Whether the default runs a test of this file, a path below the repository's root."""
    (name,) = _names(file)
    if file.startswith("tests/unit/"):
        return name not in LEFT_OUT
    return any(test.partition("::")[0] == name for test in SMOKE)


def _names(nodeid: str) -> set[str]:
    """The short names of a test's file, of the test, and of its case."""
    file, colons, test = nodeid.rpartition("/")[2].partition("::")
    name = file.removeprefix("test_").removesuffix(".py")
    return {name, f"{name}{colons}{test.partition('[')[0]}", f"{name}{colons}{test}"}
