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
        unit("web_api") + browser("life"),
    ),
    Mutation(
        "client.cancel_of_nothing",
        "web/src/client.ts",
        'const stops = request.kind === "cancel" ? this.running() : null;',
        "const stops = null;",
        "a cancel names no request, so that nothing sees that it ends",
        unit("web_api") + browser("life"),
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
        unit("fused_step", "gemv_joins", "few_rows"),
    ),
    Mutation(
        "life.let_go",
        "web/src/life.ts",
        "return new Promise(() => {});",
        "return Promise.resolve();",
        "a worker gives its lock back at once, as if it had ended",
        browser("life"),
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
        "player.pass_state",
        "web/src/gpu/player.ts",
        """      step.endPass();
      pipeline = null;
      groups = [];
      action();""",
        """      step.endPass();
      groups = [];
      action();""",
        "a pass behind a copy begins without a pipeline",
        browser("tape"),
    ),
    Mutation(
        "player.private_write",
        "web/src/gpu/player.ts",
        """      info.onWrite.add(overwritten);
""",
        "",
        "a tape goes on although its private buffer was overwritten",
        browser("tape", "faults"),
    ),
    Mutation(
        "ring.not_given_back",
        "web/src/gpu/ring.ts",
        """    this.free.push(staging);
""",
        "",
        "a burst's staging buffer is never free again",
        browser("rewind"),
    ),
    Mutation(
        "weights.unread",
        "web/src/gpu/weights.ts",
        "if (!filled(read, bytes, start + done)) return done;",
        "filled(read, bytes, start + done);",
        "bytes that could not be read are uploaded as zeros",
        browser("weight_store"),
    ),
    Mutation(
        "tapes.length_of_steps",
        "web/src/tapes.ts",
        "played.encode(step, valid++);",
        "played.encode(step, valid);",
        "the steps of a burst all see the length of the first",
        browser("tape", "generate"),
    ),
    Mutation(
        "source.other_range",
        "web/src/storage/source.ts",
        "if (!right) throw this.otherRange(response, start, end);",
        "if (right === null) throw this.otherRange(response, start, end);",
        "another range than was asked for is taken",
        browser("weight_store"),
    ),
    Mutation(
        "network.busy",
        "web/src/storage/network.ts",
        "const TRANSIENT = [408, 425, 429, 500, 502, 503, 504];",
        "const TRANSIENT = [408, 425, 500, 502, 504];",
        "a busy server is not asked again",
        browser("weight_store"),
    ),
    Mutation(
        "opfs.place",
        "web/src/storage/opfs.ts",
        "{ at: start + done }",
        "{ at: done }",
        "each stored shard is written over the first one",
        browser("weight_store"),
    ),
    Mutation(
        "cache.prefix",
        "web/src/storage/cache.ts",
        'request.url.startsWith(own + "/")',
        "request.url.startsWith(own)",
        "files whose names begin alike are removed, too",
        browser("weight_store"),
    ),
)
