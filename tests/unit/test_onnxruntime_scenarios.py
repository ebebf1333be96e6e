"""The same scripts over the native onnxruntime and over capstan.onnxruntime give the same arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest

import capstan.onnxruntime as ort
from tests import onnx_models
from tests.browser.scripts.onnxruntime_scenarios import SCENARIOS
from tests.unit.stand_in_device import ApartDevice, HeapDevice

MODELS = {make.__name__: onnx_models.model(make.__name__) for make in onnx_models.MODELS}
PROVIDERS = {"cpu": "CPUExecutionProvider", "webgpu": "WebGpuExecutionProvider"}


@pytest.mark.parametrize("device", ["cpu", "webgpu"])
@pytest.mark.parametrize("name", SCENARIOS)
def test_a_script_for_the_native_onnxruntime_gives_the_same_arrays(
    name: str, device: str, devices: dict[str, HeapDevice | ApartDevice]
) -> None:
    expected = SCENARIOS[name](onnxruntime, PROVIDERS["cpu"], "cpu", MODELS)
    found = SCENARIOS[name](ort, PROVIDERS[device], device, MODELS)
    assert len(found) == len(expected)
    for got, wanted in zip(found, expected, strict=True):
        assert_same(got, wanted)


def assert_same(got: Any, wanted: Any) -> None:
    assert (type(got), got.dtype, got.shape) == (np.ndarray, wanted.dtype, wanted.shape)
    np.testing.assert_array_equal(got, wanted)
