"""Counts submits and maps of runs of any ONNX model whose outputs go to the host. It runs in the page:

usage: python3 build.py exec benches/outputs.py -- [--rounds N]

Models of 1, 3 and 12 outputs (y0 = x + 0, y1 = x + 1, ...), their results as arrays of `session.run` and as outputs
bound to 'cpu'. One line of JSON for each: submits, maps and new buffers of a run behind the second one, and
milliseconds of a run (the median of the rounds).
"""

import argparse
import json
import statistics
import sys
import time
from array import array

import capstan.onnxruntime as ort
from capstan.graph.onnx_pb2 import ModelProto, TensorProto

ELEMENTS = 1000
COUNTERS = ("submits", "readbacks", "create_buffer")


def model(outputs):
    """A serialized model of so many additions."""
    made = ModelProto(ir_version=8)
    made.opset_import.add(version=17)
    made.graph.name = "outputs"
    tensors = [(made.graph.input.add(), "x"), *((made.graph.output.add(), f"y{i}") for i in range(outputs))]
    for info, name in tensors:
        info.name = name
        info.type.tensor_type.elem_type = TensorProto.FLOAT
        info.type.tensor_type.shape.dim.add(dim_value=ELEMENTS)
    for i in range(outputs):
        made.graph.node.add(op_type="Add", input=["x", f"c{i}"], output=[f"y{i}"])
        made.graph.initializer.add(
            name=f"c{i}", dims=[1], data_type=TensorProto.FLOAT, raw_data=array("f", [i]).tobytes()
        )
    return made.SerializeToString()


async def measure(outputs, bound, rounds):
    session = await ort.InferenceSession.create(model(outputs), providers=["webgpu"])
    x = array("f", range(ELEMENTS))
    binding = session.io_binding()
    binding.bind_cpu_input("x", x)
    for spec in session.get_outputs():
        binding.bind_output(spec.name)
    counts, times = [], []
    for _ in range(rounds + 2):
        before, began = session.device.engine.counters(), time.perf_counter()
        await (session.run_with_iobinding_async(binding) if bound else session.run_async(None, {"x": x}))
        times.append(1e3 * (time.perf_counter() - began))
        after = session.device.engine.counters()
        counts.append({name: after[name] - before[name] for name in COUNTERS})
    assert all(count == counts[2] for count in counts[2:]), counts
    await session.aclose()
    way = "bound to cpu" if bound else "run"
    return {"outputs": outputs, "way": way, **counts[2], "ms": round(statistics.median(times[2:]), 2)}


async def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=50)
    given = parser.parse_args(sys.argv[1:])
    for bound in (False, True):
        for outputs in (1, 3, 12):
            print(json.dumps(await measure(outputs, bound, given.rounds)))


await main()  # noqa: F704
