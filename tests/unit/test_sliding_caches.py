"""Caches of attention over a window: the rewritten graph, their sizes, and the places of their rows in a sequence."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnxruntime as ort
import pytest

from capstan import graph
from capstan.device.model_memory import requirements
from capstan.device.run_inputs import sequence_items
from capstan.device.webgpu.cache_spans import CacheSpans
from capstan.device.webgpu.sliding import BASE, SlidingWindow, table_span
from capstan.fallback import FallbackWarning, fallbacks
from capstan.graph import CachePair, GraphDescription, SlidingCaches, WindowTable
from capstan.graph.description import warn_fixed_size_caches
from capstan.graph.long_rope import TableRows
from capstan.graph.onnx_pb2 import ModelProto
from capstan.graph.sliding_caches import SLACK
from capstan.memory import Capabilities, DeviceBuffer, DeviceSpan, StridedCopy, fits
from capstan.memory.info import MemoryType
from capstan.memory.usage import memory_info
from capstan.model_files.genai_config_file import parse_genai_config
from tests.long_windows import FIXTURES, PROMPT, WINDOW, longer

GEMMA2, GEMMA3 = FIXTURES / "nano-gemma2", FIXTURES / "nano-gemma3"
Floats = np.ndarray[Any, np.dtype[np.float32]]


def rewritten(folder: Path) -> tuple[ModelProto, SlidingCaches]:
    model = graph.total_length_on_gpu(graph.parse((folder / "model.onnx").read_bytes()))
    made, found, reason = graph.sliding_caches(model)
    assert found is not None, reason
    return made, found


class Runs:
    """Runs a model with caches that it is given, as numpy arrays, on the CPU."""

    def __init__(self, model: ModelProto, folder: Path) -> None:
        path = folder / "run.onnx"
        path.write_bytes(graph.serialize(model))
        self.session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])

    def run(self, ids: Sequence[int], past: dict[str, Floats], total: int, **more: Any) -> dict[str, Floats]:
        feeds = {
            "input_ids": np.array([ids], np.int64),
            "attention_mask": np.ones((1, total), np.int64),
            **past,
            **more,
        }
        names = [each.name for each in self.session.get_outputs()]
        wanted = {each.name for each in self.session.get_inputs()}
        found = self.session.run(names, {name: value for name, value in feeds.items() if name in wanted})
        return dict(zip(names, cast(list[Floats], found), strict=True))


def pasts_of(results: dict[str, Floats]) -> dict[str, Floats]:
    return {name.replace("present", "past_key_values"): value for name, value in results.items() if "present" in name}


@pytest.mark.parametrize("source", [GEMMA2, GEMMA3], ids=["gemma2", "gemma3"])
def test_a_run_over_the_last_rows_computes_what_one_over_all_rows_does(source: Path, tmp_path: Path) -> None:
    """Only the layers with a window have fewer rows, rotated as before; two runs, of several tokens and of one."""
    folder = longer(source, tmp_path / "model")
    whole, (model, found) = Runs(graph.parse((folder / "model.onnx").read_bytes()), folder), rewritten(folder)
    none = {
        f"past_key_values.{layer}.{kind}": np.zeros((1, 2, 0, 16), np.float32)
        for layer in range(2)
        for kind in ("key", "value")
    }
    before = whole.run(PROMPT[:100], none, 100)
    sliding, base = Runs(model, folder), 100 - WINDOW
    past = pasts_of(before)
    held = {name: rows[:, :, base:] if name in found.pasts else rows for name, rows in past.items()}
    assert len(found.pasts) == 2
    data = (folder / "model.onnx.data").read_bytes()
    tables = {}
    for table in found.tables:
        rows = np.frombuffer(data, np.float32, table.rows.length // 4, table.rows.offset).reshape(-1, table.width)
        tables[table.name] = rows[base : base + WINDOW + 20]
    for ids in (PROMPT[100:108], PROMPT[108:109]):
        total = past["past_key_values.0.key"].shape[2] + len(ids)
        wanted = whole.run(ids, past, total)
        got = sliding.run(ids, held, total, **tables, **{found.base: np.array([base], np.int32)})
        assert np.allclose(got["logits"], wanted["logits"], atol=1e-4)
        assert got["present.0.key"].shape[2] == WINDOW + total - 100
        past, held = pasts_of(wanted), pasts_of(got)


def test_lengths_from_the_base_are_fed_apart(tmp_path: Path) -> None:
    model, found = rewritten(longer(GEMMA2, tmp_path))
    fed, lengths, reason = graph.lengths_as_inputs(model, "attention_mask", found.base)
    assert lengths is not None, reason
    inputs = {value.name for value in fed.graph.input}
    assert {lengths.seqlens_k, lengths.total, lengths.held_seqlens_k, lengths.held_total} <= inputs
    assert not inputs & {found.base, "attention_mask"}
    by_window = {
        any(item.name == "local_window_size" and item.i > 0 for item in node.attribute): list(node.input[5:7])
        for node in fed.graph.node
        if node.op_type == "GroupQueryAttention"
    }
    assert by_window == {
        True: [lengths.held_seqlens_k, lengths.held_total],
        False: [lengths.seqlens_k, lengths.total],
    }


def refused(change: Any, tmp_path: Path) -> str:
    model = graph.total_length_on_gpu(graph.parse((longer(GEMMA3, tmp_path) / "model.onnx").read_bytes()))
    node = next(node for node in model.graph.node if node.op_type == "GroupQueryAttention")
    change(model, node)
    made, found, reason = graph.sliding_caches(model)
    assert found is None
    assert graph.serialize(made) == graph.serialize(model)
    return reason


def test_attention_that_cannot_count_from_a_base_keeps_whole_caches(tmp_path: Path) -> None:
    def unrotated(_: ModelProto, node: Any) -> None:
        next(item for item in node.attribute if item.name == "do_rotary").i = 0

    def biased(_: ModelProto, node: Any) -> None:
        node.input[10] = "bias"

    def computed(model: ModelProto, node: Any) -> None:
        node.input[7] = "cosines"

    def own_length(model: ModelProto, node: Any) -> None:
        node.input[6] = "length"

    wanted = {
        unrotated: "it does not rotate queries and keys itself",
        biased: "it has an input attention_bias",
        computed: "its rotary table cosines is not a constant of rows",
        own_length: "its lengths are not sums of attention_mask",
    }
    for place, (change, told) in enumerate(wanted.items()):
        assert refused(change, tmp_path / str(place)).endswith(f": {told}")


def test_a_model_without_windows_is_left_alone() -> None:
    model = graph.parse((FIXTURES / "nano-llama" / "model.onnx").read_bytes())
    made, found, reason = graph.sliding_caches(model)
    assert (found, reason) == (None, "")
    assert graph.serialize(made) == graph.serialize(model)


def described(layers: int, heads: int, head: int, sliding: SlidingCaches | None = None) -> GraphDescription:
    """A float16 decoder of a shape, whose layers are GroupQueryAttention."""
    model = graph.parse((FIXTURES / "nano-llama" / "model.onnx").read_bytes())
    config = parse_genai_config((FIXTURES / "nano-llama" / "genai_config.json").read_bytes())
    found = graph.describe(model, config.decoder, 512)
    pairs = tuple(
        CachePair(layer, kind, f"past.{layer}.{kind}", f"present.{layer}.{kind}", heads, head)
        for layer in range(layers)
        for kind in ("key", "value")
    )
    return replace(found, cache=pairs, cache_dtype="float16", sliding=sliding)


def gemma3_1b() -> tuple[GraphDescription, GraphDescription]:
    """Its caches, 22 of 26 layers of which look back 512 positions: as whole ones, and as sliding ones."""
    names = [f"past.{layer}.{kind}" for layer in range(26) if layer % 6 != 5 for kind in ("key", "value")]
    rows = TableRows("", 0, 32768 * 256, 32768)
    tables = tuple(WindowTable(name, "float16", 128, rows) for name in ("cosines", "sines"))
    return described(26, 1, 256), described(26, 1, 256, SlidingCaches(512, "base", tuple(names), tables))


def caches(about: GraphDescription, capacity: int, chunk: int) -> int:
    return sum(item.bytes for item in sequence_items(about, capacity, chunk) if item.name.startswith("kv "))


def test_gemma3_1b_at_32k_needs_a_quarter_of_the_cache() -> None:
    whole, sliding = gemma3_1b()
    before, after = (caches(about, 32768, 2048) for about in (whole, sliding))
    assert before == 26 * 2 * 32768 * 256 * 2
    assert after == (4 * 2 * 32768 + 22 * 2 * (512 + 2048)) * 256 * 2
    assert after <= before / 4
    tables = [item.bytes for item in sequence_items(sliding, 32768, 2048) if item.name.startswith("window ")]
    assert sum(tables) < before / 500
    assert caches(sliding, 32768, 64) == (4 * 2 * 32768 + 22 * 2 * (512 + SLACK)) * 256 * 2


@pytest.mark.parametrize("capacity", [256, 512 + 2048, 512 + 2049])
def test_short_sequences_have_whole_caches(capacity: int) -> None:
    whole, sliding = gemma3_1b()
    assert (caches(sliding, capacity, 2048) < caches(whole, capacity, 2048)) == (capacity > 512 + 2048)
    assert sliding.slides(capacity, 2048) == (capacity > 512 + 2048)


def test_a_model_fits_that_would_not_with_whole_caches() -> None:
    whole, sliding = gemma3_1b()
    roomy = Capabilities("test", True, True, False, False, False, False, True, True, 1 << 28, 1 << 28, 256)
    needs = [requirements(about, (), batch_size=2, max_length=32768, chunk=2048) for about in (whole, sliding)]
    budget = needs[0].total.bytes // 2
    found = [fits(need, roomy, budget=budget) for need in needs]
    assert [bool(fit) for fit in found] == [False, True]


@dataclass
class Paper:
    """A device on paper, whose buffers are arrays of bytes."""

    buffers: dict[int, bytearray] = field(default_factory=dict)

    def span(self, size: int) -> DeviceSpan:
        handle = len(self.buffers)
        self.buffers[handle] = bytearray(size)
        memory = memory_info("webgpu", MemoryType.DEFAULT)
        return DeviceBuffer(handle, size, memory, label="", category="io", owner="", free=lambda: None).span()

    def at(self, span: DeviceSpan) -> memoryview[int]:
        return memoryview(self.buffers[span.buffer.handle])[span.offset : span.offset + span.length]

    @contextmanager
    def batch(self) -> Iterator[None]:
        yield

    def copy_cpu_to_device(self, span: DeviceSpan, data: Any) -> None:
        self.at(span)[:] = memoryview(data).cast("B")

    def copy_tensors(self, pairs: Sequence[tuple[DeviceSpan, DeviceSpan]]) -> None:
        for source, target in pairs:
            self.at(target)[:] = bytes(self.at(source))

    def copy_strided(self, copies: Sequence[StridedCopy]) -> None:
        self.copy_tensors([pair for copy in copies for pair in copy.pairs()])


HEADS, HEAD, CAPACITY, LOOKS = 2, 2, 4000, 40


class PaperSequence:
    """A sequence on paper: each row of its sliding cache has the number of its position."""

    def __init__(self, chunk: int = 64, capacity: int = CAPACITY) -> None:
        rows = TableRows("", 0, 4 * capacity, capacity)
        self.sliding = SlidingCaches(LOOKS, "base", ("past.0.key",), (WindowTable("cosines", "float32", 1, rows),))
        self.about = described(1, HEADS, HEAD, self.sliding)
        self.about = replace(self.about, cache=self.about.cache[:1], cache_dtype="float32")
        self.device, self.chunk = Paper(), chunk
        room = self.sliding.room(capacity, chunk)
        sizes = {
            "state": 32,
            "window base": 16,
            "kv past.0.key": HEADS * room * HEAD * 4,
            table_span("cosines"): room * 4,
        }
        self.spans = {name: self.device.span(size) for name, size in sizes.items()}
        table = np.arange(capacity, dtype=np.float32).tobytes()
        self.window = SlidingWindow(
            cast(Any, self.device), self.about, self.sliding, [table], capacity, room, self.spans.__getitem__
        )
        self.window.fill_tables()

    def floats(self, name: str) -> Floats:
        return np.frombuffer(self.device.at(self.spans[name]), np.float32)

    @property
    def cache(self) -> Floats:
        return self.floats("kv past.0.key").reshape(HEADS, self.window.room, HEAD)

    def run(self, length: int, count: int, reached: int | None = None) -> None:
        """Run the positions from `length` up to `reached`, of the `count` that have room."""
        self.window.make_room(length, count)
        end = length + count if reached is None else reached
        cache, base = self.cache, self.window.base
        for position in range(length, end):
            cache[:, position - base] = [[position + 0.25 * head] * HEAD for head in range(HEADS)]
        self.require(end)

    def require(self, length: int) -> None:
        """All that the token behind `length` sees is in its place, and so are rotary rows and the base."""
        base = self.window.base
        first = max(0, length - LOOKS)
        assert base <= first
        for head in range(HEADS):
            rows = self.cache[head, first - base : length - base, 0]
            assert list(rows) == [position + 0.25 * head for position in range(first, length)]
        assert list(self.floats("window cosines")[: length - base]) == list(range(base, length))
        told = np.frombuffer(self.device.at(self.spans["state"]), np.uint32)
        assert told[BASE] == base
        assert np.frombuffer(self.device.at(self.spans["window base"]), np.int32)[0] == base

    def caches(self) -> CacheSpans:
        return CacheSpans(
            cast(Any, self.device), self.about, (self.spans["kv past.0.key"],), CAPACITY, "", window=self.window
        )


def test_rows_are_in_their_places_whatever_is_run() -> None:
    """Prompts in runs, bursts that may end early, and rewinds to where a window is held."""
    draw = random.Random(5)
    for chunk in (1, 64, 700):
        sequence, length = PaperSequence(chunk), 0
        slid = 0
        while length < CAPACITY - max(chunk, 64):
            before = sequence.window.base
            way = draw.random()
            if way < 0.4:
                count = draw.randint(1, chunk)
                sequence.run(length, count)
                length += count
            elif way < 0.8:
                count = draw.randint(1, 64)
                reached = draw.randint(length + 1, length + count)
                sequence.run(length, count, reached)
                length = reached
            elif sequence.window.holds(back := max(0, length - draw.randint(1, 60))) and back:
                length = back
            slid += sequence.window.base > before
        assert slid > 3


def test_bursts_under_way_that_give_less_than_they_may_leave_the_window() -> None:
    """Drafted steps give from one token to all: 256 positions may have been counted that are not there."""
    sequence, length = PaperSequence(), 100
    sequence.run(0, 64)
    sequence.run(64, 36)
    while length < CAPACITY - 400:
        sequence.window.make_room(length + 192, 64)
        sequence.require(length) if length > LOOKS else None
        cache, base = sequence.cache, sequence.window.base
        for position in range(length, length + 64):
            cache[:, position - base] = [[position + 0.25 * head] * HEAD for head in range(HEADS)]
        length += 64
        sequence.require(length)


def test_a_run_without_its_window_is_refused_and_one_from_the_start_is_not() -> None:
    sequence = PaperSequence()
    for start in range(0, 1600, 64):
        sequence.run(start, 64)
    assert sequence.window.holds(1600)
    gone = sequence.window.base + LOOKS - 1
    assert (sequence.window.holds(gone), sequence.window.holds(gone + 1)) == (False, True)
    with pytest.raises(ValueError, match=f"no longer hold the window before {gone}"):
        sequence.window.make_room(gone, 1)
    sequence.run(0, 10)
    assert sequence.window.base == 0


def slid(length: int) -> PaperSequence:
    sequence = PaperSequence()
    for start in range(0, length, 50):
        sequence.run(start, min(50, length - start))
    return sequence


@pytest.mark.parametrize("kept", [False, True], ids=["open", "kept"])
@pytest.mark.parametrize("length", [300, LOOKS + SLACK, 1400])
def test_other_sequences_continue_what_the_caches_hold(length: int, kept: bool) -> None:
    source, target = slid(length), slid(900)
    rows = source.caches()
    if kept:
        size = rows.size(length)
        made = source.device.span(size)
        rows = CacheSpans(cast(Any, source.device), source.about, (made,), length, "", kept_from=source.window.base)
        source.caches()._copy(rows, length, source.window.base)
    # Both devices are one for a copy.
    for name, span in list(target.spans.items()):
        moved = source.device.span(span.length)
        source.device.at(moved)[:] = target.device.at(span)
        target.spans[name] = moved
    target.device = source.device
    target.window.device = cast(Any, source.device)
    assert rows.continues(target.caches(), length)
    rows.copy_to(target.caches(), length)
    target.require(length)
    target.run(length, 60)


def test_nothing_is_continued_where_the_window_is_gone() -> None:
    source, base = slid(1400), slid(1400).window.base
    assert base > 0
    target = slid(100).caches()
    assert not source.caches().continues(target, base + LOOKS - 1)
    assert source.caches().continues(target, base + LOOKS)
    assert not source.caches().holds(base)
    short = PaperSequence(capacity=LOOKS + SLACK).caches()
    assert not source.caches().continues(short, base + LOOKS), "its steps know of no base"
    assert slid(300).caches().continues(short, 200)


def test_windows_over_whole_caches_are_told() -> None:
    about = replace(described(1, 1, 16), why_fixed_size="node attention: it has an input attention_bias")
    with pytest.warns(FallbackWarning, match="caches as long as the window of their attention: node attention: it has"):
        warn_fixed_size_caches(about)
    before = fallbacks()
    warn_fixed_size_caches(described(1, 1, 16))
    assert fallbacks() == before
