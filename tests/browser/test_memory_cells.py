"""Every operation over every memory of WebGPU, at every alignment: it does what Python's heap does, or it is refused
before anything is encoded. Another model generates on the device meanwhile, and is well afterwards."""

from __future__ import annotations

from base64 import b64encode
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import helper

from capstan.memory import MemoryType, allows, memory_info, usage_of
from tests import oracle
from tests.browser.page_scripts import PageScripts
from tests.browser.scripts.memory_cells import CELLS, PROMPT
from tests.onnx_models import F32, build

pytestmark = pytest.mark.own_page

LLAMA = Path(__file__).parents[1] / "fixtures" / "nano-llama"
BOOL = onnx.TensorProto.BOOL
PLACES = {kind.value: memory_info("webgpu", kind) for kind in MemoryType}


def text(made: onnx.ModelProto) -> str:
    return b64encode(made.SerializeToString()).decode()


SUMS = text(
    build([helper.make_node("Add", ["x", "y"], ["sum"])], [("x", F32, ["n"]), ("y", F32, ["n"])], [("sum", F32, ["n"])])
)
FLAGS = text(build([helper.make_node("Not", ["x"], ["y"])], [("x", BOOL, ["n"])], [("y", BOOL, ["n"])]))


def check_other(found: dict[str, Any]) -> None:
    """The model that generated meanwhile is unharmed."""
    assert found["healthy"]
    assert found["count"] > 0
    assert found["answers"] == [oracle.greedy(LLAMA, PROMPT, 24)]


@pytest.mark.extended
def test_each_cell_is_right_or_refused_and_no_other_model_suffers(scripts: PageScripts) -> None:
    found = scripts.run("memory_cells", "walk", "nano-llama", model="nano-llama")
    assert len(found["cells"]) == 2 * len(CELLS)
    for cell in found["cells"]:
        (operation, name, span, words, memory_type), got = cell["place"], cell["got"]
        where = f"{name} {span} in {memory_type}"
        if allows(operation, PLACES[memory_type], words=words):
            assert got == cell["wanted"], where
            continue
        assert got["error"].startswith("MemoryTypeError: "), where
        assert "WebGPU_Staging of webgpu device" in got["error"], where
        assert "expected " in got["error"], where
        assert "WebGPU_Buffer" in got["error"], where
        unchanged = {"error": got["error"], "read": None, "tried": start(0, span[0]), "other": start(1, span[0])}
        assert got == unchanged, where
        assert cell["webgpu"], f"WebGPU takes what the table refuses: {where}"
    check_other(found)
    for kind, place in PLACES.items():
        assert set(found["usage"][kind]) == usage_of(place), "the table has the flags of the buffers"


def start(which: int, size: int) -> str:
    """The bytes of a buffer before the cell."""
    factor, more = ((37, 11), (53, 7))[which]
    return bytes((factor * i + more) % 256 for i in range(size)).hex()


def test_sessions_take_inputs_in_host_accessible_memory_and_refuse_what_they_cannot(scripts: PageScripts) -> None:
    found = scripts.run("memory_cells", "bound", "nano-llama", model="nano-llama", sums=SUMS, flags=FLAGS)
    one, two, three, kept = ([float(start + n) for n in range(6)] for start in (1, 10, 100, 0))
    pairs = [(one, kept), (kept, two), (two, three), (one, one)]
    sums = [[a + b for a, b in zip(*pair, strict=True)] for pair in pairs]
    assert found["sums"] == sums
    # A map for each buffer of an input, and one for the result.
    assert found["alone"] == [[sums[0], 2], [sums[1], 2], [sums[2], 3], [sums[3], 2]]
    assert found["output again"] == [[3 * value for value in kept], 2], "an output there is the next run's input"
    assert found["flags"] == [[0, 1, 0, 0, 1], [1, 1, 0], [1, 0, 1, 1, 0]]
    assert found["output"] == [2 * value for value in kept]
    for what, error in found["refused"].items():
        assert error.startswith("MemoryTypeError: "), (what, error)
        assert "WebGPU_Staging" in error, what
        assert "WebGPU_Buffer" in error, what
    assert "give it to session.run, which maps and uploads it" in found["refused"]["bound input"]
    assert "start and end at multiples of 4" in found["refused"]["odd output"]
    assert "bind it to 'webgpu'" in found["refused"]["captured output"]
    check_other(found)


def test_memory_that_is_being_read_is_refused_everywhere(scripts: PageScripts) -> None:
    found = scripts.run("memory_cells", "mapped", "nano-llama", model="nano-llama", sums=SUMS)
    refused = found["refused"]
    assert refused.pop("nothing of the batch was done") == "True"
    assert len(refused) == sum(cell.size == 64 for cell in CELLS) + 3
    for what, error in refused.items():
        assert error.startswith("MemoryTypeError: "), (what, error)
    for what in ("write 8 16", "copy destination 8 16", "zero 8 16", "read 9 16", "batch", "input", "output"):
        assert "WebGPU_Staging memory that is mapped" in refused[what], what
        assert "wait for the read" in refused[what], what
    assert found["reads"] == [True] * len(refused)
    assert found["after"] == [float(2 * n) for n in range(6)]
    check_other(found)
