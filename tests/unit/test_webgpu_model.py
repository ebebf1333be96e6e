"""A model on WebGPU frees everything exactly once, whatever fails, is cancelled or is closed on the way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, cast

import pytest

from capstan import (
    CapstanError,
    ClosedError,
    DeviceLostError,
    FallbackWarning,
    OutOfMemoryError,
    TapeError,
    fallback,
)
from capstan.device import probe
from capstan.device.model_interface import TapeOptions
from capstan.device.separate_rows import SeparateRows
from capstan.device.webgpu import row_source, unused_time
from capstan.device.webgpu.decoder import WebGpuDecoder
from capstan.device.webgpu.drafted_steps import NOTHING
from capstan.device.webgpu.prompt_runs import PromptRuns
from capstan.device.webgpu.tapes import prefill_tapes
from capstan.device.webgpu.tapes.decode_step import DecodeStep
from capstan.device.webgpu.tapes.prefill_tapes import PrefillTapes
from capstan.device.webgpu.tapes.row_tapes import TapeKind
from capstan.device.webgpu.tapes.step_recorder import StepRecorder
from capstan.device.webgpu.webgpu_graphs import Graphs, rewrite
from capstan.device.webgpu.webgpu_model import WebGpuModel
from capstan.graph import LeftOut
from capstan.graph.capture import Uncapturable
from capstan.memory import DeviceBuffer, Pools
from capstan.model_files.genai_config import GenaiConfig
from capstan.model_files.genai_config_file import parse_genai_config
from capstan.stages.search import SearchOptions
from capstan.stages.speculation_options import Speculation
from capstan.weights.shared import SharedWeights
from tests.unit.paper_engine import PaperEngine
from tests.unit.paper_load import ABLE, PROBED, load_on_paper, unread

LLAMA = Path(__file__).parents[1] / "fixtures" / "nano-llama"
CONFIG: GenaiConfig = parse_genai_config((LLAMA / "genai_config.json").read_bytes(), "nano-llama")
CAPACITY = 512
PROMPT = [1] * CAPACITY
"""As long as one of the runs that may have a tape."""


LFM2 = Path(__file__).parents[1] / "fixtures/families/lfm2"
STATEFUL: GenaiConfig = parse_genai_config((LFM2 / "genai_config.json").read_bytes(), "lfm2")
"""A model with states."""


@cache
def rewritten(folder: Path = LLAMA) -> Graphs:
    config = STATEFUL if folder == LFM2 else CONFIG
    return asyncio.run(rewrite((folder / "model.onnx").read_bytes(), config, unread, 10))


@pytest.fixture
def graphs(no_running_loop: None) -> Graphs:
    """Made in a test's own time, when no browser's loop runs."""
    return rewritten()


@pytest.fixture
def stateful(no_running_loop: None) -> Graphs:
    return rewritten(LFM2)


async def recorded_step(recorder: StepRecorder) -> DecodeStep:
    """As `StepRecorder.record` uses the engine."""
    engine, step = recorder.step.engine, recorder.step
    recording = (await engine.record(step.captured))["handle"]
    try:
        await recorder.check.probe(recorder.buffers, [1, 2, 3])
        return replace(step, tape=await engine.make_tape(recording, [], []))
    finally:
        engine.drop_recording(recording)


async def recorded_run(tapes: PrefillTapes, length: int, binding: int) -> tuple[int, str]:
    """As `PrefillTapes._recorded` uses the engine."""
    recording = (await tapes.engine.record(binding))["handle"]
    try:
        tape = await tapes.engine.make_tape(recording, [], [])
        try:
            await tapes._check(tape, length, 0, False)
        except BaseException:
            tapes.engine.close_tape(tape)
            raise
        return tape, "made"
    finally:
        tapes.engine.drop_recording(recording)


async def recorded_several(
    engine: PaperEngine, one: PromptRuns, kind: TapeKind[Any], binding: int, fuse: object
) -> tuple[int, str]:
    """As `widened_tape` uses the engine."""
    recording = (await engine.record(binding))["handle"]
    try:
        tape = await engine.make_tape(recording, [], [])
        try:
            await one.prefill([1, 2, 3], 0)
        except BaseException:
            engine.close_tape(tape)
            raise
        return tape, "made"
    finally:
        engine.drop_recording(recording)


@pytest.fixture(autouse=True)
def paper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StepRecorder, "record", recorded_step)
    monkeypatch.setattr(PrefillTapes, "_recorded", recorded_run)
    monkeypatch.setattr(row_source, "widened_tape", recorded_several)
    monkeypatch.setattr(fallback, "counted", type(fallback.counted)())
    monkeypatch.setattr(unused_time, "UNUSED", 0.0)
    monkeypatch.setattr(unused_time, "BETWEEN", 0.0)
    monkeypatch.setitem(probe.remembered, PROBED, ABLE)


class Life:
    """A model from its load to its close, as a page with one generator after another uses it."""

    def __init__(self, graphs: Graphs, config: GenaiConfig = CONFIG) -> None:
        self.graphs, self.config = graphs, config
        self.engine = PaperEngine()
        self.weights = SharedWeights(cast(Any, self.engine), 1 << 30)
        self.model: WebGpuModel | None = None
        self.passes: tuple[str, ...] | None = None

    async def load(self, options: TapeOptions | None = None) -> WebGpuModel:
        options = options or TapeOptions("tape", self.passes)
        loaded = await load_on_paper(self.engine, self.graphs, self.config, options, weights=self.weights)
        self.model = WebGpuModel(loaded, options)
        return self.model

    async def decoder(self, capacity: int = CAPACITY) -> WebGpuDecoder:
        assert self.model is not None
        decoder = await self.model.decoder(capacity)
        decoder.set_search(SearchOptions())
        return decoder

    async def late_decoder(self) -> WebGpuDecoder:
        """One whose decode step is recorded behind a prompt."""
        assert self.model is not None
        decoder = await self.model.row_decoder(1, CAPACITY, unrecorded=True)
        assert isinstance(decoder, WebGpuDecoder)
        decoder.set_search(SearchOptions())
        assert decoder.capture == "off"
        assert decoder.capture_note == "the decode step is recorded after the first token"
        await decoder.prefill(PROMPT, 0)
        await decoder.record()
        return decoder

    async def use(self) -> None:
        """Load, and generate."""
        await self.load()
        await self.generate()

    async def generate(self) -> None:
        """Run a prompt three times on each of two sequences that have drafts, the last time from a tape, have one take
        over a copy of the other's caches and score tokens, and then run it on one of the two. The step of the first is
        recorded late."""
        assert self.model is not None
        decoders = [await self.late_decoder(), await self.decoder()]
        for decoder in decoders:
            await decoder.prepare_drafts(Speculation(2, 4))
            await decoder.warm_up()
            for _ in range(3):
                await decoder.prefill(PROMPT, 0)
                await self.model.settled()
            await decoder.prefill(PROMPT[:7], 3)
        caches = decoders[0].caches()
        assert caches is not None
        kept = await caches.kept(3)
        try:
            await decoders[1].rest()
            decoders[1].adopt(kept, 3)
        finally:
            kept.free()
        await decoders[1].prefill(PROMPT[:7], 3)
        for _ in range(3):
            # The second has a tape made, from which the third is played.
            assert len(await decoders[1].score(PROMPT[:12], 3)) == 8
        for decoder in decoders:
            await decoder.close()
        await (await self.decoder()).prefill(PROMPT, 0)

    async def close(self) -> None:
        if self.model is not None:
            await self.model.close()

    async def settle(self) -> None:
        """Until what goes on by itself is over."""
        for _ in range(100):
            await asyncio.sleep(0)

    def check(self, what: str) -> None:
        assert self.engine.wrong == [], what
        assert +self.engine.live == {}, f"{what}: {+self.engine.live} left, {self.engine.handles}"


@pytest.mark.parametrize(
    ("matrices", "dtype", "window", "taped"),
    [
        ([[16, 16, 16]], "float16", 96, True),
        ([[16, 16, 16]], "float32", 96, False),
        ([], "float16", 96, False),
        ([], "float32", CAPACITY, True),
    ],
)
async def test_prompts_with_a_window_have_tapes_where_attention_of_ours_can_have_it(
    matrices: list[list[int]],
    dtype: str,
    window: int,
    taped: bool,
    graphs: Graphs,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    windowed = LeftOut(graphs.description.cache[0].past, window=window)
    about = replace(graphs.description, left_out=(windowed,), cache_dtype=dtype)
    life = Life(replace(graphs, description=about))
    adapter = {**life.engine.adapter(), "subgroup_size": 32, "subgroup_matrices": matrices}
    monkeypatch.setattr(life.engine, "adapter", lambda: adapter)
    await life.load()
    decoder = await life.decoder()
    found = "prefill" in decoder.tape_passes
    await life.close()
    assert found == taped


WHERE = "config: webgpu.enableGraphCapture"


def step_of(graphs: Graphs, options: TapeOptions) -> tuple[str, str | None, int]:
    """How a sequence's steps run, and how many step downs were counted for the option WHERE."""

    async def run() -> tuple[str, str | None, int]:
        life = Life(graphs)
        await life.load(options)
        decoder = await life.decoder()
        found = decoder.capture, decoder.capture_note
        await life.close()
        return *found, sum(times for what, times in fallback.fallbacks().items() if WHERE in what)

    return asyncio.run(run())


def choosing(graphs: Graphs) -> Graphs:
    """The same with a node that keeps it from being captured."""
    nodes = (Uncapturable("choice", "If", "chooses its path"),)
    return replace(graphs, description=replace(graphs.description, uncapturable=nodes))


def test_a_configuration_that_asks_for_capture_gets_it_or_a_warning(graphs: Graphs) -> None:
    asked = TapeOptions("tape", configured=WHERE)
    assert step_of(graphs, asked) == ("tape", None, 0)
    with pytest.warns(FallbackWarning, match=f'{WHERE} "1": .*choice.*chooses its path.*; decode steps run eagerly'):
        capture, note, counted = step_of(choosing(graphs), asked)
    assert (capture, counted) == ("off", 1)
    assert note is not None
    assert "chooses its path" in note


def test_a_step_that_is_eager_because_the_configuration_says_so_has_that_as_its_reason(graphs: Graphs) -> None:
    capture, note, counted = step_of(graphs, TapeOptions("off", configured=WHERE))
    assert (capture, counted) == ("off", 0)
    assert note == f'{WHERE} is "0"; Model.load(..., capture="tape") captures'
    assert step_of(graphs, TapeOptions("off")) == ("off", None, 0)


thinned = pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.extended)])
"""By default every third call is tried, with --extended each one."""


def calls_of_a_life(graphs: Graphs) -> int:
    async def run() -> int:
        life = Life(graphs)
        await life.use()
        calls = life.engine.calls
        assert life.engine.live["tape"] >= 7, "two steps, with and without drafts, two prompts, and scores"
        await life.close()
        life.check("nothing went wrong")
        return calls

    return asyncio.run(run())


def at(number: int, action: Callable[[], object]) -> Callable[[int], None]:
    """A hook that calls `action` once, at call `number` or the first one after it."""
    pending = [action]

    def on_call(call: int) -> None:
        if call >= number and pending:
            pending.pop()()

    return on_call


async def test_a_decoder_that_was_given_back_unrecorded_is_recorded_for_whoever_needs_it(graphs: Graphs) -> None:
    life = Life(graphs)
    model = await life.load()
    first = await model.row_decoder(1, CAPACITY, unrecorded=True)
    assert first.records_after == 1
    await first.close()
    again = await model.row_decoder(1, CAPACITY, unrecorded=True)
    assert (again is first, again.capture) == (True, "off")
    await again.close()
    needed = await model.decoder(CAPACITY)
    assert (needed is first, needed.capture, needed.records_after) == (True, "tape", None)
    await life.close()
    life.check("nothing went wrong")


@pytest.mark.filterwarnings("ignore::capstan.FallbackWarning")
async def test_where_memory_is_too_short_for_a_late_recording_steps_stay_eager(
    graphs: Graphs, monkeypatch: pytest.MonkeyPatch
) -> None:
    life = Life(graphs)
    model = await life.load()
    decoder = await model.row_decoder(1, CAPACITY, unrecorded=True)
    await decoder.row(0).prefill(PROMPT, 0)

    async def fail(binding: int) -> dict[str, Any]:
        raise OutOfMemoryError("no room for a second session")

    monkeypatch.setattr(life.engine, "record", fail)
    await decoder.record()
    assert (decoder.capture, decoder.records_after) == ("off", None)
    assert "no room for a second session" in str(decoder.capture_note)
    assert list(fallback.fallbacks().values()) == [1]
    await decoder.row(0).prefill(PROMPT, 0)
    await life.close()
    life.check("nothing went wrong")


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("kind", "every"),
    [
        (OutOfMemoryError, 3),
        pytest.param(OutOfMemoryError, 1, marks=pytest.mark.extended),
        (DeviceLostError, 3),
        (TapeError, 3),
        pytest.param(DeviceLostError, 1, marks=pytest.mark.extended),
        pytest.param(TapeError, 1, marks=pytest.mark.extended),
    ],
)
@pytest.mark.filterwarnings("ignore::capstan.FallbackWarning")
def test_whatever_call_fails_everything_is_freed_once(kind: type[CapstanError], every: int, graphs: Graphs) -> None:
    async def run(number: int) -> None:
        life = Life(graphs)

        def fail() -> None:
            life.engine.works = kind is not DeviceLostError
            raise kind("the test says so")

        life.engine.on_call = at(number, fail)
        with suppress(kind):
            await life.use()
        await life.close()
        await life.settle()
        life.check(f"{kind.__name__} in call {number}")

    for number in range(1, calls_of_a_life(graphs), every):
        asyncio.run(run(number))


@thinned
def test_wherever_it_is_cancelled_everything_is_freed_once_and_another_sequence_works(
    every: int, graphs: Graphs
) -> None:
    async def run(number: int) -> None:
        life = Life(graphs)
        using = asyncio.ensure_future(life.use())
        life.engine.on_call = at(number, using.cancel)
        with suppress(asyncio.CancelledError):
            await using
        if life.model is not None:
            decoder = await life.decoder()
            for _ in range(3):
                await decoder.prefill(PROMPT, 0)
            await decoder.close()
        await life.close()
        await life.settle()
        life.check(f"cancelled in call {number}")

    for number in range(1, calls_of_a_life(graphs), every):
        asyncio.run(run(number))


def test_a_load_that_is_cancelled_twice_leaves_nothing(graphs: Graphs) -> None:
    async def run(number: int) -> bool:
        life = Life(graphs)
        loading = asyncio.ensure_future(life.load())

        def cancel() -> None:
            loading.cancel()
            asyncio.get_running_loop().call_later(0, lambda: asyncio.get_running_loop().call_soon(loading.cancel))

        life.engine.on_call = at(number, cancel)
        with suppress(asyncio.CancelledError):
            await loading
        await life.settle()
        if life.model is not None:
            return False
        life.check(f"cancelled in call {number}")
        return True

    number = 1
    while asyncio.run(run(number)):
        number += 1
    assert number > 10


@thinned
def test_wherever_it_is_closed_everything_is_freed_once(every: int, graphs: Graphs) -> None:
    async def run(number: int) -> bool:
        life = Life(graphs)
        await life.load()
        closing: list[asyncio.Future[None]] = []
        life.engine.on_call = at(
            life.engine.calls + number, lambda: closing.append(asyncio.ensure_future(life.close()))
        )
        with suppress(ClosedError):
            await life.generate()
        if not closing:
            return False
        await closing[0]
        await life.settle()
        life.check(f"closed in call {number}")
        return True

    number = 1
    while asyncio.run(run(number)):
        number += every
    assert number > 100


async def test_a_first_sequence_without_memory_leaves_the_session_made_ahead_to_the_next(graphs: Graphs) -> None:
    life = Life(graphs)
    model = await life.load()

    def fail() -> None:
        raise OutOfMemoryError("the test says so")

    life.engine.on_call = at(life.engine.calls + 1, fail)
    with pytest.raises(OutOfMemoryError):
        await life.decoder()
    first, _ = await asyncio.gather(life.decoder(), life.decoder())
    owners = sorted(owner for (kind, _), owner in life.engine.handles.items() if kind == "session" and owner)
    assert [first.owner] == owners[1:], "the second sequence has the first one's tape, and no session"
    assert life.engine.live["tape"] == 2
    await model.close()
    life.check("closed")
    assert [owner.partition(" sequence ")[2] for owner in owners] == ["", "1"]


@pytest.mark.parametrize(("lasting", "records"), [(True, 1), (False, 2)])
async def test_a_tape_that_was_made_where_memory_was_short_serves_its_own_sequence_only(
    lasting: bool, records: int, graphs: Graphs, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded: list[DecodeStep] = []

    async def record(recorder: StepRecorder) -> DecodeStep:
        recorded.append(replace(await recorded_step(recorder), lasting=lasting))
        return recorded[-1]

    monkeypatch.setattr(StepRecorder, "record", record)
    life = Life(graphs)
    await life.load()
    first, second = [await life.decoder() for _ in range(2)]
    assert (first.capture, second.capture) == ("tape", "tape")
    await life.close()
    life.check("closed")
    assert len(recorded) == records


@pytest.mark.parametrize(("often", "made"), [(1, True), (CAPACITY, False)])
async def test_a_prompt_of_many_runs_has_their_tape_at_once(
    graphs: Graphs, monkeypatch: pytest.MonkeyPatch, often: int, made: bool
) -> None:
    monkeypatch.setattr(prefill_tapes, "OFTEN", often)

    life = Life(graphs)
    model = await life.load()
    decoder = await model.row_decoder(1, CAPACITY, unrecorded=True)
    await decoder.row(0).prefill(PROMPT, 0)
    assert decoder.tape_passes["prefill"].startswith("no length") != made
    for _ in range(2):
        await model.settled()
        await decoder.row(0).prefill(PROMPT, 0)
    assert not decoder.tape_passes["prefill"].startswith("no length")
    await life.close()


class GivenLife(Life):
    """Makes two rows over the caller's buffers, after a first sequence told the sizes of scratch."""

    def __init__(self, graphs: Graphs) -> None:
        super().__init__(graphs)
        self.passes = ("attention", "prefill")
        self.mine: list[DeviceBuffer] = []

    async def begin(self) -> Pools:
        model = await self.load()
        await (await self.decoder()).close()
        await model.trim()
        need = model.memory.requirements(2, CAPACITY)
        made: dict[str, dict[str, Any]] = {"persistent": {}, "io": {}, "scratch": {}}
        for pool, buffers in made.items():
            for item in need.items:
                if item.pool == pool:
                    buffers[item.name] = model.interface.allocate(item.bytes, label=item.name)
                    self.mine.append(buffers[item.name])
        assert len(made["scratch"]) == 3
        return Pools(**made)

    async def generate_over(self, pools: Pools) -> None:
        """Run prompts on the rows, take their scratch back and give it again."""
        assert self.model is not None
        rows = await self.model.row_decoder(2, CAPACITY, pools)
        assert isinstance(rows, SeparateRows)
        try:
            for row in range(2):
                rows.set_search(SearchOptions(), row)
                await rows.row(row).prefill(PROMPT, 0)
            await self.model.replace_scratch(rows, None)
            await self.model.replace_scratch(rows, pools.scratch)
            await rows.row(0).prefill(PROMPT[:7], 3)
        finally:
            # A generator shields its end in the same way.
            await asyncio.shield(asyncio.ensure_future(rows.close()))

    @property
    def held(self) -> list[str]:
        return [buffer.label for buffer in self.mine if buffer.loans]

    def close_mine(self) -> None:
        for buffer in self.mine:
            buffer.close()


@pytest.mark.parametrize("how", ["fails", "is cancelled"])
@pytest.mark.filterwarnings("ignore::capstan.FallbackWarning")
def test_wherever_it_ends_given_buffers_are_let_go_and_serve_again(how: str, graphs: Graphs) -> None:
    async def run(number: int) -> bool:
        life = GivenLife(graphs)
        pools = await life.begin()

        def fail() -> None:
            raise OutOfMemoryError("the test says so")

        using = asyncio.ensure_future(life.generate_over(pools))
        begun = life.engine.calls
        reached: list[int] = []
        action = fail if how == "fails" else using.cancel

        def act() -> None:
            reached.append(number)
            action()

        life.engine.on_call = at(begun + number, act)
        with suppress(OutOfMemoryError, asyncio.CancelledError):
            await using
        await life.settle()
        what = f"it {how} in call {number}"
        assert life.held == [], what
        life.engine.on_call = lambda _: None
        await life.generate_over(pools)
        assert life.held == [], what
        await life.close()
        life.close_mine()
        life.check(what)
        return bool(reached)

    number = 1
    while asyncio.run(run(number)):
        number += 1
    assert number > 40


async def test_rows_over_given_buffers_allocate_none_and_hold_them(graphs: Graphs) -> None:
    life = GivenLife(graphs)
    pools = await life.begin()
    assert life.model is not None
    before = life.engine.live["buffer"]
    rows = await life.model.row_decoder(2, CAPACITY, pools)
    assert life.engine.live["buffer"] == before
    assert sorted(life.held) == sorted(buffer.label for buffer in life.mine)
    taped = [spans for spans in life.engine.scratch.values() if spans]
    handles = {buffer.handle: buffer.size for buffer in life.mine if "scratch" in buffer.label}
    assert len(taped) == 2, "a step of each row"
    for spans in taped:
        assert sorted(size for _, _, size in spans) == sorted(handles.values())
        assert all(handles[handle] == size for handle, _, size in spans)
    life.close_mine()
    assert life.engine.live["buffer"] == before, "those closed early are held"
    await rows.close()
    await life.close()
    life.check("closed")


async def test_without_memory_for_their_logits_tokens_are_scored_one_a_run(graphs: Graphs) -> None:
    life = Life(graphs)
    await life.load()
    decoder = await life.decoder()

    def fail() -> None:
        raise OutOfMemoryError("no room for logits")

    life.engine.on_call = at(life.engine.calls + 1, fail)
    with pytest.warns(FallbackWarning, match="scores of several tokens in one run: no room for logits; each token"):
        assert len(await decoder.score(PROMPT[:6], 0)) == 5
    told, sessions = decoder.tape_passes["scores"], life.engine.live["session"]
    await decoder.close()
    await life.close()
    life.check("closed")
    assert (told, sessions) == ("a run for each token: no room for logits", 2)


class TestStates:
    """A model with states, which each step overwrites."""

    async def test_their_position_is_known_once_no_drafted_burst_is_under_way(
        self, stateful: Graphs, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        life = Life(stateful, STATEFUL)
        await life.load()
        decoder = await life.decoder(64)
        bursts: list[asyncio.Future[list[float]]] = []

        def drafted_burst(*_: int) -> asyncio.Future[list[float]]:
            bursts.append(asyncio.get_running_loop().create_future())
            return bursts[-1]

        monkeypatch.setattr(life.engine, "drafted_burst", drafted_burst, raising=False)
        points = decoder.runs.snapshots
        assert points is not None
        await decoder.prefill([1] * 20, 0)
        assert points.live == 20
        assert await decoder.prepare_drafts(Speculation(2, 4)) is None
        assert points.live is None, "the check of the tape ran other tokens"
        assert not points.taken
        await decoder.prefill([1] * 20, 0)
        waiting = [asyncio.ensure_future(decoder.submit_drafted(steps, None)) for steps in (1, 2)]
        assert points.live is None
        assert decoder.runs.length == 20 + 3 * 5
        taken = dict(points.taken)
        # Two drafts are right, then none, then four.
        bursts[0].set_result([*[0.0] * 5, 7, 7, 7, *[NOTHING] * 2])
        await waiting[0]
        assert points.live is None, "another burst is under way"
        # A plain burst behind drafted ones has no known position either.
        monkeypatch.setattr(life.engine, "burst", lambda *_: drafted_burst(), raising=False)
        plain = decoder.submit(2, False)
        assert (points.live, points.taken) == (None, taken)
        bursts[1].set_result([*[0.0] * 5, 8, *[NOTHING] * 4, *[9] * 5])
        await waiting[1]
        assert decoder.runs.length == 20 + 3 + 6 + 2
        assert points.live == decoder.runs.length - 1
        bursts[2].set_result([*[0.0] * 5, 3, 4])
        assert (await plain).ids == (3, 4)
        assert decoder.reachable(100) == 30
        last = asyncio.ensure_future(decoder.submit(4, False))
        assert points.live == decoder.runs.length - 1 == 34
        await asyncio.sleep(0)
        bursts[3].set_result([*[0.0] * 5, *[5] * 4])
        await last
        await life.close()
        life.check("states")
