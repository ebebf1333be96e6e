"""Faults in the store of weights, their digests and their sharing."""

from __future__ import annotations

from ..mutation import Mutation, browser, unit

__all__ = ["WEIGHTS"]

WEIGHTS = (
    Mutation(
        "load.journal_first",
        "web/src/storage/load.ts",
        """await this.wait("store", () => this.file!.write(chunk, at, length));
      this.unnoted += JSON.stringify([shard, digest]) + "\\n";
""",
        """this.unnoted += JSON.stringify([shard, digest]) + "\\n";
      await this.note();
      await this.wait("store", () => this.file!.write(chunk, at, length));
""",
        "the journal names a shard before its bytes are written",
        unit("weight_file::test_records_are_written_after_the_data_and_the_source_last"),
    ),
    Mutation(
        "load.journal_by_shards",
        "web/src/storage/load.ts",
        "setInterval(() => this.note(), JOURNAL_MS);",
        "setInterval(() => undefined, JOURNAL_MS);",
        "the journal is written at the end of a load alone",
        unit("weight_file::test_a_page_that_ends_while_nothing_comes_keeps_what_came"),
    ),
    Mutation(
        "load.clock_goes_on",
        "web/src/storage/load.ts",
        "      clearInterval(clock);\n",
        "",
        "the clock of the journal outlives the load",
        unit("weight_file::test_the_first_load_fetches_each_byte_once_and_the_second_none"),
    ),
    Mutation(
        "load.unchecked",
        "web/src/storage/load.ts",
        "if (expected && digest !== expected) {",
        "if (expected && digest !== expected && plan.alone) {",
        "a shard that was spoilt on the way is taken from the stream",
        unit("weight_file::test_a_shard_that_is_spoilt_on_the_way_is_fetched_again_alone"),
    ),
    Mutation(
        "load.request_over_stored",
        "web/src/storage/load.ts",
        "plan.stored.find((one) => one > shard)",
        "plan.stored.find((one) => one > shard && plan.alone)",
        "a request asks for shards that are stored",
        unit("weight_file::test_one_request_is_made_for_a_run_of_missing_shards"),
    ),
    Mutation(
        "store.record_first",
        "py_src/capstan/weights/store.py",
        """        await self._unrecord(backing, f"{identity.key}{DATA}")
        await backing.write_text(self.journal_of(identity), Journal(""",
        """        await backing.write_text(self.journal_of(identity), Journal(""",
        "a record calls a data file complete while it is written anew",
        unit("weight_file::test_a_stored_file_that_lost_bytes_is_downloaded_again"),
    ),
    Mutation(
        "store.other_version",
        "py_src/capstan/weights/store.py",
        "if source.identity == identity else None",
        "if source.identity.name == identity.name else None",
        "stored weights are used although the source has changed since",
        unit("weight_file::test_a_changed_source_is_loaded_anew_told_and_takes_the_place_of_the_old"),
    ),
    Mutation(
        "records.unsealed",
        "py_src/capstan/weights/records.py",
        "return tree if seal is None or seal == digest(json.dumps(tree)) else None",
        "return tree",
        "a record that was changed in storage is taken",
        unit("weight_file::test_a_damaged_record_is_told_counted_and_rewritten"),
    ),
    Mutation(
        "records.untold",
        "py_src/capstan/weights/store.py",
        "if before is not None and UploadNote.is_damaged(before):",
        "if before is None:",
        "a damaged note about an upload is not told",
        unit("weight_file::test_a_damaged_record_is_told_counted_and_rewritten"),
    ),
    Mutation(
        "opfs.empty",
        "web/src/storage/opfs.ts",
        ".text()) || null;",
        ".text());",
        "an empty file that a closed page left is a damaged note",
        browser("start_faults::test_a_page_closed_at_a_stage_leaves_nothing_that_the_next_one_trips_over"),
    ),
    Mutation(
        "opfs.collected",
        "web/src/storage/in_use.ts",
        "const held = { handle };",
        "const held = { handle: {} };",
        "a file handle is collected while a call of it is under way",
        unit("web_api::test_suite_in_node"),
    ),
    Mutation(
        "opfs.left_empty",
        "web/src/storage/opfs.ts",
        "if (size === 0) await using",
        "if (size < 0) await using",
        "a file that could not be begun is left empty",
        browser("start_faults::test_storage_that_refuses_is_told_and_the_model_answers"),
    ),
    Mutation(
        "opfs.refused_untold",
        "web/src/storage/opfs.ts",
        "      refused(reason(error));\n",
        "",
        "a private file system that the browser refuses is not told",
        browser("start_faults::test_storage_that_refuses_is_told_and_the_model_answers"),
    ),
    Mutation(
        "device.waits_for_ever",
        "web/src/gpu/device.ts",
        "      this.stopWaiting();\n    };",
        "    };",
        "a compilation that a lost device leaves pending is waited for",
        browser("start_faults::test_a_device_lost_while_a_kernel_compiles_is_told_or_recovered"),
    ),
    Mutation(
        "manifest.last_shard",
        "py_src/capstan/weights/manifest.py",
        "return start, min(self.shard_size, self.size - start)",
        "return start, self.shard_size",
        "the last shard of a file is read past its end",
        unit("weight_manifest::test_the_shards_are_the_files_pieces_and_the_content_hash_is_over_their_digests"),
    ),
    Mutation(
        "records.torn_line",
        "py_src/capstan/weights/records.py",
        "for line in lines[:-1]:",
        "for line in lines:",
        "the last line of a journal counts although a crash may have truncated it",
        unit("weight_manifest::test_a_journal_keeps_only_whole_entries_that_can_be"),
    ),
    Mutation(
        "shared.leak_after_failure",
        "py_src/capstan/weights/shared.py",
        "        except BaseException:\n            self.give_back(held)\n            raise\n        finally:",
        "        finally:",
        "buffers stay allocated after a load that failed",
        unit("shared_weights::test_a_load_that_fails_leaves_nothing_and_who_waited_loads_for_itself"),
    ),
    Mutation(
        "shared.loading_used",
        "py_src/capstan/weights/shared.py",
        "            await pending[0].loaded.wait()\n",
        "            break\n",
        "a second user gets buffers that are not filled yet",
        unit("shared_weights::test_who_comes_during_a_load_waits_for_it"),
    ),
    Mutation(
        "idle.file_open",
        "py_src/capstan/weights/idle.py",
        "        finally:\n            file.close()\n\n    def _tell",
        "        finally:\n            pass\n\n    def _tell",
        "the check of stored weights keeps their file open, which other tabs wait for",
        unit("idle_verification::test_a_request_stops_it_at_once_and_it_goes_on_where_it_was"),
    ),
    Mutation(
        "hashing.here",
        "web/src/storage/hashing.ts",
        "if (!this.started) return",
        "if (this.shards) return",
        "all shards of a large file are hashed in the thread that stores them",
        browser("weight_store::test_a_large_file_is_hashed_in_a_worker_of_its_own"),
    ),
    Mutation(
        "hashing.buffer",
        "web/src/storage/hashing.ts",
        "    chunk.giveBack(buffer);\n",
        "",
        "a shard is stored as zeros once it was hashed beside",
        browser("weight_store::test_a_large_file_is_hashed_in_a_worker_of_its_own"),
    ),
)
