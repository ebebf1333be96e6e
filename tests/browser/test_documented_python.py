"""The documents' Python that needs a GPU runs in a page as it is written."""

from __future__ import annotations

from pathlib import Path

import onnx
from onnx import TensorProto, helper

from buildtools import ROOT
from capstan_host.site_server import SiteServer
from capstan_host.testing.harness import Harness
from tests.documented import examples

ROUNDED = 'print([round(each, 1) for each in memoryview(y).cast("B").cast("f")[:3]])\n'


def graph(path: Path) -> None:
    """y = x + 0.5, of x [4, 8]."""
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4, 8]) for name in "xy"]
    half = helper.make_tensor("half", TensorProto.FLOAT, [1], [0.5])
    made = helper.make_graph([helper.make_node("Add", ["x", "half"], ["y"])], "any", values[:1], values[1:], [half])
    onnx.save(helper.make_model(made, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)


def blocks(page: str, after: str = "") -> list[str]:
    """The Python blocks of a page, those after a heading alone if it is given."""
    found = [code for code, _ in examples(page, "python")]
    text = (ROOT / f"docs/{page}.md").read_text(encoding="utf-8").partition(after)[2] if after else None
    return [code for code in found if text is None or code in text]


def test_sessions_run_any_onnx_model(harness: Harness, site: SiteServer, tmp_path: Path) -> None:
    graph(tmp_path / "model.onnx")
    site.models["any"] = tmp_path
    try:
        first, option, last = blocks("python", "\n## Any ONNX model\n")
        [other] = blocks("any_onnx")
        shown = "print(list(result.tobytes() == y.tobytes() for _ in [0]))\n"
        again = other.replace("/models/mine.onnx", "/models/any/model.onnx").replace("(result,)", "(y,)")
        code = "\n".join([first, ROUNDED, shown, option, last, ROUNDED, again, ROUNDED])
        done = harness.exec(code, ["any"])
    finally:
        del site.models["any"]
    assert done.status == 0, done.stderr
    assert done.stdout.splitlines() == ["[0.5, 1.5, 2.5]", "[True]", *["[0.5, 1.5, 2.5]"] * 2]


def test_memory_is_made_and_given_as_the_guide_says(harness: Harness) -> None:
    begin = """
import capstan
model = await capstan.Model.load(models["nano-llama"], device="webgpu")
params = capstan.GeneratorParams(model)
params.set_search_options(max_length=512, batch_size=4)
"""
    end = """
generator.append_tokens([[1, 2, 3]] * 4)
await generator.generate_next_token_async()
print(sorted(scratch) != [], len(buffers) > 1, generator.token_count())
await generator.aclose()
for buffer in [*buffers.values(), *scratch.values()]:
    buffer.close()
await model.aclose()
device.close()
"""
    device, pools = blocks("memory")
    done = harness.exec("\n".join([begin, device, pools, end]), ["nano-llama"])
    assert done.status == 0, done.stderr
    assert done.stdout.split()[:2] == ["True", "True"]


def test_the_guide_to_pyodide_generates(harness: Harness) -> None:
    _, configure, *others = blocks("pyodide")
    done = harness.exec("\n".join(["import capstan", *others]))
    assert "capstan.configure" in configure
    assert done.status == 0, done.stderr
    ids, *shown = done.stdout.splitlines()
    assert len(ids.split()) > 8
    assert shown
