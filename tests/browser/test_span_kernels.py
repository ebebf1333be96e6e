"""The operations on spans on the GPU against host memory, which defines them: byte for byte, around the spans too."""

from __future__ import annotations

import base64
import random
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from capstan.device.casts import ELEMENT_BYTES
from capstan.memory import StridedCopy
from capstan_host.site_server import SiteServer
from tests.browser.bundled_page import page_with
from tests.unit.test_host_memory import INPUTS, PAIRS, Heap, filled

ROOT = Path(__file__).parents[2]

Step = list[Any]
Calls = Sequence[Sequence[Step]]


class SpanPage:
    """The page with the bundled test script."""

    def __init__(self, page: Page) -> None:
        self.page = page

    def run(self, buffers: Sequence[bytes], calls: Calls, **options: Any) -> dict[str, Any]:
        """The buffers after the calls of `execute`, and the counts of each call."""
        request = {"buffers": [base64.b64encode(data).decode() for data in buffers], "calls": calls, **options}
        result: dict[str, Any] = self.page.evaluate("request => runSpans(request)", request)
        result["buffers"] = [base64.b64decode(text) for text in result["buffers"]]
        assert result["left"] == 0, "buffers are left after destroy"
        return result

    def check(self, buffers: Sequence[bytes], calls: Calls, **options: Any) -> dict[str, Any]:
        """Run, and compare every byte with what host memory gives."""
        result = self.run(buffers, calls, **options)
        assert [call["error"] for call in result["calls"]] == [None] * len(calls)
        expected = on_the_host(buffers, [step for steps in calls for step in steps])
        for index, (got, wanted) in enumerate(zip(result["buffers"], expected, strict=True)):
            wrong = next((at for at in range(len(wanted)) if got[at] != wanted[at]), None)
            assert wrong is None, f"byte {wrong} of buffer {index}: {got[wrong]}, not {wanted[wrong]}, after {calls}"
        return result


@pytest.fixture(scope="module")
def spans(browser: Browser, site: SiteServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SpanPage]:
    with page_with("span_kernels_page.ts", browser, site.url, tmp_path_factory.mktemp("spans")) as page:
        yield SpanPage(page)


def on_the_host(contents: Sequence[bytes], steps: Sequence[Step]) -> list[bytes]:
    """The buffers after the steps, by host memory."""
    heap = Heap()
    buffers = [filled(heap, data) for data in contents]
    for kind, index, offset, *rest in steps:
        buffer = buffers[index]
        match kind, rest:
            case "copy", [target, at, length]:
                heap.copy_tensors([(buffer.span(offset, length), buffers[target].span(at, length))])
            case "strided", [source_stride, target, at, stride, length, count]:
                source, destination = buffer.span(offset), buffers[target].span(at)
                heap.copy_strided([StridedCopy(source, source_stride, destination, stride, length, count)])
            case "zero", [length]:
                heap.zero(buffer.span(offset, length))
            case "cast", [source_type, target, at, target_type, count]:
                destination = buffers[target].span(at, count * ELEMENT_BYTES[target_type])
                source = buffer.span(offset, count * ELEMENT_BYTES[source_type])
                heap.cast(source, source_type, destination, target_type)
            case "mask", [dtype, capacity, old, new]:
                length = len(old) * capacity * ELEMENT_BYTES[dtype]
                heap.update_attention_mask(buffer.span(offset, length), dtype, capacity, old, new)
            case "positions", [dtype, starts, count]:
                length = len(starts) * count * ELEMENT_BYTES[dtype]
                heap.update_position_ids(buffer.span(offset, length), dtype, starts, count)
            case _:
                raise AssertionError(kind)
    return [bytes(buffer.handle) for buffer in buffers]


def random_copies(source: random.Random, size: int, count: int) -> list[Step]:
    """Copies and zeros among three buffers of `size` bytes, many of them short, misaligned or in one buffer."""
    steps: list[Step] = []
    for _ in range(count):
        a, b = source.randrange(3), source.randrange(3)
        length = source.choice([source.randrange(12), source.randrange(size // 2), source.randrange(size)])
        at, to = source.randrange(size + 1 - length), source.randrange(size + 1 - length)
        if source.random() < 0.3:
            at, to, length = at & ~3, to & ~3, length & ~3
        if source.random() < 0.2:
            steps.append(["zero", a, at, length])
        else:
            steps.append(["copy", a, at, b, to, length])
    return steps


def test_copies_and_zeros_of_any_alignment_in_order_in_one_submit(spans: SpanPage) -> None:
    source = random.Random(1)
    buffers = [source.randbytes(256) for _ in range(3)]
    calls = [random_copies(source, 256, count) for count in (1, 1, 1, 1, 1, 1, 2, 3, 100, 300, 300)]
    result = spans.check(buffers, calls)
    assert [call["submits"] for call in result["calls"] if call["submits"] != 1] == []


def test_short_copies_at_every_alignment(spans: SpanPage) -> None:
    source = random.Random(2)
    buffers = [source.randbytes(16) for _ in range(8)]
    lengths = [(at, to, length) for at in range(4) for to in range(4) for length in (0, 1, 2, 3, 4, 5, 7, 8, 9)]
    for chunk in range(0, len(lengths), 24):  # each result is looked at before the next copies hide it
        steps: list[Step] = []
        for index, (at, to, length) in enumerate(lengths[chunk : chunk + 24]):
            steps.append(["copy", index % 7, at, index % 7 + 1, to, length])
        spans.check(buffers, [steps])


def test_pieces_of_strided_copies_go_where_each_belongs(spans: SpanPage) -> None:
    source = random.Random(10)
    buffers = [source.randbytes(1024) for _ in range(2)]
    steps: list[Step] = [
        ["strided", 0, 16, 64, 1, 8, 24, 20, 7],  # whole words: from far apart to close together
        ["strided", 1, 0, 12, 0, 512, 40, 12, 9],
        ["strided", 0, 3, 33, 1, 600, 7, 7, 6],  # of any alignment
        ["strided", 0, 0, 16, 0, 700, 32, 16, 8],  # in one buffer
        ["strided", 0, 0, 0, 1, 1020, 4, 4, 1],
        ["strided", 0, 0, 8, 1, 0, 8, 8, 0],
    ]
    for count in range(1, len(steps) + 1):
        spans.check(buffers, [steps[count - 1 : count]])
    result = spans.check(buffers, [steps])
    assert result["calls"][0]["submits"] == 1


@pytest.mark.parametrize("step", ["copy", "zero"])
def test_steps_in_one_buffer_at_every_alignment_and_distance(spans: SpanPage, step: str) -> None:
    """One buffer for each case, so that every byte around the span is seen."""
    source = random.Random(3)
    cases: list[Step] = []
    for offset in (0, 1, 2, 3, 4, 5):
        for length in (1, 2, 3, 4, 5, 8, 13):
            cases += [[offset, to, length] for to in (0, 1, 2, 3, 7, 8)] if step == "copy" else [[offset, length]]
    buffers = [source.randbytes(24) for _ in cases]
    steps: list[Step] = [
        ["copy", i, case[0], i, case[1], case[2]] if step == "copy" else ["zero", i, *case]
        for i, case in enumerate(cases)
    ]
    spans.check(buffers, [steps])


def test_a_span_larger_than_may_be_bound_or_stashed_at_once_goes_in_pieces(spans: SpanPage) -> None:
    source = random.Random(4)
    size = 6000
    buffers = [source.randbytes(size) for _ in range(3)]
    limits = {"binding": 1024, "bounce": 103}
    steps: list[Step] = [
        ["copy", 0, 5, 0, 300, 5000],  # overlapping, towards higher offsets
        ["copy", 1, 301, 1, 2, 5500],  # and towards lower ones
        ["copy", 0, 4, 0, 8, 5600],
        ["copy", 0, 3, 1, 5, 5900],
        ["cast", 1, 10, "int64", 2, 1, "float16", 700],
        ["cast", 2, 100, "float16", 0, 3, "int64", 700],
        ["mask", 2, 4, "int64", 100, [0, 5, 99, 100, 3, 7], [100, 99, 0, 0, 3, 8]],
        ["mask", 1, 3, "int32", 700, [0, 700], [700, 0]],
        ["positions", 0, 2, "int64", [5, -2, 2**40, 9, 0, 1], 90],
        ["positions", 1, 1, "int32", [5, -2], 700],
    ]
    for count in range(1, len(steps) + 1):
        spans.check(buffers, [steps[count - 1 : count]], limits=limits)
    result = spans.check(buffers, [steps], limits=limits)
    assert 256 < result["most_bound"] <= limits["binding"]


def test_a_source_that_is_not_storage_is_read_all_the_same(spans: SpanPage) -> None:
    source = random.Random(5)
    buffers = [source.randbytes(64) for _ in range(3)]
    steps: list[Step] = [
        ["copy", 0, 3, 1, 5, 50],
        ["cast", 0, 4, "float16", 2, 8, "float32", 10],
        ["copy", 0, 8, 1, 4, 16],
        ["copy", 1, 3, 0, 8, 0],
    ]
    spans.check(buffers, [steps], staging=[0])


@pytest.mark.parametrize("source", ELEMENT_BYTES)
def test_casts_are_host_memorys_bit_for_bit(spans: SpanPage, source: str) -> None:
    """Every float16, and tens of thousands of the others; see tests/unit/test_host_memory.py."""
    data = INPUTS[source]
    count = len(data) // ELEMENT_BYTES[source]
    targets = [target for start, target in PAIRS if start == source]
    buffers = [data + bytes(-len(data) % 4)]
    steps: list[Step] = []
    for index, target in enumerate(targets, start=1):
        buffers.append(b"\xcc" * ((count * ELEMENT_BYTES[target] + 7) & ~3))
        steps.append(["cast", 0, 0, source, index, 4 if ELEMENT_BYTES[target] != 2 else 2, target, count])
    buffers = [data + b"\xcc" * (-len(data) % 8 + 8) for data in buffers]
    spans.check(buffers, [steps])


def test_casts_at_any_offset_and_in_one_buffer(spans: SpanPage) -> None:
    source = random.Random(6)
    buffers: list[bytes] = []
    steps: list[Step] = []
    for start, target in PAIRS:
        for _ in range(6):
            count = source.randrange(1, 7)
            at, to = source.randrange(12), source.randrange(12)
            size = (max(at + count * ELEMENT_BYTES[start], to + count * ELEMENT_BYTES[target]) + 11) & ~3
            data = bytearray(source.randbytes(size))
            place = source.randrange(len(INPUTS[start]) - 64) & ~7
            data[at : at + count * ELEMENT_BYTES[start]] = INPUTS[start][place : place + count * ELEMENT_BYTES[start]]
            steps.append(["cast", len(buffers), at, start, len(buffers), to, target, count])
            buffers.append(bytes(data))
            steps.append(["cast", len(buffers) - 1, at % 8, start, len(buffers), to, target, count])
            buffers.append(source.randbytes(size))
    spans.check(buffers, [steps])


def test_masks_of_any_batch_grow_and_shrink_and_keep_what_does_not_change(spans: SpanPage) -> None:
    source = random.Random(7)
    buffers: list[bytes] = []
    calls: list[list[Step]] = [[], []]
    for dtype in ("int64", "int32"):
        for batch in (1, 2, 3, 28, 29, 60):
            for offset in (0, 4, 1, 3):
                capacity = source.choice([1, 2, 5, 70])
                size = (offset + batch * capacity * ELEMENT_BYTES[dtype] + 7) & ~3
                lengths = [[source.randrange(capacity + 1) for _ in range(batch)] for _ in range(3)]
                for call, (old, new) in zip(calls, pairwise(lengths), strict=True):
                    call.append(["mask", len(buffers), offset, dtype, capacity, old, new])
                buffers.append(source.randbytes(size))
    result = spans.check(buffers, calls)
    assert [call["submits"] for call in result["calls"]] == [1, 1]


def test_rows_of_a_mask_share_a_dispatch_unless_they_share_a_word(spans: SpanPage) -> None:
    """Two invocations that merge bytes into one word would race, which few adapters show."""
    calls: list[list[Step]] = [
        [["mask", 0, 0, "int32", 3, [0, 3, 0], [3, 0, 3]]],
        [["mask", 0, 3, "int32", 3, [0, 3, 0], [3, 0, 3]]],
        [["mask", 0, 3, "int32", 3, [0, 3, 1], [1, 2, 2]]],
    ]
    result = spans.check([b"\xcc" * 40], calls)
    assert [call["dispatches"] for call in result["calls"]] == [1, 3, 1]


def test_a_mask_that_does_not_change_submits_nothing(spans: SpanPage) -> None:
    steps: list[Step] = [["mask", 0, 0, "int64", 2, [1], [1]], ["zero", 0, 3, 0], ["positions", 0, 0, "int64", [4], 0]]
    result = spans.check([b"\xcc" * 16], [steps])
    assert result["calls"][0]["submits"] == 0


def test_positions_of_any_batch(spans: SpanPage) -> None:
    source = random.Random(8)
    buffers: list[bytes] = []
    steps: list[Step] = []
    for dtype in ("int64", "int32"):
        for batch in (1, 2, 28, 29):
            for offset in (0, 4, 1, 2, 3):
                count = source.choice([1, 2, 3, 50])
                edges = [0, 1, -1, -2, 2**31 - 60, -(2**31)]
                if dtype == "int64":
                    edges += [2**32 - 1, 2**32, -(2**32) - 1, 2**52, -(2**52)]
                starts = [source.choice(edges) for _ in range(batch)]
                steps.append(["positions", len(buffers), offset, dtype, starts, count])
                buffers.append(source.randbytes((offset + batch * count * ELEMENT_BYTES[dtype] + 7) & ~3))
    spans.check(buffers, [steps])


def test_the_second_time_nothing_is_made(spans: SpanPage) -> None:
    source = random.Random(9)
    buffers = [source.randbytes(512) for _ in range(3)]
    steps = random_copies(source, 512, 40)
    steps += [
        ["cast", 0, 0, "float32", 1, 0, "int64", 20],
        ["cast", 2, 0, "float32", 2, 4, "float16", 20],
        ["mask", 1, 8, "int64", 20, [1, 2], [3, 4]],
        ["positions", 2, 0, "int64", [4, 5], 3],
    ]
    first, second = spans.check(buffers, [steps, steps])["calls"]
    assert first["create_buffer"] == 3  # temporary memory, parameters, zeros
    assert first["create_bind_group"] > 3
    assert {name: second[name] for name in first} == first | {"create_buffer": 0, "create_bind_group": 0}
    assert first["submits"] == 1


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("step", "message"),
    [
        (["copy", 0, 30, 1, 0, 3], "bytes 30 to 33 are not in buffer 0, which has 32"),
        (["copy", 0, 0, 1, 28, 8], "bytes 28 to 36 are not in buffer 1, which has 32"),
        (["strided", 0, 0, 16, 1, 0, 4, 4, 4], "bytes 32 to 36 are not in buffer 0, which has 32"),
        (["strided", 0, 0, 4, 1, 0, 16, 4, 4], "bytes 32 to 36 are not in buffer 1, which has 32"),
        (["zero", 0, -1, 3], "3 bytes at -1; both must be integers from 0"),
        (["zero", 0, 1.5, 3], "3 bytes at 1.5"),
        (["cast", 0, 0, "float32", 1, 0, "int64", 5], "bytes 0 to 40 are not in buffer 1"),
        (["cast", 0, 0, "uint8", 1, 0, "int64", 1], "type uint8 is not float32,float16,int32,int64,uint32"),
        (["mask", 0, 0, "int64", 4, [0], [5]], "a mask row changes from 0 to 5; it holds 4"),
        (["mask", 0, 0, "int64", 4, [0], []], "a mask row changes from 0 to undefined"),
        (["positions", 0, 0, "int64", [0], 5], "bytes 0 to 40 are not in buffer 0"),
        (["positions", 0, 0, "int64", [2**60], 1], "not exact"),
        (["move", 0, 0, 1], "there is no span step move"),
    ],
)
def test_steps_outside_of_their_buffers_are_refused_and_nothing_is_done(
    spans: SpanPage, step: Step, message: str
) -> None:
    buffers = [b"\xaa" * 32, b"\xbb" * 32]
    result = spans.run(buffers, [[["zero", 0, 0, 8], step]])
    assert message in result["calls"][0]["error"]
    assert result["calls"][0]["submits"] == 0
    assert result["buffers"] == buffers


@pytest.mark.extended
def test_spans_of_more_workgroups_than_one_dimension_takes(spans: SpanPage) -> None:
    row = 32768 * 64  # invocations in a row of workgroups; each takes a word
    results = spans.page.evaluate("([words, fewer]) => runLarge(words, fewer)", [65535 * 64 + 4321, row + 99])
    print("large spans, milliseconds:", {name: round(result["milliseconds"]) for name, result in results.items()})
    assert {name: result["wrong"] for name, result in results.items()} == dict.fromkeys(results, -1)
    assert list(results) == ["bytes", "cast", "positions", "mask"]
