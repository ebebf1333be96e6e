"""Runs language models in a web page, with the API of onnxruntime-genai; onnxruntime-web computes them on WebGPU.

model = await capstan.Model.load("/models/bundled/")
tokenizer = capstan.Tokenizer(model)
with capstan.Generator(model) as generator:
    generator.append_tokens(tokenizer.encode("def fibonacci(n):"))
    async for token in generator:
        ...
"""

from __future__ import annotations

import sys

from . import errors, measure, memory, notebook
from .adapters import Adapters
from .device.device_host import use_device_host
from .errors import *  # noqa: F403  (whatever errors.__all__ names)
from .fallback import FallbackWarning
from .generation.generator import Generator
from .generation.generator_params import GeneratorParams
from .generation.named_processors import logits_processor, shortlist_processor
from .generation.speculation import SpeculationStats
from .generation.token_scores import Score
from .generation.token_times import Timing
from .host import configure
from .host.tracing import Trace, trace
from .loading.planning import open_device, plan
from .model import Model
from .model_files.hub import HubRepository
from .model_files.known_models import KnownModel, models
from .model_files.model_facts import ModelFacts
from .signatures import check_arguments
from .speech.caption import Caption
from .speech.transcriber import Transcriber
from .speech.transcription_run import Segment, Transcription, TranscriptionRun
from .speech.voice import Voice
from .stages.search import SearchOptions
from .stages.speculation_options import Speculation
from .text.stream import StoppingStream, TextStream
from .tokenizer import Tokenizer, TokenizerStream
from .weights.store import StoredWeights, Verification, WeightStore

if sys.platform == "emscripten":
    from ._js import page_host

    use_device_host(page_host)
else:
    from .local.local_host import LocalHost

    use_device_host(LocalHost())

__all__ = [
    "Adapters",
    "Caption",
    "FallbackWarning",
    "Generator",
    "GeneratorParams",
    "HubRepository",
    "KnownModel",
    "Model",
    "ModelFacts",
    "Score",
    "SearchOptions",
    "Segment",
    "Speculation",
    "SpeculationStats",
    "StoppingStream",
    "StoredWeights",
    "TextStream",
    "Timing",
    "Tokenizer",
    "TokenizerStream",
    "Trace",
    "Transcriber",
    "Transcription",
    "TranscriptionRun",
    "Verification",
    "Voice",
    "WeightStore",
    "configure",
    "logits_processor",
    "measure",
    "memory",
    "models",
    "notebook",
    "open_device",
    "plan",
    "shortlist_processor",
    "trace",
]
__all__ += errors.__all__

for public in (sys.modules[__name__], memory, measure, notebook):
    check_arguments(public, themselves=(HubRepository, SearchOptions, Speculation))
