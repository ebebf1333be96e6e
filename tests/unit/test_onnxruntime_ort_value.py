"""capstan.onnxruntime.OrtValue and the arrays that cross: with numpy, and on plain PEP 3118 buffers."""

from __future__ import annotations

import ctypes
import gc
import subprocess
import sys
from array import array
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import capstan.onnxruntime as ort
from capstan.device.element_types import ELEMENT_TYPES, dtype_of
from capstan.errors import BindingError, BufferMismatchError, ClosedError, OptionError
from capstan.memory import MemoryType
from capstan.onnxruntime.host_array import HostArray
from tests.onnx_models import ramp

Devices = dict[str, Any]
ROOT = Path(__file__).parents[2]


@pytest.fixture(params=["cpu", "webgpu"])
def device_type(request: pytest.FixtureRequest, devices: Devices) -> str:
    name: str = request.param
    return name


def test_a_cpu_value_is_a_view_of_its_array_both_ways(devices: Devices) -> None:
    source = ramp(2, 3)
    value = ort.OrtValue.ortvalue_from_numpy(source)
    seen = value.numpy()
    source[0, 0] = 42
    assert seen[0, 0] == 42
    seen[1, 2] = 7
    assert source[1, 2] == 7
    value.update_inplace(np.full((2, 3), -1, np.float32))
    assert (source == -1).all()
    assert (devices["cpu"].uploads, devices["cpu"].readbacks_) == (0, 0)


def test_a_device_value_is_a_copy_made_once_each_way(devices: Devices) -> None:
    device = devices["webgpu"]
    source = ramp(2, 3)
    value = ort.OrtValue.ortvalue_from_numpy(source, "webgpu", 0)
    source[:] = 0
    np.testing.assert_array_equal(value.numpy(), ramp(2, 3))
    target = np.zeros((2, 3), np.float32)
    assert value.numpy(out=target) is target
    np.testing.assert_array_equal(target, ramp(2, 3))
    assert (device.uploads, device.readbacks_) == (1, 2)


def test_a_value_describes_itself(device_type: str) -> None:
    value = ort.OrtValue.ortvalue_from_shape_and_type([2, 0, 3], np.float16, device_type)
    assert (value.shape(), value.data_type(), value.element_type()) == ([2, 0, 3], "tensor(float16)", 10)
    assert (value.device_name(), value.tensor_size_in_bytes()) == (device_type, 0)
    assert value.is_tensor()
    assert value.numpy().shape == (2, 0, 3)
    assert repr(value) == f"<OrtValue float16 [2, 0, 3] on {device_type}>"


@pytest.mark.parametrize("dtype", ELEMENT_TYPES)
def test_every_element_type_goes_there_and_back(dtype: str, device_type: str) -> None:
    source = (np.arange(6).reshape(2, 3) % 2).astype(dtype)
    value = ort.OrtValue.ortvalue_from_numpy(source, device_type)
    found = value.numpy()
    assert (found.dtype, found.shape) == (source.dtype, (2, 3))
    np.testing.assert_array_equal(found, source)
    zeros = ort.OrtValue.ortvalue_from_shape_and_type((2, 3), np.dtype(dtype), device_type)
    np.testing.assert_array_equal(zeros.numpy(), np.zeros((2, 3), dtype))
    zeros.update_inplace(source)
    np.testing.assert_array_equal(zeros.numpy(), source)


@pytest.mark.parametrize(
    ("given", "name"),
    [("float16", "float16"), ("tensor(double)", "float64"), (7, "int64"), (np.uint8, "uint8"), (bool, "bool")],
)
def test_element_types_have_many_names(given: Any, name: str) -> None:
    assert dtype_of(given) == name


@pytest.mark.parametrize("given", ["float", 8, "tensor(string)", complex, np.complex64, None])
def test_other_element_types_are_refused(given: Any) -> None:
    with pytest.raises(BindingError, match="is not an element type; it must be one of float32"):
        dtype_of(given)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.zeros((2, 2), np.float32), r"is float32 \[2, 2\], the OrtValue is float32 \[2, 3\]"),
        (np.zeros((2, 3), np.int32), r"is int32 \[2, 3\], the OrtValue is float32"),
        ([1, 2], "gives no PEP 3118 buffer"),
    ],
)
def test_update_inplace_wants_the_same_type_and_shape(value: Any, message: str, device_type: str) -> None:
    ort_value = ort.OrtValue.ortvalue_from_numpy(ramp(2, 3), device_type)
    with pytest.raises(BindingError, match=message):
        ort_value.update_inplace(value)
    with pytest.raises(BindingError, match=message.replace("gives no", "gives no")):
        ort_value.numpy(out=value)
    np.testing.assert_array_equal(ort_value.numpy(), ramp(2, 3))


def test_read_only_memory_is_not_written(device_type: str) -> None:
    value = ort.OrtValue.ortvalue_from_numpy((bytes(8), (8,)))
    with pytest.raises(BindingError, match="the array is read-only; give a writable one"):
        value.update_inplace(np.ones(8, np.uint8))
    value = ort.OrtValue.ortvalue_from_numpy((bytes(8), (8,)), device_type)
    with pytest.raises(BindingError, match="out is read-only or not C-contiguous"):
        value.numpy(out=(bytes(8), (8,)))


def test_a_place_names_the_memory(devices: Devices) -> None:
    device = devices["webgpu"]
    place = device.get_memory_info(MemoryType.HOST_ACCESSIBLE)
    value = ort.OrtValue.ortvalue_from_shape_and_type([4], np.float32, memory_info=place)
    assert value.memory_info == place
    host = ort.OrtValue.ortvalue_from_shape_and_type([4], np.float32, memory_info=devices["cpu"].get_memory_info())
    assert host.device_name() == "cpu"
    assert host.memory_info.heap == "python"
    elsewhere = ort.MemoryInfo("WebGPU_Buffer", "webgpu", MemoryType.DEFAULT, device_id=9, alignment=256)
    with pytest.raises(BufferMismatchError, match="is not a memory of the open device"):
        ort.OrtValue.ortvalue_from_shape_and_type([4], np.float32, memory_info=elsewhere)
    assert device.users == 1


@pytest.mark.parametrize("shape", [[-1], ["n"], [2.0]])
def test_a_shape_has_whole_numbers(shape: Any, device_type: str) -> None:
    with pytest.raises(ValueError, match="every dimension must be a whole number, 0 or more|each item is an integer"):
        ort.OrtValue.ortvalue_from_shape_and_type(shape, np.float32, device_type)


@pytest.mark.parametrize(("device", "number"), [("cuda", 0), ("webgpu", 1), ("cpu", 1)])
def test_devices_that_are_not_there_are_refused(device: str, number: int, devices: Devices) -> None:
    with pytest.raises(OptionError, match="device_type is 'cuda'|device_id is 1"):
        ort.OrtValue.ortvalue_from_numpy(ramp(2), device, number)


def test_device_memory_goes_with_the_value(devices: Devices) -> None:
    device = devices["webgpu"]
    first = ort.OrtValue.ortvalue_from_numpy(ramp(2), "webgpu")
    with ort.OrtValue.ortvalue_from_numpy(ramp(2), "webgpu") as second:
        assert len(device.live) == 2
    assert len(device.live) == 1
    assert not second.has_value()
    with pytest.raises(ClosedError, match=r"this OrtValue \(float32 \[2\]\) was closed"):
        second.numpy()
    second.close()
    del first
    gc.collect()
    assert device.live == {}
    assert device.users == 0


@pytest.mark.parametrize(
    ("given", "dtype", "dims"),
    [
        (memoryview(bytes(24)).cast("f", (2, 3)), "float32", (2, 3)),
        (array("q", [1, 2]), "int64", (2,)),
        (array("l", [1, 2]), f"int{8 * array('l').itemsize}", (2,)),
        (array("H", [1, 2]), "uint16", (2,)),
        (b"abc", "uint8", (3,)),
        ((array("f", range(6)), (2, 3)), "float32", (2, 3)),
        ((ctypes.c_float * 3)(1, 2, 3), "float32", (3,)),
        (memoryview(b"\1\0").cast("?"), "bool", (2,)),
        (np.float16(2), "float16", ()),
    ],
)
def test_any_buffer_is_an_array(given: Any, dtype: str, dims: tuple[int, ...]) -> None:
    host = HostArray.of("it", given)
    assert (host.dtype, host.dims) == (dtype, dims)
    raw = given[0] if isinstance(given, tuple) else given
    assert bytes(host.data) == bytes(memoryview(raw))


WITHOUT_NUMPY = """
import sys
from array import array
sys.modules["numpy"] = None
from capstan.onnxruntime.host_array import HostArray, as_array, empty
from capstan.onnxruntime import OrtValue
sys.modules.pop("numpy")

floats = array("f", range(6))
value = OrtValue.ortvalue_from_numpy((floats, (2, 3)))
seen = value.numpy()
assert (type(seen), seen.format, seen.shape, seen.tolist()) == (memoryview, "f", (2, 3), [[0, 1, 2], [3, 4, 5]])
floats[5] = -1
assert seen[1, 2] == -1
seen[0, 0] = 9
assert floats[0] == 9
value.update_inplace(memoryview(bytearray(24)).cast("f", (2, 3)))
assert floats.tolist() == [0] * 6
target = memoryview(bytearray(24)).cast("f", (2, 3))
floats[1] = 3
assert value.numpy(out=target) is target and target.tolist() == [[0, 3, 0], [0, 0, 0]]
halves = OrtValue.ortvalue_from_shape_and_type((2, 2), "float16").numpy()
assert halves.shape == (2, 2) and halves.itemsize == 2 and halves.format in "eH"
nothing = OrtValue.ortvalue_from_shape_and_type((2, 0), "int64")
assert nothing.shape() == [2, 0] and nothing.numpy().nbytes == 0 and nothing.numpy().format == "q"
assert OrtValue.ortvalue_from_shape_and_type((), "bool").numpy().tolist() is False
assert "numpy" not in sys.modules
print("done")
"""


def test_everything_works_without_numpy() -> None:
    path = str(ROOT / "py_src")
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_NUMPY], capture_output=True, text=True, env={"PYTHONPATH": path}, check=False
    )
    assert (done.stdout.strip(), done.stderr) == ("done", "")
