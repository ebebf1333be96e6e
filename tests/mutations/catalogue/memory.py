"""Faults in spans, copies, pools, the ledger and the operations of devices."""

from __future__ import annotations

from ..mutation import Mutation, unit

__all__ = ["MEMORY"]

MEMORY = (
    Mutation(
        "span.meets",
        "py_src/capstan/memory/span.py",
        "return self.buffer is other.buffer and first < last",
        "return self.buffer is other.buffer and first <= last",
        "neighbouring spans count as overlapping",
        unit("memory_given", "memory_copies"),
    ),
    Mutation(
        "span.sub",
        "py_src/capstan/memory/span.py",
        "return DeviceSpan(self.buffer, self.offset + offset, length)",
        "return DeviceSpan(self.buffer, offset, length)",
        "a part of a span is counted from the start of the buffer",
        unit("memory_given"),
    ),
    Mutation(
        "span.held",
        "py_src/capstan/memory/span.py",
        "        if self._closed and self._holders == 0 and self._free is not None:",
        "        if self._closed and self._free is not None:",
        "a buffer is freed while a generator holds it",
        unit("memory_given", "host_memory"),
    ),
    Mutation(
        "copies.overlap",
        "py_src/capstan/memory/copies.py",
        "and not overlap(last[1], source):",
        ":",
        "copies are joined although the second reads what the first one wrote",
        unit("memory_copies"),
    ),
    Mutation(
        "pools.pack_alignment",
        "py_src/capstan/memory/pools.py",
        "offsets[item.name] = round_up(end, max(alignment, item.alignment))",
        "offsets[item.name] = round_up(end, item.alignment)",
        "parts of one buffer begin where no kernel may bind them",
        unit("memory_pools"),
    ),
    Mutation(
        "pools.mask_bytes",
        "py_src/capstan/memory/pools.py",
        'item("mask", "io", capacity * BYTES[about.mask_dtype]),',
        'item("mask", "io", chunk * BYTES[about.mask_dtype]),',
        "the mask has room for a prompt's part only",
        unit("memory_pools"),
    ),
    Mutation(
        "fit.budget",
        "py_src/capstan/memory/fit.py",
        "if budget is not None and need.total.bytes > budget:",
        "if budget is not None and need.persistent.bytes > budget:",
        "a budget is compared with the caches alone",
        unit("memory_fit"),
    ),
    Mutation(
        "given.shared_scratch",
        "py_src/capstan/memory/given.py",
        'if loan.shared and item.pool == "scratch":',
        "if loan.shared:",
        "scratch of one generator is given to another as its cache",
        unit("memory_given", "memory_pools"),
    ),
    Mutation(
        "bookkeeping.key",
        "py_src/capstan/memory/bookkeeping.py",
        "key = max(accounts, default=0) + 1",
        "key = len(accounts) + 1",
        "a new account of the ledger takes the place of another one",
        unit("bookkeeping"),
    ),
    Mutation(
        "casts.ties",
        "py_src/capstan/device/casts.py",
        "return sign | rebiased + 0xFFF + (rebiased >> 13 & 1) >> 13",
        "return sign | rebiased + 0x1000 >> 13",
        "a float32 halfway between two float16 is rounded up, not to even",
        unit("host_memory"),
    ),
    Mutation(
        "host_memory.mask",
        "py_src/capstan/device/host_memory.py",
        "first, last = sorted((before, after))",
        "first, last = before, after",
        "a mask that shrinks is left as it was",
        unit("host_memory"),
    ),
    Mutation(
        "snapshots.later",
        "py_src/capstan/device/snapshots.py",
        "self.taken = {slot: place for slot, place in self.taken.items() if place <= position}",
        "self.taken = dict(self.taken)",
        "snapshots of a sequence that was cut are used for other tokens",
        unit("snapshots"),
    ),
    Mutation(
        "separate_rows.leak",
        "py_src/capstan/device/separate_rows.py",
        """        for decoder in made:
            await decoder.close()
        # The decoder""",
        "        # The decoder",
        "the rows made before one that fails keep their buffers",
        unit("rows", "genai"),
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
