"""device.webgpu.session_weights: what a session's weights become, over a store and buffers made of paper."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from onnx import helper, numpy_helper

from capstan import graph
from capstan.device.webgpu.gpu_engine import WeightPiece
from capstan.device.webgpu.session_weights import SessionWeights, load_weights
from capstan.errors import ModelFileError, OutOfMemoryError, WeightsChangedError
from capstan.fallback import FallbackWarning, fallbacks
from capstan.graph import Part, change_of
from capstan.host.storage_interface import ExternalData
from capstan.weights.shared import SharedWeights
from capstan.weights.store import WeightStore
from capstan.weights.weight_file import WeightFile
from tests.paper_weights import PaperBacking, PaperServer, PaperSink
from tests.unit.paper_engine import PaperEngine
from tests.weight_bytes import part_bytes
from tests.weighted_nodes import KEPT, SHARED, Weighted, noise, one, run_plainly, save, two_layers

PLACE = "https://host/m/"
SMALL = two_layers(256)


pytestmark = pytest.mark.usefixtures("no_fallbacks")


class BufferSink(PaperSink):
    """Fills buffers with what the pieces make of the file's bytes."""

    def __init__(self, engine: PaperEngine, pieces: Sequence[WeightPiece]) -> None:
        super().__init__(*((piece.offset, piece.length) for piece in pieces))
        self.engine, self.pieces = engine, pieces

    async def finish(self) -> None:
        await super().finish()
        for piece, found in zip(self.pieces, self.found, strict=True):
            made = part_bytes(Part(0, piece.length, change_of(piece.change)), bytes(found))
            self.engine.write(piece.buffer, piece.at, made)


class Engine(PaperEngine):
    """One that holds weights."""

    def __init__(self) -> None:
        super().__init__()
        self.shared = SharedWeights(cast(Any, self), 1 << 30)

    def shared_weights(self) -> SharedWeights:
        return self.shared

    def upload_weights(self, pieces: Sequence[WeightPiece]) -> BufferSink:  # type: ignore[override]
        return BufferSink(self, pieces)


class Page:
    """A server with one model, a store, and a GPU."""

    def __init__(self, case: Weighted, folder: Path) -> None:
        path = save(case.model(), folder)
        self.case = case
        self.model = path.read_bytes()
        self.server = PaperServer((folder / "model.data").read_bytes(), url=f"{PLACE}model.data")
        self.backing = PaperBacking()
        self.engine = Engine()

    def external(self, keep: bool = True) -> ExternalData:
        async def opened(location: str) -> WeightFile:
            async def no_manifest() -> None:
                return None

            assert location == "model.data"
            store = WeightStore(self.backing) if keep else None
            return await WeightFile.open(self.server.open(), store, no_manifest)

        return ExternalData(PLACE, graph.data_ends(graph.parse(self.model)), opened)

    def load(self, keep: bool = True) -> SessionWeights:
        self.server.sent = 0
        engine: Any = self.engine
        return asyncio.run(load_weights(engine, self.model, self.external(keep)))

    def computed(self, weights: SessionWeights) -> np.ndarray[Any, Any]:
        """The native onnxruntime's result for the session's graph, fed with the buffers."""
        feeds: dict[str, Any] = {"x": self.case.x}
        for tensor in weights.tensors:
            dtype = np.dtype(tensor.dtype)
            size = int(np.prod(tensor.dims)) * dtype.itemsize
            feeds[tensor.name] = np.frombuffer(self.engine.memory[tensor.buffer][:size], dtype).reshape(tensor.dims)
        return run_plainly(weights.model, feeds)


@pytest.mark.filterwarnings("ignore::capstan.FallbackWarning")
@pytest.mark.parametrize("case", [*SHARED, *KEPT], ids=lambda case: case.name)
def test_the_session_s_graph_with_its_buffers_computes_what_the_model_does(case: Weighted, tmp_path: Path) -> None:
    page = Page(case, tmp_path)
    weights = page.load()
    np.testing.assert_allclose(page.computed(weights), case.computed(), rtol=1e-4, atol=1e-4)
    assert sum(map(len, page.engine.memory.values())) == case.shared_bytes
    assert page.server.sent == len(page.server.data)
    weights.release()
    assert +page.engine.live == {}


@pytest.mark.parametrize("case", KEPT, ids=lambda case: case.name)
def test_what_stays_an_initializer_is_counted_with_its_reason(case: Weighted, tmp_path: Path) -> None:
    page = Page(case, tmp_path)
    if not case.reason:
        page.load()
        assert fallbacks() == {}
        return
    with pytest.warns(FallbackWarning, match=case.reason):
        page.load()
    assert any(case.reason in told and f"shared weights of {PLACE}" in told for told in fallbacks())


def test_a_second_session_fetches_nothing_and_holds_the_same_buffers(tmp_path: Path) -> None:
    page = Page(SMALL, tmp_path)
    first, second = page.load(), page.load()
    assert page.server.sent == 0
    assert second.tensors == first.tensors
    captured = second.again()
    for one_user in (first, second):
        one_user.release()
        assert len(page.engine.memory) == 2
    captured.release()
    captured.release()
    assert +page.engine.live == {}


def test_another_visit_takes_all_from_the_store(tmp_path: Path) -> None:
    page = Page(SMALL, tmp_path)
    page.load().release()
    page.engine = Engine()
    weights = page.load()
    assert page.server.sent == 0
    np.testing.assert_allclose(page.computed(weights), SMALL.computed(), rtol=1e-4, atol=1e-4)


def test_a_file_of_constants_alone_is_stored_too(tmp_path: Path) -> None:
    page = Page(next(case for case in KEPT if case.name == "resized"), tmp_path)
    page.load()
    assert page.server.sent == len(page.server.data)
    page.load()
    assert page.server.sent == 0


def test_without_the_store_nothing_is_kept(tmp_path: Path) -> None:
    page = Page(SMALL, tmp_path)
    page.load(keep=False).release()
    assert page.backing.files == {}


def test_other_bytes_are_other_weights(tmp_path: Path) -> None:
    page = Page(SMALL, tmp_path)
    first = page.load()
    page.server.data = bytes(byte ^ 1 for byte in page.server.data)
    page.server.etag = "2"
    with pytest.warns(FallbackWarning, match="changed since it was stored"):
        second = page.load()
    assert not {tensor.buffer for tensor in first.tensors} & {tensor.buffer for tensor in second.tensors}


def test_a_file_that_changes_while_it_is_read_leaves_nothing(tmp_path: Path) -> None:
    page = Page(SMALL, tmp_path)
    page.server.change_at = 0
    with pytest.raises(WeightsChangedError):
        page.load()
    assert +page.engine.live == {}


def test_a_short_file_is_refused_before_anything_is_fetched(tmp_path: Path) -> None:
    page = Page(SMALL, tmp_path)
    size = len(page.server.data)
    page.server.data = page.server.data[:-10]
    with pytest.raises(ModelFileError, match=f"{size - 10} bytes, but model.onnx names weights up to byte {size}"):
        page.load()
    assert (+page.engine.live, page.server.sent) == ({}, 0)


def test_without_memory_nothing_stays(tmp_path: Path) -> None:
    page = Page(SMALL, tmp_path)
    page.engine.room = 0
    with pytest.raises(OutOfMemoryError):
        page.load()
    page.engine.room = 1 << 30
    assert page.load().tensors


def test_a_failure_after_the_weights_were_loaded_frees_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = Page(SMALL, tmp_path)

    def failing(tensor: Any, data: bytes) -> None:
        raise ModelFileError("no constant")

    monkeypatch.setattr(graph, "make_inline", failing)
    with pytest.raises(ModelFileError, match="no constant"):
        page.load()
    assert +page.engine.live == {}


def test_sessions_leave_the_note_about_a_model_s_upload_alone(tmp_path: Path) -> None:
    page = Page(SMALL, tmp_path)
    page.load()
    assert not [name for name in page.backing.files if name.endswith(".upload.json")]


def test_what_several_nodes_read_is_shared_only_if_all_may(tmp_path: Path) -> None:
    """A weight of a product that PRelu reads, too."""
    case = one("product", "MatMul", noise(2, 32), {"w": noise(32, 16)})
    model = case.model()
    model.graph.node.add(op_type="PRelu", input=["y", "w"], output=["z"])
    model.graph.output.add().CopyFrom(model.graph.output[0])
    model.graph.output[1].name = "z"
    parsed = graph.parse(save(model, tmp_path).read_bytes())
    [(_, entry, why)] = graph.kept_tensors(parsed)
    assert (entry.name, why) == ("w", "PRelu may read a constant of float32 on the host")


def test_a_weight_that_is_turned_and_read_as_a_constant_is_not_turned(tmp_path: Path) -> None:
    """An initializer has the bytes of the file."""
    nodes = [
        helper.make_node("Transpose", ["w"], ["t"]),
        helper.make_node("Unsqueeze", ["t", "axes"], ["t3"]),
        helper.make_node("GRU", ["x", "t3", "r"], ["all", "y"], hidden_size=16),
    ]
    weights = {"w": noise(24, 48), "r": noise(1, 48, 16), "axes": np.array([0], np.int64)}
    case = Weighted("gru", nodes, noise(5, 1, 24), weights, "constant inputs only", small=["axes"])
    page = Page(case, tmp_path)
    with pytest.warns(FallbackWarning):
        loaded = page.load()
    assert loaded.tensors == ()
    np.testing.assert_allclose(page.computed(loaded), case.computed(), rtol=1e-4, atol=1e-5)


def test_initializers_that_are_inputs_too_are_bound(tmp_path: Path) -> None:
    """As graphs of IR versions before 4 have them."""
    model = SMALL.model()
    model.ir_version = 3
    for tensor in model.graph.initializer:
        value = model.graph.input.add(name=tensor.name)
        value.type.tensor_type.elem_type = tensor.data_type
        for size in numpy_helper.to_array(tensor).shape:
            value.type.tensor_type.shape.dim.add().dim_value = size
    page = Page(SMALL, tmp_path)
    page.model = save(model, tmp_path).read_bytes()
    weights = page.load()
    names = [value.name for value in graph.parse(weights.model).graph.input]
    assert sorted(names) == ["b", "w1", "w2", "x"]
    assert [tensor.name for tensor in weights.tensors] == ["w1", "w2"]
