"""enableGraphCapture of capstan.onnxruntime: the first bound run is captured and the ones after are replays, or each is
eager and told why."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import capstan.onnxruntime as ort
from capstan import FallbackWarning, fallback
from capstan.errors import BindingError, ClosedError, OptionError
from tests.onnx_models import model, ramp
from tests.unit.stand_in_device import ApartDevice, ApartSession

Devices = dict[str, Any]
WEBGPU = "WebGpuExecutionProvider"
ON = (WEBGPU, {"enableGraphCapture": "1"})


pytestmark = pytest.mark.usefixtures("no_fallbacks")


def reasons() -> dict[str, int]:
    """How often a run was not captured, by the reason."""
    missing = f'{WEBGPU} with enableGraphCapture "1": '
    return {what.removeprefix(missing): times for what, times in fallback.fallbacks().items() if missing in what}


def opened(*providers: Any) -> tuple[ort.InferenceSession, ort.IOBinding, ort.OrtValue]:
    """A session, a binding with both outputs on the device, and its input a."""
    session = ort.InferenceSession(model("two_outputs"), providers=list(providers) or [ON])
    binding = session.io_binding()
    a = ort.OrtValue.ortvalue_from_numpy(ramp(2, 3), "webgpu")
    binding.bind_ortvalue_input("a", a)
    binding.bind_cpu_input("b", np.ones((2, 3), np.float32))
    binding.bind_output("sum", "webgpu")
    binding.bind_output("difference", "webgpu")
    return session, binding, a


def device_session(session: ort.InferenceSession) -> ApartSession:
    found = session.opened()
    assert isinstance(found, ApartSession)
    return found


def check(session: ort.InferenceSession, binding: ort.IOBinding, a: ort.OrtValue, factor: float) -> None:
    """A bound run gives the results for a = factor * ramp."""
    a.update_inplace(ramp(2, 3) * np.float32(factor))
    session.run_with_iobinding(binding)
    total, difference = (value.numpy() for value in binding.get_outputs())
    np.testing.assert_array_equal(total, ramp(2, 3) * np.float32(factor) + 1)
    np.testing.assert_array_equal(difference, ramp(2, 3) * np.float32(factor) - 1)


def test_the_first_bound_run_is_captured_and_the_ones_after_are_replays(devices: Devices) -> None:
    session, binding, a = opened()
    inner = device_session(session)
    for factor in (1, -2, 5):
        check(session, binding, a, factor)
    # The eager run told the shapes of the outputs that had no memory yet.
    assert (inner.records, inner.eager) == (1, 1)
    assert session.query_memory_requirements().scratch.exact
    assert reasons() == {}


@pytest.mark.parametrize(
    "provider", ["webgpu", (WEBGPU, {"enableGraphCapture": "0"}), (WEBGPU, {"enableGraphCapture": 0})]
)
def test_nothing_is_captured_where_that_was_not_asked_for(provider: Any, devices: Devices) -> None:
    session, binding, a = opened(provider)
    inner = device_session(session)
    check(session, binding, a, 1)
    check(session, binding, a, 3)
    session.run(None, {"a": ramp(2, 3), "b": ramp(2, 3)})
    assert (inner.records, inner.eager, reasons()) == (0, 3, {})


@pytest.mark.parametrize("value", ["", "2", "true", True, None, 1.0])
def test_another_value_is_refused_before_a_device_is_opened(value: Any, devices: Devices) -> None:
    for options in (
        {"providers": [(WEBGPU, {"enableGraphCapture": value})]},
        {"providers": ["webgpu"], "provider_options": [{"enableGraphCapture": value}]},
    ):
        with pytest.raises(OptionError, match=rf"^{WEBGPU}: enableGraphCapture is {value!r}; it must be '0' or '1'$"):
            ort.InferenceSession(model("two_outputs"), **options)
    assert devices["webgpu"].users == 0
    with pytest.raises(OptionError, match="CPUExecutionProvider has no option 'enableGraphCapture'"):
        ort.InferenceSession(model("two_outputs"), providers=[("cpu", {"enableGraphCapture": "1"})])


def test_another_binding_of_the_same_tensors_is_a_replay(devices: Devices) -> None:
    session, binding, a = opened()
    check(session, binding, a, 1)
    again = session.io_binding()
    again.bind_ortvalue_input("a", a)
    again.bind_ortvalue_input("b", binding.inputs["b"])
    again.bind_output("difference", "webgpu")
    a.update_inplace(ramp(2, 3) * 2)
    session.run_with_iobinding(again)
    (difference,) = again.get_outputs()
    np.testing.assert_array_equal(difference.numpy(), ramp(2, 3) * 2 - 1)
    assert device_session(session).records == 1


def rebind_input(binding: ort.IOBinding) -> None:
    binding.bind_cpu_input("a", ramp(2, 3))


def rebind_output(binding: ort.IOBinding) -> None:
    binding.bind_ortvalue_output("sum", ort.OrtValue.ortvalue_from_numpy(ramp(2, 3), "webgpu"))


def rebind_to_the_host(binding: ort.IOBinding) -> None:
    binding.bind_output("sum", "cpu")


@pytest.mark.parametrize(
    ("rebind", "message"),
    [
        (
            rebind_input,
            r"input 'a' is bound to \[2, 3\] in buffer 'input a', and the run was captured with anoth",
        ),
        (
            rebind_output,
            "output 'sum' is bound to .* captured with another tensor.* change that tensor by update_inplace",
        ),
        (
            rebind_to_the_host,
            "output 'sum' is bound to 'cpu', but the captured run leaves it on 'webgpu'; bind the tensors",
        ),
    ],
)
def test_other_tensors_than_those_captured_are_refused(rebind: Any, message: str, devices: Devices) -> None:
    session, binding, a = opened()
    check(session, binding, a, 1)
    inputs, outputs = dict(binding.inputs), dict(binding.outputs)
    rebind(binding)
    with pytest.raises(BindingError, match=message):
        session.run_with_iobinding(binding)
    binding.inputs.update(inputs)
    binding.outputs.update(outputs)
    check(session, binding, a, 4)


def test_an_output_that_was_not_captured_is_refused(devices: Devices) -> None:
    session, binding, _a = opened()
    binding.clear_binding_outputs()
    binding.bind_output("sum", "webgpu")
    session.run_with_iobinding(binding)
    binding.bind_output("difference", "webgpu")
    with pytest.raises(
        BindingError, match="output 'difference' was not bound when the run was captured; the bound ones were 'sum'"
    ):
        session.run_with_iobinding(binding)


def test_a_closed_tensor_is_found_at_the_replay(devices: Devices) -> None:
    session, binding, a = opened()
    check(session, binding, a, 1)
    total, _ = binding.get_outputs()
    total.close()
    binding.bind_output("sum", "webgpu")
    with pytest.raises(ClosedError, match="the OrtValue of 'sum' was closed, which the captured run uses"):
        session.run_with_iobinding(binding)


def test_a_model_that_cannot_be_captured_runs_eagerly_and_is_tried_once(devices: Devices) -> None:
    session, binding, a = opened()
    inner = device_session(session)
    inner.refuses = "the run reads 1 tensors back to the CPU, which a replay cannot do"
    with pytest.warns(
        FallbackWarning, match=f'{WEBGPU} with enableGraphCapture "1": {inner.refuses}; the run is eager'
    ):
        check(session, binding, a, 1)
    inner.refuses, tried = None, reasons()
    check(session, binding, a, 2)
    assert (inner.records, tried, [*reasons().values()]) == (0, {next(iter(tried)): 1}, [2])


def test_outputs_on_the_host_are_not_captured_but_a_binding_after_may_be(devices: Devices) -> None:
    session, binding, a = opened()
    inner = device_session(session)
    binding.bind_output("sum", "cpu")
    with pytest.warns(FallbackWarning, match="output 'sum' is bound to 'cpu', expected 'webgpu'.*; the run is eager"):
        check(session, binding, a, 1)
    assert inner.records == 0
    binding.bind_output("sum", "webgpu")
    check(session, binding, a, 2)
    check(session, binding, a, 3)
    assert inner.records == 1


def test_a_run_of_arrays_is_eager_and_says_so(devices: Devices) -> None:
    session, _, _ = opened()
    with pytest.warns(
        FallbackWarning, match=r"run\(\) places its arrays again in each run; bind them, and use run_with_iob"
    ):
        total, _ = session.run(None, {"a": ramp(2, 3), "b": ramp(2, 3)})
    np.testing.assert_array_equal(total, 2 * ramp(2, 3))


def test_closing_frees_the_captured_run_and_leaves_its_outputs(devices: Devices) -> None:
    device: ApartDevice = devices["webgpu"]
    session, binding, a = opened()
    check(session, binding, a, 1)
    users = device.users
    session.close()
    # The session and its captured run.
    assert device.users == users - 2
    np.testing.assert_array_equal(binding.get_outputs()[0].numpy(), ramp(2, 3) + 1)
    with pytest.raises(ClosedError, match="was closed; make a new one"):
        session.run_with_iobinding(binding)


def test_missing_inputs_are_told_as_without_capture(devices: Devices) -> None:
    session, binding, _ = opened()
    binding.clear_binding_inputs()
    with pytest.raises(BindingError, match="input 'a' is missing; the model has 'a', 'b'"):
        session.run_with_iobinding(binding)


def test_options_of_webgpu_say_nothing_of_a_session_on_the_cpu(devices: Devices) -> None:
    session = ort.InferenceSession(model("two_outputs"), providers=["cpu", ON])
    binding = session.io_binding()
    binding.bind_cpu_input("a", ramp(2, 3))
    binding.bind_cpu_input("b", ramp(2, 3))
    binding.bind_output("sum")
    session.run_with_iobinding(binding)
    assert reasons() == {}
