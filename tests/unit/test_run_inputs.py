"""A kind of input is one class: with it in KINDS, every device plans, binds and feeds it."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from capstan import UnsupportedModelError, graph
from capstan.device import run_inputs
from capstan.device.host_memory import view_of
from capstan.device.lora_weights import LoraGraph
from capstan.device.model_memory import requirements
from capstan.device.reference.reference_model import ReferenceModel
from capstan.device.run_input import FREE, HostTensor, Run, RunInput, RunTensor, SequenceMemory
from capstan.device.run_inputs import require_fed
from capstan.device.wasm.wasm_model import WasmRunner
from capstan.device.webgpu.gpu_engine import BoundTensor
from capstan.device.webgpu.sequence_buffers import SequenceBuffers
from capstan.graph import GraphDescription
from capstan.graph.onnx_pb2 import ModelProto, NodeProto, TensorProto
from capstan.graph.wiring import value_info
from capstan.model_files.genai_config import DECODER
from capstan.model_files.genai_config_file import parse_genai_config
from tests.unit.test_host_memory import Heap

NANO = Path(__file__).parents[1] / "fixtures" / "nano-llama"
CONFIG = parse_genai_config((NANO / "genai_config.json").read_bytes())
CAPACITY, CHUNK = 32, 8
NAME = "token_steps"


class TokenSteps(RunInput):
    """A number that the graph adds to each id: 1."""

    @property
    def there(self) -> bool:
        return any(info.name == NAME for info in self.about.others)

    def feeds(self, run: Run) -> list[RunTensor]:
        return [RunTensor(NAME, f"{run.which} steps", "int64", (1, run.tokens))] if self.there else []

    def write_prompt(self, memory: SequenceMemory, ids: Sequence[int], past: int, valid: int | None) -> None:
        memory.device.copy_cpu_to_device(memory.spans["prompt steps"].sub(0, 8 * len(ids)), array("q", [1] * len(ids)))

    def write_step(self, memory: SequenceMemory, token: int, position: int) -> None:
        memory.device.copy_cpu_to_device(memory.spans["input steps"].sub(0, 8), array("q", [1]))

    def on_host(self, ids: Sequence[int], past: int) -> list[HostTensor]:
        data = array("q", [1] * len(ids)).tobytes()
        return [HostTensor(NAME, "int64", (1, len(ids)), data)] if self.there else []


def with_steps() -> ModelProto:
    """The nano llama whose ids are input_ids + token_steps."""
    model = graph.parse((NANO / "model.onnx").read_bytes())
    for node in model.graph.node:
        for place, name in enumerate(node.input):
            if name == "input_ids" and node.op_type == "Gather":
                node.input[place] = "stepped"
    model.graph.node.insert(0, NodeProto(op_type="Add", input=["input_ids", NAME], output=["stepped"]))
    model.graph.input.append(value_info(NAME, TensorProto.INT64, ["batch_size", "sequence_length"]))
    return model


@pytest.fixture
def about(monkeypatch: pytest.MonkeyPatch) -> GraphDescription:
    found = graph.describe(with_steps(), CONFIG.decoder, 512)
    with pytest.raises(UnsupportedModelError, match=r"an input token_steps \[batch_size, sequence_length\]"):
        require_fed(found)
    monkeypatch.setattr(run_inputs, "KINDS", [*run_inputs.KINDS, TokenSteps])
    require_fed(found)
    return found


def test_buffers_of_a_sequence_have_it(about: GraphDescription) -> None:
    made = SequenceBuffers.allocate(Heap(), about, CAPACITY, CHUNK, "test", offset_alignment=256)
    buffers = asyncio.run(made)
    for which, length in (("input", 1), ("prompt", FREE)):
        [bound] = [feed for feed in buffers.tensors(which, length)[0] if feed.name == NAME]
        assert bound == BoundTensor(NAME, buffers.handle(f"{which} steps"), "int64", (1, length))
        assert bound.buffer in buffers.written(which)
    buffers.write_prompt([4, 5, 6], 0)
    buffers.set_input(7, 3)
    assert [*array("q", bytes(view_of(buffers.spans["prompt steps"])[:32]))] == [1, 1, 1, 0]
    assert [*array("q", bytes(view_of(buffers.spans["input steps"])[:8]))] == [1]
    need = requirements(about, (), batch_size=1, max_length=CAPACITY, chunk=CHUNK)
    assert {item.name: item.bytes for item in need.pool("io")}["prompt steps"] == 8 * CHUNK


def test_the_reference_device_feeds_it(about: GraphDescription) -> None:
    stepped = ReferenceModel(NANO, CONFIG, {DECODER: with_steps().SerializeToString()}).sequence(CAPACITY)
    plain = ReferenceModel(NANO, CONFIG).sequence(CAPACITY)
    for ids in ([4, 5, 6], [7]):
        assert stepped.prefill(ids, every=True) == plain.prefill([token + 1 for token in ids], every=True)


class Paper:
    """A session of web/src/worker/wasm.ts, and its sequence, which note what they are given."""

    def __init__(self) -> None:
        self.given: list[Any] = []

    def sequence(self, spec: dict[str, Any]) -> Paper:
        return self

    def feed(self, tensors: Sequence[HostTensor]) -> None:
        self.given.append([(each.name, each.dims, [*memoryview(each.data).cast("B").cast("q")]) for each in tensors])

    async def step(self, ids: bytes, past: int, kept: int) -> array[float]:
        self.given.append([*array("q", ids)])
        return array("f", [0.0])


def test_the_cpu_of_a_page_feeds_it_in_every_run(about: GraphDescription) -> None:
    paper: Any = Paper()
    runner = WasmRunner(paper, about, CAPACITY, LoraGraph())
    asyncio.run(runner.run([4, 5], 0))
    asyncio.run(runner.run([6], 2))
    assert paper.given == [[(NAME, (1, 2), [1, 1])], [4, 5], [(NAME, (1, 1), [1])], [6]]


def test_without_it_each_run_is_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    paper: Any = Paper()
    plain = graph.describe(graph.parse((NANO / "model.onnx").read_bytes()), CONFIG.decoder, 512)
    asyncio.run(WasmRunner(paper, plain, CAPACITY, LoraGraph()).run([4, 5], 0))
    assert paper.given == [[4, 5]]
