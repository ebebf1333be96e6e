"""capstan.onnxruntime.InferenceSession: making, running, refusing and closing, over both kinds of device."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import capstan
import capstan.onnxruntime as ort
from capstan.errors import (
    AsyncRequiredError,
    BindingError,
    BufferMismatchError,
    ClosedError,
    DeviceUnavailableError,
    ModelFileError,
    OptionError,
    UnsupportedModelError,
)
from capstan.local.local_host import LocalHost
from capstan.memory import Capabilities, MemoryType
from tests import onnx_models
from tests.onnx_models import computed, model, ramp
from tests.unit.stand_in_device import ApartDevice, HeapDevice

Devices = dict[str, Any]
CPU, WEBGPU = "CPUExecutionProvider", "WebGpuExecutionProvider"
F32 = np.float32


@pytest.fixture(params=[CPU, WEBGPU])
def provider(request: pytest.FixtureRequest, devices: Devices) -> str:
    name: str = request.param
    return name


@pytest.fixture
def device(provider: str, devices: Devices) -> HeapDevice | ApartDevice:
    found: HeapDevice | ApartDevice = devices["cpu" if provider == CPU else "webgpu"]
    return found


pytestmark = pytest.mark.usefixtures("no_fallbacks")


def test_the_async_twins_do_the_same(provider: str) -> None:
    async def run() -> list[Any]:
        session = await ort.InferenceSession.create(model("two_outputs"), providers=[provider])
        async with session:
            feeds = {"a": ramp(2, 3), "b": ramp(2, 3)}
            return await session.run_async(["sum"], feeds)

    (found,) = asyncio.run(run())
    np.testing.assert_array_equal(found, 2 * ramp(2, 3))


def test_external_data_is_read_from_next_to_the_path(provider: str, tmp_path: Path) -> None:
    path = onnx_models.external_model(tmp_path)
    x = ramp(4, 8)
    for given in (path, str(path)):
        (found,) = ort.InferenceSession(given, providers=[provider]).run(None, {"x": x})
        np.testing.assert_array_equal(found, computed("static", {"x": x})[0])


def test_external_data_cannot_be_named_by_bytes(provider: str, tmp_path: Path) -> None:
    data = onnx_models.external_model(tmp_path).read_bytes()
    with pytest.raises(ModelFileError, match=r"weights are in the file 'weights.data'.*give the model's path"):
        ort.InferenceSession(data, providers=[provider])


@pytest.mark.parametrize("name", ["missing.onnx", "weights.data"])
def test_a_file_that_is_not_there_is_named(provider: str, tmp_path: Path, name: str) -> None:
    path = onnx_models.external_model(tmp_path)
    (tmp_path / "weights.data").unlink()
    with pytest.raises(ModelFileError, match=name):
        ort.InferenceSession(tmp_path / "missing.onnx" if name == "missing.onnx" else path, providers=[provider])


def test_what_is_no_model_is_refused(provider: str, device: HeapDevice) -> None:
    with pytest.raises(ModelFileError, match="not an ONNX model|no nodes"):
        ort.InferenceSession(b"\xff" * 50, providers=[provider])
    assert device.users == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"providers": ["CUDAExecutionProvider"]}, "provider 'CUDAExecutionProvider' does not exist here"),
        ({"providers": "webgpu"}, "providers is 'webgpu', of type str; give a list"),
        ({"providers": [("webgpu", {"layout": "NHWC"})]}, "WebGpuExecutionProvider has no option 'layout'"),
        ({"providers": ["cpu"], "provider_options": [{"arena": 1}]}, "CPUExecutionProvider has no option 'arena'"),
        ({"providers": ["cpu"], "provider_options": []}, "0 provider_options were given for 1 providers"),
        ({"providers": [("webgpu", {"device_id": 1})]}, "device_id is 1; a page has one device, 0"),
        ({"sess_options": object()}, "sess_options is .*, of type object; give a SessionOptions or None"),
    ],
)
def test_unknown_providers_and_options_are_refused(arguments: Any, message: str, devices: Devices) -> None:
    with pytest.raises(OptionError, match=message):
        ort.InferenceSession(model("affine"), **arguments)


@pytest.mark.parametrize(("value", "kept"), [(None, True), ("0", True), ("1", False)])
def test_a_configuration_entry_leaves_the_store_out(
    value: str | None, kept: bool, provider: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []
    open_weights = LocalHost.open_weights

    async def opened(host: LocalHost, folder: str, location: str, keep: bool) -> Any:
        asked.append(keep)
        return await open_weights(host, folder, location, keep)

    monkeypatch.setattr(LocalHost, "open_weights", opened)
    options = ort.SessionOptions()
    if value is not None:
        options.add_session_config_entry("session.disable_file_mapped_weights", value)
        assert options.get_session_config_entry("session.disable_file_mapped_weights") == value
    ort.InferenceSession(onnx_models.external_model(tmp_path), options, providers=[provider])
    assert asked == [kept]


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("session.use_env_allocators", "1", "no session configuration entry 'session.use_env_allocators'; Capstan"),
        ("disable_file_mapped_weights", "1", "Capstan has 'session.disable_file_mapped_weights'"),
        ("session.disable_file_mapped_weights", "true", 'is \'true\'; it must be "0" or "1"'),
        ("session.disable_file_mapped_weights", 1, "value is 1, of type int; give a text"),
    ],
)
def test_configuration_entries_that_mean_nothing_are_refused(key: str, value: Any, message: str) -> None:
    options = ort.SessionOptions()
    with pytest.raises(OptionError, match=message):
        options.add_session_config_entry(key, value)
    with pytest.raises(OptionError, match="was not set"):
        options.get_session_config_entry("session.disable_file_mapped_weights")
    with pytest.raises(OptionError, match="SessionOptions has no graph_optimization_level here"):
        options.graph_optimization_level = 99


@pytest.mark.parametrize("name", ["webgpu", "WebGPUExecutionProvider", ("webgpu", {"device_id": "0"})])
def test_providers_have_short_names_too(name: Any, devices: Devices) -> None:
    assert ort.InferenceSession(model("affine"), providers=[name]).get_providers() == [WEBGPU]
    assert ort.InferenceSession(model("affine"), providers=["wasm"]).get_providers() == [CPU]
    assert ort.get_available_providers() == [WEBGPU, CPU]


def test_a_step_down_to_the_next_provider_is_warned_of(devices: Devices, monkeypatch: pytest.MonkeyPatch) -> None:
    async def no_gpu(_: LocalHost, device: str) -> HeapDevice:
        if device == "webgpu":
            raise DeviceUnavailableError("there is no adapter")
        found: HeapDevice = devices["cpu"]
        found.retain()
        return found

    monkeypatch.setattr(LocalHost, "open_device", no_gpu)
    with pytest.warns(capstan.FallbackWarning, match=f"{WEBGPU}: there is no adapter; {CPU} is used instead"):
        session = ort.InferenceSession(model("affine"), providers=["webgpu", "cpu"])
    assert session.get_providers() == [CPU]
    with pytest.raises(DeviceUnavailableError, match="no adapter"):
        ort.InferenceSession(model("affine"), providers=["webgpu"])


def test_float16_needs_an_adapter_that_has_it(devices: Devices, monkeypatch: pytest.MonkeyPatch) -> None:
    async def without(_: ApartDevice) -> Capabilities:
        return Capabilities("stand-in", True, True, False, False, False, False, True, True, 2**28, 2**27, 256)

    monkeypatch.setattr(ApartDevice, "capabilities", without)
    with pytest.raises(DeviceUnavailableError, match="no shader-f16; add 'CPUExecutionProvider'"):
        ort.InferenceSession(model("half"), providers=["webgpu"])
    with pytest.warns(capstan.FallbackWarning, match="no shader-f16"):
        session = ort.InferenceSession(model("half"), providers=["webgpu", "cpu"])
    x = ramp(4).astype(np.float16)
    np.testing.assert_array_equal(session.run(None, {"x": x})[0], x + x)
    assert devices["webgpu"].users == 0


def test_without_providers_the_best_device_is_taken(devices: Devices) -> None:
    session = ort.InferenceSession(model("affine"))
    assert session.get_providers() == [CPU]
    session.close()
    assert [device.users for device in devices.values()] == [0, 0]


@pytest.mark.parametrize(
    ("names", "feeds", "message"),
    [
        (["z"], {"x": ramp(2, 3)}, "the model has no output 'z'; it has 'y'"),
        (None, {"x": ramp(2, 3), "w2": ramp(1)}, "the model has no input 'w2'; it has 'x'"),
        (None, {}, "input 'x' is missing; the model has 'x'"),
        (None, {"x": ramp(2, 3).astype(np.float64)}, "input 'x' is float32, got float64; convert"),
        (None, {"x": ramp(2, 4)}, r"input 'x' has shape \['rows', 3\], got \[2, 4\]"),
        (None, {"x": ramp(3)}, r"got \[3\]"),
        (None, {"x": [[1.0, 2.0, 3.0]]}, "input 'x' is list, which gives no PEP 3118 buffer"),
        (None, {"x": np.array(["a"])}, "input 'x'"),
        (None, {"x": ramp(2, 3).astype(">f4")}, "in this machine's byte order"),
        (None, {"x": (bytes(20), (2, 3))}, r"input 'x': 20 bytes were given, expected 24 for float32 \[2, 3\]"),
    ],
)
def test_a_bad_feed_is_named_and_the_session_goes_on(
    names: Any, feeds: Any, message: str, provider: str, device: HeapDevice
) -> None:
    session = ort.InferenceSession(model("affine"), providers=[provider])
    with pytest.raises(BindingError, match=message):
        session.run(names, feeds)
    np.testing.assert_array_equal(session.run(None, {"x": ramp(2, 3)})[0], computed("affine", {"x": ramp(2, 3)})[0])
    session.close()
    assert device.live == {}


def test_results_are_written_straight_into_out(provider: str, device: HeapDevice) -> None:
    session = ort.InferenceSession(model("two_outputs"), providers=[provider])
    feeds = {"a": ramp(2, 3), "b": ramp(2, 3) * 2}
    total = np.zeros((2, 3), np.float32)
    found = session.run(None, feeds, out={"sum": total})
    assert found[0] is total
    np.testing.assert_array_equal(total, ramp(2, 3) * 3)
    np.testing.assert_array_equal(found[1], -ramp(2, 3))
    if provider == WEBGPU:
        assert (device.uploads, device.readbacks_) == (2, 1)
    else:
        assert (device.uploads, device.readbacks_) == (0, 0)


def test_a_result_of_a_type_that_no_gpu_buffer_holds_is_written_into_out(provider: str) -> None:
    session = ort.InferenceSession(model("element_types"), providers=[provider])
    feeds = {"n": np.arange(5), "flag": np.array([True, False, True, True, False])}
    names = [spec.name for spec in session.get_outputs()]
    wanted = computed("element_types", feeds)
    out = {name: np.zeros_like(array) for name, array in zip(names, wanted, strict=True)}
    session.run(None, feeds, out=out)
    for name, array in zip(names, wanted, strict=True):
        np.testing.assert_array_equal(out[name], array)


@pytest.mark.parametrize(
    ("out", "message"),
    [
        ({"y": np.zeros((2, 3), np.float32)}, r"output 'y' has shape \['rows', 2\], got \[2, 3\]"),
        ({"y": np.zeros((2, 2), np.int32)}, "output 'y' is float32, got int32"),
        ({"z": np.zeros((2, 2), np.float32)}, "no output 'z'"),
        ({"y": bytes(16)}, r"output 'y' is float32, got uint8|read-only"),
        ({"y": np.zeros((4, 2), np.float32)[::2]}, "not C-contiguous"),
        ({"y": np.zeros((5, 2), np.float32)}, r"\[5, 2\]|5,2|shape"),
    ],
)
def test_an_out_that_does_not_fit_is_refused(out: Any, message: str, provider: str) -> None:
    session = ort.InferenceSession(model("affine"), providers=[provider])
    with pytest.raises(BindingError, match=message):
        session.run(None, {"x": ramp(2, 3)}, out=out)
    np.testing.assert_array_equal(session.run(None, {"x": ramp(2, 3)})[0], computed("affine", {"x": ramp(2, 3)})[0])


def test_out_is_for_outputs_that_are_asked_for(provider: str) -> None:
    session = ort.InferenceSession(model("two_outputs"), providers=[provider])
    out = {"difference": np.zeros((2, 3), np.float32)}
    with pytest.raises(
        BindingError, match=r"out has 'difference', which is not among the requested outputs, \['sum'\]"
    ):
        session.run(["sum"], {"a": ramp(2, 3), "b": ramp(2, 3)}, out=out)


def test_runs_of_like_shapes_reuse_their_input_buffers(devices: Devices) -> None:
    device = devices["webgpu"]
    session = ort.InferenceSession(model("affine"), providers=["webgpu"])
    made = []
    allocate = device.allocate

    def counted(*arguments: Any, **given: Any) -> Any:
        made.append(given["label"])
        return allocate(*arguments, **given)

    device.allocate = counted
    for rows in (2, 2, 2, 5):
        session.run(None, {"x": ramp(rows, 3)})
    assert made.count("input x") == 2
    assert len(device.live) == 1, "one spare input buffer"
    session.close()
    assert device.live == {}
    assert device.users == 0


def test_concurrent_runs_do_not_share_an_input_buffer(devices: Devices, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> list[list[Any]]:
        session = await ort.InferenceSession.create(model("affine"), providers=["webgpu"])
        inner = session.opened().run

        async def later(*arguments: Any) -> Any:
            await asyncio.sleep(0)
            return await inner(*arguments)

        monkeypatch.setattr(session.opened(), "run", later)
        return await asyncio.gather(*(session.run_async(None, {"x": ramp(2, 3) * i}) for i in range(3)))

    for i, (found,) in enumerate(asyncio.run(run())):
        np.testing.assert_array_equal(found, computed("affine", {"x": ramp(2, 3) * i})[0])


def test_nothing_is_left_on_the_device_after_close(provider: str, device: HeapDevice) -> None:
    for _ in range(3):
        session = ort.InferenceSession(model("two_outputs"), providers=[provider])
        binding = session.io_binding()
        binding.bind_cpu_input("a", ramp(2, 3))
        binding.bind_cpu_input("b", ramp(2, 3))
        binding.bind_output("sum", "cpu" if provider == CPU else "webgpu")
        session.run_with_iobinding(binding)
        (value,) = binding.get_outputs()
        session.close()
        session.close()
        np.testing.assert_array_equal(value.numpy(), 2 * ramp(2, 3))
        value.close()
        with pytest.raises(ClosedError, match="was closed; make a new"):
            session.run(None, {})
        del binding, value
    assert device.live == {}
    assert device.users == 0


def test_a_model_with_strings_is_refused(provider: str) -> None:
    import onnx
    from onnx import helper

    node = helper.make_node("Identity", ["x"], ["y"])
    values = [helper.make_tensor_value_info(name, onnx.TensorProto.STRING, [1]) for name in ("x", "y")]
    graph = helper.make_graph([node], "strings", values[:1], values[1:])
    data = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()
    with pytest.raises(UnsupportedModelError, match="'x' is of type string; it must be one of float32"):
        ort.InferenceSession(data, providers=[provider])


def test_where_nothing_can_wait_the_async_twin_is_named(provider: str, monkeypatch: pytest.MonkeyPatch) -> None:
    session = ort.InferenceSession(model("affine"), providers=[provider])
    binding = session.io_binding()
    monkeypatch.setattr(LocalHost, "can_wait", lambda _: False)
    calls = {
        "await InferenceSession.create": lambda: ort.InferenceSession(model("affine"), providers=[provider]),
        "await session.run_async": lambda: session.run(None, {"x": ramp(2, 3)}),
        "await session.run_with_iobinding_async": lambda: session.run_with_iobinding(binding),
        "await session.capture_async": lambda: session.capture(binding),
        "await session.aclose": session.close,
    }
    for twin, call in calls.items():
        with pytest.raises(AsyncRequiredError, match=twin):
            call()


def test_a_tensor_that_cannot_be_bound_where_it_is_is_copied_on_the_device_or_mapped(devices: Devices) -> None:
    device = devices["webgpu"]
    session = ort.InferenceSession(model("two_outputs"), providers=["webgpu"])
    pool = device.allocate(512, label="pool")
    staging = device.allocate(24, MemoryType.HOST_ACCESSIBLE, label="staging")
    whole = ort.OrtValue.on_device(device, "float32", (2, 3), "whole")
    middle = ort.OrtValue(pool.span(256, 24), "float32", (2, 3), device)
    staged = ort.OrtValue(staging.span(), "float32", (2, 3), device)
    arrays = {id(value): ramp(2, 3) + index for index, value in enumerate((whole, middle, staged))}
    for value in (whole, middle, staged):
        value.update_inplace(arrays[id(value)])
    copied: list[list[str]] = []
    copy_tensors = device.copy_tensors

    def noted(pairs: Any) -> None:
        copied.append([source.buffer.label for source, _ in pairs])
        copy_tensors(pairs)

    device.copy_tensors = noted
    runs = [(whole, whole, [], 0), (middle, whole, [["pool"]], 0), (middle, staged, [["pool"]], 1)]
    for a, b, labels, maps in [*runs, (staged, staged, [], 1)]:
        copied.clear()
        reads, uploads = device.readbacks_, device.uploads
        found = session.run(["sum"], {"a": a, "b": b})[0]
        np.testing.assert_array_equal(found, arrays[id(a)] + arrays[id(b)])
        assert copied == labels
        # One read of all staging memory, and the one of the result.
        assert device.readbacks_ - reads == maps + 1
        assert device.uploads - uploads == [a, b].count(staged)
    session.close()
    assert sorted(label for label, _ in device.live.values()) == ["pool", "staging", "whole"]


def test_a_tensor_of_another_device_is_refused(devices: Devices) -> None:
    session = ort.InferenceSession(model("two_outputs"), providers=["webgpu"])
    other = ApartDevice(7)
    stranger = ort.OrtValue.on_device(other, "float32", (2, 3), "stranger")
    with pytest.raises(BufferMismatchError, match="'stranger' is in WebGPU_Buffer of webgpu 7, expected .* webgpu 0"):
        session.run(None, {"a": stranger, "b": ramp(2, 3)})
    staging = other.allocate(24, MemoryType.HOST_ACCESSIBLE, label="their staging")
    with pytest.raises(BufferMismatchError, match="'their staging' is in WebGPU_Staging of webgpu 7, expected WebGPU"):
        session.run(None, {"a": ort.OrtValue(staging.span(), "float32", (2, 3), other), "b": ramp(2, 3)})


def asked(name: str, provider: str, shapes: dict[str, list[int]] | None = None) -> ort.SessionRequirements:
    with ort.InferenceSession(model(name), providers=[provider]) as session:
        return session.query_memory_requirements(shapes)


def sizes(need: ort.SessionRequirements) -> dict[str, int]:
    return {item.name: item.bytes for item in need.items}


def test_the_memory_of_a_run_is_told_before_it(provider: str) -> None:
    static = asked("static", provider)
    assert sizes(static) == {"input x": 4 * 8 * 4, "output y": 4 * 5 * 4}
    assert (static.io.bytes, static.io.exact, static.unknown) == (128 + 80, True, ())
    assert not static.scratch.exact
    free = asked("affine", provider, {"x": [1000, 3]})
    assert sizes(free) == {"input x": 12000, "output y": 8000}, "the output has as many rows as the input"
    assert free.total.bytes == 20000 + free.scratch.bytes


def test_an_output_that_depends_on_values_is_told_after_a_run(provider: str) -> None:
    before = asked("positions", provider, {"x": [4]})
    assert (before.unknown, before.io.exact) == (("y",), False)
    with ort.InferenceSession(model("positions"), providers=[provider]) as session:
        session.run(None, {"x": np.array([0, 1, 0, 2], F32)})
        after, longer = (session.query_memory_requirements({"x": [n]}) for n in (4, 5))
    assert sizes(after) == {"input x": 16, "output y": 16}
    assert (after.unknown, after.io.exact) == ((), True)
    assert longer.unknown == ("y",), "of other inputs nothing was seen"


@pytest.mark.parametrize(
    ("shapes", "reason"),
    [
        (None, "input 'x' has free dimensions ['rows'] in ['rows', 3]; give its shape"),
        ({"x": [2, 4]}, "input 'x' has shape ['rows', 3], got [2, 4]"),
        ({"x": [-1, 3]}, "input 'x' has shape [-1, 3]; sizes are integers of at least 0"),
        ({"x": [1, 3], "z": [1]}, "the model has no input 'z'; it has 'x'"),
    ],
)
def test_shapes_that_there_cannot_be_are_refused(shapes: Any, reason: str, provider: str) -> None:
    with pytest.raises(BindingError) as caught:
        asked("affine", provider, shapes)
    assert str(caught.value).startswith(reason)


def test_a_closed_session_tells_nothing(provider: str) -> None:
    session = ort.InferenceSession(model("static"), providers=[provider])
    assert session.alignment_requirements().size == 16
    session.close()
    with pytest.raises(ClosedError):
        session.query_memory_requirements()
