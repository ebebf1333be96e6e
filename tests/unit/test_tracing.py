"""Traces: the format that Perfetto reads, lanes, bounds, and the file."""

from __future__ import annotations

import asyncio
import json
import random
import sys
from pathlib import Path
from typing import Any

import pytest

import capstan
from capstan import OptionError
from capstan.host import spans, tracing
from capstan.host.load_times import phase
from capstan.host.spans import HostSpans, Span, Spans
from tests.trace_format import slices_by_track

FOLDER = Path(__file__).parents[1] / "fixtures" / "nano-llama"


def host_spans(*found: Span, origin: float = 0.0, **fields: Any) -> HostSpans:
    return HostSpans(list(found), fields.pop("dropped", 0), origin, fields.pop("no_gpu_times", ""), **fields)


def python_spans(*found: Span, most: int = 1000) -> Spans:
    kept = Spans(lambda: 0.0, most)
    for each in found:
        kept.add(each)
    return kept


def test_a_span_is_a_complete_event_in_microseconds_since_1970_on_its_named_track() -> None:
    origin = 1_700_000_000_000.25
    made = tracing.chrome_trace(
        python_spans(Span("Python", "run tokens", 2.0, 3.5, {"tokens": 5})),
        host_spans(Span("wait", "burst", 2.5, 4.0), origin=origin, about={"adapter": "paper"}),
    )
    assert made["displayTimeUnit"] == "ms"
    found = slices_by_track(made)
    assert list(found) == ["Python", "wait"]
    [run], [wait] = found.values()
    assert (run["name"], run["ts"], run["dur"], run["args"]) == (
        "run tokens",
        1_700_000_000_002_250,
        1500,
        {"tokens": 5},
    )
    assert (wait["ts"], wait["dur"]) == (1_700_000_000_002_750, 1500)
    assert made["otherData"]["adapter"] == "paper"


def test_spans_that_overlap_without_holding_one_another_are_on_lanes_of_their_own() -> None:
    queued = [Span("wait", "burst", begin, begin + 25.0) for begin in (0.0, 10.0, 20.0, 30.0)]
    held = Span("wait", "readback", 1.0, 5.0)
    found = slices_by_track(tracing.chrome_trace(python_spans(), host_spans(*queued, held)))
    assert {track: [each["ts"] for each in lane] for track, lane in found.items()} == {
        "wait": [0, 1000, 30_000],
        "wait 2": [10_000],
        "wait 3": [20_000],
    }


def test_random_spans_are_all_there_and_nest_on_every_lane() -> None:
    draw = random.Random(7)
    given = [
        Span("wait", str(number), begin := 100 * draw.random(), begin + 20 * draw.random() ** 4)
        for number in range(500)
    ]
    # `slices_by_track` refuses slices that overlap.
    found = slices_by_track(tracing.chrome_trace(python_spans(), host_spans(*given)))
    assert sorted(int(each["name"]) for lane in found.values() for each in lane) == list(range(500))


def test_what_is_dropped_or_lacking_is_told() -> None:
    kept = python_spans(*(Span("Python", str(at), at, at + 1) for at in range(5)), most=3)
    made = tracing.chrome_trace(
        kept, host_spans(dropped=4, no_gpu_times="the adapter has no timestamp-query", unusable=2)
    )
    assert [each["name"] for each in slices_by_track(made)["Python"]] == ["0", "1", "2"]
    about = made["otherData"]
    assert about["dropped_spans"] == 2 + 4
    assert about["no_gpu_times"] == "the adapter has no timestamp-query"
    assert about["unusable_gpu_times"] == 2
    assert tracing.chrome_trace(kept, host_spans())["otherData"]["no_gpu_times"] is None


def test_a_model_on_cpython_is_traced_with_its_load(tmp_path: Path) -> None:
    file = tmp_path / "trace.json"

    async def work() -> capstan.Trace:
        async with capstan.trace(file) as taken:
            with pytest.raises(OptionError, match="the trace is under way: read it after the block"):
                _ = taken.content
            model = await capstan.Model.load(str(FOLDER))
            async with capstan.Generator(model) as generator:
                generator.append_tokens([5, 6, 7])
                for _ in range(4):
                    await generator.generate_next_token_async()
            await model.aclose()
        return taken

    content = asyncio.run(work()).content
    assert json.loads(file.read_text()) == content
    assert [path.name for path in tmp_path.iterdir()] == ["trace.json"]
    found = slices_by_track(content)
    assert {"load the model", "files"} <= {each["name"] for each in found["load"]}
    [run] = [each for each in found["Python"] if each["name"] == "run tokens"]
    assert run["args"] == {"tokens": 3}
    assert sum(each["name"] == "between bursts" for each in found["Python"]) >= 2
    assert content["otherData"]["no_gpu_times"] == "the reference device has no GPU"


def test_nothing_is_kept_without_a_trace() -> None:
    with phase("files"), spans.span("run tokens"):
        spans.note("Python", "between bursts", 0.0, 1.0)
    spans.begin(lambda: 0.0)
    assert spans.end().kept == []


def test_one_trace_is_taken_at_a_time_and_none_is_left_where_its_block_fails(tmp_path: Path) -> None:
    async def nested() -> None:
        async with capstan.trace(), capstan.trace():
            pytest.fail("a second trace began")

    with pytest.raises(OptionError, match="a trace is already under way"):
        asyncio.run(nested())

    async def failing() -> None:
        async with capstan.trace(tmp_path / "failed.json"):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        asyncio.run(failing())
    assert json.loads((tmp_path / "failed.json").read_text())["traceEvents"]
    with pytest.raises(OptionError, match="no trace is under way: begin one with"):
        asyncio.run(tracing.end_trace())


@pytest.mark.parametrize(
    ("name", "why"),
    [
        (
            "missing/trace.json",
            r"missing/trace\.json \(No such file or directory\): give a path in an existing, writable folder",
        ),
        ("folder", r"folder, which is not a file: give the path of a file"),
        ("", r"which is not a file"),
        ("file/trace.json", r"\(Not a directory\)"),
        ("n" * 300, r"\(File name too long\)"),
    ],
)
def test_a_file_that_cannot_be_written_is_refused_before_anything_begins(name: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()

    async def work() -> None:
        async with capstan.trace(tmp_path / name):
            pytest.fail("the trace began")

    with pytest.raises(OptionError, match=why):
        asyncio.run(work())
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "folder"]
    asyncio.run(taken())


async def taken() -> None:
    async with capstan.trace():
        pass


def test_a_device_is_not_replaced_and_a_link_is_followed(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="which is not a file"):
        tracing.TraceFile("/dev/null")
    (tmp_path / "to").mkdir()
    (tmp_path / "link.json").symlink_to(tmp_path / "to" / "trace.json")
    tracing.TraceFile(tmp_path / "link.json").write({"traceEvents": []})
    assert (tmp_path / "link.json").is_symlink()
    assert (tmp_path / "to" / "trace.json").read_text() == '{"traceEvents": []}'


@pytest.mark.skipif(sys.platform != "linux", reason="limits the size of files")
def test_what_was_there_stays_if_the_trace_cannot_be_written_whole(tmp_path: Path) -> None:
    import resource

    path = tmp_path / "trace.json"
    path.write_text("before")
    file = tracing.TraceFile(path)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        with pytest.raises(
            OptionError, match=r"trace\.json \(File too large\): give a path in an existing, writable folder"
        ):
            file.write({"traceEvents": ["a span"] * 1000})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [(each.name, each.read_text()) for each in tmp_path.iterdir()] == [("trace.json", "before")]
