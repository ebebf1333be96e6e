"""onnxruntime-genai's Python module, by Capstan: all names of release 0.18, so that a script for it runs in a page.

    import onnxruntime_genai as og      # in a page; `from capstan import genai as og` anywhere

    model = og.Model("models/bundled")
    tokenizer = og.Tokenizer(model)
    params = og.GeneratorParams(model)
    params.set_search_options(max_length=64)
    generator = og.Generator(model, params)
    generator.append_tokens(tokenizer.encode("def fibonacci(n):"))
    while not generator.is_done():
        generator.generate_next_token()

docs/genai.md lists every name, its differences, and the calls that Capstan does not support. Calls that compute wait,
which in a page needs JavaScript Promise Integration; `capstan`'s own classes have asynchronous twins. Arrays are
ndarrays if numpy can be imported, else memoryviews. Unsupported calls raise a `capstan.CapstanError`, which is a
RuntimeError.
"""

from __future__ import annotations

import sys

from ..signatures import check_arguments
from .changed_config import Config
from .events import (
    EngineCapabilities,
    EngineErrorCode,
    EngineEventFlags,
    FinishReason,
    TurnUsage,
)
from .genai_engine import Engine, EngineEventBuffer
from .genai_generator import Generator
from .genai_model import Adapters, Model
from .genai_tensors import NamedTensors, Tensor
from .genai_tokenizer import Tokenizer
from .log import set_log_callback, set_log_options
from .media_files import Audios, Images
from .multimodal_processor import MultiModalProcessor
from .params import GeneratorParams
from .refused import MtpGenerator, StreamingProcessor
from .request import EngineEvent, Request, RequestOptions, TurnOptions
from .runtime import (
    disable_telemetry_events,
    enable_telemetry_events,
    get_current_gpu_device_id,
    is_cuda_available,
    is_dml_available,
    is_openvino_available,
    is_qnn_available,
    is_webgpu_available,
    register_execution_provider_library,
    set_current_gpu_device_id,
    unregister_execution_provider_library,
)
from .token_texts import TokenizerStream

__version__ = "0.18.0"
"""The release of onnxruntime-genai that has these names; `capstan` has its own version."""
__id__ = "capstan"
__commit__ = ""

onnxruntime_genai = sys.modules[__name__]
"""The native package has its compiled module under this name."""

__all__ = [
    "Adapters",
    "Audios",
    "Config",
    "Engine",
    "EngineCapabilities",
    "EngineErrorCode",
    "EngineEvent",
    "EngineEventBuffer",
    "EngineEventFlags",
    "FinishReason",
    "Generator",
    "GeneratorParams",
    "Images",
    "Model",
    "MtpGenerator",
    "MultiModalProcessor",
    "NamedTensors",
    "Request",
    "RequestOptions",
    "StreamingProcessor",
    "Tensor",
    "Tokenizer",
    "TokenizerStream",
    "TurnOptions",
    "TurnUsage",
    "disable_telemetry_events",
    "enable_telemetry_events",
    "get_current_gpu_device_id",
    "is_cuda_available",
    "is_dml_available",
    "is_openvino_available",
    "is_qnn_available",
    "is_webgpu_available",
    "onnxruntime_genai",
    "register_execution_provider_library",
    "set_current_gpu_device_id",
    "set_log_callback",
    "set_log_options",
    "unregister_execution_provider_library",
]

check_arguments(sys.modules[__name__])
