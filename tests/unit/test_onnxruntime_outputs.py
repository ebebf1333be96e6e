"""capstan.onnxruntime: where outputs go, read all at once, and which memory they may not share."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper

import capstan.onnxruntime as ort
from capstan.errors import BindingError, BufferMismatchError, MemoryTypeError, OptionError
from capstan.memory import MemoryType
from tests.onnx_models import F32, I32, Value, build, model, ramp
from tests.unit.stand_in_device import ApartDevice, HeapDevice

Devices = dict[str, Any]
FEEDS = {"a": ramp(2, 3), "b": np.ones((2, 3), np.float32)}
EXPECTED = [ramp(2, 3) + 1, ramp(2, 3) - 1]


@pytest.fixture(params=["cpu", "webgpu"])
def device(request: pytest.FixtureRequest, devices: Devices) -> HeapDevice | ApartDevice:
    found: HeapDevice | ApartDevice = devices[request.param]
    return found


def name_of(device: HeapDevice) -> str:
    return "webgpu" if device.type == "webgpu" else "cpu"


def bound(device: HeapDevice) -> tuple[ort.InferenceSession, ort.IOBinding]:
    """A session with both inputs bound, and no output."""
    session = ort.InferenceSession(model("two_outputs"), providers=[name_of(device)])
    binding = session.io_binding()
    for name, array in FEEDS.items():
        binding.bind_cpu_input(name, array)
    return session, binding


def check(found: list[Any]) -> None:
    for array, expected in zip(found, EXPECTED, strict=True):
        np.testing.assert_array_equal(array, expected)


def test_results_for_the_host_are_read_once(devices: Devices) -> None:
    device = devices["webgpu"]
    session, binding = bound(device)
    check(session.run(None, FEEDS))
    assert device.readbacks_ == 1
    check(session.run(None, FEEDS, out={"difference": np.zeros((2, 3), np.float32)}))
    assert device.readbacks_ == 2
    binding.bind_output("sum")
    binding.bind_output("difference", "cpu", 0, np.float32, [2, 3], np.zeros((2, 3), np.float32))
    session.run_with_iobinding(binding)
    check(binding.copy_outputs_to_cpu())
    assert device.readbacks_ == 3


def test_results_on_the_device_are_copied_by_one_read(devices: Devices) -> None:
    device = devices["webgpu"]
    session, binding = bound(device)
    for name in ("sum", "difference"):
        binding.bind_output(name, "webgpu")
    session.run_with_iobinding(binding)
    assert device.readbacks_ == 0
    check(binding.copy_outputs_to_cpu())
    assert device.readbacks_ == 1
    with session.capture(binding) as captured:
        captured.replay()
        check(captured.copy_outputs_to_cpu())
    assert device.readbacks_ == 2


def test_host_accessible_memory_is_pythons_heap_after_the_run(device: HeapDevice) -> None:
    session, binding = bound(device)
    place = device.get_memory_info(MemoryType.HOST_ACCESSIBLE)
    for name in ("sum", "difference"):
        binding.bind_output(name, memory_info=place)
    session.run_with_iobinding(binding)
    reads = getattr(device, "readbacks_", 0)
    assert reads == (1 if device.type == "webgpu" else 0)
    check(binding.copy_outputs_to_cpu())
    for value in binding.get_outputs():
        assert value.device_name() == "cpu"
        assert np.shares_memory(value.numpy(), value.numpy()), "a view"
    assert device.readbacks_ == reads


def test_a_tensor_in_host_accessible_memory_is_an_output(devices: Devices) -> None:
    device = devices["webgpu"]
    session, binding = bound(device)
    pool = device.allocate(256, MemoryType.HOST_ACCESSIBLE, label="pool")
    for name, offset in (("sum", 4), ("difference", 100)):
        binding.bind_output(name, "webgpu", 0, np.float32, [2, 3], pool.span(offset, 24))
    session.run_with_iobinding(binding)
    assert [value.memory_info.name for value in binding.get_outputs()] == ["WebGPU_Staging"] * 2
    check(binding.copy_outputs_to_cpu())
    with pytest.raises(MemoryTypeError, match="output 'sum' of a captured run: .*'pool' is in WebGPU_Staging"):
        session.capture(binding)


def test_where_outputs_cannot_go_is_told(devices: Devices) -> None:
    device = devices["webgpu"]
    session, binding = bound(device)
    binding.bind_output("sum")
    binding.bind_output("difference")
    theirs = ApartDevice(7)
    with pytest.raises(
        BufferMismatchError, match="output 'sum': .* is not a memory of the session's device, expected one of"
    ):
        binding.bind_output("sum", memory_info=theirs.get_memory_info(MemoryType.HOST_ACCESSIBLE))
    memory = device.allocate(24, MemoryType.HOST_ACCESSIBLE, label="staging")
    with pytest.raises(OptionError, match="memory_info names the place of new memory, and buffer_ptr is existing"):
        binding.bind_output("sum", "webgpu", 0, np.float32, [2, 3], memory, memory_info=memory.memory)
    foreign = theirs.allocate(24, MemoryType.HOST_ACCESSIBLE, label="theirs")
    with pytest.raises(BufferMismatchError, match="'theirs' is in WebGPU_Staging of webgpu 7"):
        binding.bind_output("sum", "webgpu", 0, np.float32, [2, 3], foreign)
    session.run_with_iobinding(binding)
    check(binding.copy_outputs_to_cpu())
    types = ort.InferenceSession(model("element_types"), providers=["webgpu"]).io_binding()
    pool = device.allocate(64, MemoryType.HOST_ACCESSIBLE, label="pool")
    with pytest.raises(MemoryTypeError, match="output 'negated': bytes 6 to 14 of buffer 'pool', .* WebGPU_Staging"):
        types.bind_output("negated", "webgpu", 0, bool, [8], pool.span(6, 8))
    with pytest.raises(BufferMismatchError, match="output 'negated': bytes 4 to 9 of buffer 'pool', .* whole words"):
        types.bind_output("negated", "webgpu", 0, bool, [5], pool.span(4, 5))


def memory_of(device: HeapDevice, size: int) -> Any:
    """Memory that the session computes in, and how its parts are bound."""
    if device.type == "webgpu":
        return device.allocate(size, MemoryType.HOST_ACCESSIBLE, label="shared")
    return np.zeros(size, np.uint8)


def part(memory: Any, start: int, size: int) -> Any:
    if isinstance(memory, np.ndarray):
        return memory[start : start + size].view(np.float32).reshape(2, 3)
    return memory.span(start, size)


@pytest.mark.parametrize(("start", "shared"), [(0, True), (4, True), (20, True), (24, False), (28, False)])
def test_two_outputs_in_one_memory_are_refused_before_anything_runs(
    start: int, shared: bool, device: HeapDevice
) -> None:
    session, binding = bound(device)
    memory = memory_of(device, 256)
    place = name_of(device)
    binding.bind_output("sum", place, 0, np.float32, [2, 3], part(memory, 0, 24))
    binding.bind_output("difference", place, 0, np.float32, [2, 3], part(memory, start, 24))
    if not shared:
        session.run_with_iobinding(binding)
        check(binding.copy_outputs_to_cpu())
        return
    message = (
        "output 'difference' and output 'sum' share memory of buffer .*; bind output 'difference' to separate memory"
    )
    with pytest.raises(BindingError, match=message):
        session.run_with_iobinding(binding)
    binding.bind_output("difference")
    session.run_with_iobinding(binding)
    check(binding.copy_outputs_to_cpu())


def test_arrays_of_out_do_not_overlap(device: HeapDevice) -> None:
    session, _ = bound(device)
    memory = np.zeros(12, np.float32)
    whole = {"sum": memory[:6].reshape(2, 3), "difference": memory[6:].reshape(2, 3)}
    check(session.run(None, FEEDS, out=whole))
    before = memory.copy()
    with pytest.raises(BindingError, match="output 'difference' and output 'sum' share memory"):
        session.run(None, FEEDS, out={**whole, "difference": memory[5:11].reshape(2, 3)})
    np.testing.assert_array_equal(memory, before)


def test_an_output_in_its_inputs_memory_is_refused(device: HeapDevice) -> None:
    session, binding = bound(device)
    if device.type == "webgpu":
        value = ort.OrtValue.ortvalue_from_numpy(ramp(2, 3), "webgpu")
    else:
        value = ort.OrtValue.ortvalue_from_numpy(ramp(2, 3))
    binding.bind_ortvalue_input("a", value)
    binding.bind_ortvalue_output("sum", value)
    binding.bind_output("difference")
    with pytest.raises(
        BindingError,
        match="output 'sum' and input 'a' share memory of buffer '.*bind output 'sum' to separate memory",
    ):
        session.run_with_iobinding(binding)
    np.testing.assert_array_equal(value.numpy(), ramp(2, 3))
    binding.bind_output("sum")
    session.run_with_iobinding(binding)
    check(binding.copy_outputs_to_cpu())


def test_a_cache_that_attention_updates_in_place_is_input_and_output(devices: Devices) -> None:
    names = ["x", "", "", "past_key", "past_value", "before", "total"]
    attributes: dict[str, Any] = {"domain": "com.microsoft", "num_heads": 1, "kv_num_heads": 1}
    node = helper.make_node("GroupQueryAttention", names, ["y", "present_key", "present_value"], **attributes)
    sizes = [1, 1, 8, 16]
    inputs: list[Value] = [("x", F32, [1, 1, 48]), ("past_key", F32, sizes), ("past_value", F32, sizes)]
    inputs += [("before", I32, [1, 1]), ("total", I32, [1])]
    outputs: list[Value] = [("y", F32, [1, 1, 16]), ("present_key", F32, sizes), ("present_value", F32, sizes)]
    session = ort.InferenceSession(build([node], inputs, outputs).SerializeToString(), providers=["webgpu"])
    binding = session.io_binding()
    caches = {
        kind: ort.OrtValue.ortvalue_from_numpy(np.zeros(sizes, np.float32), "webgpu") for kind in ("key", "value")
    }
    for kind, value in caches.items():
        binding.bind_ortvalue_input(f"past_{kind}", value)
        binding.bind_ortvalue_output(f"present_{kind}", value)
    binding.bind_output("y")
    binding.bind_cpu_input("x", np.arange(48, dtype=np.float32).reshape(1, 1, 48))
    binding.bind_cpu_input("before", np.zeros((1, 1), np.int32))
    binding.bind_cpu_input("total", np.ones(1, np.int32))
    session.run_with_iobinding(binding)
    np.testing.assert_array_equal(caches["key"].numpy()[0, 0, 0], np.arange(16, 32))
    # The other way round they are two tensors in one buffer, one of which is overwritten.
    binding.bind_ortvalue_output("present_key", caches["value"])
    binding.bind_ortvalue_output("present_value", caches["key"])
    with pytest.raises(BindingError, match="output 'present_key' and input 'past_value' share memory"):
        session.run_with_iobinding(binding)
