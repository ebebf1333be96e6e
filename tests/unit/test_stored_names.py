"""A stored model is named exactly, by the names by which it is loaded; what is around it is no name."""

from __future__ import annotations

import asyncio

import pytest

from capstan.errors import OptionError
from capstan.host.storage_interface import SourceIdentity
from capstan.weights.manifest import Manifest
from capstan.weights.records import DATA
from capstan.weights.store import WeightStore
from tests.paper_weights import PaperBacking

SOURCES = (
    "https://a.test/models/qwen/model.onnx.data",
    "https://a.test/models/qwen/v2/model.onnx.data",
    "https://a.test/models/smol/onnx/model_q4.onnx_data",
    "https://a.test/models/smol/onnx/model_q4.onnx_data_1",
    "https://a.test/models/x-00001-of-00002.gguf",
    "https://a.test/models/x-00002-of-00002.gguf",
    "https://a.test/models/y.gguf",
    "https://hub.test/owner/name/resolve/0123456/onnx/model.onnx_data",
    "https://hub.test/mirror/owner/name/resolve/0123456/z.gguf",
)


async def filled() -> WeightStore:
    """A store with a file of each source."""
    backing = PaperBacking()
    store = WeightStore(backing)
    for number, name in enumerate(SOURCES):
        data = bytes([number])
        identity = SourceIdentity(name, 1, 'etag "1"')
        backing.files[f"{identity.key}{DATA}"] = bytearray(data)
        await store.complete(identity, Manifest.of([data], 1))
    return store


@pytest.mark.parametrize(
    ("which", "places"),
    [
        ("https://a.test/models/qwen/", [0]),
        ("https://a.test/models/qwen", [0]),
        ("/models/qwen", [0]),
        ("https://a.test/models/qwen/v2/", [1]),
        ("https://a.test/models/qwen/v2/model.onnx.data", [1]),
        ("https://a.test/models/smol/", [2, 3]),
        ("https://a.test/models/x-00001-of-00002.gguf", [4, 5]),
        ("https://a.test/models/y.gguf", [6]),
        ("https://hub.test/owner/name", [7]),
        ("https://hub.test/mirror/owner/name", [8]),
        ("https://a.test/models/qwen/v3/", []),
        ("https://b.test/", []),
        ("https://a.test/mod", []),
        (None, [*range(9)]),
    ],
)
def test_a_name_removes_that_model_alone(which: str | None, places: list[int]) -> None:
    store = asyncio.run(filled())
    assert asyncio.run(store.evict(which)) == len(places)
    left = {source for stored in asyncio.run(store.list()) for source in stored.sources}
    assert left == {source for place, source in enumerate(SOURCES) if place not in places}


@pytest.mark.parametrize(
    "which", ["https://a.test/", "https://a.test", "https://a.test/models/", "/", "/models/", "https://hub.test/owner"]
)
def test_a_folder_of_models_is_no_name(which: str) -> None:
    store = asyncio.run(filled())
    for act in (store.evict, store.verify):
        with pytest.raises(OptionError, match="is not a stored model but a folder that has https://.*: name one"):
            asyncio.run(act(which))
    assert len(asyncio.run(store.list())) == len(SOURCES)
