"""Runs any ONNX model in a page, with the interface of the native onnxruntime: `import capstan.onnxruntime as ort`.

session = await ort.InferenceSession.create("/models/any/model.onnx", providers=["WebGpuExecutionProvider"])
[y] = await session.run_async(None, {"x": array})

Arrays are PEP 3118 buffers (memoryview, array.array, ...); where numpy is loaded, results are ndarrays. Each function
of onnxruntime that waits has a twin whose name ends in `_async`; see docs/design.md, "Waiting".
"""

from __future__ import annotations

import sys

from ..memory import MemoryInfo, MemoryType
from ..signatures import check_arguments
from .captured import CapturedRun
from .inference_session import InferenceSession, NodeArg
from .io_binding import IOBinding
from .ort_value import OrtValue
from .providers import get_available_providers
from .requirements import SessionRequirements
from .session_options import SessionOptions

__all__ = [
    "CapturedRun",
    "IOBinding",
    "InferenceSession",
    "MemoryInfo",
    "MemoryType",
    "NodeArg",
    "OrtValue",
    "SessionOptions",
    "SessionRequirements",
    "get_available_providers",
]

check_arguments(sys.modules[__name__])
