"""capstan.onnxruntime in the page, on WebGPU and on the CPU, against the native onnxruntime on CPython."""

from __future__ import annotations

from base64 import b64decode, b64encode
from typing import Any

import numpy as np
import onnxruntime
import pytest

from capstan_host.site_server import SiteServer
from tests import onnx_models
from tests.browser.page_scripts import PageScripts
from tests.browser.scripts.onnxruntime_scenarios import SCENARIOS
from tests.onnx_models import computed, model, ramp

pytestmark = pytest.mark.own_page

GIVEN = {make.__name__: b64encode(model(make.__name__)).decode() for make in onnx_models.MODELS}
CPU, WEBGPU = "CPUExecutionProvider", "WebGpuExecutionProvider"
DEVICES = {"cpu": CPU, "webgpu": WEBGPU}
F32 = np.float32

both = pytest.mark.parametrize("device", DEVICES)


def run(scripts: PageScripts, function: str, *models: str, **arguments: Any) -> Any:
    return scripts.run("onnxruntime_page", function, *models, **arguments)


def told(array: Any) -> list[Any]:
    """A memoryview of the page that holds this array's elements."""
    form = {"float16": "e", "bool": "?"}.get(str(array.dtype), array.dtype.char)
    return ["memoryview", {"l": "q"}.get(form, form), list(array.shape), array.tolist()]


@pytest.mark.one_in(2)
@both
def test_plain_buffers_give_what_the_native_onnxruntime_gives(device: str, scripts: PageScripts) -> None:
    found = run(scripts, "runs", given=GIVEN, provider=DEVICES[device])
    assert found["providers"] == [DEVICES[device]]
    assert found["numpy"] is False
    x = np.arange(12, dtype=F32)
    feeds = [x[:6].reshape(2, 3), x.reshape(4, 3), x[:3].reshape(1, 3)]
    expected = [computed("affine", {"x": feed})[0] for feed in feeds]
    assert found["affine"][:3] == [told(array) for array in expected]
    # A memoryview has no dimension of size 0.
    assert found["affine"][3] == ["memoryview", "f", [0], []]
    assert found["out"] == [True, told(expected[1])]
    feed = {"n": np.array([1, -2, 30, 4, 63]), "flag": np.array([True, False, True, True, False])}
    assert found["types"] == [told(array) for array in computed("element_types", feed)]


@pytest.mark.one_in(2)
@both
def test_values_on_the_device_are_bound_and_read_when_asked_for(device: str, scripts: PageScripts) -> None:
    found = run(scripts, "binds", given=GIVEN, provider=DEVICES[device], device=device)
    a = np.arange(6, dtype=F32).reshape(2, 3)
    assert found["found"] == [[told(a * factor + 1), told(a * factor - 1)] for factor in (1, 10)]
    assert found["out"] == told(a * 10 + 1)
    assert found["late"] == told(a * 10 - 1)
    assert found["devices"] == [device, device]


@pytest.mark.one_in(2)
@both
def test_a_failed_run_leaves_the_session_as_it_was(device: str, scripts: PageScripts) -> None:
    scripts.expect("right operand cannot broadcast")
    found = run(scripts, "fails", given=GIVEN, provider=DEVICES[device])["found"]
    good = [told(np.array(values, F32)) for values in ([4, 6], [10, 12], [10, 12], [12, 12])]
    assert [found[0], found[2], found[4], found[6]] == good
    kind, message = found[1]
    assert kind == "ValidationError"
    assert "onnxruntime-web could not run the model" in message
    for kind, message in (found[3], found[5]):
        assert kind == "BindingError", message
        assert "[3]" in message or "{3}" in message


def test_memory_that_does_not_fit_is_refused_with_expected_and_got(scripts: PageScripts) -> None:
    found = run(scripts, "refuses", given=GIVEN)
    expected = {
        "small": "BufferMismatchError: input 'a': buffer 'small' has 16 bytes, but float32 [2, 3] needs 24",
        "odd": "BufferMismatchError: input 'a': buffer 'pool' is used from byte 2, expected a multiple of 4",
        "middle": "BufferMismatchError: input 'a': buffer 'pool' is used from byte 256, expected byte 0",
        "gone": "BufferMismatchError: input 'a': buffer 'gone' was closed",
        "staging": "MemoryTypeError: input 'a': buffer 'staging' is in WebGPU_Staging of webgpu",
        "host": "BufferMismatchError: input 'a': device_type is 'webgpu', but buffer 'array' is in Cpu of cpu",
    }
    assert found.keys() == expected.keys()
    for name, (error, total) in found.items():
        assert error.startswith(expected[name]), error
        assert total == [[0, 2, 4], [6, 8, 10]]


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("name", "shape"), [("static", (4, 8)), ("reshaped", (4, 6))])
def test_a_captured_run_follows_its_inputs_without_onnxruntime(
    name: str, shape: tuple[int, int], scripts: PageScripts
) -> None:
    arrays = [ramp(*shape), -2 * ramp(*shape), np.zeros(shape, F32), ramp(*shape)[::-1] + 1]
    feeds = [array.reshape(-1).tolist() for array in arrays]
    found = run(scripts, "captures", given=GIVEN, model=name, feeds=feeds, shape=list(shape))
    assert found["replayed"] == found["expected"]
    assert found["first"] == found["expected"][0]
    for got, array in zip(found["replayed"], arrays, strict=True):
        np.testing.assert_allclose(got[3], computed(name, {"x": array})[0], rtol=1e-5, atol=1e-6)
    for counted in found["counted"]:
        assert counted == {**dict.fromkeys(counted, 0), "submits": 1}
    assert "clears" in found["passes"]
    assert found["closed"] == "ClosedError"
    assert found["left"] == []


def test_enable_graph_capture_captures_the_first_bound_run_and_replays_it(scripts: PageScripts) -> None:
    x = np.arange(32, dtype=F32).reshape(4, 8)
    captured, eager = (run(scripts, "captures_by_option", given=GIVEN, value=value) for value in ("1", "0"))
    for found in (captured, eager):
        for got, factor in zip(found["results"], (1, -2, 3), strict=True):
            np.testing.assert_allclose(got[3], computed("static", {"x": x * factor})[0], rtol=1e-5, atol=1e-4)
        assert (found["left"], found["fallbacks"]) == ([], {})
    for asked in captured["asked"][1:]:
        assert asked == {**dict.fromkeys(asked, 0), "submits": 1}
    # onnxruntime makes its result and what binds it in each run.
    assert all(asked["create_bind_group"] > 0 for asked in eager["asked"][1:])


def test_enable_graph_capture_tells_why_runs_are_eager(scripts: PageScripts) -> None:
    scripts.expect("cannot use the graph capture feature")
    found = run(scripts, "refuses_capture", given=GIVEN)
    assert found["results"] == [told(np.array([[1, 2]]))] * 3
    assert found["left"] == [], "the error of the refused capture keeps tensors"
    [(on_host, times)] = found["on_host"].items()
    assert (times, "output 'y' is bound to 'cpu', expected 'webgpu'" in on_host) == (1, True)
    [(reason, times)] = [item for item in found["fallbacks"].items() if item[0] != on_host]
    assert (times, 'enableGraphCapture "1": the model cannot be captured: ' in reason) == (2, True)


def test_runs_that_depend_on_values_are_not_captured(scripts: PageScripts) -> None:
    scripts.expect("cannot use the graph capture feature")
    found = run(scripts, "uncapturable", given=GIVEN)
    for name, (error, _) in found.items():
        assert error.startswith(("TapeError: ", "TapeCheckError: ")), (name, error)
    assert found["sized"][1] == told(np.arange(24, dtype=F32).reshape(3, 8))
    assert found["positions"][1] == told(np.array([[1, 2]]))
    # That attention would see everything in a captured run.
    assert "attention looks back 4 positions" in found["looking_back"][0]
    assert found["looking_back"][1] == told(np.arange(32, 48, dtype=F32).reshape(1, 1, 16))


def test_a_run_copies_each_tensor_once_and_leaves_nothing(scripts: PageScripts) -> None:
    found = run(scripts, "counts", given=GIVEN)
    ten = found["ten"]
    assert (ten["readbacks"], ten["readback_bytes"]) == (10, 10 * 4 * 20)
    assert ten["write_buffer"] % 10 == 0
    assert len(set(found["live"][1:])) == 1, found["live"]


def test_inputs_survive_the_growth_of_pythons_heap(scripts: PageScripts) -> None:
    found = run(scripts, "grows", given=GIVEN)
    assert found["grown"]
    a = np.arange(6, dtype=F32).reshape(2, 3)
    assert found["found"] == [told(a + 1), told(a - 1)]


def test_float16_steps_down_to_the_cpu_where_the_adapter_has_none(scripts: PageScripts) -> None:
    found = run(scripts, "half", given=GIVEN)
    assert found["bits"] == np.array([2, -4, 1, 0], np.float16).tobytes().hex()
    if found["providers"] == [CPU]:
        assert "no shader-f16" in found["fallbacks"][0]
    else:
        assert found["fallbacks"] == []


@pytest.mark.one_in(2)
@both
def test_weights_next_to_the_model_are_read(
    device: str, scripts: PageScripts, site: SiteServer, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("external")
    onnx_models.external_model(folder)
    site.models["external"] = folder
    try:
        found = run(scripts, "external", "external", provider=DEVICES[device])
    finally:
        del site.models["external"]
    _, form, shape, values = found["y"]
    assert (form, shape) == ("f", [4, 5])
    x = np.arange(32, dtype=F32).reshape(4, 8)
    np.testing.assert_allclose(values, computed("static", {"x": x})[0], rtol=1e-5, atol=1e-6)
    assert found["missing"].startswith("ModelFileError: ")
    assert "none.onnx" in found["missing"]
    # Small ones stay initializers on the GPU.
    weights = {} if device == "webgpu" else {"w1": 8 * 16 * 4, "w2": 16 * 5 * 4}
    assert found["items"] == {**weights, "input x": 128, "output y": 80}
    assert found["loaded"] == 0
    assert found["exact"] == [False, device == "webgpu"], "what was allocated is known once it has run"
    assert found["alignment"]["size"] == 16


@pytest.fixture(scope="module")
def numpy_in_the_page(installed_scripts: PageScripts) -> str:
    """numpy in this module's page, from here on."""
    version: str = run(installed_scripts, "install_numpy")
    return version


@pytest.mark.one_in(3)
@both
@pytest.mark.parametrize("name", SCENARIOS)
def test_a_script_for_the_native_onnxruntime_runs_in_the_page(
    name: str, device: str, numpy_in_the_page: str, scripts: PageScripts
) -> None:
    assert numpy_in_the_page.startswith("2.")
    models = {key: b64decode(text) for key, text in GIVEN.items()}
    expected = SCENARIOS[name](onnxruntime, CPU, "cpu", models)
    found = run(scripts, "scenario", given=GIVEN, script=name, provider=DEVICES[device], device=device)
    assert len(found) == len(expected)
    for (dtype, shape, data), wanted in zip(found, expected, strict=True):
        assert (dtype, shape) == (str(wanted.dtype), list(wanted.shape))
        got = np.frombuffer(b64decode(data), dtype).reshape(shape)
        np.testing.assert_allclose(got, wanted, rtol=1e-6, atol=1e-7)
