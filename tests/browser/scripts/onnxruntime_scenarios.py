"""Scripts as one writes them for the native onnxruntime, run over that one on CPython and over capstan.onnxruntime.

Each takes the module, a provider's name, the device_type of its memory and models by name; each returns arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

__all__ = ["SCENARIOS", "Models"]

Models = Mapping[str, bytes]


def ramp(*shape: int) -> Any:
    return ((np.arange(int(np.prod(shape))) * 7 % 31 - 15) * 0.125).astype(np.float32).reshape(shape)


def describes_itself(ort: Any, provider: str, device: str, models: Models) -> list[Any]:
    """Names, shapes and types of inputs and outputs, as numbers."""
    texts = []
    for name in ("affine", "two_outputs", "element_types", "unnamed"):
        session = ort.InferenceSession(models[name], providers=[provider])
        texts += [f"{a.name} {a.shape} {a.type}" for a in (*session.get_inputs(), *session.get_outputs())]
    return [np.frombuffer("\n".join(texts).encode(), np.uint8)]


def runs(ort: Any, provider: str, device: str, models: Models) -> list[Any]:
    """All outputs, then some in another order."""
    session = ort.InferenceSession(models["two_outputs"], providers=[provider])
    feeds = {"a": ramp(2, 3), "b": ramp(3, 2).reshape(2, 3) * 2}
    found = session.run(None, feeds)
    found += session.run(["difference"], feeds)
    return [*found, *session.run(["difference", "sum"], feeds)]


def runs_any_number_of_rows(ort: Any, provider: str, device: str, models: Models) -> list[Any]:
    """Free dimensions, back and forth; not contiguous and empty arrays."""
    session = ort.InferenceSession(models["affine"], providers=[provider])
    found = [session.run(None, {"x": ramp(rows, 3)})[0] for rows in (1, 5, 2, 5)]
    found += session.run(["y"], {"x": np.asfortranarray(ramp(4, 3))})
    found += session.run(["y"], {"x": ramp(8, 3)[::2]})
    return [*found, *session.run(["y"], {"x": np.zeros((0, 3), np.float32)})]


def casts(ort: Any, provider: str, device: str, models: Models) -> list[Any]:
    """Outputs of many types, of a length that is no multiple of 4 bytes."""
    session = ort.InferenceSession(models["element_types"], providers=[provider])
    feeds = {"n": np.array([1, -2, 30, 4, 63], np.int64), "flag": np.array([True, False, True, True, False])}
    narrow = ort.InferenceSession(models["narrow"], providers=[provider])
    return [*session.run(None, feeds), *narrow.run(None, {"x": np.array([-128, 0, 127], np.int8)})]


def takes_scalars(ort: Any, provider: str, device: str, models: Models) -> list[Any]:
    """Tensors without dimensions, dimensions without names."""
    session = ort.InferenceSession(models["unnamed"], providers=[provider])
    return list(session.run(None, {"x": ramp(3, 2), "factor": np.array(3, np.float32)}))


def finds_sizes(ort: Any, provider: str, device: str, models: Models) -> list[Any]:
    """An output whose size depends on the values, 0 among them."""
    session = ort.InferenceSession(models["positions"], providers=[provider])
    feeds = [[0, 1, 0, 2, 3], [0, 0], [5]]
    return [session.run(None, {"x": np.array(feed, np.float32)})[0] for feed in feeds]


def binds_arrays(ort: Any, provider: str, device: str, models: Models) -> list[Any]:
    """bind_cpu_input and outputs made by the session, on the CPU and on the device."""
    session = ort.InferenceSession(models["two_outputs"], providers=[provider])
    binding = session.io_binding()
    binding.bind_cpu_input("a", ramp(2, 3))
    binding.bind_cpu_input("b", ramp(2, 3) * 3)
    binding.bind_output("difference")
    binding.bind_output("sum", device)
    binding.synchronize_inputs()
    session.run_with_iobinding(binding)
    binding.synchronize_outputs()
    found = [*binding.copy_outputs_to_cpu(), *(value.numpy() for value in binding.get_outputs())]
    binding.clear_binding_inputs()
    binding.bind_cpu_input("a", ramp(2, 3) + 1)
    binding.bind_cpu_input("b", ramp(2, 3))
    binding.clear_binding_outputs()
    binding.bind_output("sum")
    session.run_with_iobinding(binding)
    return [*found, *binding.copy_outputs_to_cpu()]


def binds_values(ort: Any, provider: str, device: str, models: Models) -> list[Any]:
    """OrtValues on the device as inputs and outputs, changed in place between runs."""
    session = ort.InferenceSession(models["two_outputs"], providers=[provider])
    a = ort.OrtValue.ortvalue_from_numpy(ramp(2, 3).copy(), device, 0)
    b = ort.OrtValue.ortvalue_from_shape_and_type([2, 3], np.float32, device)
    b.update_inplace(np.ones((2, 3), np.float32))
    total = ort.OrtValue.ortvalue_from_shape_and_type([2, 3], np.float32, device, 0)
    binding = session.io_binding()
    binding.bind_ortvalue_input("a", a)
    binding.bind_input("b", device, 0, np.float32, b.shape(), b.data_ptr())
    binding.bind_output("sum", device, 0, np.float32, [2, 3], total.data_ptr())
    binding.bind_output("difference", device)
    found = []
    for factor in (1, 2, -3):
        a.update_inplace(ramp(2, 3) * factor)
        session.run_with_iobinding(binding)
        found += [value.numpy().copy() for value in (a, b, total, *binding.get_outputs())]
    about = f"{total.shape()} {total.data_type()} {total.element_type()} {total.is_tensor()} {total.has_value()}"
    return [*found, np.frombuffer(about.encode(), np.uint8)]


def chains_sessions(ort: Any, provider: str, device: str, models: Models) -> list[Any]:
    """One session's output on the device is another's input."""
    first = ort.InferenceSession(models["affine"], providers=[provider])
    second = ort.InferenceSession(models["positions"], providers=[provider])
    binding = first.io_binding()
    binding.bind_cpu_input("x", ramp(3, 3))
    binding.bind_output("y", device)
    first.run_with_iobinding(binding)
    (y,) = binding.get_outputs()
    third = ort.InferenceSession(models["unnamed"], providers=[provider])
    again = third.io_binding()
    again.bind_ortvalue_input("x", y)
    again.bind_cpu_input("factor", np.array(-2, np.float32))
    again.bind_output("y")
    third.run_with_iobinding(again)
    (scaled,) = again.copy_outputs_to_cpu()
    return [y.numpy(), scaled, *second.run(None, {"x": np.maximum(scaled.reshape(-1), 0)})]


SCENARIOS: dict[str, Callable[[Any, str, str, Models], list[Any]]] = {
    scenario.__name__: scenario
    for scenario in (
        describes_itself,
        runs,
        runs_any_number_of_rows,
        casts,
        takes_scalars,
        finds_sizes,
        binds_arrays,
        binds_values,
        chains_sessions,
    )
}
