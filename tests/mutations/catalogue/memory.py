"""Faults in spans, copies, pools, the ledger and the operations of devices."""

from __future__ import annotations

from ..mutation import Mutation, unit

__all__ = ["MEMORY"]

MEMORY = (
    Mutation(
        "loading.probe",
        "py_src/capstan/device/webgpu/loading.py",
        "    coming = asyncio.ensure_future(weights_of(",
        "    await probing\n    coming = asyncio.ensure_future(weights_of(",
        "weights wait for the first probe of an adapter",
        unit("load_order::test_weights_do_not_wait_for_the_probe_and_sessions_do"),
    ),
    Mutation(
        "loading.leases_kept",
        "py_src/capstan/device/webgpu/loading.py",
        """            held.release()
        raise
    return leases, contents""",
        """            pass
        raise
    return leases, contents""",
        "a load that fails leaves the weights of the data files before",
        unit("large_models::test_memory_that_ends_between_two_data_files_leaves_nothing_and_a_second_load_works"),
    ),
    Mutation(
        "model_memory.unfit_is_loaded",
        "py_src/capstan/device/model_memory.py",
        "            self.fit(1, length).require()\n",
        "            pass\n",
        "a model that cannot fit is read before that is told",
        unit("large_models::test_a_model_that_does_not_fit_is_refused_before_a_byte_of_it_is_read"),
    ),
    Mutation(
        "model_memory.no_smaller_caches",
        "py_src/capstan/device/model_memory.py",
        """replace(self, description=self.description.with_cache_bits(bits))""",
        """self""",
        "the lengths that smaller caches allow are not told",
        unit("large_models::test_caches_that_do_not_fit_are_told_with_the_longest_that_do"),
    ),
    Mutation(
        "quantized_caches.scale_forgotten",
        "py_src/capstan/graph/quantized_caches.py",
        "(pair.head_size * element_bits - SCALE_BITS) // before",
        "pair.head_size * element_bits // before",
        "the scale of a quantized row counts as elements where caches of fewer bits are told",
        unit(
            "quantized_caches::test_caches_of_8_bits_could_have_4",
            "large_models::test_from_8_bits_on_4_are_told",
        ),
    ),
    Mutation(
        "fit.tight",
        "py_src/capstan/memory/fit.py",
        "if not 0 < self.machine < MOST_TOLD or",
        "if not 0 < self.machine or",
        "a large machine, of which browsers tell 8 GiB, is taken for a small one",
        unit("memory_fit::test_a_small_machine_is_told_although_no_limit_is_broken"),
    ),
    Mutation(
        "pools.alike",
        "py_src/capstan/memory/pools.py",
        "alike = {(entry.location, entry.pieces): entry for",
        "alike = {(entry.location, entry.name): entry for",
        "weights that are one buffer count twice",
        unit("memory_fit::test_weights_of_the_same_bytes_are_one_buffer"),
    ),
    Mutation(
        "span.meets",
        "py_src/capstan/memory/span.py",
        "return self.buffer is other.buffer and first < last",
        "return self.buffer is other.buffer and first <= last",
        "neighbouring spans count as overlapping",
        unit("memory_given::test_a_tensor_that_is_bound_starts_its_own_buffer"),
    ),
    Mutation(
        "span.sub",
        "py_src/capstan/memory/span.py",
        "return DeviceSpan(self.buffer, self.offset + offset, length)",
        "return DeviceSpan(self.buffer, offset, length)",
        "a part of a span is counted from the start of the buffer",
        unit("memory_given::test_tensors_that_are_not_bound_may_share_a_buffer"),
    ),
    Mutation(
        "span.held",
        "py_src/capstan/memory/span.py",
        "        if self._closed and self._holders == 0 and self._free is not None:",
        "        if self._closed and self._free is not None:",
        "a buffer is freed while a generator holds it",
        unit("memory_given::test_a_loan_keeps_a_closed_buffer_until_its_end"),
    ),
    Mutation(
        "copies.overlap",
        "py_src/capstan/memory/copies.py",
        "and not overlap(last[1], source):",
        ":",
        "copies are joined although the second reads what the first one wrote",
        unit("memory_copies::test_what_a_copy_has_written_is_not_merged_away"),
    ),
    Mutation(
        "pools.pack_alignment",
        "py_src/capstan/memory/pools.py",
        "offsets[item.name] = round_up(end, max(alignment, item.alignment))",
        "offsets[item.name] = round_up(end, item.alignment)",
        "parts of one buffer begin where no kernel may bind them",
        unit("memory_pools::test_packed_tensors_never_overlap_and_waste_less_than_an_alignment_each"),
    ),
    Mutation(
        "pools.mask_bytes",
        "py_src/capstan/device/run_inputs.py",
        "length = AFTER if self.about.growing else self.room.capacity",
        "length = AFTER if self.about.growing else self.room.chunk",
        "the mask has room for a prompt's part only",
        unit("memory_pools::test_a_sequence_holds_its_cache_its_io_and_what_the_sampler_carries"),
    ),
    Mutation(
        "fit.budget",
        "py_src/capstan/memory/fit.py",
        "if budget is not None and need.total.bytes > budget:",
        "if budget is not None and need.persistent.bytes > budget:",
        "a budget is compared with the caches alone",
        unit("memory_fit::test_a_batch_that_does_not_fit_at_length_one_is_too_large"),
    ),
    Mutation(
        "given.shared_scratch",
        "py_src/capstan/memory/given.py",
        'if loan.shared and item.pool == "scratch":',
        "if loan.shared:",
        "scratch of one generator is given to another as its cache",
        unit("memory_given::test_scratch_is_shared_as_scratch_only"),
    ),
    Mutation(
        "bookkeeping.key",
        "py_src/capstan/memory/bookkeeping.py",
        "key = max(accounts, default=0) + 1",
        "key = len(accounts) + 1",
        "a new account of the ledger takes the place of another one",
        unit("bookkeeping::test_an_account_is_listed_until_it_ends_and_takes_no_other_ones_place"),
    ),
    Mutation(
        "casts.ties",
        "py_src/capstan/device/casts.py",
        "return sign | rebiased + 0xFFF + (rebiased >> 13 & 1) >> 13",
        "return sign | rebiased + 0x1000 >> 13",
        "a float32 halfway between two float16 is rounded up, not to even",
        unit("host_memory::test_casts_are_numpys_where_it_defines_them"),
    ),
    Mutation(
        "host_memory.mask",
        "py_src/capstan/device/host_memory.py",
        "first, last = sorted((before, after))",
        "first, last = before, after",
        "a mask that shrinks is left as it was",
        unit("host_memory::test_a_mask_grows_and_shrinks_row_by_row_and_touches_only_what_changes"),
    ),
    Mutation(
        "snapshots.later",
        "py_src/capstan/device/snapshots.py",
        "self.taken = {slot: place for slot, place in self.taken.items() if place <= position}",
        "self.taken = dict(self.taken)",
        "snapshots of a sequence that was cut are used for other tokens",
        unit("snapshots::test_whatever_was_run_ahead_the_state_is_that_of_the_tokens_before_it"),
    ),
    Mutation(
        "separate_rows.leak",
        "py_src/capstan/device/separate_rows.py",
        """        for each in made:
            await each.close()
        # The decoder""",
        "        # The decoder",
        "the rows made before one that fails keep their buffers",
        unit("rows::test_more_rows_than_there_is_memory_for_are_refused_and_none_is_kept"),
    ),
    Mutation(
        "separate_rows.heirs",
        "py_src/capstan/device/separate_rows.py",
        "if options is not None and not options.greedy and self.decoders[row] is not old[row]:",
        "if options is not None and options.greedy and self.decoders[row] is not old[row]:",
        "a row that moved to another decoder draws as the row before",
        unit("separate_rows"),
    ),
)
