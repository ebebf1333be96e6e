"""Faults in the page's side: the client, the API, storage, and what drives the GPU."""

from __future__ import annotations

from ..mutation import Mutation, browser, unit

__all__ = ["PAGE"]

PAGE = (
    Mutation(
        "options.greedy",
        "web/src/options.ts",
        'if (run.temperature === 0) given["do_sample"] = false;',
        'if (run.temperature === 0) given["do_sample"] = true;',
        "a temperature of 0 draws tokens",
        unit("web_api"),
    ),
    Mutation(
        "options.two_grammars",
        "web/src/options.ts",
        "if (given.length > 1) throw refused",
        "if (given.length > 2) throw refused",
        "of two grammars the second one is ignored",
        unit("web_api"),
    ),
    Mutation(
        "run.next_too_early",
        "web/src/run.ts",
        "void reply.then(turn.end, turn.end);",
        "turn.end();",
        "the next run is sent while the worker computes an aborted one",
        unit("web_api"),
    ),
    Mutation(
        "run.listener_left",
        "web/src/run.ts",
        """      signal?.removeEventListener("abort", abort);
""",
        "",
        "a run that has ended still listens to the signal of its caller",
        unit("web_api"),
    ),
    Mutation(
        "capstan.failed_load",
        "web/src/capstan.ts",
        """    } catch (error) {
      client.close();
      signal?.throwIfAborted();
      throw asCapstanError(error);""",
        """    } catch (error) {
      signal?.throwIfAborted();
      throw asCapstanError(error);""",
        "a load that fails leaves its worker",
        unit("web_api"),
    ),
    Mutation(
        "client.kept_requests",
        "web/src/client.ts",
        """    for (const [id, { request, stops }] of this.pending) this.post({ tag: "request", id, request, stops });
""",
        "",
        "requests that came while a worker booted are never sent",
        browser("life::test_requests_are_rejected_when_a_worker_dies_and_the_next_is_answered"),
    ),
    Mutation(
        "client.cancel_of_nothing",
        "web/src/client.ts",
        'const stops = request.kind === "cancel" ? this.running() : null;',
        "const stops = null;",
        "a cancel names no request, so that nothing sees that it ends",
        browser("life::test_a_busy_worker_lives_until_a_cancel_is_not_obeyed"),
    ),
    Mutation(
        "completions.tokens",
        "web/src/completions.ts",
        "total_tokens: prompt_tokens + completion_tokens,",
        "total_tokens: prompt_tokens,",
        "the tokens in all are those of the prompt",
        unit("web_api"),
    ),
    Mutation(
        "tool_calls.split",
        "web/src/tool_calls.ts",
        "const free = this.held.length - beginning(this.held, OPEN);",
        "const free = this.held.length;",
        "a call whose mark comes in parts stays in the text",
        unit("web_api"),
    ),
    Mutation(
        "ai.cached",
        "web/src/ai.ts",
        "const noCache = total === undefined ? undefined : total - (cacheRead ?? 0);",
        "const noCache = total;",
        "tokens of the cache count twice",
        unit("web_api"),
    ),
    Mutation(
        "wgsl.nested",
        "web/src/gpu/wgsl.ts",
        'if (word === "else") active = innermost.outer && !innermost.taken;',
        'if (word === "else") active = !innermost.taken;',
        "an #else counts inside of an #if that does not",
        unit("templates"),
    ),
    Mutation(
        "wgsl.missing",
        "web/src/gpu/wgsl.ts",
        "const missing = declared.filter((name) => !given.includes(name));",
        "const missing: string[] = [];",
        "an operation may lack any binding",
        unit("templates"),
    ),
    Mutation(
        "life.let_go",
        "web/src/life.ts",
        "return new Promise(() => {});",
        "return Promise.resolve();",
        "a worker gives its lock back at once, as if it had ended",
        browser("life::test_requests_are_rejected_when_a_worker_dies_and_the_next_is_answered"),
    ),
    Mutation(
        "held_submit.order",
        "web/src/gpu/held_submit.ts",
        "this.send([...this.taken(), ...commands]);",
        "this.send([...commands, ...this.taken()]);",
        "copies run before the run whose results they take",
        browser("held_submit::test_what_is_held_back_is_submitted_before_what_follows_it"),
    ),
    Mutation(
        "staging.mapped_at",
        "web/src/gpu/staging.ts",
        "region.from = Math.min(region.from, offset - (offset % MAP_GRAIN));",
        "region.from = Math.min(region.from, offset - (offset % GRAIN));",
        "a map begins where WebGPU allows none",
        browser("held_submit::test_parts_of_any_alignment_come_by_one_submit_and_one_map"),
    ),
    Mutation(
        "staging.kept",
        "web/src/gpu/staging.ts",
        "      this.free = staging;",
        "      this.free ??= staging;",
        "a readback forgets the larger buffer that it should keep",
        browser("held_submit"),
    ),
    Mutation(
        "span_plan.direction",
        "web/src/gpu/span_plan.ts",
        "if (destination.offset > source.offset) starts.reverse();",
        "if (destination.offset < source.offset) starts.reverse();",
        "a copy within a buffer overwrites what is yet to be read",
        browser("span_kernels::test_a_span_larger_than_may_be_bound_or_stashed_at_once_goes_in_pieces"),
    ),
    Mutation(
        "span_plan.shared_word",
        "web/src/gpu/span_plan.ts",
        "const touches = !aligned(offset) && first &&",
        "const touches = aligned(offset) && first &&",
        "rows of a mask that share a word are written by one dispatch",
        browser("span_kernels::test_rows_of_a_mask_share_a_dispatch_unless_they_share_a_word"),
    ),
    Mutation(
        "sampler.row_memory",
        "web/src/gpu/sampler.ts",
        "this.write(this.memory, words, (this.memoryTable + row * rowWords) * 4);",
        "this.write(this.memory, words, (this.memoryTable + row) * 4);",
        "the sequence of a row is written over that of another one",
        browser("sampler::test_stages_follow_the_picks_of_a_burst"),
    ),
    Mutation(
        "sampler.rounds",
        "web/src/gpu/sampler.ts",
        "{ buffer: this.roundIndices, offset: round * stride, size: 16 }",
        "{ buffer: this.roundIndices, offset: 0, size: 16 }",
        "every round of a cut counts the same bits",
        browser("sampler::test_the_ids_equal_the_reference_samplers"),
    ),
    Mutation(
        "sampler.stale_pipeline",
        "web/src/gpu/sampler_program.ts",
        "const key = `${kernel} ${stages}`;",
        "const key = `${kernel}`;",
        "a sampler with other stages runs the text of the stages before",
        browser("sampler::test_stages_follow_the_picks_of_a_burst"),
    ),
    Mutation(
        "player.open_pass",
        "web/src/gpu/player.ts",
        """      step.endPass();
      pipeline = null;
      groups = [];
      action();""",
        """      pipeline = null;
      groups = [];
      action();""",
        "a copy is encoded inside an open pass",
        browser("tape::test_a_tape_step_is_an_eager_step_for_every_fixture"),
    ),
    Mutation(
        "player.destroyed",
        "web/src/gpu/player.ts",
        "      info.onDestroy.add(destroyed);\n",
        "",
        "a tape goes on over buffers that were destroyed",
        browser("faults::test_a_fault_in_the_middle_of_a_burst_is_typed_and_a_new_load_works"),
    ),
    Mutation(
        "ring.not_given_back",
        "web/src/gpu/ring.ts",
        """    this.free.push(staging);
""",
        "",
        "a burst's staging buffer is never free again",
        browser("rewind::test_rewinding_back_across_64_is_the_oracles"),
    ),
    Mutation(
        "weights.held_bytes",
        "web/src/gpu/weights.ts",
        "    this.written += 4;\n",
        "",
        "what follows a word that was put together is written over it",
        browser("weight_store::test_weights_at_any_offset_arrive_whole"),
    ),
    Mutation(
        "tapes.length_of_steps",
        "web/src/tapes.ts",
        "played.encode(step, valid++);",
        "played.encode(step, valid);",
        "the steps of a burst all see the length of the first",
        browser("generate::test_a_run_across_the_lengths_where_kernels_change_is_the_oracles"),
    ),
    Mutation(
        "source.other_range",
        "web/src/storage/source.ts",
        "if (!right) throw this.otherRange(response, start, end);",
        "if (right === null) throw this.otherRange(response, start, end);",
        "another range than was asked for is taken",
        browser("weight_store::test_another_range_than_was_asked_for_is_an_error_and_nothing_of_it_is_stored"),
    ),
    Mutation(
        "network.busy",
        "web/src/storage/network.ts",
        "const TRANSIENT = [408, 425, 429, 500, 502, 503, 504];",
        "const TRANSIENT = [408, 425, 500, 502, 504];",
        "a busy server is not asked again",
        browser("weight_store::test_a_server_that_is_busy_is_asked_again_when_it_says"),
    ),
    Mutation(
        "opfs.place",
        "web/src/storage/opfs.ts",
        "{ at: start + done }",
        "{ at: done }",
        "each stored shard is written over the first one",
        browser("weight_store::test_the_first_load_stores_the_weights_and_later_ones_fetch_none"),
    ),
    Mutation(
        "cache.last_shard",
        "web/src/storage/cache.ts",
        "const last = Math.max(0, Math.ceil(size / shardSize) - 1);",
        "const last = Math.ceil(size / shardSize);",
        "the last shard of a file in the Cache API is looked for behind the end",
        browser("weight_store::test_without_a_private_file_system_the_cache_keeps_the_weights"),
    ),
    Mutation(
        "chat.put_back",
        "web/src/chat.ts",
        """          this.put(...gone.splice(0));
""",
        "",
        "an answer that fails takes along the turns that it was to replace",
        browser("chat_element::test_a_failure_before_the_first_word_changes_nothing_and_a_later_one_keeps_the_words"),
    ),
    Mutation(
        "chat_model.changed",
        "web/src/chat_model.ts",
        "if (this.session && JSON.stringify(kept) === JSON.stringify(before))",
        "if (this.session && kept)",
        "the model does not hear of an answer that the page changed",
        browser("chat_element::test_a_model_answers_what_the_turns_say_also_where_the_page_changed_one"),
    ),
    Mutation(
        "chat_turn.brought",
        "web/src/chat_turn.ts",
        "for (const root of [this.element, ...this.brought]) disable(root, on);",
        "disable(this.element, on);",
        "a button that the page brought into a turn works while an answer comes",
        browser("chat_element::test_escape_stops_an_answer_and_what_a_page_brings_goes_with_its_turn"),
    ),
)
