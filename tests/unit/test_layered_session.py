"""layered_session: our kernels compute an encoder's layers once they gave what the whole graph gives.

The engine has bytearrays, sessions of onnxruntime, and in numpy what the kernels' headers say that they compute.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import TensorProto

from capstan.device.device_interface import BoundSpan
from capstan.device.ort_session import RunReply
from capstan.device.webgpu.gpu_engine import Difference
from capstan.device.webgpu.layered_session import LayeredSession
from capstan.device.webgpu.webgpu_device import WebGpuDevice
from capstan.errors import TapeError
from capstan.fallback import FallbackWarning, fallbacks
from capstan.graph.encoder_layers import ACTIVATIONS
from capstan.graph.onnx_pb2 import ModelProto
from capstan.graph.spliced_embedding import without_mask
from capstan.host.notes import Notes
from tests.attention import attended
from tests.half_graphs import in_half
from tests.unit.paper_engine import PaperEngine

FIXTURES = Path(__file__).parents[1] / "fixtures/vision"
TYPES = {"tensor(float)": "float32", "tensor(float16)": "float16"}
Array = NDArray[Any]


def gemma() -> onnx.ModelProto:
    return onnx.load(FIXTURES / "nano-gemma3-vl/vision.onnx")


def idefics() -> onnx.ModelProto:
    data = (FIXTURES / "nano-idefics3/onnx/vision_encoder.onnx").read_bytes()
    made = without_mask(ModelProto.FromString(data), "pixel_attention_mask", "pixel_values")
    return onnx.ModelProto.FromString(made.SerializeToString())


def halved(model: onnx.ModelProto) -> onnx.ModelProto:
    """In float16, as torch exports it, too."""
    for node in model.graph.node:
        for item in node.attribute:
            if node.op_type == "Cast" and item.name == "to" and item.i == TensorProto.FLOAT:
                item.i = TensorProto.FLOAT16
    return in_half(model)


class Session:
    """A session of onnxruntime over the engine's buffers."""

    def __init__(self, engine: Engine, model: bytes, handle: int) -> None:
        self.engine, self.handle = engine, handle
        self.ort = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])

    def specs(self) -> tuple[list[Any], list[Any]]:
        inputs, outputs = (
            [[each.name, TYPES[each.type], each.shape or []] for each in part]
            for part in (self.ort.get_inputs(), self.ort.get_outputs())
        )
        return inputs, outputs

    async def run(self, feeds: Any, fetches: Any, views: Any) -> RunReply:
        given = {
            each["name"]: np.frombuffer(self.engine.bytes_of(each["buffer"]), each["dtype"])[
                : np.prod(each["dims"])
            ].reshape(each["dims"])
            for each in feeds
        }
        self.engine.runs.append([*given])
        made = self.ort.run([each["name"] for each in fetches], given)
        described = []
        for fetch, array in zip(fetches, map(np.asarray, made), strict=True):
            handle = self.engine.create_buffer("", array.nbytes, "", "")
            self.engine.write(handle, 0, array.tobytes())
            about = {"name": fetch["name"], "dtype": str(array.dtype), "dims": list(array.shape)}
            described.append({**about, "buffer": handle, "bytes": array.nbytes})
        return RunReply(described, [], 0)

    async def release(self) -> None:
        self.engine._take("session", self.handle)


class Engine(PaperEngine):
    """Sessions of onnxruntime, and tapes of kernels that are computed by numpy."""

    def __init__(self) -> None:
        super().__init__()
        self.tapes: dict[int, tuple[Mapping[str, Any], Mapping[int, int]]] = {}
        self.runs: list[list[str]] = []
        self.played = 0
        self.spoils: Callable[[Array], Array] = lambda y: y
        """The change of each product by a faulty kernel."""
        self.matrices = [[16, 16, 16]]

    def adapter(self) -> dict[str, Any]:
        sizes = {"max_workgroup_threads": 1024, "max_workgroup_bytes": 49152}
        return {**super().adapter(), **sizes, "subgroup_size": 32, "subgroup_matrices": self.matrices}

    def bytes_of(self, buffer: int) -> memoryview[int]:
        """All of a buffer."""
        return self._bytes(buffer, 0, self.handles["buffer", buffer].size)

    async def compare(self, pairs: Sequence[tuple[int, int, int, str]]) -> list[Difference]:
        found = []
        for one, other, size, dtype in pairs:
            a, b = (np.frombuffer(self._bytes(each, 0, size), dtype).astype(np.float64) for each in (one, other))
            away = float(np.sqrt(((a - b) ** 2).sum() / (b**2).sum()))
            found.append(Difference(float(np.abs(a - b).max()), float(np.abs(b).max()), 0, away))
        return found

    async def open_session(self, model: bytes, weights: Sequence[Any], owner: str, capture: bool) -> Session:
        assert not capture
        return Session(self, model, self._add("session"))

    async def restore_tape(self, stored: Mapping[str, Any], given: Mapping[int, int], owner: str) -> int:
        tape = self._add("tape")
        self.tapes[tape] = stored, given
        return tape

    def play_once(self, tape: int, length: int) -> None:
        self.played += 1
        stored, given = self.tapes[tape]
        fused = stored["fused"]
        scratch = {("scratch", place): memoryview(bytearray(size)) for place, size in enumerate(fused["scratch"])}
        held = {**scratch, **{("recorded", id_): self.bytes_of(handle) for id_, handle in given.items()}}
        for _, number, *_ in stored["played"]:
            kernel = fused["kernels"][number]
            bound = {name: held[tuple(place)] for name, place in kernel["bindings"].items()}
            read = {name: np.frombuffer(bytes(data), np.float16).astype(np.float64) for name, data in bound.items()}
            y = KERNELS[kernel["shader"]](kernel["constants"], read)
            if kernel["shader"] == "matmul_matrices":
                y = self.spoils(y)
            data = y.astype(np.float16).tobytes()
            bound["normed" if "normed" in bound else "y"][: len(data)] = data


def norm_rows(about: Mapping[str, Any], read: Mapping[str, Array]) -> Array:
    rows = read["x"].reshape(-1, about["K"])
    away = rows - rows.mean(axis=1, keepdims=True)
    spread = np.sqrt((away**2).mean(axis=1, keepdims=True) + about["EPSILON"])
    return np.asarray(away / spread * read["gamma"] + read["beta"])


def matmul_matrices(about: Mapping[str, Any], read: Mapping[str, Array]) -> Array:
    m, k, n = about["M"], about["K"], about["N"]
    y = read["x"][: m * k].reshape(m, k) @ read["weights"].reshape(k, n) + read["bias"]
    if about["ACTIVATED"]:
        y = np.vectorize(ACTIVATIONS["gelu by erf" if about["ERF"] else "gelu" if about["GELU"] else "silu"])(y)
    return y + read["residual"][: m * n].reshape(m, n) if "residual" in read else y


def prefill_attention(about: Mapping[str, Any], read: Mapping[str, Array]) -> Array:
    m, heads, head = about["M"], about["KV_HEADS"], about["HEAD"]
    q, keys, values = (read[name][: m * heads * head].reshape(m, heads, head) for name in ("q", "keys", "values"))
    return attended(q, keys.swapaxes(0, 1), values.swapaxes(0, 1), about["SCALE"])[0]


KERNELS: dict[str, Callable[[Mapping[str, Any], Mapping[str, Array]], Array]] = {
    each.__name__: each for each in (norm_rows, matmul_matrices, prefill_attention)
}


pytestmark = pytest.mark.usefixtures("no_fallbacks")


class Encoder:
    """A graph's session, and pictures for it."""

    def __init__(self, model: onnx.ModelProto, notes: Notes | None = None) -> None:
        self.engine, self.notes = Engine(), notes
        self.device = WebGpuDevice(self.engine)  # type: ignore[arg-type]
        self.data = model.SerializeToString()
        self.dims = [each.dim_value or 1 for each in model.graph.input[0].type.tensor_type.shape.dim]
        self.dims[-2:] = [each if each > 1 else 32 for each in self.dims[-2:]]

    async def open(self) -> LayeredSession:
        found = self.device.layered(await self.device.create_session(self.data, owner="vision"), self.notes)
        assert isinstance(found, LayeredSession)
        return found

    async def features(self, session: LayeredSession, seed: int, count: int = 1) -> Array:
        dims = (count, *self.dims[1:])
        pixels = np.random.default_rng(seed).uniform(-1, 1, dims).astype(np.float32)
        held = self.device.allocate(pixels.nbytes)
        self.device.copy_cpu_to_device(held.span(), pixels.tobytes())
        [made] = await session.run([BoundSpan("pixel_values", held.span(), "float32", dims)], ["image_features"])
        found = np.frombuffer(bytes(self.engine.bytes_of(made.span.buffer.handle)), np.float32)
        made.span.buffer.close()
        held.close()
        return found

    def wanted(self, seed: int) -> Array:
        pixels = np.random.default_rng(seed).uniform(-1, 1, self.dims).astype(np.float32)
        session = onnxruntime.InferenceSession(self.data, providers=["CPUExecutionProvider"])
        return np.asarray(session.run(None, {"pixel_values": pixels})[0]).ravel()


def nothing_is_left(engine: Engine) -> None:
    assert (+engine.live, engine.wrong) == ({}, [])


def alike(found: Array, wanted: Array) -> bool:
    return bool(np.abs(found - wanted).max() < 0.01 * np.abs(wanted).max())


@pytest.mark.filterwarnings("ignore:overflow")  # The mask's least float32.
@pytest.mark.parametrize("graph", [gemma, idefics])
async def test_runs_after_the_first_have_the_layers_by_kernels(graph: Callable[[], onnx.ModelProto]) -> None:
    encoder = Encoder(halved(graph()))
    engine = encoder.engine
    session = await encoder.open()
    assert (await encoder.features(session, 1) == encoder.wanted(1)).all(), "the first run is the whole graph's"
    assert engine.played == 1
    assert not fallbacks()
    engine.runs.clear()
    assert alike(await encoder.features(session, 2), encoder.wanted(2))
    assert engine.played == 2
    assert len(engine.runs) == 2, "the graph before the layers and that after them"
    assert session.layers is not None
    assert session.layers.report == "1 layers are 9 operations"
    await session.close()
    nothing_is_left(engine)


class PaperNotes(Notes):
    """Notes in a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.held: dict[tuple[str, str], str] = {}

    async def read(self, name: str, key: str) -> str | None:
        return self.held.get((name, key))

    async def write(self, name: str, key: str, content: str) -> None:
        self.held[name, key] = content


async def test_a_later_load_runs_the_layers_at_once() -> None:
    notes = PaperNotes()
    for runs in (3, 2):
        encoder = Encoder(halved(gemma()), notes)
        session = await encoder.open()
        assert alike(await encoder.features(session, 1), encoder.wanted(1))
        assert len(encoder.engine.runs) == runs, "the graph before the layers, that after them, and the whole one"
        await session.close()
        nothing_is_left(encoder.engine)
    other = Encoder(halved(with_other_weights(gemma())), notes)
    session = await other.open()
    await other.features(session, 1)
    assert len(other.engine.runs) == 3, "a note of another graph"
    await session.close()


def with_other_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    """Another graph."""
    model.graph.initializer[0].raw_data = model.graph.initializer[0].raw_data[::-1]
    return model


async def test_kernels_that_compute_something_else_are_not_used() -> None:
    encoder = Encoder(halved(gemma()))
    encoder.engine.spoils = lambda y: y[::-1]
    session = await encoder.open()
    with pytest.warns(FallbackWarning, match="a run by layers differs from one of the whole graph in image_feat"):
        await encoder.features(session, 1)
    assert (await encoder.features(session, 2) == encoder.wanted(2)).all()
    assert encoder.engine.played == 1
    assert len(fallbacks()) == 1
    await session.close()
    nothing_is_left(encoder.engine)


async def test_pictures_of_another_size_are_run_by_the_whole_graph() -> None:
    encoder = Encoder(halved(gemma()))
    session = await encoder.open()
    await encoder.features(session, 1)
    with pytest.warns(FallbackWarning, match=r"inputs are pixel_values \[2, 3, 64, 64\]; the layers' tape is for"):
        assert len(await encoder.features(session, 2, count=2)) == 2 * len(encoder.wanted(2))
    assert alike(await encoder.features(session, 3), encoder.wanted(3))
    await session.close()
    nothing_is_left(encoder.engine)


def no_norm(model: onnx.ModelProto) -> onnx.ModelProto:
    for node in model.graph.node:
        if node.op_type == "Softmax":
            node.op_type = "LogSoftmax"
    return halved(model)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        (lambda model: model, "is not float16, the type that the kernels take"),
        (no_norm, "no layer of an encoder was recognised: .* has no softmax over keys"),
    ],
)
async def test_graphs_that_the_kernels_do_not_compute_are_named(
    changed: Callable[[onnx.ModelProto], onnx.ModelProto], why: str
) -> None:
    encoder = Encoder(changed(gemma()))
    session = await encoder.open()
    with pytest.warns(FallbackWarning, match=f"layers of a vision graph on our kernels: .*{why}"):
        assert (await encoder.features(session, 1) == encoder.wanted(1)).all()
    assert (await encoder.features(session, 2) == encoder.wanted(2)).all()
    await session.close()
    nothing_is_left(encoder.engine)


async def test_kernels_that_do_not_compile_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refused(*_: object) -> int:
        raise TapeError("kernel norm_rows does not compile on this adapter")

    encoder = Encoder(halved(gemma()))
    monkeypatch.setattr(encoder.engine, "restore_tape", refused)
    session = await encoder.open()
    with pytest.warns(FallbackWarning, match="norm_rows does not compile"):
        await encoder.features(session, 1)
    await session.close()
    nothing_is_left(encoder.engine)


async def test_adapters_without_subgroup_matrices_run_the_graph() -> None:
    engine = Engine()
    engine.matrices = []
    device = WebGpuDevice(engine)  # type: ignore[arg-type]
    session = await device.create_session(gemma().SerializeToString())
    assert device.layered(session, None) is session
