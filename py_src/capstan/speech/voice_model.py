"""Reads the files of a Kokoro model in the hub's layout, and runs its graph.

config.json, tokenizer.json, onnx/model.onnx or another dtype of it, and voices/NAME.bin: for each number of phonemes a
style of 256 floats.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence
from typing import Any, Unpack

from ..errors import ConfigError, DeviceError, ModelFileError, OptionError, UnsupportedModelError
from ..graph.onnx_pb2 import ModelProto
from ..host import Host, current_host
from ..loading.folder import graph_of, place_of
from ..loading.load_options import EmbedderOptions
from ..loading.repository import onnx_file
from ..model_files.config_section import parse_object
from ..onnxruntime.inference_session import InferenceSession
from ..onnxruntime.providers import CPU, WEBGPU, asked_for
from ..onnxruntime.session_placement import GraphFile
from .phonemes import MOST

__all__ = ["VoiceModel"]

MODEL_TYPE = "style_text_to_speech_2"
IDS = ("input_ids", "tokens")
"""The names, in different exports, of the input with the phonemes."""
WIDTH = 256
"""Floats of a style."""
PREFERRED = {CPU: "q8", WEBGPU: "fp32"}
"""The dtype for each provider, if a repository has it: int8 is the smallest and the fastest on the CPU, but WebGPU does
not compute it.
"""


class VoiceModel:
    """A session of the model, the ids of its phonemes, and the styles of its voices."""

    def __init__(
        self, host: Host, folder: str, session: InferenceSession, symbols: Mapping[str, int], names: Sequence[str]
    ) -> None:
        self.host, self.folder, self.names = host, folder, names
        """`names` are the voices; empty if the folder cannot be listed."""
        self.symbols = symbols
        """The id of each phoneme."""
        self._session = session
        self._styles: dict[str, memoryview[float]] = {}

    @classmethod
    async def load(cls, path: Any, **options: Unpack[EmbedderOptions]) -> VoiceModel:
        """Load the model at `path`. Raises ConfigError, ModelFileError, OptionError, UnsupportedModelError,
        DeviceUnavailableError.
        """
        device, dtype = options.get("device", "auto"), options.get("dtype")
        if device not in ("webgpu", "wasm", "auto"):
            raise OptionError(f"device is {device!r}; it must be one of 'webgpu', 'wasm' and 'auto'")
        provider = WEBGPU if device == "webgpu" else CPU
        host, keep = current_host(), not options.get("disable_file_mapped_weights")
        place = await place_of(host, path, keep)
        if place.gguf is not None:
            raise UnsupportedModelError(f"{place.path}: a GGUF file has no graph of a voice; use an ONNX model")
        folder = place.folder
        symbols = await symbols_of(host, folder)
        if dtype is None and await host.exists(folder, onnx_file(PREFERRED[provider])):
            dtype = PREFERRED[provider]
        graph = GraphFile(
            *await graph_of(host, folder, "webgpu" if provider == WEBGPU else "wasm", dtype), require_voice
        )
        listed = await host.listing(folder) or {}
        names = sorted(name[7:-4] for name in listed if name.startswith("voices/") and name.endswith(".bin"))
        session = await InferenceSession.of_graph(graph, asked_for([provider], None), keep)
        return cls(host, folder, session, symbols, names)

    @property
    def device(self) -> str:
        """'webgpu' or 'wasm'."""
        return "webgpu" if self._session.get_providers() == [WEBGPU] else "wasm"

    async def styles(self, voice: str) -> memoryview[float]:
        """The styles of a voice: float32 [MOST * WIDTH]. Raises OptionError for an unknown voice, ModelFileError."""
        if voice not in self._styles:
            name = f"voices/{voice}.bin"
            data = None if "/" in voice or "\\" in voice else await self.host.read_optional(self.folder, name)
            if data is None:
                there = (
                    (f"the voices are {', '.join(self.names)}") if self.names else f"{self.folder}{name} does not exist"
                )
                raise OptionError(f"voice is {voice!r}; {there}")
            whole = MOST * WIDTH * 4
            if len(data) != whole:
                raise ModelFileError(
                    f"{self.folder}{name} has {len(data)} bytes, but a voice has {whole}: copy the file again"
                )
            floats = memoryview(data).cast("f")
            if not math.isfinite(sum(floats)):
                raise ModelFileError(f"{self.folder}{name} has numbers that are not finite: copy the file again")
            self._styles[voice] = floats
        return self._styles[voice]

    async def run(self, phonemes: str, voice: str, speed: float) -> memoryview[float]:
        """The samples of one piece. Raises DeviceError for samples that are NaN."""
        styles, ids = await self.styles(voice), [self.symbols[symbol] for symbol in phonemes]
        row = (len(ids) - 1) * WIDTH
        feed: dict[str, Any] = {
            next(iter(self._session.inputs)): (array("q", [0, *ids, 0]), [1, len(ids) + 2]),
            "style": (styles[row : row + WIDTH], [1, WIDTH]),
            "speed": (array("f", [speed]), [1]),
        }
        output = next(iter(self._session.outputs))
        [result] = await self._session.run_async([output], feed)
        samples = memoryview(result).cast("B").cast("f")
        if not math.isfinite(sum(samples)):
            raise DeviceError(f"the model gave NaN samples on {self.device}; load it with device='wasm'")
        return samples

    async def aclose(self) -> None:
        """Free the session."""
        await self._session.aclose()


async def symbols_of(host: Host, folder: str) -> dict[str, int]:
    """The ids of phonemes, from tokenizer.json, or from a config.json that has them. Raises ConfigError,
    ModelFileError, UnsupportedModelError for a model that does not speak.
    """
    config = await host.read_optional(folder, "config.json")
    if config is None:
        raise ModelFileError(
            f"{folder}config.json is missing; check the model's address, or put the file beside tokenizer.json "
            "and voices/"
        )
    about = parse_object(config, folder + "config.json")
    kind, vocab = about.get("model_type"), about.get("vocab")
    if kind != MODEL_TYPE and not ("istftnet" in about and vocab):
        raise UnsupportedModelError(
            f"{folder} has a model of type {kind!r}, which does not speak; load a Kokoro model, whose config.json has "
            f"the type {MODEL_TYPE!r}"
        )
    where = folder + "tokenizer.json"
    if (data := await host.read_optional(folder, "tokenizer.json")) is not None:
        model = parse_object(data, where).get("model")
        vocab = model.get("vocab") if isinstance(model, dict) else None
    if not isinstance(vocab, dict) or not all(isinstance(place, int) for place in vocab.values()):
        raise ConfigError(f"{where} has no ids of phonemes (model.vocab); copy the file again")
    return {symbol: place for symbol, place in vocab.items() if len(symbol) == 1 and place > 0}


def require_voice(model: ModelProto) -> ModelProto:
    """The graph. Raises UnsupportedModelError for a graph of another form."""
    weights = {tensor.name for tensor in model.graph.initializer}
    inputs = [value.name for value in model.graph.input if value.name not in weights]
    outputs = model.graph.output
    if len(inputs) != 3 or inputs[0] not in IDS or inputs[1:] != ["style", "speed"]:
        raise UnsupportedModelError(
            f"the graph has the inputs {', '.join(inputs)}; a Kokoro model has input_ids, style and speed"
        )
    if not outputs or outputs[0].type.tensor_type.elem_type != 1:
        raise UnsupportedModelError("the graph's first output is not float32, the type of a Kokoro model's samples")
    return model
