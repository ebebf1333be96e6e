"""capstan.onnxruntime.IOBinding: what may be bound, what is refused, and what a refusal leaves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import capstan.onnxruntime as ort
from capstan.errors import BindingError, BufferMismatchError, ClosedError, MemoryTypeError, TapeError
from capstan.memory import MemoryType
from tests.onnx_models import model, ramp
from tests.unit.stand_in_device import ApartDevice, HeapDevice

Devices = dict[str, Any]
F32 = np.float32


@pytest.fixture(params=["cpu", "webgpu"])
def device(request: pytest.FixtureRequest, devices: Devices) -> HeapDevice | ApartDevice:
    found: HeapDevice | ApartDevice = devices[request.param]
    return found


def value_over(array: Any) -> ort.OrtValue:
    return ort.OrtValue.ortvalue_from_numpy(array)


def name_of(device: HeapDevice) -> str:
    return "webgpu" if device.type == "webgpu" else "cpu"


def bound(device: HeapDevice) -> tuple[ort.InferenceSession, ort.IOBinding]:
    """A session with a = ramp, b = 1 and both outputs bound."""
    session = ort.InferenceSession(model("two_outputs"), providers=[name_of(device)])
    binding = session.io_binding()
    binding.bind_cpu_input("a", ramp(2, 3))
    binding.bind_cpu_input("b", np.ones((2, 3), F32))
    binding.bind_output("sum")
    binding.bind_output("difference", name_of(device))
    return session, binding


def check(session: ort.InferenceSession, binding: ort.IOBinding) -> None:
    """Assert that the binding of `bound` still works."""
    session.run_with_iobinding(binding)
    total, difference = binding.copy_outputs_to_cpu()
    np.testing.assert_array_equal(total, ramp(2, 3) + 1)
    np.testing.assert_array_equal(difference, ramp(2, 3) - 1)


def test_memory_of_the_device_is_bound_in_every_form(device: HeapDevice) -> None:
    session, binding = bound(device)
    buffer = device.allocate(24, label="mine")
    device.copy_cpu_to_device(buffer.span(), ramp(2, 3).tobytes())
    value = ort.OrtValue(buffer.span(), "float32", (2, 3), device if device.type == "webgpu" else None)
    for memory in (buffer, buffer.span(), value, value.data_ptr()):
        binding.bind_input("a", name_of(device), 0, F32, [2, 3], memory)
        check(session, binding)
    target = device.allocate(24, label="target")
    binding.bind_output("sum", name_of(device), 0, F32, [2, 3], target)
    check(session, binding)
    assert bytes(device.bytes_of(target.span())) == (ramp(2, 3) + 1).tobytes()
    assert not target.closed


def test_arrays_are_bound_where_they_are_or_copied_at_once(device: HeapDevice) -> None:
    session, binding = bound(device)
    a = ramp(2, 3)
    for bind in (binding.bind_cpu_input, lambda name, it: binding.bind_ortvalue_input(name, value_over(it))):
        a[:] = ramp(2, 3)
        bind("a", a)
        a[:] = 5
        session.run_with_iobinding(binding)
        # As with onnxruntime: a CPU session reads the array at the run, a device has got its copy when it was bound.
        expected = ramp(2, 3) + 1 if device.type == "webgpu" else np.full((2, 3), 6, F32)
        np.testing.assert_array_equal(binding.copy_outputs_to_cpu()[0], expected)


def test_an_output_bound_to_an_array_is_written_there(device: HeapDevice) -> None:
    session, binding = bound(device)
    total = np.zeros((2, 3), F32)
    binding.bind_output("sum", "cpu", 0, F32, [2, 3], total)
    check(session, binding)
    np.testing.assert_array_equal(total, ramp(2, 3) + 1)
    value = ort.OrtValue.ortvalue_from_numpy(total)
    total[:] = 0
    binding.bind_ortvalue_output("sum", value)
    check(session, binding)
    np.testing.assert_array_equal(total, ramp(2, 3) + 1)
    assert binding.get_outputs()[0] is value


def test_results_on_the_device_are_read_only_when_asked_for(devices: Devices) -> None:
    device = devices["webgpu"]
    session, binding = bound(device)
    binding.bind_output("sum", "webgpu")
    session.run_with_iobinding(binding)
    assert device.readbacks_ == 0
    total, _ = binding.get_outputs()
    assert total.device_name() == "webgpu"
    np.testing.assert_array_equal(total.numpy(), ramp(2, 3) + 1)
    assert device.readbacks_ == 1


def closed_buffer(device: HeapDevice) -> Any:
    buffer = device.allocate(24, label="gone")
    buffer.close()
    return buffer


def closed_span(device: HeapDevice) -> Any:
    span = device.allocate(24, label="gone").span()
    span.buffer.close()
    return span


def closed_value(device: HeapDevice) -> Any:
    value = ort.OrtValue.on_device(device, "float32", (2, 3), "gone")
    value.close()
    return value


BAD_MEMORY: dict[str, tuple[Callable[[HeapDevice], Any], type[Exception], str]] = {
    "too small": (
        lambda device: device.allocate(20, label="small"),
        BufferMismatchError,
        "has 20 bytes, but float32 .* needs 24",
    ),
    "span too small": (
        lambda device: device.allocate(64, label="small").span(0, 8),
        BufferMismatchError,
        "buffer 'small' has 8 bytes, but float32 .* needs 24",
    ),
    "misaligned": (
        lambda device: device.allocate(64, label="odd").span(2, 24),
        BufferMismatchError,
        "from byte 2, exp",
    ),
    "closed": (closed_buffer, BufferMismatchError, "buffer 'gone' was closed; bind an open one"),
    "closed span": (closed_span, BufferMismatchError, "buffer 'gone' was closed; bind an open one"),
    "closed value": (closed_value, BufferMismatchError, "the OrtValue was closed; bind an open one"),
    "an address": (lambda _: 0x7F00, BindingError, "buffer_ptr is the address 0x7f00; give a DeviceBuffer"),
    "nothing": (lambda _: object(), BindingError, "is object, which gives no PEP 3118 buffer"),
}


@pytest.mark.parametrize("case", BAD_MEMORY)
@pytest.mark.parametrize("kind", ["input", "output"])
def test_bad_memory_is_refused_and_what_was_bound_stays(case: str, kind: str, device: HeapDevice) -> None:
    make, error, message = BAD_MEMORY[case]
    session, binding = bound(device)
    name = "a" if kind == "input" else "sum"
    bind = binding.bind_input if kind == "input" else binding.bind_output
    with pytest.raises(error, match=message) as found:
        bind(name, name_of(device), 0, F32, [2, 3], make(device))
    assert f"{kind} {name!r}" in str(found.value)
    check(session, binding)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (("c", "{device}", 0, F32, [2, 3]), BindingError, "the model has no input 'c'; it has 'a', 'b'"),
        (("a", "{device}", 0, np.int32, [2, 3]), BindingError, "input 'a' is float32, got int32"),
        (("a", "{device}", 0, F32, [3, 2]), BindingError, r"input 'a' has shape \[2, 3\], got \[3, 2\]"),
        (("a", "{device}", 0, F32, [6]), BindingError, r"got \[6\]"),
        (("a", "{device}", 0, F32, [-1, 3]), BindingError, "every dimension must be a whole number"),
        (("a", "{device}", 1, F32, [2, 3]), BufferMismatchError, "device_id is 1, expected 0"),
        (("a", "{other}", 0, F32, [2, 3]), BufferMismatchError, "give the type of the buffer's device"),
        (("a", "cuda", 0, F32, [2, 3]), ValueError, "device_type is 'cuda'; it must be 'cpu' or 'webgpu'"),
        (("a", "{device}", 0, "complex64", [2, 3]), BindingError, "'complex64' is not an element type"),
    ],
)
def test_a_bad_description_is_refused_and_what_was_bound_stays(
    arguments: Any, error: type[Exception], message: str, device: HeapDevice
) -> None:
    session, binding = bound(device)
    names = {"{device}": name_of(device), "{other}": "cpu" if device.type == "webgpu" else "webgpu"}
    name, device_type, number, dtype, shape = arguments
    memory = device.allocate(24, label="mine")
    with pytest.raises(error, match=message):
        binding.bind_input(name, names.get(device_type, device_type), number, dtype, shape, memory)
    check(session, binding)


def test_a_buffer_of_another_device_is_refused(devices: Devices) -> None:
    strangers = {"webgpu": ApartDevice(3), "cpu": devices["webgpu"]}
    for name, stranger in strangers.items():
        session, binding = bound(devices[name])
        value = ort.OrtValue.on_device(stranger, "float32", (2, 3), "theirs")
        with pytest.raises(BufferMismatchError, match="buffer 'theirs' is in WebGPU_Buffer of webgpu .*copy it"):
            binding.bind_ortvalue_input("a", value)
        with pytest.raises(BufferMismatchError, match="output 'sum': buffer 'theirs' is in WebGPU_Buffer"):
            binding.bind_ortvalue_output("sum", value)
        check(session, binding)


def test_staging_memory_and_spans_in_the_midst_of_a_buffer_cannot_be_bound_on_webgpu(devices: Devices) -> None:
    device = devices["webgpu"]
    session, binding = bound(device)
    staging = device.allocate(24, MemoryType.HOST_ACCESSIBLE, label="staging")
    with pytest.raises(MemoryTypeError, match="'staging' is in WebGPU_Staging .* expected WebGPU_Buffer .*session.run"):
        binding.bind_input("a", "webgpu", 0, F32, [2, 3], staging)
    middle = device.allocate(512, label="pool").span(256, 24)
    with pytest.raises(BufferMismatchError, match="from byte 256, expected byte 0: onnxruntime-web binds whole"):
        binding.bind_input("a", "webgpu", 0, F32, [2, 3], middle)
    check(session, binding)


def test_types_that_no_gpu_buffer_holds_are_bound_on_the_cpu(devices: Devices) -> None:
    session = ort.InferenceSession(model("narrow"), providers=["webgpu"])
    binding = session.io_binding()
    value = ort.OrtValue.ortvalue_from_numpy(np.array([1, -2], np.int8), "webgpu")
    with pytest.raises(BufferMismatchError, match="input 'x': int8 on the device, expected 'cpu'.*bind an array"):
        binding.bind_ortvalue_input("x", value)
    with pytest.raises(BufferMismatchError, match="input 'x': int8 on the device, expected 'cpu'.*bind an array"):
        session.run(None, {"x": value})
    with pytest.raises(BufferMismatchError, match="output 'z': int8 on the device, expected 'cpu'"):
        binding.bind_ortvalue_output("z", value)
    binding.bind_cpu_input("x", np.array([1, -2], np.int8))
    binding.bind_output("z", "webgpu")
    session.run_with_iobinding(binding)
    (z,) = binding.get_outputs()
    assert (z.device_name(), z.numpy().tolist()) == ("cpu", [-1, 2])


def test_an_output_does_not_share_its_last_word(devices: Devices) -> None:
    device = devices["webgpu"]
    session = ort.InferenceSession(model("element_types"), providers=["webgpu"])
    binding = session.io_binding()
    pool = device.allocate(64, label="pool")
    with pytest.raises(BufferMismatchError, match="'negated': buffer 'pool' continues after the 5 bytes of the tensor"):
        binding.bind_output("negated", "webgpu", 0, bool, [5], pool.span(0, 5))
    binding.bind_output("negated", "webgpu", 0, bool, [8], pool.span(0, 8))
    binding.bind_output("negated", "webgpu", 0, bool, [5], device.allocate(5, label="own"))


def test_outputs_of_a_cpu_session_stay_on_the_cpu(devices: Devices) -> None:
    session, binding = bound(devices["cpu"])
    with pytest.raises(BufferMismatchError, match="the session computes on CPUExecutionProvider; bind it to 'cpu'"):
        binding.bind_output("sum", "webgpu")
    check(session, binding)


def test_a_read_only_array_is_no_output(device: HeapDevice) -> None:
    session, binding = bound(device)
    with pytest.raises(BindingError, match="read-only"):
        binding.bind_output("sum", "cpu", 0, F32, [2, 3], bytes(24))
    value = ort.OrtValue.ortvalue_from_numpy(memoryview(bytes(24)).cast("f", (2, 3)))
    with pytest.raises(BindingError, match="the array is read-only"):
        binding.bind_ortvalue_output("sum", value)
    check(session, binding)


def test_what_is_missing_at_the_run_is_named(device: HeapDevice) -> None:
    session, binding = bound(device)
    other = ort.InferenceSession(model("two_outputs"), providers=[name_of(device)])
    with pytest.raises(BindingError, match="this binding belongs to another session"):
        other.run_with_iobinding(binding)
    binding.clear_binding_outputs()
    with pytest.raises(BindingError, match="no output is bound; the model has 'sum', 'difference'"):
        session.run_with_iobinding(binding)
    binding.bind_output("sum")
    binding.clear_binding_inputs()
    binding.bind_cpu_input("a", ramp(2, 3))
    with pytest.raises(BindingError, match="input 'b' is missing; the model has 'a', 'b'"):
        session.run_with_iobinding(binding)


def test_a_buffer_closed_after_it_was_bound_is_found_at_the_run(device: HeapDevice) -> None:
    session, binding = bound(device)
    buffer = device.allocate(24, label="short-lived")
    binding.bind_input("a", name_of(device), 0, F32, [2, 3], buffer)
    buffer.close()
    with pytest.raises((BufferMismatchError, ClosedError), match="'short-lived'.* was closed"):
        session.run_with_iobinding(binding)
    binding.bind_cpu_input("a", ramp(2, 3))
    check(session, binding)


def test_a_captured_run_needs_memory_of_the_device(devices: Devices) -> None:
    session, binding = bound(devices["webgpu"])
    with pytest.raises(BindingError, match="output 'sum' is bound to 'cpu', expected 'webgpu'"):
        session.capture(binding)
    check(session, binding)
    session, binding = bound(devices["cpu"])
    with pytest.raises(TapeError, match="CPUExecutionProvider has no GPU commands to record"):
        session.capture(binding)


def test_a_run_in_place_cannot_be_captured(devices: Devices) -> None:
    device = devices["webgpu"]
    session, binding = bound(device)
    value = ort.OrtValue.ortvalue_from_numpy(ramp(2, 3), "webgpu")
    binding.bind_ortvalue_input("a", value)
    binding.bind_ortvalue_output("sum", value)
    with pytest.raises(TapeError, match="output 'sum' and input 'a' share buffer 'OrtValue'; a run in place"):
        session.capture(binding)
    other = ort.OrtValue.ortvalue_from_numpy(ramp(2, 3), "webgpu")
    binding.bind_ortvalue_output("sum", other)
    binding.bind_ortvalue_output("difference", other)
    with pytest.raises(TapeError, match="output 'difference' and output 'sum' share buffer"):
        session.capture(binding)


def test_a_captured_run_gives_outputs_memory_and_outlives_its_session(devices: Devices) -> None:
    device = devices["webgpu"]
    session, binding = bound(device)
    a = ort.OrtValue.ortvalue_from_numpy(ramp(2, 3), "webgpu")
    binding.bind_ortvalue_input("a", a)
    binding.bind_output("sum", "webgpu")
    with session.capture(binding) as captured:
        total, difference = captured.get_outputs()
        for factor in (1, -2):
            a.update_inplace(ramp(2, 3) * factor)
            captured.replay()
            np.testing.assert_array_equal(total.numpy(), ramp(2, 3) * factor + 1)
            np.testing.assert_array_equal(difference.numpy(), ramp(2, 3) * factor - 1)
        assert captured.passes == {"clears": "0 dropped"}
        assert [captured.outputs["sum"], captured.outputs["difference"]] == binding.get_outputs()
        total.close()
        with pytest.raises(ClosedError, match="the OrtValue of 'sum' was closed, which the captured run uses"):
            captured.replay()
        session.close()
        for value in (a, difference, *captured.inputs.values()):
            value.close()
        assert device.users == 1
    assert device.users == 0
    with pytest.raises(ClosedError, match="this captured run was closed; capture the binding again"):
        captured.replay()
