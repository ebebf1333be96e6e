"""Sessions of capstan.onnxruntime over data files: what they hold, fetch, store and compute; runs in the page."""

from __future__ import annotations

import warnings
from array import array
from collections.abc import Mapping
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import capstan.onnxruntime as ort
from capstan import CapstanError, Model, WeightStore
from capstan._js import host_calls
from capstan.errors import ValidationError
from capstan.fallback import FallbackWarning, counted
from capstan.memory import ledger

from . import probe

Models = Mapping[str, str]
Given = tuple[str, list[int], list[float]]
"""Type code, shape and values of x."""

kept: dict[str, ort.InferenceSession | ort.CapturedRun] = {}


def tensor(given: Given) -> Any:
    code, shape, values = given
    raw: Any = memoryview(array(code, values)).cast("B")
    return raw.cast(code, shape)


def held() -> dict[str, int]:
    """Live bytes by category, without what was probed and read."""
    totals: dict[str, int] = {}
    for entry in ledger().entries:
        totals[entry.category] = totals.get(entry.category, 0) + entry.bytes
    return totals


def options(disabled: bool) -> ort.SessionOptions | None:
    if not disabled:
        return None
    made = ort.SessionOptions()
    made.add_session_config_entry("session.disable_file_mapped_weights", "1")
    return made


async def opened(
    models: Models, *, provider: str, x: Given, keep: str = "", disabled: bool = False, file: str = "model"
) -> dict[str, Any]:
    """Open a session, run it and close it unless it is kept under a name: y, memory, warnings."""
    counted.clear()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            url = f"{models['here']}{file}.onnx"
            session = await ort.InferenceSession.create(url, options(disabled), providers=[provider])
        except CapstanError as error:
            return {"error": f"{type(error).__name__}: {error}"}
        before = probe.counts()["readbacks"]
        (y,) = await session.run_async(None, {"x": tensor(x)})
        readbacks = probe.counts()["readbacks"] - before
    found = {
        "error": None,
        "y": y.cast("B").cast("f").tolist(),
        "inputs": [item.name for item in session.get_inputs()],
        "held": held(),
        "asked": session.query_memory_requirements({"x": x[1]}).weights.bytes,
        "readbacks": readbacks,
        "warnings": [str(item.message) for item in caught if issubclass(item.category, FallbackWarning)],
    }
    if keep:
        kept[keep] = session
    else:
        await session.aclose()
    return found | {"stored": await stored({})}


async def run_kept(models: Models, *, keep: str, x: Given) -> list[float]:
    """The result of a kept session; [] where the run fails."""
    session = kept[keep]
    assert isinstance(session, ort.InferenceSession)
    try:
        (y,) = await session.run_async(None, {"x": tensor(x)})
    except ValidationError:
        return []
    return list(y.cast("B").cast("f").tolist())


async def captured(models: Models, *, keep: str, x: Given) -> dict[str, Any]:
    """Capture a kept session, kept as 'capture': what a replay computes, and memory."""
    session = kept[keep]
    assert isinstance(session, ort.InferenceSession)
    binding = session.io_binding()
    value = await ort.OrtValue.ortvalue_from_numpy_async(tensor(x), "webgpu")
    binding.bind_ortvalue_input("x", value)
    binding.bind_output("y", "webgpu")
    run = await session.capture_async(binding)
    kept["capture"] = run
    run.replay()
    (y,) = run.get_outputs()
    return {"y": (await y.numpy_async()).cast("B").cast("f").tolist(), "held": held()}


async def close(models: Models, *, keep: str) -> dict[str, int]:
    """Close what was kept; memory after that."""
    await kept.pop(keep).aclose()
    return held()


async def on_disk(models: Models, *, provider: str, x: Given) -> dict[str, Any]:
    """A model in Python's own file system, opened twice: y and the bytes of weights on the GPU."""
    folder = Path(mkdtemp(suffix=" with a space"))
    for name in ("model.onnx", "model.data"):
        (folder / name).write_bytes(await host_calls.fetch_bytes(models["here"] + name, 1 << 30))
    first = await ort.InferenceSession.create(folder / "model.onnx", providers=[provider])
    second = await ort.InferenceSession.create(str(folder / "model.onnx"), providers=[provider])
    (y,) = await second.run_async(None, {"x": tensor(x)})
    found = {"y": y.cast("B").cast("f").tolist(), "weights": held().get("weights", 0)}
    (folder / "model.data").unlink()
    await first.aclose()
    await second.aclose()
    try:
        await ort.InferenceSession.create(folder / "model.onnx", providers=[provider])
    except CapstanError as error:
        found["missing"] = f"{type(error).__name__}: {error}"
    return found


async def model_and_session(models: Models) -> list[int]:
    """Bytes of weights on the GPU: of a model, and of it with a session over its graph; what is left in the end."""
    model = await Model.load(models["here"], device="webgpu")
    alone = held()["weights"]
    session = await ort.InferenceSession.create(models["here"] + "model.onnx", providers=["webgpu"])
    both = held()["weights"]
    await model.aclose()
    after = held()["weights"]
    await session.aclose()
    return [alone, both, after, held().get("weights", 0)]


async def stored(models: Models) -> list[list[Any]]:
    """[path, bytes there, complete] of each file in the store."""
    listed = await WeightStore().list()
    return [["".join(file.sources).rpartition("/")[2], file.stored_bytes, file.complete] for file in listed]


async def evict(models: Models) -> int:
    return await WeightStore().evict()
