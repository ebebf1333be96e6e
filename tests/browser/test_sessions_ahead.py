"""The first sequence's captured session is made beside the load of the weights, and never left behind."""

from __future__ import annotations

import json
from typing import Any

import pytest

from capstan_host.testing.harness import Harness

pytestmark = [pytest.mark.extended, pytest.mark.own_page]

RUN = """
import json
import capstan
from capstan._js.page_gpu_engine import JsGpuEngine
from capstan.errors import ModelFileError
from capstan.weights.weight_file import WeightFile

create, release, load = JsGpuEngine.create_session, JsGpuEngine.release_session, WeightFile.load
made, found = [], {}
async def counted(self, model, capture, owner, cache_bits):
    session = await create(self, model, capture, owner, cache_bits)
    made.append((session, capture))
    return session
async def released(self, session):
    await release(self, session)
    made[:] = [entry for entry in made if entry[0] != session]
async def broken(self, *given):
    self.close()
    raise ModelFileError("the weights are gone")
JsGpuEngine.create_session, JsGpuEngine.release_session = counted, released
captures = lambda: [capture for _, capture in made]
try:
    model = await capstan.Model.load(next(iter(models.values())), device="webgpu")
    decoder = await model.decoder(256)
    found["with a sequence"] = captures()
    second = await model.decoder(512)
    found["with two"] = captures()
    await model.aclose()
    found["closed"] = captures()
    async with await capstan.Model.load(next(iter(models.values())), device="webgpu"):
        pass
    found["closed at once"] = captures()
    async with await capstan.Model.load(next(iter(models.values())), device="webgpu", capture="off"):
        found["without capture"] = captures()
    WeightFile.load = broken
    try:
        await capstan.Model.load(next(iter(models.values())), device="webgpu")
    except ModelFileError as error:
        found["error"] = str(error)
    found["failed"] = captures()
finally:
    JsGpuEngine.create_session, JsGpuEngine.release_session, WeightFile.load = create, release, load
found["left"] = capstan.memory.ledger().bytes()
print(json.dumps(found))
"""


def test_sessions_are_made_once_and_released(harness: Harness) -> None:
    done = harness.exec(RUN, ["nano-llama"])
    assert (done.status, done.stderr) == (0, ""), done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert found == {
        "with a sequence": [False, True],
        "with two": [False, True, True],
        "closed": [],
        "closed at once": [],
        "without capture": [False],
        "error": "the weights are gone",
        "failed": [],
        "left": 0,
    }
    assert not harness.errors
