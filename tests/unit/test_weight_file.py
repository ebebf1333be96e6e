"""Loading weights through the store, on paper: what is fetched, kept, verified, repaired, and what a crash leaves."""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from capstan.errors import ModelFileError, StorageError, WeightsChangedError
from capstan.fallback import FallbackWarning, counted
from capstan.host import retrying
from capstan.host.storage_interface import LoadPlan, Outcome
from capstan.memory import BufferRequest
from capstan.weights import manifest as manifests
from capstan.weights import records, weight_file
from capstan.weights.manifest import Manifest
from capstan.weights.records import DATA, JOURNAL, RECORD, SOURCE, UPLOAD
from capstan.weights.store import WeightStore
from capstan.weights.weight_file import WeightFile
from tests.paper_weights import PaperBacking, PaperServer, PaperSink, PaperSource

SHARD = 100
BYTES = random.Random(1).randbytes(950)
ALL = (0, 950)


class CrashError(BaseException):
    """The page is gone."""


def leave() -> None:
    raise CrashError


@pytest.fixture(autouse=True, params=[False, True], ids=["chunks", "poured"])
def small_shards(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small shards; stored files reach the sink through a chunk, or are poured without one."""
    monkeypatch.setattr(PaperSink, "pours", request.param)
    monkeypatch.setattr(manifests, "SHARD_BYTES", SHARD)
    monkeypatch.setattr(retrying, "PAUSE_SECONDS", 0)
    counted.clear()


@dataclass
class Page:
    """One origin with a store, and a server."""

    server: PaperServer = field(default_factory=lambda: PaperServer(BYTES))
    backing: PaperBacking = field(default_factory=PaperBacking)
    manifest: str | None = None
    keep: bool = True

    @property
    def store(self) -> WeightStore:
        return WeightStore(self.backing)

    def load(self, *spans: tuple[int, int], end: int = 950) -> PaperSink:
        """Load like a model does; the sink, once all is there."""
        return asyncio.run(self.loading(*spans, end=end))

    async def loading(self, *spans: tuple[int, int], end: int = 950) -> PaperSink:
        sink = PaperSink(*(spans or (ALL,)))
        file = await self.open()
        progress: list[tuple[int, int]] = []
        await file.load(sink, end, lambda *at: progress.append(at))
        assert progress == sorted(progress)
        assert sink.finished
        for (offset, length), found in zip(sink.spans, sink.found, strict=True):
            assert found == self.server.data[offset : offset + length]
        return sink

    async def open(self) -> WeightFile:
        async def read_manifest() -> bytes | None:
            return self.manifest.encode() if self.manifest else None

        return await WeightFile.open(self.server.open(), self.store if self.keep else None, read_manifest)

    def listed(self) -> list[Any]:
        return asyncio.run(self.store.list())

    def spoil(self, *places: int) -> None:
        """Change bytes on disk."""
        [data] = [name for name in self.backing.files if name.endswith(DATA)]
        for place in places:
            self.backing.files[data][place] ^= 1

    def crash(self) -> None:
        """Leave the store as a page that died does: without open files."""
        self.backing.open_files.clear()

    def traffic(self, load: Callable[[], Any] | None = None) -> tuple[int, list[tuple[int, int]]]:
        """Bytes and requests of one load."""
        self.server.sent = 0
        self.server.requests.clear()
        (load or self.load)()
        return self.server.sent, list(self.server.requests)

    def __post_init__(self) -> None:
        self.before = self.backing.before


def manifest_of(data: bytes) -> str:
    return Manifest.of([data[i : i + SHARD] for i in range(0, len(data), SHARD)], SHARD).serialize()


def warned(action: Callable[[], Any]) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        # Files that another test left open give a ResourceWarning whenever they are collected.
        warnings.simplefilter("ignore", ResourceWarning)
        action()
    assert {warning.category for warning in caught} <= {FallbackWarning}
    return [str(warning.message) for warning in caught]


def test_the_first_load_fetches_each_byte_once_and_the_second_none() -> None:
    page = Page()
    assert page.traffic() == (950, [(0, 950)])
    assert page.traffic() == (0, [])
    [stored] = page.listed()
    assert (stored.complete, stored.size, stored.stored_bytes, stored.sources) == (True, 950, 950, (page.server.url,))
    assert stored.content == Manifest.of([BYTES[i : i + SHARD] for i in range(0, 950, SHARD)], SHARD).content


def test_a_large_file_is_asked_for_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weight_file, "REQUEST_BYTES", 4 * SHARD)
    assert Page().traffic() == (950, [(0, 400), (400, 800), (800, 950)])


@pytest.mark.parametrize(
    ("have", "requests"),
    [
        ((), [(0, 500), (500, 950)]),
        ((2,), [(0, 200), (300, 800), (800, 950)]),
        ((0, 4), [(100, 400), (500, 950)]),
        ((4, 9), [(0, 400), (500, 900)]),
        ((0, 1, 2), [(300, 800), (800, 950)]),
    ],
)
def test_one_request_is_made_for_a_run_of_missing_shards(
    have: tuple[int, ...], requests: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weight_file, "REQUEST_BYTES", 5 * SHARD)
    page = Page()
    identity = page.server.identity()
    digests = {shard: hashlib.sha256(BYTES[shard * SHARD : (shard + 1) * SHARD]).hexdigest() for shard in have}
    asyncio.run(page.store.begin(identity, SHARD, digests))
    page.backing.files[f"{identity.key}{DATA}"] = bytearray(BYTES)
    assert page.traffic()[1] == requests


def test_only_what_the_sink_wants_is_read_back_and_without_a_store_only_that_is_fetched() -> None:
    page = Page()
    page.load()
    reads = []
    page.backing.before = lambda operation, name: reads.append(operation)
    page.load((310, 20), (340, 5), (880, 70))
    assert reads.count("read") == 3
    bare = Page(keep=False)
    assert bare.traffic(lambda: bare.load((310, 20), (880, 70))) == (250, [(300, 950), (800, 950)])
    assert bare.backing.files == {}


def test_an_interrupted_download_goes_on_after_the_last_whole_shard() -> None:
    page = Page()
    page.server.break_at = 350
    with pytest.raises(ModelFileError, match=r"stopped at byte 300 of 950, 3 times.*300 bytes are kept; load.*again"):
        page.load(*[])
    [partial] = page.listed()
    assert (partial.complete, partial.stored_bytes, partial.size) == (False, 300, 950)
    page.crash()
    page.server.break_at = None
    assert page.traffic() == (650, [(300, 950)])
    assert page.traffic() == (0, [])
    assert not any(name.endswith(JOURNAL) for name in page.backing.files)


def test_a_page_that_ends_while_nothing_comes_keeps_what_came() -> None:
    """The journal is written by the clock: no next shard has to come for it."""
    page = Page()
    page.server.stall_at = 350
    page.server.stalled = leave
    with pytest.raises(CrashError):
        page.load()
    page.crash()
    [partial] = page.listed()
    assert (partial.complete, partial.stored_bytes) == (False, 300)
    page.server.stall_at = None
    assert page.traffic() == (650, [(300, 950)])


def test_a_short_break_is_mended_within_the_load() -> None:
    page = Page()
    page.server.break_at = 350
    counted_requests = page.server.requests

    def respond(start: int, end: int | None) -> bytes:
        if len(counted_requests) == 1:
            page.server.break_at = None
        return PaperServer.respond(page.server, start, end)

    page.server.respond = respond  # type: ignore[method-assign]
    page.load()
    assert page.server.requests == [(0, 950), (300, 950)]


def test_a_shard_that_is_spoilt_on_the_way_is_fetched_again_alone() -> None:
    page = Page(manifest=manifest_of(BYTES))
    page.server.corrupt[420] = 2
    # The one behind it came meanwhile, and comes again.
    assert page.traffic() == (1250, [(0, 950), (400, 500), (400, 500), (500, 950)])
    assert page.traffic() == (0, [])


@pytest.mark.parametrize("keep", [True, False], ids=["stored", "not stored"])
def test_a_download_is_compared_with_the_sha_256_that_a_hub_lists(keep: bool) -> None:
    page = Page(keep=keep)
    listed = page.server.listed = hashlib.sha256(BYTES).hexdigest()
    page.server.corrupt[420] = 1
    page.server.corrupt[870] = 1
    with pytest.raises(ModelFileError, match=f"950 bytes with SHA-256 .* came, but the hub lists {listed}"):
        page.load()
    assert page.listed() == []
    assert page.backing.files == {}
    assert page.traffic() == (950, [(0, 950)])
    assert page.traffic() == ((0, []) if keep else (950, [(0, 950)]))


@pytest.mark.parametrize(("keep", "told"), [(False, 1), (True, 0)], ids=["not stored", "stored"])
def test_parts_that_cannot_be_compared_with_the_sha_256_are_told(keep: bool, told: int) -> None:
    page = Page(keep=keep)
    page.server.listed = hashlib.sha256(BYTES).hexdigest()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        page.load((310, 20), (880, 70))
    found = [str(one.message) for one in caught if issubclass(one.category, FallbackWarning)]
    assert len(found) == told, found
    assert all("only parts of" in text and "the hub's SHA-256" in text for text in found)


def test_what_was_stored_before_an_interruption_counts_in_the_sha_256() -> None:
    page = Page()
    page.server.listed = hashlib.sha256(BYTES).hexdigest()
    page.server.break_at = 350
    page.server.corrupt[120] = 1
    with pytest.raises(ModelFileError, match="stopped at byte 300 of 950"):
        page.load()
    page.crash()
    page.server.break_at = None
    with pytest.raises(ModelFileError, match="but the hub lists"):
        page.load((310, 20))
    assert page.traffic() == (950, [(0, 950)]), "nothing of it was kept"


def test_a_shard_that_stays_wrong_is_an_error_and_nothing_is_kept() -> None:
    page = Page(manifest=manifest_of(BYTES))
    page.server.corrupt[420] = 99
    with pytest.raises(ModelFileError, match=r"shard 4 \(bytes 400 to 500\) has SHA-256 .*expected .*, 3 times"):
        page.load()
    assert page.backing.files == {}
    assert page.listed() == []


def test_a_manifest_for_another_size_is_refused() -> None:
    page = Page(manifest=manifest_of(BYTES[:-1]))
    with pytest.raises(ModelFileError, match=r"950 bytes, but .*shards.json was written for 949"):
        page.load()


def test_a_file_that_is_too_short_is_refused_before_anything_is_fetched() -> None:
    page = Page()
    with pytest.raises(ModelFileError, match=r"950 bytes, but model.onnx names weights up to byte 951"):
        page.load(end=951)
    assert page.server.requests == []


def test_known_bytes_under_another_address_are_not_fetched_again() -> None:
    page = Page(manifest=manifest_of(BYTES))
    page.load()
    mirror = Page(PaperServer(BYTES, url="https://mirror/data"), page.backing, page.manifest)
    assert mirror.traffic() == (0, [])
    [stored] = page.listed()
    assert sorted(stored.sources) == ["https://host/m/data", "https://mirror/data"]


def test_the_same_bytes_under_two_addresses_are_kept_once() -> None:
    page = Page()
    page.load()
    mirror = Page(PaperServer(BYTES, url="https://mirror/data"), page.backing)
    mirror.load()
    assert len(page.listed()) == 1
    assert sum(name.endswith(DATA) for name in page.backing.files) == 1
    assert mirror.traffic() == (0, [])
    assert page.traffic() == (0, [])


def test_damage_found_by_verify_is_repaired_by_fetching_those_shards_only() -> None:
    page = Page()
    page.load()
    page.spoil(555)
    [found] = asyncio.run(page.store.verify())
    assert (found.shards, found.damaged) == (10, (5,))
    assert page.listed()[0].suspect == (5,)
    assert page.traffic() == (100, [(500, 600)])
    assert page.listed()[0].suspect == ()
    assert asyncio.run(page.store.verify())[0].damaged == ()
    assert page.traffic() == (0, [])


def test_a_changed_source_is_loaded_anew_told_and_takes_the_place_of_the_old() -> None:
    page = Page()
    page.load()
    before = page.listed()[0].content
    page.server.data, page.server.etag = BYTES[::-1], "2"
    traffic = []
    [warning] = warned(lambda: traffic.append(page.traffic()))
    assert traffic == [(950, [(0, 950)])]
    assert "https://host/m/data changed since it was stored: it was etag" in warning
    assert 'it was etag "1" with 950 bytes, and is now etag "2" with 950 bytes; the new file replaces' in warning
    assert warned(page.load) == []
    [after] = page.listed()
    assert after.content != before
    assert sum(name.endswith(DATA) for name in page.backing.files) == 1


def test_the_same_bytes_with_another_date_are_no_change() -> None:
    page = Page()
    page.load()
    page.server.etag = "2"
    assert warned(page.load) == []
    assert page.traffic() == (0, [])


def test_a_source_that_changed_unseen_is_told_when_a_damaged_shard_is_fetched_again() -> None:
    page = Page()
    page.load()
    page.spoil(555)
    asyncio.run(page.store.verify())
    page.server.data = BYTES[::-1]
    with pytest.raises(
        WeightsChangedError, match=r"shard 5 .* the stored digest is .*the same file \(etag \"1\"\).*evict"
    ):
        page.load((500, 100))
    assert asyncio.run(page.store.evict(page.server.url)) == 950
    page.load()


def test_a_source_that_changes_while_it_is_read_is_an_error_and_what_was_stored_stays() -> None:
    page = Page()
    page.load()
    files = {name: bytes(data) for name, data in page.backing.files.items()}
    page.server.data, page.server.etag = BYTES[::-1], "2"
    page.server.requests.clear()
    page.server.break_at = 350
    page.server.change_at = 1
    with pytest.raises(WeightsChangedError):
        page.load()
    assert {name: bytes(data) for name, data in page.backing.files.items()} == files


def test_without_etag_and_date_nothing_is_kept() -> None:
    page = Page(PaperServer(BYTES, etag=None))
    [warning] = warned(page.load)
    assert "comes without ETag and Last-Modified; it is fetched at every load" in warning
    assert page.backing.files == {}


def test_a_file_of_unknown_size_is_read_to_its_end() -> None:
    page = Page()
    page.server.size_reported = False
    page.load()
    page.load((310, 20), end=330)
    with pytest.raises(ModelFileError, match="950 bytes, but model.onnx names weights up to byte 960"):
        page.load((0, 960), end=960)
    assert page.backing.files == {}


def test_a_file_that_another_tab_writes_is_fetched_with_a_warning() -> None:
    page = Page()
    page.backing.locked.add(f"{page.server.identity().key}{DATA}")
    [warning] = warned(page.load)
    assert warning.startswith("the weight store: ")
    assert "another tab has it open; the weights come from their source" in warning
    assert page.backing.files == {}


def test_a_stored_file_that_another_tab_has_locked_is_read_and_verified() -> None:
    page = Page()
    page.load()
    [data] = [name for name in page.backing.files if name.endswith(DATA)]
    page.backing.locked.add(data)
    assert page.traffic() == (0, [])
    page.backing.files[data][555] ^= 1
    assert page.traffic() == (100, [(500, 600)])
    assert page.listed()[0].suspect == (5,)
    page.backing.locked.clear()
    assert page.traffic() == (100, [(500, 600)])
    assert page.traffic() == (0, [])


def test_no_room_is_a_warning_before_anything_is_written() -> None:
    page = Page()
    page.backing.free = 949
    [warning] = warned(page.load)
    assert "needs 950 bytes; the browser lets this origin store 949 more" in warning
    assert page.backing.files == {}


def test_a_disk_that_fills_up_is_a_warning_and_the_load_goes_on() -> None:
    page = Page()
    writes = []

    def full(operation: str, name: str) -> None:
        if operation == "write":
            writes.append(name)
            if len(writes) > 4:
                raise StorageError(f"{name}: the browser's storage for this origin is full")

    page.backing.before = full
    [warning] = warned(lambda: page.traffic())
    assert page.server.sent == 950
    assert "is full; the weights come from their source" in warning
    assert page.backing.files == {}


def test_a_disk_that_is_full_for_the_record_is_a_warning_and_leaves_nothing() -> None:
    for ending in (RECORD, SOURCE):
        page = Page()

        def full(operation: str, name: str, ending: str = ending) -> None:
            if operation == "write_text" and name.endswith(ending):
                raise StorageError(f"{name}: the browser's storage for this origin is full")

        page.backing.before = full
        [warning] = warned(page.load)
        assert "is full; the weights are loaded; the next load fetches them again" in warning
        assert page.backing.files == {}


def test_a_stored_file_outlives_a_disk_that_is_full_for_its_new_source() -> None:
    page = Page(manifest=manifest_of(BYTES))
    page.load()
    mirror = Page(PaperServer(BYTES, url="https://mirror/data"), page.backing, page.manifest)

    def full(operation: str, name: str) -> None:
        if operation == "write_text":
            raise StorageError(f"{name}: the browser's storage for this origin is full")

    page.backing.before = full
    assert len(warned(mirror.load)) == 1
    [source] = [name for name in page.backing.files if name.endswith(SOURCE)]
    kept = page.backing.files.pop(source)
    assert len(warned(page.load)) == 1
    page.backing.before = page.before
    page.backing.files[source] = kept
    assert page.traffic() == (0, [])


def test_a_manifest_that_comes_later_is_what_counts() -> None:
    page = Page()
    page.server.corrupt[150] = 1
    page.server.break_at = 350
    with pytest.raises(ModelFileError):
        page.load()
    page.crash()
    page.server.break_at = None
    page.manifest = manifest_of(BYTES)
    assert page.traffic() == (750, [(100, 200), (300, 950)])
    assert asyncio.run(page.store.verify())[0].damaged == ()


def test_an_unchanged_file_is_loaded_without_writing() -> None:
    page = Page()
    page.load()
    written = []

    def note(operation: str, name: str) -> None:
        if operation.startswith(("write", "append", "remove")):
            written.append(name)

    page.backing.before = note
    page.load()
    assert written == []


def test_files_that_are_evicted_during_a_load_are_fetched() -> None:
    page = Page()
    page.load()
    reads = []

    def evict(operation: str, name: str) -> None:
        if operation == "read":
            reads.append(name)
            if len(reads) == 4:
                page.backing.files.clear()

    page.backing.before = evict
    [warning] = warned(lambda: page.traffic())
    assert page.server.requests == [(300, 950)]
    assert "it is gone; the weights come from their source" in warning


def test_a_stored_file_that_lost_bytes_is_downloaded_again() -> None:
    page = Page()
    page.load()
    [data] = [name for name in page.backing.files if name.endswith(DATA)]
    del page.backing.files[data][500:]
    beside: set[str] = set()

    def look(operation: str, name: str) -> None:
        if operation == "write":
            beside.update(name[name.index(".") :] for name in page.backing.files)

    page.backing.before = look
    assert warned(lambda: page.traffic()) == [
        f"the weight store: {data}: 500 bytes are left of 950; the weights come from their source"
    ]
    assert page.server.sent == 950
    assert RECORD not in beside, "a file that is being written was called complete"
    assert page.traffic() == (0, [])


ticking = pytest.mark.parametrize("ticks", [False, True], ids=["journal at the end", "journal at all times"])


@pytest.mark.one_in(2)
@ticking
def test_a_crash_at_any_point_leaves_nothing_that_looks_whole_and_is_not(
    ticks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also while another version takes the place of a stored one, and while a damaged file is downloaded again."""
    monkeypatch.setattr(PaperSource, "ticks", ticks)
    found_kept = set()

    def versions(page: Page) -> None:
        page.load()
        page.server.data, page.server.etag = BYTES[::-1], "2"

    def damaged(page: Page) -> None:
        page.load()
        [data] = [name for name in page.backing.files if name.endswith(DATA)]
        del page.backing.files[data][500:]

    for prepare in (lambda page: None, versions, damaged):
        total = 0
        while True:
            page = Page()
            prepare(page)
            steps = iter(range(total))

            def crash(operation: str, name: str, steps: Any = steps) -> None:
                if operation != "names" and next(steps, None) is None:
                    raise CrashError

            page.backing.before = crash
            try:
                warned(page.load)
                finished = True
            except CrashError:
                finished = False
            page.backing.before = page.before
            page.crash()
            if prepare is not damaged:
                assert all(verified.damaged == () for verified in asyncio.run(page.store.verify()))
            before = {stored.content: stored for stored in page.listed()}
            page.server.sent = 0
            warned(page.load)
            sent = page.server.sent
            assert page.listed()[0].complete
            assert page.traffic() == (0, [])
            kept = sum(stored.stored_bytes for stored in before.values() if not stored.complete)
            found_kept.add(kept)
            assert sent <= 950 - kept + SHARD
            if finished:
                break
            total += 1
        assert total > 20
    assert found_kept == (set(range(0, 950, SHARD)) | {950} if ticks else {0, 950})


DAMAGES: dict[str, Callable[[str], str]] = {
    "a letter": lambda text: text[:12] + chr(ord(text[12]) ^ 1) + text[13:],
    "a digit in a digest": lambda text: re.sub(r'([0-9a-f]{63})[0-9a-f]"', r'\1x"', text, count=1),
    "cut": lambda text: text[: len(text) // 2],
    "deep": lambda text: "[" * 20000,
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("ending", [SOURCE, RECORD, UPLOAD])
def test_a_damaged_record_is_told_counted_and_rewritten(ending: str, damage: str) -> None:
    page = Page()

    async def noting() -> None:
        file = await page.open()
        await file.load(PaperSink(ALL), 950, lambda *_: None)
        await file.note_upload("model 1", [BufferRequest("weight a", 950, "weights")], [(0, 0, 950)])

    asyncio.run(noting())
    files = page.backing.files
    [name] = [name for name in files if name.endswith(ending)]
    whole = files[name]
    files[name] = bytearray(DAMAGES[damage](whole.decode()).encode())
    assert files[name] != whole
    [told] = warned(lambda: asyncio.run(noting()))
    assert ": it is damaged; " in told
    assert list(counted.values()) == [1]
    assert files[name] == whole
    assert page.traffic() == (0, [])


@pytest.mark.filterwarnings("error")
def test_records_of_an_older_capstan_are_read_and_its_upload_note_is_replaced_without_a_word() -> None:
    page = Page()
    page.load()
    files = page.backing.files
    for name in [name for name in files if not name.endswith(DATA)]:
        tree = json.loads(files[name])
        del tree[records.SEAL]
        files[name] = bytearray(json.dumps(tree).encode())
    assert page.traffic() == (0, [])
    upload = page.server.identity().name_key + UPLOAD
    files[upload] = bytearray(b'{"requests": []}')
    asyncio.run(page.store.note_upload(page.server.identity(), "plan"))
    assert json.loads(files[upload])["plan"] == "plan"


def test_a_damaged_journal_is_told_and_the_download_begins_anew() -> None:
    page = Page()
    page.server.break_at = 500
    with pytest.raises(ModelFileError):
        page.load()
    page.server.break_at = None
    [name] = [name for name in page.backing.files if name.endswith(JOURNAL)]
    del page.backing.files[name][:10]
    [told] = warned(page.load)
    assert "the journal of https://host/m/data: it is damaged; " in told
    assert page.traffic() == (0, [])


@ticking
def test_any_fault_of_the_storage_is_a_step_down(ticks: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PaperSource, "ticks", ticks)
    for total in range(200):
        page = Page()
        steps = iter(range(total))
        fired: list[str] = []

        def fail(operation: str, name: str, steps: Any = steps, fired: Any = fired) -> None:
            if next(steps, None) is None:
                fired.append(operation)
                raise StorageError(f"{name}: it cannot be had")

        page.backing.before = fail
        counted.clear()
        told = warned(page.load)
        assert bool(told) == bool(fired) == bool(counted), f"{total}: {fired} {told}"
        page.backing.before = page.before
        page.load()
        if not fired:
            break
    assert 20 < total < 199


def test_a_few_bytes_are_read_from_the_store_or_as_a_range() -> None:
    async def read(page: Page, start: int, length: int) -> bytes:
        file = await page.open()
        try:
            return await file.read(start, length)
        finally:
            file.close()

    page = Page()
    assert asyncio.run(read(page, 190, 20)) == BYTES[190:210]
    assert page.server.requests == [(190, 210)]
    page.load()
    assert page.traffic(lambda: asyncio.run(read(page, 190, 120))) == (0, [])
    known = Page(manifest=manifest_of(BYTES))
    known.server.corrupt[150] = 1
    assert asyncio.run(read(known, 190, 20)) == BYTES[190:210]
    assert known.server.requests == [(100, 200), (100, 200), (200, 300)]


class TestEviction:
    def test_files_are_named_by_content_by_address_or_by_folder(self) -> None:
        for which in ("content", "url", "folder", None):
            page = Page()
            page.load()
            other = Page(PaperServer(BYTES[:500], url="https://host/other/data"), page.backing)
            other.load(end=500, *[(0, 500)])  # noqa: B026
            content = {stored.sources[0]: stored.content for stored in page.listed()}
            name = {
                "content": content[page.server.url],
                "url": page.server.url,
                "folder": "https://host/m/",
                None: None,
            }
            freed = asyncio.run(page.store.evict(name[which]))
            assert freed == (1450 if which is None else 950)
            assert [stored.size for stored in page.listed()] == ([] if which is None else [500])
            if which is None:
                assert page.backing.files == {}

    def test_an_interrupted_download_can_be_evicted(self) -> None:
        page = Page()
        page.server.break_at = 350
        with pytest.raises(ModelFileError):
            page.load()
        assert asyncio.run(page.store.evict(page.server.url)) == 300
        assert page.backing.files == {}

    def test_a_file_in_use_is_refused_and_stays(self) -> None:
        page = Page()
        page.load()
        files = dict(page.backing.files)
        [data] = [name for name in files if name.endswith(DATA)]
        page.backing.locked.add(data)
        with pytest.raises(StorageError, match="another tab has it open"):
            asyncio.run(page.store.evict())
        assert page.backing.files == files

    def test_without_storage_there_is_nothing(self) -> None:
        store = WeightStore()
        assert asyncio.run(store.kind()) == "memory"
        assert asyncio.run(store.list()) == []
        assert asyncio.run(store.evict()) == 0
        assert asyncio.run(store.verify()) == []


def test_records_are_written_after_the_data_and_the_source_last() -> None:
    page = Page()
    order = []

    def note(operation: str, name: str) -> None:
        if operation in ("write", "write_text", "append_text"):
            order.append(name[name.index(".") :])

    page.backing.before = note
    page.load()
    # No time passes: the journal is written at the end.
    assert order == [JOURNAL, *[DATA] * 10, JOURNAL, RECORD, SOURCE]


def test_how_a_stored_file_is_put_on_the_gpu_is_noted_and_goes_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    page, unkept = Page(), Page(keep=False)

    async def noting(page: Page) -> None:
        file = await page.open()
        await file.load(PaperSink(ALL), 950, lambda *_: None)
        await file.note_upload("model 1", [BufferRequest("weight a", 950, "weights")], [(0, 0, 950)])

    asyncio.run(noting(unkept))
    assert asyncio.run(unkept.backing.names()) == []
    asyncio.run(noting(page))
    [name] = [name for name in asyncio.run(page.backing.names()) if name.endswith(UPLOAD)]
    assert name == page.server.identity().name_key + UPLOAD
    noted = json.loads(json.loads(asyncio.run(page.backing.read_text(name)) or "")["plan"])
    assert noted.pop("data") in asyncio.run(page.backing.names())
    asked = []

    async def load(self: PaperSource, plan: LoadPlan, *given: Any) -> Outcome:
        asked.append(json.loads(json.dumps(plan.as_json())))
        return await performed(self, plan, *given)

    performed = PaperSource.load
    monkeypatch.setattr(PaperSource, "load", load)
    page.load()
    assert asked == [noted.pop("load")], "the next load asks for something else"
    assert noted == {
        "owner": "model 1",
        "requests": [["weight a", 950, "weights"]],
        "pieces": [[0, 0, 950]],
    }
    asyncio.run(page.store.evict(page.server.url))
    assert asyncio.run(page.backing.names()) == []


def test_a_file_that_stays_open_for_reads_is_stored_first_and_then_fetched_no_more() -> None:
    page, places = Page(), [(3, 5), (940, 10), (90, 20)]

    async def read() -> bytes:
        file = await page.open()
        parts = await file.opened(950, lambda *_: None)
        try:
            return await parts.parts(places)
        finally:
            parts.close()

    found: list[bytes] = []
    for traffic in (950, 0):
        sent, _ = page.traffic(lambda: found.append(asyncio.run(read())))
        assert sent == traffic
    assert found == [b"".join(BYTES[start : start + length] for start, length in places)] * 2
    page.spoil(105)
    asyncio.run(page.store.verify())
    assert page.traffic(lambda: asyncio.run(read()))[0] == SHARD, "only the damaged shard is fetched"
    assert asyncio.run(page.store.verify())[0].damaged == ()
    assert not +page.backing.open_files


@pytest.mark.parametrize("lack", ["store", "disk", "kind", "length"])
def test_a_file_that_cannot_be_stored_is_not_opened_for_reads(lack: str) -> None:
    page = Page(keep=lack != "store")
    if lack == "disk":
        page.backing.free = 100
    elif lack == "kind":
        page.backing.kind = "cache"
    end, kind, message = (951, ModelFileError, "names weights up to byte 951") if lack == "length" else (950, *UNSTORED)

    async def read() -> None:
        await (await page.open()).opened(end, lambda *_: None)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        with pytest.raises(kind, match=message):
            asyncio.run(read())
    assert not +page.backing.open_files


UNSTORED = StorageError, r"data: the browser's private file system does not hold it.* embedding_tables='memory'$"
