"""A fleet gives each item one result, whatever its browsers do; here the browsers are made of paper."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import json
import math
import os
import random
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from distributed import Client, LocalCluster

from capstan.errors import OptionError
from capstan_host.commands import fleet as fleet_command
from capstan_host.fleet import Fleet, FleetError, Item, ItemError, ResultFile, ResultFileError, UnfitError, dispatch
from capstan_host.fleet import worker as fleet_worker
from capstan_host.fleet.browsers import Browsers, HeadlessSlot, Serving
from capstan_host.fleet.items import Entry, any_input, entries, pair_input, prompt_input, text_input
from capstan_host.headless.chromium import BrowserError

SERVING = Serving("/models/paper", 2, None, {}, 0.5, 3)
SOURCES = str(Path(__file__).parents[2] / "py_src")
SAME = "def run(x):\n    return x\n"
JOB = {"kind": "generate"}


def nested(depth: int) -> list[Any]:
    """A list in a list, and so on."""
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


ODD = {"nan": float("nan"), "infinite": [float("-inf")], "deep": nested(200), "half": "\ud800", "nul": "\0"}
"""Values that a script may return."""


class PaperSlot:
    """A browser on paper: it answers an item with its input, and dies of the input "kill"."""

    asked: list[list[Any]]
    closed = 0

    def __init__(self, dies: Callable[[], bool] = lambda: False) -> None:
        self.asked = []
        self._dies = dies

    async def answer(self, job: dict[str, Any], given: Sequence[Entry], done: Callable[[int, Any], None]) -> None:
        self.asked.append([entry.input for entry in given])
        for place, entry in enumerate(given):
            await asyncio.sleep(0)
            if entry.input == "kill" or self._dies():
                raise BrowserError("the browser crashed or was closed")
            if entry.input == "driver":
                raise RuntimeError("Connection closed while reading from the driver")
            if entry.input == "hang":
                await asyncio.sleep(60)
            if entry.input == "refused":
                done(place, {"number": place, "error": {"type": "PromptError", "message": "too long"}})
            elif isinstance(entry.input, str) and entry.input in ODD:
                done(place, {"number": place, "result": {"value": ODD[entry.input]}})
            elif entry.input == "lost":
                done(place, {"number": place, "error": {"type": "DeviceLostError", "message": "gone"}})
            else:
                done(place, {"number": place, "result": {"value": entry.input}, "adapter": "paper"})

    async def close(self) -> None:
        self.closed += 1


def batch_of(*inputs: Any) -> list[Entry]:
    return [Entry(str(index), index, "d", value) for index, value in enumerate(inputs)]


@pytest.fixture
def slots() -> list[PaperSlot]:
    return [PaperSlot(), PaperSlot()]


@pytest.fixture
def browsers(slots: list[PaperSlot]) -> Iterator[Browsers]:
    made = Browsers(SERVING, lambda serving: slots)
    yield made
    made.close()


class TestBrowsers:
    @pytest.mark.parametrize(
        ("poison", "error"),
        [("kill", "BrowserError"), ("hang", "TimeoutError"), ("lost", "BrowserError"), ("driver", "RuntimeError")],
    )
    def test_what_kills_browsers_fails_three_times_and_the_others_are_answered(
        self, browsers: Browsers, slots: list[PaperSlot], poison: str, error: str
    ) -> None:
        found = browsers.answer(JOB, batch_of("a", "b", poison, "c", "d"))
        assert [outcome.told.get("result", {}).get("value") for outcome in found] == ["a", "b", None, "c", "d"]
        assert found[2].told["error"]["type"] == ("DeviceLostError" if poison == "lost" else error)
        assert [outcome.entry.failures for outcome in found] == [0, 0, 3, 0, 0]
        alone = [asked for slot in slots for asked in slot.asked if asked == [poison]]
        assert len(alone) == 3
        assert sum(slot.closed for slot in slots) == browsers.replaced >= 3

    def test_a_refused_item_is_tried_alone_and_no_browser_is_replaced(
        self, browsers: Browsers, slots: list[PaperSlot]
    ) -> None:
        found = browsers.answer(JOB, batch_of("a", "refused", "b"))
        assert found[1].told["error"] == {"type": "PromptError", "message": "too long"}
        assert [slot.asked for slot in slots if len(slot.asked) == 3 or ["refused"] in slot.asked] != []
        assert browsers.replaced == 0

    def test_random_deaths_blame_nobody(self) -> None:
        draw = random.Random(5)
        made = Browsers(SERVING, lambda serving: [PaperSlot(lambda: draw.random() < 0.1)])
        found = made.answer(JOB, batch_of(*range(64)))
        made.close()
        assert made.replaced > 3
        assert [outcome.told["result"]["value"] for outcome in found] == [*range(64)]

    def test_a_worker_whose_browsers_do_not_start_is_unfit_after_three_tries(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("capstan_host.fleet.browsers.PAUSE_SECONDS", 0)
        tries = []

        class Unfit(PaperSlot):
            async def answer(self, job: Any, given: Any, done: Any) -> None:
                tries.append(1)
                raise UnfitError("ModelFileError: not there")

        made = Browsers(SERVING, lambda serving: [Unfit()])
        with pytest.raises(UnfitError, match="not there"):
            made.answer(JOB, batch_of("a"))
        made.close()
        assert len(tries) == 3


def read_strictly(line: str) -> Any:
    """The value of a line of JSON, without the constants that Python's parser adds."""

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    return json.loads(line, parse_constant=refuse)


def result(name: str, **more: Any) -> Item:
    return Item(name, int(name), "digest", "w", 1, value=name, **more)


class TestResultFile:
    def test_a_torn_last_line_and_errors_are_dropped_and_the_rest_is_finished(self, tmp_path: Path) -> None:
        path = tmp_path / "r.jsonl"
        failed = Item("2", 2, "digest", "w", 3, error=ItemError("PromptError", "too long"))
        with ResultFile(path) as file:
            file.append([result("0"), failed, result("1")])
        with path.open("a") as torn:
            torn.write(result("3").line()[:25])
        with ResultFile(path) as file:
            assert file.finished == {"0": "digest", "1": "digest"}
            assert file.has(Entry("0", 0, "digest", None))
            assert not file.has(Entry("0", 0, "other", None))
        assert path.read_text() == result("0").line() + result("1").line()

    def test_an_item_that_is_computed_anew_has_its_last_line_alone(self, tmp_path: Path) -> None:
        path = tmp_path / "r.jsonl"
        with ResultFile(path) as file:
            file.append([result("0"), result("1")])
        with ResultFile(path) as file:
            file.append([Item("0", 0, "other", "w", 1, error=ItemError("BrowserError", "gone"))])
        assert [(line["id"], line["digest"]) for line in map(json.loads, path.read_text().splitlines())] == [
            ("1", "digest"),
            ("0", "other"),
        ]

    def test_a_full_disk_leaves_whole_lines_and_tells_the_bytes(self, tmp_path: Path) -> None:
        path = tmp_path / "r.jsonl"
        file = ResultFile(path)
        file.append([result("0")])
        size, raw = path.stat().st_size, file._file

        class Full:
            def __getattr__(self, name: str) -> Any:
                return getattr(raw, name)

            def write(self, data: bytes) -> int:
                if len(data) < 40:
                    raise OSError(errno.ENOSPC, "No space left on device")
                return raw.write(data[:30])

        file._file = Full()  # type: ignore[assignment]
        with pytest.raises(ResultFileError, match=f"No space left on device after {size} bytes, .*make room"):
            file.append([result("1")])
        assert path.read_text() == result("0").line()

    def test_another_file_is_left_alone(self, tmp_path: Path) -> None:
        path = tmp_path / "notes.txt"
        path.write_text("some notes\nmore\n")
        with pytest.raises(ResultFileError, match="line 1: b'some notes.*give another file"):
            ResultFile(path)
        assert path.read_text() == "some notes\nmore\n"
        with pytest.raises(ResultFileError, match=f"{tmp_path} is a folder, a device or a pipe"):
            ResultFile(tmp_path)
        assert [each.name for each in tmp_path.iterdir()] == ["notes.txt"], "no lock is left"

    @pytest.mark.skipif(os.name == "nt", reason="Windows has no such files")
    @pytest.mark.parametrize("kind", ["/dev/null", "a pipe", "a\0b", "half of a pair \ud800", "x" * 300])
    def test_what_keeps_no_lines_is_refused_at_once(self, kind: str, tmp_path: Path) -> None:
        if kind == "a pipe":
            os.mkfifo(tmp_path / kind)
        with pytest.raises(ResultFileError, match=r"give (another file|a file that can be written)"):
            ResultFile(tmp_path / kind)

    @pytest.mark.parametrize("line", [b"[" * 100_000, b'{"id": %s}' % (b"1" * 5000), b"\0", b"\xff", b'{"id": NaN'])
    def test_lines_that_no_fleet_wrote_are_refused(self, line: bytes, tmp_path: Path) -> None:
        path = tmp_path / "r.jsonl"
        path.write_bytes(line + b"\n")
        with pytest.raises(ResultFileError, match="line 1: .* is no result of a fleet: give another file"):
            ResultFile(path)
        assert path.read_bytes() == line + b"\n"

    def test_any_id_is_a_line_of_json_that_the_next_run_knows(self, tmp_path: Path) -> None:
        """A line was not written, or was not JSON, and every later run began with it."""
        path = tmp_path / "r.jsonl"
        names = ["half \ud800", "\udc00", "\0", "\u2028", "\U0001f600", '"\\', "1" * 5000]
        found = list(entries([{"id": name, "prompt": "a"} for name in names], {}, prompt_input))
        with ResultFile(path) as file:
            file.append([Item(entry.id, entry.index, "digest", "w", 1, text="\ud800") for entry in found])
        read = [read_strictly(line) for line in path.read_bytes().decode().split("\n")[:-1]]
        assert [line["id"] for line in read] == names
        with ResultFile(path) as file:
            assert set(file.finished) == set(names)

    def test_a_value_that_json_does_not_have_is_computed_anew(self, tmp_path: Path) -> None:
        path = tmp_path / "r.jsonl"
        path.write_text('{"id": "0", "digest": "digest", "value": NaN}\n{"id": "1", "digest": "digest", "value": 1}\n')
        with ResultFile(path) as file:
            assert [*file.finished] == ["1"]
        assert path.read_text() == '{"id": "1", "digest": "digest", "value": 1}\n'

    def test_two_runs_never_write_one_file(self, tmp_path: Path) -> None:
        path, link = tmp_path / "r.jsonl", tmp_path / "link.jsonl"
        link.symlink_to(path)
        with ResultFile(path) as file:
            file.append([result("0")])
            for other in (path, link):
                with pytest.raises(
                    ResultFileError, match=rf"is being written by process {os.getpid()} on .*: wait for"
                ):
                    ResultFile(other)
            file.append([result("1")])
        with ResultFile(link) as file:
            assert [*file.finished] == ["0", "1"]
        assert sorted(each.name for each in tmp_path.iterdir()) == ["link.jsonl", "r.jsonl"]

    def test_the_file_of_a_process_that_was_killed_is_free(self, tmp_path: Path) -> None:
        path = tmp_path / "r.jsonl"
        script = "import sys, time; from capstan_host.fleet import ResultFile; f = ResultFile(sys.argv[1])"
        command = [sys.executable, "-c", f"{script}; print(1, flush=True); time.sleep(600)", str(path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": SOURCES}) as other:
            try:
                assert other.stdout is not None
                assert other.stdout.readline() == b"1\n"
                with pytest.raises(ResultFileError, match=f"is being written by process {other.pid} on"):
                    ResultFile(path)
            finally:
                other.kill()
        with ResultFile(path) as file:
            file.append([result("0")])
        assert [each.name for each in tmp_path.iterdir()] == ["r.jsonl"]

    def test_runs_that_end_at_any_moment_share_a_file_in_turns(self, tmp_path: Path) -> None:
        """Each takes the lock, which is a file that comes and goes, many times."""
        path, taken = tmp_path / "r.jsonl", []

        def write(name: str) -> None:
            end = time.monotonic() + 1
            while time.monotonic() < end:
                with contextlib.suppress(ResultFileError), ResultFile(path) as file:
                    file.append([result(name)])
                    taken.append(name)

        threads = [threading.Thread(target=write, args=(str(name),)) for name in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(json.loads(line)["id"] for line in path.read_text().splitlines()) == sorted(set(taken))


class TestEntries:
    @pytest.mark.parametrize(
        ("read", "item", "words"),
        [
            (prompt_input, 7, "is a int; give a text"),
            (prompt_input, "", "prompt is ''; give a str that is not empty"),
            (prompt_input, [3, -1], "a value that is not a whole number from 0"),
            (prompt_input, {"prompt": "a", "messages": []}, "has prompt, messages; give one of"),
            (prompt_input, {"text": "a"}, "has text; give one of"),
            (prompt_input, {"messages": [{"content": "a"}]}, r"messages\[0\].role: missing"),
            (prompt_input, {"messages": [{"role": "user", "content": 5}]}, r"messages\[0\].content is 5"),
            (text_input, {"prompt": "a"}, "give a text that is not empty"),
            (pair_input, "ab", "give context and text"),
            (pair_input, {"context": "a", "token_ids": [1]}, "give context and text"),
            (any_input, {1, 2}, "cannot be sent to a page as JSON"),
            (prompt_input, {"id": True, "prompt": "a"}, "id is True"),
            (prompt_input, {"id": "0", "prompt": "a"}, "id '0' is that of item 0"),
            (prompt_input, {"id": 10**5000, "prompt": "a"}, "id has 16610 bits, at most 128"),
            (prompt_input, {"id": [10**5000], "prompt": "a"}, "cannot be read"),
            (prompt_input, {"id": nested(10**5), "prompt": "a"}, "cannot be read"),
            (prompt_input, [10**5000], "cannot be sent to a page as JSON"),
            (prompt_input, {5: "a"}, "has 5; give one of"),
            (prompt_input, {"prompt": nested(10**5)}, "cannot be read"),
            (
                prompt_input,
                {"messages": [{"role": "user", "content": nested(10**5)}]},
                "cannot be read",
            ),
            (prompt_input, {"messages": [{"role": "user", "content": nested(200)}]}, r"messages\[0\]\.content"),
            (
                prompt_input,
                {"messages": [{"role": "user", "content": float("nan")}]},
                r"messages\[0\]\.content is nan",
            ),
            (pair_input, {"context_ids": [1, float("inf")], "token_ids": [1]}, "cannot be sent to a page as JSON"),
            (pair_input, "x" * 10**6, "give context and text"),
            (any_input, float("nan"), "cannot be sent to a page as JSON"),
            (any_input, nested(10**5), "cannot be sent to a page as JSON"),
            (text_input, {"text": {"a": 10**5000}}, "cannot be read"),
        ],
    )
    def test_a_wrong_item_is_told_with_its_number(self, read: Any, item: Any, words: str) -> None:
        good = {prompt_input: "a", text_input: "a", pair_input: ("a", "b"), any_input: 1}[read]
        first, refused, last = entries([good, item, good], {}, read)
        assert isinstance(first, Entry)
        assert isinstance(last, Entry)
        assert isinstance(refused, Item)
        assert refused.error is not None
        assert refused.error.type in ("OptionError", "PromptError")
        assert re.search(rf"^item 1.*{words}", refused.error.message)
        assert len(refused.error.message) < 2000
        assert read_strictly(refused.line())["id"] not in (first.id, last.id)

    def test_a_digest_is_of_the_input_and_what_it_is_run_by(self) -> None:
        [one], [same], [other], [tuned] = (
            [*entries([item], about, prompt_input)]
            for item, about in (("a", {"n": 1}), ({"id": 5, "prompt": "a"}, {"n": 1}), ("b", {"n": 1}), ("a", {"n": 2}))
        )
        assert all(isinstance(each, Entry) for each in (one, same, other, tuned))
        assert (one.id, same.id) == ("0", "5")
        assert one.digest == same.digest
        assert len({one.digest, other.digest, tuned.digest}) == 3
        assert one.digest == "4a780a647409c5df6990bb1d", "results of earlier releases are known"

    def test_an_id_by_halves_of_a_pair_is_the_whole_one(self) -> None:
        """A line of the result file has the whole one."""
        halves = [{"id": "\ud83d\ude00", "prompt": "a"}, {"id": "\U0001f600", "prompt": "a"}]
        first, second = entries(halves, {}, prompt_input)
        assert first.id == "\U0001f600"
        assert isinstance(second, Item), "it is the same id"


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with (
        LocalCluster(n_workers=2, threads_per_worker=2, processes=False, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        yield client


@pytest.fixture
def paper(monkeypatch: pytest.MonkeyPatch) -> type[HeadlessSlot]:
    class Paper(PaperSlot):
        @classmethod
        def several(cls, serving: Serving) -> list[Paper]:
            return [cls() for _ in range(serving.browsers)]

    monkeypatch.setattr(fleet_worker, "HeadlessSlot", Paper)
    return Paper  # type: ignore[return-value]


class TestFleet:
    def test_results_are_in_order_and_an_endless_iterator_is_read_as_needed(
        self, client: Client, paper: object
    ) -> None:
        read = 0

        def numbers() -> Iterator[int]:
            nonlocal read
            while True:
                yield read
                read += 1

        with Fleet(client, "/models/paper", 2) as fleet:
            found = list(itertools.islice(fleet.map(SAME, numbers(), batch=4), 100))
        assert [item.value for item in found] == [*range(100)]
        assert {item.adapter for item in found} == {"paper"}
        assert len({item.worker for item in found}) == 2
        assert read < 100 + 4 * 2 * 2 * (2 + 4)

    def test_a_cluster_without_the_package_is_told_what_to_install(
        self, client: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def register(plugin: object) -> None:
            # The text that Dask gives for it.
            raise RuntimeError("ModuleNotFoundError(\"No module named 'capstan_host.fleet'\")")

        monkeypatch.setattr(client, "register_plugin", register)
        with pytest.raises(FleetError, match=r"'capstan_host.fleet'.*: install capstan-webgpu\[fleet\]"):
            Fleet(client, "/models/paper")

    def test_a_second_run_computes_what_the_first_did_not(self, client: Client, paper: object, tmp_path: Path) -> None:
        path = tmp_path / "r.jsonl"
        with Fleet(client, "/models/paper", 2) as fleet:
            first = list(fleet.map(SAME, ["a", "b", "kill", "c"], out=path, ordered=False))
            assert sorted(item.id for item in first) == ["0", "1", "2", "3"]
            assert [item.error.type for item in first if item.error] == ["BrowserError"]
            again = list(fleet.map(SAME, ["a", "b", "kill", "c", "d"], out=path))
            assert [item.id for item in again] == ["2", "4"]
            changed = list(fleet.map(SAME + "#", ["a", "b"], out=path))
            assert [item.id for item in changed] == ["0", "1"]
        ids = [json.loads(line)["id"] for line in path.read_text().splitlines()]
        assert sorted(ids) == ["0", "1", "3", "4"]

    @pytest.mark.parametrize("ordered", [True, False])
    def test_every_item_has_a_result_or_an_error_of_its_own(
        self, ordered: bool, client: Client, paper: object, tmp_path: Path
    ) -> None:
        path = tmp_path / "r.jsonl"
        given: list[Any] = [
            *("a", float("nan"), "nan", "infinite", nested(10**5), "deep", {1, 2}, "half", "nul", 10**5000),
            *({"id": "\ud800", "input": "b"}, {"id": 10**5000, "input": "c"}, {"id": "0", "input": "d"}, "kill", "e"),
            *([float("inf")] * 40),
        ]
        good = {0: "a", 7: "\ud800", 8: "\0", 10: "b", 14: "e"}
        with Fleet(client, "/models/paper", 2) as fleet:
            for _ in range(2):
                found = {item.index: item for item in fleet.map(SAME, given, out=path, ordered=ordered, batch=4)}
                assert {*found} in ({*range(len(given))}, {*range(len(given))} - {*good})
                for index, item in found.items():
                    assert item.value == good.get(index)
                    assert (item.error is None) == (index in good)
                lines = [read_strictly(line) for line in path.read_bytes().decode().split("\n")[:-1]]
                assert sorted(line["index"] for line in lines) == [*range(len(given))]
                assert len({line["id"] for line in lines}) == len(given)
                assert [line["value"] for line in sorted(lines, key=lambda line: line["index"]) if "value" in line] == [
                    *good.values()
                ]
        messages = {index: item.error.message for index, item in found.items() if item.error}
        for index, words in {
            1: "item 1 cannot be sent to a page as JSON",
            2: "the result is no JSON value .Out of range",
            5: "the result is no JSON value .*nested more than 64 levels deep",
            11: "id has 16610 bits",
            12: "id '0' is that of item 0",
        }.items():
            assert re.search(words, messages[index]), messages[index]

    def test_a_batch_of_items_that_cannot_be_asked_for_keeps_no_browser_waiting(
        self, client: Client, paper: object, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def sleep(seconds: float) -> None:
            raise AssertionError("a free browser was kept waiting")

        monkeypatch.setattr(dispatch, "time", SimpleNamespace(monotonic=time.monotonic, sleep=sleep))
        with Fleet(client, "/models/paper") as fleet:
            found = list(fleet.map(SAME, [float("nan"), "a"], batch=1))
        assert [item.error is None for item in found] == [False, True]

    def test_lines_of_a_file_that_are_no_items_have_errors_of_their_own(
        self, client: Client, paper: object, tmp_path: Path
    ) -> None:
        prompts = tmp_path / "prompts.jsonl"
        bad = [b"[" * 10**5, b'{"id": %s, "prompt": "b"}' % (b"1" * 5000), b"\0", b'"\xff"', b"", b'{"prompt": 5}']
        prompts.write_bytes(b"\n".join([b'{"prompt": "a"}', *bad, b'{"id": "\\ud800", "prompt": "z"}']))
        with Fleet(client, "/models/paper") as fleet:
            found = list(fleet.generate(fleet_command.lines(str(prompts)), out=tmp_path / "r.jsonl"))
        assert [item.error is None for item in found] == [True, *[False] * len(bad), True]
        assert [item.id for item in found] == ["0", *(str(index + 1) for index in range(len(bad))), "\ud800"]

    def test_options_that_no_page_can_be_sent_are_refused(self, client: Client, paper: object) -> None:
        with Fleet(client, "/models/paper") as fleet:
            for value in ({1, 2}, nested(10**5), float("nan")):
                tool = {"type": "function", "function": {"name": "f", "parameters": {"default": value}}}
                with pytest.raises(OptionError, match="the options cannot be sent to a page as JSON"):
                    fleet.chat([], tools=[tool])

    def test_workers_that_cannot_answer_are_left_and_without_others_the_reasons_are_told(
        self, client: Client, paper: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("capstan_host.fleet.browsers.PAUSE_SECONDS", 0)
        cluster: Any = client.cluster
        unfit: list[Any] = []
        answer = paper.answer
        bad = min(client.nthreads())

        async def some(slot: Any, job: Any, given: Any, done: Any) -> None:
            if slot in unfit:
                raise UnfitError("ModelFileError: not there")
            await answer(slot, job, given, done)

        monkeypatch.setattr(paper, "answer", some)
        with Fleet(client, "/models/paper", patience=1) as fleet:
            plugin = next(each for each in cluster.workers.values() if each.address == bad)
            unfit += plugin.plugins[fleet._dispatcher.name].browsers._slots
            found = list(fleet.map(SAME, range(40), batch=2))
            assert [item.value for item in found] == [*range(40)]
            assert [*fleet.unfit] == [bad]
            assert {item.worker for item in found} == {*client.nthreads()} - {bad}
            for each in cluster.workers.values():
                unfit += each.plugins[fleet._dispatcher.name].browsers._slots
            with pytest.raises(FleetError, match=f"no worker can answer.*{bad}: ModelFileError: not there"):
                list(fleet.map(SAME, range(4)))

    def test_workers_that_could_not_answer_are_asked_again_after_a_rest(
        self, client: Client, paper: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("capstan_host.fleet.browsers.PAUSE_SECONDS", 0)
        monkeypatch.setattr("capstan_host.fleet.dispatch.REST_SECONDS", 0.3)
        answer, back = paper.answer, time.monotonic() + 1

        async def late(slot: Any, job: Any, given: Any, done: Any) -> None:
            if time.monotonic() < back:
                raise UnfitError("BrowserError: Chromium finds no GPU here")
            await answer(slot, job, given, done)

        monkeypatch.setattr(paper, "answer", late)
        with Fleet(client, "/models/paper", patience=20) as fleet:
            assert [item.value for item in fleet.map(SAME, range(40), batch=2)] == [*range(40)]
            assert len(fleet.unfit) < 2

    def test_items_wait_while_no_worker_is_there(
        self, client: Client, paper: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        there: Any = client.nthreads
        draw = random.Random(1)
        monkeypatch.setattr(client, "nthreads", lambda: {} if draw.random() < 0.5 else there())
        with Fleet(client, "/models/paper") as fleet:
            assert [item.value for item in fleet.map(SAME, range(12), batch=1)] == [*range(12)]

    def test_a_batch_for_workers_that_are_gone_goes_to_others(
        self, paper: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("capstan_host.fleet.browsers.PAUSE_SECONDS", 0)
        answer, unfit, hanging, begun = paper.answer, [], [], threading.Event()

        async def some(slot: Any, job: Any, given: Any, done: Any) -> None:
            if slot in unfit:
                raise UnfitError("ModelFileError: not there")
            if slot in hanging and given[0].index >= 24:
                begun.set()
                await asyncio.sleep(60)
            await answer(slot, job, given, done)

        monkeypatch.setattr(paper, "answer", some)
        options: dict[str, Any] = {"threads_per_worker": 1, "processes": False, "dashboard_address": ":0"}
        with (
            LocalCluster(n_workers=2, **options) as cluster,
            Client(cluster) as client,
            Fleet(client, "/models/paper", timeout=60) as fleet,
        ):
            bad, good = cluster.workers.values()
            unfit += bad.plugins[fleet._dispatcher.name].browsers._slots
            hanging += good.plugins[fleet._dispatcher.name].browsers._slots

            def replace_the_good_one() -> None:
                assert begun.wait(20)
                cluster.sync(good.close, executor_wait=False)
                cluster.scale(3)

            end = threading.Thread(target=replace_the_good_one)
            end.start()
            found = list(fleet.map(SAME, range(40), batch=2))
            end.join()
            assert [item.value for item in found] == [*range(40)]
            assert good.address not in {item.worker for item in found[-4:]}

    def test_wrong_options_are_refused_before_anything_is_sent(self, client: Client, paper: object) -> None:
        with pytest.raises(OptionError, match="rows is 33; it must be from 1 to 32"):
            Fleet(client, "/models/paper", rows=33)
        with pytest.raises(OptionError, match="browsers_per_worker is 0; it must be from 1 to 2147483647"):
            Fleet(client, "/models/paper", 0)
        with pytest.raises(
            OptionError, match="has 2 threads, each of which waits for one browser: start it with --nth"
        ):
            Fleet(client, "/models/paper", 3)
        wrong: dict[str, dict[str, Any]] = {
            "timeout is nan; give seconds above 0": {"timeout": math.nan},
            "patience is nan; give seconds above 0": {"patience": math.nan},
            "Fleet: device is 5, of type int; give a text": {"device": 5},
            "device is 'gpu'; it must be one of 'webgpu', 'wasm', 'auto'$": {"device": "gpu"},
            "Fleet: rows is True, of type bool; give an integer": {"rows": True},
            "dtype is 'q3'; it must be one of": {"dtype": "q3"},
        }
        for words, given in wrong.items():
            with pytest.raises(OptionError, match=words):
                Fleet(client, "/models/paper", **given)
        with Fleet(client, "/models/paper") as fleet:
            for words, options in {
                "max_new_tokens is 2048; give a number from 1 to 2047": {"max_new_tokens": 2048},
                "'warmth' is not a search option": {"warmth": 1},
                "num_beams is 2; an item has one sequence": {"num_beams": 2},
                "max_length is the fleet's": {"max_length": 5},
                "batch is -1; it must be from 1 to": {"batch": -1},
                "batch is 0; it must be from 1 to": {"batch": 0},
                "stop_strings is {}; it must be a list of strings": {"stop_strings": {}},
            }.items():
                with pytest.raises(OptionError, match=words):
                    fleet.generate(["a"], **options)  # type: ignore[arg-type]
            with pytest.raises(OptionError, match="tools: expected a list of objects"):
                fleet.chat([[{"role": "user", "content": "a"}]], tools=[5])
            [refused] = fleet.chat([[{}]])
            assert refused.error is not None
            assert refused.error.message.startswith("item 0: messages[0].role: missing")
            with pytest.raises(OptionError, match="which is not a file"):
                fleet.map("nowhere.py", [1])
