"""A load on WebGPU begins before the adapter's probe has ended, and leaves nothing if the adapter is unfit."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from capstan.device.device_host import Opening
from capstan.device.model_interface import TapeOptions
from capstan.device.webgpu.loaded_model import load
from capstan.device.webgpu.webgpu_device import WebGpuDevice
from capstan.device.webgpu.webgpu_graphs import Graphs, rewrite
from capstan.device.webgpu.webgpu_model import WebGpuModel
from capstan.errors import DeviceUnavailableError, ModelFileError
from capstan.local.local_host import LocalHost
from capstan.memory import Capabilities
from capstan.model import Model
from capstan.model_files.genai_config_file import parse_genai_config
from capstan.weights.shared import SharedWeights
from tests.unit.paper_engine import PaperEngine
from tests.unit.paper_load import ABLE, PaperFile

LLAMA = Path(__file__).parents[1] / "fixtures/nano-llama"


class Load:
    """A load of nano-llama; tests hold its probe and its weights back."""

    def __init__(self, found: Capabilities = ABLE) -> None:
        self.engine, self.found = PaperEngine(), found
        self.probe_may_end, self.weights_may_come = asyncio.Event(), asyncio.Event()
        self.weights_began, self.session_made = asyncio.Event(), asyncio.Event()
        self.broken: Exception | None = None
        self.ended = ""
        create = self.engine.create_session

        async def create_session(*given: Any, **options: Any) -> int:
            session = await create(*given, **options)
            self.session_made.set()
            return session

        self.engine.create_session = create_session  # type: ignore[method-assign]

    async def run(self) -> WebGpuModel:
        config = parse_genai_config((LLAMA / "genai_config.json").read_text(), "genai_config.json")

        async def reading() -> Graphs:
            return await rewrite((LLAMA / "model.onnx").read_bytes(), config, cast(Any, None), 10)

        async def capabilities() -> Capabilities:
            await self.probe_may_end.wait()
            return self.found

        async def opened(location: str) -> Any:
            return SlowFile(self)

        device = WebGpuDevice(cast(Any, self.engine))
        device.capabilities = capabilities  # type: ignore[method-assign]
        shared, options = SharedWeights(cast(Any, self.engine), 1 << 30), TapeOptions("tape")
        loaded = await load(
            device, shared, "/m/", reading(), config, options, opened, lambda *_: None, cast(Any, SlowNotes())
        )
        return WebGpuModel(loaded, options)


class SlowNotes:
    """Notes that nobody wrote yet."""

    async def read(self, *given: object) -> None:
        await asyncio.sleep(0)

    async def write(self, *given: object) -> None: ...


class SlowFile(PaperFile):
    """A data file whose load waits for the test."""

    def __init__(self, load: Load) -> None:
        super().__init__("its digest")
        self._load = load

    async def load(self, sink: object, end: int, progress: object) -> None:
        self._load.weights_began.set()
        if self._load.broken is not None:
            raise self._load.broken
        try:
            await self._load.weights_may_come.wait()
            self._load.ended = "whole"
        except asyncio.CancelledError:
            self._load.ended = "cancelled"
            raise


async def test_weights_do_not_wait_for_the_probe_and_sessions_do(no_running_loop: None) -> None:
    started = Load()
    running = asyncio.ensure_future(started.run())
    await started.weights_began.wait()
    assert not started.session_made.is_set()
    started.weights_may_come.set()
    started.probe_may_end.set()
    await started.session_made.wait()
    loaded = (await running)._loaded
    assert started.ended == "whole"
    assert loaded.in_place
    assert loaded.ahead is not None
    await loaded.ahead


async def test_an_adapter_that_cannot_is_told_before_the_weights_are_there_and_nothing_stays(
    no_running_loop: None,
) -> None:
    started = Load(replace(ABLE, staging=False, missing=(("staging", "no byte comes back"),)))
    running = asyncio.ensure_future(started.run())
    await started.weights_began.wait()
    started.probe_may_end.set()
    with pytest.raises(DeviceUnavailableError, match="no byte comes back; use device='wasm'"):
        await running
    assert started.ended == "cancelled"
    assert (+started.engine.live, started.engine.wrong) == ({}, [])


@pytest.mark.parametrize("what", ["weights", "abort"])
async def test_a_load_that_fails_or_is_given_up_leaves_nothing(what: str, no_running_loop: None) -> None:
    started = Load()
    running = asyncio.ensure_future(started.run())
    if what == "weights":
        started.broken = ModelFileError("the weights are gone")
        started.probe_may_end.set()
    else:
        await started.weights_began.wait()
        running.cancel()
    with pytest.raises(ModelFileError if what == "weights" else asyncio.CancelledError):
        await running
    assert (+started.engine.live, started.engine.wrong) == ({}, [])


async def test_a_load_that_is_given_up_at_any_moment_leaves_nothing(no_running_loop: None) -> None:
    async def leaves_something(turns: int) -> bool:
        started = Load()
        started.weights_may_come.set()
        started.probe_may_end.set()
        running = asyncio.ensure_future(started.run())
        for _ in range(turns):
            await asyncio.sleep(0)
        if running.cancel():
            with pytest.raises(asyncio.CancelledError):
                await running
            assert (+started.engine.live, started.engine.wrong) == ({}, []), f"after {turns} turns"
            return False
        return True

    turns = 0
    while not await leaves_something(turns):
        turns += 1
    assert turns > 5


async def test_a_model_that_is_given_up_while_its_tokenizer_is_made_is_closed(
    no_running_loop: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = 0
    opened: list[Any] = []
    open_model = LocalHost.open_model

    async def open_slowly(self: Any, opening: Opening, device: str) -> Any:
        opening.progress("model.onnx.data", 1, 2)
        opened.append(await open_model(self, opening, device))
        close = opened[-1].close

        async def counted() -> None:
            nonlocal closed
            closed += 1
            await close()

        opened[-1].close = counted
        return opened[-1]

    monkeypatch.setattr(LocalHost, "open_model", open_slowly)

    async def ended(turns: int) -> bool:
        running = asyncio.ensure_future(Model.load(str(LLAMA)))
        for _ in range(turns):
            await asyncio.sleep(0)
        given_up = running.cancel()
        try:
            await (await running).aclose()
        except asyncio.CancelledError:
            assert given_up
        return not given_up

    turns = 0
    while not await ended(turns):
        assert closed == len(opened), f"after {turns} turns"
        turns += 1
